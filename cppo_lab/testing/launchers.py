"""Conformance tests of a launcher.

They need the launcher's record, and overrides with which it works where the tests run:

    from acme_records import BATCH
    from cppo_lab.testing import LauncherTests

    class TestBatch(LauncherTests):
        launcher = BATCH
        overrides = ("launcher.threads=1",)

The launcher must be installed. The jobs are small: they write a file, wait for a moment, or fail.
"""

import json
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from cppo_lab.launch.base import Event, LauncherSpec
from cppo_lab.launch.launchers import LauncherRecord, jobs_in_queue, launcher_kind, launcher_of
from cppo_lab.runs.folder import cancel, is_cancelled
from cppo_lab.spec import ResourcesSpec
from cppo_lab.sweep.compose import compose
from cppo_lab.testing import call_all, temporary_folder

KINDS = frozenset({"submitted", "started", "progress", "ended", "cancelled"})
JOB_SECONDS = 0.3


@dataclass(frozen=True)
class SmallJob:
    """A job that appends a line to `runs/<name>/ran`: its process, and when it began and ended.

    `created`, in seconds since the epoch: like a run (attempt.py), the job ends immediately if it was cancelled after
    that.
    """

    name: str
    runs: Path
    fails: bool = False
    fresh_process: bool = False
    nodes: int = 1
    gpus: int = 0
    cpus: int | None = None
    resources: ResourcesSpec | None = None
    created: float | None = None

    @property
    def folder(self) -> Path:
        """The job's folder."""
        return self.runs / self.name

    @property
    def places(self) -> tuple[Path, ...]:
        """The folders that the job writes to."""
        return (self.runs,)

    def run(self) -> None:
        """Wait a moment, then write the line."""
        if self.created is not None and is_cancelled(self.folder, self.created):
            return
        began = time.time()
        time.sleep(JOB_SECONDS)
        self.folder.mkdir(parents=True, exist_ok=True)
        with (self.folder / "ran").open("a", encoding="utf-8") as file:
            file.write(json.dumps([os.getpid(), began, time.time()]) + "\n")
        if self.fails:
            raise RuntimeError(f"{self.name} fails, as it is meant to")

    def give_up(self, why: str) -> None:
        """Write why."""
        (self.folder / "given_up").write_text(why, encoding="utf-8")


Report = Callable[[Event[SmallJob]], None]


def check_launcher(launcher: LauncherRecord, overrides: Sequence[str] = (), seconds: float = 600) -> None:
    """All tests of `LauncherTests`, without pytest; the arguments are its attributes.

    Raises AssertionError.
    """
    call_all(LauncherTests, launcher=launcher, overrides=overrides, seconds=seconds)


