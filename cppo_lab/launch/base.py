"""The interface of a launcher, and its configuration. The table of launchers: `launchers.py`."""

from collections.abc import Callable, Sequence
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
    return is_cancelled(job.folder, since) or bool(getattr(job, "held_for", ""))


def run_masked(job: Job) -> None:
    """Run a job in a separate process, with secrets masked in the output and result, which launchers keep in files."""
    mask_output()
    with masked_errors():
        job.run()


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
