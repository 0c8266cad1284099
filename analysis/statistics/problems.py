"""Per-problem statistics of one scored sweep, from the runs that recorded each problem's outcome
(`answers/outcomes.py`).

A model is left out if one of its finished runs recorded no outcomes, or if two runs were validated on different
problems or with different numbers of answers, since they could not be paired.
"""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from cppo_lab.analysis.answers import RunAnswers
from cppo_lab.analysis.scoring import Scoreboard
from cppo_lab.analysis.selection import RunScore, SelectionState
from cppo_lab.analysis.statistics.aggregates import FloatArray
from cppo_lab.analysis.statistics.by_problem import Counts, clustered_mean, evaluation_variance
from cppo_lab.analysis.statistics.estimate import Estimate
from cppo_lab.analysis.statistics.paired import Difference
from cppo_lab.analysis.statistics.paired_problems import ProblemDifference, problem_difference
from cppo_lab.analysis.statistics.pass_at_k import majority_at_k, pass_at_k
from cppo_lab.analysis.statistics.repeated_draws import (
    DrawCorrelation,
    Evaluations,
    draw_correlation,
    least_correlation,
)
from cppo_lab.analysis.statistics.separation import (
    Separation,
    performance_profile,
    separations,
    solved_by_one,
)
from cppo_lab.analysis.statistics.values import late_weights
from cppo_lab.answers.outcomes import Outcomes
from cppo_lab.answers.texts import VALIDATION, Sample, Texts
from cppo_lab.data.answers import value

THRESHOLDS = (0.25, 0.5, 0.75, 1.0)  # of the performance profile
_RESULTS = (SelectionState.SCORED, SelectionState.COLLAPSE)


@dataclass(frozen=True, eq=False)
class CellProblems:
    """One (model, variant): S finished runs on P problems with k answers each.

    mlflow_ids: those of the runs. final [S, P]: each run's shares by problem, averaged like the score `final`. last [S,
    P]: right answers at the last validation in the window. ever [V, P]: right answers at all validations in the window,
    of all runs. draws: a lower bound of the correlation of neighbouring validations of the first run
    (`least_correlation`). evaluations: the evaluations behind the final mean, of all runs; empty with one answer per
    problem.
    """

    model: str
    variant: str
    seeds: tuple[int | None, ...]
    mlflow_ids: tuple[str, ...]
    samples: int
    problems: tuple[str, ...]
    benchmark_of: Counts
    final: FloatArray
    last: Counts
    ever: Counts
    draws: DrawCorrelation | None
    evaluations: Evaluations

    @property
    def over_problems(self) -> Estimate:
        """The final mean with its error over other problems, for these runs."""
        return clustered_mean(self.final.mean(axis=0), self.benchmark_of)

    @property
    def between(self) -> float | None:
        """rho at the last validation, averaged over runs; None if no run shows it."""
        found = [evaluation_variance(run, self.samples, self.benchmark_of).between for run in self.last]
        known = [one for one in found if one is not None]
        return sum(known) / len(known) if known else None

    def pass_at(self, k: int) -> Estimate:
        """pass@k at the last validation, averaged over runs, with its standard error over other problems."""
        chances = np.mean([pass_at_k(run, self.samples, k) for run in self.last], axis=0)
        return clustered_mean(chances, self.benchmark_of)

    @property
    def profile(self) -> tuple[Estimate, ...]:
        """For each of THRESHOLDS, the share of problems with at least that share of right answers at the last
        validation.
        """
        return performance_profile(self.last / self.samples, THRESHOLDS, self.benchmark_of)


@dataclass(frozen=True)
class PairedProblems:
    """`variant` against the baseline on one model. `separated` has all problems in order. `ours_alone` and
    `theirs_alone` are the indices of problems that one of the two solved and the other never did.
    """

    model: str
    variant: str
    against: str
    difference: ProblemDifference
    separated: tuple[Separation, ...]
    ours_alone: tuple[int, ...]
    theirs_alone: tuple[int, ...]


def cell_problems(board: Scoreboard) -> tuple[CellProblems, ...]:
    """The cells whose finished runs all recorded outcomes, on the same problems as the other cells of their model."""
    found = []
    for model in board.models:
        cells = [(variant, _kept(board, model, variant)) for variant in board.variants]
        kept = [pair for _, own in cells for pair in own]
        whole = all(outcomes is not None and len(outcomes.steps) for _, outcomes in kept)
        known = [(run, outcomes) for run, outcomes in kept if outcomes is not None]
        if known and whole and len({_problems(outcomes) for _, outcomes in known}) == 1:
            for variant, own in cells:
                runs = [(run, outcomes) for run, outcomes in own if outcomes is not None]
                found += [_cell(board, model, variant, runs)] if runs else []
    return tuple(one for one in found if one is not None)


def paired_problems(
    cells: Sequence[CellProblems], differences: Sequence[Difference]
) -> tuple[PairedProblems, ...]:
    """The per-problem comparison for each difference of final means (over seeds) whose two cells are in `cells`."""
    by_name = {(cell.model, cell.variant): cell for cell in cells}
    found = []
    for one in differences:
        ours = by_name.get((one.model, one.variant))
        theirs = by_name.get((one.model, one.against))
        if ours is None or theirs is None:
            continue
        rows = _paired_rows(ours, theirs) if one.paired else (ours.final, theirs.final)
        found.append(
            PairedProblems(
                model=one.model,
                variant=one.variant,
                against=one.against,
                difference=problem_difference(*rows, ours.benchmark_of, one.estimate, one.paired),
                separated=separations(ours.last, theirs.last, ours.samples),
                ours_alone=solved_by_one(ours.ever, theirs.ever, ours.samples),
                theirs_alone=solved_by_one(theirs.ever, ours.ever, ours.samples),
            )
        )
    return tuple(found)


