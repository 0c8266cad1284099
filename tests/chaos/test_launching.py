"""The launchers of a chaos run, and what starts Python in its jobs."""

import runpy
import sys
from pathlib import Path

import pytest

from cppo_lab.launch.slurm.ledger import Ledger
from cppo_lab.tracking import uploader
from dev.chaos import job_entry
from dev.chaos.__main__ import main
from dev.chaos.launching import begun
from dev.chaos.nemesis_run import JOB_ENTRY
from dev.chaos.study import ROOT

SHOW = "import sys; from cppo_lab.tracking import uploader; print(uploader.FIRST_SECONDS, *sys.argv[1:])\n"


def test_a_submission_has_begun_until_its_answer_is_on_record(tmp_path: Path) -> None:
    assert begun(tmp_path) == frozenset()
    with Ledger(tmp_path) as ledger:
        token = ledger.claim(["one", "two"])
        assert begun(tmp_path) == {token}
        ledger.submitted(token, 7)
        assert begun(tmp_path) == frozenset()


@pytest.mark.parametrize(("task", "seconds"), [("4", "0.5"), ("5", "30.0")])
def test_half_of_the_jobs_upload_at_once(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    task: str,
    seconds: str,
) -> None:
    (tmp_path / "shown.py").write_text(SHOW)
    script = Path(job_entry.__file__)
    monkeypatch.setattr(uploader, "FIRST_SECONDS", uploader.FIRST_SECONDS)
    monkeypatch.setenv("SLURM_ARRAY_TASK_ID", task)
    monkeypatch.setattr(sys, "argv", [str(script), "-u", "-m", "shown", "a", "b"])
    monkeypatch.setattr(
        sys, "path", [str(script.parent), str(tmp_path), *sys.path]
    )  # as Python has it for a script
    runpy.run_path(str(script), run_name="__main__")
    assert capsys.readouterr().out == f"{seconds} a b\n"
    assert str(script.parent) not in sys.path


def test_the_jobs_start_python_by_a_file_that_is_there() -> None:
    assert (ROOT / JOB_ENTRY).is_file()


def test_a_wrong_number_of_runs_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--runs", "10"]) == 1
    assert capsys.readouterr().err == (
        "dev.chaos: error: --runs 10: sensitivity has 4 variants: give a multiple of 4\n"
    )
