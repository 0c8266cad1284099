"""Records an attempt at a run in files of its folder, and ends the records of attempts that could not.

`Recorder.log` returns once the step's metrics are in the spool. So a trainer that is killed at step 20 leaves the steps
up to 20 on file. Its status.json may be some seconds or a step older, and neither says that the run has ended:
`runs/state` shows it as `partial`. The next attempt goes on in the same record: from its checkpoint, say of step 15, it
repeats the steps 16 to 20, which are not recorded again, and adds step 21.

On a full disk nothing fails: lines and files are held in memory, written as soon as there is room, and handed over to
the upload at the end. Nothing here waits for, or knows of, the tracking store.
"""

import contextlib
import json
import os
import re
import secrets
import socket
import stat
import sys
import time
from base64 import b64encode
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import Any

from cppo_lab import schema
from cppo_lab.errors import Interrupted, say
from cppo_lab.files import redacted
from cppo_lab.runs.folder import (
    CANCELLED,
    CONFIG,
    LOCK,
    STATUS,
    TRACEBACK,
    AlreadyRunning,
    Cause,
    ensure_folder_tag,
    folder_tag,
    is_lost,
    lock_inode,
    machine_seconds,
    read_status,
    seconds_trained,
    variants_text,
    write_status,
)
from cppo_lab.runs.machine import Environment, environment, slurm_array_task
from cppo_lab.runs.spool import (
    SPOOL_FOLDER,
    Artifact,
    Begin,
    End,
    Spool,
    StepEvent,
    Tags,
    has_finished,
    newest_record,
    open_spool,
    score_of,
    summarise,
)
from cppo_lab.runs.tags import flatten, names, run_name, run_tags, variants_in
from cppo_lab.spec import RunSpec

STATUS_SECONDS = 2.0  # how often `status.json` is rewritten while the run trains
ACTIVITY_SECONDS = 0.5  # the same for the counter of an activity
OUTPUT = "output"  # where the output of attempts goes among a run's artifacts
OUTPUT_BYTES = 1_000_000
_YAML, _PACKAGES = "config.yaml", "requirements.txt"
_OURS = {CANCELLED, CONFIG, LOCK, OUTPUT, SPOOL_FOLDER, STATUS, TRACEBACK, _PACKAGES, _YAML}


