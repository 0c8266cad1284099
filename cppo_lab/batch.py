"""Several runs in one job: trained together where their core supports it, each recorded as if it ran alone."""

import contextlib
import math
import sys
import traceback
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cppo_lab import schema
from cppo_lab.attempt import (
    Attempt,
    abandon,
    begin_record,
    describe,
    has_finished,
    has_result,
    is_done,
    is_result,
    own_record,
    prepare_process,
    remove_checkpoints,
    resources_of_attempt,
)
from cppo_lab.core_records import core_of
from cppo_lab.cores.base import TogetherRun, load_together
from cppo_lab.runs.folder import (
    AlreadyRunning,
    Cause,
    forget_cancelled,
    held,
    is_cancelled,
    list_runs,
    new_batch,
)
from cppo_lab.runs.machine import Environment, environment
from cppo_lab.runs.recorder import Recorder
from cppo_lab.schema import Outcome
from cppo_lab.signals import (
    Interrupted,
    deferred,
    find_interruption,
    handle_signals,
    hold_signals,
    ignore_signals,
)
from cppo_lab.spec import ResourcesSpec, canonical

if TYPE_CHECKING:
    from cppo_lab.tracking.records import AttemptRecord


RUNS = 120  # the maximum per job


@dataclass(frozen=True)
class Batch:
    """A job of several attempts. Those that differ only in the seed are trained together.

    A batch may hold several such groups, trained one after the other, since importing packages takes seconds per
    process. It has a separate folder below that of all runs, so that cancelling one run does not affect the others.
    """

    attempts: tuple[Attempt, ...]
    name: str = field(default_factory=new_batch)

    @property
    def run_ids(self) -> tuple[str, ...]:
        """The runs, in their order."""
        return tuple(one.spec.run_id for one in self.attempts)

    @property
    def folder(self) -> Path:
        """The batch's folder; the launcher keeps its logs in the subfolder `attempts`."""
        return self.attempts[0].runs / self.name

    @property
    def places(self) -> tuple[Path, ...]:
        """The folders that the runs read and write."""
        return tuple(dict.fromkeys(place for one in self.attempts for place in one.places))

    @property
    def fresh_process(self) -> bool:
        """Whether it needs a process that has not trained any run before."""
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
    def resources(self) -> ResourcesSpec | None:
        """The resource limits of each run."""
        return self.attempts[0].resources

    def without(self, run_ids: Collection[str]) -> "Batch | None":
        """The batch of the runs that are not among `run_ids`; None if there are none."""
        left = tuple(one for one in self.attempts if one.spec.run_id not in run_ids)
        return replace(self, attempts=left) if left else None

    def list_runs(self) -> None:
        """Write the list of its runs to its folder, so that `cppo logs` and `cppo cancel` find the batch of a run."""
        list_runs(self.folder, self.run_ids)

    def run(self) -> None:
        """Train the runs, in this process."""
        execute_together(self)

    def give_up(self, why: str) -> None:
        """Record why interrupted runs will not be resumed until somebody launches them again."""
        for one in self.attempts:
            with contextlib.suppress(AlreadyRunning):
                abandon(one, why)


def in_batches(attempts: Sequence[Attempt], workers: int = 1) -> list[Attempt | Batch]:
    """Jobs for `attempts`, in the order of their first runs: those that can be trained together in batches.

    No job has more than RUNS runs, or more than its share if some of the `workers` would otherwise be idle.
    """
    most = max(1, min(RUNS, math.ceil(len(attempts) / max(workers, 1))))
    jobs: list[list[Attempt]] = []
    open_jobs: dict[str, list[Attempt]] = {}  # jobs that may have room left, by the settings of their runs
    for group in groups(attempts, most):
        taken = _taken(group[0])
        job = open_jobs.get(taken)
        if not taken or job is None or len(job) + len(group) > most:
            job = []
            jobs.append(job)
            open_jobs[taken] = job
        job += group
    return [job[0] if len(job) == 1 else Batch(tuple(job)) for job in jobs]


def groups(attempts: Sequence[Attempt], most: int = RUNS) -> list[list[Attempt]]:
    """Groups of attempts to train together, ordered by first member, up to the core's limit and `most` in size."""
    alike: dict[object, list[Attempt]] = {}
    for number, one in enumerate(attempts):
        taken = _taken(one)
        kind = f"{taken} {canonical(one.spec.model_copy(update={'seed': 0}))}" if taken else number
        alike.setdefault(kind, []).append(one)
    found = []
    for group in alike.values():
        size = min(core_of(group[0].spec.core).most_together, most)
        found += [group[start : start + size] for start in range(0, len(group), size)]
    return found


def _taken(attempt: Attempt) -> str:
    """A key that is equal for runs that can share a process; empty for runs that are trained alone."""
    if core_of(attempt.spec.core).train_together is None:
        return ""
    one = attempt
    return f"{one.spec.core} {one.resources} {one.layout} {one.paths} {one.runs} {one.threads} {one.uri}"


