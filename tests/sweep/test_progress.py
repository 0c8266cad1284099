"""What a launch says of runs that are under way."""

from pathlib import Path

import pytest

from cppo_lab.attempt import Attempt
from cppo_lab.runs.folder import write_status
from cppo_lab.sweep.declare import load_sweep
from cppo_lab.sweep.plan import make_plan
from cppo_lab.sweep.progress import Progress
from tests.conftest import TINY


@pytest.fixture
def attempt(workspace: Path) -> Attempt:
    plan = make_plan(load_sweep("quickstart"), TINY)
    return Attempt(plan.runs[0].spec, workspace / "runs", "sqlite:///mlflow.db", created=1000.0)


@pytest.mark.parametrize(
    ("status", "said"),
    [
        ({}, "starting"),
        ({"status": "done", "step": 4, "t_stop": 4, "updated": 999.0}, "starting"),  # of an earlier attempt
        ({"status": "running", "step": 1, "t_stop": 4, "updated": 1001.0}, "step 1/4"),
        ({"status": "done", "step": 4, "t_stop": 4, "updated": 1001.0}, "recording its end"),
    ],
)
def test_where_a_run_stands(attempt: Attempt, status: dict[str, object], said: str) -> None:
    progress = Progress(make_plan(load_sweep("quickstart"), TINY), {}, todo=1)
    progress.running.append(attempt)
    attempt.folder.mkdir(parents=True)
    if status:
        write_status(attempt.folder, status)
    assert progress.overview().startswith(f"grpo/mini_base/seed 0 {said}")
