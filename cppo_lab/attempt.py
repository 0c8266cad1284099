"""One attempt at one run, from taking the folder's lock to recording its end. Called in the process that trains."""

import contextlib
import os
import shutil
import signal
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeGuard

from cppo_lab import schema
from cppo_lab.core_records import core_of
from cppo_lab.cores.base import CHECKPOINT, CHECKPOINTS, Resources, load_companion, load_core, load_datasets
from cppo_lab.cores.base import Allocation as Allocation  # launchers import it from here
from cppo_lab.errors import printable
from cppo_lab.files import redacted
from cppo_lab.hub import hub_cache
from cppo_lab.runs.folder import (
    AlreadyRunning,
    Cause,
    begin_status,
    forget_cancelled,
    held,
    is_cancelled,
    set_aside,
)
from cppo_lab.runs.machine import Environment, sampling
from cppo_lab.runs.recorder import Recorder, close_dead
from cppo_lab.runs.spool import Record, newest_record
from cppo_lab.runs.state import OF_OTHERS
from cppo_lab.runs.tags import resolved_yaml
from cppo_lab.signals import Interrupted, find_interruption, handle_signals, hold_signals, ignore_signals
from cppo_lab.spec import AnswersSpec, HubModel, LayoutSpec, MathData, PathsSpec, ResourcesSpec, RunSpec
from cppo_lab.spec.layout import layout_tag
from cppo_lab.tracking import address
from cppo_lab.tracking.sent import forget_shipped, unsent

if TYPE_CHECKING:
    from cppo_lab.tracking.records import AttemptRecord


@dataclass(frozen=True)
class Attempt:
    """What a launcher passes to the process that trains."""

    spec: RunSpec
    runs: Path  # the folder of all runs; this one's is runs/<run_id>
    uri: str
    tags: Mapping[str, str] = field(default_factory=dict)
    layout: LayoutSpec | None = None  # None for cores that do not use one
    paths: PathsSpec | None = None
    resources: ResourcesSpec | None = None  # None: no time limit
    threads: int = 1
    visible_devices: str | None = None  # CUDA_VISIBLE_DEVICES of the run; None: every device
    replaces: tuple[str, ...] = ()  # MLflow ids of finished runs that this one replaces
    allocation: Allocation | None = None  # the machines of the run; None: only this one
    mismatch: bool = True  # whether to log the metrics `mismatch/*`
    answers: AnswersSpec | None = None  # which responses to keep; None: none
    # Only a cancellation after this time (seconds since the epoch) applies to this attempt.
    created: float = field(default_factory=time.time, compare=False)

    def __getstate__(self) -> dict[str, Any]:
        """The pickled state: without the store's password, which is in the environment."""
        return {**vars(self), "uri": redacted(self.uri)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, uri=address.with_password(state["uri"]))

    @property
    def folder(self) -> Path:
        """The run's own folder."""
        return self.runs / self.spec.run_id

    @property
    def name(self) -> str:
        """What the launcher calls it."""
        return self.spec.run_id

    @property
    def places(self) -> tuple[Path, ...]:
        """The folders of the runs and of the store; for published models also those of the models and prepared data."""
        found, file = [self.runs], address.sqlite_file(self.uri)
        if file is not None:
            found.append(file.parent)  # SQLite and MLflow create files beside it
        return (*found, *read_folders(self.spec, self.paths))

    @property
    def fresh_process(self) -> bool:
        """Whether it needs a process that has not loaded Ray or verl yet.

        Both read the environment on import, and Ray keeps the first run's token, so a second run could not
        authenticate.
        """
        return core_of(self.spec.core).fresh_process

    @property
    def nodes(self) -> int:
        """Machines that it takes."""
        return core_of(self.spec.core).nodes(self.layout)

    @property
    def gpus(self) -> int:
        """GPUs that it takes on each machine."""
        return core_of(self.spec.core).gpus(self.layout)

    def run(self) -> None:
        """Train the run, in this process; on the other machines of an allocation, help with it."""
        if self.allocation is not None and self.allocation.rank:
            join_as_worker_node(self)
        else:
            execute(self)

    def give_up(self, why: str) -> None:
        """Record why an interrupted run will not be resumed until somebody launches it again."""
        abandon(self, why)


