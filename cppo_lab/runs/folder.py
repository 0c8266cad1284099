"""What a run's folder says without its spool: status, lock, cancellation. And the lists of launchers beside it.

`runs/<id>/status.json` is for whoever looks on: how far the run is, and how its last attempt ended. It is replaced as a
whole (on a full disk overwritten, and half of it reads as none), and may be some seconds behind the spool.
`runs/<id>/lock` is held (flock) by the process that trains the run, and the kernel releases it however that process
ends: a status that says `running` beside a free lock is that of a killed process.
"""

import contextlib
import fcntl
import json
import os
import re
import secrets
import shutil
import signal
import socket
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import StrEnum
from pathlib import Path
from typing import IO, Any

from cppo_lab.errors import UserError, one_line
from cppo_lab.files import NO_ROOM, open_lock, open_plain, read_object, read_plain, replace_file

# In a run's folder.
STATUS = "status.json"
CONFIG = "config.json"  # artifact of every run as well
TRACEBACK = "traceback.txt"  # of the last attempt that failed; an artifact as well
LOCK = "lock"
# Holds the time of cancellation, in seconds since the epoch; on a second line, why the run is stopped.
CANCELLED = "cancelled"
ASIDE = "replaced"  # the files of results that were replaced, by their names
# In the folder of all runs.
IDENTITY = "identity"  # a name of that folder which is the same from every machine and mount point
QUEUES = "queues"  # the lists of launchers
BATCH = "batch-"  # how the names of the folders of batches begin
LIST = "runs.txt"  # in the folder of a batch: the ids of its runs, a line each

LARGEST = 1_000_000  # bytes of any of these files; they usually have two thousand
LOCK_TRIES = 50
LOCK_SECONDS = 1.0  # `is_locked` holds a lock for an instant; a run holds it for its lifetime
NAMES = ("core", "rule", "model", "seed", "t_stop", "variants")  # of a status: what the run is
# What a status holds, of those that others reckon with.
_TEXTS = (
    "run_id",
    "status",
    "reason",
    "cause",
    "code_version",
    "activity",
    "variants",
    "core",
    "rule",
    "model",
    "job",
)
_NUMBERS = ("updated", "seconds", "machine_seconds", "gpus")
_OPTIONAL_NUMBERS = ("step", "t_stop", "score", "best", "best_step", "final_mean", "first_step", "first_time")


ID_LENGTH = 12  # hexadecimal digits of a complete id
COMPLETE_ID = re.compile(f"[0-9a-f]{{{ID_LENGTH}}}")
ID_BEGINNING = re.compile(f"[0-9a-f]{{4,{ID_LENGTH}}}")


def require_beginning(text: str) -> None:
    """Raises UserError if `text` is not a valid prefix of a run id, or is too short."""
    if not ID_BEGINNING.fullmatch(text):
        raise UserError(
            f"run {text!r} is not a prefix of a run's id: give 4 to {ID_LENGTH} hexadecimal digits "
            "(`cppo plan SWEEP` lists the ids)"
        )


def only_id(beginning: str, run_ids: Iterable[str]) -> str:
    """The single id of those that begin so. Raises UserError if there are several."""
    run_id, *others = sorted(run_ids)
    if others:
        ids = ", ".join([run_id, *others][:10])
        raise UserError(f"run {beginning!r} is a prefix of {1 + len(others)} ids: {ids}: give more digits")
    return run_id


class Cause(StrEnum):
    """Why a run stopped before its end. The `reason` next to it is for people; it decides only where no cause was
    recorded, by an old version or in a spool (`state.py`).
    """

    DIED = "died"  # its process was killed before it could say anything
    CANCELLED = "cancelled"
    SIGNAL = "signal"
    ERROR = "error"


class AlreadyRunning(RuntimeError):
    """Another process on this machine is training this run."""


# Status


