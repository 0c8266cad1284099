"""The position diagnostic over several seeds: the gap between the policies at each token position, and the threshold
that position weights induce.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from cppo_lab.analysis.artifacts import PositionGaps
from cppo_lab.analysis.statistics.estimate import band
from cppo_lab.rules import position_weight

BINS = 60  # points per line at most
FEWEST = 20  # tokens per point at least; with fewer, a point would show the few longest responses, not the position


@dataclass(frozen=True)
class GapCurve:
    """A gap by token position: for each bin of neighbouring positions the mean over the runs and its band (`band` is
    the kind, see `statistics.bands`).
    """

    positions: tuple[float, ...]
    band: str
    mean: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]


@dataclass(frozen=True)
class GapCurves:
    """The mean gap and the mean of its largest tenth, over `runs` runs."""

    runs: int
    mean: GapCurve
    top10: GapCurve


def gap_curves(runs: Sequence[PositionGaps]) -> GapCurves | None:
    """Average each run over the tokens of a bin, then average the runs; None if no bin has enough tokens."""
    longest = max((len(run.positions) for run in runs), default=0)
    width = max(1, math.ceil(longest / BINS))
    steps, mean, top10 = [], [], []
    for start in range(0, longest, width):
        cut = slice(start, start + width)
        seen = [(run, np.array(run.tokens[cut], dtype=float)) for run in runs]
        seen = [(run, tokens) for run, tokens in seen if tokens.sum() >= FEWEST]
        if len(seen) < len(runs):  # every point is a mean over the same runs
            continue
        steps.append(start + (min(width, longest - start) + 1) / 2)
        mean.append([_weighted(run.mean[cut], tokens) for run, tokens in seen])
        top10.append([_weighted(run.top10[cut], tokens) for run, tokens in seen])
    if not steps:
        return None
    return GapCurves(len(runs), _curve(steps, mean), _curve(steps, top10))


def _weighted(values: Sequence[float], tokens: np.ndarray) -> float:
    known = np.array(values)[tokens > 0]
    return float(np.average(known, weights=tokens[tokens > 0]))


def _curve(steps: Sequence[float], runs: Sequence[Sequence[float]]) -> GapCurve:
    around = band(pd.DataFrame(runs), 0)
    return GapCurve(tuple(steps), around.kind, around.mean, around.low, around.high)


def induced_threshold(delta: float, w_min: float, length: int, span: int | None = None) -> tuple[float, ...]:
    """delta / w_t at t = 1..length of a response of that length: the limit on D_t that w_t D_t <= delta sets.

    T of w_t is `span`, or the length if that is None.
    """
    return tuple(delta / position_weight(t, span or length, w_min) for t in range(1, length + 1))
