"""Reading a vectors file: an .npz of arrays `<case>/<part>/<name>` and a JSON string `manifest`.

The layout is that of `tests/oracles/vectors.npz`: hyper-parameters and key lists per case are in the manifest,
shapes are [B, T] right-padded with 0, `<case>/in/valid` says which tokens count.
"""

import json
import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy
import torch
from torch import Tensor

from cppo_lab.errors import UserError

# What numpy and zipfile raise on files that are cut short, damaged, encrypted, or hold pickled objects.
UNREADABLE = (OSError, EOFError, ValueError, RuntimeError, MemoryError, zipfile.BadZipFile, zlib.error)
NOT_VECTORS = "pass a vectors file, an .npz of arrays CASE/PART/NAME with a manifest"


@dataclass(frozen=True)
class Vectors:
    """The arrays of a file by key, without the manifest, and the manifest."""

    arrays: dict[str, numpy.ndarray]
    manifest: dict[str, Any]

    @property
    def cases(self) -> dict[str, dict[str, Any]]:
        cases: dict[str, dict[str, Any]] = self.manifest["cases"]  # `load` has checked it
        return cases

    def tensor(self, key: str, dtype: torch.dtype | None = None) -> Tensor:
        """A copy of one array; `dtype` None keeps the stored one.

        Raises:
            LookupError: the file has no such array.
        """
        if key not in self.arrays:
            raise LookupError(f"the file has no array {key!r}")
        tensor = torch.from_numpy(self.arrays[key].copy())
        return tensor if dtype is None else tensor.to(dtype)

    def valid(self, case: str) -> Tensor:
        """[B, T] bool: which tokens of a case count."""
        return self.tensor(f"{case}/in/valid").bool()

    def constant(self, case: str, name: str) -> Any:
        """A hyper-parameter of a case.

        Raises:
            LookupError: the manifest does not give it.
        """
        constants = self.cases[case]["hp"]
        if name not in constants:
            raise LookupError(f"the manifest gives no {name!r} for case {case!r}")
        return constants[name]


def load(path: Path) -> Vectors:
    """Read a vectors file; nothing in it is unpickled.

    Raises:
        UserError: missing, no .npz, damaged, with pickled objects, or without a usable manifest.
    """
    if not path.is_file():
        raise UserError(f"vectors file {path} does not exist or is not a file: {NOT_VECTORS}")
    if not zipfile.is_zipfile(path):
        raise UserError(f"{path} is not an .npz archive, or cut short: {NOT_VECTORS}")
    try:
        with numpy.load(path, allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in archive.files}
    except UNREADABLE as error:
        raise UserError(f"{path} cannot be read ({_first_line(error)}): {NOT_VECTORS}") from error
    for name, array in arrays.items():
        if not isinstance(array, numpy.ndarray):
            raise UserError(f"{path} holds {name!r}, which is not an array: {NOT_VECTORS}")
    manifest = arrays.pop("manifest", None)
    if manifest is None:
        raise UserError(f"{path} has no array 'manifest': {NOT_VECTORS}")
    try:
        return Vectors(arrays, _checked(json.loads(str(manifest))))
    except ValueError as error:
        raise UserError(
            f"the manifest of {path} is not usable ({_first_line(error)}): {NOT_VECTORS}"
        ) from error


def _checked(manifest: Any) -> dict[str, Any]:
    """The manifest, if it has the entries without which nothing can be computed."""
    if not isinstance(manifest, dict):
        raise ValueError("a JSON object was expected")
    if not isinstance(manifest.get("cases"), dict):
        raise ValueError("'cases' is missing")
    for name, case in manifest["cases"].items():
        if not isinstance(case, dict) or not isinstance(case.get("hp"), dict):
            raise ValueError(f"case {name!r} has no 'hp'")
    for where, entries in [
        (manifest, ("modes", "theory_columns")),
        *((case, ("methods", "objectives")) for case in manifest["cases"].values()),
    ]:
        for entry in entries:
            names = where.get(entry, [])
            if not (isinstance(names, list) and all(isinstance(name, str) for name in names)):
                raise ValueError(f"{entry!r} must be a list of names")
    return manifest


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [""])[0] or type(error).__name__
