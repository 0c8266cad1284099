"""A job of training runs: what a launcher starts for a list of attempts."""

import contextlib
import math
import secrets
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from cppo_lab.files import redacted
from cppo_lab.runs.attempt import (
    Attempt,
    abandon,
    groups,
    lend_machine,
    shared_process,
    train,
)
from cppo_lab.runs.folder import BATCH, AlreadyRunning, run_lock
from cppo_lab.runs.tags import variants_in
from cppo_lab.spec import ResourcesSpec
from cppo_lab.spec.job import read_folders
from cppo_lab.tracking import address
from cppo_lab.tracking.services import mirroring, notifying
from cppo_lab.tracking.uploader import upload_last, uploading

RUNS = 120  # the maximum per job


@dataclass(frozen=True)
class TrainingJob:
    """Attempts that are trained in the same process (`runs/attempt.py`), for the store at `uri`.

    A job of a single run has that run's folder. A job of several has another folder, so that cancelling a run does not
    affect the others. `uploads`: whether it sends its runs to the store; a launcher that waits for its jobs does so
    itself.
    """

    attempts: tuple[Attempt, ...]
    uri: str
    uploads: bool = True
    batch: str = ""  # the name of a job of several runs
    launch: tuple[str, ...] = ()  # the runs of all jobs of the launch
    mark: str = ""  # a name of the launch

    def __getstate__(self) -> dict[str, Any]:
        """The pickled state: without the store's password, which is in the environment."""
        return {**vars(self), "uri": redacted(self.uri)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, uri=address.with_password(state["uri"]))

    @property
    def run_ids(self) -> tuple[str, ...]:
        """The runs, in their order."""
        return tuple(attempt.run_id for attempt in self.attempts)

    @property
    def name(self) -> str:
        """What the launcher calls it."""
        return self.batch or self.attempts[0].run_id

    @property
    def title(self) -> str:
        """Its sweep and its run for people, as in `quickstart/cppo-1-3f2a`; of several runs the first variant."""
        first = self.attempts[0]
        sweep, variant = next(iter(variants_in(first.tags).items()), ("cppo", first.spec.rule.name))
        runs = f"{len(self.attempts)}-runs" if self.batch else f"{first.spec.seed}-{first.run_id[:4]}"
        return f"{sweep}/{variant}-{runs}"

    @property
    def folder(self) -> Path:
        """Its folder; the launcher keeps its logs in the subfolder `attempts`."""
        return self.attempts[0].runs / self.name

    @property
    def places(self) -> tuple[Path, ...]:
        """The folders of the runs and of the store; for published models also those of the models and prepared data."""
        first, file = self.attempts[0], address.sqlite_file(self.uri)
        beside = [] if file is None else [file.parent]  # SQLite and MLflow create files beside it
        read = [folder for attempt in self.attempts for folder in read_folders(attempt.spec, attempt.paths)]
        return tuple(dict.fromkeys([first.runs, *beside, *read]))

    @property
    def fresh_process(self) -> bool:
        """Whether it needs a process that has not loaded Ray or verl yet.

        Both read the environment on import, and Ray keeps the first run's token, so a second run could not
        authenticate.
        """
        return self.attempts[0].fresh_process

    @property
    def nodes(self) -> int:
        """Machines that it takes."""
        return self.attempts[0].nodes

    @property
    def gpus(self) -> int:
        """GPUs that it takes on each machine."""
        return self.attempts[0].gpus

    @property
    def cpus(self) -> int | None:
        """CPUs that its layout asks for on each machine."""
        return self.attempts[0].cpus

    @property
    def resources(self) -> ResourcesSpec | None:
        """The resource limits of each run."""
        return self.attempts[0].resources

    @property
    def withheld_because(self) -> str:
        """Why none of its runs may begin (`Attempt.withheld_because`); empty if any may."""
        whys = [attempt.withheld_because() for attempt in self.attempts]
        return whys[0] if all(whys) else ""

    def without(self, run_ids: Collection[str]) -> "TrainingJob | None":
        """The job of the runs that are not among `run_ids`; None if there are none."""
        attempts = tuple(attempt for attempt in self.attempts if attempt.run_id not in run_ids)
        return replace(self, attempts=attempts) if attempts else None

    def run(self) -> None:
        """Train the runs, in this process; on the other machines of an allocation, help with the first."""
        first = self.attempts[0]
        if first.allocation is not None and first.allocation.rank:
            lend_machine(first.spec.core, [first.resources_in(first.folder)], first.visible_devices)
            return
        with contextlib.ExitStack() as stack:
            if self.batch:
                stack.enter_context(run_lock(self.folder))
            if self.uploads:
                folders = [attempt.folder for attempt in self.attempts]
                launch = [first.runs / run_id for run_id in self.launch]
                stack.enter_context(notifying(folders, launch, self.mark, waits=False))
                stack.enter_context(mirroring(folders))
                stack.enter_context(uploading(folders, self.uri))
            train(
                self.attempts,
                lambda folder, lines, asked: upload_last([folder], self.uri, {folder: lines}, hurry=asked),
                alone=not self.batch,
            )

    def give_up(self, why: str) -> None:
        """Record why interrupted runs will not be resumed until somebody launches them again."""
        for attempt in self.attempts:
            with contextlib.suppress(AlreadyRunning):
                abandon(attempt, why)
        if self.uploads:
            upload_last([attempt.folder for attempt in self.attempts], self.uri)


def training_jobs(
    attempts: Sequence[Attempt], uri: str, workers: int = 1, uploads: bool = True
) -> list[TrainingJob]:
    """Jobs for `attempts`, in the order of their first runs: those that can share a process share a job.

    No job has more than RUNS runs, or more than its share if some of the `workers` would otherwise be idle.
    """
    most = max(1, min(RUNS, math.ceil(len(attempts) / max(workers, 1))))
    jobs: list[list[Attempt]] = []
    open_jobs: dict[str, list[Attempt]] = {}  # jobs that may have room, by the settings of their process
    for group in groups(attempts, most):
        process = shared_process(group[0])
        job = open_jobs.get(process)
        if not process or job is None or len(job) + len(group) > most:
            job = []
            jobs.append(job)
            open_jobs[process] = job
        job += group
    launch = tuple(attempt.run_id for attempt in attempts) if uploads else ()
    mark, *batches = (f"{BATCH}{secrets.token_hex(8)}" for _ in range(1 + len(jobs)))
    return [
        TrainingJob(tuple(job), uri, uploads, batch if len(job) > 1 else "", launch, mark)
        for job, batch in zip(jobs, batches, strict=True)
    ]
