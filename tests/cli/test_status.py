"""`cppo status`: every state, from made folders, lists, records of Slurm jobs, and a stand-in for Slurm's commands."""

import csv
import io
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cppo_lab import schema
from cppo_lab.launch.queues import read_queues
from cppo_lab.launch.slurm.queue import Ledger
from cppo_lab.runs import folder as run_folder
from cppo_lab.runs.folder import Cause, held, queueing, read_status, write_status
from cppo_lab.runs.recorder import Recorder
from cppo_lab.runs.state import CAUSE_TEXTS, states
from cppo_lab.schema import Outcome
from cppo_lab.spec import RunSpec
from cppo_lab.sweep import status
from cppo_lab.sweep.compose import compose
from tests.conftest import TINY, Command
from tests.launch.stand_in import Slurm, slurm
from tests.recorded import mlflow_runs, sent

__all__ = ["slurm"]  # a fixture
SWEEP = " ".join(["quickstart", *TINY, "seed=0", "variant=cppo"])


def status_of(status: str, **more: Any) -> dict[str, Any]:
    names = {"core": "mini", "rule": "cppo", "model": "mini_base", "seed": 3, "t_stop": 40, "reason": ""}
    return {**names, "status": status, "step": 20, "score": 0.25, "seconds": 1800.0, "gpus": 8, **more}


def run_id(number: int) -> str:
    return f"{number:012x}"


def rows(cppo: Command, line: str = "status") -> dict[str, dict[str, Any]]:
    return {row["run_id"]: row for row in cppo(f"{line} --json").answer["runs"]}


@pytest.fixture
def runs(workspace: Path) -> Path:
    path = workspace / "runs"
    path.mkdir()
    return path


def made(runs: Path, number: int, **values: Any) -> Path:
    folder = runs / run_id(number)
    folder.mkdir()
    write_status(folder, values)
    return folder


def test_hours_of_runs_that_one_process_trained_together_count_once(runs: Path, cppo: Command) -> None:
    for number in (1, 2):
        made(runs, number, **status_of("done", machine_seconds=900.0))
    made(runs, 3, **status_of("done"))
    assert "8.00 GPU-hours used" in cppo("status").out
    assert {row["hours"] for row in rows(cppo).values()} == {0.5}


def test_a_launch_that_slurm_refuses_leaves_no_runs(slurm: Slurm, runs: Path, cppo: Command) -> None:
    launch = f"launch {SWEEP} launcher=slurm resources.hours=0.2 resources.partition"
    assert "no such partition" in cppo(f"{launch}=refused", code=2).err
    assert (rows(cppo), [path.name for path in runs.glob("*/status.json")]) == ({}, [])
    slurm.shows("100;PENDING;x")
    cppo(f"{launch}=good")
    assert len(rows(cppo)) == 1


