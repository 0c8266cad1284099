"""Curves of the exact core's runs by condition, the surrogate's error at equal movement, and what it depends on.

A curve has a run's values step by step. Runs of one `Condition` differ only in the seed; seeds are the sampling units
of every interval. docs/evidence/exact.md describes the estimator, its type I error, and why a smaller error at equal
movement does not show what a rule does to an update.
"""

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import chain
from weakref import WeakKeyDictionary

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from cppo_lab import schema
from cppo_lab.analysis.inputs import integer
from cppo_lab.analysis.scoring import Scoreboard
from cppo_lab.analysis.statistics.estimate import ONE_RUN, Estimate, estimate, jackknife_error, mean_of

Array = NDArray[np.float64]
Reduce = Callable[[Array], Array]

BIN = math.log(1.25)  # width of a movement bin, within which movement counts as equal
RETURN_BIN = 0.1
_ROUNDING = 1e-12  # an error of this size is none
FEWEST_STEPS = 5  # steps that each rule must have in a bin
REFERENCE = "dppo"  # the rule that others are compared with if no hypothesis says otherwise
_RANDOM = "cppo_random_mask"  # the rule that is a control whatever its constants
EIGHTHS = tuple(range(1, schema.POSITION_BINS + 1))
DISTANCE_TO_END = tuple(
    schema.POSITION_BINS + 0.5 - part for part in EIGHTHS
)  # from the middle of each eighth to the end
_BY_POSITION = {  # part of Curves -> its metrics by eighth
    f"{quantity}_by_position": tuple(schema.position_metric(quantity, part) for part in EIGHTHS)
    for quantity in ("movement", "error")
}
METRICS = {
    "error": "exact/error",
    "movement": "exact/movement",
    "matched": "exact/update_movement",
    "before": "exact/movement_before",
    "returns": "exact/return",
    "rollout_returns": "exact/rollout_return",
    "bound": "exact/bound",
    "product_bound": "exact/product_bound",
    "theorem_bound": "exact/theorem_bound",
    "visits": "exact/premise_visits",
    "positions": "exact/premise_positions",
    "prefixes": "exact/premise_prefixes",
}
METRICS_READ = frozenset(
    [*METRICS.values(), *chain(*_BY_POSITION.values())]
)  # the metrics that a report reads


class EqualIn(StrEnum):
    """What the compared steps of two rules have in common."""

    MOVEMENT = "movement"
    RETURN = "movement and return"
    NOTHING = "nothing"  # the ratio of plain means over all steps


@dataclass(frozen=True)
class Condition:
    """What all runs of a group of curves share; `variant` is without the horizon."""

    model: str
    variant: str
    horizon: int


@dataclass(frozen=True, eq=False)
class Curves:
    """The runs of a condition, [seed, logged step] each, and movement and error by eighth of the response [.., .., 8].

    `matched`: the movement at which steps of two rules are compared: that of the update where it goes along another
    training, else `movement`. `before`: movement before the step's first update, which comes from mismatch and
    staleness alone. `returns` and `rollout_returns`: J(pi), J(mu). `visits`, `positions`, `prefixes`: shares beyond the
    rule's limits. NaN where a run logged nothing: after an early end, or if it has no such metric.
    """

    seeds: tuple[int, ...]
    error: Array
    movement: Array
    matched: Array
    before: Array
    returns: Array
    rollout_returns: Array
    bound: Array
    product_bound: Array
    theorem_bound: Array
    visits: Array
    positions: Array
    prefixes: Array
    movement_by_position: Array
    error_by_position: Array


_CURVES_OF_BOARD: WeakKeyDictionary[Scoreboard, dict[Condition, Curves]] = WeakKeyDictionary()


def read_curves(board: Scoreboard) -> dict[Condition, Curves]:
    """The finished runs of a scored sweep by condition, in declaration order. Runs that did not log `exact/error` are
    left out.
    """
    if board in _CURVES_OF_BOARD:  # each claim and the tables need them
        return _CURVES_OF_BOARD[board]
    curves = {}
    for model, variant in board.cells:
        runs = {
            run.mlflow_id: run.seed
            for run in board.runs_of(model, variant)
            if run.seed is not None and run.is_result
        }
        points = {}
        for name in METRICS_READ:
            logged = board.logged(model, variant, name)
            points[name] = logged[logged["mlflow_id"].isin(runs) & (logged["step"] > 0)]
        horizon = integer(board.data.params.get(next(iter(runs), ""), {}).get(schema.HORIZON, ""))
        if horizon is None or horizon < 1 or points[METRICS["error"]].empty:
            continue
        steps = np.unique(np.concatenate([of_metric["step"] for of_metric in points.values()]))
        tables = {}
        for name, of_metric in points.items():
            tables[name] = table = np.full((len(runs), len(steps)), np.nan)
            rows = pd.Index([*runs]).get_indexer(of_metric["mlflow_id"].astype(str))
            table[rows, steps.searchsorted(of_metric["step"])] = of_metric["value"].to_numpy()
        condition = Condition(model, without_horizon(variant), horizon)
        curves[condition] = curves_of(tuple(runs.values()), tables)
    _CURVES_OF_BOARD[board] = curves
    return curves


