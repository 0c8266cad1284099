"""Whether a lead grows with the response length: its slope over the models of a sweep."""

import math
from collections.abc import Mapping, Sequence

from cppo_lab.analysis.statistics.estimate import Estimate, SlopeEstimate, estimate
from cppo_lab.analysis.statistics.paired import Difference, over_models
from cppo_lab.analysis.statistics.values import RunValues

LEAST = 3  # models: two always lie on a line
TOO_FEW = "two models do not show how much leads scatter around a line"
_ALIKE = 1e-6  # lengths closer than this share of a doubling are one


def slope_weights(lengths: Sequence[float]) -> tuple[float, ...] | None:
    """The least-squares weights of values at these lengths for the slope over log2 of the length; None if all lengths
    are equal.
    """
    places = [math.log2(length) for length in lengths]
    mean = math.fsum(places) / len(places) if places else 0.0
    squares = math.fsum((place - mean) ** 2 for place in places)
    return tuple((place - mean) / squares for place in places) if squares > _ALIKE**2 else None


def slope(
    parts: Sequence[Difference], lengths: Mapping[str, float], runs: tuple[RunValues, ...]
) -> Difference | None:
    """The slope of the differences between two variants, one per model, over log2 of the models' `lengths` (tokens);
    None if all models have the same length. `n` is the number of models.

    Models differ in more than response length, so leads scatter around a line even if every one is known exactly. The
    interval is the wider one of two: by the spread over seeds (`paired.over_models`), and by the
    residuals of the line, with the number of models less 2 as degrees of freedom. The first is too narrow where leads
    differ between models for other reasons, the second where one model's lead is far less certain than the others'.
    There is none for fewer than LEAST models.
    """
    weights = slope_weights([lengths[part.model] for part in parts])
    if weights is None:
        return None
    seeds = over_models(parts, weights, runs)
    assert seeds is not None, "there are parts"
    first = parts[0]
    found = _wider(seeds, _by_residuals([part.estimate.value for part in parts], weights))
    ours, theirs = sum(part.ours for part in parts), sum(part.theirs for part in parts)
    paired = all(part.paired for part in parts)
    return Difference("", first.variant, first.against, first.score, found, paired, ours, theirs, None)


def _by_residuals(values: Sequence[float], weights: Sequence[float]) -> Estimate:
    """The least-squares slope with the error that the residuals of the line give it."""
    count = len(values)
    value = math.fsum(weight * one for weight, one in zip(weights, values, strict=True))
    if count < LEAST:
        return Estimate(value, count, unknown=TOO_FEW)
    mean, squares = math.fsum(values) / count, math.fsum(weight**2 for weight in weights)
    # A weight is the place of a model from the mean place, times the sum of the squared weights.
    residuals = (one - mean - value * weight / squares for weight, one in zip(weights, values, strict=True))
    variance = math.fsum(residual**2 for residual in residuals) / (count - 2)
    return estimate(value, count, math.sqrt(variance * squares), count - 2)


def _wider(seeds: Estimate, models: Estimate) -> SlopeEstimate:
    unknown = seeds.unknown or (models.unknown if models.n < LEAST else "")
    if unknown:
        return SlopeEstimate(seeds.value, models.n, unknown=unknown)
    wider = max(seeds, models, key=lambda one: one.half or 0.0)
    return SlopeEstimate(seeds.value, models.n, wider.error, wider.degrees, "", seeds, models)
