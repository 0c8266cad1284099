"""The power of a planned sweep's claims, by simulation, before anything is trained.

A simulated study draws each run from a normal distribution around the assumed score of its model and variant, and is
judged as in `verdicts`: differences paired by seed or by Welch, every comparison of the claim at ALPHA. Only claims
about scores have a planned power: collapses and other quantities cannot be assumed before training.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtrit

from cppo_lab.analysis.statistics.claims import Claim, Kind, pairs
from cppo_lab.analysis.statistics.estimate import FloatArray
from cppo_lab.analysis.statistics.paired import LEAST, slope_weights
from cppo_lab.analysis.statistics.power import ALPHA, fewest

if TYPE_CHECKING:
    from cppo_lab.analysis.exact_claims import ErrorClaim

STUDIES = 4000  # the standard error of a power is then at most 0.8 points
Scores = Mapping[str, Mapping[str, float]]  # model -> variant -> true score, a fraction


@dataclass(frozen=True)
class PlannedPower:
    """`power`: the probability that `claim` comes out supported with `seeds` runs of each variant and model, if the
    assumed truth holds and runs have the standard deviation `deviation` (a fraction; for a claim about the surrogate's
    error, of the log ratio of one seed). `needed`: the number of seeds at which the power reaches `power.POWER`; None
    if that takes more than `power.MOST` or never happens.
    """

    claim: "Claim | ErrorClaim"
    comparisons: int
    deviation: float
    seeds: int
    power: float
    needed: int | None


@dataclass(frozen=True)
class Design:
    """How the runs of a plan are compared: `paired` by seed or not; `common`: and the seeds are the units over models,
    too (`paired.over_models`). `lengths`: model -> response length in tokens, for
    claims about a trend with length. `correlation`: of the runs of one seed on a model.
    """

    paired: bool = True
    common: bool = False
    correlation: float = 0.0
    lengths: Mapping[str, float] = field(default_factory=dict)


def can_plan(claim: Claim) -> bool:
    """Whether the power of a claim can be computed from assumed scores."""
    return claim.compares_scores


def planned_power(
    claim: Claim, scores: Scores, deviation: float, seeds: int, design: Design | None = None
) -> PlannedPower:
    """The power of one claim with `seeds` >= 1 runs of each cell; `design` None: paired by seed.

    Raises ValueError if nothing can be compared.
    """
    compared = [(model, *pair) for model in scores for pair in pairs(claim, tuple(scores[model]))]
    if not compared or not deviation > 0:
        raise ValueError(f"{claim.key}: nothing to compare, or a deviation of {deviation}")
    how = design or Design()
    together = claim.over_models or claim.kind is Kind.TREND
    comparisons = len({(ours, theirs) for _, ours, theirs in compared}) if together else len(compared)
    return PlannedPower(
        claim=claim,
        comparisons=comparisons,
        deviation=deviation,
        seeds=seeds,
        power=_power(claim, scores, deviation, seeds, how),
        needed=fewest(lambda n: _power(claim, scores, deviation, n, how)),
    )


def _power(claim: Claim, scores: Scores, deviation: float, seeds: int, design: Design) -> float:
    """The share of simulated studies in which all comparisons hold; 0 for one seed, which shows no spread."""
    if seeds < 2:
        return 0.0
    rng, of_seeds = np.random.default_rng(seeds), np.random.default_rng([seeds, 1])
    holds = np.ones(STUDIES, dtype=bool)
    parts: dict[tuple[str, str], list[_Part]] = {}
    for model, of_model in scores.items():
        shared = math.sqrt(design.correlation) * of_seeds.normal(0.0, deviation, (STUDIES, seeds))
        own_deviation = math.sqrt(1 - design.correlation) * deviation
        runs = {
            variant: rng.normal(score, own_deviation, (STUDIES, seeds)) + shared
            for variant, score in of_model.items()
        }
        for variant, against in pairs(claim, tuple(of_model)):
            if not {variant, against} <= runs.keys():
                return 0.0  # like a verdict without runs on one side
            part = _part(model, runs[variant], runs[against], design.paired)
            if claim.over_models or claim.kind is Kind.TREND:
                parts.setdefault((variant, against), []).append(part)
            else:
                holds &= _supported(claim, part.value, _half(part.square, part.degrees))
    for own in parts.values():
        mean, trend = (1 / len(own),) * len(own), claim.kind is Kind.TREND
        weights = slope_weights([design.lengths[part.model] for part in own]) if trend else mean
        if weights is None or (trend and len(own) < LEAST):
            return 0.0  # all response lengths are equal, or there is no interval
        value, half = _weighted(own, weights, design.common)
        if trend:
            half = np.maximum(
                half, _half_by_residuals(np.array([part.value for part in own]), weights, value)
            )
        holds &= _supported(claim, value, half)
    return float(holds.mean())


def _weighted(
    parts: Sequence["_Part"], weights: Sequence[float], common: bool
) -> tuple[FloatArray, FloatArray]:
    """The weighted sums of the parts, and half the widths of their intervals: by seed if seeds are `common`."""
    value: FloatArray = np.sum(
        [weight * part.value for weight, part in zip(weights, parts, strict=True)], axis=0
    )
    if common:
        by_seed = np.sum([weight * part.pairs for weight, part in zip(weights, parts, strict=True)], axis=0)
        seeds = by_seed.shape[1]
        return value, _half(by_seed.var(1, ddof=1) / seeds, np.full(len(value), seeds - 1.0))
    squares = np.array([weight**2 * part.square for weight, part in zip(weights, parts, strict=True)])
    below = sum(square**2 / part.degrees for square, part in zip(squares, parts, strict=True))
    return value, _half(squares.sum(0), squares.sum(0) ** 2 / below)  # Satterthwaite's


def _half_by_residuals(values: FloatArray, weights: Sequence[float], slopes: FloatArray) -> FloatArray:
    """As `trend.slope` has it, for the values of the models [model, study]."""
    squares = sum(weight**2 for weight in weights)
    line = values.mean(0) + np.outer(weights, slopes) / squares
    degrees = len(weights) - 2
    return _half(((values - line) ** 2).sum(0) / degrees * squares, np.full(len(slopes), float(degrees)))


@dataclass(frozen=True)
class _Part:
    """One comparison on one model in every study: the difference, its squared standard error, its degrees of freedom;
    and the difference of each seed [study, seed].
    """

    model: str
    pairs: FloatArray
    value: FloatArray
    square: FloatArray
    degrees: FloatArray


def _part(model: str, ours: FloatArray, theirs: FloatArray, paired: bool) -> _Part:
    studies, seeds = ours.shape
    pairs = ours - theirs
    value: FloatArray = pairs.mean(1)
    if paired:
        return _Part(model, pairs, value, pairs.var(1, ddof=1) / seeds, np.full(studies, seeds - 1.0))
    own, other = ours.var(1, ddof=1) / seeds, theirs.var(1, ddof=1) / seeds
    degrees = (own + other) ** 2 / ((own**2 + other**2) / (seeds - 1))
    return _Part(model, pairs, value, own + other, degrees)


def _half(square: FloatArray, degrees: FloatArray) -> FloatArray:
    """Half the widths of 95 % intervals with these squared standard errors."""
    half: FloatArray = stdtrit(degrees, 1 - ALPHA) * np.sqrt(square)
    return half


def _supported(claim: Claim, value: FloatArray, half: FloatArray) -> NDArray[np.bool_]:
    """Which of these differences, with half the widths of their intervals, support the claim at ALPHA."""
    supported: NDArray[np.bool_]
    if claim.margin is None:
        supported = value - half >= 0
    else:
        supported = (value - half >= -claim.margin) & (value + half <= claim.margin)
    return supported
