"""What MLflow's page shows beside the runs: a sweep's parent, a search with its trials, and the view that
our links open.

The parent is a run below which MLflow nests those of the sweep. It has the sweep's description with the states of its
runs, the means of its variants, the registered hypotheses, and the page, figures and verdicts of its report. It has no
`cppo.run_id`, so that readers of training runs skip it, and its status is finished from the start.

MLflow keeps a saved view of an experiment's runs in the experiment's tag `mlflow.sharedViewState.<key>` and opens it by
`?viewStateShareKey=<key>`. The format is that of MLflow 3.17's page; it is not documented, so tests/browser opens it in
a real browser.

A search has a run for the study, with a child run for each trial. Training runs are separate. Runs of a search have no
`cppo.run_id` either.
"""

import base64
import contextlib
import itertools
import json
import math
import re
import shlex
import time
import zlib
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass, fields, replace
from itertools import accumulate
from operator import attrgetter, sub
from pathlib import Path
from statistics import fmean
from types import MappingProxyType
from typing import Annotated, Any, NamedTuple
from urllib.parse import urlencode

from mlflow import MlflowClient
from mlflow.entities import Experiment, Metric, Param, Run, ViewType
from mlflow.exceptions import MlflowException
from pydantic import Field, StrictInt, TypeAdapter

from cppo_lab import schema
from cppo_lab.errors import UserError, in_time
from cppo_lab.files import redacted
from cppo_lab.runs.machine import code_version
from cppo_lab.runs.state import by_state
from cppo_lab.runs.tags import escaped
from cppo_lab.tracking import address
from cppo_lab.tracking.client import STORE_FAULTS, exclusive, fault_line, may_fail, open_client
from cppo_lab.tracking.history import unclipped
from cppo_lab.tracking.read import (
    SILENCE_SECONDS,
    StoredFiles,
    is_active,
    newest_of_each,
    newest_runs,
    search_runs,
    stored_run,
)

VARIANT_MEAN = "variant_mean"  # metrics of a parent only
_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9_\-. ]")  # MLflow allows few characters, and no empty or dotted parts
_LONGEST_PART = 100
REPORT = "report"  # the folder of a parent's artifacts that a report fills
MOST = 8000  # MLflow's limit on the characters of a run's tag
_MOST_VERDICT = 1900  # characters of the verdict
_MOST_CHARACTERS = 300  # of title and question
# The last section of a description; what follows it stays when that is rewritten.
_VERDICT = "\n### Verdict\n"
_HYPOTHESES = "hypotheses"  # the folder of a parent's artifacts with registered statements
_LARGEST_STATEMENT = 5_000_000  # bytes
VIEW = "cppo-runs"
TAG_VIEW = "mlflow.sharedViewState." + VIEW
# MLflow's tag: which of its pages an experiment opens on.
_KIND, _TRAINING = "mlflow.experimentKind", "custom_model_development"
_NEWEST = 500  # the view is built from these runs
_CHARTS = 7  # of the mean and single benchmarks. The value of an experiment's tag has at most 5,000 bytes
_COLUMNS = (schema.TAG_STATUS, schema.TAG_RULE, schema.TAG_MODEL, schema.TAG_SEED, schema.TAG_STEP)


@dataclass(frozen=True)
class SweepText:
    """A sweep's description: its `feeds` are tables and figures of the paper."""

    name: str
    title: str
    question: str
    feeds: tuple[str, ...] = ()


@dataclass(frozen=True)
class ReportLog:
    """What to keep: `files` of `folder`, and the verdicts on the claims, each as (outcome, claim, reason). `shown`: the
    name of a PNG to show. `origin`: the report's command, and where its numbers come from.

    `whole_study`: the report is of a study, whose runs belong to other sweeps.
    """

    sweep: SweepText
    folder: Path
    files: Collection[str]
    verdicts: Sequence[tuple[str, str, str]]
    origin: str
    shown: str = ""
    whole_study: bool = False


