"""The cost of runs, from the estimate for GPUs, a preflight, or the step times of past runs of the same kind.

Runs are of the same kind if core, model, layout, batch and response length agree. Past runs take precedence over a
preflight, and a preflight over the estimate. Without an estimate (the embedded core, CPUs), past runs give only the
time of the training steps, excluding validations, warm start and start-up. `runs/preflight` has the results of
preflights by kind of run.
"""

import contextlib
import heapq
import json
import math
import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path
from statistics import median
from typing import Any

from cppo_lab import schema
from cppo_lab.core_records import core_of
from cppo_lab.errors import UserError
from cppo_lab.files import replace_file, runs_folder
from cppo_lab.runs.folder import CONFIG, machine_seconds, read_config, read_status
from cppo_lab.runs.spool import newest_record
from cppo_lab.runs.state import RunState
from cppo_lab.runs.tags import flatten
from cppo_lab.spec import LayoutSpec, RunSpec
from cppo_lab.spec.job import amounts_of, estimate, estimate_disk, layout_tag
from cppo_lab.sweep.enumerate import PlannedRun

PREFLIGHTS, FILE = "preflight", "measured.json"


def kind_of(spec: RunSpec) -> dict[str, str]:
    """The logged parameters that determine a run's time and memory on a layout; equal for runs of the same kind."""
    return flatten(
        {
            "model": spec.model.model_dump(mode="json"),
            "batch": spec.batch.model_dump(mode="json"),
            "rollout": {"max_response_length": spec.rollout.max_response_length},
        }
    )


def preflight_folder(spec: RunSpec, layout: LayoutSpec, runs: Path) -> Path:
    """The folder of the preflight of this kind of run."""
    kind = kind_of(spec) | {"data": spec.data.name, "layout": layout_tag(layout)}
    name = schema.digest(json.dumps(kind, sort_keys=True))
    return runs / PREFLIGHTS / f"{spec.model.name}-{layout.name}-{name}"


@dataclass(frozen=True)
class Step:
    """A training step. Seconds; tokens per second of all devices; lengths in tokens."""

    step: int
    seconds: float
    rollout: float
    update: float
    weights: float  # the transfer to the rollout engine
    other: float  # grading, advantages, waiting; of the first step after a start also warm-up
    sampled_per_second: float = 0.0
    trained_per_second: float = 0.0
    response_length: float = 0.0
    topk_megabytes: float = 0.0
    logprob_error: float | None = (
        None  # mean of abs(mu / pi - 1) before the policy has moved far; None: no update
    )


@dataclass(frozen=True)
class PreflightResult:
    """What a preflight found. Seconds, and 2^30 bytes; None where a part was not reached or not measured."""

    model: str
    layout: str
    devices: int
    run_id: str  # of the run whose settings were tried
    steps: tuple[Step, ...] = ()
    start: float | None = None  # until verl begins its first step or validation
    resume: float | None = None  # the same, with a checkpoint to load
    validation: float | None = None
    checkpoint: float | None = None
    memory: Mapping[str, float] = field(default_factory=dict)
    machine: Mapping[str, float | str] = field(default_factory=dict)  # of `core_records.MACHINE`
    error: str = ""  # the error, and the part in which it occurred

    def write(self, folder: Path) -> None:
        """Write the result to `folder`."""
        replace_file(folder / FILE, json.dumps(asdict(self), indent=1) + "\n")


def read_preflight(folder: Path) -> PreflightResult | None:
    """What the preflight in `folder` measured; None if there was none.

    Raises UserError for a damaged or foreign file.
    """
    try:
        values: dict[str, Any] = json.loads((folder / FILE).read_text(encoding="utf-8"))
        steps = tuple(Step(**step) for step in values.pop("steps"))
        return PreflightResult(**values, steps=steps)
    except FileNotFoundError:
        return None
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise UserError(f"{folder / FILE} is damaged ({error}): remove {folder}") from None


METRIC = "perf/step_seconds"
RECENT = 200  # only the newest folders are read, since a plan must not read thousands
FEWEST_STEPS = 3  # minimum for a run to count, since the first steps also load and compile
MOST_RUNS = 5  # of the newest past runs of a kind
ESTIMATE, PREFLIGHT, MEASURED = "estimate", "preflight", "measured"


# Responses may grow during training; by half, if there is no better information.
LONGER = 1.5
# Relative uncertainty of a measured step: steps differ, and the first ones are warm-up.
SPREAD = 0.15


@dataclass(frozen=True)
class Hours:
    """Wall-clock hours of a run: lower and upper bound from the measurement."""

    low: float
    high: float

    @property
    def middle(self) -> float:
        """The geometric mean."""
        return float((self.low * self.high) ** 0.5)