def read_folders(spec: RunSpec, paths: PathsSpec | None) -> list[Path]:
    """The folders that a run reads: the prepared data, if it uses them, and the models, if its model is published."""
    found = []
    if isinstance(spec.data, MathData) and paths is not None:
        found.append(Path(paths.data))
    if isinstance(spec.model, HubModel):
        models = paths.models if paths is not None else None
        found += [Path(models)] if models is not None else [hub_cache()] if hub_cache().is_dir() else []
    return found


def execute(attempt: Attempt) -> None:
    """Train one run, from its checkpoint if it has one, and record it. A run that is already done is not changed.

    An attempt that replaces finished runs starts from scratch, or resumes an earlier attempt at the same replacement.
    Whatever ends the run before its last step is recorded and re-raised: a signal as an interruption, anything else
    as a failure with its traceback.
    """
    prepare_process(attempt.threads, attempt.visible_devices)
    # Imported here: thread counts and visible devices must be set before torch is loaded.
    from cppo_lab.tracking.shipper import Shipper

    spec, folder = attempt.spec, attempt.folder
    with held(folder):
        if is_cancelled(folder, attempt.created):
            raise Interrupted(None)
        forget_cancelled(folder)  # an earlier attempt was
        record = own_record(attempt)
        if is_done(attempt, record, lambda: has_result(attempt, record)):
            remove_checkpoints(folder)  # the attempt that finished was killed before it removed them
            return
        hold_signals()  # a record that has begun must have an end
        recorder = begin_record(attempt, record)
        resources = resources_of_attempt(attempt)
        with sampling(folder) as load, Shipper(folder, attempt.uri, recorder) as shipper:
            recorder.sampled = load
            try:
                handle_signals()
                recorder.doing("importing the trainer")
                train = load_core(spec.core)
                outcome = train(spec, recorder, replace(resources, doing=recorder.doing))
                ignore_signals(shipper.hurry_up)
                recorder.finish(outcome)
            except BaseException as error:
                if (asked := find_interruption(error)) is None:
                    ignore_signals(shipper.hurry_up)
                    recorder.fail(describe(error), traceback.format_exc())
                    raise
                ignore_signals()
                shipper.hurry_up()
                if is_cancelled(folder, attempt.created):
                    recorder.interrupt("cancelled", Cause.CANCELLED)
                else:
                    recorder.interrupt(str(asked) or f"terminated by {signal.SIGINT.name}")
                raise asked from None
            if not recorder.spool.unwritten:  # otherwise only the store may know that the run ended
                remove_checkpoints(folder)
        handle_signals(now=False)  # inline launcher: the next run raises a pending signal


def begin_record(attempt: Attempt, record: Record | None, here: Environment | None = None) -> Recorder:
    """Begin the record of an attempt; `record` is the newest one in the folder. The caller holds the folder's lock.

    An OSError while writing is recorded as a failure of the run and re-raised.
    """
    from cppo_lab.tracking.shipper import record_unstarted

    spec, folder = attempt.spec, attempt.folder
    continues, tags = _continues(attempt, record), _tags(attempt)
    try:
        return Recorder(
            spec,
            tags,
            folder,
            continues,
            gpus=attempt.gpus * attempt.nodes,
            datasets=load_datasets(spec.core)(spec, resources_of_attempt(attempt)),
            yaml=resolved_yaml(spec, attempt.layout, attempt.resources, attempt.paths),
            here=here,
        )
    except OSError as error:
        record_unstarted(spec, tags, folder, attempt.uri, describe(error))
        raise


