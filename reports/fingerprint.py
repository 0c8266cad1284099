"""Fingerprints of values (such as a figure's info), of the code that makes reports, and of bytes."""

import hashlib
import json
import math
import os
import platform
from array import array
from collections.abc import Collection, Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import cache, partial
from importlib import metadata
from pathlib import Path
from types import FunctionType
from typing import Any

import numpy as np

from cppo_lab import PACKAGE_FOLDER, PARTS, PARTS_FOLDER

REPORTS = PARTS_FOLDER / "reports"
LIBRARIES = ("matplotlib", "numpy", "pandas", "jinja2")  # those that change the bytes of a report


class Unknown(TypeError):
    """A value whose content `fingerprint` cannot represent."""


def fingerprint(value: object) -> str:
    """A digest that is equal for values of equal type and content, in every process. Supports frozen infos and
    `partial`s of our functions.

    Raises Unknown for anything else, such as a function with a closure.
    """
    return hashlib.sha256(json.dumps(_plain(value), separators=(",", ":")).encode()).hexdigest()


def _plain(value: object) -> Any:
    """The value as JSON-compatible data, with the type's name wherever two types could look alike."""
    if value is None or (isinstance(value, bool | int | str) and not isinstance(value, Enum)):
        return value
    if isinstance(value, float):
        return ["float", value.hex() if math.isfinite(value) else repr(value)]
    if isinstance(value, Enum):
        return ["enum", _name(type(value)), value.name]
    if isinstance(value, bytes):
        return ["bytes", value.hex()]
    if isinstance(value, tuple) and value and all(type(item) is float for item in value):
        return ["floats", of_bytes(array("d", value).tobytes())]  # curves are most of what figures show
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
    """The fingerprint of everything that turns an info into a drawing: our code and the libraries."""
    return fingerprint(
        (libraries(), tree(REPORTS / "figures"), of_bytes((REPORTS / "names.py").read_bytes()))
    )


@cache
def report_code() -> str:
    """The fingerprint of everything that turns runs into a report: analysis, reports with their templates, and the
    libraries.
    """
    shared = [
        of_bytes((PACKAGE_FOLDER / f"{name}.py").read_bytes())
        for name in ("schema", "tracking/history", "tracking/address")
    ]
    return fingerprint((libraries(), tree(REPORTS), tree(PARTS_FOLDER / "analysis"), shared))


@cache
def replay_code() -> str:
    """The fingerprint of everything that turns recorded tokens into decisions of built-in rules: our code and torch."""
    try:
        torch = metadata.version("torch")
    except metadata.PackageNotFoundError:
        torch = ""
    rooms = [tree(PACKAGE_FOLDER / name) for name in ("answers", "maths", "rules")]
    return fingerprint((libraries(), torch, tree(REPORTS / "answers"), rooms))


def package(suffixes: Collection[str]) -> str:
    """The fingerprint of the package's files with these suffixes, the same in a checkout and in an installation."""
    beside = () if PARTS_FOLDER == PACKAGE_FOLDER else (PARTS_FOLDER / name for name in PARTS)
    return fingerprint([tree(folder, suffixes) for folder in (PACKAGE_FOLDER, *beside)])


def libraries() -> list[str]:
    """The versions of Python and of the libraries that affect the bytes of a report."""
    return [platform.python_version(), *(f"{name} {metadata.version(name)}" for name in LIBRARIES)]


def tree(root: Path, suffixes: Collection[str] = (".py", ".j2", ".css", ".js", ".csv", ".json")) -> str:
    """The fingerprint of the paths and contents of the files below `root` with these suffixes."""
    found = []
    for folder, folders, names in os.walk(root):
        # In a checkout, reports are written below the package.
        folders[:] = sorted(name for name in folders if name not in ("build", "__pycache__"))
        for name in sorted(names):
            path = Path(folder, name)
            if path.suffix in suffixes and not name.startswith(".") and path.is_file():
                found.append((str(path.relative_to(root)), of_bytes(path.read_bytes())))
    return fingerprint(found)
