"""A sweep held against its declaration: seeds, gaps, retries, old configurations."""

import math
import random
import sys
from dataclasses import replace

import pytest

from cppo_lab import schema
from cppo_lab.analysis.inputs import ExpectedRun
from cppo_lab.analysis.scoring import (
    GAPS,
    Choice,
    SelectionState,
    ValidationCurves,
    choose,
    score_sweep,
    state_in_store,
    validation_curves,
)
from tests.analysis.made_sweeps import MadeRun, both, expect, make_data, scored
from tests.conftest import user_error

GOOD = both({0: 0.1, 10: 0.3, 20: 0.2})
BETTER = both({0: 0.1, 10: 0.2, 20: 0.5})
FALLEN = both({0: 0.1, 10: 0.6, 20: 0.0})
CELL = ("chain", "cppo")
DONE = MadeRun("cppo", seed=0, scores=GOOD)


def test_seeds_are_averaged_after_each_was_selected() -> None:
    third = MadeRun("cppo", seed=2, scores=both({0: 0.2, 10: 0.4, 20: 0.1}))
    cell = scored([DONE, MadeRun("cppo", seed=1, scores=BETTER), third]).cells[CELL]
    # The best of the mean curve would be 0.3.
    assert cell.score == cell.components["chain24"]
    assert (cell.score.mean, cell.score.std, cell.gain.mean) == pytest.approx((0.4, 0.1, 0.8 / 3))
    assert (cell.state, cell.provisional, cell.expected) == (SCORED, False, 3)
    assert (cell.score.n, cell.steps) == (3, (10, 20, 10))


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
    for model, benchmarks, score in (("chain", ("c24", "c25"), 0.3), ("sum", ("s24", "s25"), 0.6)):
        cell = board.cells[model, "cppo"]
        assert board.benchmarks_of(model) == tuple(cell.components) == benchmarks
        assert cell.score.mean == pytest.approx(score)
    assert board.cells["sum", "dppo"].state is SelectionState.NO_COMPONENTS


def test_which_of_several_stored_runs_counts() -> None:
    """By its id the declared one; by name a finished one, then the newest. Others are listed and not counted."""
    older = MadeRun("cppo", scores=GOOD, run_id="older")
    newer = replace(older, scores=BETTER, run_id="newer")
    other = replace(older, seed=7, run_id="other")
    going = replace(older, scores=FALLEN, run_id="newest", status=schema.RUNNING)
    more = replace(older, scores={**GOOD, "aime": {10: 0.1}}, run_id="with another benchmark")
    data = make_data([other, older, newer, going])
    assert not score_sweep(make_data([older, more]), expect([older])).gaps
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


SCORED, COLLAPSE = SelectionState.SCORED, SelectionState.COLLAPSE
Curves = dict[str, dict[int, float]]


def curves_of(scores: Curves, logged: Curves | None = None) -> ValidationCurves:
    data = make_data([MadeRun("cppo", scores=scores, logged=logged or {})])
    return validation_curves(data.metrics, data.runs)


def chosen(scores: Curves, t_stop: int | None = 100) -> Choice:
    curves = curves_of(scores)
    return choose(curves.of(f"{0:032x}"), t_stop, curves.benchmarks)


@pytest.mark.parametrize(
    "curve, state, ties",
    [
        ({0: 0.1, 10: 0.3, 20: 0.300009}, SCORED, (10, 20)),  # within 1e-5: the earliest
        ({10: 0.3, 20: 0.300011}, SCORED, (20,)),  # beyond 1e-5: the higher
        ({10: 0.5, 20: 0.049}, COLLAPSE, (10,)),  # just below a tenth; it keeps its best, for the audit
        ({10: 0.5, 20: 0.05}, SCORED, (10,)),  # a tenth exactly
    ],
)
def test_ties_and_collapses_at_their_limits(
    curve: dict[int, float], state: SelectionState, ties: tuple[int, ...]
) -> None:
    choice, score = chosen(both(curve)), curve[ties[0]]
    assert (choice.state, choice.step, choice.ties) == (state, ties[0], ties)
    assert choice.score == pytest.approx(score)
    assert choice.gain == (pytest.approx(score - curve[0]) if 0 in curve else None)


