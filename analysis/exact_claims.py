"""Hypotheses about the surrogate's error, judged as claims about scores are (`statistics/verdicts.py`).

The compared quantity is an advantage: minus the log of the ratio of errors at equal movement (`exact_study`), or minus
the change of that log when the horizon is ten times as long. Sizes of claims are in percent of the error: an advantage
of 10 percent is a ratio of 0.9. Each comparison has two one-sided tests at level 0.025:

    superiority   for: the advantage is 0 or less           against: it is `smallest` or more
    equivalence   for: it is outside the margin (TOST)      against: it is inside the margin
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from cppo_lab.analysis.exact_study import (
    Condition,
    Curves,
    EqualIn,
    mean_estimate,
    pairs_of,
    slope_estimate,
    without_horizon,
)
from cppo_lab.analysis.statistics.estimate import Estimate, holm
from cppo_lab.analysis.statistics.power import ReachedPower, reached_power
from cppo_lab.analysis.statistics.verdicts import VerdictOutcome, outcome_of, outcome_of_all


@dataclass(frozen=True)
class ErrorClaim:
    """One hypothesis: each variant of `better` has a smaller error at equal movement than each of `than`; or, with
    `within`, an error that differs by less than that.

    `slope`: compare the change of the ratio with the horizon, not the ratio itself (mean over the horizons). `models`:
    the models it is about, () for all; `over_models`: test their mean once. `smallest`, `within`: fractions of the
    error. `seeds`: seeds of the runs that test it. `after`: key of the hypothesis that must be supported first.
    `tests`: (model, variant, seed) of all runs that are declared to test it; empty if that is not known.
    """

    key: str
    text: str
    sweep: str
    better: tuple[str, ...]
    than: tuple[str, ...]
    slope: bool
    models: tuple[str, ...]
    over_models: bool
    smallest: float
    within: float | None
    after: str | None
    seeds: tuple[int, ...]
    tests: frozenset[tuple[str, str, int]] = frozenset()

    @property
    def variants(self) -> tuple[str, ...]:
        """All variants that are compared."""
        return self.better + self.than

    @property
    def lead(self) -> float:
        """The true advantage at which its power is reported: twice the smallest that counts, on the log scale; 0 for an
        equivalence.
        """
        return 2 * log_size(self.smallest) if self.within is None else 0.0

    @property
    def margin(self) -> float | None:
        """The margin of an equivalence on the scale of the comparisons, None for a superiority."""
        return None if self.within is None else log_size(self.within)

    def is_tested_by(self, model: str, variant: str, seed: int) -> bool:
        """Whether a run is one of those that test the claim; `variant` may have its horizon in its label."""
        of_model = not self.models or model in self.models
        return of_model and seed in self.seeds and without_horizon(variant) in self.variants


@dataclass(frozen=True)
class ErrorComparison:
    """Two variants on one model, or averaged over several (`model` is then ""). `advantage`: see the module docstring;
    None if they cannot be compared. `by_return`: the advantage when steps must also have an equal return before the
    update.
    """

    model: str
    variant: str
    against: str
    advantage: Estimate | None
    by_return: Estimate | None
    p_for: float | None
    p_against: float | None
    outcome: VerdictOutcome


@dataclass(frozen=True)
class ErrorVerdict:
    """The verdict on one hypothesis. `closed_by`: the hypothesis that had to be supported first and is not, which makes
    this outcome exploratory. `provisional`: runs that test it are missing. `power`: of the runs at `ErrorClaim.lead`.
    """

    claim: ErrorClaim
    outcome: VerdictOutcome
    comparisons: tuple[ErrorComparison, ...]
    provisional: bool
    power: ReachedPower | None
    closed_by: ErrorClaim | None = None

    @property
    def deciding(self) -> ErrorComparison | None:
        """The comparison that decides the outcome: the strongest refutation if the hypothesis is not supported, the one
        that is most certainly small if it is small, else the least certain comparison, or one without a number.
        """
        if self.outcome in (VerdictOutcome.NOT_SUPPORTED, VerdictOutcome.SMALL):
            alike = [one for one in self.comparisons if one.outcome is self.outcome]
            return min(alike, key=lambda one: 1.0 if one.p_against is None else one.p_against)
        return max(self.comparisons, key=lambda one: 2.0 if one.p_for is None else one.p_for, default=None)


def judge_errors(
    claims: Sequence[ErrorClaim], curves: Mapping[Condition, Curves], missing: Mapping[str, bool]
) -> tuple[ErrorVerdict, ...]:
    """Judge the hypotheses, in their order. `curves` may hold runs of other seeds, which are ignored. `missing`: by
    key, whether runs that test the hypothesis have no result yet.
    """
    found: dict[str, ErrorVerdict] = {}
    for claim in claims:
        own = {c: of_seeds(one, claim.seeds) for c, one in curves.items() if c.variant in claim.variants}
        comparisons = _compared(claim, {c: one for c, one in own.items() if one.seeds})
        estimates = [one.advantage for one in comparisons]
        found[claim.key] = ErrorVerdict(
            claim=claim,
            outcome=outcome_of_all([one.outcome for one in comparisons]),
            comparisons=comparisons,
            provisional=missing.get(claim.key, False),
            power=reached_power(claim, estimates, min((one.n for one in estimates if one), default=0)),
        )
    return tuple(replace(one, closed_by=_closed_by(one.claim, found)) for one in found.values())


def _closed_by(claim: ErrorClaim, found: Mapping[str, ErrorVerdict]) -> ErrorClaim | None:
    """The first claim that must be supported before this one and is not."""
    if claim.after is None:
        return None
    before = found[claim.after]
    first = _closed_by(before.claim, found)
    return first or (None if before.outcome.holds else before.claim)


def of_seeds(curves: Curves, seeds: Sequence[int]) -> Curves:
    """The runs with these seeds."""
    rows = [i for i, seed in enumerate(curves.seeds) if seed in seeds]
    parts = {name: value[rows] for name, value in vars(curves).items() if name != "seeds"}
    return Curves(tuple(curves.seeds[i] for i in rows), **parts)


def _compared(claim: ErrorClaim, curves: Mapping[Condition, Curves]) -> tuple[ErrorComparison, ...]:
    models = claim.models or tuple(dict.fromkeys(c.model for c in curves))
    groups = [("", models)] if claim.over_models else [(model, (model,)) for model in models]
    compared = [
        _comparison(claim, curves, model, own, one, other)
        for one in claim.better
        for other in claim.than
        for model, own in groups
    ]
    adjusted = holm([1.0 if one.p_against is None else one.p_against for one in compared])
    return tuple(
        replace(one, outcome=outcome_of(one.p_for, None if one.p_against is None else p))
        for one, p in zip(compared, adjusted, strict=True)
    )


def _comparison(
    claim: ErrorClaim,
    curves: Mapping[Condition, Curves],
    model: str,
    models: Sequence[str],
    one: str,
    other: str,
) -> ErrorComparison:
    """One comparison, without its outcome, which depends on all comparisons of the claim."""
    found = _advantage(claim, curves, models, one, other, EqualIn.MOVEMENT)
    again = _advantage(claim, curves, models, one, other, EqualIn.RETURN)
    p_for, p_against = _p_for(claim, found), _p_against(claim, found)
    return ErrorComparison(model, one, other, found, again, p_for, p_against, VerdictOutcome.UNDECIDED)


def _advantage(
    claim: ErrorClaim,
    curves: Mapping[Condition, Curves],
    models: Sequence[str],
    one: str,
    other: str,
    equal: EqualIn,
) -> Estimate | None:
    pairs = [pairs_of(curves, model, one, other, equal) for model in models]
    if not all(pairs):
        return None
    found = slope_estimate(pairs) if claim.slope else mean_estimate(pairs)
    return None if found is None else replace(found, value=-found.value)


def planned_error_power(claim: ErrorClaim, comparisons: int, spread: float, seeds: int) -> ReachedPower:
    """The power of a claim before its runs: with `seeds` seeds, if the log ratio of one seed has the standard deviation
    `spread`.
    """
    enough = max(seeds, 2)
    one = Estimate(0.0, enough, spread / math.sqrt(enough), enough - 1)
    found = reached_power(claim, [one] * comparisons, enough)
    assert found is not None, "there are comparisons"
    return found if seeds == enough else replace(found, power=0.0, runs=seeds)


def log_size(fraction: float) -> float:
    """An advantage of a fraction of the error on the scale of the comparisons: 0.1 -> -log 0.9."""
    return -math.log1p(-fraction)


def _p_for(claim: ErrorClaim, found: Estimate | None) -> float | None:
    if found is None:
        return None
    if claim.margin is None:
        return found.p_above(0.0)
    above, below = found.p_above(-claim.margin), found.p_below(claim.margin)
    return None if above is None or below is None else max(above, below)


def _p_against(claim: ErrorClaim, found: Estimate | None) -> float | None:
    if found is None:
        return None
    if claim.margin is None:
        return found.p_below(log_size(claim.smallest))
    above, below = found.p_above(claim.margin), found.p_below(-claim.margin)
    return None if above is None or below is None else min(above, below)
