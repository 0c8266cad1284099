"""Launchers that are killed, or many at once, on a real slurmctld: each job runs once, and none is forgotten.

The jobs are submitted held and let go at the end, so that none can end meanwhile and be taken for one never begun.
"""

import os
import signal
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from submitit import SlurmExecutor
from submitit.core.utils import DelayedSubmission, JobPaths

from cppo_lab.launch.slurm import queue, submit
from cppo_lab.launch.slurm.ledger import Ledger
from cppo_lab.launch.slurm.queue import in_queue
from cppo_lab.launch.slurm.submit import launch_slurm
from dev.slurm.cluster import Cluster
from tests.launch.slurm.jobs import Noted
from tests.launch.slurm.launchers import (
    HELD,
    kill,
    launcher,
    release_and_wait,
    slow_sbatch,
    wait_for_orphans,
    wait_in_shell,
)
from tests.waiting import until

pytestmark = [pytest.mark.slurm, pytest.mark.slow]

Die = Callable[[], None]
Hook = Callable[[Die], None]


@pytest.fixture(autouse=True)
def _settled(monkeypatch: pytest.MonkeyPatch) -> None:
    """No sbatch is on its way that a test does not know of."""
    monkeypatch.setattr(queue, "SETTLING_SECONDS", 0.0)


def before(owner: object, name: str) -> Hook:
    """Instead of calling a function."""

    def install(die: Die) -> None:
        setattr(owner, name, lambda *_, **__: die())

    return install


def behind(owner: object, name: str, *arguments: object) -> Hook:
    """Behind the first call of a function, or the first with these among its arguments."""

    def install(die: Die) -> None:
        real = getattr(owner, name)

        def call(*given: Any, **named: Any) -> None:
            real(*given, **named)
            if set(arguments) <= {argument for argument in given if isinstance(argument, str)}:
                die()

        setattr(owner, name, call)

    return install


def at_statement(statement: str, behind: str) -> Hook:
    """Where the ledger's database is about to begin a statement, behind another one."""

    def install(die: Die) -> None:
        connect, seen = sqlite3.connect, [False]

        def begins(text: str) -> None:
            seen[0] = seen[0] or text.startswith(behind)
            if seen[0] and text.startswith(statement):
                die()

        def traced(*arguments: Any, **options: Any) -> sqlite3.Connection:
            connection = connect(*arguments, **options)
            connection.set_trace_callback(begins)
            return connection

        sqlite3.connect = traced  # type: ignore[assignment]

    return install


REPORTED = "its job is reported"
# Where a launcher is killed -> how it gets there, in the order of a launch. Those from sbatch's end are below.
POINTS: dict[str, Hook] = {
    "it has no lock yet": before(submit, "submitting"),
    "it has the lock": before(submit, "Ledger"),
    "it has looked at the queue": behind(submit, "refresh"),
    "it has rehearsed": behind(submit, "_rehearse"),
    "it claims": before(Ledger, "claim"),
    "half a claim is written": at_statement("INSERT INTO task", "INSERT INTO submission"),
    "the claim is to be committed": at_statement("COMMIT", "INSERT INTO submission"),
    "the claim is made": behind(Ledger, "claim"),
    "one function is written": behind(DelayedSubmission, "dump"),
    "all functions are written": before(SlurmExecutor, "_submit_command"),
    "sbatch's answer is read": behind(SlurmExecutor, "_submit_command"),
    "one function is in its place": behind(JobPaths, "move_temporary_file", "submitted_pickle"),
    "all is in its place": before(Ledger, "submitted"),
    "the answer is to be committed": at_statement("COMMIT", "UPDATE submission"),
    "the answer is on record": behind(Ledger, "submitted"),
}
# What sbatch's stand-in does -> what it does before and after the real one; `$who` is the launcher or its group.
AT_SBATCH = {"sbatch is asked": ("kill -9 $who", ":"), "sbatch has answered": (":", "kill -9 $who")}
COMPLETE = {
    "all is in its place",
    "the answer is to be committed",
    "the answer is on record",
    REPORTED,
}  # their jobs stay


