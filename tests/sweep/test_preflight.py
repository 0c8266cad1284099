"""What a preflight's measurements come to: kinds of runs, hours with an interval, the text, the plan's cost."""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from cppo_lab.core_records import Allocation
from cppo_lab.cores.base import write_phases
from cppo_lab.sweep.cost import (
    FILE,
    LONGER,
    MEASURED,
    PREFLIGHT,
    SPREAD,
    Hours,
    PreflightResult,
    Step,
    past_costs,
    read_preflight,
    whole_run,
)
from cppo_lab.sweep.enumerate import PlannedRun
from cppo_lab.sweep.plan import Plan
from cppo_lab.sweep.preflight import (
    PreflightJob,
    RunKind,
    _Part,
    job_of,
    kinds,
    open_kinds,
    report,
    shortened,
    with_stand_ins,
)
from tests.conftest import user_error
from tests.jobs import planned

STEP = Step(1, 100.0, 60.0, 30.0, 5.0, 5.0, 4000.0, 8000.0, 1000.0, 12.5, 1e-3)
RESULT = PreflightResult(
    "qwen3_1_7b_base",
    "one_node",
    8,
    "0123456789ab",
    (STEP, replace(STEP, step=2, seconds=110.0, rollout=66.0, update=33.0, other=6.0)),
    start=300.0,
    resume=320.0,
    validation=200.0,
    checkpoint=20.0,
    memory={"max_memory_allocated_gb": 55.0, "system/gpu_0_memory_peak_megabytes": 70000.0},
    machine={"all-reduce over 8 devices, GB/s": 312.4, "vLLM": "0.24.0, model runner 2"},
)


@pytest.fixture(scope="module")
def main_plan() -> Plan:
    return planned("main core=verl variant=cppo,grpo")


@pytest.fixture
def kind(main_plan: Plan, tmp_path: Path) -> RunKind:
    """The runs of a model, whose folder is not there yet."""
    every = kinds(main_plan, tmp_path)
    return next(kind for kind in every if kind.example.spec.model.name == "qwen3_1_7b_base")


@pytest.fixture
def run(kind: RunKind) -> PlannedRun:
    return kind.runs[0]


@pytest.fixture
def job(kind: RunKind, main_plan: Plan, tmp_path: Path) -> PreflightJob:
    return job_of(kind, main_plan, tmp_path)


def on_file(kind: RunKind, result: PreflightResult) -> None:
    kind.folder.mkdir(parents=True, exist_ok=True)
    result.write(kind.folder)


def test_runs_of_one_model_and_layout_are_one_kind(main_plan: Plan, tmp_path: Path) -> None:
    every = kinds(main_plan, tmp_path)
    ids = sorted(run.run_id for kind in every for run in kind.runs)
    assert ids == sorted(run.run_id for run in main_plan.runs)
    by_model = {(run.spec.model.name, run.layout.name) for run in main_plan.runs}
    assert len(every) == len(by_model) == len({kind.folder for kind in every})
    for kind in every:
        assert kind.example.spec.divergence.k == max(run.spec.divergence.k or 0 for run in kind.runs)

    def folder(*more: str) -> Path:
        chosen = ["core=verl", "variant=cppo", "seed=0", *more]
        [kind] = kinds(planned(["quickstart", *chosen]), tmp_path)
        return kind.folder

    assert folder() == folder("rule.w_min=0.7") == folder("training.t_stop=8")
    others = ["batch.prompts=16", "rollout.max_response_length=40", "layout.tokens_per_device=99"]
    assert len({folder(), *map(folder, others)}) == 1 + len(others)  # they change time or memory


def test_the_short_run_keeps_all_shapes(run: PlannedRun) -> None:
    short, whole = (spec.model_dump() for spec in (shortened(run.spec, 2), run.spec))
    whole["training"]["t_stop"], whole["validation"]["every"] = 2, 1
    whole["advantage"]["drop_zero_variance"] = False
    assert short == whole


