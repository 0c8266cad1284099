"""A sweep held against its declaration: seeds, gaps, retries, old configurations."""

import pytest

from cppo_lab import schema
from cppo_lab.analysis.inputs import ExpectedRun
from cppo_lab.analysis.scoring import SelectionState, score_sweep
from tests.analysis.made_sweeps import MadeRun, both, expect, make_data, scored
from tests.conftest import user_error

GOOD = both({0: 0.1, 10: 0.3, 20: 0.2})
BETTER = both({0: 0.1, 10: 0.2, 20: 0.5})
FALLEN = both({0: 0.1, 10: 0.6, 20: 0.0})
CELL = ("chain", "cppo")
DONE = MadeRun("cppo", seed=0, scores=GOOD)
COLLAPSED = MadeRun("cppo", seed=1, scores=FALLEN, status=schema.COLLAPSED)


def test_seeds_are_averaged_after_each_was_selected() -> None:
    cell = scored([DONE, MadeRun("cppo", seed=1, scores=BETTER)]).cells[CELL]
    assert cell.steps == (10, 20)
    # The best of the mean curve would be 0.35.
    assert (cell.score.mean, cell.score.std, cell.score.n) == pytest.approx((0.4, 0.2 / 2**0.5, 2))
    assert (cell.components["chain24"].mean, cell.gain.mean) == pytest.approx((0.4, 0.3))
    assert (cell.state, cell.provisional, cell.expected) == (SelectionState.SCORED, False, 2)


@pytest.mark.parametrize(
    "gap, words",
    [
        (None, "missing"),
        (MadeRun("cppo", seed=1, scores=BETTER, status=schema.RUNNING), "running"),
        (MadeRun("cppo", seed=1, status=schema.FAILED, reason="out of memory"), "failed: out of memory"),
        (MadeRun("cppo", seed=1), "no validation in the window"),
        (MadeRun("cppo", seed=1, scores={"chain24": {10: 0.3}}), "a benchmark is missing at every step"),
    ],
)
def test_a_gap_is_refused_and_named(gap: MadeRun | None, words: str) -> None:
    data = make_data([DONE, gap] if gap else [DONE])
    expected = expect([gap or MadeRun("cppo", seed=1), DONE])
    said = rf"1 of 2 runs .*: cppo on chain, seed 1 \({words}\)\. Run `cppo launch` with the same .*--partial"
    with user_error(said):
        score_sweep(data, expected)
    cell = score_sweep(data, expected, partial=True).cells[CELL]
    assert (cell.state, cell.provisional) == (SelectionState.SCORED, True)
    assert (cell.score.mean, cell.score.n) == pytest.approx((0.3, 1))  # the finished run alone


def test_gaps_that_differ_in_seeds_are_named_together() -> None:
    expected = expect([DONE, *(MadeRun("cppo", seed=seed) for seed in range(1, 31))])
    with user_error(r"30 of 31 runs have no result yet: cppo on .*, seeds 1 to 30 \(missing\)\."):
        score_sweep(make_data([DONE]), expected)
    with user_error("1 of 1 run has no result yet"):
        score_sweep(make_data([DONE]), expected[1:2])


@pytest.mark.parametrize("gaps", [[], [MadeRun("cppo", seed=2)]])
def test_one_collapsed_seed_makes_the_cell_a_collapse(gaps: list[MadeRun]) -> None:
    cell = scored([DONE, COLLAPSED], gaps=gaps).cells[CELL]
    assert (cell.state, cell.collapsed, cell.provisional) == (SelectionState.COLLAPSE, 1, bool(gaps))


def test_only_the_papers_curves_are_judged_by_their_shape() -> None:
    """A run of ours that is done has not collapsed, whatever its curve looks like: it would have said so."""
    for core, state in (("mini", SelectionState.SCORED), (schema.PAPER, SelectionState.COLLAPSE)):
        assert scored([MadeRun("cppo", scores=FALLEN, core=core)]).cells[CELL].state is state


def test_models_on_different_tasks_have_benchmarks_of_their_own() -> None:
    runs = [
        MadeRun("cppo", model="chain", scores={"c24": {10: 0.2, 20: 0.4}, "c25": {10: 0.4, 20: 0.2}}),
        MadeRun("cppo", model="sum", scores={"s24": {10: 0.1, 20: 0.5}, "s25": {10: 0.1, 20: 0.7}}),
        MadeRun("dppo", model="sum", scores={"s24": {10: 0.9, 20: 0.3}}),  # s25 was not logged
    ]
    board = score_sweep(make_data(runs), expect(runs), partial=True)
    assert [board.benchmarks_of(model) for model in ("chain", "sum")] == [("c24", "c25"), ("s24", "s25")]
    chain, total = board.cells["chain", "cppo"], board.cells["sum", "cppo"]
    assert (chain.score.mean, total.score.mean) == pytest.approx((0.3, 0.6))
    assert set(total.components) == {"s24", "s25"}
    assert board.cells["sum", "dppo"].state is SelectionState.NO_COMPONENTS


def test_which_of_several_stored_runs_counts() -> None:
    """By its id the declared one; by name a finished one, then the newest. Others are listed and not counted."""
    older, newer = (
        MadeRun("cppo", scores=s, run_id=name) for s, name in ((GOOD, "older"), (BETTER, "newer"))
    )
    other = MadeRun("cppo", seed=7, scores=GOOD, run_id="other")
    going = MadeRun("cppo", scores=FALLEN, run_id="newest", status=schema.RUNNING)
    data = make_data([other, older, newer, going])
    by_id = score_sweep(data, expect([older]))
    assert by_id.cells[CELL].score.mean == pytest.approx(0.3)
    assert list(by_id.unused["run_id"]) == ["other", "newer", "newest"]
    for seed, run_id in ((None, "newer"), (0, "newer"), (7, "other")):
        by_name = score_sweep(data, [ExpectedRun(None, "chain", "cppo", seed)])
        assert by_name.runs[0].run_id == run_id


@pytest.mark.parametrize(
    "declared, partial, message",
    [
        ([], False, "declares no runs"),
        ([MadeRun("cppo", run_id="x"), DONE], False, "declares two configurations as cppo on chain, seed 0"),
        ([MadeRun("dppo")], True, "no validation score yet"),
    ],
)
def test_what_cannot_be_scored_is_refused(declared: list[MadeRun], partial: bool, message: str) -> None:
    with user_error(message):
        score_sweep(make_data([DONE]), expect(declared), partial)