def test_a_launcher_is_killed_at_every_point(bare_slurm: Cluster, tmp_path: Path) -> None:
    """Each time with jobs to submit, alone and with its sbatch."""
    runs = tmp_path / "runs"
    jobs = [Noted(runs, "job0"), Noted(runs, "job1")]
    for point in [*POINTS, *AT_SBATCH, REPORTED]:
        for group in (False, True):

            def die(group: bool = group) -> None:
                os.killpg(0, signal.SIGKILL) if group else os.kill(os.getpid(), signal.SIGKILL)

            if point in AT_SBATCH:
                who = f"who={'0' if group else '$PPID'}; "
                asked, answered = AT_SBATCH[point]
                folder = tmp_path / f"{point} {group}".replace(" ", "-")
                process = launcher(jobs, slow_sbatch(folder, who + asked, who + answered))
            elif point == REPORTED:
                process = launcher(jobs, report=lambda event, die=die: die())  # type: ignore[misc]
            else:
                process = launcher(jobs, lambda point=point, die=die: POINTS[point](die))  # type: ignore[misc]
            process.join()
            wait_for_orphans(process)
            assert process.exitcode == -signal.SIGKILL, point
            if point in COMPLETE:
                jobs += [Noted(runs, f"job{len(jobs) + number}") for number in range(2)]
    launch_slurm(jobs, HELD, lambda event: None)
    release_and_wait(bare_slurm, runs, jobs)


def test_kills_around_the_answer_of_sbatch(
    bare_slurm: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = tmp_path / "runs"
    jobs = [Noted(runs, f"job{number}") for number in range(8)]

    # sbatch is still on its way when the next launcher has looked, and arrives when its jobs are in the queue.
    process = launcher(jobs[:2], slow_sbatch(tmp_path / "late", before=wait_in_shell(tmp_path / "go")))
    try:
        until("sbatch is asked", (tmp_path / "late" / "asked").exists)
        kill(process)
        launch_slurm(jobs[:2], HELD, lambda event: None)
        first = {name: job.job for name, job in in_queue(runs).items()}
    finally:
        (tmp_path / "go").touch()
    until("the first sbatch arrives", (tmp_path / "late" / "answered").exists)
    assert len(bare_slurm.call("squeue", "-h", "-r").splitlines()) == 4

    # sbatch has answered, and nobody has heard it: the functions are not where the jobs look for them.
    process = launcher(jobs[:4], slow_sbatch(tmp_path / "unheard", after="sleep infinity"))
    try:
        until("sbatch has answered", (tmp_path / "unheard" / "answered").exists)
    finally:
        kill(process, group=True)
    assert len(bare_slurm.call("squeue", "-h", "-r").splitlines()) == 4  # those that came late are gone
    launch_slurm(jobs[:4], HELD, lambda event: None)
    assert {name: job.job for name, job in in_queue(runs).items() if name in first} == first

    # All is in its place, and only the ledger has not heard it: these jobs are good.
    def die(*_: object) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    with monkeypatch.context() as patch:
        patch.setattr(Ledger, "submitted", die)
        launcher(jobs).join()
    arrays = set(bare_slurm.call("squeue", "-h", "-r", "-o", "%i").split())
    launch_slurm(jobs, HELD, lambda event: None)
    assert {job.job for job in in_queue(runs).values()} == arrays
    release_and_wait(bare_slurm, runs, jobs)


def test_two_launchers_at_once(bare_slurm: Cluster, tmp_path: Path) -> None:
    jobs = [Noted(tmp_path, f"job{number}") for number in range(6)]
    both = [launcher(jobs[:4]), launcher(jobs[2:])]
    for process in both:
        process.join()
    assert [process.exitcode for process in both] == [0, 0]
    release_and_wait(bare_slurm, tmp_path, jobs)
