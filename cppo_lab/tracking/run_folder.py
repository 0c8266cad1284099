"""What a run's folder says of it, read without the tracking store: status, configuration, cancellation, its name."""

import contextlib
import json
import os
import secrets
import socket
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

STATUS = "status.json"
CONFIG = "config.json"  # artifact of every run as well
TRACEBACK = "traceback.txt"  # of the last attempt that failed; an artifact as well
LARGEST = 1_000_000  # bytes of a configuration file; ours have two thousand
NAMES = ("core", "rule", "model", "seed", "t_stop")  # of a status: what the run is
# In the folder of all runs: its name, whatever machine looks and wherever it is mounted.
IDENTITY = "identity"
CANCELLED = "cancelled"  # holds when, in seconds since the epoch


def write_status(folder: Path, values: Mapping[str, Any]) -> None:
    """Replace `status.json` in a run's folder. The caller holds the folder's lock."""
    partial = folder / f"{STATUS}.partial"
    partial.write_text(json.dumps(values), encoding="utf-8")
    partial.replace(folder / STATUS)


def read_status(folder: Path) -> dict[str, Any]:
    """The last status of a run's folder; empty if it has none."""
    try:
        values = json.loads((folder / STATUS).read_bytes())
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return {}
    return values if isinstance(values, dict) else {}


def read_config(path: Path) -> dict[str, Any] | None:
    """The configuration in a file that the recorder wrote; None if it holds none."""
    try:
        if path.stat().st_size > LARGEST:
            return None
        values = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    return values if isinstance(values, dict) else None


def announce(folder: Path, names: Mapping[str, Any]) -> None:
    """Let a run that is to be trained have its names (NAMES) in its folder before it begins; once it has, they stay."""
    if (folder / STATUS).exists():
        return
    folder.mkdir(parents=True, exist_ok=True)
    own = folder / f"{STATUS}.{secrets.token_hex(4)}"
    own.write_text(json.dumps({"status": "", "step": None, **names}), encoding="utf-8")
    with contextlib.suppress(FileExistsError):  # another launcher, or the run itself, was first
        os.link(own, folder / STATUS)
    own.unlink()


def begin_status(folder: Path) -> None:
    """Forget how the previous attempt ended; the run's names, and how long it has been trained in all, stay."""
    if before := read_status(folder):
        names = {key: before[key] for key in NAMES if key in before}
        write_status(folder, {"status": "", "step": None, **names, "seconds": seconds_trained(before)})


def seconds_trained(status: Mapping[str, Any]) -> float:
    """Wall seconds of all attempts at a run together, up to its last status; 0 where that does not say."""
    seconds = status.get("seconds")
    return float(seconds) if isinstance(seconds, int | float) else 0.0


def cancel(folder: Path) -> None:
    """Mark that the run is not to be started, or to be ended, by whoever has it now."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / CANCELLED).write_text(f"{time.time()}\n", encoding="utf-8")


def is_cancelled(folder: Path, since: float = 0.0) -> bool:
    """Whether the run was cancelled after the moment `since` (seconds since the epoch)."""
    try:
        return float((folder / CANCELLED).read_text(encoding="utf-8")) >= since
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return False


def forget_cancelled(folder: Path) -> None:
    """The run is wanted again."""
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        (folder / CANCELLED).unlink()


def folder_tag(folder: Path) -> str:
    """The value of TAG_FOLDER for a run's folder: the same from every machine; empty before its first use."""
    try:
        identity = (folder.parent / IDENTITY).read_text(encoding="utf-8").strip()
    except FileNotFoundError:
        return ""
    return f"{identity}/{folder.name}"


def ensure_folder_tag(folder: Path) -> str:
    """The same, for a folder that is about to be used: the folder of all runs is given a name if it has none."""
    if tag := folder_tag(folder):
        return tag
    runs = folder.parent
    runs.mkdir(parents=True, exist_ok=True)
    own = runs / f"{IDENTITY}.{secrets.token_hex(4)}"
    own.write_text(f"{socket.gethostname()}-{secrets.token_hex(8)}\n", encoding="utf-8")
    with contextlib.suppress(FileExistsError):  # another process was first
        os.link(own, runs / IDENTITY)
    own.unlink()
    return folder_tag(folder)
