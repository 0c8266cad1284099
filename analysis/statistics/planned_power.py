"""What a planned sweep can decide: the power of its claims, by simulation, before anything is trained.

A study draws each run from a normal distribution around the assumed score of its model and variant, and is judged as
`verdicts` judges runs: differences paired by seed, every comparison of the claim at ALPHA.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtrit

from cppo_lab.analysis.statistics.claims import Claim, pairs
from cppo_lab.analysis.statistics.power import ALPHA, MOST, POWER

STUDIES = 4000  # the standard error of a power is then at most 0.8 points
Scores = Mapping[str, Mapping[str, float]]  # model -> variant -> true score, a fraction


@dataclass(frozen=True)
class PlannedPower:
    """`power`: the probability that `claim` comes out supported with `seeds` runs of each variant and model, if the
    assumed scores are true and runs have the standard deviation `deviation` (a fraction). `needed`: the seeds at which
    it reaches POWER; None: more than MOST, or never.
    """

    claim: Claim
    comparisons: int
    deviation: float
    seeds: int
    power: float
    needed: int | None


def planned_power(claim: Claim, scores: Scores, deviation: float, seeds: int) -> PlannedPower:
    """The power of one claim with `seeds` >= 1 runs of each cell. Raises ValueError if nothing can be compared."""
    compared = [(model, *pair) for model in scores for pair in pairs(claim, tuple(scores[model]))]
    if not compared or not deviation > 0:
        raise ValueError(f"{claim.key}: nothing to compare, or a deviation of {deviation}")
    found = _power(claim, scores, deviation, seeds)
    return PlannedPower(claim, len(compared), deviation, seeds, found, _needed(claim, scores, deviation))


def _needed(claim: Claim, scores: Scores, deviation: float) -> int | None:
    """The smallest number of seeds with enough power: it grows with the seeds, but for the noise of the simulation."""
    if _power(claim, scores, deviation, MOST) < POWER:
        return None
    low, high = 1, MOST  # not enough, enough
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if _power(claim, scores, deviation, middle) >= POWER else (middle, high)
    return high


def _power(claim: Claim, scores: Scores, deviation: float, seeds: int) -> float:
    """The share of simulated studies whose comparisons all hold; 0 for one seed, which shows no spread."""
    if seeds < 2:
        return 0.0
    rng = np.random.default_rng(seeds)
    holds = np.ones(STUDIES, dtype=bool)
    sums: dict[tuple[str, str], list[tuple[NDArray[np.float64], NDArray[np.float64]]]] = {}
    for of_model in scores.values():
        runs = {
            variant: rng.normal(score, deviation, (STUDIES, seeds)) for variant, score in of_model.items()
        }
        for variant, against in pairs(claim, tuple(of_model)):
            if not {variant, against} <= runs.keys():
                return 0.0  # as a verdict without runs of one side
            differences = runs[variant] - runs[against]
            value, square = differences.mean(1), differences.var(1, ddof=1) / seeds
            if claim.over_models:
                sums.setdefault((variant, against), []).append((value, square))
            else:
                holds &= _supported(claim, value, square, np.full(STUDIES, seeds - 1.0))
    for parts in sums.values():
        count = len(parts)
        squares = np.array([square for _, square in parts]) / count**2
        degrees = squares.sum(0) ** 2 / (squares**2 / (seeds - 1)).sum(0)  # Satterthwaite's
        holds &= _supported(claim, np.mean([value for value, _ in parts], axis=0), squares.sum(0), degrees)
    return float(holds.mean())


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
