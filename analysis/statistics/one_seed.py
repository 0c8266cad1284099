"""What a single run can and cannot show. No interval is derived from its evaluations: they belong to one training run,
so their scatter shows the noise of its curve and nothing about other seeds.
"""

from dataclasses import dataclass

from cppo_lab.analysis.scoring import Scoreboard
from cppo_lab.analysis.statistics.sampling import SamplingError, run_sampling_error
from cppo_lab.analysis.statistics.values import RunValues

CANNOT = (
    "how much the score would change with another seed",
    "whether a difference from another method comes from the method or from the seed",
    "any 95 % interval, p-value or probability of improvement",
    "how many seeds would decide a comparison: that takes the spread of two or more runs",
)


@dataclass(frozen=True)
class SingleRun:
    """A cell with one finished run. `cannot` lists what a single run does not show about the method.

    `sampling`: the standard error of one evaluation (None: the number of problems is unknown). `step_noise`: the
    scatter from one evaluation to the next in the late window (None: fewer than 3 evaluations).
    """

    model: str
    variant: str
    sampling: SamplingError | None
    step_noise: float | None
    cannot: tuple[str, ...] = CANNOT


def single_runs(board: Scoreboard, runs: tuple[RunValues, ...]) -> tuple[SingleRun, ...]:
    """The cells of the board with exactly one finished run, in its order; `runs` are its `run_values`."""
    scored = {(run.model, run.variant, run.seed): run for run in board.runs}
    cells: dict[tuple[str, str], list[RunValues]] = {}
    for run in runs:
        cells.setdefault((run.model, run.variant), []).append(run)
    return tuple(
        SingleRun(
            model, variant, run_sampling_error(board, scored[model, variant, only.seed]), only.step_noise
        )
        for (model, variant), (only, *others) in cells.items()
        if not others
    )