@dataclass
class _Member:
    """A run of a batch that is being trained. `ended` once its end is on record."""

    attempt: Attempt
    recorder: Recorder
    ended: bool = False

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Record a step. Raises Interrupted if the run has been cancelled meanwhile."""
        if is_cancelled(self.attempt.folder, self.attempt.created):
            raise Interrupted(None)
        self.recorder.log(step, metrics)

    def begin(self, step: int | None) -> None:
        """As `Recorder.begin`; likewise the three methods below."""
        self.recorder.begin(step)

    def tag(self, name: str, value: str) -> None:
        """Give the run a tag."""
        self.recorder.tag(name, value)

    def artifact(self, name: str, values: Mapping[str, Any]) -> None:
        """Keep a JSON file."""
        self.recorder.artifact(name, values)

    def file(self, name: str, content: bytes) -> bool | None:
        """Keep a file."""
        return self.recorder.file(name, content)

    def end(self, how: Outcome | BaseException) -> None:
        """Record how the run ended."""
        if isinstance(how, Outcome):
            self.recorder.finish(how)
            if not self.recorder.spool.unwritten:  # otherwise only the store may know that the run ended
                remove_checkpoints(self.attempt.folder)
        elif isinstance(how, Interrupted | KeyboardInterrupt):
            if is_cancelled(self.attempt.folder, self.attempt.created):
                self.recorder.interrupt("cancelled", Cause.CANCELLED)
            else:
                self.recorder.interrupt(str(how) or "terminated by SIGINT")
        else:
            self.recorder.fail(describe(how), "".join(traceback.format_exception(how)))
        self.ended = True


def execute_together(batch: Batch) -> None:
    """Train the runs of a batch that are not done, from their checkpoints if they have them, and record each.

    A run that fails or is cancelled does not stop the others. Whatever ends the process is recorded for all unfinished
    runs and re-raised. The records of a group are uploaded when all of its runs have ended.
    """
    first = batch.attempts[0]
    prepare_process(first.threads, first.visible_devices)
    with held(batch.folder):
        for group in groups(batch.attempts):
            _execute_group(group)


def _execute_group(attempts: Sequence[Attempt]) -> None:
    """Train runs together that differ only in the seed, and upload their records."""
    # Imported here: thread counts and visible devices must be set before torch is loaded.
    from cppo_lab.tracking.shipper import FinalUploads

    with contextlib.ExitStack() as locks:
        free = [one for one in attempts if _is_free(one, locks)]
        known = _known(free)
        hold_signals()  # a record that has begun must have an end
        members: list[_Member] = []
        uploads = FinalUploads(attempts[0].uri)
        try:
            here = environment()
            for one in free:
                if (member := _begin(one, known.get(one.spec.run_id), here)) is not None:
                    members.append(member)
            handle_signals()
            if members:
                _train(members)
            ignore_signals(uploads.hurry_up)
        except BaseException as error:
            asked = find_interruption(error)
            ignore_signals(uploads.hurry_up)
            if asked is not None:
                uploads.hurry_up()
            for member in members:
                if not member.ended:
                    member.end(asked or error)
            uploads.send([member.recorder for member in members])
            if asked is not None:
                raise asked from None
            raise
        uploads.send([member.recorder for member in members])
        handle_signals(now=False)  # inline launcher: the next job raises a pending signal


def _is_free(attempt: Attempt, locks: contextlib.ExitStack) -> bool:
    """Take the run's lock, held until `locks` is closed. False if another process trains it or it was cancelled."""
    try:
        locks.enter_context(held(attempt.folder))
    except AlreadyRunning as error:
        print(error, flush=True)
        return False
    if is_cancelled(attempt.folder, attempt.created):
        print(f"run {attempt.spec.run_id} was cancelled before it began", flush=True)
        return False
    forget_cancelled(attempt.folder)  # an earlier attempt was
    return True


def _known(attempts: Sequence[Attempt]) -> Mapping[str, "Sequence[AttemptRecord] | None"]:
    """All attempts at the runs in the store; empty if the store does not answer."""
    from cppo_lab.tracking.read import known_attempts_of

    if not attempts:
        return {}
    first = attempts[0]
    experiment = schema.experiment_name(first.spec.core)
    return known_attempts_of(first.uri, experiment, [one.spec.run_id for one in attempts]) or {}


def _begin(attempt: Attempt, past: "Sequence[AttemptRecord] | None", here: Environment) -> _Member | None:
    """The run with its record begun; None if it is done, or cannot be recorded."""
    record = own_record(attempt)

    def has_one() -> bool | None:
        if has_finished(record):  # its local record may just have been uploaded
            return has_result(attempt, record)
        return None if past is None else is_result(attempt, past, record)

    try:
        if is_done(attempt, record, has_one):
            remove_checkpoints(attempt.folder)  # the attempt that finished was killed before it removed them
            return None
        return _Member(attempt, begin_record(attempt, record, here))
    except Exception as error:  # noqa: BLE001 - recorded as far as possible; the other runs continue
        print(f"run {attempt.spec.run_id} failed: {describe(error)}", file=sys.stderr, flush=True)
        return None


def _train(members: Sequence[_Member]) -> None:
    runs = [TogetherRun(one.attempt.spec, one, resources_of_attempt(one.attempt)) for one in members]

    def ended(place: int, how: Outcome | BaseException) -> None:
        with deferred():  # a signal must not interrupt recording the end of a run
            members[place].end(how)
        if isinstance(how, Exception):
            said = "".join(traceback.format_exception(how))
            print(f"run {runs[place].spec.run_id} failed:\n{said}", file=sys.stderr, end="", flush=True)

    load_together(members[0].attempt.spec.core)(runs, ended)
