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
from tests.analysis.statistics.made_curves import board_of, broken, flat

LEVELS = {"dppo": [0.30, 0.31, 0.29], "cppo": [0.36, 0.355, 0.37], "grpo": [0.2, 0.3, 0.1]}


def two_models() -> Statistics:
    return sweep_statistics(board_of(flat(LEVELS, "m") + flat(LEVELS, "n")))


def test_cells_and_adjusted_p_values() -> None:
    found = two_models()
    assert found.baseline.name == "dppo"
    assert [(cell.model, cell.variant) for cell in found.cells][:3] == [
        ("m", "dppo"),
        ("m", "cppo"),
        ("m", "grpo"),
    ]
    dppo, cppo, _ = found.cells[:3]
    assert dppo.differences == {}
    assert cppo.scores[Score.FINAL].value == pytest.approx(sum(LEVELS["cppo"]) / 3)
    assert cppo.differences[Score.FINAL].estimate.value == pytest.approx(0.0616667, abs=1e-6)
    raw = {
        (cell.model, cell.variant): cell.differences[Score.FINAL].estimate.p_value()
        for cell in found.cells
        if Score.FINAL in cell.differences
    }
    assert [found.adjusted[*pair, Score.FINAL] for pair in raw] == list(
        holm([p or 1.0 for p in raw.values()])
    )


def test_over_models() -> None:
    found = two_models()
    assert {entry.name for entry in found.aggregates} == {"mean", "iqm", "median"}
    assert len(found.aggregates) == 3 * 3 * len(Score)
    mean = next(e for e in found.aggregates if (e.variant, e.score, e.name) == ("cppo", Score.FINAL, "mean"))
    assert mean.estimate.value == pytest.approx(sum(LEVELS["cppo"]) / 3)
    assert mean.estimate.degrees == pytest.approx(4)
    overall = [e for e in found.overall if e.score is Score.FINAL]
    assert [e.variant for e in overall] == ["cppo", "grpo"]
    assert overall[0].improvement.value == 1.0


def test_the_same_runs_give_the_same_numbers() -> None:
    assert two_models() == two_models()


def test_missing_seeds_are_named_and_incomplete_variants_not_averaged_over_models() -> None:
    runs = [run for run in flat(LEVELS, "m") if (run.variant, run.seed) != ("cppo", 1)]
    other = [run for run in flat(LEVELS, "n") if run.variant != "cppo"]
    gaps = [run for run in (*flat(LEVELS, "m"), *flat(LEVELS, "n")) if run not in runs and run not in other]
    bare = [MadeRun(run.variant, run.model, run.seed) for run in gaps]
    found = sweep_statistics(board_of(runs + other, gaps=bare))
    cells = {(cell.model, cell.variant): cell for cell in found.cells}
    assert (cells["m", "cppo"].runs, cells["m", "cppo"].missing) == (2, (1,))
    assert cells["m", "cppo"].differences[Score.FINAL].estimate.n == 2
    assert (cells["n", "cppo"].runs, cells["n", "cppo"].missing) == (0, (0, 1, 2))
    assert cells["n", "cppo"].scores == {}
    assert "cppo" not in {entry.variant for entry in (*found.aggregates, *found.overall)}


def test_collapses_are_counted() -> None:
    found = sweep_statistics(
        board_of([*flat({"dppo": [0.3, 0.4]}), broken("cppo", 0, 0.5), broken("cppo", 1, 0.6)])
    )
    assert [(cell.runs, cell.collapsed) for cell in found.cells] == [(2, 0), (2, 2)]


def test_a_single_run_has_no_interval() -> None:
    found = sweep_statistics(board_of(flat({"dppo": [0.3, 0.31], "cppo": [0.3]})))
    assert all(estimate.half is None for estimate in found.cells[1].scores.values())
    assert not found.adjusted


def test_order_and_margins() -> None:
    up = both({0: 0.1, 80: 0.30, 90: 0.32, 100: 0.30})
    down = both({0: 0.1, 50: 0.5, 80: 0.20, 90: 0.22, 100: 0.20})
    board = board_of([MadeRun("calm", "m", 0, up), MadeRun("peak", "m", 0, down), *flat({"low": [0.1]})])
    found = {ranking.score: ranking for ranking in rankings(board, run_values(board))}
    best, final = found[Score.BEST], found[Score.FINAL]
    assert [place.variant for place in best.places] == ["peak", "calm", "low"]
    assert [place.variant for place in final.places] == ["calm", "peak", "low"]
    noise = 0.02 / math.sqrt(2)
    assert best.places[0].margin == pytest.approx(0.5 - 0.32)
    assert best.places[0].noise == pytest.approx(noise * math.sqrt(2))
    assert final.places[0].noise == pytest.approx(noise * math.sqrt(2 / 3))  # three late evaluations each
    assert (final.places[2].margin, final.places[2].noise) == (None, None)
    assert kendall(best, final) == pytest.approx(1 / 3)  # one of three pairs is swapped
    assert kendall(best, best) == 1
    assert kendall(best, Ranking("m", Score.BEST, ())) is None


def test_equal_scores_share_a_rank() -> None:
    board = board_of(flat({"a": [0.3], "b": [0.3], "c": [0.1]}))
    ranking = rankings(board, run_values(board))[0]
    assert [place.rank for place in ranking.places] == [1, 1, 3]
    assert (ranking.rank("c"), ranking.rank("x")) == (3, None)


def test_the_sampling_error_of_one_evaluation() -> None:
    runs = [MadeRun("dppo", "m", seed, {"aime24": {10: share}}) for seed, share in enumerate((0.5, 0.1))]
    [cell] = sweep_statistics(board_of(runs)).cells
    assert cell.sampling is not None
    assert cell.sampling.answers == pytest.approx(math.sqrt((0.25 + 0.09) / 2 / 480))
    assert two_models().cells[0].sampling is None  # benchmarks of unknown size


def test_a_score_that_no_run_has_is_left_out() -> None:
    """With one benchmark the best step cannot be corrected."""
    found = sweep_statistics(
        board_of([MadeRun("dppo", "m", seed, {"a": {0: 0.1, 50: 0.3}}) for seed in (0, 1)])
    )
    assert {ranking.score for ranking in found.rankings} == set(Score) - {Score.CORRECTED}
    assert {entry.score for entry in found.aggregates} == set(Score) - {Score.CORRECTED}


def test_baseline() -> None:
    assert baseline_of(["cppo", "dppo"]).name == "dppo"
    assert baseline_of(["cppo", "grpo"]).name == "cppo"
