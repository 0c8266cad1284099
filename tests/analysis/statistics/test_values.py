"""The four scores of a run on curves small enough to check by eye."""

import pytest

from cppo_lab import schema
from cppo_lab.analysis.scoring import Scoreboard, score_sweep
from cppo_lab.analysis.statistics.values import RunValues, Score, by_seed, run_values
from tests.analysis.made_sweeps import MadeRun, both, expect, make_data


def board(*runs: MadeRun, partial: bool = False) -> Scoreboard:
    return score_sweep(make_data(runs), expect(runs), partial)


def values(run: MadeRun) -> RunValues:
    [found] = run_values(board(run))
    return found


@pytest.mark.parametrize(
    ("curve", "expected"),
    [
        # T_stop 20: the last 30 % begins after 14, so it holds 16, 18 and 20.
        ({0: 0.2, 6: 0.9, 8: 0.1, 10: 0.1}, 0.1),  # broke before: all three count as it ended
        ({0: 0.2, 6: 0.9, 14: 0.9, 16: 0.3, 18: 0.1}, (0.3 + 0.1 + 0.1) / 3),  # inside: one is missing
        ({0: 0.2, 6: 0.9, 14: 0.9, 16: 0.9, 18: 0.06, 20: 0.09}, (0.9 + 0.06 + 0.09) / 3),  # none is missing
        ({0: 0.2, 2: 0.8, 4: 0.85}, 0.2),  # a gradient broke while the score was high: back where it began
    ],
)
def test_a_collapsed_run_counts_with_the_score_it_ended_at(curve: dict[int, float], expected: float) -> None:
    found = values(MadeRun("a", scores=both(curve), status=schema.COLLAPSED, t_stop=20))
    assert found.collapsed
    assert found.best == pytest.approx(max(curve.values()))
    assert found.final == pytest.approx(expected)


def test_area_is_the_mean_height() -> None:
    found = values(MadeRun("a", scores=both({0: 0.0, 10: 0.4, 20: 0.4, 40: 0.0, 50: 0.9}), t_stop=40))
    assert found.area == pytest.approx((2.0 + 4.0 + 4.0) / 40)
    assert values(MadeRun("a", scores=both({10: 0.3}))).area == pytest.approx(0.3)


def test_area_of_a_collapsed_run_goes_on_to_the_end() -> None:
    curve = {0: 0.1, 10: 0.5, 20: 0.0}
    found = values(MadeRun("a", scores=both(curve), status=schema.COLLAPSED, t_stop=100))
    assert found.area == pytest.approx((3.0 + 2.5) / 100)
    done = values(MadeRun("a", scores=both(curve), t_stop=100))
    assert done.area == pytest.approx((3.0 + 2.5) / 20)


def test_what_lies_beyond_t_stop_does_not_count() -> None:
    curve = {0: 0.1, 80: 0.3, 90: 0.2, 100: 0.4, 110: 0.9, 120: 0.9}
    found = values(MadeRun("a", scores=both(curve), t_stop=100))
    assert (found.best, found.final) == (pytest.approx(0.4), pytest.approx(0.3))
    assert (found.evaluations, found.late) == (4, 3)
    assert values(MadeRun("a", scores=both(curve), t_stop=None)).best == pytest.approx(0.9)


def test_a_lucky_peak_of_one_benchmark_is_corrected() -> None:
    scores = {"a": {10: 0.3, 20: 0.9, 30: 0.3}, "b": {10: 0.2, 20: 0.2, 30: 0.4}}
    found = values(MadeRun("x", scores=scores))
    assert found.best == pytest.approx(0.55)
    # a is scored where b is best (step 30), b where a is best (step 20).
    assert found.corrected == pytest.approx((0.3 + 0.2) / 2)


def test_one_benchmark_or_the_mean_alone_cannot_be_corrected() -> None:
    for scores in ({"a": {10: 0.3, 20: 0.4}}, {schema.MEAN: {10: 0.3, 20: 0.4}}):
        found = values(MadeRun("x", scores=scores))
        assert found.corrected is None
        assert found.of(Score.CORRECTED) is None
        assert found.of(Score.BEST) == pytest.approx(0.4)


def test_unfinished_runs_have_no_values() -> None:
    good = both({10: 0.3})
    runs = (
        MadeRun("a", seed=0, scores=good),
        MadeRun("a", seed=1, scores=good, status=schema.RUNNING),
        MadeRun("a", seed=2, scores=good, status=schema.FAILED),
    )
    found = run_values(board(*runs, partial=True))
    assert by_seed(found, "chain", "a", Score.BEST) == {0: pytest.approx(0.3)}
    assert by_seed(found, "chain", "b", Score.BEST) == {}