def curves_of(seeds: tuple[int, ...], tables: Mapping[str, Array]) -> Curves:
    """Curves from a table [seed, step] of each metric in METRICS_READ."""
    parts = {part: tables[metric] for part, metric in METRICS.items()}
    parts["matched"] = np.where(np.isnan(parts["matched"]), parts["movement"], parts["matched"])
    by_position = {
        part: np.stack([tables[metric] for metric in metrics], axis=-1)
        for part, metrics in _BY_POSITION.items()
    }
    return Curves(seeds, **parts, **by_position)


def controls(board: Scoreboard) -> dict[str, str]:
    """Variants that differ from REFERENCE in nothing that could make an update better -> what they are: REFERENCE
    without its trust region (no total variation is above a delta of 1), a mask at random places, or REFERENCE with
    other settings outside the rule alone, which is a placebo.
    """
    rules: dict[tuple[str, str], dict[str, str]] = {}
    for model, variant in board.cells:
        logged = map(board.params_of, board.runs_of(model, variant))
        if params := next(filter(None, logged), None):
            rule = {key: value for key, value in params.items() if key.startswith("rule.")}
            rules.setdefault((model, without_horizon(variant)), rule)
    kinds = {}
    for (model, variant), rule in rules.items():
        reference = rules.get((model, reference_of(variant, [name for of, name in rules if of == model])))
        if is_reference(variant) or reference is None:
            continue
        delta = rule.get("rule.delta")
        is_open = pd.to_numeric(delta, errors="coerce") >= 1 and rule == {**reference, "rule.delta": delta}
        if rule == reference:
            kinds[variant] = "placebo"
        elif rule.get("rule.name") == _RANDOM or is_open:
            kinds[variant] = "control"
    return kinds


def is_reference(variant: str) -> bool:
    """Whether a label is that of REFERENCE, with the values of whatever axes."""
    return variant.partition(" ")[0] == REFERENCE


def reference_of(variant: str, variants: Iterable[str]) -> str:
    """The one of `variants` that is REFERENCE; of several, that at the same values of the axes. Empty without one."""
    named, given = [*filter(is_reference, dict.fromkeys(variants))], variant.split(" ")
    if len(named) > 1:
        named = [name for name in named if {*name.split(" ")[1:]} <= {*given}]
    return named[0] if len(named) == 1 else ""


def without_horizon(variant: str) -> str:
    """A label without the value of the axis that is the horizon: `cppo max_response_length=64` -> `cppo`."""
    name = schema.HORIZON.rpartition(".")[2]
    return " ".join(
        word for word in variant.split(" ") if not word.startswith((f"{name}=", f"{schema.HORIZON}="))
    )


@dataclass(frozen=True, eq=False)
class Pair:
    """Two rules on the same process and horizon, by seed: steps and summed |Delta| in every bin, [2, seed, bin].

    Steps in a bin have equal movement and perhaps also an equal return before the update (`EqualIn`).
    """

    seeds: tuple[int, ...]
    steps: Array
    errors: Array

    def log_ratios(self, weights: Array) -> Array:
        """The log of the first rule's mean |Delta| over the second's at equal movement, for each row of `weights`
        [draw, seed]: how often each seed counts. Averaged over the bins in which each rule has at least FEWEST_STEPS,
        weighted by the smaller of the two counts; NaN if there is no such bin.
        """
        steps, errors = weights @ self.steps, weights @ self.errors  # [2, draw, bin]
        shared = (steps.min(0) >= FEWEST_STEPS) & (errors.min(0) > 0)
        means = np.divide(errors, steps, out=np.ones_like(errors), where=shared)
        logs, counts = np.log(means[0] / means[1]), np.where(shared, steps.min(0), 0.0)
        total = counts.sum(1)
        weighted = np.where(shared, logs * counts, 0.0).sum(1)
        ratios: Array = np.divide(weighted, total, out=np.full(len(weights), np.nan), where=total > 0)
        return ratios