class Recorder:
    """An attempt at a run. Create it, `begin`, `log` every step, then `finish`, `fail` or `interrupt`.

    With `continues`, it continues the record, and so the MLflow run, of the last attempt from this folder, unless there
    is none or it has finished. `gpus` is the number on all machines together, `datasets` the data that it reads, `yaml`
    the resolved configuration for human readers, `here` the environment of this process, if the caller already has it.
    """

    def __init__(
        self,
        spec: RunSpec,
        tags: Mapping[str, str],
        folder: Path,
        continues: bool = True,
        *,
        gpus: int = 0,
        datasets: Sequence[schema.Dataset] = (),
        yaml: str = "",
        here: Environment | None = None,
    ) -> None:
        here = here or environment()
        self.spec, self.folder, self._datasets, self._yaml = spec, folder, datasets, yaml
        self.sampled: Callable[[], Mapping[str, float]] = dict  # the load of the machine since the last step
        self.together = 1  # runs that this process trains at the same time
        # A run that trains with others is cancelled without a signal, which would end the others too.
        self.is_cancelled: Callable[[], bool] = bool
        self._gpus, self._started, before = gpus, time.time(), read_status(folder)
        self._seconds_before, self._machine_seconds_before = seconds_trained(before), machine_seconds(before)
        self._began = time.monotonic()  # whatever becomes of the clock
        # This attempt's first new step, and its time.
        self._first: tuple[int | None, float | None] = (None, None)
        ensure_folder_tag(folder)
        self._lock = lock_inode(folder)
        self._tags, self._packages = {**here.tags, **tags}, here.packages
        self._printed = own_output()
        self._waiting: dict[str, bytes] = {}  # files that a full disk could not take, by name
        self.ended = False  # once the end is recorded, nothing can change it
        past = newest_record(folder) if continues else None
        self.spool = open_spool(folder)
        if past is None or has_finished(past):
            self._start()
        else:
            self._start(past.begin.record, past.rows.values())

    def _start(self, record: str = "", rows: Collection[StepEvent] = ()) -> None:
        """Begin a record in the spool, or go on with it; `rows` are those that it has already."""
        self.record_name = record = record or secrets.token_hex(16)
        self._steps = {row.step for row in rows}
        self._scores = {row.step: score for row in rows if (score := score_of(row)) is not None}
        self._activity = ""
        self._told_at = time.monotonic()
        self.spool.add(first_line(self.spec, self._tags, self.folder, record, self._datasets))
        self.spool.keep(CONFIG, self.spec.model_dump_json(indent=2) + "\n")
        self.spool.keep(_PACKAGES, "\n".join(self._packages) + "\n")
        if self._yaml:
            self.spool.keep(_YAML, self._yaml)
        self._status(schema.RUNNING, self.step or 0)

    def begin(self, step: int | None) -> None:
        """The core says that it resumes after `step`, or, with None, that it starts from scratch.

        What an earlier attempt has recorded stays: a start from scratch ends that record, and begins another.
        """
        if step is not None or not self._steps:
            return
        reason = "training restarted from scratch: there was no checkpoint to resume from"
        self.spool.add(End(self.record_name, schema.PARTIAL, self.step, _now(), reason))
        if not self.spool.unwritten:  # what waits for room on the disk goes before the new record
            self.spool.close()
            self.spool = open_spool(self.folder)
        self._start()

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Record `metrics` of training step `step`. A step that an earlier attempt has recorded is not overwritten.

        Raises ValueError for a metric name that the schema does not have, a value that is no float or int, or a step
        that is none; AlreadyRunning if the folder's lock is gone: then nothing more is recorded, since another process
        may go on with the record; Interrupted if the run `is_cancelled`.
        """
        if self.is_cancelled():
            raise Interrupted(None)
        if is_lost(self.folder, self._lock):
            self.ended = True
            raise AlreadyRunning(
                f"the lock of run {self.folder.name} was removed: this process stops training it"
            )
        if not isinstance(step, int) or step < 0:
            raise ValueError(f"step {step!r} is logged: a step is an int from 0")
        for name, value in metrics.items():
            if not schema.is_known_metric(name):
                raise ValueError(f"metric {name!r} is not in schema.METRICS: add it there")
            if not isinstance(value, float | int):
                raise ValueError(f"metric {name!r} of step {step} is {value!r}: log float(...) of it")
        if step not in self._steps:
            if self._first[0] is None:
                self._first = step, time.time()
            row = StepEvent(step, _now(), {**self.sampled(), **metrics})
            if (score := score_of(row)) is not None:
                self._scores[step] = score
                scores = summarise(self._scores, self.spec.training.t_stop)
                row = replace(row, metrics={**row.metrics, **scores.metrics})
            self.spool.add(row)
            self._steps.add(step)  # on file, or in `unwritten` until the disk has room
        self._activity = ""
        if time.monotonic() - self._told_at >= STATUS_SECONDS:
            self._show_running()

    def doing(self, activity: str, done: int | None = None, of: int | None = None) -> None:
        """Show the run's current activity, such as `warm start` 400 of 1000, in its status. It is not recorded."""
        is_same = self._activity.startswith(activity)
        if is_same and time.monotonic() - self._told_at < ACTIVITY_SECONDS and done != of:
            return
        self._activity = activity if done is None else f"{activity} {done}/{of}"
        self._show_running()

    def _show_running(self) -> None:
        self._told_at = time.monotonic()
        with contextlib.suppress(OSError):  # a full disk; the next status reports it
            self._status(schema.RUNNING, self.step or 0)

    def tag(self, name: str, value: str) -> None:
        """Give the MLflow run a tag of the schema. Raises ValueError for a name that is not in schema.TAGS_OF_CORES."""
        if name not in schema.TAGS_OF_CORES:
            raise ValueError(f"tag {name!r} is not in schema.TAGS_OF_CORES: add it there")
        self.spool.add(Tags({name: value}))

    def artifact(self, name: str, values: Mapping[str, Any]) -> None:
        """Keep `values` as the JSON file `name` (a relative path) of the run, as `file` does."""
        self.file(name, json.dumps(values).encode())

    def file(self, name: str, content: bytes) -> bool:
        """Keep `content` as the file `name` (a relative path) of the run; a later file of the same name replaces it.

        Content that a full disk cannot take is held in memory and written again with the next file and at the end; if
        that fails too, it is held with the metrics. Returns whether everything is on disk.
        """
        check_file_name(name)
        quiet = bool(self._waiting)
        self._waiting[name] = content
        return self._write_waiting(quiet)

    def _write_waiting(self, quiet: bool = False) -> bool:
        for name in list(self._waiting):
            try:
                self.spool.keep(name, self._waiting[name])
            except OSError as error:
                if not quiet:
                    say(f"{self.folder / name} could not be written: {error}")
                return False
            del self._waiting[name]
        return True

    def finish(self, outcome: schema.Outcome) -> None:
        """Record that training ended with `outcome`: at its last step, or by a collapse."""
        self._end(outcome.status, outcome.step, outcome.reason)

    @property
    def step(self) -> int | None:
        """The last recorded step; None if there is none."""
        return max(self._steps, default=None)

    def interrupt(self, why: str, cause: Cause = Cause.SIGNAL) -> None:
        """Record that the run was interrupted; `why` in words. The next attempt resumes it."""
        reached = "before its first step" if self.step is None else f"at step {self.step}"
        self._end(schema.PARTIAL, self.step, f"interrupted: {why} {reached}", cause)

    def stop(self, why: str) -> None:
        """Record that the launch stopped the run; `why` in words."""
        self._end(schema.STOPPED, self.step, f"{why}; stopped at step {self.step}", Cause.CANCELLED)

    def fail(self, reason: str, traceback: str) -> None:
        """Record that the run failed; `reason` is a line, `traceback` becomes an artifact."""
        if self.ended:
            return
        with contextlib.suppress(OSError):
            self.spool.keep(TRACEBACK, redacted(traceback))
        self._end(schema.FAILED, self.step, redacted(reason), Cause.ERROR)

    def _end(self, status: str, step: int | None, reason: str, cause: str = "") -> None:
        if self.ended:
            return
        self._write_waiting()
        for name, content in self._waiting.items():
            self.spool.add(Artifact(name, base64=b64encode(content).decode()))
        _keep_output(self.folder, self.spool, self._printed)
        self.spool.add(End(self.record_name, status, step, _now(), reason))
        self.ended = True
        # An end that is on no disk is lost if this process is killed before its upload; then the run is resumed, too,
        # as an unfinished run is: from the older files.
        if status in schema.FINISHED and not self.spool.unwritten:
            for name in self._waiting:
                with contextlib.suppress(OSError):
                    (self.folder / name).unlink(missing_ok=True)
        # The cause of the failure (such as a full disk) may break these too, and must not hide the reason.
        with contextlib.suppress(OSError):
            self.spool.close()
        with contextlib.suppress(OSError):
            self._status(status, step, reason, cause)

    def _status(self, status: str, step: int | None, reason: str = "", cause: str = "") -> None:
        """The status that launchers and `cppo status` show, see `write_status`.

        `seconds` counts all attempts, `started` and `first_step` refer to this attempt.
        """
        now = time.time()
        first_step, first_time = self._first
        elapsed = time.monotonic() - self._began
        write_status(
            self.folder,
            {
                "run_id": self.spec.run_id,
                "status": status,
                "step": step,
                **summarise(self._scores, self.spec.training.t_stop)._asdict(),
                "reason": reason,
                "cause": cause,
                "code_version": self._tags.get(schema.TAG_CODE_VERSION, ""),
                "activity": self._activity if status == schema.RUNNING else "",
                "variants": variants_text(variants_in(self._tags)),
                **names(self.spec),
                "host": socket.gethostname(),
                "pid": os.getpid(),
                "job": slurm_array_task() or os.environ.get("SLURM_JOB_ID", ""),
                "gpus": self._gpus,
                "started": self._started,
                "updated": now,
                "seconds": self._seconds_before + elapsed,
                "machine_seconds": self._machine_seconds_before + elapsed / self.together,
                "first_step": first_step,
                "first_time": first_time,
                "replaces": bool(self._tags.get(schema.TAG_REPLACES)),
                "record": self.record_name,
            },
        )


