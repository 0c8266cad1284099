"""What a search maximises, against values by hand."""

import pytest

from cppo_lab.search.study import values_of

WHOLE = [(0, 0.1), (2, 0.5), (4, 0.3), (6, 0.4), (8, 0.6)]
COLLAPSED = [(0, 0.2), (2, 0.6), (4, 0.1)]


@pytest.mark.parametrize(
    "objective, curves, value",
    [
        ("final_score", [WHOLE], (0.3 + 0.4 + 0.6) / 3),
        ("best_score", [WHOLE], 0.6),
        ("mean_score", [WHOLE], 1.9 / 5),
        ("stability", [WHOLE], 0.8),
        ("final_score", [[(0, 0.1), (8, 0.5)]], 0.3),  # fewer than three validations: all of them
        ("stability", [[(0, 0.1), (2, 0.2)]], 1.0),
        # A collapse at step 4 of 8: steps 6 and 8 count as its last score.
        ("final_score", [COLLAPSED], 0.1),
        ("mean_score", [COLLAPSED], (0.2 + 0.6 + 0.1 * 3) / 5),
        ("stability", [COLLAPSED], 0.5),
        ("final_score", [WHOLE, COLLAPSED], ((0.3 + 0.4 + 0.6) / 3 + 0.1) / 2),
    ],
)
def test_objectives(objective: str, curves: list[list[tuple[int, float]]], value: float) -> None:
    assert values_of([objective], curves, t_stop=8, every=2) == [pytest.approx(value)]
