"""The chaos run without a cluster: its schedule, its study, its launchers."""

import os
import subprocess
import sys
from pathlib import Path
from unittest.mock import Mock

import pytest

from cppo_lab.launch.slurm.queue import Ledger
from cppo_lab.runs.recorder import Recorder
from cppo_lab.schema import DONE, Outcome
from cppo_lab.spec import RunSpec
from dev.chaos.nemesis import JOB_ENTRY, NemesisRun, begun
from dev.chaos.strikes import COMES_BACK, KINDS, LAST, LONG, LONGEST_PAUSE, SHORT, Strikes, draw
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
    (tmp_path / "shown.py").write_text(
        "import sys; from cppo_lab.tracking import uploader; print(uploader.FIRST_SECONDS, *sys.argv[1:])\n"
    )
    words = [sys.executable, ROOT / JOB_ENTRY, "-u", "-m", "shown", "a", "b"]
    for task, seconds in (("4", "0.5"), ("5", "30.0")):
        env = os.environ | {"SLURM_ARRAY_TASK_ID": task, "PYTHONPATH": f"{tmp_path}:{ROOT}"}
        assert subprocess.check_output(words, env=env, text=True) == f"{seconds} a b\n"


def test_a_part_that_fails_after_the_last_look_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as a store that cannot be used: no run waits for it."""
    run = NemesisRun.__new__(NemesisRun)
    run._strikes, run._launcher, run._over = Strikes(None, print), None, True
    for name in ("_launch", "_strike", "say"):
        monkeypatch.setattr(run, name, lambda *words: None, raising=False)

    def poll() -> None:
        """The last one, after which the part fails."""
        run._over = True
        fail = Mock(side_effect=DevError("a store cannot be used"))
        run._strikes._coming.append(run._strikes._pool.submit(fail))

    monkeypatch.setattr(run, "_poll", poll, raising=False)
    with pytest.raises(DevError, match="a store cannot be used"):
        run.run()
