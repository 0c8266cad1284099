"""`cppo status`, `cppo watch` and `cppo sync --watch`: every state, from made folders, lists, records of Slurm jobs,
and a stand-in for Slurm's commands.
"""

import csv
import io
import os
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from cppo_lab import schema
from cppo_lab.cli import main
from cppo_lab.cli.command import counter
from cppo_lab.errors import UserError
from cppo_lab.launch.queues import read_queues
from cppo_lab.launch.slurm.queue import Ledger
from cppo_lab.runs.folder import queueing, read_status, run_lock, write_status
from cppo_lab.runs.recorder import Recorder
from cppo_lab.runs.state import states
from cppo_lab.schema import Outcome
from cppo_lab.spec import RunSpec
from cppo_lab.sweep import status
from cppo_lab.sweep.status import RunStatus, watch
from cppo_lab.tracking.address import tracking_uri
from tests.conftest import TINY, TINY_LINE, Command
from tests.jobs import run_of
from tests.launch.stand_in import Slurm, slurm
from tests.recorded import mlflow_runs, sent

__all__ = ["slurm"]  # a fixture
SWEEP = f"quickstart {TINY_LINE} seed=0 variant=cppo"


def run_id(number: int) -> str:
    return f"{number:012x}"


def rows(cppo: Command, line: str = "status") -> dict[str, dict[str, Any]]:
    return {row["run_id"]: row for row in cppo(f"{line} --json").answer["runs"]}


@pytest.fixture
def runs(workspace: Path) -> Path:
    path = workspace / "runs"
    path.mkdir()
    return path


def made(runs: Path, number: int, status: str, **more: Any) -> Path:
    """The folder of a run whose status says this."""
    folder = runs / run_id(number)
    folder.mkdir(exist_ok=True)
    names = {"core": "mini", "rule": "cppo", "model": "mini_base", "seed": 3, "t_stop": 40, "reason": ""}
    numbers = {"step": 20, "score": 0.25, "seconds": 1800.0, "gpus": 8}
    write_status(folder, {**names, **numbers, "status": status, **more})
    return folder


def test_hours_of_runs_that_one_process_trained_together_count_once(runs: Path, cppo: Command) -> None:
    for number in (1, 2):
        made(runs, number, "done", machine_seconds=900.0, seed=11 - number)
    made(runs, 3, "done")
    assert "8.00 GPU-hours used" in cppo("status").out
    assert [(key, row["hours"]) for key, row in rows(cppo).items()] == [
        (run_id(number), 0.5) for number in (3, 2, 1)
    ]  # by their seeds


def test_a_launch_that_slurm_refuses_leaves_no_runs(slurm: Slurm, runs: Path, cppo: Command) -> None:
    launch = f"launch {SWEEP} launcher=slurm resources.hours=0.2 resources.partition"
    assert "no such partition" in cppo(f"{launch}=refused", code=2).err
    assert (rows(cppo), [path.name for path in runs.glob("*/status.json")]) == ({}, [])
    slurm.shows("100;PENDING;x")
    cppo(f"{launch}=good")
    assert len(rows(cppo)) == 1


