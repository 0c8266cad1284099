"""A sweep held against its declaration: seeds, gaps, retries, old configurations."""

import pytest

from cppo_lab import schema
from cppo_lab.analysis.grid import ExpectedRun
from cppo_lab.analysis.scoring import score_sweep
from cppo_lab.analysis.selection import SelectionState
from cppo_lab.errors import UserError
from tests.analysis.made_sweeps import MadeRun, both, expect, make_data

GOOD = both({0: 0.1, 10: 0.3, 20: 0.2})
BETTER = both({0: 0.1, 10: 0.2, 20: 0.5})
FALLEN = both({0: 0.1, 10: 0.6, 20: 0.0})


def test_seeds_are_averaged_after_each_was_selected() -> None:
    runs = [MadeRun("cppo", seed=0, scores=GOOD), MadeRun("cppo", seed=1, scores=BETTER)]
    cell = score_sweep(make_data(runs), expect(runs)).cells["chain", "cppo"]
    assert cell.steps == (10, 20)
    assert cell.score is not None
    assert (cell.score.mean, cell.score.n) == (pytest.approx(0.4), 2)  # the mean curve's best would be 0.35
    assert cell.score.std == pytest.approx(0.2 / 2**0.5)
    assert cell.components["chain24"].mean == pytest.approx(0.4)
    assert cell.gain is not None
    assert cell.gain.mean == pytest.approx(0.3)
    assert (cell.state, cell.provisional, cell.expected) == (SelectionState.SCORED, False, 2)


GAPS = {
    "missing": (None, "cppo on chain, seed 1 (missing)"),
    "running": (
        MadeRun("cppo", seed=1, scores=BETTER, status=schema.RUNNING),
        "cppo on chain, seed 1 (running)",
    ),
    "failed": (
        MadeRun("cppo", seed=1, status=schema.FAILED, reason="out of memory"),
        "cppo on chain, seed 1 (failed: out of memory)",
    ),
    "interrupted with a whole curve": (
        MadeRun("cppo", seed=1, scores=BETTER, status=schema.PARTIAL, reason="interrupted: at step 20"),
        "cppo on chain, seed 1 (partial: interrupted: at step 20)",
    ),
    "no validation": (MadeRun("cppo", seed=1), "cppo on chain, seed 1 (no validation in the window)"),
    "component": (
        MadeRun("cppo", seed=1, scores={"chain24": {10: 0.3}}),
        "cppo on chain, seed 1 (a benchmark is missing at every step)",
    ),
}


@pytest.mark.parametrize("name", GAPS)
def test_a_gap_is_refused_and_named(name: str) -> None:
    gap, words = GAPS[name]
    first = MadeRun("cppo", seed=0, scores=GOOD)
    data = make_data([first] if gap is None else [first, gap])
    expected = expect([first, gap or MadeRun("cppo", seed=1)])
    with pytest.raises(UserError) as error:
        score_sweep(data, expected)
    text = str(error.value)
    assert words in text
    assert "1 of 2 runs" in text
    assert "`cppo launch` with the same sweep" in text
    assert "--partial" in text
    assert "\n" not in text

    cell = score_sweep(data, expected, partial=True).cells["chain", "cppo"]
    assert cell.provisional
    assert cell.state is SelectionState.SCORED
    assert cell.score is not None
    assert (cell.score.mean, cell.score.n) == (pytest.approx(0.3), 1)  # the finished run alone


def test_without_any_finished_run_a_partial_cell_shows_the_score_so_far() -> None:
    runs = [MadeRun("cppo", scores=GOOD, status=schema.RUNNING), MadeRun("dppo", scores=BETTER)]
    board = score_sweep(make_data(runs), expect(runs), partial=True)
    cell = board.cells["chain", "cppo"]
    assert (cell.provisional, cell.score and cell.score.mean) == (True, pytest.approx(0.3))
    assert not board.cells["chain", "dppo"].provisional
    assert [run.variant for run in board.gaps] == ["cppo"]


def test_nothing_scored_at_all_is_refused_even_if_partial() -> None:
    runs = [MadeRun("cppo", status=schema.RUNNING)]
    with pytest.raises(UserError, match="no validation score yet"):
        score_sweep(make_data(runs), expect(runs), partial=True)


def test_one_collapsed_seed_makes_the_cell_a_collapse() -> None:
    fallen = MadeRun("cppo", seed=1, scores=FALLEN, status=schema.COLLAPSED)
    runs = [MadeRun("cppo", seed=0, scores=GOOD), fallen]
    cell = score_sweep(make_data(runs), expect(runs)).cells["chain", "cppo"]
    assert (cell.state, cell.collapsed, cell.expected) == (SelectionState.COLLAPSE, 1, 2)


def test_only_the_papers_curves_are_judged_by_their_shape() -> None:
    """A run of ours that is done has not collapsed, whatever its curve looks like: it would have said so."""
    for core, state in (("mini", SelectionState.SCORED), (schema.PAPER, SelectionState.COLLAPSE)):
        runs = [MadeRun("cppo", scores=FALLEN, core=core)]
        assert score_sweep(make_data(runs), expect(runs)).cells["chain", "cppo"].state is state


