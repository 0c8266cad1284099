"""Hypotheses of a sweep file, stated before its runs: claims, how each is tested, and the seeds that test it."""

import json
from collections.abc import Mapping, Sequence
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from cppo_lab.spec import Spec
from cppo_lab.spec.base import Name, Positive, Seed, canonical, digest

Names = Annotated[tuple[str, ...], Field(min_length=1)]
Seeds = Annotated[tuple[Seed, ...], Field(min_length=1)]
EXACT = "exact"  # the core that computes the surrogate's error
ERRORS = ("error", "error_slope")  # outcomes that no other core has
MOST_LISTED = 4  # changes of a statement that are listed one by one


class Hypothesis(Spec):
    """One claim about the variants of a sweep.

    Each of `better` is above each of `than`; with `within` (points) they differ by less than that instead. `outcome` is
    the deciding score: final (mean of the last part of the window), area, best or corrected; or, on the exact core,
    error (ratio of the surrogate's mean errors at equal movement, averaged over the horizons) or error_slope (the
    change of that ratio when the horizon is ten times as long), for which lower is better. `smallest` (points; for an
    error, percent): an advantage below it counts as none. `models`: whether the mean over the models is tested once, or
    each model separately, or (trend) the growth of the advantage per doubling of the response length, the slope over
    models that differ in it; `smallest` is then in points per doubling. `only`: a subset of the models, for outcomes
    that are errors. `after`: the hypothesis that has to be supported first. Only runs with `test_seeds` test it;
    `selection_seeds` are those with which settings were selected.
    """

    claim: Annotated[str, Field(min_length=1, max_length=300)]
    better: Names
    than: Names
    outcome: Literal["final", "area", "best", "corrected", "error", "error_slope"] = "final"
    models: Literal["mean", "each", "trend"] = "each"
    only: Names | None = None
    smallest: Positive = 1.0
    within: Positive | None = None
    after: Name | None = None
    test_seeds: Seeds
    selection_seeds: tuple[Seed, ...] = ()

    @model_validator(mode="after")
    def _check(self) -> Self:
        if both := sorted(set(self.better) & set(self.than)):
            raise ValueError(f"{both[0]!r} is in `better` and in `than`: remove it from one")
        if seeds := sorted(set(self.test_seeds) & set(self.selection_seeds)):
            raise ValueError(
                f"seed {seeds[0]} is in test_seeds and in selection_seeds: a seed used for selection cannot test"
            )
        for name, values in (("better", self.better), ("than", self.than), ("test_seeds", self.test_seeds)):
            if twice := [value for value in values if values.count(value) > 1]:
                raise ValueError(f"{name}: {twice[0]!r} stands there twice: remove one")
        if self.only is not None and self.outcome not in ERRORS:
            raise ValueError(
                f"only={list(self.only)} with outcome={self.outcome!r}: it is for {' and '.join(ERRORS)}"
            )
        if self.models == "trend" and (self.within is not None or self.outcome in ERRORS):
            raise ValueError(
                "models=trend is for scores, without `within`"
                + (": outcome=error_slope is the trend of an error" if self.outcome in ERRORS else "")
            )
        if self.outcome in ERRORS and max(self.smallest, self.within or 0.0) >= 100:
            raise ValueError(
                f"smallest and within are percent of an error for outcome={self.outcome!r}: below 100"
            )
        if max(self.smallest, self.within or 0.0) > 100:
            raise ValueError("smallest and within are points of a score (0 to 100): at most 100")
        return self

    @property
    def variants(self) -> tuple[str, ...]:
        """All variants that are compared."""
        return self.better + self.than


Hypotheses = dict[Name, Hypothesis]
Pairing = Literal["seed", "none"]


class _Stated(Spec):
    """Everything that identifies a hypothesis: changing any of it makes a different one. Fields added later are None if
    unused, and then omitted from the text.
    """

    hypotheses: dict[str, Hypothesis]
    models: dict[str, tuple[str, ...]]
    variants: dict[str, dict[str, str]]
    axes: dict[str, dict[str, tuple[str, ...]]]
    exclude: tuple[dict[str, tuple[str, ...]], ...]
    pairing: Pairing | None = None
    overrides: tuple[str, ...] | None = None


