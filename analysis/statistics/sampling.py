"""The sampling error of Avg@k: the error of one evaluation due to its finite numbers of answers and problems.

The metrics contain only the share p of right answers, over n problems with k answers each. Let p_i be the probability
that an answer to problem i is right, and rho = var(p_i) / (p (1 - p)) the share of the variance that lies between
problems:

    other answers to the same problems:      p (1 - p) (1 - rho) / (n k)
    other answers to other problems as hard: p (1 - p) (rho + (1 - rho) / k) / n

If a run recorded each problem's outcome, rho can be estimated and both errors are known (`problems`). Otherwise only
p is known: rho = 0 gives an upper bound of the first, rho = 1 of the second, p (1 - p) / n.

Two runs are compared on the same problems. Given these problems, the first variances add up if the answers are drawn
independently; with repeated draws (`problems`) their sum is an upper bound. The problems' difficulty cancels as
far as the runs share it, which `problems` measures and p alone does not show.

The spread over seeds already contains the part of this error that is drawn separately for each run, so it must not be
added to an interval over seeds. The sampling error describes a single run, and shows how much of the spread over seeds
more answers could remove.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from cppo_lab.analysis.scoring import Scoreboard
from cppo_lab.analysis.selection import RunScore
from cppo_lab.analysis.statistics.problems import evaluation_variance
from cppo_lab.answers.outcomes import Outcomes

AIME_PROBLEMS = 30
_MADE_PROBLEMS = "data.validation_problems"  # the logged configuration key of a run on generated problems


@dataclass(frozen=True)
class SamplingError:
    """Standard errors of one evaluation (fractions): `answers` over other answers to the same problems, `problems` over
    other problems. They are upper bounds unless `known` from each problem's outcome; `between` is then rho, None if
    nothing varies.
    """

    answers: float
    problems: float
    known: bool = False
    between: float | None = None


def answers_variance(share: float, problems: int, samples: int, between: float = 0.0) -> float:
    """Variance over other answers to the same problems; `between` is rho; 0 gives the upper bound."""
    return share * (1 - share) * (1 - between) / (problems * samples)


def problems_variance(share: float, problems: int, samples: int, between: float = 1.0) -> float:
    """Variance over other answers to other problems; `between` is rho; 1 gives the upper bound."""
    return share * (1 - share) * (between + (1 - between) / samples) / problems


def sampling_error(shares: Sequence[float], problems: int, samples: int) -> SamplingError:
    """Upper bounds for the unweighted mean over benchmarks with these shares, `problems` problems each."""
    count = len(shares)
    answers = math.fsum(answers_variance(share, problems, samples) for share in shares)
    others = math.fsum(problems_variance(share, problems, samples) for share in shares)
    return SamplingError(math.sqrt(answers) / count, math.sqrt(others) / count)


def run_sampling_error(board: Scoreboard, run: RunScore) -> SamplingError | None:
    """The sampling error of the evaluation at the selected step: exact if the run recorded its outcomes, else bounds;
    None if the benchmarks or their numbers of problems are unknown, too.
    """
    found = _known_error(board.data.outcomes.get(run.mlflow_id or ""), run.choice.step)
    if found is not None:
        return found
    shares, samples = list(run.choice.components.values()), board.curves.samples
    problems = _problems(board, run)
    if not shares or problems is None or samples < 1:
        return None
    return sampling_error(shares, problems, samples)


def _known_error(outcomes: Outcomes | None, step: int | None) -> SamplingError | None:
    """None without outcomes at the step, with one answer per problem, or with a benchmark of one problem."""
    if outcomes is None or step is None or step not in outcomes.steps:
        return None
    right = outcomes.right[int(np.searchsorted(outcomes.steps, step))]
    found = evaluation_variance(right, outcomes.samples, outcomes.benchmark_of)
    if found.answers is None or found.problems is None:
        return None
    return SamplingError(math.sqrt(found.answers), math.sqrt(found.problems), True, found.between)


def cell_sampling_error(board: Scoreboard, runs: Sequence[RunScore]) -> SamplingError | None:
    """The sampling error of one evaluation of a typical run of a cell (root mean square); None if it is unknown for any
    run.
    """
    found = [run_sampling_error(board, run) for run in runs]
    known = [error for error in found if error is not None]
    if not known or len(known) < len(found):
        return None
    between = [error.between for error in known if error.between is not None]
    return SamplingError(
        math.sqrt(math.fsum(error.answers**2 for error in known) / len(known)),
        math.sqrt(math.fsum(error.problems**2 for error in known) / len(known)),
        all(error.known for error in known),
        math.fsum(between) / len(between) if between else None,
    )


def _problems(board: Scoreboard, run: RunScore) -> int | None:
    logged = board.data.params.get(run.mlflow_id or "", {}).get(_MADE_PROBLEMS, "")
    if logged.isdecimal() and int(logged) > 0:
        return int(logged)
    names = run.choice.components
    return AIME_PROBLEMS if names and all(name.lower().startswith("aime") for name in names) else None
