"""Attempts at runs, in the process that trains them: from taking a run's lock to recording its end.

A process trains a list of attempts: those that differ only in the seed together where their core can, the others in
turn. Each is recorded in its folder as if it were alone. A process that is killed leaves a spool without an end, a
status that says `running`, and a lock that the kernel has released: `state.py` calls that `partial`, and the next
attempt continues the record from the newest checkpoint.
"""

import contextlib
import os
import re
import secrets
import shutil
import signal
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

from cppo_lab import schema
from cppo_lab.core_records import (
    CHECKPOINT,
    CHECKPOINTS,
    Resources,
    TogetherRun,
    core_of,
    load_core,
    load_part,
)
from cppo_lab.core_records import Allocation as Allocation  # launchers import it from here
from cppo_lab.errors import (
    Interrupted,
    UserError,
    deferred,
    describe,
    find_interruption,
    handle_signals,
    hold_signals,
    ignore_signals,
    say,
)
from cppo_lab.files import redacted
from cppo_lab.runs.folder import (
    AlreadyRunning,
    Cause,
    clear_status,
    forget_cancelled,
    is_cancelled,
    note_withheld,
    read_status,
    run_lock,
    set_aside,
    why_stopped,
    write_status,
)
from cppo_lab.runs.machine import Environment, deadline, environment, sampling
from cppo_lab.runs.recorder import Recorder, first_line, record_end
from cppo_lab.runs.spool import End, Line, has_finished, newest_record
from cppo_lab.runs.state import OF_OTHERS
from cppo_lab.runs.tags import resolved_yaml
from cppo_lab.schema import Outcome
from cppo_lab.spec import (
    AnswersSpec,
    LayoutSpec,
    PathsSpec,
    ResourcesSpec,
    RunSpec,
    canonical,
)
from cppo_lab.spec.job import layout_tag

# Takes lines that a full disk kept out of the spool in a run's folder, and whether the process has been asked to end.
# Only the tracking store can keep them.
Rescue = Callable[[Path, Sequence[Line], bool], None]


@dataclass(frozen=True)
class Equipped:
    """A run, and with what it is trained."""

    spec: RunSpec
    runs: Path  # the folder of all runs
    layout: LayoutSpec | None = None  # None for cores without layouts
    paths: PathsSpec | None = None
    resources: ResourcesSpec | None = None  # None: no time limit
    threads: int = 1
    visible_devices: str | None = None  # CUDA_VISIBLE_DEVICES of the run; None: every device
    allocation: Allocation | None = None  # the machines of the run; None: only this machine
    grace_seconds: float = 0.0  # how long before its time limit it is warned; 0: it is not
    mismatch: bool = True  # whether to log the metrics `mismatch/*`
    answers: AnswersSpec | None = None  # which responses to keep; None: none

    @property
    def nodes(self) -> int:
        """Machines that it takes."""
        return core_of(self.spec.core).nodes(self.layout)

    @property
    def gpus(self) -> int:
        """GPUs that it takes on each machine."""
        return core_of(self.spec.core).gpus(self.layout)

    @property
    def fresh_process(self) -> bool:
        """Whether its core must not be loaded into a process that has trained another run."""
        return core_of(self.spec.core).fresh_process

    @property
    def cpus(self) -> int | None:
        """CPUs that its GPUs ask for on each machine; None: they ask for none."""
        per_gpu = self.layout.cpus_per_gpu if self.layout else None
        return self.gpus * per_gpu if self.gpus and per_gpu else None

    def resources_in(self, folder: Path) -> Resources:
        """The resources that are passed to the core, which keeps its files in `folder`."""
        return Resources(
            self.runs,
            folder,
            threads=self.threads,
            layout=self.layout,
            paths=self.paths,
            memory_gb=(self.resources.memory_gb or None) if self.resources else None,
            allocation=self.allocation,
            deadline=deadline(self.resources.hours) if self.resources else None,
            grace_seconds=self.grace_seconds,
            mismatch=self.mismatch,
            answers=self.answers,
        )


