"""From the command line to MLflow on a small sweep: every state, every end, nothing twice."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from mlflow.entities import Run

from cppo_lab import schema
from cppo_lab.cli import main
from cppo_lab.cores.base import CHECKPOINT
from cppo_lab.cores.mini.trainer import Trainer
from cppo_lab.runs.folder import AlreadyRunning, held, is_held
from cppo_lab.runs.spool import read_rows
from cppo_lab.tracking.address import tracking_uri
from cppo_lab.tracking.client import open_client
from tests.conftest import TINY
from tests.launch.gate import Gate
from tests.waiting import until

SWEEP = ["quickstart", *TINY, "seed=0", "variant=grpo,cppo"]
# A tiny model may well break down on the way: these are to go on until something ends them.
LONG = ["quickstart", *TINY, "seed=0", "variant=cppo", "training.t_stop=8000", "training.collapse_share=0"]
# What was interrupted of these ends soon.
ONE = [*LONG[:-2], "training.t_stop=12", "training.collapse_share=0"]
TWO = [text for text in ONE if not text.startswith("variant=")] + ["variant=grpo,cppo"]


def mlflow_runs() -> list[Run]:
    client = open_client(tracking_uri())
    experiment = client.get_experiment_by_name("cppo-mini")
    assert experiment is not None
    return list(
        client.search_runs(
            [experiment.experiment_id], "tags.`cppo.run_id` LIKE '%'", order_by=["attributes.start_time ASC"]
        )
    )


def history(run: Run, metric: str) -> dict[int, float]:
    points = open_client(tracking_uri()).get_metric_history(run.info.run_id, metric)
    assert len({point.step for point in points}) == len(points)
    return {point.step: point.value for point in points}


def started_by_a_shell(deaf: bool) -> None:
    """In the new process: the tests may themselves be in the background of a script, and under `nohup`."""
    signal.signal(signal.SIGINT, signal.SIG_IGN if deaf else signal.SIG_DFL)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


def cppo(*arguments: str, gate: Gate | None = None, deaf: bool = False) -> "subprocess.Popen[str]":
    """The command, as a shell starts it; if `deaf`, as a script starts one in the background: it ignores SIGINT."""
    return subprocess.Popen(
        [sys.executable, "-m", "cppo_lab.cli", *arguments],
        env=gate.environment if gate else None,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
        preexec_fn=lambda: started_by_a_shell(deaf),
    )


def wait_for_step(folder: Path, step: int) -> dict[str, int]:
    """Wait until the run in `folder` has passed `step`; return its status."""

    def passed() -> dict[str, int]:
        found = [json.loads(path.read_text()) for path in folder.glob("*/status.json")]
        return next((one for one in found if one["status"] == "running" and one["step"] >= step), {})

    return until(f"a run has passed step {step}", passed)


def test_local_launch_records_everything_and_repeats_nothing(
    workspace: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """And the inline launcher gives the same numbers."""
    assert main(["launch", *SWEEP]) == 0
    runs = mlflow_runs()
    assert [run.info.status for run in runs] == ["FINISHED", "FINISHED"]
    by_rule = {run.data.tags[schema.TAG_RULE]: run for run in runs}
    cppo_run = by_rule["cppo"]
    tags = cppo_run.data.tags
    assert tags[schema.sweep_tag("quickstart")] == "cppo"
    assert (tags[schema.TAG_STATUS], tags[schema.TAG_T_STOP], tags[schema.TAG_CORE]) == ("done", "4", "mini")
    assert tags[schema.TAG_CODE_VERSION].startswith("0.")
    assert cppo_run.data.params["rule.w_min"] == "0.8"
    assert cppo_run.data.params["batch.prompts"] == "8"
    assert set(history(cppo_run, "val/mean/avg_at_16")) == {0, 2, 4}
    assert set(history(cppo_run, "train/reward")) == {1, 2, 3, 4}
    artifacts = open_client(tracking_uri()).list_artifacts(cppo_run.info.run_id)
    assert [artifact.path for artifact in artifacts] == [
        *("answers", "answers.json", "config.json", "config.yaml", "diagnostics", "history.npz", "output"),
        "requirements.txt",
    ]
    rows = read_rows(workspace / "runs" / tags[schema.TAG_RUN_ID])
    assert [row.step for row in rows] == [0, 1, 2, 3, 4]

    capsys.readouterr()
    assert main(["launch", *SWEEP]) == 0
    assert len(mlflow_runs()) == 2
    assert "0 to train" in capsys.readouterr().err
    before = sorted(workspace.rglob("*"))
    assert main(["plan", *SWEEP]) == 0
    assert "2 runs: 2 done" in capsys.readouterr().out
    assert sorted(workspace.rglob("*")) == before  # planning writes nothing

    local = {run.data.tags[schema.TAG_RULE]: history(run, "rule/divergence_mean") for run in runs}
    shutil.rmtree("runs")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "sqlite:///inline.db")
    assert main(["launch", *SWEEP, "launcher=inline"]) == 0
    inline = {run.data.tags[schema.TAG_RULE]: history(run, "rule/divergence_mean") for run in mlflow_runs()}
    assert inline == local


def test_a_failing_run_is_recorded_with_its_reason_and_stops_nobody(
    workspace: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(self: Trainer) -> dict[str, float]:
        raise RuntimeError("no memory left")

    monkeypatch.setattr(Trainer, "collect", broken)
    assert main(["launch", *SWEEP, "launcher=inline"]) == 4
    runs = mlflow_runs()
    assert [run.info.status for run in runs] == ["FAILED", "FAILED"]
    for run in runs:
        assert run.data.tags[schema.TAG_STATUS] == "failed"
        assert run.data.tags[schema.TAG_REASON]
        client = open_client(tracking_uri())
        assert "traceback.txt" in [a.path for a in client.list_artifacts(run.info.run_id)]
    out = capsys.readouterr().out
    assert all(
        f"{run.data.tags[schema.TAG_RUN_ID]} failed: RuntimeError: no memory left" in out for run in runs
    )


@pytest.mark.parametrize("rate", ["1e16", "1e30"])
def test_a_run_that_breaks_down_is_a_collapse_and_not_trained_again(
    workspace: Path, capsys: pytest.CaptureFixture[str], rate: str
) -> None:
    # A learning rate that no weight survives: scores fall to 0, or something is not finite.
    ruin = [f"optim.learning_rate={rate}", "optim.clip_grad_norm=1e30", "launcher=inline"]
    assert main(["launch", *SWEEP, *ruin]) == 0
    for run in mlflow_runs():
        assert (run.info.status, run.data.tags[schema.TAG_STATUS]) == ("FINISHED", "collapsed")
    ends = re.findall(
        r"^\w+ .* collapsed +\S.*(?:validations in a row|at step \d+)$", capsys.readouterr().out, re.M
    )
    assert len(ends) == 2
    assert main(["launch", *SWEEP, *ruin]) == 0
    assert "2 collapsed" in capsys.readouterr().err
    assert len(mlflow_runs()) == 2


def test_killed_and_terminated_trainers_are_partial_and_continue_with_the_numbers_of_unbroken_runs(
    workspace: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate(workspace, validation=3)
    launcher = cppo("launch", *TWO, "launcher.workers=2", gate=gate)
    killed, terminated = gate.reached(launcher, runs=2)
    assert main(["plan", *TWO]) == 0
    assert len(re.findall(r"  running  step \d+/12$", capsys.readouterr().out, re.M)) == 2
    ids = {
        status["pid"]: path.parent.name
        for path in workspace.glob("runs/*/status.json")
        if (status := json.loads(path.read_text()))
    }
    os.kill(killed, signal.SIGKILL)
    os.kill(terminated, signal.SIGTERM)
    output, _ = launcher.communicate()
    assert launcher.returncode == 1, output
    assert "2 partial" in output
    assert "interrupted: its process ended without a word" in output
    assert "FAILED" not in output
    found = {run.data.tags[schema.TAG_RUN_ID]: run for run in mlflow_runs()}
    for run in found.values():
        assert (run.info.status, run.data.tags[schema.TAG_STATUS]) == ("KILLED", "partial")
        assert run.data.tags[schema.TAG_STEP] == "6"
        assert (workspace / "runs" / run.data.tags[schema.TAG_RUN_ID] / CHECKPOINT).exists()
    reasons = {pid: found[run_id].data.tags[schema.TAG_REASON] for pid, run_id in ids.items()}
    assert "ended without a word" in reasons[killed]
    assert reasons[terminated] == "interrupted: terminated by SIGTERM at step 6"
    assert main(["plan", *TWO]) == 0
    said = capsys.readouterr().out
    assert re.search(r"  partial  step 6/12; interrupted: terminated by SIGTERM$", said, re.M)
    assert re.search(r"  partial  .*interrupted: its process ended without a word", said, re.M)

    assert main(["launch", *TWO, "launcher=inline"]) == 0
    continued = {run.data.tags[schema.TAG_RUN_ID]: run for run in mlflow_runs()}
    assert not list(workspace.glob(f"runs/*/{CHECKPOINT}"))
    broken = {}
    for run_id, run in continued.items():
        assert (run.info.run_id, run.info.status) == (found[run_id].info.run_id, "FINISHED")
        assert not {schema.TAG_STEP, schema.TAG_REASON} & run.data.tags.keys()
        names = [name for name in run.data.metrics if not name.startswith(("perf/", "system/"))]
        broken[run_id] = {name: history(run, name) for name in names}
        assert sorted(broken[run_id]["train/reward"]) == list(range(1, 13))
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "sqlite:///unbroken.db")
    shutil.rmtree("runs")
    assert main(["launch", *TWO, "launcher=inline"]) == 0
    for run in mlflow_runs():
        numbers = broken[run.data.tags[schema.TAG_RUN_ID]]
        assert {name: history(run, name) for name in numbers} == numbers


def test_killed_launcher_leaves_nothing_running_for_ever(
    workspace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    gate = Gate(workspace, validation=1)
    launcher = cppo("launch", *TWO, "launcher.workers=1", gate=gate)
    [trainer] = gate.reached(launcher)
    assert main(["plan", *TWO]) == 0
    assert "2 runs: 1 running, 1 queued" in capsys.readouterr().out  # a living launcher has it on its list
    launcher.kill()
    launcher.wait()  # the run, which holds the other end of the pipe, lives on
    assert main(["plan", *TWO]) == 0
    assert "2 runs: 1 running, 1 missing" in capsys.readouterr().out  # the run outlives its launcher
    until("the store knows it", lambda: bool(mlflow_runs()))
    os.kill(trainer, signal.SIGKILL)
    [folder] = [path.parent for path in (workspace / "runs").glob("*/spool")]
    until("its lock is free", lambda: not is_held(folder))
    assert main(["plan", *TWO]) == 0
    assert "2 runs: 1 partial, 1 missing" in capsys.readouterr().out
    assert [run.info.status for run in mlflow_runs()] == ["RUNNING"]  # planning writes nothing
    (folder / "status.json").unlink()
    gate = Gate(workspace, validation=1)
    other = cppo("launch", *TWO, "launcher.workers=1", gate=gate)
    gate.reached(other)
    other.send_signal(signal.SIGINT)
    other.communicate()
    assert {run.info.status for run in mlflow_runs()} == {"KILLED"}


@pytest.mark.parametrize(
    ("number", "deaf"),
    [(signal.SIGINT, False), (signal.SIGHUP, False), (signal.SIGTERM, False), (signal.SIGTERM, True)],
)
def test_interrupted_launch_ends_its_runs_and_says_how_to_go_on(
    workspace: Path, number: signal.Signals, deaf: bool
) -> None:
    gate = Gate(workspace, validation=1)
    launcher = cppo("launch", *ONE, gate=gate, deaf=deaf)
    gate.reached(launcher)
    if number in (signal.SIGINT, signal.SIGHUP):  # Ctrl-C and the terminal's end go to all its processes
        os.killpg(launcher.pid, number)
    else:
        launcher.send_signal(number)
    output, _ = launcher.communicate()
    assert launcher.returncode == 130
    assert "run the same command to continue" in output
    [run] = mlflow_runs()
    assert (run.info.status, run.data.tags[schema.TAG_STATUS]) == ("KILLED", "partial")
    # Whatever ends the launcher, it ends its runs with SIGTERM.
    assert run.data.tags[schema.TAG_REASON] == "interrupted: terminated by SIGTERM at step 2"
    assert run.data.tags[schema.TAG_STEP] == "2"


def test_two_launchers_at_once_train_each_run_once(workspace: Path) -> None:
    """On a new store, whose tables and experiment both want to make."""
    launchers = [cppo("launch", *SWEEP) for _ in range(2)]
    outputs = [launcher.communicate()[0] for launcher in launchers]
    assert not any("error" in output or "FAILED" in output for output in outputs), outputs
    assert {launcher.returncode for launcher in launchers} <= {0, 1}  # 1: the other one was still training
    runs = mlflow_runs()
    assert sorted(run.data.tags[schema.TAG_RULE] for run in runs if run.info.status == "FINISHED") == [
        "cppo",
        "grpo",
    ]
    assert main(["launch", *SWEEP]) == 0


def test_looking_at_a_lock_stops_nobody(tmp_path: Path) -> None:
    stop = threading.Event()

    def look() -> None:
        while not stop.is_set():
            is_held(tmp_path / "run")

    looker = threading.Thread(target=look)
    looker.start()
    try:
        for _ in range(200):
            with held(tmp_path / "run"):
                pass
    finally:
        stop.set()
        looker.join()


def test_a_lock_is_held_once(tmp_path: Path) -> None:
    assert not is_held(tmp_path / "run")
    with held(tmp_path / "run"):
        assert is_held(tmp_path / "run")
        with pytest.raises(AlreadyRunning, match="run run is being trained"), held(tmp_path / "run"):
            pass
    assert not is_held(tmp_path / "run")


def test_a_run_that_two_sweeps_share_is_trained_once(workspace: Path) -> None:
    assert main(["launch", *SWEEP, "launcher=inline"]) == 0
    mine = workspace / "mine.yaml"
    mine.write_text(
        "title: t\nquestion: q\nmodels: [mini_base]\nvariants: {ours: {rule: cppo}}\naxes: {seed: [0]}\n"
        "feeds: [Figure 6]\n"
    )
    assert main(["launch", "mine.yaml", *TINY, "launcher=inline"]) == 0
    runs = mlflow_runs()
    assert len(runs) == 2
    [shared] = [run for run in runs if run.data.tags[schema.TAG_RULE] == "cppo"]
    assert shared.data.tags[schema.sweep_tag("mine")] == "ours"
    assert shared.data.tags[schema.sweep_tag("quickstart")] == "cppo"
    assert shared.data.tags[schema.TAG_FIGURE] == "Figure 6"
    other = mine.with_name("other.yaml")
    other.write_text(mine.read_text().replace("[Figure 6]", "[Figure 5, Table 1]"))
    assert main(["launch", "other.yaml", *TINY, "launcher=inline"]) == 0
    [shared] = [run for run in mlflow_runs() if run.data.tags[schema.TAG_RULE] == "cppo"]
    assert shared.data.tags[schema.TAG_FIGURE] == "Table 1, Figure 5, Figure 6"


def test_a_study_trains_shared_runs_once_and_reports_them(
    workspace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("small.yaml").write_text(
        "title: Small\nquestion: q\nsweeps: [single_mechanism, mask_vs_soft]\naxes: {seed: [0, 1]}\n"
    )
    small = ["small.yaml", *TINY[1:], "seed=0"]
    assert main(["launch", *small, "launcher=inline"]) == 0
    tags = [run.data.tags for run in mlflow_runs()]
    assert len(tags) == 5  # of seven places
    both = {schema.sweep_tag("single_mechanism"), schema.sweep_tag("mask_vs_soft")}
    assert sorted(one[schema.TAG_RULE] for one in tags if both <= one.keys()) == ["cppo", "dppo"]
    assert main(["launch", *small, "launcher=inline"]) == 0
    assert "5 done" in capsys.readouterr().err
    assert len(mlflow_runs()) == 5

    assert main(["report", *small]) == 0
    built = Path("reports/build/small")
    page = (built / "index.html").read_text()
    assert "core=mini" in page
    assert "the study has no sweep &#39;main&#39;" in page  # what needs it is named, with the reason
    assert {"figure_5.png", "long_mask_vs_soft.csv"} <= {path.name for path in built.iterdir()}