def read_status(folder: Path) -> dict[str, Any]:
    """The last status of a run's folder; empty if it has none, or a damaged file. Texts have no line breaks."""
    values = read_object(folder / STATUS, LARGEST)
    if not (
        all(isinstance(values.get(key, ""), str) for key in _TEXTS)
        and all(_is_number(values.get(key, 0)) for key in _NUMBERS)
        and all(values.get(key) is None or _is_number(values[key]) for key in _OPTIONAL_NUMBERS)
    ):
        return {}
    return {key: one_line(value) if isinstance(value, str) else value for key, value in values.items()}


def _is_number(value: object) -> bool:
    """Whether the value is one that can be reckoned with; a score may be NaN."""
    return isinstance(value, int | float) and not isinstance(value, bool) and not abs(value) > 1e18


def write_status(folder: Path, values: Mapping[str, Any]) -> None:
    """Replace `status.json` in a run's folder. The caller holds the folder's lock.

    If the disk has no room for another file, it is overwritten in place, so that a run's end is known.
    """
    path, text = folder / STATUS, json.dumps(values)
    try:
        replace_file(path, text)
    except OSError as error:
        if error.errno not in NO_ROOM or not path.exists():
            raise
        with open_lock(path) as file:
            file.write(text)
            file.truncate()


def announce(folder: Path, names: Mapping[str, Any]) -> None:
    """Write a run's names (NAMES) into its folder before it is trained; an existing status stays."""
    _write_once(folder / STATUS, json.dumps({"status": "", "step": None, **names}))


def clear_status(folder: Path) -> None:
    """Clear how the previous attempt ended; the run's names and its total training time stay."""
    if status := read_status(folder):
        names = {key: status[key] for key in NAMES if key in status}
        seconds = {"seconds": seconds_trained(status), "machine_seconds": machine_seconds(status)}
        write_status(folder, {"status": "", "step": None, **names, **seconds})


def note_withheld(folder: Path, why: str) -> None:
    """Note in the folder of a run that has not begun why it is held. The caller holds the folder's lock."""
    status = read_status(folder)
    if not status.get("status") and status.get("reason", "") != why:
        write_status(folder, {**status, "reason": why})


def seconds_trained(status: Mapping[str, Any]) -> float:
    """Wall-clock seconds of all attempts at a run together, up to its last status; 0 if the status lacks them."""
    return float(status.get("seconds") or 0)


def machine_seconds(status: Mapping[str, Any]) -> float:
    """What counts of `seconds_trained` for this run alone: runs that a process trains together share its time. All of
    it where the status, of an older version, does not say.
    """
    return float(status.get("machine_seconds") or seconds_trained(status))


def variants_text(variants: Mapping[str, str]) -> str:
    """A run's variant in each of its sweeps as a text: `sweep=variant`, separated by `;`."""
    return ";".join(f"{sweep}={variant}" for sweep, variant in variants.items())


def parse_variants(text: str | None) -> dict[str, str]:
    """What `variants_text` has written; empty for anything else."""
    return dict(part.split("=", 1) for part in (text or "").split(";") if "=" in part)


def read_config(path: Path) -> dict[str, Any]:
    """The configuration in a file that the recorder wrote; empty if it holds none."""
    with contextlib.suppress(OSError):
        return read_object(path, LARGEST)
    return {}


def _write_once(path: Path, text: str) -> None:
    """Put `text` into `path` unless that exists: of several processes, the first succeeds, and none sees half of it."""
    if path.exists():
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f"{path.name}.{secrets.token_hex(4)}")
    try:
        draft.write_text(text, encoding="utf-8")
        try:
            os.link(draft, path)
        except FileExistsError:  # another process was first
            return
        except OSError:  # a file system without hard links: exFAT, shares of Windows
            draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)


# The lock


