"""The data of the heat maps: each problem's share of right answers at every validation, for each method."""

from base64 import b64encode
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import permutations
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cppo_lab.analysis.answers import spread
from cppo_lab.analysis.scoring import Scoreboard
from cppo_lab.analysis.statistics.problems import solved_by_one
from cppo_lab.answers.outcomes import Outcomes
from cppo_lab.reports.names import display_name

MOST_CELLS = 250_000  # of all maps of a page: 90 problems x 112 validations x 7 methods are 70,560
MOST_PROBLEMS = 1000  # per model; from more, a subset evenly spaced over difficulty
MOST_ALONE = 200  # problems of one ordered pair of methods
FULL, NOT_SEEN = 60_000, 2**16 - 1  # values of a cell: all answers right; not validated


@dataclass(frozen=True, eq=False)
class ProblemMap:
    """One model: P problems from easy to hard (by the mean share over all methods and validations), V validations.

    cells: for each of `methods` a [V, P] array, the mean share over its runs times FULL, NOT_SEEN where no run was
    validated. alone: (method, other method) -> the problems that a run of the first solved and no run of the other ever
    answered right.
    """

    model: str
    samples: int
    steps: tuple[int, ...]
    problems: tuple[str, ...]
    methods: tuple[str, ...]
    runs: tuple[int, ...]
    cells: tuple[NDArray[np.uint16], ...]
    alone: dict[tuple[int, int], tuple[int, ...]]
    left_out: int

    def plain(self) -> dict[str, Any]:
        """As JSON."""
        return {
            "model": self.model,
            "k": self.samples,
            "steps": self.steps,
            "problems": self.problems,
            "left": self.left_out,
            "methods": [
                {
                    "name": display_name(name),
                    "runs": runs,
                    "cells": b64encode(cells.astype("<u2").tobytes()).decode(),
                }
                for name, runs, cells in zip(self.methods, self.runs, self.cells, strict=True)
            ],
            "alone": [[*pair, list(found)] for pair, found in self.alone.items()],
        }


def problem_maps(board: Scoreboard) -> tuple[ProblemMap, ...]:
    """One map for each model with runs that recorded outcomes, with at most MOST_CELLS cells in total."""
    kept = {
        model: {variant: own for variant in board.variants if (own := _kept(board, model, variant))}
        for model in board.models
    }
    kept = {model: _on_same_problems(methods) for model, methods in kept.items() if methods}
    most = MOST_CELLS // max(1, len(kept))
    return tuple(_map(model, methods, most) for model, methods in kept.items())


def _kept(board: Scoreboard, model: str, variant: str) -> list[Outcomes]:
    found = (board.data.outcomes.get(run.mlflow_id or "") for run in board.runs_of(model, variant))
    return [one for one in found if one is not None and len(one.steps)]


def _on_same_problems(methods: dict[str, list[Outcomes]]) -> dict[str, list[Outcomes]]:
    """The runs with the same problems and number of answers as the first run."""
    first = next(iter(methods.values()))[0]
    same = {
        name: [one for one in own if (one.problems, one.samples) == (first.problems, first.samples)]
        for name, own in methods.items()
    }
    return {name: own for name, own in same.items() if own}


def _map(model: str, methods: dict[str, list[Outcomes]], most: int) -> ProblemMap:
    first = next(iter(methods.values()))[0]
    steps = sorted({int(step) for own in methods.values() for one in own for step in one.steps})
    shares = {name: _shares(own, steps) for name, own in methods.items()}
    seen = np.concatenate(list(shares.values()))
    difficulty = np.nan_to_num(np.nanmean(seen, axis=0))
    order = sorted(range(len(first.problems)), key=lambda place: (-difficulty[place], first.problems[place]))
    order = spread(order, min(MOST_PROBLEMS, max(2, most // (2 * len(methods)))))
    rows = spread(range(len(steps)), max(2, most // (len(order) * len(methods))))
    places = {place: number for number, place in enumerate(order)}
    ever = {name: np.concatenate([one.right for one in own]) for name, own in methods.items()}
    alone = {}
    for (i, ours), (j, theirs) in permutations(enumerate(methods), 2):
        found = solved_by_one(ever[ours], ever[theirs], first.samples)
        alone[i, j] = tuple(sorted(places[place] for place in found if place in places))[:MOST_ALONE]
    return ProblemMap(
        model=model,
        samples=first.samples,
        steps=tuple(steps[row] for row in rows),
        problems=tuple(first.problems[place] for place in order),
        methods=tuple(methods),
        runs=tuple(len(own) for own in methods.values()),
        cells=tuple(_scaled(shares[name][np.ix_(rows, order)]) for name in methods),
        alone={pair: found for pair, found in alone.items() if found},
        left_out=len(first.problems) - len(order),
    )


def _shares(runs: Sequence[Outcomes], steps: Sequence[int]) -> NDArray[np.float64]:
    """[V, P], mean over the runs that were validated at a step; NaN where none was."""
    total = np.zeros((len(steps), len(runs[0].problems)))
    count = np.zeros((len(steps), 1))
    for run in runs:
        rows = np.searchsorted(steps, run.steps)
        total[rows] += run.right / run.samples
        count[rows] += 1
    return np.where(count > 0, total / np.maximum(count, 1), np.nan)


def _scaled(shares: NDArray[np.float64]) -> NDArray[np.uint16]:
    seen = np.nan_to_num(np.rint(shares * FULL))
    return np.where(np.isnan(shares), NOT_SEEN, seen).astype(np.uint16)
