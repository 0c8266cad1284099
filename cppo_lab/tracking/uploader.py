"""Uploads runs while they train, in a process beside a launcher, or beside a job that nobody waits for.

No training step waits for the store, and the trainer's process does none of this work: MLflow needs CPU time for each
point. The process can be killed at any time: what it has not sent is sent by the next upload, from wherever. Imports
MLflow only when there is something to upload.
"""

import contextlib
import json
import random
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from cppo_lab.errors import UserError, deferred, few, say
from cppo_lab.runs.folder import is_locked, read_status
from cppo_lab.runs.spool import Line, unsent
from cppo_lab.schema import FINISHED
from cppo_lab.tracking.address import FULL

FIRST_SECONDS = 30.0  # of training: a shorter launch would be over before the process has imported MLflow
EVERY_SECONDS = 2.0
LONGEST_PAUSE_SECONDS = 60.0  # between two tries while a store does not answer
# How long the last upload waits for the store. Afterwards the points are in files, and `cppo sync` sends them.
PATIENCE_SECONDS = 60.0
HURRY_SECONDS = 8.0  # the same for a process that is being ended: Slurm kills 30 s after its SIGTERM
LOOK_SECONDS = 0.5
# Between two lines of an upload that takes long: thousands of short runs take minutes.
TELL_SECONDS = 15.0
CODE = "from cppo_lab.tracking.uploader import main; main()"  # of the uploading process


# A process beside a launcher, or beside a job.


@contextlib.contextmanager
def beside(code: str, task: Any, seconds: float = 0.0) -> Iterator["subprocess.Popen[str]"]:
    """Have another process run `code` during the block, which begins with `begin`: that gives it its `task`.

    At the end of the block a second line tells it that, unless the block was interrupted, and so many `seconds` are
    left for the rest; then its input ends. If the process that has the block is killed, its input ends without a word.
    """
    # A new session, since Ctrl-C is for the owner. Standard output is for what the owner prints.
    command = [sys.executable, "-P", "-c", code]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=2, text=True, start_new_session=True)
    stream = process.stdin
    assert stream is not None
    with contextlib.suppress(OSError):  # it has been killed
        # Not on the command line, which all users of the machine can read: an address may hold a password.
        stream.write(json.dumps(task) + "\n")
        stream.flush()
    is_over = True
    try:
        yield process
    except BaseException as error:
        is_over = isinstance(error, Exception)
        raise
    finally:
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):
            stream.write("ended\n" * is_over)
            stream.close()
            process.wait(seconds * is_over)


def begin() -> Any:
    """The task of this process, which no signal ends from now on: Slurm signals all processes of a job."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    return json.loads(sys.stdin.readline())


def still_owned(owned: bool, seconds: float) -> bool:
    """Wait for `seconds`, or, if this process is `owned`, until the owner's block ends; whether it still is."""
    if owned:
        return not select.select([sys.stdin], [], [], seconds)[0]
    time.sleep(seconds)
    return False


@contextlib.contextmanager
def uploading(
    folders: Sequence[Path], uri: str, hurry: bool = False
) -> Iterator["subprocess.Popen[str] | None"]:
    """Upload the runs in `folders` to the store at `uri` from the beginning of the block on, and the rest at its end,
    which waits less for it with `hurry`.

    Gives the uploading process. If the process that has the block is killed, it goes on until no run is being trained.
    """
    process = None
    try:
        with contextlib.ExitStack() as stack:
            with contextlib.suppress(OSError):  # without it, everything is uploaded at the end
                process = stack.enter_context(beside(CODE, [uri, FIRST_SECONDS, *map(str, folders)]))
            yield process
    except BaseException as error:
        hurry = hurry or not isinstance(error, Exception)
        raise
    finally:
        if process is not None:
            process.kill()  # it may hang with its store; its unfinished work is repeated
            process.wait()
        upload_last(folders, uri, hurry=hurry)


