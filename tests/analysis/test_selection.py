"""The selection rule on curves small enough to check by eye."""

import math
import random

import pandas as pd
import pytest

from cppo_lab import schema
from cppo_lab.analysis.selection import (
    GAPS,
    Choice,
    SelectionState,
    Stat,
    choose,
    state_in_store,
    validation_curves,
)
from tests.analysis.made_sweeps import MadeRun, both, make_data

NAN = float("nan")


def chosen(scores: dict[str, dict[int, float]], t_stop: int | None = 100) -> Choice:
    data = make_data([MadeRun("cppo", scores=scores)])
    curves = validation_curves(data.metrics, data.runs)
    return choose(curves.of(data.runs["mlflow_id"].iloc[0]), t_stop, curves.benchmarks)


@pytest.mark.parametrize(
    ("curve", "t_stop", "step", "ties"),
    [
        pytest.param({0: 0.1, 10: 0.3, 20: 0.2}, 100, 10, (10,), id="highest"),
        pytest.param({10: 0.3, 20: 0.5, 30: 0.4}, 10, 10, (10,), id="outside the window does not count"),
        pytest.param({10: 0.3, 20: 0.5}, 20, 20, (20,), id="T_stop itself is inside"),
        pytest.param({10: 0.3, 20: 0.5}, None, 20, (20,), id="no T_stop: all steps"),
        pytest.param({10: 0.3, 20: 0.3, 30: 0.3}, 100, 10, (10, 20, 30), id="equal: the earliest"),
        pytest.param({10: 0.3, 20: 0.300009}, 100, 10, (10, 20), id="within 1e-5: the earliest"),
        pytest.param({10: 0.3, 20: 0.300011}, 100, 20, (20,), id="beyond 1e-5: the higher"),
        pytest.param({20: 0.3, 10: 0.3}, 100, 10, (10, 20), id="logged out of order"),
        pytest.param({10: 0.0, 20: 0.0}, 100, 10, (10, 20), id="never above zero is a score"),
    ],
)
def test_step(curve: dict[int, float], t_stop: int | None, step: int, ties: tuple[int, ...]) -> None:
    choice = chosen(both(curve), t_stop)
    assert (choice.state, choice.step, choice.ties) == (SelectionState.SCORED, step, ties)
    assert choice.score == pytest.approx(curve[step])


def test_components_are_those_of_the_selected_step_not_their_own_best() -> None:
    choice = chosen({"a": {10: 0.9, 20: 0.2}, "b": {10: 0.1, 20: 0.9}})
    assert choice.step == 20
    assert choice.components == {"a": 0.2, "b": 0.9}
    assert choice.score == pytest.approx(0.55)


def test_the_mean_is_computed_from_the_benchmarks_not_taken_from_the_log() -> None:
    choice = chosen({**both({10: 0.2, 20: 0.4}), schema.MEAN: {10: 0.9, 20: 0.1}})
    assert (choice.step, choice.score) == (20, pytest.approx(0.4))


def test_a_run_that_logged_only_the_mean_is_scored_without_components() -> None:
    choice = chosen({schema.MEAN: {10: 0.2, 20: 0.4}})
    assert (choice.state, choice.step, choice.score, choice.components) == (
        SelectionState.SCORED,
        20,
        0.4,
        {},
    )


@pytest.mark.parametrize(
    ("curve", "t_stop", "state"),
    [
        pytest.param({10: 0.5, 20: 0.0}, 100, SelectionState.COLLAPSE, id="ends at zero"),
        pytest.param({10: 0.5, 20: 0.049}, 100, SelectionState.COLLAPSE, id="just below a tenth"),
        pytest.param({10: 0.5, 20: 0.05}, 100, SelectionState.SCORED, id="a tenth exactly"),
        pytest.param({10: 0.5, 20: 0.21}, 100, SelectionState.SCORED, id="ends at 0.42 of its best"),
        pytest.param({10: 0.5, 20: 0.4, 30: 0.0}, 20, SelectionState.SCORED, id="collapse after the window"),
        pytest.param({10: 0.5, 20: 0.0, 30: 0.4}, 100, SelectionState.SCORED, id="recovered"),
        pytest.param({10: 0.0, 20: 0.0}, 100, SelectionState.SCORED, id="never learned anything"),
    ],
)
def test_collapse(curve: dict[int, float], t_stop: int, state: SelectionState) -> None:
    choice = chosen(both(curve), t_stop)
    assert choice.state is state
    assert choice.step == 10  # a collapsed run keeps its best, for the audit


@pytest.mark.parametrize(
    ("scores", "t_stop", "state"),
    [
        pytest.param({}, 100, SelectionState.NO_VALIDATION, id="nothing logged"),
        pytest.param(both({50: 0.3}), 40, SelectionState.NO_VALIDATION, id="only after the window"),
        pytest.param(
            {"a": {10: 0.3}, "b": {20: 0.3}}, 100, SelectionState.NO_COMPONENTS, id="never both at one step"
        ),
        pytest.param({"a": {10: NAN}, "b": {10: 0.3}}, 100, SelectionState.NO_COMPONENTS, id="NaN"),
    ],
)
def test_gaps_have_names(scores: dict[str, dict[int, float]], t_stop: int, state: SelectionState) -> None:
    choice = chosen(scores, t_stop)
    assert (choice.state, choice.step, choice.score) == (state, None, None)


