"""The launchers of a chaos run, and what starts Python in its jobs."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from cppo_lab.launch.slurm.ledger import Ledger
from dev.chaos import eager
from dev.chaos.__main__ import main
from dev.chaos.launching import begun

SHOW = (
    "import sys; from cppo_lab.tracking import shipper; print(shipper.ASIDE_AFTER_SECONDS, *sys.argv[1:])\n"
)


def test_a_submission_has_begun_until_its_answer_is_on_record(tmp_path: Path) -> None:
    assert begun(tmp_path) == frozenset()
    with Ledger(tmp_path) as ledger:
        token = ledger.claim(["one", "two"])
        assert begun(tmp_path) == {token}
        ledger.submitted(token, 7)
        assert begun(tmp_path) == frozenset()


@pytest.mark.parametrize(("task", "seconds"), [("4", "0.5"), ("5", "30.0")])
def test_half_of_the_jobs_have_a_process_that_ships_at_once(tmp_path: Path, task: str, seconds: str) -> None:
    (tmp_path / "shown.py").write_text(SHOW)
    done = subprocess.run(
        [sys.executable, eager.__file__, "-u", "-m", "shown", "a", "b"],
        env={
            **os.environ,
            "SLURM_ARRAY_TASK_ID": task,
            "PYTHONPATH": os.pathsep.join([str(tmp_path), str(Path(__file__).parents[2])]),
        },
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == f"{seconds} a b\n"


def test_a_wrong_number_of_runs_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--runs", "10"]) == 1
    assert capsys.readouterr().err == (
        "dev.chaos: error: --runs 10: sensitivity has 4 variants: give a multiple of 4\n"
    )
