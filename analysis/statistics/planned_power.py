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

from cppo_lab.analysis.statistics.aggregates import FloatArray
from cppo_lab.analysis.statistics.claims import Claim, Kind, pairs
from cppo_lab.analysis.statistics.power import ALPHA
from cppo_lab.analysis.statistics.reached_power import fewest
from cppo_lab.analysis.statistics.trend import slope_weights

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
    """How the runs of a plan are compared: `paired` by seed or not. `lengths`: model -> response length in tokens, for
    claims about a trend with length. `correlation`: of the runs of one seed on a model.
    """

    paired: bool = True
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
                holds &= _supported(claim, part.value, part.square, part.degrees)
    for own in parts.values():
        weights: Sequence[float] | None = [1 / len(own)] * len(own)
        if claim.kind is Kind.TREND:
            weights = slope_weights([design.lengths[part.model] for part in own])
        if weights is None:
            return 0.0  # all response lengths are equal
        squares = np.array([weight**2 * part.square for weight, part in zip(weights, own, strict=True)])
        below = sum(square**2 / part.degrees for square, part in zip(squares, own, strict=True))
        value = np.sum([weight * part.value for weight, part in zip(weights, own, strict=True)], axis=0)
        holds &= _supported(claim, value, squares.sum(0), squares.sum(0) ** 2 / below)  # Satterthwaite's
    return float(holds.mean())


@dataclass(frozen=True)
class _Part:
    """One comparison on one model in every study: the difference, its squared standard error, its degrees of
    freedom.
    """

    model: str
    value: FloatArray
    square: FloatArray
    degrees: FloatArray


def _part(model: str, ours: FloatArray, theirs: FloatArray, paired: bool) -> _Part:
    studies, seeds = ours.shape
    value: FloatArray = (ours - theirs).mean(1)
    if paired:
        return _Part(model, value, (ours - theirs).var(1, ddof=1) / seeds, np.full(studies, seeds - 1.0))
    own, other = ours.var(1, ddof=1) / seeds, theirs.var(1, ddof=1) / seeds
    degrees = (own + other) ** 2 / ((own**2 + other**2) / (seeds - 1))
    return _Part(model, value, own + other, degrees)


def _supported(
    claim: Claim, value: NDArray[np.float64], square: NDArray[np.float64], degrees: NDArray[np.float64]
) -> NDArray[np.bool_]:
    """Which of these differences, with squared standard errors, support the claim at ALPHA."""
    half = stdtrit(degrees, 1 - ALPHA) * np.sqrt(square)
    supported: NDArray[np.bool_]
    if claim.margin is None:
        supported = value - half >= 0
    else:
        supported = (value - half >= -claim.margin) & (value + half <= claim.margin)
    return supported
