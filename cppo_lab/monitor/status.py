"""How runs stand: from their folders, locks and lists, the record of Slurm jobs and one look at Slurm's queue.

The tracking store is asked only where a folder cannot say: it has no word of the run, or the run died while it was
recording its end. Ten thousand runs are then ten thousand small files.
"""

import os
import re
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from cppo_lab import schema
from cppo_lab.errors import one_line
from cppo_lab.launch.slurm.view import SlurmView, view
from cppo_lab.runs.folder import CONFIG, is_cancelled, read_config, read_status, seconds_trained
from cppo_lab.runs.lock import holder, is_held
from cppo_lab.runs.queue import queued
from cppo_lab.runs.spool import newest_record

_RUN_ID = re.compile(r"[0-9a-f]{12}")
ALIVE = frozenset({schema.RUNNING, schema.QUEUED})
GONE = "its process ended without a word"


@dataclass(frozen=True)
class Label:
    """What a sweep, or else the run's folder, calls a run."""

    core: str
    rule: str
    model: str
    seed: int | None
    variants: Mapping[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """Its variant in the first of its sweeps; the rule where no sweep is meant."""
        return next(iter(self.variants.values()), self.rule)


@dataclass(frozen=True)
class RunStatus:
    """One run as it stands.

    `score` is a fraction, `eta_seconds` the time to its last step at the pace of this attempt; `hours` and
    `gpu_hours` were used by all attempts together. `job` is the newest Slurm job, or host:pid of the process that
    trains. Unknown is None, or empty.
    """

    run_id: str
    label: Label
    state: str
    reason: str = ""
    step: int | None = None
    t_stop: int | None = None
    score: float | None = None
    eta_seconds: float | None = None
    hours: float | None = None
    gpu_hours: float | None = None
    job: str = ""


@dataclass(frozen=True)
class LiveState:
    """What there is to see besides the folders: held locks and lists of living launchers, and Slurm."""

    runs: Path
    waiting: Collection[str]
    slurm: SlurmView


def live_state(runs: Path) -> LiveState:
    """Look around once."""
    return LiveState(runs, queued(runs), view(runs))


def known_runs(seen: LiveState) -> list[str]:
    """Every run with a folder, on the list of a living launcher, or in the record of Slurm jobs."""
    folders: set[str] = set()
    if seen.runs.is_dir():
        with os.scandir(seen.runs) as entries:
            folders = {entry.name for entry in entries if entry.is_dir()}
    return sorted(
        run_id for run_id in folders.union(seen.waiting, seen.slurm.tasks) if _RUN_ID.fullmatch(run_id)
    )


def run_statuses(runs: Path, uri: str, labels: Mapping[str, Label] | None = None) -> list[RunStatus]:
    """How runs stand: those that `labels` name, in their order, or every known one, those that live last."""
    seen = live_state(runs)
    found: dict[str, RunStatus] = {}
    unsure: list[RunStatus] = []
    for run_id in known_runs(seen) if labels is None else labels:
        told = read_status(runs / run_id)
        label = labels[run_id] if labels is not None else _own_label(runs / run_id, told)
        found[run_id], sure = _status(run_id, label, told, seen)
        if not sure:
            unsure.append(found[run_id])
    if unsure:
        found |= _ask_store(unsure, uri, seen)
    everything = _in_slurms_words(list(found.values()), seen)
    if labels is not None:
        return everything
    return sorted(everything, key=lambda one: (_ORDER.index(one.state), one.label.model, one.label.name))


_ORDER = (
    *(schema.MISSING, schema.DONE, schema.COLLAPSED, schema.PARTIAL),
    *(schema.FAILED, schema.QUEUED, schema.RUNNING),
)


def _own_label(folder: Path, told: Mapping[str, Any]) -> Label:
    """By the run's status, or by its configuration where an older version wrote that status."""
    values: Mapping[str, Any] = told
    if "rule" not in told:
        config = read_config(folder / CONFIG) or {}
        names = {
            key: config[key].get("name") for key in ("rule", "model") if isinstance(config.get(key), dict)
        }
        values = {**config, **names}
    core, rule, model = (_line(values.get(key)) for key in ("core", "rule", "model"))
    seed = values.get("seed")
    return Label(core, rule or "?", model or "?", seed if isinstance(seed, int) else None)


def _status(run_id: str, label: Label, told: Mapping[str, Any], seen: LiveState) -> tuple[RunStatus, bool]:
    """How a run stands by its folder and by what is seen; and whether that is sure."""
    folder, said = seen.runs / run_id, told.get("status")
    found = _numbers(RunStatus(run_id, label, schema.MISSING, job=seen.slurm.job_of(run_id)), told)
    if said in schema.FINISHED:
        return replace(found, state=str(said), reason=_line(told.get("reason"))), True
    # A job that is ending may be on its way back into the queue; one that was cancelled is not.
    over = said in (schema.FAILED, schema.PARTIAL) and is_cancelled(folder)
    if is_held(folder) or (seen.slurm.is_active(run_id) and not over):
        return _running(found, told, folder, seen.slurm.is_ending(run_id)), True
    if (why := seen.slurm.waiting(run_id)) is not None:
        return replace(found, state=schema.QUEUED, reason=why), True
    if run_id in seen.waiting and not is_cancelled(folder):
        return replace(found, state=schema.QUEUED), True
    # Announced by a launcher that found nothing in the store, and never begun.
    untouched = said == "" and "seconds" not in told
    sure = untouched or (bool(said) and not told.get("replaces"))
    if said in (schema.FAILED, schema.PARTIAL):
        return replace(found, state=str(said), reason=_line(told.get("reason"))), sure
    if said == schema.RUNNING:
        record = newest_record(folder)
        if record is not None and record.end is not None:  # killed before its status said so, too
            return replace(found, state=record.end.status, reason=_line(record.end.reason)), sure
        gone = "cancelled" if is_cancelled(folder) else GONE
        return replace(found, state=schema.PARTIAL, reason=f"interrupted: {gone}"), sure
    return found, sure


def _numbers(found: RunStatus, told: Mapping[str, Any]) -> RunStatus:
    """With what the run has written of itself. Older versions wrote less."""
    seconds, gpus = seconds_trained(told), told.get("gpus")
    return replace(
        found,
        step=_of(int, told.get("step")),
        t_stop=_of(int, told.get("t_stop")),
        score=_of(float, told.get("score")),
        hours=seconds / 3600 if seconds else None,
        gpu_hours=seconds / 3600 * gpus if isinstance(gpus, int) and gpus else None,
    )


def _running(found: RunStatus, told: Mapping[str, Any], folder: Path, ending: bool) -> RunStatus:
    """With what goes on at this moment."""
    place = found.job or _place(holder(folder))
    if told.get("status") != schema.RUNNING:
        reason = (
            "; ".join(filter(None, ["its job is ending", _line(told.get("reason"))]))
            if ending
            else "starting"
        )
        return replace(found, state=schema.RUNNING, reason=reason, job=place)
    updated = _number(told.get("updated"))
    since = 0.0 if updated is None else max(0.0, time.time() - updated)
    eta = _eta(found, told, since)
    hours = None if found.hours is None else found.hours + since / 3600
    gpu_hours = (
        None if found.gpu_hours is None else found.gpu_hours + since / 3600 * (_number(told.get("gpus")) or 0)
    )
    return replace(found, state=schema.RUNNING, eta_seconds=eta, hours=hours, gpu_hours=gpu_hours, job=place)


def _eta(found: RunStatus, told: Mapping[str, Any], since: float) -> float | None:
    """Seconds to the last step, `since` seconds after the folder's last word, at the pace of this attempt."""
    first, began, updated = (_number(told.get(key)) for key in ("first_step", "first_time", "updated"))
    if found.step is None or found.t_stop is None or first is None or began is None or updated is None:
        return None
    if found.step <= first:
        return None
    pace = (updated - began) / (found.step - first)
    return max(0.0, (found.t_stop - found.step) * pace - since)


def _place(where: tuple[str, int] | None) -> str:
    return f"{where[0]}:{where[1]}" if where else ""


def _of(kind: type, value: object) -> Any:
    return value if isinstance(value, kind) and not isinstance(value, bool) else None


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _line(text: object) -> str:
    return one_line(str(text or ""))


def _ask_store(unsure: Sequence[RunStatus], uri: str, seen: LiveState) -> dict[str, RunStatus]:
    """What the tracking store says of runs whose folders do not."""
    from cppo_lab.store import address

    database = address.sqlite_file(uri)
    if database is not None and not database.is_file():
        return {}
    from cppo_lab.launch.reconcile import Snapshot, past_attempts

    found = {}
    for core in schema.CORES:
        those = {one.run_id: one for one in unsure if one.label.core in (core, "")}
        if not those:
            continue
        past = past_attempts(list(those), core, uri)
        states = Snapshot(
            seen.runs, past, dict.fromkeys(those, False), seen.waiting, seen.slurm.here
        ).states()
        for run_id, state in states.items():
            if state.state not in (schema.MISSING, schema.QUEUED):
                one = those[run_id]
                step, t_stop = (
                    (state.step, state.t_stop) if state.step is not None else (one.step, one.t_stop)
                )
                reason = _line(state.reason)
                found[run_id] = replace(one, state=state.state, reason=reason, step=step, t_stop=t_stop)
    return found


def _in_slurms_words(found: list[RunStatus], seen: LiveState) -> list[RunStatus]:
    """Where a run could not say why it ended, Slurm may."""
    dumb = [
        one.run_id
        for one in found
        if one.run_id in seen.slurm.tasks
        and (one.state == schema.MISSING or (one.state == schema.PARTIAL and GONE in one.reason))
    ]
    if not dumb:
        return found
    words = seen.slurm.words(dumb)
    return [
        replace(one, reason=f"Slurm job {one.job}: {words[one.run_id]}") if one.run_id in words else one
        for one in found
    ]