def paired(ours: Curves, theirs: Curves, equal: EqualIn = EqualIn.MOVEMENT) -> Pair:
    """The binned steps of two conditions, for the seeds that both have: those on which the policy moved; all, in one
    bin, if nothing is to be equal.
    """
    seeds = tuple(sorted(set(ours.seeds) & set(theirs.seeds)))
    sides = []  # a row per step: side and seed, its bins of movement and of return, |Delta|
    for side, curves in enumerate((ours, theirs)):
        rows = [curves.seeds.index(seed) for seed in seeds]
        movement, level, error = curves.matched[rows], curves.rollout_returns[rows], curves.error[rows]
        counted = np.isfinite(movement) & ((movement > 0) | (equal is EqualIn.NOTHING))
        table = np.zeros((int(counted.sum()), 4))
        table[:, 0] = np.nonzero(counted)[0] + side * len(seeds)
        if equal is not EqualIn.NOTHING:
            table[:, 1] = np.floor(np.log(movement[counted]) / BIN)
        if equal is EqualIn.RETURN:
            table[:, 2] = np.floor(level[counted] / RETURN_BIN)
        table[:, 3] = np.abs(error[counted])
        sides.append(table)
    both = np.concatenate(sides)
    bins, of_bin = np.unique(both[:, 1:3], axis=0, return_inverse=True)
    shape = 2, len(seeds), len(bins)
    place = both[:, 0].astype(int) * len(bins) + of_bin.ravel()
    steps, errors = (
        np.bincount(place, weights, math.prod(shape)).astype(np.float64).reshape(shape)
        for weights in (None, both[:, 3])
    )
    return Pair(seeds, steps, errors)


def pairs_of(
    curves: Mapping[Condition, Curves],
    model: str,
    variant: str,
    against: str,
    equal: EqualIn = EqualIn.MOVEMENT,
) -> dict[int, Pair]:
    """Two variants on the same model by horizon, shortest first, where both have runs."""
    horizons = sorted({c.horizon for c in curves if (c.model, c.variant) == (model, variant)})
    return {
        h: paired(curves[Condition(model, variant, h)], curves[reference], equal)
        for h in horizons
        if (reference := Condition(model, against, h)) in curves
    }


def ratio_estimates(pairs: Mapping[int, Pair]) -> dict[int, Estimate]:
    """The log ratio of errors at each horizon; horizons where the two share no movement bin are left out."""
    ratios = {h: _combined([{h: pair}], lambda logs: logs[0]) for h, pair in pairs.items()}
    return {h: ratio for h, ratio in ratios.items() if ratio is not None}


def mean_log_ratio(by_model: Sequence[Mapping[int, Pair]]) -> Estimate | None:
    """The log ratio, mean over models and horizons; None if any of them cannot be compared."""
    return _combined(by_model, lambda logs: logs.mean(0))


def log_ratio_slope(by_model: Sequence[Mapping[int, Pair]]) -> Estimate | None:
    """The slope of the log ratio in log10 T, averaged over models: its change when the horizon is ten times as long.
    None if a horizon cannot be compared, or a model has fewer than two.
    """
    if any(len(pairs) < 2 for pairs in by_model):
        return None
    weights = np.concatenate([_slope_weights(tuple(pairs)) for pairs in by_model]) / len(by_model)
    return _combined(by_model, lambda logs: weights @ logs)


def _slope_weights(values: Sequence[float]) -> Array:
    """The least-squares weight of what belongs to each of `values`, for its slope in their decimal logarithm."""
    x = np.log10(np.array(values, dtype=np.float64))
    x -= x.mean()
    return np.asarray(x / (x @ x))


def _combined(by_model: Sequence[Mapping[int, Pair]], reduce: Reduce) -> Estimate | None:
    """A linear `reduce` of the log ratios of all models and horizons, [part, draw] -> [draw], and its jackknife error.

    The jackknife leaves a seed out of all parts at once, since the runs of a seed share their start. So seeds are the
    sampling units, however parts and rules are correlated. None if the two rules of a part share no movement bin, or
    the parts share no seeds.
    """
    parts = [pair for pairs in by_model for pair in pairs.values()]
    seeds = sorted(set.intersection(*(set(part.seeds) for part in parts))) if parts else []
    n = len(seeds)
    if not n:
        return None
    draws = 1 - np.eye(n + (n > 1), n, -1)  # all seeds, then all but each
    logs = []
    for part in parts:
        weights = np.zeros((len(draws), len(part.seeds)))  # its further seeds have weight 0
        weights[:, [part.seeds.index(seed) for seed in seeds]] = draws
        logs.append(part.log_ratios(weights))
    values = reduce(np.stack(logs))
    if not np.isfinite(values).all():
        return None
    if n == 1:
        return Estimate(float(values[0]), 1, unknown=ONE_RUN)
    return estimate(float(values[0]), n, jackknife_error(values[1:]), n - 1)


