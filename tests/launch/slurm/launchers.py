"""Launchers in separate processes, which are killed at named points or at any moment; their jobs are held."""

import contextlib
import multiprocessing
import os
import shlex
import signal
from collections import Counter
from collections.abc import Callable, Sequence
from multiprocessing.process import BaseProcess
from pathlib import Path

from cppo_lab.launch.slurm.queue import in_queue
from cppo_lab.launch.slurm.submit import launch_slurm
from dev.slurm.cluster import Cluster
from dev.slurm.daemons import everything
from tests.launch.slurm.jobs import Noted, begun, ended, slurm_spec
from tests.waiting import until

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


def kill(process: BaseProcess, group: bool = False) -> None:
    """SIGKILL to a launcher, or to its sbatch as well."""
    assert process.pid is not None
    with contextlib.suppress(ProcessLookupError):
        (os.killpg if group else os.kill)(process.pid, signal.SIGKILL)
    process.join()


def wait_for_orphans(process: BaseProcess) -> None:
    """Until what a launcher has started has ended too: an sbatch outlives it."""

    def left() -> bool:
        for other in everything():
            with contextlib.suppress(ProcessLookupError):
                if os.getpgid(other.pid) == process.pid:
                    return True
        return False

    until("nothing of the launcher runs", lambda: not left())


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


def wait_in_shell(file: Path) -> str:
    """Shell commands that wait until there is a file."""
    return f"until [ -e {shlex.quote(str(file))} ]; do sleep 0.05; done"


def release_and_wait(slurm: Cluster, runs: Path, jobs: Sequence[Noted]) -> None:
    """Let the jobs run, and see that each of them does so once and that nothing else was in the queue."""
    shown = slurm.call("squeue", "-h", "-r", "-t", "PENDING", "-o", "%i").split()
    assert len(shown) == len(jobs)
    slurm.call("scontrol", "release", ",".join({job.partition("_")[0] for job in shown}))
    until("all have ended", lambda: ended(runs, jobs))
    until("the queue is empty", lambda: not in_queue(runs))
    assert begun(runs) == Counter(job.name for job in jobs)
