"""The order of the methods on each model by each score, and how the margins compare with noise.

This also works with one run per method, as in the paper. There is then no interval over seeds; but a margin below the
noise of the two compared curves is not even a property of these runs.
"""

import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import zip_longest

import numpy as np

from cppo_lab.analysis.scoring import Scoreboard
from cppo_lab.analysis.statistics.values import RunValues, Score, by_seed, cell_runs


@dataclass(frozen=True)
class Rank:
    """One variant in a model's ranking. `rank`: 1 + the number of strictly higher means over seeds.

    `margin`: distance to the next lower variant (None: the last). `noise`: standard error of that margin from the
    scatter of single evaluations alone, assumed independent (None: unknown). It is a lower bound: the spread over seeds
    comes on top, and with BEST and CORRECTED also the noise of selecting a step.
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
    places: tuple[Rank, ...]

    def rank(self, variant: str) -> int | None:
        """The rank of a variant; None if it has no such score."""
        return self._ranks.get(variant)

    @cached_property
    def _ranks(self) -> Mapping[str, int]:
        return {place.variant: place.rank for place in self.places}


def rankings(board: Scoreboard, runs: tuple[RunValues, ...]) -> tuple[Ranking, ...]:
    """Every model by every score that any of its variants has."""
    found = (_ranking(board, runs, model, score) for model in board.models for score in Score)
    return tuple(ranking for ranking in found if ranking.places)


def kendall(first: Ranking, second: Ranking) -> float | None:
    """Kendall's tau-b of two rankings over their common variants: 1 is the same order, -1 the reverse; None for fewer
    than two.
    """
    pairs = [(place.rank, rank) for place in first.places if (rank := second.rank(place.variant)) is not None]
    ours, theirs = (np.array(ranks) for ranks in zip(*pairs, strict=True)) if pairs else (np.empty(0),) * 2
    agreed, apart = 0, [0, 0]
    for place in range(1, len(pairs)):  # row by row: all pairs at once would take too much memory
        signs = [np.sign(ranks[place] - ranks[:place]) for ranks in (ours, theirs)]
        agreed += int(np.sum(signs[0] * signs[1]))
        apart = [known + int(np.count_nonzero(sign)) for known, sign in zip(apart, signs, strict=True)]
    return agreed / math.sqrt(apart[0] * apart[1]) if all(apart) else None


def _ranking(board: Scoreboard, runs: tuple[RunValues, ...], model: str, score: Score) -> Ranking:
    cells = {variant: list(by_seed(runs, model, variant, score).values()) for variant in board.variants}
    means = {variant: math.fsum(values) / len(values) for variant, values in cells.items() if values}
    order = sorted(means, key=lambda variant: -means[variant])
    noise = {variant: _noise(cell_runs(runs, model, variant), score) for variant in order}
    rising = sorted(means.values())
    places = []
    for variant, below in zip_longest(order, order[1:]):
        places.append(
            Rank(
                variant=variant,
                value=means[variant],
                runs=len(cells[variant]),
                rank=1 + len(rising) - bisect_right(rising, means[variant]),
                margin=None if below is None else means[variant] - means[below],
                noise=None if below is None else _both(noise[variant], noise[below]),
            )
        )
    return Ranking(model, score, tuple(places))


def _noise(runs: Sequence[RunValues], score: Score) -> float | None:
    """Standard error of a cell's score from the scatter of evaluations; None if it is unknown for any of the runs."""
    squares = [
        run.step_noise**2 / {Score.FINAL: run.late, Score.AREA: run.evaluations}.get(score, 1)
        for run in runs
        if run.step_noise is not None
    ]
    return math.sqrt(math.fsum(squares)) / len(runs) if len(squares) == len(runs) else None


def _both(first: float | None, second: float | None) -> float | None:
    return None if first is None or second is None else math.hypot(first, second)
