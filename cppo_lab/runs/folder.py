"""The state of a run from its folder, without the tracking store: status, configuration, cancellation, its name."""

import contextlib
import fcntl
import json
import math
import os
import re
import secrets
import shutil
import socket
import time
from collections.abc import Iterable, Iterator, Mapping
from enum import StrEnum
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self, TextIO

from cppo_lab.errors import UserError, one_line
from cppo_lab.files import NO_ROOM, open_lock, open_plain, overwrite_file, read_plain, replace_file

STATUS = "status.json"
CONFIG = "config.json"  # artifact of every run as well
TRACEBACK = "traceback.txt"  # of the last attempt that failed; an artifact as well
LARGEST = 1_000_000  # bytes of any of these files; they usually have two thousand
NAMES = ("core", "rule", "model", "seed", "t_stop", "variants")  # of a status: what the run is
# In the folder of all runs: an identity that is the same from every machine and mount point.
IDENTITY = "identity"
ASIDE = "replaced"  # in a run's folder: the files of results that were replaced, by their MLflow ids
_STAYS = {ASIDE, "attempts"}  # `attempts` has the launcher's output, which is being written
CANCELLED = "cancelled"  # holds the time of cancellation, in seconds since the epoch
_IDENTITY = re.compile(r"[^\s/\x00-\x1f\x7f\ufffd]{1,300}")
# The fields of a status; any other field, or a value of another type, was not written by us.
_WHOLE = frozenset({"seed", "step", "t_stop", "pid", "gpus", "first_step", "best_step"})
_NUMBERS = frozenset({"score", "best", "final_mean", "started", "updated", "seconds", "first_time"})
_TEXTS = frozenset(
    {"status", "reason", "cause", "activity", "core", "rule", "model", "variants", "host", "job", "record"}
    | {"run_id", "code_version"}
)
_MOST = 1e15  # of a number: larger than any step or time


class Cause(StrEnum):
    """Why a run stopped before its end. The `reason` next to it is for people; no decision depends on its words."""

    DIED = "died"  # its process was killed before it could say anything
    CANCELLED = "cancelled"
    SIGNAL = "signal"
    ERROR = "error"


def write_status(folder: Path, values: Mapping[str, Any]) -> None:
    """Replace `status.json` in a run's folder. The caller holds the folder's lock.

    If the disk has no room for another file, it is overwritten in place, so that a run's end is known.
    """
    text = json.dumps(values)
    try:
        replace_file(folder / STATUS, text)
    except OSError as error:
        if error.errno not in NO_ROOM or not (folder / STATUS).exists():
            raise
        overwrite_file(folder / STATUS, text)


def read_status(folder: Path) -> dict[str, Any]:
    """The last status of a run's folder; empty if it has none. Other fields are omitted."""
    values = _json(folder / STATUS) or {}
    checked = {key: _checked(key, value) for key, value in values.items()}
    return {key: value for key, value in checked.items() if value is not None or values[key] is None}


def read_config(path: Path) -> dict[str, Any] | None:
    """The configuration in a file that the recorder wrote; None if it holds none."""
    try:
        return _json(path)
    except OSError:
        return None


def _json(path: Path) -> dict[str, Any] | None:
    """The JSON object in a file; None if it holds none."""
    try:
        values = json.loads(read_plain(path, LARGEST) or b"")
    except (ValueError, RecursionError):
        return None
    return values if isinstance(values, dict) else None


def _checked(key: str, value: object) -> object:
    """A value of a status; None if it is not valid for that field."""
    if isinstance(value, bool):
        return value if key == "replaces" else None
    if isinstance(value, int) and key in _WHOLE | _NUMBERS:
        return value if abs(value) <= _MOST else None
    if isinstance(value, float) and key in _NUMBERS:
        return value if math.isfinite(value) and abs(value) <= _MOST else None
    return one_line(value) if isinstance(value, str) and key in _TEXTS else None


def announce(folder: Path, names: Mapping[str, Any]) -> None:
    """Write a run's names (NAMES) into its folder before it is trained; existing ones stay."""
    if (folder / STATUS).exists():
        return
    folder.mkdir(parents=True, exist_ok=True)
    own = folder / f"{STATUS}.{secrets.token_hex(4)}"
    own.write_text(json.dumps({"status": "", "step": None, **names}), encoding="utf-8")
    with contextlib.suppress(FileExistsError):  # another launcher, or the run itself, was first
        os.link(own, folder / STATUS)
    own.unlink()