def ensure_parent(client: MlflowClient, experiment_id: str, sweep: str) -> str:
    """The MLflow id of a sweep's parent, created if it does not exist.

    Launchers that create it at the same time, as only those of a server can, agree on the oldest, which stays and takes
    over the others' runs.
    """

    def parents() -> list[str]:
        runs = client.search_runs([experiment_id], f"tags.`{schema.TAG_SWEEP_PARENT}` = '{sweep}'")
        return [
            run.info.run_id for run in sorted(runs, key=lambda run: (run.info.start_time, run.info.run_id))
        ]

    with exclusive(client.tracking_uri):
        if not (existing := parents()):
            tags = {schema.TAG_SWEEP_PARENT: sweep}
            parent = client.create_run(experiment_id, tags=tags, run_name=f"sweep {sweep}").info.run_id
            try:
                client.set_terminated(parent, "FINISHED")
            except MlflowException:  # another launcher, whose own parent is older, may have removed it
                if is_active(client, parent):
                    raise
            existing = parents() or [parent]
        oldest, *others = existing
        for other in others:
            children = client.search_runs([experiment_id], f"tags.`{schema.TAG_PARENT}` = '{other}'")
            nest(client, {child.info.run_id: oldest for child in children})
            client.delete_run(other)
    return oldest


def nest(client: MlflowClient, runs: Mapping[str, str]) -> None:
    """Put runs that have ended under parents: `runs` maps the MLflow id of each to that of its parent."""
    for mlflow_id, parent in runs.items():
        client.set_tag(mlflow_id, schema.TAG_PARENT, parent)


def update_parent(
    client: MlflowClient,
    parent: str,
    sweep: SweepText,
    planned: Mapping[str, str] = MappingProxyType({}),
    verdict: str | None = None,
) -> None:
    """Write the description of a sweep's parent, and log the means of its variants.

    `planned`: run id -> state of the runs that a launcher has planned. The states of other runs of the sweep, from
    earlier launches, come from the store. The verdict stays if none is given.
    """
    run, tag = client.get_run(parent), schema.sweep_tag(sweep.name)
    runs = newest_of_each(map(stored_run, search_runs(client, run.info.experiment_id, tag=tag)))
    states = {stored.run_id: stored.status for stored in runs} | dict(planned)
    _write_note(client, run, sweep, states.values(), verdict)
    scores = (
        (stored.tags[tag], stored.tags.get(schema.TAG_MODEL, ""), unclipped(value))
        for stored in runs
        if states[stored.run_id] in schema.FINISHED
        for name, (_, _, value) in stored.latest.items()
        if (parsed := schema.parse_validation_metric(name)) is not None and parsed[0] == schema.MEAN
    )
    time_ms = int(time.time() * 1000)
    new = [
        Metric(name, value, time_ms, 0)
        for name, value in variant_means(scores).items()
        if unclipped(run.data.metrics.get(name, math.nan)) != value
    ]
    if new:
        client.log_batch(parent, metrics=new)


def _write_note(
    client: MlflowClient, parent: Run, sweep: SweepText, states: Collection[str], verdict: str | None
) -> None:
    old = parent.data.tags.get(schema.TAG_NOTE, "")
    note = sweep_note(sweep, states, old.partition(_VERDICT)[2] if verdict is None else verdict)
    if note != old:
        client.set_tag(parent.info.run_id, schema.TAG_NOTE, note)


def sweep_note(sweep: SweepText, states: Collection[str], verdict: str = "") -> str:
    """The whole description, in Markdown as the `verdict` is; `states` are those of the sweep's runs."""
    parts = [f"## {escaped(sweep.title[:_MOST_CHARACTERS])}"]
    if sweep.question:
        parts.append(f"**{escaped(sweep.question[:_MOST_CHARACTERS])}**")
    if sweep.feeds:
        parts.append(f"Of the paper: {escaped(', '.join(sweep.feeds))}.")
    if states:
        counts = ", ".join(f"{count} {state}" for state, count in by_state(states).items())
        parts.append(
            f"- runs: {len(states)} ({counts})\n"
            f"- to see only these runs, filter by ``tags.`{schema.sweep_tag(sweep.name)}` LIKE '%'``"
        )
    note = "\n\n".join(parts) + "\n"
    return f"{note}{_VERDICT}\n{verdict.strip()[:_MOST_VERDICT]}\n" if verdict.strip() else note


