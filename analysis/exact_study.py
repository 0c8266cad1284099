"""The exact core's study: the surrogate's error at equal movement, its dependence on the horizon, bounds against truth.

A curve is one run's values step by step. `Condition` distinguishes runs; seeds are the units of every interval.
"""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

BIN = math.log(1.25)  # width of a movement bin: steps within it count as equally far
RETURN_BIN = 0.1
LEAST = 5  # steps that each rule must have in a bin
DRAWS = 400  # of the bootstrap over seeds
QUANTILES = (0.025, 0.975)


@dataclass(frozen=True)
class Condition:
    """What all runs of one curve family have in common."""

    model: str
    variant: str
    horizon: int
    learning_rate: float


@dataclass(frozen=True)
class Curves:
    """The runs of one condition, [seed, step] each, and movement by eighth of the response [seed, step, 8].

    A run that ended early has NaN from there on.
    """

    seeds: tuple[int, ...]
    error: Array
    movement: Array
    returns: Array
    bound: Array
    product_bound: Array
    by_position: Array


@dataclass(frozen=True)
class Interval:
    """An estimate with its 95 % interval."""

    value: float
    low: float
    high: float


def matched_ratio(
    one: Sequence[Curves],
    other: Sequence[Curves],
    rows: Sequence[NDArray[np.int64]],
    by_return: bool = False,
) -> float:
    """Mean |Delta| of `one` over that of `other` at equal movement, geometric mean over bins; NaN if none is shared.

    `one[i]` is compared with `other[i]` alone, since another learning rate makes the same movement of other parts of
    noise and update; `rows[i]` are the seeds, as row numbers, that count, repetitions included.
    `by_return`: at an equal return, too. A rule that learns more slowly takes more of its steps where the return is
    low, and there the same movement makes a larger error. A bin weighs by the steps of the rule that has fewer there.
    """
    totals = [_binned(curves, rows, by_return) for curves in (one, other)]
    logs, weights = [], []
    for key in sorted(totals[0].keys() & totals[1].keys()):
        here = [binned[key] for binned in totals]
        if min(map(len, here)) >= LEAST and min(map(np.mean, here)) > 0:
            logs.append(math.log(here[0].mean() / here[1].mean()))
            weights.append(min(map(len, here)))
    return math.exp(np.average(logs, weights=weights)) if logs else math.nan


def _binned(
    curves: Sequence[Curves], rows: Sequence[NDArray[np.int64]], by_return: bool
) -> dict[tuple[int, int, int], Array]:
    """|Delta| by number of the curves, bin of movement and bin of the return (0 if that does not count)."""
    found: dict[tuple[int, int, int], list[float]] = defaultdict(list)
    for i, (one, chosen) in enumerate(zip(curves, rows, strict=True)):
        movement, returns = one.movement[chosen].ravel(), one.returns[chosen].ravel()
        moved = np.isfinite(movement) & (movement > 0)
        bins = np.floor(np.log(movement[moved]) / BIN).astype(int).tolist()
        levels = np.floor(returns[moved] / RETURN_BIN).astype(int).tolist()
        errors = np.abs(one.error[chosen].ravel()[moved]).tolist()
        for number, level, error in zip(bins, levels, errors, strict=True):
            found[i, number, level if by_return else 0].append(error)
    return {key: np.array(values) for key, values in found.items()}


def ratios_by_horizon(
    curves: Mapping[Condition, Curves],
    model: str,
    one: str,
    other: str,
    by_return: bool = False,
    seed: int = 0,
) -> tuple[dict[int, Interval], Interval]:
    """`matched_ratio` of two variants at each horizon, and the slope of its logarithm in log T.

    Each learning rate has bins of its own. Intervals by bootstrap over seeds, which are drawn once for all horizons.
    """
    horizons = sorted({c.horizon for c in curves if c.model == model and c.variant == one})
    pairs = {horizon: _pairs(curves, model, horizon, one, other) for horizon in horizons}
    count = min(len(c.seeds) for left, right in pairs.values() for c in (*left, *right))
    generator = np.random.default_rng(seed)
    draws = [np.arange(count), *(generator.integers(count, size=count) for _ in range(DRAWS))]
    table = np.array(
        [[matched_ratio(*pairs[h], [rows] * len(pairs[h][0]), by_return) for h in horizons] for rows in draws]
    )
    slopes = np.array([_slope(horizons, row) for row in table])
    found = {h: _interval(table[:, i]) for i, h in enumerate(horizons)}
    return found, _interval(slopes)


def _pairs(
    curves: Mapping[Condition, Curves], model: str, horizon: int, one: str, other: str
) -> tuple[list[Curves], list[Curves]]:
    rates = sorted(
        {c.learning_rate for c in curves if (c.model, c.horizon, c.variant) == (model, horizon, one)}
    )
    return (
        [curves[Condition(model, one, horizon, rate)] for rate in rates],
        [curves[Condition(model, other, horizon, rate)] for rate in rates],
    )


def _slope(horizons: Sequence[int], ratios: Array) -> float:
    known = np.isfinite(ratios)
    if known.sum() < 2:
        return math.nan
    return float(np.polyfit(np.log(np.array(horizons)[known]), np.log(ratios[known]), 1)[0])


def _interval(values: Array) -> Interval:
    """The first value, with the quantiles of the others."""
    drawn = values[1:][np.isfinite(values[1:])]
    if not len(drawn) or not math.isfinite(values[0]):
        return Interval(math.nan, math.nan, math.nan)
    low, high = np.quantile(drawn, QUANTILES)
    return Interval(float(values[0]), float(low), float(high))


@dataclass(frozen=True)
class ConditionSummary:
    """Means over the runs and steps of one condition."""

    error: float  # mean |Delta|
    movement: float
    area: float  # mean return over the steps
    falls: float  # share of steps on which the return falls
    bound_ratio: float  # median of bound / |Delta|
    product_ratio: float
    by_position: tuple[float, ...]  # movement in each eighth


def summarise(curves: Curves) -> ConditionSummary:
    """The means of one condition."""
    error = np.abs(curves.error)
    some = error > 1e-12
    fell = np.diff(curves.returns, axis=1)
    return ConditionSummary(
        float(np.nanmean(error)),
        float(np.nanmean(curves.movement)),
        float(np.nanmean(curves.returns)),
        float((fell < 0).sum() / np.isfinite(fell).sum()),
        float(np.median(curves.bound[some] / error[some])),
        float(np.median(curves.product_bound[some] / error[some])),
        tuple(np.nanmean(curves.by_position, axis=(0, 1)).tolist()),
    )


def area_difference(one: Curves, other: Curves) -> Interval:
    """Mean difference of the mean returns, by seed, with the normal 95 % interval."""
    gap = np.nanmean(one.returns, axis=1) - np.nanmean(other.returns, axis=1)
    half = 1.96 * gap.std(ddof=1) / math.sqrt(len(gap)) if len(gap) > 1 else math.nan
    return Interval(float(gap.mean()), float(gap.mean() - half), float(gap.mean() + half))
