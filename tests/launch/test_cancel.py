"""`cppo cancel` and `cppo retry` on real runs of the local and the inline launcher."""

import json
from pathlib import Path

import pytest

from cppo_lab import schema
from cppo_lab.cli import main
from cppo_lab.cores.mini.trainer import Trainer
from cppo_lab.runs import folder as run_folder
from cppo_lab.signals import Interrupted
from cppo_lab.spec import RunSpec
from cppo_lab.tracking.address import tracking_uri
from tests.jobs import job
from tests.launch.gate import Gate
from tests.launch.test_launch import SWEEP, TWO, cppo, mlflow_runs
from tests.waiting import CEILING_SECONDS


@pytest.fixture(autouse=True)
def _patient_cancel(monkeypatch: pytest.MonkeyPatch) -> None:
    """However long a run takes to end."""
    monkeypatch.setattr("cppo_lab.sweep.cancel.PATIENCE_SECONDS", CEILING_SECONDS)


def states(capsys: pytest.CaptureFixture[str], *sweep: str) -> dict[str, tuple[str, str]]:
    """State and reason by variant."""
    capsys.readouterr()
    assert main(["status", *sweep, "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["runs"]
    return {row["variants"]["quickstart"]: (row["state"], row["reason"]) for row in rows}


def test_a_queued_run_is_not_started_and_a_running_one_ends_in_order(
    workspace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    gate = Gate(workspace, validation=1)
    launcher = cppo("launch", *TWO, "launcher.workers=1", gate=gate)
    gate.reached(launcher)
    [running] = [path.parent.name for path in (workspace / "runs").glob("*/config.json")]
    assert main(["cancel", *TWO, "--dry-run"]) == 0
    assert capsys.readouterr().out.count("would be cancelled") == 2
    assert sorted(state for state, _ in states(capsys, *TWO).values()) == ["queued", "running"]

    assert main(["cancel", *TWO, "--queued"]) == 0
    assert "will not be started\n1 of 2 runs cancelled" in capsys.readouterr().out
    assert sorted(state for state, _ in states(capsys, *TWO).values()) == ["missing", "running"]
    assert main(["cancel", "--run", running[:6]]) == 0
    assert "ended; the next launch resumes it" in capsys.readouterr().out
    output, _ = launcher.communicate()
    assert launcher.returncode == 1, output
    assert "cancelled  [2/2]" in output

    [run] = mlflow_runs()  # the other one was never started
    assert (run.info.status, run.data.tags[schema.TAG_STATUS]) == ("KILLED", "partial")
    [missing, (state, reason)] = sorted(states(capsys, *TWO).values())
    assert (missing, state) == (("missing", ""), "partial")
    assert reason.startswith("interrupted: cancelled at step ")
    assert run.data.tags[schema.TAG_REASON] == reason
    assert main(["cancel", *TWO]) == 0
    assert "nothing to cancel" in capsys.readouterr().out

    assert main(["launch", *TWO, "launcher=inline"]) == 0  # both are wanted again, and go on
    assert [state for state, _ in states(capsys, *TWO).values()] == ["done", "done"]
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


def test_failed_runs_are_left_until_they_are_retried(
    workspace: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    inline = [*SWEEP, "launcher=inline"]
    real = Trainer.collect

    def broken(self: Trainer) -> dict[str, float]:
        if self.spec.rule.name == "cppo":
            raise RuntimeError("no memory left")
        return real(self)

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "collect", broken)
        assert main(["launch", *inline]) == 4
    assert "1 of 2 runs are not done (1 failed): cppo retry quickstart" in capsys.readouterr().err
    assert states(capsys, *inline)["cppo"] == ("failed", "RuntimeError: no memory left")
    assert main(["launch", *inline]) == 4
    said = capsys.readouterr().err
    assert "0 to train" in said
    assert "1 run failed with an error and is not retrained: see `cppo status quickstart" in said
    assert [run.info.status for run in mlflow_runs()] == ["FINISHED", "FAILED"]

    assert main(["retry", *inline, "--failed"]) == 0
    assert "1 to train" in capsys.readouterr().err
    assert [state for state, _ in states(capsys, *inline).values()] == ["done", "done"]
    assert main(["retry", *inline, "--failed"]) == 0
    assert "no run of quickstart has failed" in capsys.readouterr().out
    done = mlflow_runs()[0].data.tags[schema.TAG_RUN_ID]
    assert main(["retry", *inline, "--run", done]) == 2
    assert f"--run {done} is done" in capsys.readouterr().err
