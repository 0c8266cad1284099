"""The objectives of a search: numbers from the validation curve of one run, averaged over the seeds.

A curve has (training step, score) for each validation, including the one before training; scores are fractions. A
collapsed run is a result: its missing validations are filled in with its last score, so that an early collapse is no
advantage.
"""

from collections.abc import Callable, Sequence
from statistics import fmean

Curve = Sequence[tuple[int, float]]
LAST = 3  # validations in the final score


def final_score(scores: Sequence[float]) -> float:
    """Mean of the last three validations."""
    return fmean(scores[-LAST:])


def best_score(scores: Sequence[float]) -> float:
    """The highest validation."""
    return max(scores)


def mean_score(scores: Sequence[float]) -> float:
    """Mean over all validations: the area under the curve per step."""
    return fmean(scores)


def stability(scores: Sequence[float]) -> float:
    """1 minus the largest drop of the score below its best so far."""
    best, fall = scores[0], 0.0
    for score in scores:
        best = max(best, score)
        fall = max(fall, best - score)
    return 1.0 - fall


OBJECTIVES: dict[str, Callable[[Sequence[float]], float]] = {
    "final_score": final_score,
    "best_score": best_score,
    "mean_score": mean_score,
    "stability": stability,
}


def whole_scores(curve: Curve, t_stop: int, every: int) -> list[float]:
    """The scores of a curve up to `t_stop`, validated every `every` steps; the last score fills in for missing ones.

    Raises ValueError for a curve without a point.
    """
    if not curve:
        raise ValueError("a run without a validation has no score")
    missing = (t_stop - curve[-1][0]) // every
    return [score for _, score in curve] + [curve[-1][1]] * missing


def values_of(objectives: Sequence[str], curves: Sequence[Curve], t_stop: int, every: int) -> list[float]:
    """Each objective, averaged over the runs whose curves are given."""
    scores = [whole_scores(curve, t_stop, every) for curve in curves]
    return [fmean(OBJECTIVES[name](one) for one in scores) for name in objectives]


def running_mean(earlier: Sequence[Curve], step: int, score: float, t_stop: int, every: int) -> float:
    """The mean over the seeds so far at `step`: `score` of the seed in training, and those of the `earlier` curves."""
    index = step // every
    return fmean([*(whole_scores(curve, t_stop, every)[index] for curve in earlier), score])
