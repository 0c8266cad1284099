"""What a preflight's measurements come to: kinds of runs, hours with an interval, the text, the plan's cost."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from cppo_lab.cores import phases
from cppo_lab.errors import UserError
from cppo_lab.preflight import _Part, shortened
from cppo_lab.spec import VerlRun
from cppo_lab.sweep.cost import LONGER, PREFLIGHT, SPREAD, costs, whole_run
from cppo_lab.sweep.file import load_sweep
from cppo_lab.sweep.plan import Plan, make_plan
from cppo_lab.sweep.preflight import job_of, kinds, open_kinds, report
from cppo_lab.tracking.preflight import FILE, PreflightResult, Step, folder_of, read

STEP = Step(1, 100.0, 60.0, 30.0, 5.0, 5.0, 4000.0, 8000.0, 1000.0, 12.5, 1e-3)
FOUND = PreflightResult(
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
)


@pytest.fixture(scope="module")
def main_plan() -> Plan:
    return make_plan(load_sweep("main"), ["core=verl"])


def test_runs_of_one_model_and_layout_are_one_kind(main_plan: Plan, tmp_path: Path) -> None:
    found = kinds(main_plan, tmp_path)
    assert sorted(run.run_id for kind in found for run in kind.runs) == sorted(
        run.run_id for run in main_plan.runs
    )
    by_model = {(run.spec.model.name, run.layout.name) for run in main_plan.runs}
    assert len(found) == len(by_model) == len({kind.folder for kind in found})
    for kind in found:
        assert kind.example.spec.divergence.k == max(run.spec.divergence.k or 0 for run in kind.runs)


def test_what_changes_time_or_memory_makes_another_kind(tmp_path: Path) -> None:
    def folder(*overrides: str) -> Path:
        [kind] = kinds(
            make_plan(load_sweep("quickstart"), ["core=verl", "variant=cppo", "seed=0", *overrides]), tmp_path
        )
        return kind.folder

    assert folder() == folder("rule.w_min=0.7") == folder("training.t_stop=8")
    others = ["batch.prompts=16", "rollout.max_response_length=40", "layout.tokens_per_device=99"]
    assert len({folder(), *(folder(one) for one in others)}) == 1 + len(others)


def test_the_short_run_keeps_all_shapes(main_plan: Plan) -> None:
    spec = main_plan.runs[0].spec
    assert isinstance(spec, VerlRun)
    short = shortened(spec, 2)
    assert (short.training.t_stop, short.validation.every) == (2, 1)
    assert not short.advantage.drop_zero_variance
    kept = {"model", "batch", "rollout", "data", "rule", "divergence", "seed"}
    assert {name: getattr(short, name) for name in kept} == {name: getattr(spec, name) for name in kept}


def test_hours_of_a_whole_run(main_plan: Plan) -> None:
    """By hand: 680 steps, 69 validations, 68 checkpoints; answers half as long again at the high end."""
    spec = next(run.spec for run in main_plan.runs if run.spec.model.name == "qwen3_1_7b_base")
    assert (spec.training.t_stop, spec.validation.every) == (680, 10)
    long = replace(FOUND, steps=tuple(replace(one, response_length=8000.0) for one in FOUND.steps))
    hours = whole_run(long, spec)
    assert hours is not None
    grown = 8192 / 8000  # no answer is longer than the limit
    low = 300 + 680 * 100 * (1 - SPREAD) + (69 * 200 + 68 * 20) * (1 - SPREAD)
    high = 300 + 680 * (grown * 99 + 5 + 5) * (1 + SPREAD) + (69 * 200 + 68 * 20) * grown * (1 + SPREAD)
    assert hours.low == pytest.approx(low / 3600)
    assert hours.high == pytest.approx(high / 3600)
    assert hours.middle == pytest.approx((low * high) ** 0.5 / 3600)
    short = replace(FOUND, steps=tuple(replace(one, response_length=5000.0) for one in FOUND.steps))
    more = whole_run(short, spec)
    assert more is not None
    assert more.high - 300 / 3600 == pytest.approx(
        (680 * (LONGER * 99 + 10) + (69 * 200 + 68 * 20) * LONGER) * (1 + SPREAD) / 3600
    )


@pytest.mark.parametrize(
    "broken",
    [
        replace(FOUND, error="starting, before the first validation: OutOfMemoryError"),
        replace(FOUND, steps=()),
        replace(FOUND, validation=None),
        replace(FOUND, steps=(replace(STEP, logprob_error=None),)),
    ],
)
def test_what_broke_off_says_no_hours(main_plan: Plan, broken: PreflightResult) -> None:
    assert whole_run(broken, main_plan.runs[0].spec) is None


def test_the_plan_goes_by_it_until_there_are_past_runs(main_plan: Plan, tmp_path: Path) -> None:
    run = next(run for run in main_plan.runs if run.spec.model.name == "qwen3_1_7b_base")
    folder = folder_of(run.spec, run.layout, tmp_path)
    folder.mkdir(parents=True)
    FOUND.write(folder)
    assert read(folder) == FOUND
    hours = whole_run(FOUND, run.spec)
    assert hours is not None
    cost = costs([run], lambda *_: [], tmp_path)[run.run_id]
    assert cost is not None
    assert (cost.basis, cost.hours, cost.gpu_hours) == (PREFLIGHT, hours.middle, hours.middle * 8)
    past = costs([run], lambda *_: [[50.0] * 10], tmp_path)[run.run_id]
    assert past is not None
    assert past.basis == "measured"


def test_the_report_names_parts_memory_and_hours(main_plan: Plan, tmp_path: Path) -> None:
    kind = next(one for one in kinds(main_plan, tmp_path) if one.example.spec.model.name == "qwen3_1_7b_base")
    assert report(kind).endswith("not measured yet")
    kind.folder.mkdir(parents=True)
    FOUND.write(kind.folder)
    text = report(kind)
    for part in (
        "start from a checkpoint",
        "320 s",
        "sampled",
        "4,000 tokens/s",
        "55 GiB",
        "65.2 GiB",
        "1.0e-03",
    ):
        assert part in text
    assert "estimate" in text
    assert f"{len(kind.runs)} runs to the last step: " in text
    assert "GPU-hours" in text
    replace(FOUND, error="resuming, after step 1: OutOfMemoryError: 80\n\x1b[2JGB").write(kind.folder)
    assert r"FAILED resuming, after step 1: OutOfMemoryError: 80 \x1b[2JGB" in report(kind)
    assert "to the last step" not in report(kind)


def test_only_what_is_not_on_file_is_measured(main_plan: Plan, tmp_path: Path) -> None:
    found = kinds(main_plan, tmp_path)
    assert open_kinds(found, main_plan, tmp_path) == found
    found[0].folder.mkdir(parents=True)
    FOUND.write(found[0].folder)
    assert open_kinds(found, main_plan, tmp_path) == found[1:]
    assert open_kinds(found, main_plan, tmp_path, again=True) == found
    replace(FOUND, error="starting: killed").write(found[0].folder)
    assert open_kinds(found, main_plan, tmp_path) == found


def test_parts_become_a_measurement(main_plan: Plan, tmp_path: Path) -> None:
    """Two processes: 0 is validated and 1 trained by the first, 2 by the second."""
    job = job_of(kinds(main_plan, tmp_path)[0], main_plan, tmp_path)
    job.folder.mkdir(parents=True)
    phases.append(job.folder, 0, {"testing": 10.0}, {})
    timers = {"step": 50.0, "save_checkpoint": 4.0, "update_weights": 1.0, "testing": 12.0}
    for step in (1, 2):
        phases.append(job.folder, step, timers, {"perf/max_memory_allocated_gb": 40.0 + step})
    row = {"perf/rollout_seconds": 30.0, "perf/update_seconds": 10.0, "train/relative_logprob_error": 0.01}
    first = _Part(100.0, 300.0, {"0": {}, "1": row}, {"0": 140.0, "1": 210.0}, {"system/x": 1.0})
    second = _Part(400.0, 600.0, {"2": row}, {"2": 500.0}, {"system/x": 3.0})
    found = job._measured({1: first, 2: second})
    assert (found.start, found.resume) == (30.0, 38.0)
    assert (found.validation, found.checkpoint) == (12.0, 4.0)
    assert [(one.step, one.seconds, one.weights, one.other) for one in found.steps] == [
        (1, 46.0, 1.0, 5.0),
        (2, 46.0, 1.0, 5.0),
    ]
    assert found.memory == {"max_memory_allocated_gb": 42.0, "system/x": 3.0}
    assert found.error == ""
    dead = job._measured({1: _Part(error="OutOfMemoryError: 80 GB")})
    assert dead.error == "starting, before the first validation: OutOfMemoryError: 80 GB"


def test_a_job_that_no_launcher_goes_on_with_says_why(main_plan: Plan, tmp_path: Path) -> None:
    job = job_of(kinds(main_plan, tmp_path)[0], main_plan, tmp_path)
    job.give_up("out of time")
    found = read(job.folder)
    assert found is not None
    assert found.error == "out of time"


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    for text in ("{", "[]", "{}", json.dumps({"steps": [{"x": 1}]})):
        (tmp_path / FILE).write_text(text)
        with pytest.raises(UserError, match="is damaged"):
            read(tmp_path)


def test_a_folder_that_is_a_link_is_not_emptied(main_plan: Plan, tmp_path: Path) -> None:
    job = job_of(kinds(main_plan, tmp_path)[0], main_plan, tmp_path)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "mine").touch()
    job.folder.parent.mkdir(parents=True)
    job.folder.symlink_to(elsewhere)
    with pytest.raises(UserError, match="is a link"):
        job.run()
    assert [path.name for path in elsewhere.iterdir()] == ["mine"]