class LauncherTests:
    """Tests of `launcher` with `overrides`. seconds: the longest time that a job waits in the launcher's queue, if
    any.
    """

    launcher: LauncherRecord
    overrides: Sequence[str] = ()
    seconds: float = 600

    def test_the_record_is_the_one_that_is_found(self) -> None:
        """The record is found by its name, and its settings are composed from command-line overrides."""
        assert launcher_of(self.launcher.name) == self.launcher
        assert isinstance(self._settings(), launcher_kind(self.launcher.name))

    def test_every_job_runs_once_in_its_own_process(self) -> None:
        """Every job has a separate process unless the record says `in_process`; a failing job does not stop the
        others.
        """
        with temporary_folder() as runs:
            jobs = [SmallJob(name, runs, fails=name == "b") for name in ("a", "b", "c")]
            self._launch(jobs)
            ran = {job.name: _lines(job) for job in jobs}
        assert {name: len(lines) for name, lines in ran.items()} == {"a": 1, "b": 1, "c": 1}
        processes = {int(lines[0][0]) for lines in ran.values()}
        assert (processes == {os.getpid()}) == self.launcher.in_process, "in_process says where jobs run"
        assert self.launcher.in_process or len(processes) == len(jobs), "two jobs had one process"

    def test_no_more_jobs_than_workers_run_at_a_time(self) -> None:
        """With `workers=1` a job begins only after the previous has ended, by its own clock and as reported.

        Where processes start slowly, jobs that were started together may not overlap: only the reports show them.
        """
        with temporary_folder() as runs:
            jobs = [SmallJob(name, runs) for name in ("a", "b", "c")]
            events = self._launch(jobs, workers=1)
            times = sorted((line[1], line[2]) for job in jobs for line in _lines(job))
        assert len(times) == len(jobs)
        for before, after in pairwise(times):
            assert before[1] <= after[0], "two jobs ran together with workers=1"
        running = None
        for event in events:
            if event.kind == "started":
                assert running is None, f"{event.job.name} was started before {running} had ended"
                running = event.job.name
            elif event.kind == "ended":
                running = None

    def test_what_is_reported(self) -> None:
        """Only known kinds of events are reported, for the given jobs, and each job's end (or its submission): once,
        after it, and of a job that fails as well.
        """
        early = []
        with temporary_folder() as runs:
            jobs = [SmallJob(name, runs, fails=name == "b") for name in ("a", "b")]

            def see(event: Event[SmallJob]) -> None:
                if event.kind == "ended" and not _lines(event.job):
                    early.append(event.job.name)

            events = self._launch(jobs, see=see)
        assert {event.kind for event in events} <= KINDS
        last = "submitted" if self.launcher.queue else "ended"
        named = sorted(event.job.name for event in events if event.kind == last)
        assert named == ["a", "b"], f"{last} is reported of {named}, not of a and b"
        assert not early, f"the end of {early} is reported before it"
        assert all(event.job in jobs for event in events)

    def test_a_job_cancelled_while_it_waits_does_not_begin(self) -> None:
        """A cancellation is recorded in the job's folder. Without a queue, the launcher checks it before each job and
        reports an event.

        A queued job checks it itself: it has to see the folder that `cppo cancel` writes to, and leave the queue.
        """
        with temporary_folder() as runs:
            created = time.time() if self.launcher.queue else None
            jobs = [SmallJob(name, runs, created=created) for name in ("a", "b")]
            jobs[1].folder.mkdir()
            if self.launcher.queue:
                cancel(jobs[1].folder)

            def see(event: Event[SmallJob]) -> None:
                if event.kind == "started" and event.job.name == "a" and not self.launcher.queue:
                    cancel(jobs[1].folder)

            events = self._launch(jobs, workers=1, see=see)
            assert len(_lines(jobs[0])) == 1
            assert not _lines(jobs[1]), "a cancelled job ran"
        if not self.launcher.queue:
            kinds = [event.kind for event in events if event.job.name == "b"]
            assert kinds == ["cancelled"], f"of a job that was cancelled before it began: {kinds}"

    def _settings(self) -> LauncherSpec:
        return compose([f"launcher={self.launcher.name}", *self.overrides]).launcher

    def _launch(
        self, jobs: Sequence[SmallJob], workers: int | None = None, see: Report | None = None
    ) -> list[Event[SmallJob]]:
        """Launch the jobs, and wait until the queue (if any) is empty."""
        events: list[Event[SmallJob]] = []

        def report(event: Event[SmallJob]) -> None:
            events.append(event)
            if see is not None:
                see(event)

        settings = self._settings().model_copy(update={"workers": workers} if workers else {})
        self.launcher.load("function")(jobs, settings, report)
        deadline = time.monotonic() + self.seconds
        while waiting := jobs_in_queue(self.launcher.name, jobs[0].runs):
            assert time.monotonic() < deadline, f"{sorted(waiting)} wait for more than {self.seconds:g} s"
            time.sleep(1)
        return events


def _lines(job: SmallJob) -> list[list[float]]:
    path = job.folder / "ran"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.is_file() else []
