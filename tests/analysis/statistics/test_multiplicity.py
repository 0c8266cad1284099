"""Holm's adjustment against the procedure as published."""

from hypothesis import given
from hypothesis import strategies as st

from cppo_lab.analysis.statistics.estimate import holm
from tests.oracles.statistics import holm_rejections

P_VALUES = st.lists(st.floats(0, 1), max_size=12)


@given(P_VALUES, st.sampled_from([0.01, 0.05, 0.3]))
def test_rejections(p_values: list[float], level: float) -> None:
    adjusted = holm(p_values)
    near = any(abs(p - level) < 1e-12 for p in adjusted)  # level / m is rounded in one, m p in the other
    assert near or [p <= level for p in adjusted] == holm_rejections(p_values, level)


@given(P_VALUES, st.randoms())
def test_order_of_the_p_values_does_not_matter(p_values: list[float], random) -> None:
    order = random.sample(range(len(p_values)), len(p_values))
    shuffled = holm([p_values[index] for index in order])
    assert list(shuffled) == [holm(p_values)[index] for index in order]
    assert all(p <= q <= 1 for p, q in zip(p_values, holm(p_values), strict=True))
