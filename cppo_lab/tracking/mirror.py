"""Mirrors runs to Trackio or Weights & Biases, beside the tracking store: their configuration and points, no files.

A separate process beside a launcher, or beside a job that nobody waits for, reads the spools: no run and no upload
waits for a mirror, and nothing reads one. The mirror says which step it has last, and no earlier one is sent again; so
steps evaluated after a run's end are left out, and times are those of sending. W&B in offline mode cannot say it: what
was not completed is then written whole, as another offline run with the same id.
"""

import contextlib
import contextvars
import fcntl
import importlib.util
import io
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from cppo_lab import schema
from cppo_lab.errors import UserError, one_line, say
from cppo_lab.files import open_lock
from cppo_lab.runs.folder import is_held
from cppo_lab.runs.spool import FOLDER, NOTES, Begin, End, Line, StepEvent, files, read_lines
from cppo_lab.runs.tags import BETWEEN
from cppo_lab.tracking.sent import Shipped, save_shipped, shipping, unsent

VARIABLE = "CPPO_MIRROR"  # how the process and jobs get the name
TRACKIO, WANDB = "trackio", "wandb"
MIRRORS = (TRACKIO, WANDB)
EVERY_SECONDS, LONGEST_PAUSE_SECONDS = 10.0, 300.0
LAST_SECONDS = 60.0  # that the end of a launch waits for the rest
_COMMAND = [sys.executable, "-P", "-c", "from cppo_lab.tracking.mirror import main; main()"]


def mirror_name(configured: str | None = None) -> str:
    """The mirror: `CPPO_MIRROR`, else the `configured` one; empty if there is none.

    Raises UserError for an unknown one, and if its package is not installed.
    """
    name = os.environ.get(VARIABLE) or configured or ""
    if name and name not in MIRRORS:
        raise UserError(f"tracking.mirror (or {VARIABLE}) is {name!r}: choose {' or '.join(MIRRORS)}")
    if name and importlib.util.find_spec(name) is None:
        raise UserError(
            f"tracking.mirror={name} (or {VARIABLE}) needs the package {name}, which is not installed: "
            f"pip install 'cppo-lab[{name}]', or leave the mirror out"
        )
    return name


@contextlib.contextmanager
def mirroring(folders: Sequence[Path]) -> Iterator[None]:
    """Mirror the runs in `folders` during the block, if a mirror is set.

    If the process that has the block is killed, the mirror goes on until no run is being trained.
    """
    if not (name := os.environ.get(VARIABLE)):
        yield
        return
    # A new session, since Ctrl-C is for the owner.
    process = subprocess.Popen(_COMMAND, stdin=subprocess.PIPE, stdout=2, text=True, start_new_session=True)
    assert process.stdin is not None
    with contextlib.suppress(OSError):  # it has been killed
        process.stdin.write(json.dumps([name, *map(str, folders)]) + "\n")
        process.stdin.flush()
    seconds = 0.0
    try:
        yield
        seconds = LAST_SECONDS
    finally:
        with contextlib.suppress(OSError):
            process.stdin.close()
        try:
            process.wait(seconds)
        except subprocess.TimeoutExpired:
            if seconds:
                say(
                    f"mirror {name} has not taken everything yet: `{VARIABLE}={name} cppo sync` sends the rest"
                )


def main() -> None:
    """The mirroring process: its task is the first line of standard input, whose end is that of the owner's block."""
    for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # Slurm signals all processes of a job
    name, *paths = json.loads(sys.stdin.readline())
    folders, mirror, pause, fault = [Path(path) for path in paths], None, EVERY_SECONDS, ""
    owned = trains = True
    while trains:
        if owned:
            owned = not select.select([sys.stdin], [], [], pause)[0]
        else:
            time.sleep(pause)
        trains = owned or any(map(is_held, folders))
        if not trains:
            signal.alarm(round(LAST_SECONDS))  # ends this process: a server may never answer
        try:
            mirror = mirror or Mirror(name)
            mirror.update(folders)
            if not trains:
                mirror.close()
            pause = EVERY_SECONDS
        except UserError as error:
            if fault != (fault := str(error)):
                say(f"{fault}; training and the tracking store go on")
            mirror, pause = None, min(2 * pause, LONGEST_PAUSE_SECONDS)