def variant_means(runs: Iterable[tuple[str, str, float]]) -> dict[str, float]:
    """`variant_mean/MODEL/VARIANT` -> the mean of the last validations, a fraction, of runs given by variant, model and
    that.
    """
    scores: dict[str, list[float]] = {}
    for variant, model, score in runs:
        scores.setdefault("/".join((VARIANT_MEAN, _name_part(model), _name_part(variant))), []).append(score)
    return {name: fmean(values) for name, values in scores.items()}


def _name_part(text: str) -> str:
    """The text as a part of a metric's name. If it has to change for that, it ends with a digest of it, so that two
    texts keep two names.
    """
    plain = _NOT_IN_NAMES.sub("_", text).strip(". ")
    if plain == text and len(text.encode()) <= _LONGEST_PART:
        return text
    end = f"-{schema.digest(text)}"
    return (plain.encode()[: _LONGEST_PART - len(end)].decode(errors="ignore") or "_") + end


def keep_report(uri: str, experiment: str, log: ReportLog) -> None:
    """Stores a report with the sweep's parent, where MLflow's page shows it. Raises UserError if the store fails."""
    client = open_client(uri)
    try:
        stored = client.get_experiment_by_name(experiment)
        if stored is None or stored.lifecycle_stage != "active":
            raise UserError(f"experiment {experiment!r} is not in {redacted(uri)} any more")
        parent = ensure_parent(client, stored.experiment_id, log.sweep.name)
        for name in log.files:
            client.log_artifact(parent, str(log.folder / name), REPORT)
        client.set_tag(parent, schema.TAG_REPORT, " ".join(log.files)[:MOST])
        verdict = verdict_markdown(log, parent)
        if log.whole_study:
            _write_note(client, client.get_run(parent), log.sweep, (), verdict)
        else:
            update_parent(client, parent, log.sweep, verdict=verdict)
    except STORE_FAULTS as error:
        raise UserError(f"tracking store {redacted(uri)} failed: {fault_line(error)}") from None


def verdict_markdown(log: ReportLog, parent: str) -> str:
    """The claims, as many as fit, and the figure, which the run `parent` has."""
    figure = ""
    if log.shown:
        query = urlencode({"path": f"{REPORT}/{log.shown}", "run_uuid": parent})
        figure = f"\n\n![{escaped(log.sweep.title[:_MOST_CHARACTERS])}](get-artifact?{query})"
    lines = [f"From the report ({escaped(log.origin)}); its page and figures are among the artifacts."]
    room = _MOST_VERDICT - len(lines[0]) - len(figure)
    for count, (outcome, claim, reason) in enumerate(log.verdicts):
        line = f"- **{escaped(outcome)}**: {escaped(claim)}. {escaped(reason)}"
        room -= len(line) + 1
        if room < 40:
            lines.append(f"- and {len(log.verdicts) - count} more, on the page")
            break
        lines.append(line)
    if not log.verdicts:
        lines.append("- the paper makes no claim about this sweep")
    return "\n".join(lines) + figure


@dataclass(frozen=True)
class Registration:
    """The digest of what was registered, when (milliseconds since the epoch), the digest of the settings of the sweep's
    runs at that time, the version of the code, which is that of the analysis, and how it compares runs: by `seed` or
    `none` ("": registered by a version that did not record these). `looks`: each (seeds, of so many test seeds) at
    which somebody saw results before the end. So far in the tag's order; `parent`: the sweep's run, whose tag it is.
    """

    digest: str
    time_ms: Annotated[StrictInt, Field(lt=2**53)]
    settings: str = ""
    code: str = ""
    pairing: str = ""
    looks: tuple[tuple[StrictInt, StrictInt], ...] = ()
    parent: str = ""

    def covers(self, digest: str, settings: str) -> bool:
        """Whether it is of this statement, with these settings as far as it recorded them."""
        return self.digest == digest and self.settings in ("", settings)