def whole_run(measurement: PreflightResult, spec: RunSpec) -> Hours | None:
    """The hours of a complete run, with its start and all validations and checkpoints; None if unknown.

    The lower bound is the fastest measured step minus SPREAD. The upper bound is the slowest step plus SPREAD, with
    sampling and updates scaled by the growth of the mean response length: from the measured length to that of the
    estimate for this model (the paper's, if known), and at least by the factor LONGER.
    """
    steps = [
        step for step in measurement.steps if step.logprob_error is not None and step.response_length > 0
    ]
    if measurement.error or not steps or measurement.start is None or measurement.validation is None:
        return None
    measured = sum(step.response_length for step in steps) / len(steps)
    longest = spec.rollout.max_response_length / measured
    growth = min(max(LONGER, amounts_of(spec).response / measured), longest)
    validations = spec.training.t_stop // spec.validation.every  # after the start
    pauses = (validations + 1) * measurement.validation + validations * (measurement.checkpoint or 0.0)
    other = min(step.other for step in steps)  # the excess over the minimum is warm-up
    low = min(step.rollout + step.update + step.weights for step in steps) + other
    high = max(growth * (step.rollout + step.update) + step.weights for step in steps) + other
    ends = (
        measurement.start + spec.training.t_stop * low * (1 - SPREAD) + pauses * (1 - SPREAD),
        measurement.start + spec.training.t_stop * high * (1 + SPREAD) + pauses * growth * (1 + SPREAD),
    )
    return Hours(ends[0] / 3600, ends[1] / 3600)


@dataclass(frozen=True)
class Cost:
    """Wall-clock hours of a run, and its total GPU-hours if it uses GPUs.

    `basis` is ESTIMATE, PREFLIGHT or MEASURED (by `measured_runs` past runs). For a run on GPUs, `verdict` explains
    whether its memory `fits`, according to the estimate or a preflight; `host` is of each node's memory, in bytes.
    """

    hours: float
    gpu_hours: float | None
    basis: str
    measured_runs: int = 0
    fits: bool = True
    verdict: str = ""
    host: float = 0.0


def cost_of(
    spec: RunSpec, layout: LayoutSpec, medians: Sequence[float], short: Hours | None = None
) -> Cost | None:
    """The cost of a run whose kind took `medians` seconds per step, a number for each past run; None if unknown.

    `short`: the hours of the whole run by a preflight, used if there are no past runs. The estimate's rollout, update
    and overhead are scaled by the median ratio of measured to estimated seconds per step; its start-up and validations
    are not.
    """
    estimated = estimate(spec, layout)
    if not medians and short is not None:
        gpus = layout.devices if layout.device == "cuda" else None
        return Cost(short.middle, short.middle * gpus if gpus else None, PREFLIGHT)
    if estimated is None:
        if not medians:
            return None
        seconds = median(medians) * spec.training.t_stop
        return Cost(seconds / 3600, None, MEASURED, len(medians))
    factor = median(value / estimated.time.step for value in medians) if medians else 1.0
    seconds = estimated.time.total + spec.training.t_stop * estimated.time.step * (factor - 1)
    hours = seconds / 3600
    return Cost(
        hours=hours,
        gpu_hours=hours * estimated.time.devices,
        basis=MEASURED if medians else ESTIMATE,
        measured_runs=len(medians),
        fits=estimated.memory.fits,
        verdict=estimated.memory.verdict,
        host=estimated.memory.host,
    )


class StepTimes:
    """The step times of the past runs with folders in `folder`."""

    def __init__(self, folder: Path) -> None:
        ages = dict[Path, int]()
        for entry in os.scandir(folder) if folder.is_dir() else ():
            with contextlib.suppress(FileNotFoundError):  # removed meanwhile
                if entry.is_dir():
                    ages[Path(entry.path)] = entry.stat().st_mtime_ns
        self._newest = heapq.nlargest(RECENT, ages, key=ages.__getitem__)
        self._params = cache(lambda run: flatten(read_config(run / CONFIG)))

    def of(self, core: str, layout: str, params: Mapping[str, str]) -> list[list[float]]:
        """Seconds of every training step of the newest MOST_RUNS runs of a kind, a list for each run.

        Those of `core` count whose parameters agree with `params` and whose layout tag is `layout` (empty: any).
        """
        times: list[list[float]] = []
        for run in self._newest:
            if not {"core": core, **params}.items() <= self._params(run).items():
                continue
            record = newest_record(run)
            if record is None or (layout and record.begin.tags.get(schema.TAG_LAYOUT) != layout):
                continue
            values = (record.rows[step].metrics.get(METRIC, math.nan) for step in sorted(record.rows))
            seconds = [value for value in values if not math.isnan(value)]
            if len(seconds) >= FEWEST_STEPS and seconds[-1] > 0:
                times.append(seconds)
            if len(times) == MOST_RUNS:
                break
        return times