def majority_score(
    board: Scoreboard, cell: CellProblems, answers: Mapping[str, RunAnswers]
) -> Estimate | None:
    """maj@k at the last validation, averaged over runs, with its standard error over other problems. None unless the
    texts of all answers to all problems were recorded there.
    """
    runs = {run.mlflow_id: run for run in board.runs_of(cell.model, cell.variant)}
    found = []
    for mlflow_id in cell.mlflow_ids:
        run, own = runs[mlflow_id], answers.get(mlflow_id)
        outcomes = board.data.outcomes[mlflow_id]
        step = int((outcomes if run.t_stop is None else outcomes.until(run.t_stop)).steps[-1])
        kept = next((one for one in own.texts if one.step == step), None) if own else None
        votes = _votes(kept.samples if kept else ())
        if any(_count(votes.get(name, ((), 0))) != cell.samples for name in cell.problems):
            return None
        found.append([majority_at_k(votes[name][1], votes[name][0], cell.samples) for name in cell.problems])
    return clustered_mean(np.mean(found, axis=0), cell.benchmark_of)


def kept_draws(answers: RunAnswers, samples: int) -> DrawCorrelation | None:
    """phi between neighbouring validations with recorded texts, from the problems for which both have all `samples`
    answers; None without two such validations.
    """
    ours, theirs = [], []
    for one, other in pairwise(_graded(texts, samples) for texts in answers.texts):
        for problem in sorted(one.keys() & other.keys()):
            ours.append(one[problem])
            theirs.append(other[problem])
    return draw_correlation(np.array(ours), np.array(theirs)) if ours and samples > 1 else None


def _graded(texts: Texts, samples: int) -> dict[str, list[bool]]:
    """Problem -> the grades of its answers by draw, for the problems with all answers."""
    found: dict[str, dict[int, bool]] = defaultdict(dict)
    for one in texts.samples:
        if one.kind == VALIDATION:
            found[one.problem][one.draw] = one.right
    return {
        problem: [graded[draw] for draw in range(samples)]
        for problem, graded in sorted(found.items())
        if graded.keys() == set(range(samples))
    }


def _count(votes: tuple[Sequence[int], int]) -> int:
    return sum(votes[0]) + votes[1]


def _votes(samples: Sequence[Sample]) -> dict[str, tuple[tuple[int, ...], int]]:
    """Problem -> (count of each distinct wrong answer, count of right answers). Answers of one value agree, whatever
    their spelling. Missing answers never agree with each other.
    """
    right, wrong = Counter[str](), defaultdict[str, Counter[str]](Counter)
    for one in samples:
        if one.kind != VALIDATION:
            continue
        wrong[one.problem].update(
            () if one.right else (f"#{one.draw}" if one.answer is None else f"={value(one.answer)}",)
        )
        right[one.problem] += one.right
    return {name: (tuple(counted.values()), right[name]) for name, counted in wrong.items()}


def _paired_rows(ours: CellProblems, theirs: CellProblems) -> tuple[FloatArray, FloatArray]:
    """The rows of the common seeds, in the order of ours."""
    shared = [seed for seed in ours.seeds if seed in theirs.seeds]
    mine = ours.final[[ours.seeds.index(seed) for seed in shared]]
    other = theirs.final[[theirs.seeds.index(seed) for seed in shared]]
    return mine, other


def _kept(board: Scoreboard, model: str, variant: str) -> list[tuple[RunScore, Outcomes | None]]:
    """The finished runs of a cell with their outcomes."""
    finished = (run for run in board.runs_of(model, variant) if run.state in _RESULTS)
    return [(run, board.data.outcomes.get(run.mlflow_id or "")) for run in finished]


def _problems(outcomes: Outcomes) -> tuple[object, ...]:
    return outcomes.samples, outcomes.benchmarks, outcomes.problems, outcomes.benchmark_of.tobytes()


def _cell(
    board: Scoreboard, model: str, variant: str, runs: Sequence[tuple[RunScore, Outcomes]]
) -> CellProblems | None:
    final, inside, evaluations = [], [], list[tuple[float, float]]()
    first = runs[0][1]
    for run, whole in runs:
        outcomes = whole if run.t_stop is None else whole.until(run.t_stop)
        weights = late_weights(board, run)
        rows = {int(step): row for step, row in zip(outcomes.steps, outcomes.right, strict=True)}
        if not weights or not weights.keys() <= rows.keys():
            return None  # it has scores at validations without outcomes
        total = sum(weight * rows[step].astype(np.float64) for step, weight in weights.items())
        final.append(total / outcomes.samples)
        inside.append(outcomes.right)
        for step, weight in weights.items():
            variance = evaluation_variance(rows[step], outcomes.samples, outcomes.benchmark_of).answers
            evaluations += [] if variance is None else [(weight / len(runs), variance)]
    return CellProblems(
        model=model,
        variant=variant,
        seeds=tuple(run.seed for run, _ in runs),
        mlflow_ids=tuple(run.mlflow_id or "" for run, _ in runs),
        samples=first.samples,
        problems=first.problems,
        benchmark_of=first.benchmark_of,
        final=np.array(final),
        last=np.array([right[-1] for right in inside]),
        ever=np.concatenate(inside),
        draws=least_correlation(inside[0], first.samples),
        evaluations=tuple(evaluations),
    )