def own_record(attempt: Attempt) -> Record | None:
    """The newest record in the run's folder. The contents of a folder copied from another run are moved aside."""
    folder, run_id = attempt.folder, attempt.spec.run_id
    record = newest_record(folder)
    if record is None or (other := record.begin.tags.get(schema.TAG_RUN_ID, run_id)) == run_id:
        return record
    print(f"{folder} was copied from run {other}: its contents are moved aside", file=sys.stderr, flush=True)
    set_aside(folder, f"{OF_OTHERS}{other}")
    return None


def is_done(attempt: Attempt, record: Record | None, look: Callable[[], bool | None]) -> bool:
    """Whether the run has a result that is not to be replaced; `look` asks the store, see `has_result`.

    Its folder decides, and for a run without a record there the store, since it may have been trained elsewhere.
    """
    from cppo_lab.tracking.shipper import Shipper

    if not has_finished(record) or (attempt.replaces and not _replacing(attempt, record.begin.tags)):
        return look() is True
    if not unsent(attempt.folder, attempt.uri) and look() is False:
        # A user deleted the run there, and it stays deleted, or the store was lost, and everything is uploaded again.
        forget_shipped(attempt.folder, attempt.uri)
    if unsent(attempt.folder, attempt.uri):  # also if the process was killed before the upload was complete
        with Shipper(attempt.folder, attempt.uri):
            pass
    return True


def has_result(attempt: Attempt, record: Record | None) -> bool | None:
    """Whether the store has a result that is not to be replaced; None if it does not answer. See `is_result`."""
    from cppo_lab.tracking.read import known_attempts

    past = known_attempts(attempt.uri, schema.experiment_name(attempt.spec.core), attempt.spec.run_id)
    return None if past is None else is_result(attempt, past, record)


def is_result(attempt: Attempt, past: Sequence["AttemptRecord"], record: Record | None) -> bool:
    """Whether one of `past`, all attempts at the run, has a result that is not to be replaced.

    If the run has a record here, only the end of that counts, which a full disk may have kept out of the folder.
    """
    return any(
        one.is_result
        and one.mlflow_id not in attempt.replaces
        and (record is None or one.record == record.begin.record)
        for one in past
    )


def _replacing(attempt: Attempt, tags: Mapping[str, str]) -> bool:
    """Whether a run with these tags replaces the runs that `attempt` is to replace."""
    return bool(set(attempt.replaces) & set(tags.get(schema.TAG_REPLACES, "").split()))


def join_as_worker_node(attempt: Attempt) -> None:
    """Serve as a worker node for an attempt that another machine of the allocation trains."""
    lend_machine(attempt.spec.core, resources_of(attempt), attempt.visible_devices)


def lend_machine(core: str, resources: Resources, visible_devices: str | None) -> None:
    """Serve as a worker node for a run that another machine trains, until it ends or this process gets a signal."""
    prepare_process(resources.threads, visible_devices)
    signal.signal(signal.SIGUSR2, signal.SIG_IGN)  # only the training machine handles the warning
    # Exit without an error: otherwise Slurm would kill the training machine before it has recorded the end.
    with contextlib.suppress(Interrupted):
        load_companion(core)(resources)


class Training(Protocol):
    """A job that trains: an attempt, or a preflight."""

    @property
    def runs(self) -> Path: ...
    @property
    def folder(self) -> Path: ...
    @property
    def threads(self) -> int: ...
    @property
    def layout(self) -> LayoutSpec | None: ...
    @property
    def paths(self) -> PathsSpec | None: ...
    @property
    def resources(self) -> ResourcesSpec | None: ...
    @property
    def allocation(self) -> Allocation | None: ...


def resources_of_attempt(attempt: Attempt) -> Resources:
    """The resources of an attempt, with its settings of mismatch metrics and kept responses."""
    return replace(resources_of(attempt), mismatch=attempt.mismatch, answers=attempt.answers)


