"""What runs cost: the estimate, and what past runs make of it."""

import os
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest

from cppo_lab import schema
from cppo_lab.core_records import core_of
from cppo_lab.launch.training import TrainingJob
from cppo_lab.runs.attempt import Attempt
from cppo_lab.runs.recorder import Recorder
from cppo_lab.runs.spool import newest_record
from cppo_lab.runs.state import RunState
from cppo_lab.spec import RunSpec
from cppo_lab.spec.job import TimeEstimate, estimate, layout_tag
from cppo_lab.sweep.compose import Composed, compose
from cppo_lab.sweep.cost import ESTIMATE, MEASURED, METRIC, PREFLIGHT, Cost, StepTimes, cost_of, past_costs
from cppo_lab.sweep.enumerate import PlannedRun
from cppo_lab.sweep.table import cost_summary, interval
from cppo_lab.tracking.address import tracking_uri
from tests.conftest import FINISHED, TINY

LARGE = ["core=verl", "model=qwen3_8b_base"]


def planned(composed: Composed) -> PlannedRun:
    return PlannedRun(composed.run.run_id, {"s": "cppo"}, composed.run, composed.layout, composed.resources)


def past_run(workspace: Path, composed: Composed, *seconds: float) -> None:
    """A finished run whose steps took `seconds`, as an attempt with this layout records it."""
    folder = workspace / "runs" / composed.run.run_id
    folder.mkdir(parents=True, exist_ok=True)
    layout = core_of(composed.run.core).uses_layout
    tags = {schema.TAG_LAYOUT: layout_tag(composed.layout)} if layout else {}
    recorder = Recorder(composed.run, tags, folder)
    for step, value in enumerate(seconds, start=1):
        recorder.log(step, {METRIC: value})
    recorder.finish(FINISHED)


def gpu_estimate(composed: Composed) -> TimeEstimate:
    return estimate(composed.run, composed.layout).time


@pytest.mark.parametrize("factors, factor", [([], 1.0), ([0.5, 3.0, 1.5], 1.5), ([2.0, 4.0], 3.0)])
def test_the_steps_of_an_estimate_are_scaled_and_nothing_else(factors: list[float], factor: float) -> None:
    composed = compose(LARGE)
    time = gpu_estimate(composed)
    cost = cost_of(composed.run, composed.layout, [value * time.step for value in factors])
    steps = composed.run.training.t_stop * (time.rollout + time.update + time.overhead)
    assert cost.hours * 3600 == pytest.approx(time.total - steps + factor * steps)
    assert cost.gpu_hours == pytest.approx(cost.hours * time.devices)
    assert (cost.basis, cost.measured_runs) == (MEASURED if factors else ESTIMATE, len(factors))


def test_where_no_estimate_exists_past_runs_say_it(tiny_spec: RunSpec) -> None:
    layout = compose(TINY).layout
    assert cost_of(tiny_spec, layout, []) is None
    cost = cost_of(tiny_spec, layout, [3.0, 900.0, 5.0])
    assert cost.hours == pytest.approx(4 * 5.0 / 3600)
    assert (cost.gpu_hours, cost.basis, cost.measured_runs) == (None, MEASURED, 3)


@pytest.mark.parametrize(
    "words, change",
    [
        (TINY, "model.architecture.width=64"),
        (TINY, "batch.responses=8"),
        (TINY, "rollout.max_response_length=12"),
        (LARGE, "layout=one_node"),
        (LARGE, "layout.tokens_per_device=65536"),
    ],
)
def test_runs_of_another_kind_do_not_count(workspace: Path, words: list[str], change: str) -> None:
    run = planned(compose(words))
    estimated = {run.run_id: cost_of(run.spec, run.layout, [])}
    past_run(workspace, compose([*words, change]), 100.0, 100.0, 100.0)
    assert past_costs([run]) == estimated
    past_run(workspace, compose([*words, "rule.delta=0.1", "seed=7"]), 9.0, 2.0, 1.0)  # of the same kind
    assert past_costs([run]) == {run.run_id: cost_of(run.spec, run.layout, [2.0])}


