"""From the command line to MLflow on a small sweep: every state, every end, what is cancelled, nothing twice."""

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from unittest.mock import patch

import pytest

from cppo_lab import schema
from cppo_lab.core_records import CHECKPOINT
from cppo_lab.errors import Interrupted
from cppo_lab.runs.folder import CANCELLED, Cause, cancel, is_locked, read_status
from cppo_lab.runs.state import CAUSE_TEXTS
from cppo_lab.spec import RunSpec
from cppo_lab.tracking.address import tracking_uri
from tests.conftest import TINY_LINE, Command
from tests.jobs import job
from tests.launch.gate import Gate
from tests.recorded import ended, histories, history, mlflow_client, mlflow_runs
from tests.waiting import CEILING_SECONDS, until

QUICKSTART = f"quickstart {TINY_LINE} seed=0"
SWEEP = f"{QUICKSTART} variant=grpo,cppo"
# A tiny model may well break down on the way: these go on until something ends them.
LONG = f"{QUICKSTART} training.t_stop=12 training.collapse_share=0"
ONE, TWO = f"{LONG} variant=cppo", f"{LONG} variant=grpo,cppo"


def started(*arguments: str, gate: Gate | None = None, deaf: bool = False) -> "subprocess.Popen[str]":
    """The command, as a shell starts it; if `deaf`, as a script starts one in the background: it ignores SIGINT."""

    def as_a_shell() -> None:
        """The tests may themselves be in the background of a script, and under `nohup`."""
        signal.signal(signal.SIGINT, signal.SIG_IGN if deaf else signal.SIG_DFL)
        signal.signal(signal.SIGHUP, signal.SIG_DFL)

    if gate:
        mlflow_client()  # else the command makes the store's tables, which takes seconds
    return subprocess.Popen(
        [sys.executable, "-m", "cppo_lab.cli", *" ".join(arguments).split()],
        env=gate.environment if gate else None,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
        preexec_fn=as_a_shell,
    )


