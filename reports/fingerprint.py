"""Fingerprints: of values such as a figure's info, of the code that makes reports, of bytes."""

import hashlib
import json
import math
import platform
from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import cache, partial
from importlib import metadata
from pathlib import Path
from types import FunctionType
from typing import Any

import numpy as np

PACKAGE = Path(__file__).resolve().parent  # `reports`, wherever it is installed
LIBRARIES = ("matplotlib", "numpy", "pandas", "jinja2")  # those that change the bytes of a report
_READ = {".py", ".j2", ".css", ".js", ".csv"}


class Unknown(TypeError):
    """A value whose content cannot be told by `fingerprint`."""


def fingerprint(value: object) -> str:
    """Equal for values of equal types and content, in every process; frozen infos, and `partial`s of functions of ours.

    Raises Unknown for anything else, such as a function with a closure.
    """
    return hashlib.sha256(json.dumps(_plain(value), separators=(",", ":")).encode()).hexdigest()


def _plain(value: object) -> Any:
    """As JSON knows it, with the type's name wherever two types could look alike."""
    if value is None or (isinstance(value, bool | int | str) and not isinstance(value, Enum)):
        return value
    if isinstance(value, float):
        return ["float", value.hex() if math.isfinite(value) else repr(value)]
    if isinstance(value, Enum):
        return ["enum", _name(type(value)), value.name]
    if isinstance(value, bytes):
        return ["bytes", value.hex()]
    if isinstance(value, tuple | list):
        return ["items", *(_plain(item) for item in value)]
    if isinstance(value, Mapping):
        return ["mapping", *([_plain(key), _plain(item)] for key, item in value.items())]
    if isinstance(value, frozenset | set):
        return ["set", *sorted(json.dumps(_plain(item)) for item in value)]
    if isinstance(value, partial):
        return ["partial", _plain(value.func), _plain(value.args), _plain(value.keywords)]
    return _plain_object(value)


def _plain_object(value: object) -> Any:
    if isinstance(value, FunctionType):
        if value.__closure__ or "<" in value.__qualname__:
            raise Unknown(f"{value.__qualname__} is a function whose content has no name")
        return ["function", f"{value.__module__}.{value.__qualname__}"]
    if is_dataclass(value) and not isinstance(value, type):
        return [
            _name(type(value)),
            *([part.name, _plain(getattr(value, part.name))] for part in fields(value)),
        ]
    if isinstance(value, np.generic):
        return ["scalar", value.dtype.str, _plain(value.item())]
    if isinstance(value, np.ndarray) and value.dtype != object:
        content = hashlib.sha256(np.ascontiguousarray(value).tobytes()).hexdigest()
        return ["array", value.dtype.str, list(value.shape), content]
    raise Unknown(f"no fingerprint of {_name(type(value))}")


def _name(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


def of_bytes(content: bytes) -> str:
    """SHA-256, in hexadecimal digits."""
    return hashlib.sha256(content).hexdigest()


@cache
def drawing_code() -> str:
    """Of all that turns an info into a drawing: our code and the libraries'."""
    return _code([PACKAGE / "figures", PACKAGE / "names.py"])


@cache
def report_code() -> str:
    """Of all that turns runs into a report: analysis, reports with their templates, and the libraries."""
    beside = PACKAGE.parent
    return _code([PACKAGE, beside / "analysis", *_shared()])


def _shared() -> list[Path]:
    """The modules of the package that analysis and reports have in common."""
    import cppo_lab

    root = Path(cppo_lab.__file__).parent
    return [root / f"{name}.py" for name in ("schema", "history", "store")]


def _code(places: Iterable[Path]) -> str:
    found = hashlib.sha256()
    for line in [platform.python_version(), *(f"{name} {metadata.version(name)}" for name in LIBRARIES)]:
        found.update(line.encode() + b"\n")
    for place in places:
        files = sorted(place.rglob("*")) if place.is_dir() else [place]
        for path in files:
            if (
                path.suffix in _READ
                and path.is_file()
                and "build" not in path.relative_to(place.parent).parts[1:-1]
            ):
                content = path.read_bytes()
                found.update(f"{path.relative_to(place.parent)} {of_bytes(content)}\n".encode())
    return found.hexdigest()
