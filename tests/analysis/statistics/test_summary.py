"""All statistics of a sweep: what is in them, gaps, reproducibility, orders, single runs."""

import math

import pytest

from cppo_lab.analysis.statistics.estimate import holm
from cppo_lab.analysis.statistics.summary import (
    Ranking,
    Statistics,
    baseline_of,
    kendall,
    rankings,
    sweep_statistics,
)
from cppo_lab.analysis.statistics.values import Score, run_values
from tests.analysis.made_sweeps import MadeRun, both
from tests.analysis.statistics.made_curves import board_of, flat

LEVELS = {"dppo": [0.30, 0.31, 0.29], "cppo": [0.36, 0.355, 0.37], "grpo": [0.2, 0.3, 0.1]}


def two_models() -> Statistics:
    return sweep_statistics(board_of(flat(LEVELS, "m") + flat(LEVELS, "n")))


def test_cells_and_what_is_over_models() -> None:
    statistics = two_models()
    assert statistics.baseline.name == "dppo"
    names = [(model, variant) for model in "mn" for variant in ("dppo", "cppo", "grpo")]
    assert [(cell.model, cell.variant) for cell in statistics.cells] == names
    dppo, cppo, _ = statistics.cells[:3]
    assert dppo.differences == {}
    assert cppo.scores[Score.FINAL].value == pytest.approx(sum(LEVELS["cppo"]) / 3)
    assert cppo.differences[Score.FINAL].estimate.value == pytest.approx(0.0616667, abs=1e-6)
    p_values = {
        (cell.model, cell.variant): cell.differences[Score.FINAL].estimate.p_value()
        for cell in statistics.cells
        if Score.FINAL in cell.differences
    }
    adjusted = [statistics.adjusted[*pair, Score.FINAL] for pair in p_values]
    assert adjusted == list(holm(list(p_values.values())))
    aggregates = {(each.variant, each.score, each.name): each.estimate for each in statistics.aggregates}
    assert len(statistics.aggregates) == 3 * 3 * len(Score)
    assert {name for _, _, name in aggregates} == {"mean", "iqm", "median"}
    mean = aggregates["cppo", Score.FINAL, "mean"]
    assert (mean.value, mean.degrees) == pytest.approx((sum(LEVELS["cppo"]) / 3, 4))
    overall = statistics.overall
    assert [each.variant for each in overall] == ["cppo", "grpo"]
    assert overall[0].improvement.value == 1.0


def test_incomplete_variants_are_not_averaged_over_models() -> None:
    runs = [run for run in flat(LEVELS, "m") if (run.variant, run.seed) != ("cppo", 1)]
    runs += [run for run in flat(LEVELS, "n") if run.variant != "cppo"]
    gaps = [MadeRun("cppo", "m", 1), *(MadeRun("cppo", "n", seed) for seed in range(3))]
    statistics = sweep_statistics(board_of(runs, gaps=gaps))
    cells = {(cell.model, cell.variant): cell for cell in statistics.cells}
    some, none = cells["m", "cppo"], cells["n", "cppo"]
    assert (some.runs, some.differences[Score.FINAL].estimate.n) == (2, 2)
    assert (none.runs, none.scores) == (0, {})
    assert "cppo" not in {entry.variant for entry in (*statistics.aggregates, *statistics.overall)}


def test_order_and_margins() -> None:
    up = both({0: 0.1, 80: 0.30, 90: 0.32, 100: 0.30})
    down = both({0: 0.1, 50: 0.5, 80: 0.20, 90: 0.22, 100: 0.20})
    runs = [MadeRun("calm", "m", 0, up), MadeRun("peak", "m", 0, down), *flat({"low": [0.1], "last": [0.1]})]
    board = board_of(runs)
    found = {ranking.score: ranking for ranking in rankings(board, run_values(board))}
    best, final = found[Score.BEST], found[Score.FINAL]
    assert [place.variant for place in best.places] == ["peak", "calm", "low", "last"]
    assert [place.variant for place in final.places] == ["calm", "peak", "low", "last"]
    assert [place.rank for place in best.places] == [1, 2, 3, 3]  # equal scores share a rank
    assert (best.rank("last"), best.rank("x")) == (3, None)
    noise = 0.02 / math.sqrt(2)
    assert best.places[0].margin == pytest.approx(0.5 - 0.32)
    assert best.places[0].noise == pytest.approx(noise * math.sqrt(2))
    assert final.places[0].noise == pytest.approx(noise * math.sqrt(2 / 3))  # three late evaluations each
    assert (final.places[3].margin, final.places[3].noise) == (None, None)
    assert kendall(best, final) == pytest.approx((5 - 2) / 5)  # one of five unequal pairs is swapped
    assert (kendall(best, best), kendall(best, Ranking("m", Score.BEST, ()))) == (1, None)


def test_one_evaluation_of_one_benchmark() -> None:
    """Its best step cannot be corrected, and its sampling error is known."""
    runs = [MadeRun("dppo", "m", seed, {"aime24": {10: share}}) for seed, share in enumerate((0.5, 0.1))]
    statistics = sweep_statistics(board_of(runs))
    assert statistics.cells[0].sampling.answers == pytest.approx(math.sqrt((0.25 + 0.09) / 2 / 480))
    assert two_models().cells[0].sampling is None  # benchmarks of unknown size
    for entries in (statistics.rankings, statistics.aggregates):
        assert {entry.score for entry in entries} == set(Score) - {Score.CORRECTED}


def test_baseline() -> None:
    assert baseline_of(["cppo", "dppo"]).name == "dppo"
    assert baseline_of(["cppo", "grpo"]).name == "cppo"