def begin_status(folder: Path) -> None:
    """Clear how the previous attempt ended; the run's names and its total training time stay."""
    if before := read_status(folder):
        names = {key: before[key] for key in NAMES if key in before}
        write_status(folder, {"status": "", "step": None, **names, "seconds": seconds_trained(before)})


def variants_text(variants: Mapping[str, str]) -> str:
    """A run's variant in each of its sweeps as one text: `sweep=variant`, separated by `;`."""
    return ";".join(f"{sweep}={variant}" for sweep, variant in variants.items())


def parse_variants(text: object) -> dict[str, str]:
    """What `variants_text` has written; empty for anything else."""
    parts = [part.partition("=") for part in text.split(";")] if isinstance(text, str) else []
    return {sweep: variant for sweep, _, variant in parts if sweep and variant}


def seconds_trained(status: Mapping[str, Any]) -> float:
    """Wall-clock seconds of all attempts at a run together, up to its last status; 0 if the status lacks them."""
    seconds = status.get("seconds")
    return float(seconds) if isinstance(seconds, int | float) else 0.0


def cancel(folder: Path) -> None:
    """Mark the run as cancelled: it must not be started, or the process that trains it must end it."""
    folder.mkdir(parents=True, exist_ok=True)
    replace_file(folder / CANCELLED, f"{time.time()}\n")


def is_cancelled(folder: Path, since: float = 0.0) -> bool:
    """Whether the run was cancelled after the moment `since` (seconds since the epoch)."""
    try:
        return float(read_plain(folder / CANCELLED, LARGEST) or b"") >= since
    except ValueError:
        return False


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
        if path.name in _STAYS or path.name == "lock" or path.suffix == ".lock":
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
    identity = (read_plain(folder.parent / IDENTITY, LARGEST) or b"").decode(errors="replace").strip()
    return f"{identity}/{folder.name}" if _IDENTITY.fullmatch(identity) else ""


def ensure_folder_tag(folder: Path) -> str:
    """The same for a folder that is about to be used: creates the identity of the folder of all runs if it has none.

    Raises UserError if the identity file is damaged.
    """
    if tag := folder_tag(folder):
        return tag
    runs = folder.parent
    runs.mkdir(parents=True, exist_ok=True)
    own = runs / f"{IDENTITY}.{secrets.token_hex(4)}"
    own.write_text(f"{socket.gethostname()}-{secrets.token_hex(8)}\n", encoding="utf-8")
    with contextlib.suppress(FileExistsError):  # another process was first
        os.link(own, runs / IDENTITY)
    own.unlink()
    if tag := folder_tag(folder):
        return tag
    raise UserError(
        f"{runs / IDENTITY} is damaged: remove it, and the next run gives the folder another name"
    )


_MOST_LOCK = 1000  # bytes of a lock: a host and a process
LOCK_TRIES = 50
LOCK_SECONDS = 1.0  # `is_held` holds a lock for an instant; a run holds it for its lifetime


class AlreadyRunning(RuntimeError):
    """Another process on this machine is training this run."""


@contextlib.contextmanager
def held(folder: Path) -> Iterator[None]:
    """Hold the lock of a run's folder. The kernel releases it when the process ends, however it ends.

    The lock file names the holder. Raises AlreadyRunning if another process holds it, UserError if the lock is a link.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with open_lock(folder / "lock") as lock:
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


def lock_file(folder: Path) -> int:
    """The inode of the lock of a run's folder; 0 if it has none."""
    try:
        return (folder / "lock").lstat().st_ino
    except FileNotFoundError:
        return 0


def is_lost(folder: Path, inode: int) -> bool:
    """Whether the lock that this process holds, the file `inode`, was removed: another process can take a new one.

    No answer, as of a network's file system that is away, ends no training.
    """
    with contextlib.suppress(OSError):
        return bool(inode) and lock_file(folder) != inode
    return False


def holder(folder: Path) -> tuple[str, int] | None:
    """Host and process id of the process that trains the run of `folder`; None if none does or it is unknown."""
    if not is_held(folder):
        return None
    said = (read_plain(folder / "lock", _MOST_LOCK) or b"").decode(errors="replace")
    host, _, pid = one_line(said).rpartition(":")
    return (host, int(pid)) if host and pid.isascii() and pid.isdecimal() and int(pid) < 2**31 else None


