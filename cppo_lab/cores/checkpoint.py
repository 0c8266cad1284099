"""Checkpoints of an embedded run: the state that determines the rest of the run, and the metrics so far.

A file is replaced atomically after it is on disk: a kill or a power cut leaves the previous file.
"""

import errno
import io
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from pickle import UnpicklingError  # noqa: TID251  what torch raises for a file of other things than tensors
from typing import Any, BinaryIO

import torch
from torch import Tensor

from cppo_lab.errors import say
from cppo_lab.files import replace_file

Row = tuple[int, dict[str, float]]  # a training step and its metrics


FORMAT = 1  # increased when the contents change, so that older files are not used


def save_checkpoint(path: Path, run_id: str, maker: str, history: list[Row], trainer: dict[str, Any]) -> None:
    """Write a checkpoint. If the disk is full, print a warning and continue without it.

    maker: torch and kind of device: another would not give the same numbers.
    history: every row that was logged up to the checkpoint, so that it needs no other file.
    """
    checkpoint = {"format": FORMAT, "run_id": run_id, "maker": maker, "history": history, "trainer": trainer}
    save_if_possible(path, checkpoint, f"checkpoint {path}")


def save_if_possible(path: Path, value: object, what: str) -> None:
    """Atomically replace `path` by `value` in torch's format, synced to disk. If there is no room, print that `what` is
    not written and continue.
    """
    content = io.BytesIO()
    torch.save(value, content)  # to a file torch raises RuntimeError for a disk that is almost full
    try:
        replace_file(path, content.getbuffer(), synced=True)
    except OSError as error:
        say(f"{what} could not be written: {error}")


def load_checkpoint(path: Path, run_id: str, maker: str) -> dict[str, Any] | None:
    """The checkpoint of run `run_id` by `maker`; None if there is none. An unusable file is reported and ignored.

    Only tensors, numbers and text are read, so that a stranger's file cannot run code.
    """
    if not path.exists():
        return None
    try:
        return read_checkpoint(path, run_id, maker)
    except ValueError as error:
        say(f"checkpoint {path} is ignored, training starts over: {error}")
        return None


def read_checkpoint(source: Path | BinaryIO, run_id: str, maker: str | None = None) -> dict[str, Any]:
    """The checkpoint of run `run_id` by `maker`, or by any maker. Raises ValueError if it is none, or is damaged."""
    checkpoint: dict[str, Any] = load_whole(source)
    expected = {"run_id": run_id, "format": FORMAT}
    if not (isinstance(checkpoint, dict) and checkpoint.items() >= expected.items()):
        raise ValueError(f"it is not a checkpoint of run {run_id} in this version's format")
    if maker is not None and checkpoint.get("maker") != maker:
        raise ValueError(f"it was made by {checkpoint.get('maker')}, this is {maker}")
    return checkpoint


def load_whole(source: Path | BinaryIO) -> Any:
    """Load what `save_if_possible` wrote, after `check_whole`.

    Only tensors, numbers and text are read. Raises ValueError if the file is
    damaged or of another kind.
    """
    if isinstance(source, Path):
        if not source.is_file():
            raise ValueError("it is damaged")
        with source.open("rb") as file:
            return load_whole(file)
    check_whole(source)
    with _refusing():
        source.seek(0)
        return torch.load(source, map_location="cpu", weights_only=True)


def check_whole(source: BinaryIO) -> None:
    """Verify the checksums in a file of torch's format, since torch does not notice a flipped bit. Unpickles nothing.

    Raises ValueError if the file is damaged or of another kind.
    """
    with _refusing():
        is_zip = zipfile.is_zipfile(source)  # raises for an archive that says it spans several disks
    if not is_zip:
        raise ValueError("it is damaged")
    with _refusing(), zipfile.ZipFile(source) as archive:
        if (broken := archive.testzip()) is not None:
            raise ValueError(f"it is damaged: {broken!r} does not match its checksum")


@contextmanager
def _refusing() -> Iterator[None]:
    """Turn what reading a damaged or foreign file raises into a ValueError."""
    try:
        yield
    except UnpicklingError:
        raise ValueError("it contains more than tensors, numbers and text, or is damaged") from None
    except OSError as error:  # its directory has an offset before the start of the file
        if error.errno != errno.EINVAL:
            raise
        raise ValueError("it is damaged") from None
    except Exception as error:  # noqa: BLE001  zipfile and torch raise errors of a dozen kinds
        raise ValueError((str(error).strip().splitlines() or [type(error).__name__])[0]) from None


def same_form(value: object, like: Mapping[str, Tensor]) -> bool:
    """Whether `value` has the tensors of `like` by name, of the same shapes and kinds."""
    return (
        isinstance(value, dict)
        and value.keys() == like.keys()
        and all(isinstance(value[name], Tensor) for name in like)
        and all(
            (value[name].shape, value[name].dtype) == (part.shape, part.dtype) for name, part in like.items()
        )
    )
