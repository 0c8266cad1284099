"""The hypotheses of a sweep file as claims, which `cppo report` judges and `cppo plan --power` simulates."""

import itertools
from collections.abc import Collection
from dataclasses import replace

from cppo_lab.analysis.exact_claims import ErrorClaim
from cppo_lab.analysis.statistics.claims import Claim, Kind
from cppo_lab.analysis.statistics.values import Score
from cppo_lab.sweep.enumerate import RunPlace
from cppo_lab.sweep.file import ERRORS, Hypothesis, Sweep


def score_claims(sweep: Sweep, in_study: bool, declared: Collection[RunPlace] = ()) -> tuple[Claim, ...]:
    """The hypotheses about scores. In a study the keys have the sweep's name. `declared`: all runs of the sweep."""
    claims = (
        Claim(
            key=_key(sweep, key, in_study),
            text=one.claim,
            sweep=sweep.name,
            kind=_kind(one),
            tiers=(one.better, one.than),
            margin=None if one.within is None else one.within / 100,
            over_models=one.models == "mean",
            after=None if one.after is None else _key(sweep, one.after, in_study),
            smallest=one.smallest / 100,
            score=Score(one.outcome),
            seeds=one.test_seeds,
        )
        for key, one in sweep.hypotheses.items()
        if one.outcome not in ERRORS
    )
    return tuple(replace(one, tests=_tests(one, declared)) for one in claims)


def error_claims(sweep: Sweep, in_study: bool, declared: Collection[RunPlace] = ()) -> tuple[ErrorClaim, ...]:
    """The hypotheses about the surrogate's error, which only the exact core's runs have."""
    claims = (
        ErrorClaim(
            key=_key(sweep, key, in_study),
            text=one.claim,
            sweep=sweep.name,
            better=one.better,
            than=one.than,
            slope=one.outcome == "error_slope",
            models=one.only or (),
            over_models=one.models == "mean",
            smallest=one.smallest / 100,
            within=None if one.within is None else one.within / 100,
            after=None if one.after is None else _key(sweep, one.after, in_study),
            seeds=one.test_seeds,
        )
        for key, one in sweep.hypotheses.items()
        if one.outcome in ERRORS
    )
    return tuple(replace(one, tests=_tests(one, declared)) for one in claims)


def _tests(claim: Claim | ErrorClaim, declared: Collection[RunPlace]) -> frozenset[RunPlace]:
    tests = {place for place in declared if claim.is_tested_by(*place)}
    # A test seed that the file does not declare is missing for each cell.
    missing = set(claim.seeds or ()) - {seed for _, _, seed in declared} if declared else set()
    cells = {(model, variant) for model, variant, _ in declared}
    tests |= {
        (*cell, seed) for cell, seed in itertools.product(cells, missing) if claim.is_tested_by(*cell, seed)
    }
    return frozenset(tests)


def _key(sweep: Sweep, key: str, in_study: bool) -> str:
    """The paper's claims have keys too, and the sweeps of a study may use the same."""
    return f"hypothesis {sweep.name} {key}" if in_study else f"hypothesis {key}"


def _kind(one: Hypothesis) -> Kind:
    if one.models == "trend":
        return Kind.TREND
    return Kind.SUPERIORITY if one.within is None else Kind.EQUIVALENCE
