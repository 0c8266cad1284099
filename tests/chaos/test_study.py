"""What a chaos run knows of the study that it disturbs."""

from pathlib import Path

import pytest

from cppo_lab.runs.recorder import Recorder
from cppo_lab.schema import DONE, Outcome
from cppo_lab.spec import RunSpec
from cppo_lab.sweep.file import load_sweep
from cppo_lab.sweep.plan import make_plan
from dev.chaos.study import Study, left_behind
from dev.errors import DevError


def test_the_study_has_as_many_runs_as_asked() -> None:
    name, *overrides = Study(12, 24).words
    plan = make_plan(load_sweep(name), overrides)
    assert len(plan.runs) == 12
    assert {run.spec.training.t_stop for run in plan.runs} == {24}


def test_it_wants_all_variants_of_a_seed() -> None:
    with pytest.raises(DevError, match="multiple of 4"):
        Study(10, 24)


def test_progress_counts_each_step_once(tmp_path: Path) -> None:
    study = Study(4, 4)
    assert study.progress(tmp_path / "nothing") == 0
    spool = tmp_path / "one" / "spool"
    spool.mkdir(parents=True)
    row = '{{"step": {}, "time_ms": 1, "metrics": {{"train/reward": 1.0}}}}\n'
    (spool / "0001.jsonl").write_text('{"kind": "begin"}\n' + "".join(row.format(step) for step in range(3)))
    (spool / "0002.jsonl").write_text(
        '{"kind": "begin"}\n' + "".join(row.format(step) for step in range(2, 5))
    )
    assert study.progress(tmp_path) == 5 / 20


def test_what_is_left_behind_is_named(workspace: Path, tiny_spec: RunSpec) -> None:
    runs = workspace / "runs"
    recorder = Recorder(tiny_spec, {}, runs / "one")
    (runs / "one" / "checkpoint.pt").touch()
    assert left_behind(runs) == []
    recorder.finish(Outcome(DONE, 4))
    assert left_behind(runs) == ["one/checkpoint.pt is left"]