def check_file_name(name: str) -> None:
    """Raises ValueError unless a core may keep a file of this name: in the run's folder, and none of the product's."""
    path = PurePosixPath(name)
    if path.is_absolute() or not path.parts or ".." in path.parts or path.parts[0] in _OURS:
        raise ValueError(
            f"file {name!r} of a run: the name must be relative, without '..', and not begin with one of "
            f"{', '.join(sorted(_OURS))}: choose one such as 'diagnostics/mine.json'"
        )


def first_line(
    spec: RunSpec,
    tags: Mapping[str, str],
    folder: Path,
    record: str,
    datasets: Sequence[schema.Dataset] = (),
) -> Begin:
    """The first line of an attempt's spool; `tags` are added to those that follow from the configuration."""
    return Begin(
        record=record,
        experiment=schema.experiment_name(spec.core),
        name=run_name(spec, variants_in(tags)),
        time_ms=_now(),
        tags={**run_tags(spec), schema.TAG_FOLDER: folder_tag(folder), **tags},
        params=flatten(spec.model_dump(mode="json")),
        datasets=[{**vars(dataset), "profile": dict(dataset.profile)} for dataset in datasets],
    )


def record_end(folder: Path, status: str, reason: str) -> bool:
    """Add the end of an attempt that died without recording it, in a spool file; False if there is none to end.

    If the record has an end already, another is appended. The caller holds the lock of the folder, and writes the
    status.
    """
    record = newest_record(folder)
    if record is None or has_finished(record):
        return False
    spool = open_spool(folder)
    spool.add(record.begin)  # so that the output belongs to that record
    _keep_output(folder, spool, {})
    spool.add(End(record.begin.record, status, max(record.rows, default=None), _now(), reason))
    spool.close()
    return not spool.unwritten


