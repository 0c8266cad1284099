"""How much of a run's folder a store has: `shipped.json` next to the spool. It only saves work and may be lost.

Does not import MLflow, since ten thousand folders are checked for unsent lines at once.
"""

import contextlib
import fcntl
import json
import secrets
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cppo_lab.files import open_lock, read_plain
from cppo_lab.runs.spool import FOLDER, NOTES, files, place_in, read_lines
from cppo_lab.tracking.address import store_key

NAME = "shipped.json"
_LARGEST = 16 * 2**20  # bytes; ours have some hundred for each attempt and store
_unsaved: dict[tuple[Path, str], "Shipped"] = {}  # what a full disk did not take, by folder and store


@dataclass
class ShippedRecord:
    """The part of a record that a store has."""

    mlflow_id: str = ""
    pending: list[str] = field(default_factory=list)  # artifacts that it does not have yet
    ended: bool = False  # its end was uploaded; the history is still to be uploaded as an artifact


@dataclass
class Shipped:
    """The part of a run's folder that one store has."""

    offsets: dict[str, int] = field(default_factory=dict)  # by the name of a spool's file
    records: dict[str, ShippedRecord] = field(default_factory=dict)

    @property
    def pending(self) -> bool:
        return any(record.mlflow_id and (record.pending or record.ended) for record in self.records.values())


def unsent(folder: Path, uri: str) -> bool:
    """Whether a run's folder has anything that the store at `uri` does not have. Queries no store."""
    paths = files(folder)
    if not paths:
        return False
    state = load_shipped(folder, uri)
    paths.append(folder / FOLDER / NOTES)
    return state.pending or any(_has_more(path, state.offsets.get(path.name, 0)) for path in paths)


def _has_more(path: Path, offset: int) -> bool:
    """Whether a complete line follows; a line cut off by a kill is never sent."""
    if not path.is_file() or path.stat().st_size == offset:
        return False
    return next(read_lines(path, place_in(path, offset)), None) is not None


def _all_states(folder: Path) -> dict[str, Any]:
    try:
        values = json.loads(read_plain(folder / FOLDER / NAME, _LARGEST) or b"")
    except (OSError, ValueError, RecursionError):
        return {}
    return values if isinstance(values, dict) else {}


def load_shipped(folder: Path, uri: str) -> Shipped:
    """The stored progress; no progress if the file was not written by us."""
    if (state := _unsaved.get((folder, uri))) is not None:
        return deepcopy(state)
    try:
        values = _all_states(folder)[store_key(uri)]
        records = {
            str(token): ShippedRecord(
                str(record["mlflow_id"]),
                [str(name) for name in record["pending"]],
                bool(record.get("ended")),
            )
            for token, record in values["records"].items()
        }
        return Shipped({str(name): int(offset) for name, offset in values["offsets"].items()}, records)
    except (LookupError, TypeError, ValueError, OverflowError, AttributeError):
        return Shipped()


def forget_shipped(folder: Path, uri: str) -> None:
    """Have all of a run's folder uploaded again: the store has been replaced."""
    save_shipped(folder, uri, Shipped())


def save_shipped(folder: Path, uri: str, state: Shipped) -> None:
    """Store the progress. If the disk is full, this process remembers it, and others upload the lines again."""
    values = {
        "offsets": state.offsets,
        "records": {token: vars(record) for token, record in state.records.items()},
    }
    beside = folder / FOLDER / f"{NAME}.{secrets.token_hex(4)}"
    try:
        beside.write_text(json.dumps({**_all_states(folder), store_key(uri): values}), encoding="utf-8")
        beside.replace(folder / FOLDER / NAME)
        _unsaved.pop((folder, uri), None)
    except OSError:
        _unsaved[folder, uri] = deepcopy(state)
        with contextlib.suppress(OSError):
            beside.unlink()


@contextlib.contextmanager
def shipping(folder: Path) -> Iterator[None]:
    """Let one process at a time send a run's folder, and note its progress."""
    try:
        file = open_lock(folder / FOLDER / "shipping.lock")
    except OSError:  # a full disk: better to send twice than not at all
        yield
        return
    with file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
