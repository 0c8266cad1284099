"""Stores a report's page, figures and verdicts with the parent of its sweep, where MLflow's page shows them."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from mlflow import MlflowClient

from cppo_lab import schema
from cppo_lab.errors import UserError
from cppo_lab.redaction import redacted
from cppo_lab.store.client import STORE_FAULTS, fault_line, open_client
from cppo_lab.store.exclusive import exclusive
from cppo_lab.tracking.markdown import escaped
from cppo_lab.tracking.parents import ensure_parent, figure, log_report, noted_runs
from cppo_lab.tracking.sweep_note import MOST, MOST_VERDICT, SweepText, sweep_note, with_verdict

_DIGITS = 12  # of a file's fingerprint: enough to see that it changed


@dataclass(frozen=True)
class ReportLog:
    """What to keep: `files` of `folder` with their fingerprints, and the verdicts on the claims, each as
    (outcome, claim, reason). `shown`: the name of a PNG to show. `origin`: where the numbers come from.

    `whole_study`: the report is of a study, whose runs belong to other sweeps.
    """

    sweep: SweepText
    folder: Path
    files: Mapping[str, str]
    verdicts: Sequence[tuple[str, str, str]]
    origin: str
    shown: str = ""
    whole_study: bool = False


def keep_report(uri: str, experiment: str, log: ReportLog, again: bool = False) -> int:
    """Stores the report with the sweep's parent, and returns how many files had to be uploaded.

    Unchanged files are not uploaded, except with `again`. Raises UserError if the store fails.
    """
    try:
        return _keep(open_client(uri), uri, experiment, log, again)
    except STORE_FAULTS as error:
        raise UserError(f"tracking store {redacted(uri)} failed: {fault_line(error)}") from None


def _keep(client: MlflowClient, uri: str, experiment: str, log: ReportLog, again: bool) -> int:
    found = client.get_experiment_by_name(experiment)
    if found is None or found.lifecycle_stage != "active":
        raise UserError(f"experiment {experiment!r} is not in {redacted(uri)} any more")
    parent = ensure_parent(client, uri, found.experiment_id, log.sweep.name)
    tags = client.get_run(parent).data.tags
    known = {} if again else kept_files(tags)
    now = {name: digest[:_DIGITS] for name, digest in log.files.items()}
    changed = [name for name, digest in now.items() if known.get(name) != digest]
    log_report(client, parent, [log.folder / name for name in changed])
    text = json.dumps(now, separators=(",", ":"), sort_keys=True)
    note = _note(client, experiment, found.experiment_id, parent, log)
    with exclusive(uri):
        if tags.get(schema.TAG_REPORT) != text and len(text) <= MOST:
            client.set_tag(parent, schema.TAG_REPORT, text)
        if tags.get(schema.TAG_NOTE) != note:
            client.set_tag(parent, schema.TAG_NOTE, note)
    return len(changed)


def kept_files(tags: Mapping[str, str]) -> dict[str, str]:
    """The files of a report that a parent has, each with the beginning of its fingerprint."""
    try:
        found = json.loads(tags.get(schema.TAG_REPORT, "{}"))
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _note(client: MlflowClient, experiment: str, number: str, parent: str, log: ReportLog) -> str:
    verdict = verdict_markdown(log, figure(parent, log.shown, log.sweep.title) if log.shown else "")
    if log.whole_study:
        return with_verdict(f"## {escaped(log.sweep.title)}\n\n**{escaped(log.sweep.question)}**\n", verdict)
    return sweep_note(log.sweep, noted_runs(client, experiment, log.sweep.name), number, verdict)


def verdict_markdown(log: ReportLog, shown: str) -> str:
    """The claims, as many as fit, and the figure."""
    lines = [f"From the report ({escaped(log.origin)}); its page and figures are among the artifacts."]
    left = MOST_VERDICT - len(lines[0]) - len(shown)
    for count, (outcome, claim, reason) in enumerate(log.verdicts):
        line = f"- **{escaped(outcome)}**: {escaped(claim)}. {escaped(reason)}"
        left -= len(line) + 1
        if left < 40:
            lines.append(f"- and {len(log.verdicts) - count} more, on the page")
            break
        lines.append(line)
    if not log.verdicts:
        lines.append("- the paper makes no claim about this sweep")
    return "\n".join(lines) + (f"\n\n{shown}" if shown else "")
