"""The power that finished runs have, and that planned ones will have.

Power is that at a lead that was fixed beforehand, `Claim.lead`. The observed difference does not enter, since power at
the observed difference only restates the p-value; only the spread of the runs does. The comparisons of a claim are
treated as independent. Those that share a method on the same side are positively correlated, and the reported power is
too low; between tiers it is slightly too high. Over several models the degrees of freedom grow in proportion to n - 1
with the number n of runs on each. The scatter of models around a slope is taken as it is: more runs do not make it
smaller. Three seeds determine the spread only to a factor of about 0.5 to 6, so a number of seeds is an order of
magnitude, not a guarantee.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache

import numpy as np
from scipy.special import gammaincinv, ndtr, stdtrit

from cppo_lab import schema
from cppo_lab.analysis.statistics.claims import Claim, Kind, pairs
from cppo_lab.analysis.statistics.collapse import Z95, ShareDifference, newcombe
from cppo_lab.analysis.statistics.estimate import Estimate, FloatArray, SlopeEstimate, look_level, t_quantile
from cppo_lab.analysis.statistics.paired import FEWEST_MODELS, slope_weights

POWER = 0.8
ONE_SIDED_LEVEL = 0.025  # each tail of a two-sided 95 % interval
MOST_SEEDS = 100  # seeds; larger numbers are only reported as "more than"


def error_with(estimate: Estimate, runs: int, n: int) -> tuple[float, float]:
    """Error and degrees of freedom of an estimate from `runs` of each variant and model, if there were `n`. The scatter
    of the models around a slope, which more runs do not change, counts where its interval is wider.
    """
    of_seeds, models = estimate, None
    if isinstance(estimate, SlopeEstimate) and estimate.seeds is not None:
        of_seeds, models = estimate.seeds, estimate.models
    assert of_seeds.error is not None and of_seeds.degrees is not None, "without an error it says why"
    # At least 2: a side of an unpaired comparison may be a single run, when all spread comes from the other side.
    before = max(2, runs)
    seeds = of_seeds.error * math.sqrt(before / n), of_seeds.degrees * (n - 1) / (before - 1)
    if models is None or models.error is None or models.degrees is None:
        return seeds
    return max(seeds, (models.error, models.degrees), key=lambda of: of[0] * t_quantile(of[1]))


_PLACES = 400  # quadrature points of the distribution of the estimated error
STUDIES = 4000  # simulated studies: the standard error of a power is then at most 0.8 points


@dataclass(frozen=True)
class ReachedPower:
    """`power`: the probability that a claim comes out supported with these runs if every true difference is `lead`.
    `runs`: the smallest number of runs of any variant and model. `needed`: the number at which the power reaches POWER;
    None: more than MOST_SEEDS, or, if `unknown` says why, not known.
    """

    lead: float
    power: float
    runs: int
    needed: int | None
    unknown: str = ""


def reached_power(
    claim: Claim, estimates: Sequence[Estimate], runs: int, lacking: str = ""
) -> ReachedPower | None:
    """The power of a claim with these comparisons, from `runs` of each variant and model; None without a comparison.
    `lacking`: why a further comparison has no estimate.

    Without a spread or an estimate nothing can be supported: the power is 0 and `needed` is unknown.
    """
    if why := next((estimate.unknown for estimate in estimates if estimate.unknown), lacking):
        return ReachedPower(claim.lead, 0.0, runs, None, why)
    if not estimates:
        return None

    def all_hold(n: int) -> float:
        """The probability that every comparison holds with `n` runs of each variant and model.

        That a share is higher is simulated: the true share of the other side is its pooled share over all strata; ours
        is higher by the claim's lead.
        """
        chances = []
        for estimate in estimates:
            if isinstance(estimate, ShareDifference):
                theirs, rng = estimate.theirs, np.random.default_rng(n)
                base = sum(collapsed for collapsed, _ in theirs) / sum(count for _, count in theirs)
                ours, others = (
                    rng.binomial(n, share, (STUDIES, len(theirs))) / n
                    for share in (min(1.0, base + claim.lead), base)
                )
                chances.append((newcombe(ours, others, n, n, Z95, -1) > 0).mean())
            else:
                chances.append(interval_power(claim.lead, claim.margin, *error_with(estimate, runs, n)))
        return float(np.prod(chances))

    return ReachedPower(claim.lead, all_hold(runs), runs, fewest(all_hold))


def fewest(chance: Callable[[int], float]) -> int | None:
    """The smallest number of runs, at least two, at which an increasing probability reaches POWER; None: more than
    MOST_SEEDS.
    """
    low, high = 1, 2
    while chance(high) < POWER:  # upwards, since many runs take long to simulate
        if high == MOST_SEEDS:
            return None
        low, high = high, min(2 * high, MOST_SEEDS)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if chance(middle) >= POWER else (middle, high)
    return high


def interval_power(lead: float, margin: float | None, error: float, degrees: float) -> float:
    """The probability that an interval with this error and these degrees of freedom lies above 0, or inside the margin,
    if the difference is `lead`: averaged over the independent distributions of the mean and of its estimated error.
    """
    half = t_quantile(degrees) * _relative_errors(round(degrees, 2))
    if margin is None:
        return float(ndtr(lead / error - half).mean())
    room = ndtr((margin - lead) / error - half) - ndtr(-(margin + lead) / error + half)
    return float(np.maximum(room, 0.0).mean())


@lru_cache(maxsize=1024)
def _relative_errors(degrees: float) -> FloatArray:
    """Ratios of estimated to true standard error for these degrees of freedom, at points of equal probability."""
    places = (np.arange(_PLACES) + 0.5) / _PLACES
    ratios: FloatArray = np.sqrt(2 * gammaincinv(degrees / 2, places) / degrees)
    return ratios


# The power of a planned sweep's claims, by simulation, before anything is trained.
#
# A simulated study draws each run from a normal distribution around the assumed score of its model and variant, and is
# judged as in `verdicts`: differences paired by seed or by Welch, every comparison of the claim at ONE_SIDED_LEVEL.
# Only claims about scores have a planned power: collapses and other quantities cannot be assumed before training.

Scores = Mapping[str, Mapping[str, float]]  # model -> variant -> true score, a fraction


@dataclass(frozen=True)
class PlannedPower:
    """`power`: the probability that `claim` comes out supported with `seeds` runs of each variant and model, if the
    assumed truth holds and runs have the standard deviation `deviation` (a fraction; for a claim about the surrogate's
    error, of a seed's log ratio). `needed`: the number of seeds at which the power reaches POWER; None if that takes
    more than MOST_SEEDS or never happens. A sequential claim is looked at after each of `seeds`, at most, and takes the
    mean of `expected`; `needed` is that of a claim which is judged once.
    """

    claim: Claim
    comparisons: int
    deviation: float
    seeds: int
    power: float
    needed: int | None
    expected: float | None = None


@dataclass(frozen=True)
class Design:
    """How the runs of a plan are compared: `paired` by seed or not; `common`: and the seeds are the units over models,
    too (`paired.over_models`). `lengths`: model -> response length in tokens, for claims about a trend with length.
    `correlation`: between the runs of a seed on a model.
    """

    paired: bool = True
    common: bool = False
    correlation: float = 0.0
    lengths: Mapping[str, float] = field(default_factory=dict)


def planned_power(
    claim: Claim, scores: Scores, deviation: float, seeds: int, design: Design | None = None
) -> PlannedPower:
    """The power of a claim with `seeds` >= 1 runs of each cell; `design` None: paired by seed.

    Raises ValueError if nothing can be compared.
    """
    compared = [(model, *pair) for model in scores for pair in pairs(claim, tuple(scores[model]))]
    if not compared or not deviation > 0:
        raise ValueError(f"{claim.key}: nothing to compare, or a deviation of {deviation}")
    how = design or Design()
    together = claim.over_models or claim.kind is Kind.TREND
    comparisons = len({(ours, theirs) for _, ours, theirs in compared}) if together else len(compared)
    once = replace(claim, sequential=False)
    power, expected = _simulated(claim, scores, deviation, seeds, how)
    return PlannedPower(
        claim=claim,
        comparisons=comparisons,
        deviation=deviation,
        seeds=seeds,
        power=power,
        needed=fewest(lambda n: _simulated(once, scores, deviation, n, how)[0]),
        expected=expected if claim.sequential else None,
    )


def planned_error_power(claim: Claim, comparisons: int, deviation: float, seeds: int) -> PlannedPower:
    """The power of a claim about errors, by Student's t, if a seed's log ratio has this standard deviation."""
    enough = max(seeds, 2)
    comparison = Estimate(0.0, enough, deviation / math.sqrt(enough), enough - 1)
    reached = reached_power(claim, [comparison] * comparisons, enough)
    assert reached is not None, "there are comparisons"
    return PlannedPower(
        claim, comparisons, deviation, seeds, reached.power if seeds > 1 else 0.0, reached.needed
    )


def _simulated(
    claim: Claim, scores: Scores, deviation: float, seeds: int, design: Design
) -> tuple[float, float]:
    """The share of simulated studies in which all comparisons hold, 0 for a single seed, which shows no spread; and the
    mean number of seeds: of a sequential claim up to the look that decides it.
    """
    if seeds < (schema.FIRST_LOOK if claim.sequential else 2):
        return 0.0, seeds
    rng, of_seeds = np.random.default_rng(seeds), np.random.default_rng([seeds, 1])
    sides: dict[tuple[str, str], dict[str, tuple[FloatArray, FloatArray]]] = defaultdict(dict)
    for model, of_model in scores.items():
        shared = math.sqrt(design.correlation) * of_seeds.normal(0.0, deviation, (STUDIES, seeds))
        of_run = math.sqrt(1 - design.correlation) * deviation
        compared = pairs(claim, tuple(of_model))
        runs = {
            variant: rng.normal(score, of_run, (STUDIES, seeds)) + shared
            for variant, score in of_model.items()
            if any(variant in pair for pair in compared)
        }
        for variant, against in compared:
            if not {variant, against} <= runs.keys():
                return 0.0, seeds  # like a verdict that lacks the runs of a side
            sides[variant, against][model] = runs[variant], runs[against]
    trend = claim.kind is Kind.TREND
    groups = []
    for of_models in sides.values():
        together = claim.over_models or trend
        for models in [list(of_models)] if together else [[model] for model in of_models]:
            mean = (1 / len(models),) * len(models)
            weights = slope_weights([design.lengths[model] for model in models]) if trend else mean
            if weights is None or (trend and len(models) < FEWEST_MODELS):
                return 0.0, seeds  # all response lengths are equal, or there is no interval
            groups.append((weights, [of_models[model] for model in models]))
    level = look_level(seeds) if claim.sequential else 1 - 2 * ONE_SIDED_LEVEL
    if claim.sequential:
        design = replace(design, paired=True, common=True)
    supported, open_ = np.zeros(STUDIES, dtype=bool), np.ones(STUDIES, dtype=bool)
    taken = np.zeros(STUDIES)
    for n in range(schema.FIRST_LOOK if claim.sequential else seeds, seeds + 1):
        holds, refuted = open_.copy(), np.zeros(STUDIES, dtype=bool)
        for weights, group in groups:
            seen = [(ours[:, :n], theirs[:, :n]) for ours, theirs in group]
            value, half = _interval(seen, weights, design, trend, level)
            # One of several is refuted at a level as many times smaller (Holm).
            wide = half
            if claim.sequential and len(groups) > 1:
                _, wide = _interval(seen, weights, design, trend, 1 - (1 - level) / len(groups))
            if claim.margin is None:
                holds &= value - half >= 0
                refuted |= value + wide < claim.smallest
            else:
                holds &= (value - half >= -claim.margin) & (value + half <= claim.margin)
                refuted |= (value - wide > claim.margin) | (value + wide < -claim.margin)
        supported |= holds
        taken[open_] = n
        open_ &= ~(holds | refuted)
    return float(supported.mean()), float(taken.mean())


def shown_leads(deviation: float, seeds: int, paired: bool) -> FloatArray:
    """Of simulated studies of two methods with `seeds` >= 2 runs each, of this standard deviation: the smallest true
    lead that each would show.
    """
    sides = np.random.default_rng(seeds).normal(0.0, deviation, (2, 10 * STUDIES, seeds))
    value, half = _interval([(sides[0], sides[1])], (1.0,), Design(paired), False, 1 - 2 * ONE_SIDED_LEVEL)
    return half - value


def _interval(
    sides: Sequence[tuple[FloatArray, FloatArray]],
    weights: Sequence[float],
    design: Design,
    trend: bool,
    level: float,
) -> tuple[FloatArray, FloatArray]:
    """The weighted sum over models of the differences of two variants, [study, seed] each, and half the widths of its
    interval, in every study. Those of a trend are as in `paired.slope`.
    """
    seeds = sides[0][0].shape[1]
    differences = np.stack([ours - theirs for ours, theirs in sides])  # [model, study, seed]
    factors = np.array(weights)[:, None]
    value: FloatArray = (factors * differences.mean(2)).sum(0)
    if design.common:
        square, degrees = (
            np.tensordot(weights, differences, 1).var(1, ddof=1) / seeds,
            np.full(len(value), seeds - 1.0),
        )
    else:
        groups = [differences] if design.paired else [np.stack(side) for side in zip(*sides, strict=True)]
        parts = factors**2 * np.stack([group.var(2, ddof=1) / seeds for group in groups])
        square = parts.sum((0, 1))
        degrees = square**2 / (parts**2 / (seeds - 1)).sum((0, 1))  # Satterthwaite's, as Welch's are
    half = stdtrit(degrees, (1 + level) / 2) * np.sqrt(square)
    if trend:
        squares = (factors**2).sum()
        residuals = differences.mean(2) - differences.mean((0, 2)) - factors * value / squares
        variance = (residuals**2).sum(0) / (len(weights) - 2) * squares
        half = np.maximum(half, stdtrit(len(weights) - 2, (1 + level) / 2) * np.sqrt(variance))
    return value, half