def test_what_folders_locks_and_lists_say(runs: Path, cppo: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = run_of("seed=0", TINY)
    now = 1_800_000_000.0
    monkeypatch.setattr(status, "time", SimpleNamespace(time=lambda: now))
    made(runs, 1, "done", step=40)
    made(runs, 2, "collapsed", reason="score fell\nat step 20")
    made(runs, 3, "failed", reason='RuntimeError: "no memory", left')
    going = {"started": now - 500, "updated": now - 10, "first_step": 10, "first_time": now - 110}
    running = made(runs, 4, "running", **going)
    old = {"status": "partial", "step": 1, "t_stop": 4, "reason": "interrupted: by SIGTERM", "pid": 1}
    write_status(made(runs, 7, ""), old)
    (runs / run_id(7) / "config.json").write_text(spec.model_dump_json())
    (made(runs, 9, "") / "status.json").unlink()
    (runs / run_id(9) / "config.json").write_text('{"model": 5, "a": {}}')  # another program's
    (runs / "warm_starts").mkdir()
    with run_lock(running), queueing(runs, [run_id(8)]):
        seen = rows(cppo)
        text = cppo("status --state running,failed").out
    assert {key: (row["state"], row["reason"]) for key, row in seen.items()} == {
        run_id(1): ("done", ""),
        run_id(2): ("collapsed", "score fell at step 20"),
        run_id(3): ("failed", 'RuntimeError: "no memory", left'),
        run_id(4): ("running", ""),
        run_id(7): ("partial", "interrupted: by SIGTERM"),
        run_id(8): ("queued", ""),
        run_id(9): ("missing", ""),
    }
    lives = seen[run_id(4)]
    # 10 steps in the 100 s up to the last word, 20 to go, 10 s since.
    assert lives["eta_seconds"] == pytest.approx(190)
    assert lives["gpu_hours"] == pytest.approx(8 * 1810 / 3600)
    assert lives["job"].endswith(f":{os.getpid()}")
    assert [seen[run_id(7)][key] for key in ("rule", "seed", "hours")] == ["cppo", 0, None]
    head, *lines = text.splitlines()
    assert [line.split()[0] for line in lines[:2]] == [run_id(3), run_id(4)]
    assert " ".join(head.split()[3:]) == "model seed state step last % best % ETA GPU-hours job reason"
    assert lines[0].split()[4:7] == ["failed", "20/40", "25.0"]
    counts = "7 runs: 1 done, 1 collapsed, 1 running, 1 queued, 1 failed, 1 partial, 1 missing"
    assert lines[-1].startswith(f"{counts}; 16.0")
    # 190 s, then the 40 steps of the queued run at 9.5 s.
    assert lines[-1].endswith("; the last of the queued ones ends in about 10 min")
    [row] = csv.DictReader(io.StringIO(cppo("status --csv --state failed").out))
    assert (row["run_id"], row["reason"], row["gpu_hours"]) == (run_id(3), seen[run_id(3)]["reason"], "4.0")


def test_what_slurm_says(runs: Path, slurm: Slurm, cppo: Command, capsys: pytest.CaptureFixture[str]) -> None:
    """Each word of a queue: tests/runs/test_state.py, tests/launch/test_slurm_answers.py."""
    made(runs, 1, "partial", reason="interrupted: by SIGTERM")  # preempted: it will be back
    with Ledger(runs) as ledger:
        ledger.submitted(ledger.claim([run_id(number) for number in range(3)]), 70)
        ledger.claim([run_id(9)])
    slurm.shows("70_0;PENDING;x;Resources", "70_1;COMPLETING;x", "99;RUNNING;of somebody's")
    slurm.says("sacct.txt", "CANCELLED by 1000")
    assert {key: (row["state"], row["reason"], row["job"]) for key, row in rows(cppo).items()} == {
        run_id(0): ("queued", "Slurm job 70_0: pending, Resources", "70_0"),
        run_id(1): ("running", "its job is ending; interrupted: by SIGTERM", "70_1"),
        run_id(2): ("missing", "Slurm job 70_2: CANCELLED", "70_2"),
        run_id(9): ("queued", "is being submitted", ""),
    }
    assert slurm.logged("squeue_calls") == "asked\n"

    slurm.command("scontrol", "echo 'Slurmctld(primary) at x is DOWN'; exit 1")
    row = rows(cppo)[run_id(0)]
    assert row["state"] == "queued"  # as far as anybody can say
    assert "Slurmctld(primary) at x is DOWN" in row["reason"]
    planned = states(runs, [run_id(0)], read_queues(runs, warn=True))[run_id(0)]  # `cppo plan` knows as much
    assert (planned.state, planned.reason) == ("queued", row["reason"])
    assert "the state of Slurm's queue is unknown" in capsys.readouterr().err
    assert slurm.logged("squeue_calls") == "asked\n"  # squeue would take ten seconds to notice


def test_repair_ends_what_nobody_trains(runs: Path, slurm: Slurm, tiny_spec: RunSpec, cppo: Command) -> None:
    folder = runs / tiny_spec.run_id
    Recorder(tiny_spec, {}, folder)._status(schema.RUNNING, 2)
    sent(folder)
    with Ledger(runs) as ledger:
        ledger.submitted(ledger.claim([tiny_spec.run_id]), 5)
    slurm.shows("5;TIMEOUT;x;TimeLimit")
    for line in ("status", f"plan {SWEEP}"):  # the same words
        row = rows(cppo, line)[tiny_spec.run_id]
        assert (row["state"], row["reason"]) == ("partial", "Slurm job 5: TIMEOUT")
    assert [run.info.status for run in mlflow_runs()] == ["RUNNING"]  # looking writes nothing
    said = cppo(f"status {SWEEP} --repair").err
    assert f"{tiny_spec.run_id}: Slurm job 5 is over" in said
    assert "its record in MLflow is repaired" in said
    assert [run.info.status for run in mlflow_runs()] == ["KILLED"]
    with Ledger(runs) as ledger:
        assert [task.ended for task in ledger.tasks_of(tiny_spec.run_id)] == ["TIMEOUT"]
    assert read_status(folder)["status"] == "partial"
    assert "nothing to repair" in cppo("status --repair").err


def test_a_run_from_another_folder_and_runs_that_are_missing(
    workspace: Path, tiny_spec: RunSpec, cppo: Command
) -> None:
    assert "there are no runs in" in cppo("status").out
    assert list(workspace.iterdir()) == []
    folder = workspace / "elsewhere" / tiny_spec.run_id
    Recorder(tiny_spec, {}, folder).finish(Outcome(schema.DONE, 4))
    sent(folder)
    both = rows(cppo, f"status {SWEEP},grpo")
    assert [row["state"] for row in both.values()] == ["missing", "missing"]
    assert both[tiny_spec.run_id]["variants"] == {"quickstart": "cppo"}
    for command in ("status", "plan"):
        said = cppo(f"{command} {SWEEP},grpo").out.splitlines()[-1]
        assert said.startswith("2 runs have no folder here: `cppo pull quickstart ")
        assert "asks the tracking store" in said
    assert not (workspace / "runs").exists()


NAMES = ("cppo", "mini_base", 0)


def stages(*looks: Sequence[str]) -> list[list[RunStatus]]:
    why = {"failed": "ValueError: bad"}
    return [
        [RunStatus(run_id(i), *NAMES, state, why.get(state, "")) for i, state in enumerate(look)]
        for look in looks
    ]


def test_one_line_for_each_change_until_nothing_runs_or_waits() -> None:
    looks = iter(
        stages(["queued", "running"], ["running", "running"], ["running", "running"], ["done", "failed"])
    )
    out = io.StringIO()
    assert [run.state for run in watch(lambda: next(looks), 0.01, out)] == ["done", "failed"]
    assert out.getvalue().splitlines() == [
        "2 runs: 1 running, 1 queued",
        f"{run_id(0)} cppo/mini_base/seed 0: running",
        f"{run_id(0)} cppo/mini_base/seed 0: done",
        f"{run_id(1)} cppo/mini_base/seed 0: failed: ValueError: bad",
    ]


def test_a_terminal_is_drawn_anew_and_shows_what_matters(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.get_terminal_size", lambda *_, **__: os.terminal_size((40, 8)))
    looks = iter(stages(["done"] * 20 + ["running"], ["done"] * 21))
    monkeypatch.setattr(out := io.StringIO(), "isatty", lambda: True)
    watch(lambda: next(looks), 0.01, out)
    first, second = out.getvalue().split("\x1b[H")[1:]
    assert "21 runs: 20 done, 1 running" in first
    assert run_id(20) in first.splitlines()[3]  # the one that runs is on top
    assert first.splitlines()[-2].startswith("and 18 more")
    assert len(first.splitlines()) <= 8
    assert "21 runs: 21 done" in second


def test_the_end_is_told_to_a_command_without_a_shell(
    runs: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    for number, state in enumerate(["done", "collapsed", "failed", "partial"]):
        made(runs, number, state)
    script = tmp_path / "tell"
    numbers = "$CPPO_DONE|$CPPO_FAILED|$CPPO_LEFT"
    script.write_text(f'#!/bin/sh\necho "$1|$CPPO_SWEEP|{numbers}|safe=$PYTHONSAFEPATH."\nexit 3\n')
    script.chmod(0o755)
    assert main(["watch", "--notify", f"{script} 'a b; $(id)'"]) == 4
    said = capfd.readouterr()
    assert "a b; $(id)||2|1|1|safe=." in said.out
    assert "the command of --notify ended with status 3" in said.err
    for number in (2, 3):
        made(runs, number, "done")
    assert main(["watch", "--notify", "true"]) == 0
    assert capfd.readouterr().err == ""
    script.write_text("#!/nowhere\n")
    assert main(["watch", "--notify", str(script)]) == 0
    assert "the command of --notify could not be run: " in capfd.readouterr().err


def test_a_terminal_is_shown_how_many_are_through(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    counter("runs sent")(1, 1)
    assert capsys.readouterr().err == "\r1/1 runs sent\n"


def test_an_outage_is_one_line_of_sync_and_its_end_another(
    cppo: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    away = UserError("the tracking store does not answer")
    asked = Mock(side_effect=[away, []])  # once it answers
    uploads = Mock(side_effect=[away, (0, 0), (2, 30), (0, 0), KeyboardInterrupt()])
    monkeypatch.setattr("cppo_lab.tracking.upload.forget_lost", asked)
    monkeypatch.setattr("cppo_lab.tracking.upload.upload", uploads)
    monkeypatch.setattr("time.sleep", lambda _: None)
    assert "no run with this prefix" in cppo("sync --watch --run 0123", code=2).err
    said = cppo("sync --watch", code=130)
    assert said.err.count(f"cppo: {away}; trying again") == 1
    uploaded = f"runs uploaded to {tracking_uri()}"
    assert said.out.splitlines() == [f"0 points of 0 {uploaded}", f"30 points of 2 {uploaded}"]