@dataclass(frozen=True)
class Attempt(Equipped):
    """An attempt at a run, whose folder is runs/<run_id>."""

    tags: Mapping[str, str] = field(default_factory=dict)
    replaces: tuple[str, ...] = ()  # the finished results that this attempt replaces
    canaries: tuple[str, ...] = ()  # the first runs of its launch: if they fail alike, it does not begin
    # Only a cancellation or failure after this time (seconds since the epoch) applies to this attempt.
    created: float = field(default_factory=time.time, compare=False)

    @cached_property
    def run_id(self) -> str:
        """The run's id."""
        # A digest, for which a launch of thousands of runs asks many times.
        return self.spec.run_id

    @property
    def folder(self) -> Path:
        """The run's folder."""
        return self.runs / self.run_id

    def is_cancelled(self) -> bool:
        """Whether the run has been cancelled since the attempt was planned."""
        return is_cancelled(self.folder, self.created)

    def withheld_because(self) -> str:
        """Why the run must not begin: the error with which the `canaries` of its launch have all failed since it was
        planned. Empty if they have not, or this run has begun meanwhile. Numbers and ids in errors do not count.
        """
        reasons = []
        for run_id in self.canaries:
            status = read_status(self.runs / run_id)
            if status.get("status") != schema.FAILED or status.get("updated", 0.0) < self.created:
                return ""
            reasons.append(status["reason"])
        errors = {re.sub(r"[0-9a-f]*\d[0-9a-f]*", "#", reason[:500]) for reason in reasons}
        if len(errors) != 1 or read_status(self.folder).get("updated", 0.0) >= self.created:
            return ""
        return f"the first {len(reasons)} runs of the launch failed alike: {reasons[0]}"


def train(attempts: Sequence[Attempt], rescue: Rescue, alone: bool = True) -> None:
    """Train the runs that are not done, from their checkpoints if they have them, and record each.

    An attempt that replaces finished results starts from scratch, or resumes an earlier attempt at the same
    replacement. Whatever ends the process is recorded for all unfinished runs and re-raised. The failure, cancellation
    or lock of a run that is `alone` in its job is raised, too; otherwise it is printed, and the others go on.
    """
    prepare_process(attempts[0].threads, attempts[0].visible_devices)
    for group in groups(attempts):
        free = []
        with contextlib.ExitStack() as locks:
            for attempt in group:
                try:
                    locks.enter_context(run_lock(attempt.folder))
                except AlreadyRunning as error:
                    if alone:
                        raise
                    print(error, flush=True)
                    continue
                if attempt.is_cancelled():
                    if alone:
                        raise Interrupted(None)
                    print(f"run {attempt.run_id} was cancelled before it began", flush=True)
                elif why := attempt.withheld_because():
                    print(f"run {attempt.run_id} is held: {why}", flush=True)
                    note_withheld(attempt.folder, why)
                else:
                    forget_cancelled(attempt.folder)  # an earlier attempt was
                    free.append(attempt)
            if free:
                _train_group(free, rescue, alone)


def groups(attempts: Sequence[Attempt], most: int | None = None) -> list[list[Attempt]]:
    """Groups of attempts to train together, ordered by first member, up to the core's limit and `most` in size."""
    alike: dict[object, list[Attempt]] = {}
    for number, attempt in enumerate(attempts):
        process = shared_process(attempt)
        kind = f"{process} {canonical(attempt.spec.model_copy(update={'seed': 0}))}" if process else number
        alike.setdefault(kind, []).append(attempt)
    parts = []
    for group in alike.values():
        size = min(core_of(group[0].spec.core).most_together, most or len(attempts))
        parts += [group[start : start + size] for start in range(0, len(group), size)]
    return parts


def shared_process(attempt: Attempt) -> str:
    """A key that is equal for runs that can share a process; empty for runs that are trained alone."""
    if core_of(attempt.spec.core).train_together is None:
        return ""
    places = f"{attempt.layout} {attempt.paths} {attempt.runs}"
    return f"{attempt.spec.core} {attempt.resources} {places} {attempt.threads}"