def test_models_on_different_tasks_have_benchmarks_of_their_own() -> None:
    runs = [
        MadeRun("cppo", model="chain", scores={"c24": {10: 0.2, 20: 0.4}, "c25": {10: 0.4, 20: 0.2}}),
        MadeRun("cppo", model="sum", scores={"s24": {10: 0.1, 20: 0.5}, "s25": {10: 0.1, 20: 0.7}}),
        MadeRun("dppo", model="sum", scores={"s24": {10: 0.9, 20: 0.3}}),  # s25 was not logged
    ]
    board = score_sweep(make_data(runs), expect(runs), partial=True)
    assert board.benchmarks_of("chain") == ("c24", "c25")
    assert board.benchmarks_of("sum") == ("s24", "s25")
    chain, total = board.cells["chain", "cppo"], board.cells["sum", "cppo"]
    assert chain.score is not None and chain.score.mean == pytest.approx(0.3)
    assert total.score is not None and total.score.mean == pytest.approx(0.6)
    assert set(total.components) == {"s24", "s25"}
    assert board.cells["sum", "dppo"].state is SelectionState.NO_COMPONENTS


def test_old_configurations_are_listed_and_not_counted() -> None:
    now, old = MadeRun("cppo", scores=GOOD, run_id="new"), MadeRun("cppo", scores=BETTER, run_id="old")
    board = score_sweep(make_data([old, now]), expect([now]))
    cell = board.cells["chain", "cppo"]
    assert cell.score is not None
    assert cell.score.mean == pytest.approx(0.3)
    assert list(board.unused["run_id"]) == ["old"]


def test_by_name_a_done_run_is_preferred_then_the_newest() -> None:
    older = MadeRun("cppo", seed=None, scores=GOOD, run_id="older")
    newer = MadeRun("cppo", seed=None, scores=BETTER, run_id="newer")
    running = MadeRun("cppo", seed=None, scores=FALLEN, run_id="newest", status=schema.RUNNING)
    board = score_sweep(make_data([older, newer, running]), [ExpectedRun(None, "chain", "cppo", None)])
    assert board.runs[0].run_id == "newer"


def test_two_configurations_under_one_name_are_no_seeds() -> None:
    runs = [MadeRun("cppo", scores=GOOD, run_id="one"), MadeRun("cppo", scores=BETTER, run_id="two")]
    with pytest.raises(UserError, match="declares two configurations as cppo on chain, seed 0"):
        score_sweep(make_data(runs), expect(runs))


def test_an_empty_declaration_is_refused() -> None:
    with pytest.raises(UserError, match="declares no runs"):
        score_sweep(make_data([MadeRun("cppo", scores=GOOD)]), [])


def test_many_gaps_are_counted_not_all_listed() -> None:
    first = MadeRun("cppo", seed=99, scores=GOOD)
    expected = expect([first, *(MadeRun("cppo", seed=seed) for seed in range(30))])
    with pytest.raises(UserError, match=r"30 of 31 runs .*; and 10 more\."):
        score_sweep(make_data([first]), expected)


def test_a_collapse_beside_a_missing_seed_is_both() -> None:
    fallen = MadeRun("cppo", seed=0, scores=FALLEN, status=schema.COLLAPSED)
    expected = expect([fallen, MadeRun("cppo", seed=1)])
    cell = score_sweep(make_data([fallen]), expected, partial=True).cells["chain", "cppo"]
    assert (cell.state, cell.collapsed, cell.provisional, cell.expected) == (
        SelectionState.COLLAPSE,
        1,
        True,
        2,
    )


def test_a_cell_without_any_run_is_there_and_says_so() -> None:
    there = MadeRun("cppo", scores=GOOD)
    expected = expect([there, MadeRun("dppo", seed=0), MadeRun("dppo", seed=1)])
    board = score_sweep(make_data([there]), expected, partial=True)
    cell = board.cells["chain", "dppo"]
    assert (cell.state, cell.provisional, cell.expected, cell.score) == (
        SelectionState.MISSING,
        True,
        2,
        None,
    )
    assert [run.seed for run in board.gaps] == [0, 1]


def test_a_run_that_goes_on_counts_only_beside_no_finished_one() -> None:
    done = MadeRun("cppo", seed=0, scores=GOOD)
    going = MadeRun("cppo", seed=1, scores=BETTER, status=schema.RUNNING)
    for runs, score in (([done, going], 0.3), ([going], 0.5)):
        cell = score_sweep(make_data(runs), expect(runs), partial=True).cells["chain", "cppo"]
        assert cell.provisional
        assert cell.score is not None
        assert (cell.score.mean, cell.score.n) == (pytest.approx(score), 1)


def test_the_order_of_the_runs_in_the_store_changes_nothing() -> None:
    runs = [
        MadeRun(variant, model, seed, scores=both({10: 0.1 + seed / 10, 20: 0.2 + number / 10}))
        for number, variant in enumerate(("cppo", "dppo"))
        for model in ("chain", "sum")
        for seed in (0, 1, 2)
    ]
    boards = [
        score_sweep(make_data(order), expect(runs)) for order in (runs, runs[::-1], runs[5:] + runs[:5])
    ]
    assert boards[0].cells == boards[1].cells == boards[2].cells
    assert list(boards[0].cells) == list(boards[1].cells) == list(boards[2].cells)
