"""The cost of runs: by the estimate for GPUs, by a preflight, or by the step times of past runs of the same kind.

Runs are of one kind if core, model, layout, batch and response length agree. Past runs count for more than a preflight,
and that for more than the estimate. Where no estimate exists (the embedded core, CPUs) past runs alone say the time of
the training steps; without validations, warm start and start-up.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from cppo_lab.core_records import core_of
from cppo_lab.estimate import CostEstimate, estimate
from cppo_lab.estimate.shape import amounts_of
from cppo_lab.spec import LayoutSpec, RunSpec
from cppo_lab.spec.layout import layout_tag
from cppo_lab.store.read_only import open_reader
from cppo_lab.sweep.enumerate import PlannedRun
from cppo_lab.sweep.paths import runs_folder
from cppo_lab.tracking import preflight
from cppo_lab.tracking.step_times import StepTimes

MOST_RUNS = 5  # of the newest past runs of a kind
ESTIMATE, PREFLIGHT, MEASURED = "estimate", "preflight", "measured"


# Answers may grow longer in training than they are before it. Where nothing says by how much, by half.
LONGER = 1.5
# Of one measured step, whatever else is known: steps differ, and the first ones are warm-up.
SPREAD = 0.15


@dataclass(frozen=True)
class Hours:
    """Wall-clock hours of one run: the shortest and the longest that the measurement allows."""

    low: float
    high: float

    @property
    def middle(self) -> float:
        """The geometric mean."""
        return float((self.low * self.high) ** 0.5)


def whole_run(found: preflight.PreflightResult, spec: RunSpec) -> Hours | None:
    """The hours of a complete run, with its start and all validations and checkpoints; None if unknown.

    The low end is the fastest measured step with SPREAD taken off. The high end is the slowest with SPREAD added,
    where sampling and updates last longer in proportion to the mean length of responses: from the measured one to the
    one that the estimate assumes for this model (the paper's, where it is known), but at least LONGER times.
    """
    steps = [one for one in found.steps if one.logprob_error is not None]
    if found.error or not steps or found.start is None or found.validation is None:
        return None
    measured = sum(one.response_length for one in steps) / len(steps)
    longest = spec.rollout.max_response_length / measured
    growth = min(max(LONGER, amounts_of(spec).response / measured), longest)
    marks = spec.training.t_stop // spec.validation.every
    often = (marks + 1) * found.validation + marks * (found.checkpoint or 0.0)
    other = min(one.other for one in steps)  # the rest of it is warm-up
    low = min(one.rollout + one.update + one.weights for one in steps) + other
    high = max(growth * (one.rollout + one.update) + one.weights for one in steps) + other
    ends = (
        found.start + spec.training.t_stop * low * (1 - SPREAD) + often * (1 - SPREAD),
        found.start + spec.training.t_stop * high * (1 + SPREAD) + often * growth * (1 + SPREAD),
    )
    return Hours(ends[0] / 3600, ends[1] / 3600)


@dataclass(frozen=True)
class Cost:
    """Wall-clock hours of one run, and those of its GPUs together where it takes any.

    `basis` is ESTIMATE, PREFLIGHT or MEASURED, the last by `measured_runs` past runs. `verdict` says of a run on GPUs
    whether its memory `fits`: by the estimate, or since a preflight has shown it.
    """

    hours: float
    gpu_hours: float | None
    basis: str
    measured_runs: int = 0
    fits: bool = True
    verdict: str = ""

    @property
    def basis_text(self) -> str:
        """`estimate` or `measured (n runs)`."""
        runs = f"{self.measured_runs} run" + ("s" if self.measured_runs > 1 else "")
        return f"{self.basis} ({runs})" if self.measured_runs else self.basis


def cost_of(
    spec: RunSpec, layout: LayoutSpec, medians: Sequence[float], short: Hours | None = None
) -> Cost | None:
    """The cost of a run whose kind took `medians` seconds per step, one number for each past run; None if unknown.

    `short`: what a preflight says of the whole run, where there are no past runs.
    An estimate's rollout, update and overhead are scaled by the median of measured over estimated seconds of a step;
    its start and its validations stay.
    """
    found = estimate(spec, layout)
    if not medians and short is not None:
        gpus = layout.devices if layout.device == "cuda" else None
        return Cost(short.middle, short.middle * gpus if gpus else None, PREFLIGHT)
    if found is None:
        if not medians:
            return None
        seconds = median(medians) * spec.training.t_stop
        return Cost(seconds / 3600, None, MEASURED, len(medians))
    factor = median(value / found.time.step for value in medians) if medians else 1.0
    seconds = found.time.total + spec.training.t_stop * found.time.step * (factor - 1)
    return _of_estimate(found, seconds, len(medians))


def _of_estimate(found: CostEstimate, seconds: float, measured: int) -> Cost:
    hours = seconds / 3600
    return Cost(
        hours=hours,
        gpu_hours=hours * found.time.devices,
        basis=MEASURED if measured else ESTIMATE,
        measured_runs=measured,
        fits=found.memory.fits,
        verdict=found.memory.verdict,
    )


Measure = Callable[
    [str, str, str, Mapping[str, str]], list[list[float]]
]  # core, model, layout, params -> seconds


def costs(runs: Iterable[PlannedRun], measure: Measure, folder: Path | None = None) -> dict[str, Cost | None]:
    """The cost of every run; `measure` is asked once for each kind. `folder` of all runs may have preflights."""
    known: dict[tuple[str, str, tuple[tuple[str, str], ...]], list[float]] = {}
    found = {}
    for run in runs:
        spec = run.spec
        layout = layout_tag(run.layout) if core_of(spec.core).uses_layout else ""
        params = preflight.kind_of(spec)
        kind = (spec.core, layout, tuple(params.items()))
        if kind not in known:
            known[kind] = [median(one) for one in measure(spec.core, spec.model.name, layout, params)]
        short = None
        if folder is not None and core_of(spec.core).preflight:
            there = preflight.read(preflight.folder_of(spec, run.layout, folder))
            short = whole_run(there, spec) if there else None
        found[run.run_id] = cost_of(spec, run.layout, known[kind], short)
    return found


def past_costs(runs: Iterable[PlannedRun], uri: str) -> dict[str, Cost | None]:
    """The cost of every run by what the store at `uri` and the folder of runs know."""
    with open_reader(uri) as reader:
        return costs(runs, StepTimes(reader, MOST_RUNS), runs_folder())


def past_paces(runs: Sequence[PlannedRun], uri: str) -> dict[str, float]:
    """Wall seconds per step of those runs of whose kind there are past runs, by run id."""
    found = past_costs(runs, uri) if runs else {}
    steps = {run.run_id: run.spec.training.t_stop for run in runs}
    return {
        run_id: 3600 * cost.hours / steps[run_id]
        for run_id, cost in found.items()
        if cost is not None and cost.basis == MEASURED
    }


@dataclass(frozen=True)
class CostSum:
    """Hours of several runs whose cost rests on one `basis`; runs that do not fit their GPUs are left out."""

    basis: str
    runs: int
    hours: float
    gpu_hours: float | None
    runs_left: int
    hours_left: float
    gpu_hours_left: float | None
    measured_runs: int


def sum_costs(found: Mapping[str, Cost | None], done: Callable[[str], bool]) -> list[CostSum]:
    """One sum for each basis that occurs, those to come (not `done`) beside the total."""
    sums = []
    for basis in (ESTIMATE, PREFLIGHT, MEASURED):
        all_of_it = {
            run_id: cost for run_id, cost in found.items() if cost and cost.fits and cost.basis == basis
        }
        left = [cost for run_id, cost in all_of_it.items() if not done(run_id)]
        if any(cost and cost.basis == basis for cost in found.values()):
            sums.append(
                CostSum(
                    basis=basis,
                    runs=len(all_of_it),
                    hours=sum(cost.hours for cost in all_of_it.values()),
                    gpu_hours=_sum(list(all_of_it.values()), found),
                    runs_left=len(left),
                    hours_left=sum(cost.hours for cost in left),
                    gpu_hours_left=_sum(left, found),
                    measured_runs=max((cost.measured_runs for cost in all_of_it.values()), default=0),
                )
            )
    return sums


def _sum(some: Sequence[Cost], found: Mapping[str, Cost | None]) -> float | None:
    """GPU-hours together; None where no run of the plan takes a GPU."""
    if all(cost is None or cost.gpu_hours is None for cost in found.values()):
        return None
    return sum(cost.gpu_hours or 0.0 for cost in some)
