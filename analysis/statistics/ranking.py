"""The order of the methods on each model by each score, and how the margins compare with noise.

This works with one run per method, as of the paper: no interval over seeds then, but a margin smaller than the noise of
the two curves it compares is not even a property of these runs.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations, zip_longest

from cppo_lab.analysis.scoring import Scoreboard
from cppo_lab.analysis.statistics.values import RunValues, Score, by_seed


@dataclass(frozen=True)
class Place:
    """One variant in the order of a model. `rank`: 1 + the number of strictly higher means over seeds.

    `margin`: how far the next lower variant lies below (None: the last). `noise`: standard error of that margin from
    the scatter of single evaluations alone, taken as independent (None: not known). It is the least there is: seeds
    come on top of it, and with BEST and CORRECTED the luck of the pick.
    """

    variant: str
    value: float
    runs: int
    rank: int
    margin: float | None
    noise: float | None


@dataclass(frozen=True)
class Ranking:
    """The variants of a model by one score, highest first."""

    model: str
    score: Score
    places: tuple[Place, ...]

    def rank(self, variant: str) -> int | None:
        """The rank of a variant; None if it has no such score."""
        return next((place.rank for place in self.places if place.variant == variant), None)


def rankings(board: Scoreboard, runs: tuple[RunValues, ...]) -> tuple[Ranking, ...]:
    """Every model by every score that any of its variants has."""
    found = (_ranking(board, runs, model, score) for model in board.models for score in Score)
    return tuple(ranking for ranking in found if ranking.places)


def kendall(first: Ranking, second: Ranking) -> float | None:
    """Kendall's tau-b of two orders over the variants that both have: 1 the same, -1 reversed; None under two."""
    pairs = [(place.rank, rank) for place in first.places if (rank := second.rank(place.variant)) is not None]
    products = [_sign(a[0] - b[0]) * _sign(a[1] - b[1]) for a, b in combinations(pairs, 2)]
    apart = [sum(a[side] != b[side] for a, b in combinations(pairs, 2)) for side in (0, 1)]
    return sum(products) / math.sqrt(apart[0] * apart[1]) if all(apart) else None


def _ranking(board: Scoreboard, runs: tuple[RunValues, ...], model: str, score: Score) -> Ranking:
    cells = {variant: list(by_seed(runs, model, variant, score).values()) for variant in board.variants}
    means = {variant: math.fsum(values) / len(values) for variant, values in cells.items() if values}
    order = sorted(means, key=lambda variant: -means[variant])
    noise = {
        variant: _noise([run for run in runs if (run.model, run.variant) == (model, variant)], score)
        for variant in order
    }
    places = []
    for variant, below in zip_longest(order, order[1:]):
        places.append(
            Place(
                variant=variant,
                value=means[variant],
                runs=len(cells[variant]),
                rank=1 + sum(other > means[variant] for other in means.values()),
                margin=None if below is None else means[variant] - means[below],
                noise=None if below is None else _both(noise[variant], noise[below]),
            )
        )
    return Ranking(model, score, tuple(places))


def _noise(runs: Sequence[RunValues], score: Score) -> float | None:
    """Standard error of a cell's score from the scatter of evaluations; None if any of its runs does not show it."""
    squares = [
        run.step_noise**2 / {Score.FINAL: run.late, Score.AREA: run.evaluations}.get(score, 1)
        for run in runs
        if run.step_noise is not None
    ]
    return math.sqrt(math.fsum(squares)) / len(runs) if len(squares) == len(runs) else None


def _both(first: float | None, second: float | None) -> float | None:
    return None if first is None or second is None else math.hypot(first, second)


def _sign(value: int) -> int:
    return (value > 0) - (value < 0)