def of_seeds(curves: Mapping[Condition, Curves], seeds: Collection[int]) -> dict[Condition, Curves]:
    """The runs with these seeds, of the conditions that have any."""
    chosen = {}
    for condition, runs in curves.items():
        if rows := [row for row, seed in enumerate(runs.seeds) if seed in seeds]:
            parts = {name: value[rows] for name, value in vars(runs).items() if name != "seeds"}
            chosen[condition] = Curves(tuple(runs.seeds[row] for row in rows), **parts)
    return chosen


def advantage(
    curves: Mapping[Condition, Curves],
    models: Sequence[str],
    pair: tuple[str, str],
    slope: bool,
    equal: EqualIn,
) -> Estimate | None:
    """Minus the log ratio of the errors of the first variant of `pair` to the second's, mean over models and horizons,
    or (`slope`) its change when the horizon is ten times as long; None if they cannot be compared.
    """
    pairs = [pairs_of(curves, model, *pair, equal) for model in models]
    if not all(pairs):
        return None
    log_ratio = log_ratio_slope(pairs) if slope else mean_log_ratio(pairs)
    return None if log_ratio is None else replace(log_ratio, value=-log_ratio.value)


@dataclass(frozen=True)
class ConditionSummary:
    """Means over the runs and steps of a condition."""

    runs: int
    error: float  # mean |Delta|
    movement: float
    before: float  # movement by mismatch and staleness alone
    area: float  # mean return over the steps
    falls: float  # share of steps on which the return falls
    bound_ratio: float  # median of bound / |Delta|
    product_ratio: float
    theorem_ratio: float
    premise: tuple[float, ...]  # shares of visits, positions and prefixes beyond the rule's limits
    by_position: tuple[float, ...]  # movement in each eighth
    error_by_position: tuple[float, ...]  # mean |error| in each eighth over its movement
    position_exponent: Estimate | None


def summarise(curves: Curves) -> ConditionSummary:
    """The means over the runs and steps of a condition."""
    error = np.abs(curves.error)
    has_error = error > _ROUNDING
    fell = np.diff(curves.returns, axis=1)
    moved = nan_mean(curves.movement_by_position, (0, 1))
    erred = nan_mean(np.abs(curves.error_by_position), (0, 1))
    bounds = (curves.bound, curves.product_bound, curves.theorem_bound)
    proposition, product, theorem = (
        float(np.median(bound[has_error] / error[has_error])) if has_error.any() else math.nan
        for bound in bounds
    )
    return ConditionSummary(
        len(curves.seeds),
        float(np.nanmean(error)),
        float(np.nanmean(curves.movement)),
        float(np.nanmean(curves.before)),
        float(np.nanmean(curves.returns)),
        float((fell < 0).sum() / max(np.isfinite(fell).sum(), 1)),
        proposition,
        product,
        theorem,
        tuple(float(nan_mean(part)) for part in (curves.visits, curves.positions, curves.prefixes)),
        tuple(moved.tolist()),
        tuple((erred / np.where(moved > 0, moved, math.nan)).tolist()),
        position_exponent(curves),
    )


def nan_mean(values: Array, axis: int | tuple[int, ...] | None = None) -> Array:
    """`nanmean` without a warning where there is no number: a metric is off, or an eighth has no tokens."""
    count = np.count_nonzero(~np.isnan(values), axis)
    return np.asarray(np.nansum(values, axis) / np.where(count, count, math.nan))


def position_exponent(curves: Curves) -> Estimate | None:
    """x in lambda_t ~ (T - t)^x, by which an error per unit of movement falls along the response, over the seeds: the
    slope of a seed's log(mean |error| / mean movement) of each eighth in the log of its middle's distance to the end.
    None if some eighth has no error or no movement.
    """
    error, movement = (
        nan_mean(part, 1) for part in (np.abs(curves.error_by_position), curves.movement_by_position)
    )
    if not ((error > _ROUNDING) & (movement > 0)).all():
        return None
    slopes = np.log(error / movement) @ _slope_weights(DISTANCE_TO_END) / math.log(10)
    return mean_of(slopes.tolist())
