"""Launchers that are killed, or many at once, on a real slurmctld: each job runs once, and none is forgotten.

The jobs are submitted held and let go at the end, so that none can end meanwhile and be taken for one never begun.
"""

import contextlib
import multiprocessing
import os
import random
import signal
import sqlite3
import time
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest

from cppo_lab.launch.slurm import reconcile
from cppo_lab.launch.slurm.ledger import NAME, Ledger
from cppo_lab.launch.slurm.reconcile import in_queue
from cppo_lab.launch.slurm.submit import launch_slurm
from dev.slurm.cluster import Cluster
from tests.launch.slurm.jobs import Noted, begun, ended, slurm_spec
from tests.waiting import until

pytestmark = [pytest.mark.slurm, pytest.mark.slow]
HELD = slurm_spec(sbatch={"hold": True})
KILLS = 20


@pytest.fixture(autouse=True)
def _settle_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """An sbatch that nothing slows down is through in a tenth of a second."""
    monkeypatch.setattr(reconcile, "SETTLING_SECONDS", 0.5)


def launcher(jobs: Sequence[Noted], before: Callable[[], None] = lambda: None) -> BaseProcess:
    """A launcher in a process of its own, and a process group of its own."""

    def launch() -> None:
        os.setpgid(0, 0)
        before()
        launch_slurm(jobs, HELD, lambda event: None)

    process = multiprocessing.get_context("fork").Process(target=launch)
    process.start()
    return process


def kill(process: BaseProcess, group: bool = False) -> None:
    """SIGKILL to a launcher, or to its sbatch as well."""
    assert process.pid is not None
    with contextlib.suppress(ProcessLookupError):
        (os.killpg if group else os.kill)(process.pid, signal.SIGKILL)
    process.join()


def release_and_wait(slurm: Cluster, runs: Path, jobs: Sequence[Noted]) -> None:
    """Let the jobs run, and see that each of them does so once and that nothing else was in the queue."""
    shown = slurm.call("squeue", "-h", "-r", "-t", "PENDING", "-o", "%i").split()
    assert len(shown) == len(jobs)
    slurm.call("scontrol", "release", ",".join({job.partition("_")[0] for job in shown}))
    until("all have ended", lambda: ended(runs, jobs), 600)
    until("the queue is empty", lambda: not in_queue(runs), 600)
    assert begun(runs) == Counter(job.name for job in jobs)


def claims(runs: Path) -> int:
    """How many submissions have been begun."""
    with sqlite3.connect(runs / NAME) as database:
        return int(database.execute("SELECT COUNT(*) FROM submission").fetchone()[0])


def submits(runs: Path, known: int) -> bool:
    """Whether more submissions than the known ones have been begun."""
    return claims(runs) > known


def test_a_launcher_is_killed_twenty_times(bare_slurm: Cluster, tmp_path: Path) -> None:
    chance = random.Random(7)
    jobs = [Noted(tmp_path, f"job{number}") for number in range(24)]
    began = time.monotonic()
    launcher(jobs[:2]).join()
    usual = time.monotonic() - began
    for number in range(KILLS):
        # Another job each time, and at times two, so that there is always something to submit.
        known = claims(tmp_path)
        process = launcher(jobs[: 3 + number + number // 10])
        if number % 4 < 2:  # around sbatch
            until("it submits", partial(submits, tmp_path, known))
            time.sleep(chance.uniform(0, usual / 2))
        else:
            time.sleep(chance.uniform(0, 1.5 * usual))
        kill(process, group=number % 2 == 1)
    time.sleep(5)  # an sbatch may have outlived its launcher
    launch_slurm(jobs, HELD, lambda event: None)
    release_and_wait(bare_slurm, tmp_path, jobs)


def slow_sbatch(folder: Path, before: str = ":", after: str = ":") -> Callable[[], None]:
    """Puts an sbatch into a launcher's way that does something before and after the real one."""
    folder.mkdir()
    script = folder / "sbatch"
    script.write_text(
        '#!/bin/bash\nhere=$(dirname "$0")\nexport PATH=${PATH#"$here":}\n'
        '[ "$1" = --test-only ] && exec sbatch "$@"\n'
        f'touch "$here/asked"; {before}; sbatch "$@"; touch "$here/answered"; {after}\n'
    )
    script.chmod(0o755)

    def install() -> None:
        os.environ["PATH"] = f"{folder}:{os.environ['PATH']}"

    return install


def test_kills_around_the_answer_of_sbatch(
    bare_slurm: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = tmp_path / "runs"
    jobs = [Noted(runs, f"job{number}") for number in range(8)]

    # sbatch is still on its way when the next launcher has looked, and arrives when its jobs are in the queue.
    told = 'for _ in {1..6000}; do [ -e "$here/go" ] && break; sleep 0.1; done'
    process = launcher(jobs[:2], slow_sbatch(tmp_path / "late", before=told))
    try:
        until("sbatch is asked", (tmp_path / "late" / "asked").exists)
        kill(process)
        launch_slurm(jobs[:2], HELD, lambda event: None)
        first = {name: job.job for name, job in in_queue(runs).items()}
    finally:
        (tmp_path / "late" / "go").touch()
    until("the first sbatch arrives", (tmp_path / "late" / "answered").exists)
    assert len(bare_slurm.call("squeue", "-h", "-r").splitlines()) == 4

    # sbatch has answered, and nobody has heard it: the functions are not where the jobs look for them.
    process = launcher(jobs[:4], slow_sbatch(tmp_path / "unheard", after="sleep 600"))
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
