"""The recorded answers of a run: each problem's outcome, the texts of some problems, and the tokens of some training
groups.

The files are in the folder ANSWERS of a run's folder, and in MLflow as artifacts of the same names:

    answers/outcomes.npz              right and truncated answers and mean length of every problem at every validation
    answers/texts-000010.jsonl.gz     prompts and responses of the validated step 10
    answers/tokens-000010.npz         tokens of training groups of that step, with what a rule decided from

`outcomes.py`, `texts.py` and `tokens.py` have the three formats; begin with `records.py`, which writes and reads them.

The npz files may be a stranger's: nothing is unpickled, and sizes are looked at first. Each has a JSON object, as
bytes in the array `about`, beside the arrays that its format declares.

Files are replaced atomically, never appended to, and equal contents give equal bytes, so a killed and resumed run has
the same files as an uninterrupted run. Readers validate everything and raise UserError for invalid files. This package
depends on neither MLflow, nor torch, nor a trainer core. What a rule would decide on them: `analysis/replay.py`.
"""

import contextlib
import io
import json
import struct
import tokenize
import zipfile
import zlib
from collections.abc import Collection, Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import ValidationError

from cppo_lab.errors import UserError, first_fault

ANSWERS = "answers"  # in a run's folder, and among the artifacts of an MLflow run
ABOUT = "about"  # in an npz file
# What zipfile, numpy and json raise on a file that is damaged, or that somebody else made.
_FAULTS = (
    ValueError,
    TypeError,
    AttributeError,
    LookupError,
    ArithmeticError,
    EOFError,
    OSError,
    struct.error,
    tokenize.TokenError,
    zipfile.BadZipFile,
    zlib.error,
    RuntimeError,  # an encrypted file, an unknown compression, JSON nested too deep
    MemoryError,  # a header nested too deep for Python's parser, or of more entries than there is memory
)


def pack_arrays(
    about: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]], columns: Mapping[str, str]
) -> bytes:
    """The bytes of a file with the JSON object `about` and `arrays`; `columns`: their types with byte order (`<f8`)."""
    text = json.dumps(about).encode()
    typed: dict[str, Any] = {ABOUT: np.frombuffer(text, dtype=np.uint8)}
    typed |= {name: arrays[name].astype(kind) for name, kind in columns.items()}
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **typed)
    return buffer.getvalue()


@contextlib.contextmanager
def unpacked_arrays(
    data: bytes,
    columns: Mapping[str, str],
    version: int,
    largest: int,
    what: str,
    remedy: str,
    wide: Collection[str] = (),
) -> Iterator[tuple[dict[str, Any], dict[str, NDArray[Any]]]]:
    """The JSON object, whose `format` is `version`, and the arrays of a file of `pack_arrays`, of which those in `wide`
    have two dimensions, the others one.

    Raises UserError, `WHAT (reason): REMEDY`, if the file is another or damaged, if it or what it unpacks to has
    more than `largest` bytes, and for what the body of the `with` statement finds wrong with its values.
    """
    try:
        if len(data) > largest:
            raise ValueError(f"it has {len(data)} bytes, more than the {largest} allowed")
        if data[-22:-18] != b"PK\x05\x06":  # the end of a zip
            raise ValueError("it is truncated, or not such an npz file")
        with np.load(io.BytesIO(data), allow_pickle=False) as archive:
            sizes = {member.filename: member.file_size for member in archive.zip.infolist()}
            if sizes.keys() != {f"{name}.npy" for name in (ABOUT, *columns)}:
                raise ValueError(f"it holds {', '.join(sizes)[:100] or 'nothing'}")
            if sum(sizes.values()) > largest:
                raise ValueError(f"unpacked it has {sum(sizes.values())} bytes")
            arrays = {name: archive[name] for name in (ABOUT, *columns)}
        for name, kind in columns.items():
            if arrays[name].dtype != np.dtype(kind) or arrays[name].ndim != 1 + (name in wide):
                raise ValueError(
                    f"array {name!r} has type {arrays[name].dtype} and shape {arrays[name].shape}"
                )
        about = json.loads(arrays.pop(ABOUT).tobytes())
        if not isinstance(about, dict) or about.get("format") != version:
            raise ValueError(f"it is not of format {version}")
        yield about, arrays
    except _FAULTS as error:
        reason = str(error).partition("\n")[0][:200] or type(error).__name__
        if isinstance(error, ValidationError):  # of the JSON object
            reason = f"it {first_fault(error.errors())}"
        raise UserError(f"{what} ({reason}): {remedy}") from None
