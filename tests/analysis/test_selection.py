"""The selection rule on curves small enough to check by eye."""

import math
import random
import sys

import pytest

from cppo_lab import schema
from cppo_lab.analysis.scoring import (
    GAPS,
    Choice,
    SelectionState,
    ValidationCurves,
    choose,
    state_in_store,
    validation_curves,
)
from tests.analysis.made_sweeps import MadeRun, both, make_data

SCORED, COLLAPSE = SelectionState.SCORED, SelectionState.COLLAPSE
Curves = dict[str, dict[int, float]]


def curves_of(scores: Curves, logged: Curves | None = None) -> ValidationCurves:
    data = make_data([MadeRun("cppo", scores=scores, logged=logged or {})])
    return validation_curves(data.metrics, data.runs)


def chosen(scores: Curves, t_stop: int | None = 100) -> Choice:
    curves = curves_of(scores)
    return choose(curves.of(f"{0:032x}"), t_stop, curves.benchmarks)


@pytest.mark.parametrize(
    "curve, step, ties",
    [
        ({0: 0.1, 10: 0.3, 20: 0.2}, 10, (10,)),
        ({10: 0.3, 20: 0.300009}, 10, (10, 20)),  # within 1e-5: the earliest
        ({10: 0.3, 20: 0.300011}, 20, (20,)),  # beyond 1e-5: the higher
    ],
)
def test_step(curve: dict[int, float], step: int, ties: tuple[int, ...]) -> None:
    choice = chosen(both(curve))
    assert (choice.state, choice.step, choice.ties) == (SCORED, step, ties)
    assert choice.score == pytest.approx(curve[step])
    assert choice.gain == (pytest.approx(curve[step] - curve[0]) if 0 in curve else None)


def test_the_mean_is_that_of_the_benchmarks_and_not_the_logged_one() -> None:
    choice = chosen({"a": {10: 0.2, 20: 0.4}, schema.MEAN: {10: 0.9, 20: 0.1}})
    assert (choice.step, choice.score, choice.components) == (20, pytest.approx(0.4), {"a": 0.4})


@pytest.mark.parametrize(
    "curve, t_stop, state",
    [
        ({10: 0.5, 20: 0.0}, 100, COLLAPSE),  # ends at zero
        ({10: 0.5, 20: 0.049}, 100, COLLAPSE),  # just below a tenth
        ({10: 0.5, 20: 0.05}, 100, SCORED),  # a tenth exactly
        ({10: 0.5, 20: 0.4, 30: 0.0}, 20, SCORED),  # collapse after the window
        ({10: 0.5, 20: 0.0, 30: 0.4}, 100, SCORED),  # recovered
        ({10: 0.0, 20: 0.0}, 100, SCORED),  # never learned anything
    ],
)
def test_collapse(curve: dict[int, float], t_stop: int, state: SelectionState) -> None:
    choice = chosen(both(curve), t_stop)
    assert (choice.state, choice.step) == (state, 10)  # a collapsed run keeps its best, for the audit


def test_the_last_score_of_a_collapse_is_the_last_whole_one() -> None:
    """A step that lacks a benchmark says nothing of a collapse."""
    choice = chosen({"a": {10: 0.5, 20: 0.5, 30: 0.0}, "b": {10: 0.5, 20: 0.5}})
    assert (choice.state, choice.last_step) == (SCORED, 20)


@pytest.mark.parametrize(
    "scores, t_stop, state",
    [
        ({}, 100, SelectionState.NO_VALIDATION),
        (both({50: 0.3}), 40, SelectionState.NO_VALIDATION),
        ({"a": {10: 0.3}, "b": {20: 0.3}}, 100, SelectionState.NO_COMPONENTS),
        *(
            ({"a": {10: value}, "b": {10: 0.3}}, 100, SelectionState.NO_COMPONENTS)
            for value in (math.nan, -math.inf, sys.float_info.max)  # MLflow's infinity
        ),
    ],
    ids=["nothing logged", "only after the window", "never both at one step", "NaN", "infinity", "largest"],
)
def test_gaps_have_names(scores: Curves, t_stop: int, state: SelectionState) -> None:
    choice = chosen(scores, t_stop)
    assert (choice.state, choice.step, choice.score) == (state, None, None)


def test_the_largest_number_of_samples_counts() -> None:
    one, eight = (schema.validation_metric("a", samples) for samples in (1, 8))
    curves = curves_of({}, {one: {10: 0.9}, eight: {10: 0.2, 20: 0.3}, "val/a/avg_at_08": {10: 0.9}})
    assert (set(curves.samples_of.values()), list(curves.frame[schema.MEAN])) == ({8}, [0.2, 0.3])
    assert curves.of("nobody").empty
    runs = [MadeRun("cppo", seed=seed, logged={name: {10: 0.9}}) for seed, name in enumerate((one, eight))]
    data = make_data(runs)
    curves = validation_curves(data.metrics, data.runs)
    assert [curves.samples_of[f"{seed:032x}"] for seed in (0, 1)] == [1, 8]  # of each run
    assert [len(curves.of(f"{seed:032x}")) for seed in (0, 1)] == [1, 1]


STATES = {
    schema.DONE: SCORED,
    schema.RUNNING: SelectionState.RUNNING,
    schema.FAILED: SelectionState.FAILED,
    schema.PARTIAL: SelectionState.PARTIAL,
    schema.STOPPED: SelectionState.STOPPED,
    schema.COLLAPSED: COLLAPSE,
}


@pytest.mark.parametrize("status", schema.STATUSES)
def test_every_status_has_a_state(status: str) -> None:
    """None of them is taken for a result by accident."""
    state = STATES[status]
    assert state_in_store(status, "mini", Choice(SCORED, step=10, score=0.4)) is state
    without = Choice(SelectionState.NO_VALIDATION)
    expected = without.state if status == schema.DONE else state
    assert state_in_store(status, "mini", without) is expected
    assert (state in GAPS) is (state not in (SCORED, COLLAPSE))


@pytest.mark.parametrize("number", range(40))
def test_made_up_curves_are_chosen_from_as_by_hand(number: int) -> None:
    """The rule in plain words, in whatever order they were logged."""
    draw = random.Random(number)
    steps = [10 * place for place in range(draw.randint(1, 8))]
    curves = (
        {step: round(draw.random(), 1) for step in draw.sample(steps, len(steps)) if draw.random() < 0.8}
        for _ in range(draw.randint(1, 3))
    )
    logged = {name: curve for name, curve in zip("abc", curves, strict=False) if curve}
    t_stop = draw.choice([None, 0, 30, 35, 200])
    choice = chosen(logged, t_stop)
    whole = [step for step in steps if logged and all(step in curve for curve in logged.values())]
    means = {
        step: math.fsum(curve[step] for curve in logged.values()) / len(logged)
        for step in whole
        if t_stop is None or step <= t_stop
    }
    if not means:
        assert choice.state in (SelectionState.NO_VALIDATION, SelectionState.NO_COMPONENTS)
        return
    ties = tuple(step for step in means if means[step] >= max(means.values()) - 1e-5)
    assert (choice.step, choice.ties, choice.last_step) == (ties[0], ties, max(means))
    assert choice.score == pytest.approx(means[ties[0]])
    assert choice.components == pytest.approx({name: curve[ties[0]] for name, curve in logged.items()})
