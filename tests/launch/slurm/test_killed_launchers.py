"""Launchers that are killed, or many at once, on a real slurmctld: each job runs once, and none is forgotten.

The jobs are submitted held and let go at the end, so that none can end meanwhile and be taken for one never begun.
"""

import contextlib
import itertools
import multiprocessing
import os
import signal
from collections import Counter
from collections.abc import Callable, Sequence
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import pytest
from submitit import SlurmExecutor
from submitit.core.utils import DelayedSubmission, JobPaths

from cppo_lab.launch.slurm import submit
from cppo_lab.launch.slurm.queue import Ledger
from cppo_lab.launch.slurm.submit import launch_slurm
from dev.slurm.cluster import Cluster
from dev.slurm.daemons import everything
from tests.launch.slurm.jobs import Noted, begun, ended, slurm_spec, wait_until_gone
from tests.waiting import until

pytestmark = [pytest.mark.slurm, pytest.mark.slow]

HELD = slurm_spec(sbatch={"hold": True})


def launcher(
    jobs: Sequence[Noted],
    before: Callable[[], None] = lambda: None,
    report: Callable[[object], None] = lambda event: None,
) -> BaseProcess:
    """A launcher in a separate process, and a process group of its own."""

    def launch() -> None:
        os.setpgid(0, 0)
        before()
        launch_slurm(jobs, HELD, report)

    process = multiprocessing.get_context("fork").Process(target=launch)
    process.start()
    return process


def wait_for_orphans(process: BaseProcess) -> None:
    """Until what a launcher has started has ended too: an sbatch outlives it."""

    def left() -> bool:
        for other in everything():
            with contextlib.suppress(ProcessLookupError):
                if os.getpgid(other.pid) == process.pid:
                    return True
        return False

    until("nothing of the launcher runs", lambda: not left())


def other_sbatch(folder: Path, before: str, after: str) -> Callable[[], None]:
    """Puts an sbatch into a launcher's way that does something before and after the real one."""
    folder.mkdir()
    script = folder / "sbatch"
    script.write_text(
        '#!/bin/bash\nhere=$(dirname "$0")\nexport PATH=${PATH#"$here":}\n'
        '[ "$1" = --test-only ] && exec sbatch "$@"\n'
        f'{before}; sbatch "$@"; {after}\n'
    )
    script.chmod(0o755)

    def install() -> None:
        os.environ["PATH"] = f"{folder}:{os.environ['PATH']}"

    return install


@pytest.fixture(autouse=True)
def _settled(monkeypatch: pytest.MonkeyPatch) -> None:
    """No sbatch is on its way that a test does not know of."""
    monkeypatch.setattr("cppo_lab.launch.slurm.queue.SETTLING_SECONDS", 0.0)


def die(*_: object, **__: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def before(owner: object, name: str) -> Callable[[], None]:
    """Has a launcher die instead of calling a function."""
    return lambda: setattr(owner, name, die)


def behind(owner: object, name: str, *arguments: object) -> Callable[[], None]:
    """Behind the first call of a function, or the first with these among its arguments."""

    def install() -> None:
        real = getattr(owner, name)

        def call(*given: Any, **named: Any) -> None:
            real(*given, **named)
            if set(arguments) <= {argument for argument in given if isinstance(argument, str)}:
                die()

        setattr(owner, name, call)

    return install


REPORTED = "its job is reported"
# Where a launcher is killed -> how it gets there, in the order of a launch. Those from sbatch's end are below.
POINTS = {
    "it has no lock yet": before(submit, "submitting"),
    "it has the lock": before(submit, "Ledger"),
    "it has looked at the queue": behind(submit, "refresh"),
    "it has rehearsed": behind(submit, "_rehearse"),
    "it claims": before(Ledger, "claim"),
    "the claim is made": behind(Ledger, "claim"),
    "one function is written": behind(DelayedSubmission, "dump"),
    "all functions are written": before(SlurmExecutor, "_submit_command"),
    "sbatch's answer is read": behind(SlurmExecutor, "_submit_command"),
    "one function is in its place": behind(JobPaths, "move_temporary_file", "submitted_pickle"),
    "all is in its place": before(Ledger, "submitted"),
    "the answer is on record": behind(Ledger, "submitted"),
}
# What sbatch's stand-in does -> what it does before and after the real one; `$who` is the launcher or its group.
AT_SBATCH = {"sbatch is asked": ("kill -9 $who", ":"), "sbatch has answered": (":", "kill -9 $who")}
COMPLETE = {"all is in its place", "the answer is on record", REPORTED}  # their jobs stay


def test_a_launcher_is_killed_at_every_point(bare_slurm: Cluster, tmp_path: Path) -> None:
    """Each time with jobs to submit; while its sbatch runs, alone and with that."""
    runs = tmp_path / "runs"
    jobs = [Noted(runs, "job0"), Noted(runs, "job1")]
    for number, point in enumerate([*POINTS, *itertools.product(AT_SBATCH, ("$PPID", "0")), REPORTED]):
        if isinstance(point, tuple):
            asked, answered = (f"who={point[1]}; {act}" for act in AT_SBATCH[point[0]])
            process = launcher(jobs, other_sbatch(tmp_path / str(number), asked, answered))
        elif point == REPORTED:
            process = launcher(jobs, report=die)
        else:
            process = launcher(jobs, POINTS[point])
        process.join()
        wait_for_orphans(process)
        assert process.exitcode == -signal.SIGKILL, point
        if point in COMPLETE:
            jobs += [Noted(runs, f"job{len(jobs) + more}") for more in range(2)]
    launch_slurm(jobs, HELD, lambda event: None)
    shown = bare_slurm.call("squeue -h -r -t PENDING -o %i").split()
    assert len(shown) == len(jobs)
    bare_slurm.call("scontrol release", ",".join({job.partition("_")[0] for job in shown}))
    until("all have ended", lambda: ended(runs, jobs))
    wait_until_gone(runs)
    assert begun(runs) == Counter(job.name for job in jobs)