def past_costs(runs: Iterable[PlannedRun]) -> dict[str, Cost | None]:
    """The cost of every run, from past runs and preflights in the folder of runs."""
    folder = runs_folder()
    times, run_costs = StepTimes(folder), dict[str, Cost | None]()
    medians: dict[tuple[str, str, frozenset[tuple[str, str]]], list[float]] = {}
    for run in runs:
        spec, core, short = run.spec, core_of(run.spec.core), None
        layout, params = layout_tag(run.layout) if core.uses_layout else "", kind_of(spec)
        kind = (spec.core, layout, frozenset(params.items()))
        if kind not in medians:
            medians[kind] = list(map(median, times.of(spec.core, layout, params)))
        if core.preflight and (measured := read_preflight(preflight_folder(spec, run.layout, folder))):
            short = whole_run(measured, spec)
        run_costs[run.run_id] = cost_of(spec, run.layout, medians[kind], short)
    return run_costs


def past_paces(runs: Sequence[PlannedRun]) -> dict[str, float]:
    """Wall-clock seconds per step by run id, for runs of a kind with past runs."""
    run_costs = past_costs(runs) if runs else {}
    steps = {run.run_id: run.spec.training.t_stop for run in runs}
    return {
        run_id: 3600 * cost.hours / steps[run_id]
        for run_id, cost in run_costs.items()
        if cost is not None and cost.basis == MEASURED
    }


@dataclass(frozen=True)
class Limits:
    """What all runs of a plan together may take, in GPU-hours and in 1e9 bytes of disk; None: any amount."""

    gpu_hours: float | None = None
    disk: float | None = None

    def beyond(
        self, runs: Sequence[PlannedRun], todo: Sequence[PlannedRun], states: Mapping[str, str], at_once: int
    ) -> dict[str, str]:
        """The ids of `todo` from the first run on that does not fit, with the limit; `states` is of all `runs`.

        GPU-hours are those that attempts in the folder of runs have used, and the estimates of what is to be trained.
        Disk is the best weights that stay, and the checkpoints of the `at_once` largest runs while they train.
        """
        if self == NO_LIMITS:
            return {}
        run_costs, places = past_costs(runs), {run.run_id: place for place, run in enumerate(todo)}
        hours, stays, peaks = 0.0, 0.0, list[float]()
        for run in sorted(runs, key=lambda run: run.run_id in places):
            run_id, disk = run.run_id, estimate_disk(run.spec, run.layout)
            state, status, cost = states[run_id], read_status(runs_folder() / run_id), run_costs[run_id]
            used = float(status.get("gpus") or 0) * machine_seconds(status) / 3600
            trains = run_id in places
            estimated = cost.gpu_hours or 0.0 if cost and (trains or state == schema.RUNNING) else 0.0
            # A run that goes on has spent a part of its estimate; one whose result is replaced starts over.
            again = trains and status.get("status") in schema.FINISHED
            hours += used + estimated if again else max(used, estimated)
            if disk and trains:
                stays += disk.recorded * (1 + again)
                peaks = heapq.nlargest(at_once, [*peaks, disk.training - disk.recorded])
            elif disk and state != schema.MISSING:
                stays += disk.recorded if state in schema.FINISHED else disk.training
            for option, limit, amount in (
                ("--max-gpu-hours", self.gpu_hours, hours),
                ("--max-disk", self.disk, (stays + sum(peaks)) / 1e9),
            ):
                if trains and limit is not None and amount > limit:
                    why = f"{option} {limit:g}: with run {run_id} it would be {amount:.3g}"
                    return {late.run_id: why for late in todo[places[run_id] :]}
        return {}


NO_LIMITS = Limits()


@dataclass(frozen=True)
class CostSum:
    """Total hours of the runs whose cost has the same `basis`; runs that do not fit on their GPUs are left out."""

    basis: str
    runs: int
    hours: float
    gpu_hours: float | None
    runs_left: int
    hours_left: float
    gpu_hours_left: float | None
    measured_runs: int


def sum_costs(run_costs: Mapping[str, Cost | None], states: Mapping[str, RunState]) -> list[CostSum]:
    """One sum for each basis that occurs, with the total hours and those of runs that have not finished."""
    costs = {run_id: cost for run_id, cost in run_costs.items() if cost}
    on_gpus = any(cost.gpu_hours is not None for cost in costs.values())

    def totals(costs: Collection[Cost]) -> tuple[int, float, float | None]:
        gpu_hours = sum(cost.gpu_hours or 0.0 for cost in costs) if on_gpus else None
        return len(costs), sum(cost.hours for cost in costs), gpu_hours

    sums = []
    for basis in (ESTIMATE, PREFLIGHT, MEASURED):
        fitting = {run_id: cost for run_id, cost in costs.items() if cost.basis == basis and cost.fits}
        unfinished = [cost for run_id, cost in fitting.items() if states[run_id].state not in schema.FINISHED]
        if any(cost.basis == basis for cost in costs.values()):
            most = max((cost.measured_runs for cost in fitting.values()), default=0)
            sums.append(CostSum(basis, *totals(fitting.values()), *totals(unfinished), most))
    return sums
