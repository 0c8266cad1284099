"""The chaos run without a cluster: its schedule, its study, its launchers, and how it gives up."""

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from cppo_lab.cli.answer import Exit
from cppo_lab.launch.slurm.ledger import Ledger
from cppo_lab.runs.recorder import Recorder
from cppo_lab.schema import DONE, Outcome
from cppo_lab.spec import RunSpec
from cppo_lab.sweep.file import load_sweep
from cppo_lab.sweep.plan import make_plan
from dev.chaos.__main__ import main
from dev.chaos.nemesis import IDLE_LAUNCHES, JOB_ENTRY, REFUSALS, REFUSED, NemesisRun, begun
from dev.chaos.schedule import COMES_BACK, KINDS, LAST, LONG, LONGEST_PAUSE, SHORT, draw
from dev.chaos.study import ROOT, Study, left_behind
from dev.errors import DevError


@pytest.mark.parametrize("counts", [LONG, SHORT])
def test_every_kind_comes_as_often_as_asked(counts: dict[str, int]) -> None:
    assert set(counts) == set(KINDS)
    drawn = draw(0, counts)
    assert drawn == draw(0, dict(reversed(counts.items()))) != draw(1, counts)
    assert {kind: sum(fault.kind == kind for fault in drawn) for kind in KINDS} == counts
    assert list(drawn) == sorted(drawn) and drawn[0].kind == "launcher"
    assert all(0 <= fault.at <= LAST and 0 <= fault.chance < 1 for fault in drawn)
    assert all((1 <= fault.pause <= LONGEST_PAUSE) == (fault.kind in COMES_BACK) for fault in drawn)


def test_the_study_has_as_many_runs_as_asked(capsys: pytest.CaptureFixture[str]) -> None:
    name, *overrides = Study(12, 24).words
    plan = make_plan(load_sweep(name), overrides)
    assert [run.spec.training.t_stop for run in plan.runs] == [24] * 12
    assert main(["--runs", "10"]) == 1
    assert capsys.readouterr().err == (
        "dev.chaos: error: --runs 10: sensitivity has 4 variants: give a multiple of 4\n"
    )


def test_progress_counts_each_step_once(tmp_path: Path) -> None:
    study = Study(4, 4)
    assert study.progress(tmp_path / "nothing") == 0
    spool = tmp_path / "one" / "spool"
    spool.mkdir(parents=True)
    for name, steps in {"0001": range(3), "0002": range(2, 5)}.items():
        rows = (f'{{"step": {step}, "time_ms": 1, "metrics": {{"train/reward": 1.0}}}}\n' for step in steps)
        (spool / f"{name}.jsonl").write_text('{"kind": "begin"}\n' + "".join(rows))
    assert study.progress(tmp_path) == 5 / 20


def test_what_is_left_behind_is_named(workspace: Path, tiny_spec: RunSpec) -> None:
    runs = workspace / "runs"
    recorder = Recorder(tiny_spec, {}, runs / "one")
    (runs / "one" / "checkpoint.pt").touch()
    assert left_behind(runs) == []
    recorder.finish(Outcome(DONE, 4))
    assert left_behind(runs) == ["one/checkpoint.pt is left"]


def test_a_submission_has_begun_until_its_answer_is_on_record(tmp_path: Path) -> None:
    assert begun(tmp_path) == frozenset()
    with Ledger(tmp_path) as ledger:
        token = ledger.claim(["one", "two"])
        assert begun(tmp_path) == {token}
        ledger.submitted(token, 7)
        assert begun(tmp_path) == frozenset()


def test_half_of_the_jobs_upload_at_once(tmp_path: Path) -> None:
    shown = (
        "import sys; from cppo_lab.tracking import uploader; print(uploader.FIRST_SECONDS, *sys.argv[1:])\n"
    )
    (tmp_path / "shown.py").write_text(shown)
    words = [sys.executable, ROOT / JOB_ENTRY, "-u", "-m", "shown", "a", "b"]
    for task, seconds in (("4", "0.5"), ("5", "30.0")):
        env = os.environ | {"SLURM_ARRAY_TASK_ID": task, "PYTHONPATH": f"{tmp_path}:{ROOT}"}
        assert subprocess.check_output(words, env=env, text=True) == f"{seconds} a b\n"


def nemesis_of(*away: str) -> NemesisRun:
    """One that has not begun, with parts of it away."""
    nemesis = NemesisRun.__new__(NemesisRun)
    nemesis._strikes = SimpleNamespace(away=away)  # type: ignore[assignment]
    nemesis._refused, nemesis._over, nemesis._log = 0, False, Path("commands.log")
    nemesis._idle, nemesis._reached, nemesis.progress = 0, 0.0, 0.0
    nemesis.place = SimpleNamespace(folder=Path("disturbed"))  # type: ignore[assignment]
    return nemesis


def end_launches(nemesis: NemesisRun, *statuses: int) -> None:
    """One launch after the other ends with its exit status."""
    for status in statuses:
        nemesis._launcher = SimpleNamespace(  # type: ignore[assignment]
            fault=None,
            words=["launch"],
            ended=lambda status=status: status,
            found_nothing_to_do=lambda: False,
        )
        nemesis._see_launcher()


@pytest.mark.parametrize("refused", REFUSED, ids=lambda status: status.name)
def test_launches_that_are_refused_one_after_the_other(refused: Exit) -> None:
    nemesis = nemesis_of()
    end_launches(nemesis, *[refused] * (REFUSALS - 1), 1, *[refused] * (REFUSALS - 1))
    with pytest.raises(DevError, match=r"10 launches in a row were refused: see commands\.log"):
        end_launches(nemesis, refused)
    end_launches(nemesis_of("mlflow"), *[refused] * 2 * REFUSALS)  # nothing follows while a server is away


def test_launches_after_which_no_step_is_on_file() -> None:
    nemesis = nemesis_of()
    for progress in (0.1, 0.2):
        nemesis.progress = progress
        end_launches(nemesis, 0)
    end_launches(nemesis, *[0] * (IDLE_LAUNCHES - 1))
    with pytest.raises(
        DevError, match=r"40 launches in a row trained nothing: see .*disturbed/runs-kept/slurm"
    ):
        end_launches(nemesis, 0)