def statement(
    hypotheses: Mapping[str, Hypothesis],
    models: Mapping[str, tuple[str, ...]],
    variants: Mapping[str, Mapping[str, object]],
    axes: Mapping[str, Mapping[str, tuple[object, ...]]],
    exclude: Sequence[Mapping[str, tuple[object, ...]]],
    pairing: Pairing | None = None,
    overrides: Sequence[str] = (),
) -> tuple[str, str]:
    """The hypotheses of a sweep and the definition of its variants as one JSON text, and its digest. `overrides`:
    command-line overrides that change the runs.
    """
    stated = _Stated(
        hypotheses=dict(hypotheses),
        models=dict(models),
        variants={name: {key: repr(value) for key, value in keys.items()} for name, keys in variants.items()},
        axes={
            key: {core: tuple(map(repr, values)) for core, values in lists.items()}
            for key, lists in axes.items()
        },
        exclude=tuple(
            {key: tuple(map(repr, values)) for key, values in conditions.items()} for conditions in exclude
        ),
        pairing=pairing,
        overrides=tuple(sorted(overrides)) or None,
    )
    text = canonical(stated)
    return text, digest(text)


def differences(old: str, new: str) -> tuple[str, ...]:
    """What differs between two statements, as `hypotheses.above.smallest: 2.0 -> 1.0`.

    At most MOST_LISTED parts, and a count of the others. A text that is no JSON object has no parts.
    """
    before, after = _parts(old), _parts(new)
    found = [
        f"{key}: {before.get(key, 'absent')} -> {after.get(key, 'absent')}"
        for key in sorted(before.keys() | after.keys())
        if before.get(key) != after.get(key)
    ]
    more = len(found) - MOST_LISTED
    return (*found[:MOST_LISTED], *([f"{more} more"] if more > 0 else []))


def _parts(text: str) -> dict[str, str]:
    """Dotted key -> value of everything in a JSON object; a list is one value."""
    try:
        values = json.loads(text)
    except ValueError:
        return {}
    found: dict[str, str] = {}
    left = list(values.items()) if isinstance(values, dict) else []
    while left:
        key, value = left.pop()
        if isinstance(value, dict):
            left += [(f"{key}.{name}", inner) for name, inner in value.items()]
        else:
            found[key] = value if isinstance(value, str) else json.dumps(value)
    return found


def check_hypotheses(
    hypotheses: Mapping[str, Hypothesis],
    variants: Mapping[str, object],
    models: Mapping[str, tuple[str, ...]],
) -> None:
    """Raises ValueError for a variant or model that the sweep does not have, an outcome that its core does not compute,
    a trend over fewer than three models, or a circular order.
    """
    for key, one in hypotheses.items():
        if one.models == "trend" and max(map(len, models.values())) < 3:
            raise ValueError(
                f"{key}: models=trend needs three models or more, of different response lengths: two do not show how "
                "much leads scatter around a line"
            )
        if one.outcome in ERRORS:
            _check_models(key, one, models)
        for name in one.variants:
            # With axes, a run's variant has axis values after its name in the file: `cppo delta=0.1`.
            if name not in variants and name.split(" ")[0] not in variants:
                raise ValueError(f"{key}: variant {name!r} is not in variants (valid: {', '.join(variants)})")
        seen = {key}
        before = one.after
        while before is not None:
            if before not in hypotheses:
                raise ValueError(f"{key}: after={before!r} is no hypothesis (valid: {', '.join(hypotheses)})")
            if (hypotheses[before].outcome in ERRORS) != (one.outcome in ERRORS):
                raise ValueError(f"{key}: after={before!r}: an error and a score do not wait for each other")
            if before in seen:
                raise ValueError(f"{key}: after={one.after!r} leads back to it: name one that comes before")
            seen.add(before)
            before = hypotheses[before].after


def _check_models(key: str, one: Hypothesis, models: Mapping[str, tuple[str, ...]]) -> None:
    if set(models) != {EXACT}:
        raise ValueError(
            f"{key}: outcome={one.outcome!r} is computed by core={EXACT} alone: name the models as "
            f"`models: {{{EXACT}: [...]}}`"
        )
    for name in one.only or ():
        if name not in models[EXACT]:
            raise ValueError(f"{key}: model {name!r} is not in models (valid: {', '.join(models[EXACT])})")
