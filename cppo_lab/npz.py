"""Arrays in an npz file that a stranger may have written: sizes, shapes and types are checked, nothing is unpickled.

Every file has one JSON object, as bytes in the array `about`, beside the arrays that its format declares. Equal arrays
give equal bytes. Sizes are looked at before anything is unpacked.
"""

import contextlib
import io
import json
import math
import struct
import tokenize
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from cppo_lab.errors import UserError

ABOUT = "about"
_MOST_ABOUT = 16 * 2**20  # bytes of JSON
_END = struct.Struct(
    "<4s4H2LH"
)  # a zip's last record: the number of files and the size of their list are in it
_LARGEST_LIST = 4096  # bytes of that list; five files need some hundred
# What zipfile, numpy and json raise on a file that is damaged, or that somebody else made.
_FAULTS = (
    ValueError,  # also: text that is no UTF-8 or no JSON, a header that numpy refuses
    EOFError,
    RecursionError,
    MemoryError,  # a header nested too deep for Python's parser
    TypeError,  # headers that numpy does not expect
    IndexError,
    tokenize.TokenError,
    NotImplementedError,  # a compression that Python does not know
    RuntimeError,  # an encrypted member
    OSError,
    struct.error,
    zipfile.BadZipFile,
    zlib.error,
)


@dataclass(frozen=True)
class Column:
    """An array of a format: `kind` is its dtype with byte order, such as `<f8`."""

    kind: str
    dimensions: int = 1


def pack(
    about: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]], columns: Mapping[str, Column]
) -> bytes:
    """The bytes of a file with the JSON object `about` and `arrays`, which are of `columns`."""
    text = json.dumps(about).encode()
    typed: dict[str, Any] = {ABOUT: np.frombuffer(text, dtype=np.uint8)}
    typed |= {name: arrays[name].astype(column.kind) for name, column in columns.items()}
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **typed)
    return buffer.getvalue()


def unpack(
    data: bytes, columns: Mapping[str, Column], largest: int
) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    """The JSON object and the arrays of a file that `pack` wrote. Call it within `refused`.

    Raises ValueError, or another of the faults that `refused` knows, if it is no such file, or has more than `largest`
    bytes unpacked.
    """
    found = _arrays(data, {ABOUT: Column("|u1"), **columns}, largest)
    about = json.loads(found.pop(ABOUT).tobytes())
    if not isinstance(about, dict):
        raise ValueError("its description is not a JSON object")
    return about, found


@contextlib.contextmanager
def refused(what: str, remedy: str) -> Iterator[None]:
    """Turn the faults of a broken file into a UserError: `what` is its name and what it should have been."""
    try:
        yield
    except _FAULTS as error:
        reason = str(error).partition("\n")[0][:200] or type(error).__name__
        raise UserError(f"{what} ({reason}): {remedy}") from None


def _arrays(data: bytes, columns: Mapping[str, Column], largest: int) -> dict[str, NDArray[Any]]:
    if len(data) < _END.size:
        raise ValueError("it is cut off")
    signature, *_, size, _, comment = _END.unpack(data[-_END.size :])
    zip64 = data[-_END.size - 20 :][:4] == b"PK\x06\x07"
    if signature != b"PK\x05\x06" or comment or zip64 or size > _LARGEST_LIST:
        raise ValueError("it is truncated, or not such an npz file")
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        members = {info.filename: info for info in archive.infolist()}
        if sorted(members) != sorted(f"{name}.npy" for name in columns):
            raise ValueError(f"it holds {', '.join(sorted(members))[:100] or 'nothing'}")
        total = sum(info.file_size for info in members.values())
        if total > largest or members[f"{ABOUT}.npy"].file_size > _MOST_ABOUT:
            raise ValueError(f"unpacked it has {total} bytes")
        return {
            name: _array(name, archive.read(members[f"{name}.npy"]), column)
            for name, column in columns.items()
        }


def _array(name: str, content: bytes, column: Column) -> NDArray[Any]:
    """One array; a view of `content`, so that a header cannot ask for more memory than the file has bytes."""
    kind = np.dtype(column.kind)
    file = io.BytesIO(content)
    if npy.read_magic(file) != (1, 0):
        raise ValueError(f"array {name!r} has another version")
    shape, fortran, found = npy.read_array_header_1_0(file)
    if found != kind or fortran or len(shape) != column.dimensions or any(side < 0 for side in shape):
        raise ValueError(f"array {name!r} has type {found} and shape {shape}")
    if len(content) - file.tell() != math.prod(shape) * kind.itemsize:
        raise ValueError(f"array {name!r} does not have the {math.prod(shape)} entries it says")
    return np.frombuffer(content, dtype=kind, offset=file.tell()).reshape(shape)
