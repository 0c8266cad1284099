"""The state of a run from its folder, without the tracking store: status, configuration, cancellation, its name."""

import contextlib
import json
import math
import os
import re
import secrets
import shutil
import socket
import time
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Any

from cppo_lab.errors import UserError, one_line
from cppo_lab.safe_open import NO_ROOM, overwrite_file, read_plain, replace_file

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