@contextlib.contextmanager
def run_lock(folder: Path) -> Iterator[None]:
    """Hold the lock of a run's folder. The kernel releases it when the process ends, however it ends.

    The lock file names the holder. Raises AlreadyRunning if another process holds it, UserError if the lock is a link.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with open_lock(folder / LOCK) as lock:
        for _ in range(LOCK_TRIES):  # a count, not a deadline, so that a stalled machine does not lose tries
            if _locked(lock):
                break
            time.sleep(LOCK_SECONDS / LOCK_TRIES)
        else:
            raise AlreadyRunning(f"run {folder.name} is being trained by another process")
        lock.truncate(0)
        lock.write(f"{socket.gethostname()}:{os.getpid()}\n")
        lock.flush()
        yield


def is_locked(folder: Path) -> bool:
    """Whether a living process is training the run of `folder`. Writes nothing."""
    lock = open_plain(folder / LOCK)
    if lock is None:
        return False
    with lock:
        return not _locked(lock, fcntl.LOCK_SH)


def holder(folder: Path) -> tuple[str, int] | None:
    """Host and process id of the process that trains the run of `folder`; None if none does or it is unknown."""
    if not is_locked(folder):
        return None
    text = (read_plain(folder / LOCK, LARGEST) or b"").decode(errors="replace")
    process = re.fullmatch(r"(.+):(\d{1,9})\n", text)
    return (process[1], int(process[2])) if process else None


def lock_inode(folder: Path) -> int:
    """The inode of the lock of a run's folder; 0 if it has none."""
    try:
        return (folder / LOCK).lstat().st_ino
    except FileNotFoundError:
        return 0


def is_lost(folder: Path, inode: int) -> bool:
    """Whether the lock that this process holds, the file `inode`, was removed: another process can take a new lock.

    No answer, as of a network's file system that is away, ends no training.
    """
    with contextlib.suppress(OSError):
        return bool(inode) and lock_inode(folder) != inode
    return False


def _locked(file: IO[Any], kind: int = fcntl.LOCK_EX) -> bool:
    """Whether the lock could be taken at once."""
    try:
        fcntl.flock(file, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


# Cancellation, replacement, identity


def cancel(folder: Path, why: str = "") -> None:
    """Mark the run as cancelled: it must not be started, or the process that trains it must end it.

    `why`: it is to be recorded as stopped, for this reason.
    """
    folder.mkdir(parents=True, exist_ok=True)
    mark = f"{time.time()}\n{why}"
    for _ in range(2):
        with contextlib.suppress(
            FileExistsError, FileNotFoundError
        ):  # somebody else cancels it at this moment
            replace_file(folder / CANCELLED, mark)
            return


def is_cancelled(folder: Path, since: float = 0.0) -> bool:
    """Whether the run was cancelled after the moment `since` (seconds since the epoch)."""
    try:
        return float(_cancelled(folder)[0]) >= since
    except ValueError:
        return False


def why_stopped(folder: Path) -> str:
    """Why a cancelled run is to be recorded as stopped; empty if it is not."""
    return one_line(_cancelled(folder)[1])


def _cancelled(folder: Path) -> tuple[str, str]:
    time, _, why = (read_plain(folder / CANCELLED, LARGEST) or b"").decode(errors="replace").partition("\n")
    return time, why


def end_process(folder: Path) -> str:
    """Send SIGTERM to the process that trains a run; why that cannot be done, or an empty text.

    A batch checks the mark in the run's folder, and ends only this run.
    """
    if in_living_batch(folder.parent, folder.name):
        return ""
    where = holder(folder)
    if where is None:
        return "the process that trains it is not known: wait for it to end" if is_locked(folder) else ""
    host, pid = where
    if host != socket.gethostname():
        return f"is trained on {host} (process {pid}): cancel it there"
    try:
        process = os.pidfd_open(pid)
        try:
            if holder(folder) == where:  # still the same: the pid has not been reused
                signal.pidfd_send_signal(process, signal.SIGTERM)
        finally:
            os.close(process)
    except ProcessLookupError:
        return ""
    except PermissionError:
        return f"process {pid} belongs to another user: ask them"
    return ""


def forget_cancelled(folder: Path) -> None:
    """Remove the mark: the run may be started again."""
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        (folder / CANCELLED).unlink()


def set_aside(folder: Path, mlflow_id: str) -> None:
    """Move an earlier result's files in the run's folder aside, so that none of them is resumed from.

    If a kill interrupts it, calling it again moves the rest. The caller holds the lock of the folder.
    """
    target = folder / ASIDE / re.sub(r"[^0-9A-Za-z-]", "_", mlflow_id)
    for path in sorted(folder.iterdir()):
        # `attempts` has the launcher's output, which is being written.
        if path.name in (ASIDE, "attempts", LOCK) or path.suffix == ".lock":
            continue
        target.mkdir(parents=True, exist_ok=True)
        if not (target / path.name).exists():
            path.rename(target / path.name)
        elif path.is_dir():  # created by an attempt that was killed before it was recorded
            shutil.rmtree(path)
        else:
            path.unlink()


def folder_tag(folder: Path) -> str:
    """The value of TAG_FOLDER for a run's folder: the same from every machine; empty before its first use."""
    identity = one_line((read_plain(folder.parent / IDENTITY, LARGEST) or b"").decode(errors="ignore"))
    return f"{identity}/{folder.name}" if identity else ""


def ensure_folder_tag(folder: Path) -> None:
    """Give the folder of all runs an identity if it has none. Raises UserError if the identity file is damaged."""
    path = folder.parent / IDENTITY
    _write_once(path, f"{socket.gethostname()}-{secrets.token_hex(8)}\n")
    if not folder_tag(folder):
        raise UserError(f"{path} is damaged: remove it, and the next run gives the folder another name")


# What launchers have yet to start or end


@contextlib.contextmanager
def queueing(runs: Path, run_ids: Iterable[str]) -> Iterator[Callable[[Iterable[str]], None]]:
    """Show `run_ids` as queued by this launcher; call what is yielded for those that have ended, once that is recorded.

    The list is a locked file, which counts as long as its launcher lives. Files of dead launchers are removed.
    """
    folder = runs / QUEUES
    folder.mkdir(parents=True, exist_ok=True)
    for path in folder.glob("*.list"):
        _remove_if_dead(path)
    while True:
        path = folder / f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}.list"
        file = path.open("x", encoding="utf-8")
        fcntl.flock(file, fcntl.LOCK_EX)
        if os.fstat(file.fileno()).st_nlink:
            break
        file.close()  # another launcher removed it as dead before it was locked

    def write(run_ids: Iterable[str], sign: str = "-") -> None:
        file.write("".join(f"{sign}{run_id}\n" for run_id in run_ids))
        file.flush()

    with file:
        try:
            write(run_ids, "+")
            yield write
        finally:
            path.unlink(missing_ok=True)


