"""The state of runs with their numbers and names: from their folders, and one look at the launchers' queues."""

import os
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from cppo_lab import schema
from cppo_lab.errors import one_line
from cppo_lab.launch.queues import look
from cppo_lab.runs.folder import CONFIG, holder, parse_variants, read_config, seconds_trained
from cppo_lab.runs.state import Queued, RunFolder, RunState, explained, state_of

_RUN_ID = re.compile(r"[0-9a-f]{12}")


@dataclass(frozen=True)
class Label:
    """The names of a run in its sweep, or otherwise in its folder."""

    core: str
    rule: str
    model: str
    seed: int | None
    variants: Mapping[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """Its variant in the first of its sweeps; the rule if it has no sweep."""
        return next(iter(self.variants.values()), self.rule)


@dataclass(frozen=True)
class RunStatus:
    """One run and its state.

    `score` (the last one), `best` and `final_mean` are fractions (runs/scores.py), `eta_seconds` the time to its last
    step at the pace of this attempt; `hours` and `gpu_hours` were used by all attempts together. `job` is the newest
    Slurm job, or host:pid of the training process. Unknown values are None or empty.
    """

    run_id: str
    label: Label
    state: str
    reason: str = ""
    step: int | None = None
    t_stop: int | None = None
    score: float | None = None
    best: float | None = None
    best_step: int | None = None
    final_mean: float | None = None
    eta_seconds: float | None = None
    hours: float | None = None
    gpu_hours: float | None = None
    job: str = ""


def known_runs(runs: Path, queued: Queued) -> list[str]:
    """Every run with a folder, on the list of a live launcher, or in the record of Slurm jobs."""
    folders: set[str] = set()
    if runs.is_dir():
        with os.scandir(runs) as entries:
            folders = {entry.name for entry in entries if entry.is_dir()}
    return sorted(
        run_id for run_id in folders.union(queued.listed, queued.places) if _RUN_ID.fullmatch(run_id)
    )


def run_statuses(runs: Path, labels: Mapping[str, Label] | None = None) -> list[RunStatus]:
    """The state of runs: those that `labels` name, in their order, or every known one, live ones last."""
    queued = look(runs)
    folders = {
        run_id: RunFolder(runs / run_id)
        for run_id in (known_runs(runs, queued) if labels is None else labels)
    }
    states = explained({run_id: state_of(run, queued) for run_id, run in folders.items()}, queued)
    labels_of = labels if labels is not None else {i: _own_label(run) for i, run in folders.items()}
    found = [
        _status(run, queued.place(run_id).job, labels_of[run_id], states[run_id])
        for run_id, run in folders.items()
    ]
    if labels is not None:
        return found
    return sorted(found, key=lambda one: (_ORDER.index(one.state), one.label.model, one.label.name))


_ORDER = (
    *(schema.MISSING, schema.DONE, schema.COLLAPSED, schema.PARTIAL),
    *(schema.FAILED, schema.QUEUED, schema.RUNNING),
)


def _own_label(folder: RunFolder) -> Label:
    """The label from the run's status, or from its configuration if an older version wrote the status."""
    status = values = folder.status
    if "rule" not in status:
        config = read_config(folder.path / CONFIG) or {}
        names = {
            key: config[key].get("name") for key in ("rule", "model") if isinstance(config.get(key), dict)
        }
        values = {**config, **names}
    core, rule, model = (_line(values.get(key)) for key in ("core", "rule", "model"))
    seed = values.get("seed")
    variants = parse_variants(values.get("variants"))
    return Label(core, rule or "?", model or "?", seed if isinstance(seed, int) else None, variants)


def _status(run: RunFolder, job: str, label: Label, state: RunState) -> RunStatus:
    """A run that is in this state, with its numbers."""
    status = run.status
    found = _numbers(RunStatus(run.path.name, label, state.state, one_line(state.reason), job=job), status)
    if state.step is not None:
        found = replace(found, step=state.step, t_stop=state.t_stop)
    return _running(found, status, run.path) if state.state == schema.RUNNING else found


def _numbers(found: RunStatus, status: Mapping[str, Any]) -> RunStatus:
    """Add the numbers from the run's status. Older versions wrote fewer."""
    seconds, gpus = seconds_trained(status), status.get("gpus")
    return replace(
        found,
        step=_of(int, status.get("step")),
        t_stop=_of(int, status.get("t_stop")),
        score=_of(float, status.get("score")),
        best=_of(float, status.get("best")),
        best_step=_of(int, status.get("best_step")),
        final_mean=_of(float, status.get("final_mean")),
        hours=seconds / 3600 if seconds else None,
        gpu_hours=seconds / 3600 * gpus if isinstance(gpus, int) and gpus else None,
    )


def _running(found: RunStatus, status: Mapping[str, Any], folder: Path) -> RunStatus:
    """Add the live values of a running run."""
    found = replace(found, job=found.job or _place(holder(folder)))
    if status.get("status") != schema.RUNNING:
        return found
    updated = _number(status.get("updated"))
    since = 0.0 if updated is None else max(0.0, time.time() - updated)
    eta = _eta(found, status, since)
    hours = None if found.hours is None else found.hours + since / 3600
    gpu_hours = (
        None
        if found.gpu_hours is None
        else found.gpu_hours + since / 3600 * (_number(status.get("gpus")) or 0)
    )
    return replace(found, eta_seconds=eta, hours=hours, gpu_hours=gpu_hours)


def _eta(found: RunStatus, status: Mapping[str, Any], since: float) -> float | None:
    """Seconds to the last step, `since` seconds after the last status, at the pace of this attempt."""
    first, began, updated = (_number(status.get(key)) for key in ("first_step", "first_time", "updated"))
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
