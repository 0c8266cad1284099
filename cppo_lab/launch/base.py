"""The interface of a launcher, and its configuration; and what launcher and job agree on, whatever variables the shell
of the user has. The table of launchers: `launchers.py`.
"""

import contextlib
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, Protocol, TypeVar

from cppo_lab.files import mask_output, masked_errors
from cppo_lab.runs.folder import is_cancelled
from cppo_lab.spec import Count, ResourcesSpec, Spec


class LauncherSpec(Spec):
    """How runs are started: `workers` at a time (None: the launcher decides), each with `threads` threads."""

    name: str
    workers: Count | None
    threads: Count

    @property
    def contained(self) -> bool:
        """Whether runs are in a container that the launcher starts: this machine's packages do not count then."""
        return False


class Job(Protocol):
    """What a launcher runs: an attempt at a training run, or a worker of a search. It is pickled."""

    @property
    def name(self) -> str:
        """Its name for users and schedulers."""

    @property
    def folder(self) -> Path:
        """Where the launcher keeps its logs, in a folder `attempts`."""

    @property
    def places(self) -> tuple[Path, ...]:
        """The folders that it reads and writes, besides the working folder: a container must mount them."""

    @property
    def fresh_process(self) -> bool:
        """Whether it must not run in the launcher's process."""

    @property
    def nodes(self) -> int:
        """Machines that it takes."""

    @property
    def gpus(self) -> int:
        """GPUs that it takes on each machine."""

    @property
    def cpus(self) -> int | None:
        """CPUs that its layout asks for on each machine; None: it asks for none."""

    @property
    def resources(self) -> ResourcesSpec | None:
        """Limits of time and memory, and the shares of a machine or cluster; None: no limits."""

    def run(self) -> None:
        """Run the job in this process."""

    def give_up(self, why: str) -> None:
        """Record why no launcher resumes it automatically, although it has not finished."""


J = TypeVar("J", bound=Job)


def must_not_begin(job: Job, since: float) -> bool:
    """Whether a job was cancelled after the moment `since`, or others of its launch failed so that it is held."""
    return is_cancelled(job.folder, since) or bool(getattr(job, "withheld_because", ""))


def run_masked(job: Job) -> None:
    """Run a job in a separate process, with secrets masked in the output and result, which launchers keep in files."""
    mask_output()
    with masked_errors():
        try:
            job.run()
        finally:  # submitit says that it has ended before its process has
            sys.stdout.flush()
            sys.stderr.flush()


@dataclass(frozen=True)
class Event(Generic[J]):
    """Something a launcher saw: `kind` is `submitted`, `started`, `progress`, `ended`, or `cancelled` (not begun)."""

    kind: str
    job: J


class Launcher(Protocol):
    """Run every job, in any order, calling `report` as things happen.

    It returns when all jobs have ended, or when all are in the queue of its `LauncherRecord`. A job that fails does not
    stop the others. The outcome of a run is recorded in its folder by the job (`attempt.py`).
    """

    def __call__(self, jobs: Sequence[J], spec: LauncherSpec, report: Callable[[Event[J]], None]) -> None: ...


# Variables of every job: no file of the working folder is imported, and submitit takes the signal that jobs expect for
# a warning.
JOB_VARIABLES = {"PYTHONSAFEPATH": "1", "SUBMITIT_PREEMPT_SIGNAL": "USR2"}
# And those that no job gets: submitit's, which choose its executor and its messages.
_OF_SUBMITIT = re.compile(r"SUBMITIT_|_TEST_CLUSTER_\Z")
# Options of Slurm's commands, and of a job that this process runs in: they would change what Slurm answers or what a
# new job is. Not those that say which cluster, and who asks. `SBATCH_*`: `slurm/submit.py`; git's: `runs/machine.py`.
_OF_SLURM = re.compile(
    r"(?!SLURM_(CONF|CONF_SERVER|CLUSTERS|JWT)\Z)(SQUEUE|SCANCEL|SACCT|SINFO|SCONTROL|SRUN|SLURMD?)_"
)


def job_environment(*foreign: re.Pattern[str]) -> dict[str, str]:
    """The variables of this process for a child that trains, which may be in the same Slurm job, without `foreign`
    ones: what launcher and job have agreed on, whatever the user's shell has.
    """
    left_out = (_OF_SUBMITIT, *foreign)
    passed = {name: value for name, value in os.environ.items() if not any(p.match(name) for p in left_out)}
    return passed | JOB_VARIABLES


def slurm_environment() -> dict[str, str]:
    """The same for Slurm's commands: not those of the job that this process may run in."""
    return job_environment(_OF_SLURM)


@contextlib.contextmanager
def variables(values: Mapping[str, str]) -> Iterator[None]:
    """Have these variables in the block, for libraries that pass on those of this process."""
    before = dict(os.environ)

    def set_all(variables: Mapping[str, str]) -> None:
        for name in os.environ.keys() - variables.keys():
            del os.environ[name]
        os.environ.update(variables)

    set_all(values)
    try:
        yield
    finally:
        set_all(before)