@dataclass
class _Copy:
    """What this process has sent of a run's folder."""

    lock: IO[str]  # held as long as the run is open: two processes would send each step twice
    offsets: dict[str, int] = field(default_factory=dict)  # by the name of a spool's file
    record: str = ""
    run: Any = None  # of the record, in the mirror; None before its beginning and after its end
    next_step: int = 0  # the first that the mirror does not have


class Mirror:
    """A connection to the mirror `name`, whose package it imports. Its methods raise UserError if that fails."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._package: Any
        if name == WANDB:
            import wandb

            self._package = wandb
        else:
            import trackio

            self._package = trackio
        self._copies: dict[Path, _Copy] = {}

    def update(self, folders: Sequence[Path]) -> None:
        """Send what the mirror lacks of the runs in `folders`, but for those that another process is sending."""
        with self._guarded():
            for folder in folders:
                copy = self._copies.get(folder)
                if copy is None and (not unsent(folder, self.name) or (copy := self._locked(folder)) is None):
                    continue
                for path in files(folder):
                    for line, end in read_lines(path, copy.offsets.get(path.name, 0)):
                        self._take(copy, line)
                        copy.offsets[path.name] = end
                if copy.run is None:
                    self._settle(folder, copy)

    def close(self) -> None:
        """End the runs that are open: they have everything that was read."""
        with self._guarded():
            for folder, copy in list(self._copies.items()):
                self._finish(copy, schema.PARTIAL)
                self._settle(folder, copy)

    @contextlib.contextmanager
    def _guarded(self) -> Iterator[None]:
        try:
            with contextlib.redirect_stdout(io.StringIO()):  # the packages print
                yield
        except Exception as error:  # of any kind, whatever the package raises
            line = one_line(str(error))[:500] or type(error).__name__
            raise UserError(
                f"mirror {self.name} fails: {line}: `{VARIABLE}={self.name} cppo sync` sends the rest later"
            ) from error

    def _locked(self, folder: Path) -> _Copy | None:
        lock = open_lock(folder / FOLDER / "mirror.lock")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.close()
            return None
        self._copies[folder] = copy = _Copy(lock)
        return copy

    def _settle(self, folder: Path, copy: _Copy) -> None:
        """Note what the mirror has by now: its packages write in the background until a run's end."""
        with contextlib.suppress(OSError):  # there are none; they are not sent
            copy.offsets[NOTES] = (folder / FOLDER / NOTES).stat().st_size
        with shipping(folder):
            save_shipped(folder, self.name, Shipped(copy.offsets))
        self._copies.pop(folder).lock.close()

    def _take(self, copy: _Copy, line: Line) -> None:
        if isinstance(line, Begin):
            if copy.run is None or line.record != copy.record:
                self._finish(copy, schema.PARTIAL)
                self._begin(copy, line)
        elif isinstance(line, StepEvent) and copy.run is not None and line.step >= copy.next_step:
            copy.run.log(dict(line.metrics), step=line.step)
            copy.next_step = line.step + 1
        elif isinstance(line, End):
            self._finish(copy, line.status)

    def _begin(self, copy: _Copy, line: Begin) -> None:
        shared: dict[str, Any] = {
            "project": line.experiment,
            "group": line.name.rsplit(BETWEEN, 2)[0],  # its variant
            "config": {**line.params, **line.tags},
            "resume": "allow",
        }
        if self.name == WANDB:
            settings = self._package.Settings(console="off", silent=True, x_disable_stats=True)
            copy.run = self._package.init(
                **shared, id=line.record, name=line.name, reinit="create_new", settings=settings
            )
            first = copy.run.step
        else:
            # Trackio resumes by name. It ends the current run of its context, so each run has a context.
            quiet: dict[str, Any] = dict.fromkeys(("embed", "auto_log_cpu", "auto_log_gpu"), False)
            name = f"{line.name}{BETWEEN}{line.record[:8]}"
            copy.run = contextvars.Context().run(self._package.init, **shared, **quiet, name=name)
            first = copy.run._next_step  # it has no public name
        before = copy.next_step if line.record == copy.record else 0
        copy.record, copy.next_step = line.record, max(before, first)

    def _finish(self, copy: _Copy, status: str) -> None:
        if copy.run is not None:
            # As W&B's page shows it; Trackio has no states.
            copy.run.finish(
                **({"exit_code": int(status not in schema.FINISHED)} if self.name == WANDB else {})
            )
            copy.run = None
