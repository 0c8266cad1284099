"""What a single run can say, and what it cannot. No interval is made up from its evaluations: they share one training
run, so their scatter says how firm a point of its curve is and nothing about another seed.
"""

from dataclasses import dataclass

from cppo_lab.analysis.scoring import Scoreboard
from cppo_lab.analysis.statistics.sampling import SamplingError, run_sampling_error
from cppo_lab.analysis.statistics.values import RunValues

CANNOT = (
    "how much the score would change with another seed",
    "whether a difference from another method comes from the method or from the seed",
    "any 95 % interval, p-value or probability of improvement",
    "how many seeds would decide a comparison: that takes the spread of two or more",
)


@dataclass(frozen=True)
class SingleRun:
    """A cell with one finished run. `cannot` lists what is not known of the method.

    Known of the run: `sampling`, the error of one evaluation (None: the number of problems is not known), and
    `step_noise`, the scatter from one evaluation to the next in the late window (None: under 3 evaluations).
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
