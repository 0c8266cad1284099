"""The registry of launchers, including those of other packages (docs/extending.md); and the launcher of this process.

Another package registers a launcher by an entry point of the group `cppo_lab.launchers` that names its
`LauncherRecord`. There is no other way: a sweep file, which may come from a stranger, can choose an installed launcher
but cannot name code.
"""

import contextlib
import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol, cast

from cppo_lab.errors import Interrupted, UserError, blocked, describe, unknown
from cppo_lab.launch.base import (
    Event,
    J,
    Job,
    Launcher,
    LauncherSpec,
    job_environment,
    must_not_begin,
    variables,
)
from cppo_lab.plugins import LAUNCHER_GROUP, Plugin, entry_points
from cppo_lab.runs.folder import AlreadyRunning, is_cancelled


class JobInQueue(Protocol):
    """A job that waits or runs: what the queue calls it, and its state in the queue's words."""

    @property
    def job(self) -> str: ...
    @property
    def state(self) -> str: ...


@dataclass(frozen=True)
class LauncherRecord(Plugin):
    """The registration of a launcher. Each `package.module:name` is imported when it is needed.

    title: its name in sentences. function: a `Launcher`. settings: its LauncherSpec.
    config: the settings of a launcher of another package, as conf/launcher/<name>.yaml has them for ours;
    `workers` and `threads` are there already.

    check: a function (settings, ResourcesSpec) that raises UserError for resources that it cannot give.
    doctor: a function (ResourcesSpec, folder of runs, settings) -> Checks of its requirements, which replace the check
    of this machine's GPUs; None: runs are on this machine.
    queue: a function (folder) -> jobs by name: those waiting or running whose logs are below the folder, each with
    `job` and `state`. The launcher returns when all jobs are in this queue. None: it returns when all have ended.

    one_machine: a run cannot use other machines. in_process: jobs run in this process, in turn.
    submitit: it needs that package. search_workers: default number of workers of a search; None: a worker per core.
    """

    KIND = "launcher"
    title: str
    function: str
    settings: str = f"{LauncherSpec.__module__}:{LauncherSpec.__name__}"
    config: Mapping[str, Any] = field(default_factory=dict)
    check: str | None = None
    doctor: str | None = None
    queue: str | None = None
    one_machine: bool = True
    in_process: bool = False
    submitit: bool = False
    search_workers: int | None = None


LAUNCHERS: Mapping[str, LauncherRecord] = MappingProxyType(
    {
        record.name: record
        for record in (
            LauncherRecord(
                "inline", "this process", function="cppo_lab.launch.launchers:launch_inline", in_process=True
            ),
            LauncherRecord(
                "local", "this machine", function="cppo_lab.launch.local:launch_local", submitit=True
            ),
            LauncherRecord(
                "slurm",
                "Slurm",
                function="cppo_lab.launch.slurm.submit:launch_slurm",
                settings="cppo_lab.launch.slurm.submit:SlurmSpec",
                check="cppo_lab.launch.slurm.submit:time_limit",
                doctor="cppo_lab.launch.slurm.submit:check_slurm",
                queue="cppo_lab.launch.slurm.queue:in_queue",
                one_machine=False,
                submitit=True,
                search_workers=4,  # more parallel trials would learn less from each other
            ),
        )
    }
)


def launcher_names() -> tuple[str, ...]:
    """The launchers of the product, whose names take precedence, then those of other installed packages by name.
    Imports none of them.
    """
    return (*LAUNCHERS, *sorted(entry_points(LAUNCHER_GROUP).keys() - LAUNCHERS.keys()))


def launcher_of(name: str) -> LauncherRecord:
    """The record of the launcher called `name`.

    Raises UserError if there is none, or if an entry point does not name a LauncherRecord.
    """
    if name in LAUNCHERS:
        return LAUNCHERS[name]
    path = entry_points(LAUNCHER_GROUP).get(name)
    if path is None:
        raise unknown("launcher", name, launcher_names())
    return LauncherRecord.at(path, name)


def launcher_kind(name: object) -> type[LauncherSpec]:
    """The settings class of the launcher called `name`; the base class if `name` is not a string.

    Raises UserError if there is none, or if that is none.
    """
    if not isinstance(name, str):
        return LauncherSpec
    if name not in launcher_names():
        *others, last = map(repr, launcher_names())
        raise UserError(f"launcher: name={name!r}: must be {', '.join(others)} or {last}")
    return launcher_of(name).settings_kind(LauncherSpec)


def load_launcher(name: str) -> Launcher:
    """The launcher called `name`.

    Raises UserError if there is none.
    """
    with variables(job_environment()):  # submitit reads its own as it is loaded
        return cast(Launcher, launcher_of(name).load("function"))


def jobs_in_queue(name: str, folder: Path) -> Mapping[str, JobInQueue]:
    """The jobs below `folder` that are in the queue of the launcher called `name`, by name; empty if it has no queue.

    Raises UserError if the queue does not answer.
    """
    queue = launcher_of(name).load("queue")
    return cast(Mapping[str, JobInQueue], {} if queue is None else queue(folder))


def launch_inline(jobs: Sequence[J], spec: LauncherSpec, report: Callable[[Event[J]], None]) -> None:
    """Run the jobs here; a failure is printed and the next starts."""
    began = time.time()
    for job in jobs:
        if must_not_begin(job, began):
            report(Event("cancelled", job))
            continue
        report(Event("started", job))
        if job.fresh_process:
            with variables(job_environment()), child(_run, job, began) as process:
                process.join()
        else:
            with variables(os.environ), contextlib.chdir("."):  # which the job sets for itself
                _run(job, began)
        report(Event("ended", job))


def _run(job: Job, began: float) -> None:
    try:
        job.run()
    except AlreadyRunning as error:
        print(error)
    except Interrupted:
        if not is_cancelled(job.folder, began):  # then the signal was for the launcher
            raise
    except (Exception, SystemExit) as error:  # noqa: BLE001 - the run has recorded it; the others continue
        print(f"{job.name} failed: {describe(error)}")


@contextlib.contextmanager
def child(
    function: Callable[..., None], *arguments: object, patience: float | None = None
) -> Iterator[BaseProcess]:
    """A new process that calls a function: it has loaded nothing, and has none of this one's locks. If it goes on at
    the end of the block, its signal handler shuts it down cleanly; after `patience` seconds, if any, it is killed.
    """
    process = multiprocessing.get_context("spawn").Process(target=function, args=arguments)
    try:
        with blocked(signal.SIGHUP):  # it is ended below
            process.start()
        yield process
    finally:
        if process.is_alive():
            process.terminate()
            process.join(patience)
            if process.is_alive():
                process.kill()
                process.join()
