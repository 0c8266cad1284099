"""The position diagnostic over several seeds: the gap between the policies at each token position, and the threshold
that position weights induce.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from cppo_lab.analysis.artifacts import PositionGaps
from cppo_lab.analysis.statistics.estimate import Band, band
from cppo_lab.rules import position_weight

BINS = 60  # points per line at most
FEWEST = 20  # tokens per point at least; with fewer, a point would show the few longest responses, not the position


@dataclass(frozen=True)
class GapCurve(Band):
    """A gap by token position, for each bin of neighbouring `positions`."""

    positions: tuple[float, ...]


@dataclass(frozen=True)
class GapCurves:
    """The mean gap and the mean of its largest tenth, over `runs` runs."""

    runs: int
    mean: GapCurve
    top10: GapCurve


def gap_curves(runs: Sequence[PositionGaps]) -> GapCurves | None:
    """Average each run over the tokens of a bin, then average the runs; None if no bin has enough tokens."""
    longest = max((len(run.positions) for run in runs), default=0)
    if not longest:
        return None
    width = math.ceil(longest / BINS)
    binned = pd.concat(
        {number: _binned(run, width) for number, run in enumerate(runs)}, axis="columns"
    ).dropna()
    if binned.empty:  # every point is a mean over the same runs
        return None
    starts = [width * place for place in binned.index]
    positions = tuple(start + (min(width, longest - start) + 1) / 2 for start in starts)
    bands = (band(binned.xs(name, axis="columns", level=1), 0) for name in ("mean", "top10"))
    return GapCurves(len(runs), *(GapCurve(**vars(each), positions=positions) for each in bands))


def _binned(run: PositionGaps, width: int) -> pd.DataFrame:
    """The gaps in each bin, weighted by tokens; without the bins that have too few."""
    gaps = pd.DataFrame({"mean": run.mean, "top10": run.top10}, dtype=float)
    tokens = pd.Series(run.tokens, dtype=float)
    places = np.arange(len(tokens)) // width
    sums, seen = gaps.mul(tokens, axis="index").groupby(places).sum(), tokens.groupby(places).sum()
    return sums[seen >= FEWEST].div(seen[seen >= FEWEST], axis="index")


def induced_threshold(delta: float, w_min: float, length: int, span: int | None = None) -> tuple[float, ...]:
    """delta / w_t at t = 1..length of a response of that length: the limit on D_t that w_t D_t <= delta sets.

    T of w_t is `span`, or the length if that is None.
    """
    return tuple(delta / position_weight(t, span or length, w_min) for t in range(1, length + 1))