def test_the_mean_is_that_of_the_benchmarks_and_not_the_logged_one() -> None:
    choice = chosen({"a": {10: 0.2, 20: 0.4}, schema.MEAN: {10: 0.9, 20: 0.1}})
    assert (choice.step, choice.score, choice.components) == (20, pytest.approx(0.4), {"a": 0.4})


@pytest.mark.parametrize("value", [math.nan, -math.inf, sys.float_info.max])  # the last is MLflow's infinity
def test_what_is_not_finite_is_no_score(value: float) -> None:
    assert chosen({"a": {10: value}, "b": {10: 0.3}}) == Choice(SelectionState.NO_COMPONENTS)


def test_the_largest_number_of_samples_counts() -> None:
    one, eight = (schema.validation_metric("a", samples) for samples in (1, 8))
    curves = curves_of({}, {one: {10: 0.9}, eight: {10: 0.2, 20: 0.3}, "val/a/avg_at_08": {10: 0.9}})
    assert (set(curves.samples_of.values()), list(curves.frame[schema.MEAN])) == ({8}, [0.2, 0.3])
    assert curves.of("nobody").empty
    data = make_data(
        [MadeRun("cppo", seed=n, logged={name: {10: 0.9}}) for n, name in enumerate((one, eight))]
    )
    curves = validation_curves(data.metrics, data.runs)
    assert curves.samples_of == {f"{0:032x}": 1, f"{1:032x}": 8}  # of each run
    assert [len(curves.of(mlflow_id)) for mlflow_id in curves.samples_of] == [1, 1]


STATES = {
    name: SelectionState(name) for name in (schema.RUNNING, schema.FAILED, schema.PARTIAL, schema.STOPPED)
}
STATES |= {schema.DONE: SCORED, schema.COLLAPSED: COLLAPSE}


@pytest.mark.parametrize("status", schema.STATUSES)
def test_every_status_has_a_state(status: str) -> None:
    """None of them is taken for a result by accident."""
    state, none = STATES[status], SelectionState.NO_VALIDATION
    assert state_in_store(status, "mini", Choice(SCORED, step=10, score=0.4)) is state
    assert state_in_store(status, "mini", Choice(none)) is (none if state is SCORED else state)
    assert (state in GAPS) is (state not in (SCORED, COLLAPSE))


@pytest.mark.parametrize("number", range(40))
def test_made_up_curves_are_chosen_from_as_by_hand(number: int) -> None:
    """The rule in plain words, in whatever order they were logged. A step that lacks a benchmark says nothing, nor does
    one behind the window; at a collapse, too.
    """
    draw = random.Random(number)
    steps = [10 * place for place in range(draw.randint(1, 8))]
    curves = {
        name: {
            step: draw.choice((0.0, 0.0, 0.2, 0.5, 0.7, 1.0))
            for step in draw.sample(steps, len(steps))
            if draw.random() < 0.8
        }
        for name in "abc"[: draw.randint(1, 3)]
    }
    logged = {name: curve for name, curve in curves.items() if curve}
    t_stop = draw.choice([None, 0, 30, 35, 200])
    choice = chosen(logged, t_stop)
    inside = [step for step in steps if t_stop is None or step <= t_stop]
    means = {
        step: math.fsum(curve[step] for curve in logged.values()) / len(logged)
        for step in inside
        if logged and all(step in curve for curve in logged.values())
    }
    if not means:
        seen = any(step in curve for curve in logged.values() for step in inside)
        assert choice == Choice(SelectionState.NO_COMPONENTS if seen else SelectionState.NO_VALIDATION)
        return
    best, last = max(means.values()), max(means)
    ties = tuple(step for step in means if means[step] >= best - 1e-5)
    assert (choice.step, choice.ties, choice.last_step) == (ties[0], ties, last)
    assert (choice.score, choice.last_score) == pytest.approx((best, means[last]))
    assert choice.state is (COLLAPSE if means[last] < best / 10 else SCORED)
    assert choice.components == pytest.approx({name: curve[ties[0]] for name, curve in logged.items()})