def test_the_newest_runs_count_and_only_those_with_enough_steps(
    workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for seed, seconds in enumerate([[1.0] * 3, [2.0] * 3, [3.0] * 3, [4.0] * 3, [50.0] * 2]):
        past_run(workspace, compose([*TINY, f"seed={seed}"]), *seconds)
    monkeypatch.setattr("cppo_lab.sweep.cost.MOST_RUNS", 3)
    times, kind = StepTimes(workspace / "runs"), {"model.name": "mini_base", "batch.prompts": "8"}
    assert times.of("mini", "", kind) == [[4.0] * 3, [3.0] * 3, [2.0] * 3]
    assert times.of("mini", "other", kind) == times.of("verl", "", kind) == []


def test_a_run_whose_folder_goes_meanwhile_does_not_count(
    workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for seed in (0, 1):
        past_run(workspace, compose([*TINY, f"seed={seed}"]), *[1.0 + seed] * 3)

    def scanned(folder: Path) -> list[os.DirEntry[str]]:
        with os.scandir(folder) as entries:
            found = list(entries)
        shutil.rmtree(runs / compose([*TINY, "seed=0"]).run.run_id)
        return found

    runs, scan = workspace / "runs", SimpleNamespace(scandir=scanned)
    monkeypatch.setattr("cppo_lab.sweep.cost.os", scan)
    assert StepTimes(runs).of("mini", "", {}) == [[2.0] * 3]


@pytest.mark.parametrize("words, has_layout", [(TINY, False), (["core=verl", "model=tiny_qwen3"], True)])
def test_an_attempt_records_the_layout_of_a_core_that_has_one(
    workspace: Path, no_training: None, words: list[str], has_layout: bool
) -> None:
    composed = compose(words)
    attempt = Attempt(composed.run, workspace / "runs", layout=composed.layout)
    TrainingJob((attempt,), tracking_uri(composed.tracking.uri)).run()
    tags = newest_record(attempt.folder).begin.tags
    assert tags.get(schema.TAG_LAYOUT) == (layout_tag(composed.layout) if has_layout else None)


def test_what_is_left_out_of_measured_costs_is_said() -> None:
    small = planned(compose(TINY))
    by_id = {small.run_id: cost_of(small.spec, small.layout, [3600.0])}
    text = cost_summary([small], by_id, dict.fromkeys(by_id, RunState(schema.MISSING)))
    assert text == (
        "Measured cost: 4 hours of one process for 1 run, by the step times of the newest past run of each kind; 4 "
        "remaining (1 of them); without validations, warm start and start-up."
    )


def test_sums_of_different_origin_are_added_where_all_are_gpu_hours() -> None:
    costs: dict[str, Cost | None] = {
        "a": Cost(10.0, 80.0, ESTIMATE),
        "b": Cost(2.0, 16.0, PREFLIGHT),
        "c": Cost(3.0, 24.0, PREFLIGHT),
        "d": Cost(4.0, 32.0, MEASURED, measured_runs=2),
    }
    states = {run_id: RunState(schema.DONE if run_id in "bd" else schema.MISSING) for run_id in costs}
    assert cost_summary([], costs, states).splitlines() == [
        "Estimated cost: 40 to 160 GPU-hours for 1 run; 40 to 160 remaining (1 of them).",
        "Cost by preflight: 40 GPU-hours for 2 runs; 24 remaining (1 of them). `cppo preflight --show` has the "
        "interval.",
        "Measured cost: 32 GPU-hours for 1 run, by the step times of up to 2 past runs of each kind; 0 remaining "
        "(0 of them).",
        "Together: 110 to 230 GPU-hours; 64 to 180 remaining.",
    ]
    costs = {"a": Cost(2.0, None, PREFLIGHT), "b": Cost(3.0, None, MEASURED, measured_runs=1), "c": None}
    lines = cost_summary([], costs, dict.fromkeys(costs, RunState(schema.PARTIAL))).splitlines()
    assert [line[:30] for line in lines] == [
        "Cost by preflight: 2 hours of ",
        "Measured cost: 3 hours of one ",
    ]
    costs = {"a": Cost(0.1, 0.4, ESTIMATE), "b": Cost(0.1, 0.31, MEASURED, measured_runs=1)}
    text = cost_summary([], costs, dict.fromkeys(costs, RunState(schema.PARTIAL)))
    assert "Estimated cost: 0.2 to 0.8 GPU-hours for 1 run; 0.2 to 0.8 remaining" in text
    assert "Measured cost: 0.31 GPU-hours for 1 run" in text and "Together: 0.51 to 1.1 GPU-hours" in text
    costs = {"a": Cost(500.0, 4000.0, ESTIMATE), "b": Cost(0.1, 0.001, MEASURED, measured_runs=1)}
    text = cost_summary([], costs, dict.fromkeys(costs, RunState(schema.PARTIAL)))
    assert "cost: 2,000 to 8,000 GPU-hours" in text and "cost: below 0.01 GPU-hours" in text
    assert interval([(0.0001, ESTIMATE)]) == "below 0.01"  # both ends
