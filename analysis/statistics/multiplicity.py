"""Many comparisons at once: Holm's adjustment of their p-values.

Holm (1979) holds the chance of any false finding at the level for every dependence between the comparisons, and those
here depend (they share a baseline). A bootstrap of the largest t would be sharper with many runs, but resampling three
to five runs gets the tail of that largest t wrong (docs/statistics.md), which is why it is not used.
"""

from collections.abc import Sequence


def holm(p_values: Sequence[float]) -> tuple[float, ...]:
    """The adjusted p-values in the order given: reject those up to the level."""
    order = sorted(range(len(p_values)), key=lambda index: p_values[index])
    adjusted = [0.0] * len(p_values)
    largest = 0.0
    for place, index in enumerate(order):
        largest = max(largest, min(1.0, (len(p_values) - place) * p_values[index]))
        adjusted[index] = largest
    return tuple(adjusted)
