"""`cppo preflight` with verl's own trainer, and what it says of a run that cannot start."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from cppo_lab.tracking.preflight import read

pytestmark = [pytest.mark.verl, pytest.mark.slow]
ROOT = Path(__file__).parents[3]
COMMAND = ["quickstart", "core=verl", "launcher=local", "validation.samples=4"]


def cppo(folder: Path, *words: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "cppo_lab.cli", *words],
        cwd=folder,
        env=os.environ | {"HF_HUB_OFFLINE": "1", "PYTHONPATH": str(ROOT)},
        check=False,
        capture_output=True,
        text=True,
    )


def test_a_preflight_measures_every_part(tmp_path: Path) -> None:
    done = cppo(tmp_path, "preflight", *COMMAND)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "quickstart: 1 short job, of 1 kinds of runs" in done.stderr
    [folder] = (tmp_path / "runs" / "preflight").glob("tiny_qwen3-*")
    measured = read(folder)
    assert measured is not None
    assert [step.step for step in measured.steps] == [1, 2]
    for step in measured.steps:
        assert min(step.seconds, step.rollout, step.update, step.weights, step.other) > 0
        assert step.seconds == pytest.approx(step.rollout + step.update + step.weights + step.other)
        assert min(step.sampled_per_second, step.trained_per_second, step.topk_megabytes) > 0
        assert step.logprob_error is not None  # no group is left out
    for seconds in (measured.start, measured.resume, measured.validation, measured.checkpoint):
        assert seconds is not None
        assert seconds > 0
    assert measured.memory["max_memory_allocated_gb"] > 0
    # Checkpoints and data are gone, logs and times are kept; nothing was recorded as a run.
    assert {path.name for path in folder.iterdir()} == {"attempts", "measured.json", "verl_phases.jsonl"}
    assert not (tmp_path / "mlflow.db").exists()
    assert "6 runs to the last step: " in done.stdout
    again = cppo(tmp_path, "preflight", *COMMAND)
    assert again.returncode == 0
    assert again.stdout == done.stdout
    assert again.stderr == ""
    assert "Cost by preflight: " in cppo(tmp_path, "plan", *COMMAND).stdout


JOB = """
from pathlib import Path
from cppo_lab.sweep.file import load_sweep
from cppo_lab.sweep.plan import make_plan
from cppo_lab.sweep.preflight import job_of, kinds

if __name__ == "__main__":
    plan = make_plan(load_sweep("main"), ["core=verl", "model=qwen3_1_7b_base", "variant=cppo", "layout=cpu"])
    [kind] = kinds(plan, Path("runs").resolve())
    job_of(kind, plan, Path("runs").resolve()).run()
"""


def test_what_cannot_start_is_the_result(tmp_path: Path) -> None:
    """As on a node that lacks the data: the command looks for it first, where it is to run."""
    (tmp_path / "job.py").write_text(JOB)
    environment = os.environ | {"PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1"}
    subprocess.run([sys.executable, "job.py"], cwd=tmp_path, env=environment, check=True)
    [folder] = (tmp_path / "runs" / "preflight").iterdir()
    measured = read(folder)
    assert measured is not None
    assert measured.error.startswith("starting, before the first validation: UserError: ")
    assert "cppo data prepare" in measured.error
    assert measured.steps == ()
    assert "Traceback" in (folder / "attempts" / "part-1.log").read_text()