def test_what_folders_locks_and_lists_say(runs: Path, cppo: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = compose([*TINY, "seed=0"]).run
    now = 1_800_000_000.0
    monkeypatch.setattr(status, "time", SimpleNamespace(time=lambda: now))
    made(runs, 1, **status_of("done", step=40))
    made(runs, 2, **status_of("collapsed", reason="score fell\nat step 20"))
    made(runs, 3, **status_of("failed", reason='RuntimeError: "no memory", left'))
    going = status_of("running", started=now - 500, updated=now - 10, first_step=10, first_time=now - 110)
    running = made(runs, 4, **going)
    made(runs, 5, **going)  # of a process that is gone
    run_folder.cancel(made(runs, 6, **going))
    old = made(runs, 7, status="partial", step=1, t_stop=4, reason="interrupted: by SIGTERM", pid=1)
    (old / "config.json").write_text(spec.model_dump_json())
    (made(runs, 9) / "config.json").write_text('{"model": 5, "a": {}}')  # another program's
    (runs / "warm_starts").mkdir()
    with held(running), queueing(runs, [run_id(8)]):
        seen = rows(cppo)
        text = cppo("status --state running,failed").out
    states = {
        number: (seen[run_id(number)]["state"], seen[run_id(number)]["reason"]) for number in range(1, 10)
    }
    assert states == {
        1: ("done", ""),
        2: ("collapsed", "score fell at step 20"),
        3: ("failed", 'RuntimeError: "no memory", left'),
        4: ("running", ""),
        5: ("partial", f"interrupted: {CAUSE_TEXTS[Cause.DIED]}"),
        6: ("partial", "interrupted: cancelled"),
        7: ("partial", "interrupted: by SIGTERM"),
        8: ("queued", ""),
        9: ("missing", ""),
    }
    assert len(seen) == 9
    lives = seen[run_id(4)]
    # 10 steps in the 100 s up to the last word, 20 to go, 10 s since.
    assert lives["eta_seconds"] == pytest.approx(190)
    assert lives["gpu_hours"] == pytest.approx(8 * 1810 / 3600)
    assert lives["job"].endswith(f":{os.getpid()}")
    assert seen[run_id(1)]["hours"] == 0.5
    assert [seen[run_id(7)][key] for key in ("rule", "seed", "hours")] == ["cppo", 0, None]
    head, *lines = text.splitlines()
    assert [line.split()[0] for line in lines[:2]] == [run_id(3), run_id(4)]
    assert " ".join(head.split()[3:]) == "model seed state step last best ETA GPU-hours job reason"
    assert lines[0].split()[4:7] == ["failed", "20/40", "25.0"]
    counts = "9 runs: 1 done, 1 collapsed, 1 running, 1 queued, 1 failed, 3 partial, 1 missing"
    assert lines[-1].startswith(f"{counts}; 24.0")
    # 190 s, then the 40 steps of the queued run at 9.5 s.
    assert lines[-1].endswith("; the last of the queued ones ends in about 10 min")
    [row] = csv.DictReader(io.StringIO(cppo("status --csv --state failed").out))
    assert (row["run_id"], row["reason"], row["gpu_hours"]) == (run_id(3), seen[run_id(3)]["reason"], "4.0")


def test_what_slurm_says(runs: Path, slurm: Slurm, cppo: Command, capsys: pytest.CaptureFixture[str]) -> None:
    """Each word of a queue: tests/runs/test_state.py, tests/launch/test_slurm_answers.py."""
    made(runs, 1, **status_of("running"))
    made(runs, 2, **status_of("partial", reason="interrupted: by SIGTERM"))  # preempted: it will be back
    made(runs, 4, **status_of("partial", reason="interrupted: terminated by SIGTERM at step 20"))
    with Ledger(runs) as ledger:
        token = ledger.claim([run_id(number) for number in range(5)])
        ledger.submitted(token, 70)
        ledger.end([task for task in ledger.open_tasks() if task.position == 4], "TIMEOUT")
        ledger.claim([run_id(9)])
    slurm.shows(
        f"70_0;PENDING;{token};Resources",
        f"70_1;OUT_OF_MEMORY;{token};OutOfMemory",
        f"70_2;COMPLETING;{token}",
        "99;RUNNING;of somebody's",
    )
    slurm.says("sacct.txt", "CANCELLED by 1000")
    expected = {
        0: ("queued", "Slurm job 70_0: pending, Resources", "70_0"),
        1: ("partial", "Slurm job 70_1: OUT_OF_MEMORY", "70_1"),
        2: ("running", "its job is ending; interrupted: by SIGTERM", "70_2"),
        3: ("missing", "Slurm job 70_3: CANCELLED", "70_3"),
        4: ("partial", "interrupted: terminated by SIGTERM at step 20", "70_4"),  # it spoke for itself
        9: ("queued", "is being submitted", ""),
    }
    assert {key: (row["state"], row["reason"], row["job"]) for key, row in rows(cppo).items()} == {
        run_id(number): words for number, words in expected.items()
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
    folder.mkdir()
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
    folder.mkdir(parents=True)
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


def test_time_is_counted_over_all_attempts(
    runs: Path, tiny_spec: RunSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = runs / tiny_spec.run_id
    folder.mkdir()
    write_status(folder, {"status": "partial", "seconds": 1000.0, "reason": "interrupted"})
    clock = SimpleNamespace(time=lambda: now, monotonic=lambda: now)
    monkeypatch.setattr("cppo_lab.runs.recorder.time", clock)
    now = 1_800_000_000.0
    recorder = Recorder(tiny_spec, {}, folder)
    now += 500
    recorder.interrupt("terminated by SIGTERM")
    assert read_status(folder)["seconds"] == 1500