def test_hours_of_a_whole_run(run: PlannedRun) -> None:
    """By hand: 680 steps, 69 validations, 68 checkpoints; answers half as long again at the high end."""
    assert (run.spec.training.t_stop, run.spec.validation.every) == (680, 10)

    def hours_with(length: float) -> Hours:
        steps = tuple(replace(step, response_length=length) for step in RESULT.steps)
        return whole_run(replace(RESULT, steps=steps), run.spec)

    def high(grown: float) -> float:
        others = (69 * 200 + 68 * 20) * grown
        return (300 + (680 * (grown * 99 + 5 + 5) + others) * (1 + SPREAD)) / 3600

    hours = hours_with(8000.0)
    low = 300 + 680 * 100 * (1 - SPREAD) + (69 * 200 + 68 * 20) * (1 - SPREAD)
    assert hours.low == pytest.approx(low / 3600)
    assert hours.high == pytest.approx(high(8192 / 8000))  # no answer is longer than the limit
    assert hours.middle == pytest.approx((hours.low * hours.high) ** 0.5)
    assert hours_with(5000.0).high == pytest.approx(high(LONGER))


@pytest.mark.parametrize(
    "broken",
    [
        {"error": "starting, before the first validation: OutOfMemoryError"},
        {"steps": ()},
        {"start": None},
        {"validation": None},
        {"steps": (replace(STEP, logprob_error=None),)},
        {"steps": (replace(STEP, response_length=0.0),)},
    ],
)
def test_what_broke_off_says_no_hours(run: PlannedRun, broken: dict[str, Any]) -> None:
    assert whole_run(replace(RESULT, **broken), run.spec) is None


