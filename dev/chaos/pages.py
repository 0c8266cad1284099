"""Compares two reports byte by byte.

Nothing is excluded. Random names are first replaced by the same names on both sides: MLflow's id of each run, and the
address of the server. `report.json` has fingerprints of the files that contain them; these are recomputed after the
replacement.
"""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path

from cppo_lab.reports.saved import MARKER, RECORD

WITH_NAMES = frozenset({".html", ".csv"})


def read_report(folder: Path, ids: Mapping[str, str], address: str) -> dict[str, bytes]:
    """The files of a report by name; `ids`: MLflow's id -> the run's.

    The marker file, by which `cppo report` recognises its folder, is not part of the report.
    """
    files = {path.name: path.read_bytes() for path in sorted(folder.iterdir()) if path.name != MARKER}
    named = {
        name: _named(data, ids, address) if Path(name).suffix in WITH_NAMES else data
        for name, data in files.items()
    }
    record = json.loads(files[RECORD])["files"]
    for name, digest in record.items():
        new = digest.replace(*(hashlib.sha256(side[name]).hexdigest() for side in (files, named)))
        named[RECORD] = named[RECORD].replace(digest.encode(), new.encode())
    return named


def _named(data: bytes, ids: Mapping[str, str], address: str) -> bytes:
    for mlflow_id, run_id in ids.items():
        data = data.replace(mlflow_id.encode(), f"mlflow-{run_id}".encode())
    return data.replace(address.encode(), b"http://store")


def differences(control: Mapping[str, bytes], disturbed: Mapping[str, bytes]) -> list[str]:
    """A description of each file that differs."""
    found = [f"the report lacks {name}" for name in sorted(control.keys() - disturbed.keys())]
    found += [f"the report has {name} besides" for name in sorted(disturbed.keys() - control.keys())]
    for name in sorted(control.keys() & disturbed.keys()):
        ours, theirs = control[name], disturbed[name]
        if ours != theirs:
            at = next(
                (i for i, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b),
                min(len(ours), len(theirs)),
            )
            found.append(
                f"{name} differs from byte {at} on: {ours[at : at + 40]!r}, not {theirs[at : at + 40]!r}"
            )
    return found