def _now() -> int:
    return int(time.time() * 1000)


# The output of attempts


def own_output() -> dict[str, int]:
    """Paths of the regular files behind this process's standard output and standard error, and their sizes now.

    Terminals, pipes and removed files are left out. This finds Slurm's output files, whatever their names are.
    """
    sizes: dict[str, int] = {}
    for number, stream in ((1, sys.stdout), (2, sys.stderr)):
        with contextlib.suppress(OSError, ValueError, AttributeError):  # closed, or there is none
            stream.flush()
        with contextlib.suppress(OSError):
            opened = os.fstat(number)
            path = Path(f"/proc/self/fd/{number}").readlink()
            if stat.S_ISREG(opened.st_mode) and os.path.samestat(opened, path.lstat()):
                sizes[str(path)] = opened.st_size
    return sizes


def captured_output(
    folder: Path, printed: Mapping[str, int], most_bytes: int = OUTPUT_BYTES
) -> dict[str, bytes]:
    """The output of the attempts at a run by path of the artifact, secrets masked: about `most_bytes` in all at most.

    It is in the files of launchers in the run's `folder`, and in those of `printed` (`own_output` when an attempt
    began; earlier bytes are from others); oldest first. Long output is cut to its head and tail, with a line on how
    much was omitted.
    """
    starts = {
        path: 0 for end in ("out", "err") for path in (folder / "attempts").resolve().glob(f"*_log.{end}")
    }
    spans = []
    for path, start in ({Path(path): start for path, start in printed.items()} | starts).items():
        with contextlib.suppress(OSError):
            file = path.lstat()  # a link could lead anywhere
            if stat.S_ISREG(file.st_mode) and file.st_size > start:
                spans.append((file.st_size - start, file.st_mtime, path, start))
    contents = []
    for number, (size, written, path, start) in enumerate(sorted(spans)):
        # Short ones stay whole, long ones share what is left.
        share = min(size, most_bytes // (len(spans) - number))
        most_bytes -= share
        with contextlib.suppress(OSError):  # gone meanwhile
            contents.append((written, path, _masked_output(path, start, size, share)))
    output: dict[str, bytes] = {}
    for _, path, content in sorted(contents):
        name = f"{path.name}.txt"  # MLflow's page shows files of that ending
        twice = f"{OUTPUT}/{name}" in output
        output[f"{OUTPUT}/{len(output)}_{name}" if twice else f"{OUTPUT}/{name}"] = content
    return output


def _masked_output(path: Path, start: int, size: int, most: int) -> bytes:
    """The `size` bytes of a file from `start` on, masked; where they are more than `most`, their head and tail."""
    with path.open("rb") as file:
        file.seek(start)
        if size <= most:
            return _masked(file.read(size))
        head = file.read(most // 2)
        file.seek(start + size - most // 2)
        tail = file.read(most // 2)
    # Cut at white space: secrets contain none, and half a secret would not be recognised and masked.
    head = head[: max(map(head.rfind, b" \n\r\t")) + 1]
    tail = re.sub(rb"\A\S*\s?", b"", tail, count=1)
    left_out = size - len(head) - len(tail)
    line = f"\n[... {left_out:,} of {size:,} bytes are left out here: see {path} ...]\n"
    return _masked(head) + line.encode() + _masked(tail)


def _masked(content: bytes) -> bytes:
    return redacted(content.decode(errors="surrogateescape")).encode(errors="surrogateescape")


def _keep_output(folder: Path, spool: Spool, printed: Mapping[str, int]) -> None:
    """Store the output of the attempts with the run; on a full disk it is omitted."""
    with contextlib.suppress(OSError):
        for name, content in captured_output(folder, printed).items():
            spool.keep(name, content)