def _locked(file: IO[Any], kind: int = fcntl.LOCK_EX) -> bool:
    """Whether the lock could be taken at once."""
    try:
        fcntl.flock(file, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def is_held(folder: Path) -> bool:
    """Whether a living process is training the run of `folder`. Writes nothing."""
    lock = open_plain(folder / "lock")
    if lock is None:
        return False
    with lock:
        return not _locked(lock, fcntl.LOCK_SH)


FOLDER = "queues"  # below the folder of all runs


class Queue:
    """This launcher's list: a context manager that shows `run_ids` as queued until they are removed.

    Files of dead launchers are removed.
    """

    def __init__(self, runs: Path, run_ids: Iterable[str]) -> None:
        self._folder, self._run_ids = runs / FOLDER, tuple(run_ids)

    def __enter__(self) -> Self:
        self._folder.mkdir(parents=True, exist_ok=True)
        for path in self._folder.glob("*.list"):
            _remove_if_dead(path)
        self._path, self._file = _own_file(self._folder)
        self._write("+", self._run_ids)
        return self

    def ended(self, run_id: str) -> None:
        """Remove a run from the list, once it has ended and its outcome is recorded."""
        self._write("-", [run_id])

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._path.unlink(missing_ok=True)
        self._file.close()

    def _write(self, sign: str, run_ids: Iterable[str]) -> None:
        self._file.write("".join(f"{sign}{run_id}\n" for run_id in run_ids))
        self._file.flush()


def queued(runs: Path) -> frozenset[str]:
    """The runs on the lists of the live launchers of this machine. Writes nothing."""
    found: set[str] = set()
    for path in (runs / FOLDER).glob("*.list"):
        file = open_plain(path)
        if file is None:  # its launcher has just ended
            continue
        with file:
            if not _lock(file, fcntl.LOCK_SH):
                found |= _listed(file.read().decode(errors="replace"))
    return frozenset(found)


def _listed(text: str) -> set[str]:
    listed: set[str] = set()
    for line in text.splitlines(keepends=True):
        if line.endswith("\n"):
            change = listed.add if line.startswith("+") else listed.discard
            change(line[1:-1])
    return listed


def _own_file(folder: Path) -> tuple[Path, TextIO]:
    """A new, locked file. If another launcher removed it as dead before it was locked, it is created again."""
    while True:
        path = folder / f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}.list"
        file = path.open("x", encoding="utf-8")
        fcntl.flock(file, fcntl.LOCK_EX)
        if os.fstat(file.fileno()).st_nlink:
            return path, file
        file.close()


def _remove_if_dead(path: Path) -> None:
    if not path.is_file():  # not created by a launcher
        return
    try:
        with open_lock(path) as file:
            if _lock(file, fcntl.LOCK_EX):
                file.truncate()  # for a reader that mistakes our lock for the launcher's
                path.unlink(missing_ok=True)
    except (FileNotFoundError, PermissionError, UserError):  # gone; another account's; not a launcher's
        pass


def _lock(file: IO[Any], kind: int) -> bool:
    """Whether the lock could be taken at once."""
    try:
        fcntl.flock(file, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


PREFIX = "batch-"
LIST = "runs.txt"  # ids of the runs of a batch, one a line
_LARGEST = 1_000_000  # bytes of a list


def new_batch() -> str:
    """A name for a new batch."""
    return f"{PREFIX}{secrets.token_hex(8)}"


def list_runs(folder: Path, run_ids: Iterable[str]) -> None:
    """Write the list of the runs that the batch of `folder` is to train."""
    folder.mkdir(parents=True, exist_ok=True)
    replace_file(folder / LIST, "".join(f"{run_id}\n" for run_id in run_ids))


def batches_of(runs: Path, run_id: str) -> list[Path]:
    """The folders of the batches that were to train a run. Writes nothing."""
    return [folder for folder in sorted(runs.glob(f"{PREFIX}*")) if run_id in _runs_of(folder)]


def in_living_batch(runs: Path, run_id: str) -> bool:
    """Whether a live batch trains the run, so that its process also trains other runs."""
    who = holder(runs / run_id)
    return who is not None and any(holder(folder) == who for folder in batches_of(runs, run_id))


def _runs_of(folder: Path) -> list[str]:
    return (read_plain(folder / LIST, _LARGEST) or b"").decode(errors="replace").split()