def register(
    client: MlflowClient, parent: str, statement: tuple[str, str], settings: str, pairing: str
) -> None:
    """Register hypotheses with the sweep's run, unless they are registered already.

    `statement`: their JSON text and its digest. `settings`: the digest of the settings of the sweep's runs.
    `pairing`: how they are compared, `seed` or `none`.
    """
    text, digest = statement
    with exclusive(client.tracking_uri):
        before = parse_registrations(client.get_run(parent).data.tags.get(schema.TAG_HYPOTHESES, ""))
        if any(registration.covers(digest, settings) for registration in before):
            return
        client.log_text(parent, text + "\n", f"{_HYPOTHESES}/{digest}.json")
        new = Registration(digest, time.time_ns() // 10**6, settings, code_version(), pairing)
        _keep(client, parent, (*before, new))


def note_look(client: MlflowClient, registration: Registration, look: tuple[int, int]) -> None:
    """Keep a look with its registration, once; the oldest ones if MLflow's tag is full."""
    with exclusive(client.tracking_uri):
        tag = client.get_run(registration.parent).data.tags.get(schema.TAG_HYPOTHESES, "")
        before = parse_registrations(tag, registration.parent)
        noted = [
            replace(earlier, looks=(*earlier.looks, look))
            if (earlier.digest, earlier.time_ms) == (registration.digest, registration.time_ms)
            and look not in earlier.looks
            else earlier
            for earlier in before
        ]
        if noted != [*before] and len(tag) < MOST - 20:
            _keep(client, registration.parent, noted)


def _keep(client: MlflowClient, parent: str, registrations: Iterable[Registration]) -> None:
    entries = [astuple(entry)[:-1] for entry in registrations]
    client.set_tag(parent, schema.TAG_HYPOTHESES, json.dumps(entries))


def parse_registrations(text: str, parent: str = "") -> tuple[Registration, ...]:
    """The entries of the tag, the oldest first. A tag of another format counts as none."""
    names = [entry.name for entry in fields(Registration)][:-1]
    try:
        entries = [dict(zip(names, entry, strict=False), parent=parent) for entry in json.loads(text or "[]")]
        registrations = TypeAdapter(list[Registration]).validate_python(entries)
    except (ValueError, TypeError, RecursionError):
        return ()
    return tuple(sorted(registrations, key=attrgetter("time_ms")))


def find_registrations(client: MlflowClient, experiment: str, sweep: str) -> tuple[Registration, ...]:
    """What is registered for a sweep of an experiment, the oldest first; nothing if there is no such sweep."""
    registrations = (
        registration
        for run in newest_runs(client, experiment, f"tags.`{schema.TAG_SWEEP_PARENT}` = '{sweep}'")
        for registration in parse_registrations(run.data.tags.get(schema.TAG_HYPOTHESES, ""), run.info.run_id)
    )
    return tuple(sorted(registrations, key=attrgetter("time_ms")))


def deleted_starts(client: MlflowClient, experiment: str) -> dict[str, int]:
    """Run id -> when the first of its deleted runs in an experiment began, in milliseconds since the epoch.

    Results that `--replace` has replaced are among them. What `mlflow gc` has removed is not.
    """
    deleted = newest_runs(client, experiment, tag=schema.TAG_RUN_ID, view=ViewType.DELETED_ONLY)
    return {run.data.tags[schema.TAG_RUN_ID]: run.info.start_time for run in deleted}  # the oldest comes last


def read_statement(client: MlflowClient, registration: Registration) -> str | None:
    """The JSON text that was registered; None if the store does not have it or does not answer."""
    name = f"{_HYPOTHESES}/{registration.digest}.json"
    try:
        content = StoredFiles(client, registration.parent).content(name, _LARGEST_STATEMENT)
        return None if content is None else content.decode()
    except (UserError, ValueError):
        return None


def page(experiment: Experiment) -> str:
    """The path of an experiment's runs on the server, in the saved view, if any."""
    # MLflow 3 opens on its pages for language-model traces unless a tag says that these are training runs.
    query = {"workflowType": "machine_learning"}
    if TAG_VIEW in experiment.tags:
        query |= {"compareRunsMode": "CHART", "viewStateShareKey": VIEW}
    return f"/#/experiments/{experiment.experiment_id}/runs?{urlencode(query)}"


def where_to_look(uri: str, experiment: str) -> str:
    """How to open the runs of `experiment` in MLflow's page: its address, or the command that serves it."""
    if uri.startswith("http"):
        stored = None
        with contextlib.suppress(UserError, *STORE_FAULTS):  # what has been trained has been trained
            stored = in_time(lambda: open_client(uri).get_experiment_by_name(experiment), SILENCE_SECONDS)
        return redacted(uri).rstrip("/") + (page(stored) if stored else "")
    if uri == address.tracking_uri():
        return "cppo ui"
    return f"MLFLOW_TRACKING_URI={shlex.quote(redacted(uri))} cppo ui"


def comparison(experiments: Sequence[Experiment]) -> str:
    """The path on the server that shows the runs of several experiments in the same charts."""
    ids = json.dumps([experiment.experiment_id for experiment in experiments])
    query = {
        "experiments": ids,
        "workflowType": "machine_learning",
        "compareRunsMode": "CHART",
        "searchFilter": f"tags.`{schema.TAG_RUN_ID}` LIKE '%'",
        "orderByKey": f"metrics.`{schema.validation_metric(schema.MEAN)}`",
        "orderByAsc": "false",
    }
    return f"/#/compare-experiments/s?{urlencode(query)}"


def save_view(client: MlflowClient, experiment_id: str) -> None:
    """Write the view of an experiment's training runs, unless it is there and up to date: filter, columns, and a first
    section with charts of the validation metrics. The page adds sections for all other metrics.
    """
    experiment = client.get_experiment(experiment_id)
    count = Counter(
        name
        for run in itertools.islice(search_runs(client, experiment_id, newest_first=True), _NEWEST)
        for name in run.data.metrics
        if schema.parse_validation_metric(name) is not None
    )
    # The mean first, then those of most runs; the schema's if there are none yet.
    validation = sorted(count, key=lambda name: (f"/{schema.MEAN}/" not in name, -count[name], name))
    validation = validation or [schema.validation_metric(schema.MEAN)]
    columns = ["attributes.`Created`", "attributes.`Duration`", *(f"tags.`{tag}`" for tag in _COLUMNS)]
    section = {"uuid": f"{VIEW}-0", "name": "Validation", "display": True, "isReordered": True, "columns": 2}
    state = {
        "searchFilter": f"tags.`{schema.TAG_RUN_ID}` LIKE '%'",
        # Best first. Sorted by time, the page would fold the runs under their parents, and draw no curve of them.
        "orderByKey": f"metrics.`{validation[0]}`",
        "orderByAsc": False,
        "startTime": "ALL",
        "lifecycleFilter": "Active",
        "modelVersionFilter": "All Runs",
        "datasetsFilter": [],
        "selectedColumns": [*columns, f"metrics.`{validation[0]}`", "metrics.`train/reward`"],
        "runsHiddenMode": "FIRST_20_RUNS",
        "hideEmptyCharts": True,
        "isAccordionReordered": True,  # else the page sorts the sections by name
        "compareRunSections": [section],
        "compareRunCharts": [
            {  # by training step, with every key that the page's charts have
                "uuid": f"{VIEW}-{metric}",
                "type": "LINE",
                "metricSectionId": f"{VIEW}-0",
                "deleted": False,
                "isGenerated": False,
                "displayName": metric,
                "runsCountToCompare": 20,
                "metricKey": metric,
                "lineSmoothness": 0,
                "xAxisScaleType": "linear",
                "scaleType": "linear",
                "range": {},
                "xAxisKey": "step",
                "selectedXAxisMetricKey": "",
                "yAxisKey": "metric",
                "yAxisExpressions": [],
                "ignoreOutliers": False,
                "useGlobalXaxisKey": True,
                "useGlobalLineSmoothing": True,
            }
            for metric in validation[:_CHARTS]
        ],
    }
    if _KIND not in experiment.tags:
        client.set_experiment_tag(experiment_id, _KIND, _TRAINING)
    text = f"deflate;{base64.b64encode(zlib.compress(json.dumps(state).encode(), 9)).decode()}"
    if text not in experiment.tags.get(TAG_VIEW, ""):
        now = int(time.time() * 1000)
        view = {"name": "Training runs", "createdAt": now, "updatedAt": now, "state": text}
        client.set_experiment_tag(experiment_id, TAG_VIEW, json.dumps(view))


LAST = 3  # validations in the final score


class Point(NamedTuple):
    """One validation: training step, score as a fraction, and when it was measured."""

    step: int
    score: float
    time_ms: int


OBJECTIVES: Mapping[str, Callable[[Sequence[float]], float]] = {
    "final_score": lambda scores: fmean(scores[-LAST:]),
    "best_score": max,
    "mean_score": fmean,  # the area under the curve per step
    # 1 minus the largest drop of the score below its best so far
    "stability": lambda scores: 1.0 - max(map(sub, accumulate(scores, max), scores)),
}


def filled(curve: Sequence[tuple[Any, ...]], t_stop: int, every: int) -> list[float]:
    """The scores of a curve up to `t_stop`, validated every `every` steps; the last score fills in for missing ones.

    A point has a step and a score. A collapsed run is a result: an early collapse is no advantage.
    """
    scores = [float(point[1]) for point in curve]
    return scores + scores[-1:] * ((t_stop - int(curve[-1][0])) // every)


def open_search(client: MlflowClient, experiment: str, study: str, note: str, before: str | None) -> str:
    """The id of the MLflow run of a study, created if it does not exist. `before`: the id that the study has stored."""
    if before is not None and is_active(client, before):
        return before
    tags = {schema.TAG_SEARCH: study, schema.TAG_STATUS: schema.RUNNING, schema.TAG_NOTE: note}
    return str(client.create_run(experiment, tags=tags, run_name=f"search {study}").info.run_id)


def update_search(client: MlflowClient, mlflow_id: str, note: str, file: Path, ended: bool) -> None:
    """Send the state of a search: its description, its file, and whether all trials are done."""
    client.log_artifact(mlflow_id, str(file))
    client.set_tag(mlflow_id, schema.TAG_NOTE, note)
    client.set_tag(mlflow_id, schema.TAG_STATUS, schema.DONE if ended else schema.RUNNING)
    client.update_run(mlflow_id, status="FINISHED" if ended else "RUNNING")


@dataclass(frozen=True)
class TrialRecord:
    """The MLflow run of a trial."""

    client: MlflowClient
    mlflow_id: str

    @classmethod
    def open(
        cls, client: MlflowClient, experiment: str, search: tuple[str, str], number: int
    ) -> "TrialRecord":
        """Begin the record of trial `number`, or continue in it. `search`: its study and MLflow run."""
        study, parent = search
        condition = f"tags.`{schema.TAG_PARENT}` = '{parent}' and tags.`{schema.TAG_TRIAL}` = '{number}'"
        tags = {
            schema.TAG_SEARCH: study,
            schema.TAG_TRIAL: str(number),
            schema.TAG_PARENT: parent,
            schema.TAG_STATUS: schema.RUNNING,
        }
        for run in client.search_runs([experiment], condition):
            client.update_run(run.info.run_id, status="RUNNING")
            client.set_tag(run.info.run_id, schema.TAG_STATUS, schema.RUNNING)
            return cls(client, run.info.run_id)
        run = client.create_run(experiment, tags=tags, run_name=f"{study} trial {number}")
        return cls(client, run.info.run_id)

    def describe(self, params: Mapping[str, Any], run_ids: Sequence[str]) -> None:
        """The trial's point and the ids of its training runs."""
        pairs = [Param(key, str(value)) for key, value in params.items()]
        self.client.log_batch(self.mlflow_id, params=pairs)
        self.client.set_tag(self.mlflow_id, schema.TAG_TRIAL_RUNS, ",".join(run_ids))

    def scores(self, points: Iterable[Point]) -> None:
        """Log points of the running mean. If the store does not answer, the chart only lacks some points."""
        metrics = [Metric("search/score", point.score, point.time_ms, point.step) for point in points]
        with may_fail("search/score"):
            self.client.log_batch(self.mlflow_id, metrics=metrics)

    def finish(self, status: str, values: Mapping[str, float], reason: str = "") -> None:
        """Record that the trial ended with `status`, and with the `values` of its objectives if it is complete."""
        for objective, value in values.items():
            self.client.log_metric(self.mlflow_id, schema.search_metric(objective), value)
        if reason:
            self.client.set_tag(self.mlflow_id, schema.TAG_REASON, reason[:500])
        self.client.set_tag(self.mlflow_id, schema.TAG_STATUS, status)
        self.client.set_terminated(self.mlflow_id, "FAILED" if status == schema.FAILED else "FINISHED")

    def pause(self) -> None:
        """Mark the trial as paused, since its worker is ending; another worker may resume it."""
        with may_fail("the end of a trial"):
            self.client.set_terminated(self.mlflow_id, "KILLED")