def _train_group(attempts: Sequence[Attempt], rescue: Rescue, alone: bool) -> None:
    """Train runs together that differ only in the seed. The caller holds their locks."""
    open_runs: list[tuple[Attempt, Recorder]] = []

    def end(place: int, how: Outcome | BaseException) -> None:
        """Record how a run ended, and remove the checkpoints of a run that has a result."""
        attempt, recorder = open_runs[place]
        interrupted = isinstance(how, Interrupted | KeyboardInterrupt)
        if isinstance(how, Outcome):
            recorder.finish(how)
        elif not interrupted:
            recorder.fail(describe(how), "".join(traceback.format_exception(how)))
        elif not attempt.is_cancelled():
            recorder.interrupt(str(how) or f"terminated by {signal.SIGINT.name}")
        elif why := why_stopped(attempt.folder):
            recorder.stop(why)
        else:
            recorder.interrupt("cancelled", Cause.CANCELLED)
        if recorder.spool.unwritten:
            rescue(attempt.folder, list(recorder.spool.unwritten), interrupted)
        elif isinstance(how, Outcome):  # otherwise only the store may know that the run ended
            remove_checkpoints(attempt.folder)

    def ended(place: int, how: object) -> None:
        how = _end_of(open_runs[place][1], how)
        with deferred():  # a signal must not interrupt recording the end of a run
            end(place, how)
        if isinstance(how, Exception):
            text = "".join(traceback.format_exception(how))
            say(f"run {open_runs[place][0].run_id} failed:\n{text.rstrip()}")

    hold_signals()  # a record that has begun must have an end
    try:
        here = environment()
        for attempt in attempts:
            try:
                if (recorder := _open_record(attempt, rescue, here)) is not None:
                    open_runs.append((attempt, recorder))
            except Exception as error:  # recorded as far as possible; the other runs continue
                if alone:
                    raise
                say(f"run {attempt.run_id} failed: {describe(error)}")
        for _, recorder in open_runs:
            recorder.together = len(open_runs)
        handle_signals()
        for _, recorder in open_runs[:1]:
            recorder.doing("importing the trainer")
        if open_runs and alone:
            [(attempt, recorder)] = open_runs
            with sampling(attempt.folder) as recorder.sampled:
                resources = replace(attempt.resources_in(attempt.folder), doing=recorder.doing)
                how = _end_of(recorder, load_core(attempt.spec.core)(attempt.spec, recorder, resources))
                if isinstance(how, BaseException):
                    raise how
                ignore_signals(lambda: None)  # held for the next run
                end(0, how)
        elif open_runs:
            runs = []
            for attempt, recorder in open_runs:
                recorder.is_cancelled = attempt.is_cancelled
                runs.append(TogetherRun(attempt.spec, recorder, attempt.resources_in(attempt.folder)))
            load_part(runs[0].spec.core, "train_together")(runs, ended)
            for place, (_, recorder) in enumerate(open_runs):
                if not recorder.ended:
                    ended(place, None)
            ignore_signals(lambda: None)
    except BaseException as error:
        interruption = find_interruption(error)
        ignore_signals(None if interruption else lambda: None)
        for place, (_, recorder) in enumerate(open_runs):
            if not recorder.ended:
                end(place, interruption or error)
        if interruption is not None:
            raise interruption from None
        raise
    handle_signals(now=False)  # inline launcher: the next run raises a pending signal


def _end_of(recorder: Recorder, how: object) -> Outcome | BaseException:
    """How a core says that a run ended; a UserError in place of what is no outcome, and so no result."""
    match how:
        case BaseException() | Outcome(schema.DONE | schema.COLLAPSED, int(), str()):
            return how
    return UserError(
        f"core {recorder.spec.core!r} ends its run with {how!r}: it must be a cppo_lab.schema.Outcome with status "
        f"{schema.DONE!r} or {schema.COLLAPSED!r}, the last step, and a reason in words"
    )


def _open_record(attempt: Attempt, rescue: Rescue, here: Environment) -> Recorder | None:
    """Begin the record of an attempt; None if the run is done.

    The attempt continues the record in its folder, with its sweeps and parent, unless that is of a result it is to
    replace, or of another run, whose folder was copied: the files of that are moved aside. An error in that is recorded
    as a failure of the run and re-raised.
    """
    spec, folder, replaces = attempt.spec, attempt.folder, attempt.replaces
    record = newest_record(folder)
    before = record.begin.tags if record else {}
    if (other := before.get(schema.TAG_RUN_ID, attempt.run_id)) != attempt.run_id:
        say(f"{folder} was copied from run {other}: its contents are moved aside")
        set_aside(folder, f"{OF_OTHERS}{other}")
        record, before = None, {}
    is_new = replaces and {*replaces}.isdisjoint(before.get(schema.TAG_REPLACES, "").split())
    continues = record is not None and not is_new
    if is_new:  # else an earlier attempt at the same replacement has moved them
        set_aside(folder, replaces[0])
    if continues and has_finished(record):
        remove_checkpoints(folder)  # the attempt that finished was killed before it removed them
        return None
    status = read_status(folder)
    elsewhere = record is None and bool(status.get("origin")) and status.get("status") in schema.FINISHED
    if elsewhere and not replaces:  # seen after the job was submitted
        return None
    clear_status(folder)
    membership = (schema.TAG_SWEEP_PREFIX, schema.TAG_PARENT)
    kept_tags = {key: before[key] for key in before if continues and key.startswith(membership)}
    tags = {**kept_tags, **attempt.tags}
    if attempt.layout is not None and core_of(spec.core).uses_layout:
        tags[schema.TAG_LAYOUT] = layout_tag(attempt.layout)
    if replaces:
        tags[schema.TAG_REPLACES] = " ".join(replaces)
    try:
        return Recorder(
            spec,
            tags,
            folder,
            continues,
            gpus=attempt.gpus * attempt.nodes,
            datasets=load_part(spec.core, "datasets")(spec, attempt.resources_in(folder)),
            yaml=resolved_yaml(spec, attempt.layout, attempt.resources, attempt.paths),
            here=here,
        )
    except Exception as error:  # the beginning of its record could not be written, or a core's datasets fail
        reason, failed, is_recorded = redacted(describe(error)), schema.FAILED, False
        with contextlib.suppress(OSError):
            ended = {"run_id": spec.run_id, "status": failed, "reason": reason, "cause": Cause.ERROR}
            write_status(folder, {**read_status(folder), **ended, "updated": time.time()})
        with contextlib.suppress(OSError):
            is_recorded = record_end(folder, failed, reason)
        if not is_recorded:
            begin = first_line(spec, tags, folder, secrets.token_hex(16))
            rescue(folder, [begin, End(begin.record, failed, None, begin.time_ms, reason)], False)
        raise


