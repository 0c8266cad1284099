"""Checkpoints of an embedded run: all that decides its further numbers, and the metrics up to there.

A file is replaced as a whole and is on disk before it counts: a kill or a power cut leaves the one before.
"""

import os
import pickle
import sys
import zipfile
from pathlib import Path
from typing import Any, TypedDict

import torch

Row = tuple[int, dict[str, float]]  # a training step and its metrics


FORMAT = 1  # raised when the contents change: an older file is then not used


class Checkpoint(TypedDict):
    """`history` holds every row that was logged up to the checkpoint, so that it needs no other file."""

    format: int
    run_id: str
    maker: str  # torch and kind of device: another one would not give the same numbers
    history: list[Row]
    trainer: dict[str, Any]


def make_checkpoint(run_id: str, maker: str, history: list[Row], trainer: dict[str, Any]) -> Checkpoint:
    """A checkpoint in this version's format."""
    return {"format": FORMAT, "run_id": run_id, "maker": maker, "history": history, "trainer": trainer}


def save_checkpoint(path: Path, checkpoint: Checkpoint) -> None:
    """Write `checkpoint` to `path`. A disk that is full costs the checkpoint, not the run: it is said and goes on."""
    try:
        save_whole(path, checkpoint)
    except OSError as error:
        path.with_suffix(".partial").unlink(missing_ok=True)
        print(f"checkpoint {path} could not be written: {error}", file=sys.stderr, flush=True)


def save_whole(path: Path, value: object) -> None:
    """Replace `path` by `value` in torch's format: at every moment it is the old file or the new one, on disk."""
    partial = path.with_suffix(".partial")
    with partial.open("wb") as file:
        torch.save(value, file)
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)


def load_checkpoint(path: Path, run_id: str, maker: str) -> Checkpoint | None:
    """The checkpoint of run `run_id` by `maker`; None if there is none. A file of no use is named and ignored.

    Nothing but tensors, numbers and text is read: a file that a stranger left there runs no code.
    """
    try:
        if not path.exists():
            return None
        if not zipfile.is_zipfile(path):
            raise ValueError("it is damaged")
        found: Checkpoint = torch.load(path, map_location="cpu", weights_only=True)
        if not isinstance(found, dict) or (found.get("run_id"), found.get("format")) != (run_id, FORMAT):
            raise ValueError(f"it is no checkpoint of run {run_id} in this version's format")
        if found["maker"] != maker:
            raise ValueError(f"it was made by {found['maker']}, this is {maker}")
    except (RuntimeError, ValueError, LookupError, EOFError, pickle.UnpicklingError) as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        print(f"checkpoint {path} is not used, training starts anew: {reason}", file=sys.stderr, flush=True)
        return None
    return found