def resources_of(job: Training) -> Resources:
    """The resources that a job passes to its core."""
    return Resources(
        job.runs,
        job.folder,
        threads=job.threads,
        layout=job.layout,
        paths=job.paths,
        memory_gb=(job.resources.memory_gb or None) if job.resources else None,
        allocation=job.allocation,
    )


def abandon(attempt: Attempt, why: str) -> None:
    """Add to the record of an interrupted run `why` it will not be resumed automatically.

    Raises AlreadyRunning if another process trains it.
    """
    from cppo_lab.tracking.shipper import Shipper

    with held(attempt.folder):
        record = newest_record(attempt.folder)
        if record is None or (record.end is not None and record.end.status != schema.PARTIAL):
            return
        reason = f"{record.end.reason if record.end else 'interrupted'}; {why}"
        with Shipper(attempt.folder, attempt.uri):
            close_dead(attempt.folder, schema.PARTIAL, reason)


def _continues(attempt: Attempt, record: Record | None) -> bool:
    """Whether the attempt continues the `record` in its folder; otherwise it starts a new one.

    The files of a result that is to be replaced are moved aside first. If an earlier attempt at the same replacement is
    on record, they were moved then, and the files in the folder are that attempt's.
    """
    folder = attempt.folder
    ours = record is not None and (not attempt.replaces or _replacing(attempt, record.begin.tags))
    if attempt.replaces and not ours:
        set_aside(folder, attempt.replaces[0])
    begin_status(folder)
    return ours


def _tags(attempt: Attempt) -> dict[str, str]:
    """The launcher's tags, and those that follow from its settings."""
    tags = dict(attempt.tags)
    if attempt.layout is not None and core_of(attempt.spec.core).uses_layout:
        tags[schema.TAG_LAYOUT] = layout_tag(attempt.layout)
    if attempt.replaces:
        tags[schema.TAG_REPLACES] = " ".join(attempt.replaces)
    return tags


def has_checkpoint(folder: Path) -> bool:
    """Whether a run's folder has a checkpoint to resume from."""
    return any((folder / name).exists() for name in (CHECKPOINT, CHECKPOINTS))


def tidy(folder: Path) -> None:
    """Remove the checkpoints of a run that was killed after it recorded its result."""
    if has_checkpoint(folder) and has_finished(newest_record(folder)):
        # Another process trains it again, or the disk is full: a later launch removes them.
        with contextlib.suppress(AlreadyRunning, OSError), held(folder):
            if has_finished(newest_record(folder)):
                remove_checkpoints(folder)


def has_finished(record: Record | None) -> TypeGuard[Record]:
    """Whether there is a record, and it has ended with a result."""
    return record is not None and record.end is not None and record.end.status in schema.FINISHED


def remove_checkpoints(folder: Path) -> None:
    """Remove the checkpoints of a run whose result is recorded."""
    path = folder / CHECKPOINT
    for leftover in (path, path.with_name(f"{path.name}.partial"), path.with_suffix(".partial")):
        with contextlib.suppress(OSError):  # a leftover file does not fail the run
            leftover.unlink(missing_ok=True)
    shutil.rmtree(folder / CHECKPOINTS, ignore_errors=True)


def describe(error: BaseException) -> str:
    """An exception as one line: its type and the first line of its message."""
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {printable(text[0])}" if text else type(error).__name__


def prepare_process(threads: int, visible_devices: str | None) -> None:
    """Set threads and visible devices; handle SIGTERM, and SIGUSR2, which submitit sends before a time limit."""
    os.environ["OMP_NUM_THREADS"] = str(threads)
    os.environ["OMP_WAIT_POLICY"] = "PASSIVE"  # spinning OpenMP threads would take the other run's core
    # submitit's local executor hides every device from a job that asked it for none.
    os.environ.pop("CUDA_VISIBLE_DEVICES", None)
    if visible_devices is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = visible_devices
    handle_signals()