def test_local_launch_records_everything_and_repeats_nothing(
    cppo: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And the inline launcher gives the same numbers."""

    def numbers() -> dict[str, dict[int, float]]:
        return {run.data.tags[schema.TAG_RULE]: history(run, "rule/divergence_mean") for run in mlflow_runs()}

    cppo(f"launch {SWEEP}")
    by_rule = {run.data.tags[schema.TAG_RULE]: run for run in mlflow_runs()}
    assert {run.info.status for run in by_rule.values()} == {"FINISHED"} and len(by_rule) == 2
    run = by_rule["cppo"]
    assert run.data.tags[schema.TAG_CODE_VERSION].startswith("0.")
    names = (schema.sweep_tag("quickstart"), schema.TAG_STATUS, schema.TAG_T_STOP, schema.TAG_CORE)
    assert [run.data.tags[name] for name in names] == ["cppo", "done", "4", "mini"]
    assert (run.data.params["rule.w_min"], run.data.params["batch.prompts"]) == ("0.8", "8")
    assert set(history(run, "val/mean/avg_at_16")) == {0, 2, 4}
    assert set(history(run, "train/reward")) == {1, 2, 3, 4}
    assert [artifact.path for artifact in mlflow_client().list_artifacts(run.info.run_id)] == [
        *("answers", "answers.json", "config.json", "config.yaml", "diagnostics", "history.npz", "output"),
        "requirements.txt",
    ]
    assert "0 to train" in cppo(f"launch {SWEEP}").err
    local = numbers()
    assert len(mlflow_runs()) == len(local) == 2
    shutil.rmtree("runs")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "sqlite:///inline.db")
    cppo(f"launch {SWEEP} launcher=inline")
    assert numbers() == local


def test_killed_and_terminated_trainers_are_partial_and_continue_with_the_numbers_of_unbroken_runs(
    workspace: Path, cppo: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate(workspace, validation=3)
    launcher = started(f"launch {TWO} launcher.workers=2", gate=gate)
    killed, terminated = gate.reached(launcher, runs=2)
    folders = {read_status(path.parent)["pid"]: path.parent for path in workspace.glob("runs/*/status.json")}
    os.kill(killed, signal.SIGKILL)
    os.kill(terminated, signal.SIGTERM)
    output, _ = launcher.communicate()
    assert launcher.returncode == 1, output
    assert "2 partial" in output and "FAILED" not in output
    broken = {run.data.tags[schema.TAG_RUN_ID]: run for run in mlflow_runs()}
    for process, why in {killed: CAUSE_TEXTS[Cause.DIED], terminated: "terminated by SIGTERM"}.items():
        expected = ("KILLED", "partial", "6", f"interrupted: {why} at step 6")
        assert ended(broken[folders[process].name]) == expected

    cppo(f"launch {TWO} launcher=inline")
    assert not list(workspace.glob(f"runs/*/{CHECKPOINT}"))
    for run in mlflow_runs():
        assert run.info.run_id == broken[run.data.tags[schema.TAG_RUN_ID]].info.run_id
        assert ended(run) == ("FINISHED", "done", None, None)
    resumed = histories()
    assert [sorted(metrics["train/reward"]) for metrics in resumed.values()] == [list(range(1, 13))] * 2
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "sqlite:///unbroken.db")
    shutil.rmtree("runs")
    cppo(f"launch {TWO} launcher=inline")
    assert histories() == resumed


def test_the_end_of_a_launch_sends_only_the_ends_that_it_has_just_recorded(
    cppo: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last upload had its time for the others: an interrupted launch of thousands of runs ends at once."""
    sent: list[list[Path]] = []
    monkeypatch.setattr("cppo_lab.sweep.launch.send", lambda folders, uri: sent.append(folders))
    cppo(f"launch {SWEEP} launcher=inline")
    assert [len(folders) for folders in sent] == [2, 0]  # before and after


def test_killed_launcher_leaves_nothing_running_for_ever(workspace: Path, cppo: Command) -> None:
    gate = Gate(workspace, validation=1)
    launcher = started(f"launch {TWO} launcher.workers=1", gate=gate)
    [trainer] = gate.reached(launcher)
    assert "2 runs: 1 running, 1 queued" in cppo(f"plan {TWO}").out  # a living launcher has it on its list
    launcher.kill()
    launcher.wait()  # the run, which holds the other end of the pipe, lives on
    assert "2 runs: 1 running, 1 missing" in cppo(f"plan {TWO}").out
    until("the store knows it", lambda: bool(mlflow_runs()))
    os.kill(trainer, signal.SIGKILL)
    [folder] = [path.parent for path in workspace.glob("runs/*/spool")]
    until("its lock is free", lambda: not is_locked(folder))
    assert "2 runs: 1 partial, 1 missing" in cppo(f"plan {TWO}").out
    assert [run.info.status for run in mlflow_runs()] == ["RUNNING"]  # planning writes nothing
    (folder / "status.json").unlink()
    cppo(f"launch {TWO} launcher=inline")
    assert sorted(run.info.status for run in mlflow_runs()) == ["FINISHED", "FINISHED", "KILLED"]


@pytest.mark.parametrize("number, deaf", [(signal.SIGINT, False), (signal.SIGTERM, True)])
def test_interrupted_launch_ends_its_runs_and_says_how_to_go_on(
    workspace: Path, number: signal.Signals, deaf: bool
) -> None:
    """As a closed terminal does: tests/test_signals.py."""
    gate = Gate(workspace, validation=1)
    launcher = started(f"launch {ONE}", gate=gate, deaf=deaf)
    gate.reached(launcher)
    if deaf:
        launcher.send_signal(number)
    else:  # Ctrl-C goes to all its processes
        os.killpg(launcher.pid, number)
    output, _ = launcher.communicate()
    assert launcher.returncode == 130
    assert "run the same command to continue" in output
    # Whatever ends the launcher, it ends its runs with SIGTERM.
    expected = ("KILLED", "partial", "2", "interrupted: terminated by SIGTERM at step 2")
    assert [ended(run) for run in mlflow_runs()] == [expected]


def test_two_launchers_at_once_train_each_run_once(cppo: Command) -> None:
    """On a new store, whose tables and experiment both want to make."""
    launchers = [started(f"launch {SWEEP}") for _ in range(2)]
    outputs = "".join(launcher.communicate()[0] for launcher in launchers)
    assert "error" not in outputs and "FAILED" not in outputs, outputs
    assert {launcher.returncode for launcher in launchers} <= {0, 1}  # 1: the other one was still training
    finished = [run.data.tags[schema.TAG_RULE] for run in mlflow_runs() if run.info.status == "FINISHED"]
    assert sorted(finished) == ["cppo", "grpo"]
    cppo(f"launch {SWEEP}")


@patch("cppo_lab.launch.queues.PATIENCE_SECONDS", CEILING_SECONDS)
def test_of_a_launch_what_waits_and_what_trains_is_cancelled_and_goes_on(
    workspace: Path, cppo: Command
) -> None:

    def states() -> list[tuple[str, str]]:
        return sorted(cppo(f"status {TWO} --json").states)

    gate = Gate(workspace, validation=1)
    launcher = started(f"launch {TWO} launcher.workers=1", gate=gate)
    gate.reached(launcher)
    [running] = [path.parent.name for path in workspace.glob("runs/*/config.json")]
    assert cppo(f"cancel {TWO} --dry-run").out.count("would be cancelled") == 2
    assert [state for state, _ in states()] == ["queued", "running"]
    assert "will not be started\n1 of 2 runs cancelled" in cppo(f"cancel {TWO} --queued").out
    assert [state for state, _ in states()] == ["missing", "running"]
    assert "ended; the next launch resumes it" in cppo("cancel", "--run", running[:6]).out
    output, _ = launcher.communicate()
    assert launcher.returncode == 1, output
    assert "cancelled  [2/2]" in output

    [run] = mlflow_runs()  # the other one was never started
    *status, _, reason = ended(run)
    assert status == ["KILLED", "partial"] and reason.startswith("interrupted: cancelled at step ")
    assert states() == [("missing", ""), ("partial", reason)]
    assert "nothing to cancel" in cppo(f"cancel {TWO}").out

    cppo(f"launch {TWO} launcher=inline")  # both are wanted again, and go on
    assert states() == [("done", "")] * 2
    assert run.info.run_id in [stored.info.run_id for stored in mlflow_runs()]


def test_what_was_cancelled_before_this_attempt_does_not_concern_it(
    workspace: Path, tiny_spec: RunSpec
) -> None:
    attempt = job(tiny_spec, workspace / "runs", tracking_uri())
    cancel(attempt.folder)
    with pytest.raises(Interrupted, match="cancelled before it began"):
        attempt.run()
    job(tiny_spec, workspace / "runs", tracking_uri()).run()
    assert [run.info.status for run in mlflow_runs()] == ["FINISHED"]
    assert not (attempt.folder / CANCELLED).exists()