def test_a_step_without_one_benchmark_is_no_candidate() -> None:
    choice = chosen({"a": {10: 0.3, 20: 0.9}, "b": {10: 0.3}})
    assert (choice.step, choice.last_step) == (10, 10)


def test_base_and_gain() -> None:
    assert chosen(both({0: 0.1, 10: 0.4})).gain == pytest.approx(0.3)
    without = chosen(both({10: 0.4}))
    assert (without.base, without.gain) == (None, None)


def test_the_largest_number_of_samples_counts() -> None:
    logged = {
        schema.validation_metric("a", 1): {10: 0.9},
        schema.validation_metric("a", 8): {10: 0.2, 20: 0.3},
    }
    data = make_data([MadeRun("cppo", logged=logged)])
    curves = validation_curves(data.metrics, data.runs)
    assert curves.samples == 8
    assert list(curves.frame[schema.MEAN]) == [0.2, 0.3]


def test_status_outranks_the_choice() -> None:
    choice = Choice(SelectionState.SCORED, step=10, score=0.4)
    assert state_in_store(schema.DONE, "mini", choice) is SelectionState.SCORED
    assert state_in_store(schema.RUNNING, "mini", choice) is SelectionState.RUNNING
    assert state_in_store(schema.FAILED, "mini", choice) is SelectionState.FAILED
    assert state_in_store(schema.PARTIAL, "mini", choice) is SelectionState.PARTIAL
    assert SelectionState.PARTIAL in GAPS
    assert state_in_store(schema.COLLAPSED, "mini", choice) is SelectionState.COLLAPSE
    assert (
        state_in_store(schema.COLLAPSED, "mini", Choice(SelectionState.NO_VALIDATION))
        is SelectionState.COLLAPSE
    )


def test_stat() -> None:
    assert Stat.of([]) is None
    assert Stat.of([0.5]) == Stat(0.5, None, 1)
    stat = Stat.of([0.1, 0.2, 0.6])
    assert stat is not None
    assert stat.mean == pytest.approx(0.3)
    assert stat.std == pytest.approx(math.sqrt((0.04 + 0.01 + 0.09) / 2))


def test_curves_of_an_unknown_run_are_empty() -> None:
    data = make_data([MadeRun("cppo", scores=both({10: 0.3}))])
    curves = validation_curves(data.metrics, data.runs)
    assert isinstance(curves.of("nobody"), pd.DataFrame)
    assert curves.of("nobody").empty


def by_hand(
    logged: dict[str, dict[int, float]], t_stop: int | None
) -> tuple[int, float, dict[str, float], tuple[int, ...]] | None:
    """The rule in plain words: step, score, components, ties; None where no step has all benchmarks."""
    steps = sorted({step for curve in logged.values() for step in curve})
    inside = [step for step in steps if t_stop is None or 0 <= step <= t_stop]
    whole = [step for step in inside if all(step in curve for curve in logged.values())]
    means = {step: math.fsum(curve[step] for curve in logged.values()) / len(logged) for step in whole}
    if not means:
        return None
    ties = tuple(step for step in whole if means[step] >= max(means.values()) - 1e-5)
    return ties[0], means[ties[0]], {name: curve[ties[0]] for name, curve in logged.items()}, ties


@pytest.mark.parametrize("number", range(40))
def test_made_up_curves_are_chosen_from_as_by_hand(number: int) -> None:
    draw = random.Random(number)
    steps = [10 * place for place in range(draw.randint(1, 8))]
    logged = {
        name: {step: round(draw.random(), 1) for step in steps if draw.random() < 0.8}
        for name in ("a", "b", "c")[: draw.randint(1, 3)]
    }
    if not all(logged.values()):  # a benchmark that nobody logged is none
        logged = {name: curve for name, curve in logged.items() if curve}
    if not logged:
        return
    t_stop = draw.choice([None, 0, 30, 35, 200])
    expected, choice = by_hand(logged, t_stop), chosen(logged, t_stop)
    if expected is None:
        assert choice.state in (SelectionState.NO_VALIDATION, SelectionState.NO_COMPONENTS)
        return
    step, score, components, ties = expected
    assert (choice.step, choice.ties) == (step, ties)
    assert choice.score == pytest.approx(score)
    assert choice.components == pytest.approx(components)
    assert (
        choice.last_step
        == max(
            step
            for step in logged["a"]
            if (t_stop is None or step <= t_stop) and all(step in one for one in logged.values())
        )
        if "a" in logged
        else True
    )


def test_step_0_is_inside_the_window() -> None:
    choice = chosen(both({0: 0.5, 10: 0.3}))
    assert (choice.step, choice.score, choice.gain) == (0, 0.5, 0.0)


def test_the_last_score_of_a_collapse_is_the_last_whole_one() -> None:
    """A step that lacks a benchmark says nothing of a collapse."""
    choice = chosen({"a": {10: 0.5, 20: 0.5, 30: 0.0}, "b": {10: 0.5, 20: 0.5}})
    assert (choice.state, choice.last_step) == (SelectionState.SCORED, 20)


@pytest.mark.parametrize("status", schema.STATUSES)
def test_every_status_has_a_state(status: str) -> None:
    """None of them is taken for a result by accident."""
    for choice in (Choice(SelectionState.SCORED, step=1, score=0.1), Choice(SelectionState.NO_VALIDATION)):
        state = state_in_store(status, "mini", choice)
        finished = status == schema.COLLAPSED or (
            status == schema.DONE and choice.state is SelectionState.SCORED
        )
        assert (state not in GAPS) == finished
