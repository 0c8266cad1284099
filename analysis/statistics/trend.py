"""Whether a lead grows with the response length: its slope over the models of a sweep."""

import math
from collections.abc import Mapping, Sequence

from cppo_lab.analysis.statistics.estimate import Estimate, combine
from cppo_lab.analysis.statistics.paired import Difference

_ALIKE = 1e-6  # lengths closer than this share of a doubling are one


def slope_weights(lengths: Sequence[float]) -> tuple[float, ...] | None:
    """The least-squares weights of values at these lengths for the slope over log2 of the length; None if all lengths
    are equal.
    """
    places = [math.log2(length) for length in lengths]
    mean = math.fsum(places) / len(places) if places else 0.0
    squares = math.fsum((place - mean) ** 2 for place in places)
    return tuple((place - mean) / squares for place in places) if squares > _ALIKE**2 else None


def slope(parts: Sequence[Difference], lengths: Mapping[str, float]) -> Difference | None:
    """The slope of the differences between two variants, one per model, over log2 of the models' `lengths` (tokens).

    The slope is a weighted sum of the differences, which are independent estimates. It takes two or more models; None
    if all have the same length. `n` is the number of models. Models differ in more than response length, so the trend
    is observational.
    """
    weights = slope_weights([lengths[part.model] for part in parts])
    if weights is None:
        return None
    found = combine([part.estimate for part in parts], weights)
    assert found is not None, "there are parts"
    first = parts[0]
    estimate = Estimate(found.value, len(parts), found.error, found.degrees, found.unknown)
    ours, theirs = sum(part.ours for part in parts), sum(part.theirs for part in parts)
    paired = all(part.paired for part in parts)
    return Difference("", first.variant, first.against, first.score, estimate, paired, ours, theirs, None)