def test_the_plan_goes_by_it_until_there_are_past_runs(
    run: PlannedRun, kind: RunKind, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cppo_lab.sweep.cost.runs_folder", lambda: tmp_path)
    on_file(kind, RESULT)
    assert read_preflight(kind.folder) == RESULT
    hours = whole_run(RESULT, run.spec)
    cost = past_costs([run])[run.run_id]
    assert (cost.basis, cost.hours, cost.gpu_hours) == (PREFLIGHT, hours.middle, hours.middle * 8)
    monkeypatch.setattr("cppo_lab.sweep.cost.StepTimes.of", lambda *_: [[50.0] * 10])
    assert past_costs([run])[run.run_id].basis == MEASURED


def test_the_report_names_parts_memory_and_hours(kind: RunKind) -> None:
    assert report(kind).endswith("not measured yet")
    on_file(kind, RESULT)
    text = report(kind)
    for line in (
        r"start from a checkpoint +320 s$",
        r"step 1 +100 s +estimate [\d,.]+ s$",
        r"  sampled +4,000 tokens/s$",
        r"memory of the trainer on one device, allocated +55 GiB +estimate [\d,.]+ GiB$",
        r"memory of gpu 0, highest +65.2 GiB$",
        r"mean \|mu/pi - 1\| over a step's updates +1.0e-03$",
        r"all-reduce over 8 devices, GB/s +312$",
        r"vLLM +0.24.0, model runner 2$",
        rf"{len(kind.runs)} runs to the last step: [\d,]+ to [\d,]+ GPU-hours \(estimate: [\d,]+\)$",
    ):
        assert re.search(f"^  {line}", text, re.MULTILINE), line
    on_file(kind, replace(RESULT, error="resuming, after step 1: OutOfMemoryError: 80\n\x1b[2JGB"))
    assert r"FAILED resuming, after step 1: OutOfMemoryError: 80 \x1b[2JGB" in report(kind)
    assert "to the last step" not in report(kind)


@pytest.mark.parametrize("error, trained", [("", [1, 2]), ("OutOfMemoryError", [1]), ("(exit code -9)", [1])])
def test_several_nodes_meet_anew_for_each_part(
    job: PreflightJob, error: str, trained: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that resuming is tried there too; none waits for a part that does not come."""
    first, other = (
        replace(job, allocation=Allocation(("a", "b"), rank, job.folder / "attempts" / "nodes"))
        for rank in (0, 1)
    )
    monkeypatch.setattr("cppo_lab.sweep.preflight.lend_machine", lent := Mock())
    other.run()
    meetings = [start.allocation for start in lent.call_args.args[1]]
    assert [allocation.meeting.name for allocation in meetings] == ["part-1", "part-2"]
    seen = []

    def process(target: object, args: tuple[PreflightJob, int]) -> Mock:
        """One that trains nothing, and has looked which meetings are over."""
        part, last = args

        def start() -> None:
            over = [allocation.ended() for allocation in meetings]
            seen.append((last, part.allocation.meeting == meetings[last - 1].meeting, over))
            if "exit code" not in error:  # else it was killed
                (job.folder / f"part-{last}.json").write_text(json.dumps({"began": 1.0, "error": error}))

        return Mock(start=start, exitcode=-9, is_alive=lambda: False)

    monkeypatch.setattr("multiprocessing.get_context", lambda how: Mock(Process=process))
    job.folder.mkdir(parents=True)
    (link := job.folder / "of_another").symlink_to(job.folder.parent)
    first.run()
    assert not link.is_symlink()  # it alone is removed
    assert seen == [(last, True, [last > 1, False]) for last in trained]
    assert all(allocation.ended() for allocation in meetings)
    assert error in read_preflight(job.folder).error


def test_only_the_visible_devices_are_measured(
    kind: RunKind, main_plan: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    assert job_of(kind, main_plan, tmp_path).visible_devices == "1"


def test_only_what_is_not_on_file_is_measured(main_plan: Plan, tmp_path: Path) -> None:
    every = kinds(main_plan, tmp_path)
    assert open_kinds(every, main_plan, tmp_path) == every
    on_file(every[0], RESULT)
    assert open_kinds(every, main_plan, tmp_path) == every[1:]
    assert open_kinds(every, main_plan, tmp_path, again=True) == every
    on_file(every[0], replace(RESULT, error="starting: killed"))
    assert open_kinds(every, main_plan, tmp_path) == every


def test_stand_ins_take_the_place_of_models_and_data(
    job: PreflightJob, kind: RunKind, main_plan: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert (job.places[0], job.fresh_process) == (tmp_path, False)
    made = Mock(return_value=main_plan.paths)
    monkeypatch.setattr("cppo_lab.sweep.preflight.load_part", lambda core, part: made)
    assert with_stand_ins([kind], main_plan, tmp_path) == main_plan and made.call_args.args[0] == [job.spec]
    monkeypatch.setattr(
        "cppo_lab.sweep.preflight.load_part", Mock(side_effect=ModuleNotFoundError(name="verl"))
    )
    with user_error("package 'verl' is not installed, and stand-ins are made by it: pip install"):
        with_stand_ins([kind], main_plan, tmp_path)


def test_parts_become_a_measurement(job: PreflightJob) -> None:
    """Two processes: 0 is validated and 1 trained by the first, 2 by the second."""
    job.folder.mkdir(parents=True)
    write_phases(job.folder, 0, {"testing": 10.0}, {})
    timers = {"step": 50.0, "save_checkpoint": 4.0, "update_weights": 1.0, "testing": 12.0}
    for step in (1, 2):
        write_phases(job.folder, step, timers, {"perf/max_memory_allocated_gb": 40.0 + step})
    row = {"perf/rollout_seconds": 30.0, "perf/update_seconds": 10.0, "train/relative_logprob_error": 0.01}
    first = _Part(100.0, {"0": {}, "1": row}, {"0": 140.0, "1": 210.0}, {"system/x": 1.0})
    second = _Part(400.0, {"2": row}, {"2": 500.0}, {"system/x": 3.0})
    result = job._measured({1: first, 2: second})
    assert (result.start, result.resume) == (30.0, 38.0)
    assert (result.validation, result.checkpoint) == (12.0, 4.0)
    steps = [(step.step, step.seconds, step.weights, step.other) for step in result.steps]
    assert steps == [(1, 46.0, 1.0, 5.0), (2, 46.0, 1.0, 5.0)]
    assert result.memory == {"max_memory_allocated_gb": 42.0, "system/x": 3.0}
    assert result.error == ""
    dead = job._measured({1: _Part(error="OutOfMemoryError: 80 GB")})
    assert dead.error == "starting, before the first validation: OutOfMemoryError: 80 GB"
    assert job._measured({1: first, 2: _Part(error="gone")}).error.startswith("resuming, ")
    job.give_up("out of time")  # no launcher goes on with it
    assert read_preflight(job.folder).error == "out of time"


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    for text in ("{", "[]", "{}", '{"steps": [{"x": 1}]}'):
        (tmp_path / FILE).write_text(text)
        with user_error("is damaged"):
            read_preflight(tmp_path)


def test_a_folder_that_is_a_link_is_not_emptied(job: PreflightJob, tmp_path: Path) -> None:
    (mine := tmp_path / "elsewhere" / "mine").mkdir(parents=True)
    job.folder.parent.mkdir(parents=True)
    job.folder.symlink_to(mine.parent)
    with user_error("is a link"):
        job.run()
    assert mine.exists()