def upload_last(
    folders: Sequence[Path],
    uri: str,
    unwritten: Mapping[Path, Sequence[Line]] | None = None,
    hurry: bool = False,
) -> None:
    """Upload what the store lacks of runs. Prints a message for those that it does not take in time.

    `unwritten`: lines that a full disk kept out of the spools. A signal to end this process shortens the wait, as
    `hurry` does, and is raised afterwards.
    """
    held, over = dict(unwritten or {}), False
    waiting = [folder for folder in folders if folder in held or unsent(folder, uri)]
    if not waiting:
        return
    patience = HURRY_SECONDS if hurry else PATIENCE_SECONDS
    deadline = time.monotonic() + patience  # renewed whenever the store takes a run

    def hurry_up() -> None:
        nonlocal patience, deadline
        patience = HURRY_SECONDS
        deadline = min(deadline, time.monotonic() + patience)

    def sent(folder: Path) -> None:
        nonlocal waiting, deadline
        waiting = [run for run in waiting if run != folder]
        if patience > HURRY_SECONDS:
            deadline = time.monotonic() + patience

    def send_all() -> None:
        """The runs that the store refuses are tried again after the others."""
        nonlocal waiting
        first_fault = True
        while fault := upload_once(waiting, uri, sent, held):
            if first_fault:
                say(f"tracking store does not answer: {fault}")
                if not held and FULL.search(fault):
                    hurry_up()  # what is left is safe in the spools
            first_fault = False
            if over:
                return
            time.sleep(LOOK_SECONDS)
        waiting = []  # another process may have sent some of them

    # In a thread, since a request to a store that hangs cannot be ended.
    thread = threading.Thread(target=send_all, name="upload", daemon=True)
    with deferred(hurry_up):
        total, tell = len(waiting), tell_left()
        thread.start()
        while thread.is_alive() and time.monotonic() < deadline:
            thread.join(LOOK_SECONDS)
            if len(waiting) < total:
                tell(len(waiting), total)
        over = True
        full = [folder for folder in waiting if folder in held]
        late = [folder for folder in waiting if folder not in held]
        for folder in full:
            say(
                f"tracking store did not accept all of run {folder.name}: the disk of {folder} has no room for the "
                "rest: launch it again"
            )
        if late:
            runs, place = f"{len(late)} runs ({few([folder.name for folder in late])})", late[0].parent
            if len(late) == 1:
                runs, place = f"run {late[0].name}", late[0]
            say(
                f"tracking store did not accept all of {runs}: the rest is safe in {place}, and `cppo sync` uploads it"
            )


def tell_left() -> Callable[[int, int], None]:
    """Says now and then how many of how many runs are left to upload."""
    told = time.monotonic()

    def tell(remaining: int, of: int) -> None:
        nonlocal told
        if remaining and time.monotonic() - told > TELL_SECONDS:
            told = time.monotonic()
            say(f"uploading to the tracking store: {remaining} of {of} runs left")

    return tell


def main() -> None:
    """The uploading process."""
    uri, first, *folders = begin()
    work(list(map(Path, folders)), uri, first)


def work(folders: Sequence[Path], uri: str, first: float) -> None:
    """Upload in this process until the block that it stands beside has ended, or, if its owner is killed while its runs
    go on, until these have. Begins after `first` seconds.
    """
    pause, away_since, owned = first, 0.0, True
    waiting, began = dict.fromkeys(folders), time.time()

    def sent(folder: Path) -> None:
        # A look at thousands of runs takes longer than the upload of a run. What may still follow, such as a note, is
        # for the next launch or `cppo sync`. An older result is that of a run that is about to be trained again.
        status = read_status(folder)
        ended_here = status.get("status") in FINISHED and float(status.get("updated") or 0) >= began
        if ended_here and not unsent(folder, uri):
            waiting.pop(folder, None)

    while True:
        was_owned, owned = owned, still_owned(owned, pause)
        trains = owned or any(map(is_locked, folders))
        if was_owned and not trains:
            return  # the next launch sends the rest
        fault = upload_once(list(waiting), uri, sent)
        if fault and not away_since:
            away_since = time.monotonic()
            say(f"tracking store does not answer, training continues: {fault}")
        elif away_since and not fault:
            away = time.monotonic() - away_since
            say(f"tracking store is back after {away:.0f} s")
            away_since = 0.0
        if not trains:
            return
        # Exponential back-off with jitter, so that a hundred jobs do not return to a server at the same moment.
        pause = min(LONGEST_PAUSE_SECONDS, 2 * pause) * random.uniform(0.8, 1.0) if fault else EVERY_SECONDS


def upload_once(
    folders: Sequence[Path],
    uri: str,
    sent: Callable[[Path], None] = lambda folder: None,
    unwritten: dict[Path, Sequence[Line]] | None = None,
) -> str:
    """Upload what the store lacks; returns its fault as a line, empty if there is none. `sent` is told of each run."""
    waiting = [folder for folder in folders if folder in (unwritten or {}) or unsent(folder, uri)]
    if not waiting:
        return ""
    from cppo_lab.tracking.client import STORE_FAULTS, fault_line
    from cppo_lab.tracking.upload import upload

    try:
        upload(waiting, uri, unwritten=unwritten, sent=sent)
    except (*STORE_FAULTS, UserError) as error:
        return fault_line(error)
    return ""
