"""Robustness of a selected score: the late part of the window, ranks, and the step-to-step noise of a run.

The score of the best step favours a noisy run. The mean over the last 30 % of the matched window has no selection bias,
so it is reported next to the selected score.
"""

import math
from bisect import bisect_right
from collections import defaultdict
from dataclasses import dataclass

import numpy as np
import pandas as pd

from cppo_lab import schema
from cppo_lab.analysis.scoring import Scoreboard
from cppo_lab.analysis.selection import RunScore, SelectionState, Stat


@dataclass(frozen=True)
class LateMean:
    """One (model, variant): its mean over the late window (None: nothing was evaluated there) and its rank
    among the variants of the model, 1 being the highest.
    """

    model: str
    variant: str
    stat: Stat | None
    rank: int | None


def late_curve(curve: pd.DataFrame, t_stop: int | None) -> pd.Series:
    """The mean scores of one run in the last LATE_SHARE of [0, T_stop]; or of its own length if T_stop is unknown."""
    end = t_stop if t_stop is not None else (int(curve.index.max()) if len(curve) else 0)
    steps, means = curve.index.to_numpy(), curve[schema.MEAN]
    return means[(steps > schema.late_after(end)) & (steps <= end) & means.notna().to_numpy()]


def step_noise(curve: pd.DataFrame, t_stop: int | None) -> float | None:
    """Standard deviation of one evaluation around the run's trend, in the late window; None for fewer than 3 points.

    Estimated from differences of neighbouring evaluations (divided by sqrt 2), which a slow trend hardly affects.
    """
    return noise(late_curve(curve, t_stop))


def noise(late: pd.Series) -> float | None:
    """`step_noise` for the result of `late_curve`."""
    steps = np.diff(late.to_numpy(dtype=np.float64))
    if len(steps) < 2:
        return None
    return math.sqrt(math.fsum(float(value) ** 2 for value in steps) / len(steps) / 2)


def late_means(board: Scoreboard) -> dict[tuple[str, str], LateMean]:
    """The late mean of every cell of the board, over its finished runs, with ranks inside each model."""
    stats = {pair: Stat.of(_late_values(board, pair)) for pair in board.cells}
    ranks = rank_descending({pair: stat.mean for pair, stat in stats.items() if stat is not None})
    return {pair: LateMean(*pair, stats[pair], ranks.get(pair)) for pair in board.cells}


def _late_values(board: Scoreboard, pair: tuple[str, str]) -> list[float]:
    values = []
    for run in board.runs_of(*pair):
        if run.state is SelectionState.SCORED and run.mlflow_id is not None:
            late = late_curve(board.curves.of(run.mlflow_id), run.t_stop)
            if len(late):
                values.append(float(late.mean()))
    return values


def rank_descending(values: dict[tuple[str, str], float]) -> dict[tuple[str, str], int]:
    """Ranks inside each model (the first item of the key): 1 + the number of strictly higher values."""
    rising: dict[str, list[float]] = defaultdict(list)
    for (model, _), value in sorted(values.items(), key=lambda entry: entry[1]):
        rising[model].append(value)
    return {
        (model, variant): 1 + len(rising[model]) - bisect_right(rising[model], value)
        for (model, variant), value in values.items()
    }


def ends_early(run: RunScore) -> bool:
    """Whether the run's last evaluation lies before its T_stop."""
    last = run.choice.last_step
    return run.t_stop is not None and last is not None and last < run.t_stop