def abandon(attempt: Attempt, why: str) -> None:
    """Add to the record of an interrupted run `why` it will not be resumed automatically.

    Raises AlreadyRunning if another process trains it.
    """
    with run_lock(attempt.folder):
        record = newest_record(attempt.folder)
        if record is None or (record.end is not None and record.end.status != schema.PARTIAL):
            return
        reason = f"{record.end.reason if record.end else 'interrupted'}; {why}"
        record_end(attempt.folder, schema.PARTIAL, reason)
        with contextlib.suppress(OSError):  # a full disk: the spool knows as much
            status = {**read_status(attempt.folder), "status": schema.PARTIAL, "reason": reason}
            write_status(attempt.folder, status)


def lend_machine(core: str, starts: Sequence[Resources], visible_devices: str | None) -> None:
    """Serve as a worker node for each start of a run that another machine trains, until it ends or this process gets a
    signal.
    """
    prepare_process(starts[0].threads, visible_devices)
    signal.signal(signal.SIGUSR2, signal.SIG_IGN)  # only the training machine handles the warning
    # Exit without an error: otherwise Slurm would kill the training machine before it has recorded the end.
    with contextlib.suppress(Interrupted):
        for resources in starts:
            load_part(core, "worker_node")(resources)


def tidy(folder: Path) -> None:
    """Remove the checkpoints of a run that was killed after it recorded its result."""
    checkpoints = folder / CHECKPOINT, folder / CHECKPOINTS
    if any(path.exists() for path in checkpoints) and has_finished(newest_record(folder)):
        # Another process trains it again, or the disk is full: a later launch removes them.
        with contextlib.suppress(AlreadyRunning, OSError), run_lock(folder):
            if has_finished(newest_record(folder)):
                remove_checkpoints(folder)


def remove_checkpoints(folder: Path) -> None:
    """Remove the checkpoints of a run whose result is recorded."""
    path = folder / CHECKPOINT
    for leftover in (path, path.with_name(f"{path.name}.partial"), path.with_suffix(".partial")):
        with contextlib.suppress(OSError):  # a leftover file does not fail the run
            leftover.unlink(missing_ok=True)
    shutil.rmtree(folder / CHECKPOINTS, ignore_errors=True)


def prepare_process(threads: int, visible_devices: str | None) -> None:
    """Set threads and visible devices; handle SIGTERM, and SIGUSR2, which submitit sends before a time limit.

    Called before torch is loaded, which reads them.
    """
    os.environ["OMP_NUM_THREADS"] = str(threads)
    os.environ["OMP_WAIT_POLICY"] = "PASSIVE"  # spinning OpenMP threads would take the other run's core
    # Bound, as clusters advise, the first threads of all runs would share a core.
    os.environ["OMP_PROC_BIND"] = "false"
    # submitit's local executor hides every device from a job that asked it for none; NVIDIA's images let torch round
    # float32 products to 11 bits, which would be another experiment under the run's id.
    for name in ("CUDA_VISIBLE_DEVICES", "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE", "NVIDIA_TF32_OVERRIDE"):
        os.environ.pop(name, None)
    if visible_devices is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = visible_devices
    handle_signals()
