"""The data of the heat maps: each problem's share of right answers at every validation, for each method."""

from base64 import b64encode
from collections.abc import Sequence
from itertools import permutations, product
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


def problem_maps(board: Scoreboard) -> list[dict[str, Any]]:
    """One map for each model with runs that recorded outcomes, as JSON, with at most MOST_CELLS cells in total.

    A map has P problems from easy to hard (by the mean share over all methods and validations) and V validations.
    `cells` of a method: a [V, P] array in base64, the mean share over its runs times FULL, NOT_SEEN where no run was
    validated. `alone`: method, other method, and the problems that a run of the first solved and no run of the other
    ever answered right.
    """
    by_model: dict[str, dict[str, list[Outcomes]]] = {}
    for model, variant in product(board.models, board.variants):
        for run in board.runs_of(model, variant):
            outcomes = board.data.outcomes.get(run.mlflow_id or "")
            if outcomes is not None and len(outcomes.steps):
                methods = by_model.setdefault(model, {})
                first = next(iter(methods.values()), [outcomes])[0]
                # Those with the same problems and number of answers as the first run.
                if (outcomes.problems, outcomes.samples) == (first.problems, first.samples):
                    methods.setdefault(variant, []).append(outcomes)
    most = MOST_CELLS // max(1, len(by_model))
    return [_map(model, methods, most) for model, methods in by_model.items()]


def _map(model: str, methods: dict[str, list[Outcomes]], most: int) -> dict[str, Any]:
    first = next(iter(methods.values()))[0]
    steps = sorted({int(step) for runs in methods.values() for run in runs for step in run.steps})
    shares = {name: _shares(runs, steps) for name, runs in methods.items()}
    difficulty = np.nan_to_num(np.nanmean(np.concatenate(list(shares.values())), axis=0))
    order = sorted(range(len(first.problems)), key=lambda place: (-difficulty[place], first.problems[place]))
    order = spread(order, min(MOST_PROBLEMS, max(2, most // (2 * len(methods)))))
    rows = spread(range(len(steps)), max(2, most // (len(order) * len(methods))))
    places = {place: number for number, place in enumerate(order)}
    ever = {name: np.concatenate([run.right for run in runs]) for name, runs in methods.items()}
    alone = []
    for (i, ours), (j, theirs) in permutations(enumerate(methods), 2):
        solved = solved_by_one(ever[ours], ever[theirs], first.samples)
        if shown := sorted(places[place] for place in solved if place in places):
            alone.append([i, j, shown[:MOST_ALONE]])
    return {
        "model": model,
        "k": first.samples,
        "steps": [steps[row] for row in rows],
        "problems": [first.problems[place] for place in order],
        "left": len(first.problems) - len(order),
        "methods": [
            {
                "name": display_name(name),
                "runs": len(runs),
                "cells": _cells(shares[name][np.ix_(rows, order)]),
            }
            for name, runs in methods.items()
        ],
        "alone": alone,
    }


def _shares(runs: Sequence[Outcomes], steps: Sequence[int]) -> NDArray[np.float64]:
    """[V, P], mean over the runs that were validated at a step; NaN where none was."""
    total = np.zeros((len(steps), len(runs[0].problems)))
    count = np.zeros((len(steps), 1))
    for run in runs:
        rows = np.searchsorted(steps, run.steps)
        total[rows] += run.right / run.samples
        count[rows] += 1
    return np.where(count > 0, total / np.maximum(count, 1), np.nan)


def _cells(shares: NDArray[np.float64]) -> str:
    scaled = np.nan_to_num(np.rint(shares * FULL))
    return b64encode(np.where(np.isnan(shares), NOT_SEEN, scaled).astype("<u2").tobytes()).decode()