def queued(runs: Path) -> frozenset[str]:
    """The runs on the lists of the live launchers of this machine. Writes nothing."""
    run_ids: set[str] = set()
    for path in (runs / QUEUES).glob("*.list"):
        file = open_plain(path)
        if file is None:  # its launcher has just ended
            continue
        with file:
            if not _locked(file, fcntl.LOCK_SH):
                *lines, _ = file.read().decode(errors="replace").split("\n")  # the last is being written
                ended = {line[1:] for line in lines if line.startswith("-")}
                run_ids |= {line[1:] for line in lines if line.startswith("+")} - ended
    return frozenset(run_ids)


def _remove_if_dead(path: Path) -> None:
    # Not there any more; another account's; not a launcher's.
    with (
        contextlib.suppress(FileNotFoundError, PermissionError, UserError, IsADirectoryError),
        open_lock(path) as file,
    ):
        if _locked(file):
            file.truncate()  # for a reader that mistakes our lock for the launcher's
            path.unlink(missing_ok=True)


def write_run_list(folder: Path, run_ids: Iterable[str]) -> None:
    """Write the list of the runs that the batch of `folder` is to train."""
    folder.mkdir(parents=True, exist_ok=True)
    replace_file(folder / LIST, "".join(f"{run_id}\n" for run_id in run_ids))


def batches_of(runs: Path, run_id: str) -> list[Path]:
    """The folders of the batches that were to train a run. Writes nothing."""
    batches = sorted(runs.glob(f"{BATCH}*"))
    return [
        batch for batch in batches if run_id.encode() in (read_plain(batch / LIST, LARGEST) or b"").split()
    ]


def in_living_batch(runs: Path, run_id: str) -> bool:
    """Whether a live batch trains the run, so that its process also trains other runs."""
    process = holder(runs / run_id)
    return process is not None and any(holder(batch) == process for batch in batches_of(runs, run_id))
