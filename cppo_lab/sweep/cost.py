"""What runs cost: by the estimate for GPUs, corrected by the step times of past runs of the same kind.

Runs are of one kind if core, model, layout, batch and response length agree. Where no estimate exists (the embedded
core, CPUs) past runs alone say the time of the training steps; validations, warm start and start-up are not in it.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from cppo_lab.estimate import Estimate, estimate
from cppo_lab.spec import LayoutSpec, RunSpec
from cppo_lab.spec.layout import layout_tag
from cppo_lab.sweep.enumerate import PlannedRun
from cppo_lab.tracking.measured import StepTimes
from cppo_lab.tracking.naming import flatten

MOST_RUNS = 5  # of the newest past runs of a kind
ESTIMATE, MEASURED = "estimate", "measured"


@dataclass(frozen=True)
class Cost:
    """Wall-clock hours of one run, and those of its GPUs together where it takes any.

    `basis` is ESTIMATE or MEASURED, the latter by `measured_runs` past runs. `verdict` says of a run on GPUs whether
    its memory `fits`.
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


def cost_of(spec: RunSpec, layout: LayoutSpec, medians: Sequence[float]) -> Cost | None:
    """The cost of a run whose kind took `medians` seconds per step, one number for each past run; None if unknown.

    An estimate's rollout, update and overhead are scaled by the median of measured over estimated seconds of a step;
    its start and its validations stay.
    """
    found = estimate(spec, layout)
    if found is None:
        if not medians:
            return None
        seconds = median(medians) * spec.training.t_stop
        return Cost(seconds / 3600, None, MEASURED, len(medians))
    factor = median(value / found.time.step for value in medians) if medians else 1.0
    seconds = found.time.total + spec.training.t_stop * found.time.step * (factor - 1)
    return _of_estimate(found, seconds, len(medians))


def _of_estimate(found: Estimate, seconds: float, measured: int) -> Cost:
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


def costs(runs: Iterable[PlannedRun], measure: Measure) -> dict[str, Cost | None]:
    """The cost of every run; `measure` is asked once for each kind."""
    known: dict[tuple[str, str, tuple[tuple[str, str], ...]], list[float]] = {}
    found = {}
    for run in runs:
        spec = run.spec
        layout = layout_tag(run.layout) if spec.core == "verl" else ""
        params = _kind(spec)
        kind = (spec.core, layout, tuple(params.items()))
        if kind not in known:
            known[kind] = [median(one) for one in measure(spec.core, spec.model.name, layout, params)]
        found[run.run_id] = cost_of(spec, run.layout, known[kind])
    return found


def _kind(spec: RunSpec) -> dict[str, str]:
    """The parameters, as they are logged, in which runs of one kind agree."""
    return flatten(
        {
            "model": spec.model.model_dump(mode="json"),
            "batch": spec.batch.model_dump(mode="json"),
            "rollout": {"max_response_length": spec.rollout.max_response_length},
        }
    )


def past_costs(runs: Iterable[PlannedRun], uri: str) -> dict[str, Cost | None]:
    """The cost of every run by what the store at `uri` knows."""
    return costs(runs, StepTimes(uri, MOST_RUNS))


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
    for basis in (ESTIMATE, MEASURED):
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
