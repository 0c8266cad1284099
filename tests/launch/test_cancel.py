"""`cppo cancel` and `cppo retry` on real runs of the local and the inline launcher."""

from pathlib import Path

import pytest

from cppo_lab import schema
from cppo_lab.runs import folder as run_folder
from cppo_lab.signals import Interrupted
from cppo_lab.spec import RunSpec
from cppo_lab.tracking.address import tracking_uri
from tests.conftest import Command
from tests.jobs import job
from tests.launch.gate import Gate
from tests.launch.test_launch import TWO, mlflow_runs, started
from tests.waiting import CEILING_SECONDS


@pytest.fixture(autouse=True)
def _patient_cancel(monkeypatch: pytest.MonkeyPatch) -> None:
    """However long a run takes to end."""
    monkeypatch.setattr("cppo_lab.sweep.cancel.PATIENCE_SECONDS", CEILING_SECONDS)


def states(cppo: Command, *sweep: str) -> dict[str, tuple[str, str]]:
    """State and reason by variant."""
    rows = cppo("status", *sweep, "--json").answer["runs"]
    return {row["variants"]["quickstart"]: (row["state"], row["reason"]) for row in rows}


def test_a_queued_run_is_not_started_and_a_running_one_ends_in_order(workspace: Path, cppo: Command) -> None:
    gate = Gate(workspace, validation=1)
    launcher = started("launch", *TWO, "launcher.workers=1", gate=gate)
    gate.reached(launcher)
    [running] = [path.parent.name for path in (workspace / "runs").glob("*/config.json")]
    assert cppo("cancel", *TWO, "--dry-run").out.count("would be cancelled") == 2
    assert sorted(state for state, _ in states(cppo, *TWO).values()) == ["queued", "running"]

    assert "will not be started\n1 of 2 runs cancelled" in cppo("cancel", *TWO, "--queued").out
    assert sorted(state for state, _ in states(cppo, *TWO).values()) == ["missing", "running"]
    assert "ended; the next launch resumes it" in cppo("cancel", "--run", running[:6]).out
    output, _ = launcher.communicate()
    assert launcher.returncode == 1, output
    assert "cancelled  [2/2]" in output

    [run] = mlflow_runs()  # the other one was never started
    assert (run.info.status, run.data.tags[schema.TAG_STATUS]) == ("KILLED", "partial")
    [missing, (state, reason)] = sorted(states(cppo, *TWO).values())
    assert (missing, state) == (("missing", ""), "partial")
    assert reason.startswith("interrupted: cancelled at step ")
    assert run.data.tags[schema.TAG_REASON] == reason
    assert "nothing to cancel" in cppo("cancel", *TWO).out

    cppo("launch", *TWO, "launcher=inline")  # both are wanted again, and go on
    assert [state for state, _ in states(cppo, *TWO).values()] == ["done", "done"]
    assert run.info.run_id in [stored.info.run_id for stored in mlflow_runs()]


def test_what_was_cancelled_before_this_attempt_does_not_concern_it(
    workspace: Path, tiny_spec: RunSpec
) -> None:
    attempt = job(tiny_spec, workspace / "runs", tracking_uri())
    run_folder.cancel(attempt.folder)
    with pytest.raises(Interrupted, match="cancelled before it began"):
        attempt.run()
    job(tiny_spec, workspace / "runs", tracking_uri()).run()
    assert [run.info.status for run in mlflow_runs()] == ["FINISHED"]
    assert not (attempt.folder / run_folder.CANCELLED).exists()
