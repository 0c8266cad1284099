"""Whether a report requested again could differ, without planning it or opening the store.

After a report, its folder notes all that led to it: what was asked, our code and files, and the state of the database
file. As long as these are the same, so is the report. Stores that are no SQLite file have no such state.
"""

import argparse
import os
from dataclasses import replace
from pathlib import Path

from cppo_lab.files import open_plain, redacted
from cppo_lab.reports.fingerprint import fingerprint, of_bytes, package
from cppo_lab.reports.folder import Marker, is_whole, read_marker, write_marker
from cppo_lab.tracking import address

_NOT_ASKED = (
    *("command", "force", "out", "watch", "every"),
    *("name", "json", "answer", "answered", "answer_now"),
)  # what changes no file of the report
_HEADER = 100  # bytes at the beginning of a SQLite file; they count its changes

State = tuple[str | int, ...]


def unchanged(said: str, out: Path) -> bool:
    """Whether the folder has the report that is asked for; `said` is what `asked` gives."""
    marker = read_marker(out)
    if marker is None or not marker.store or marker.asked != said:
        return False
    return database_state(Path(str(marker.store[0]))) == marker.store and is_whole(out, marker)


def note(said: str, out: Path, state: State, inputs: str) -> None:
    """Note in the folder what led to its report, if that was made of these `inputs`. `state` is that of the database
    before it was known that these are still the inputs; `said` is what `asked` gave before anything was planned,
    since files may have changed meanwhile.
    """
    marker: Marker | None = read_marker(out)
    if marker is not None and marker.inputs == inputs and state:
        write_marker(out, replace(marker, asked=said, store=state))


def asked(options: argparse.Namespace) -> str:
    """Changes with the command line and with all files that say what it means."""
    said = {name: value for name, value in vars(options).items() if name not in _NOT_ASKED}
    environment = redacted(os.environ.get(address.VARIABLE, ""))
    code = package((".py", ".yaml", ".j2", ".css", ".js", ".csv", ".json"))
    return fingerprint((said, str(Path.cwd()), environment, _declared(options.sweep), code))


def _declared(name: str) -> list[tuple[str, str]]:
    """The file of a sweep that is named by a path, and those of a study's sweeps, each with its content."""
    from cppo_lab.sweep.file import Study, is_path, load_sweep

    if not is_path(name):
        return []
    found = load_sweep(name)
    parts = found.sweeps if isinstance(found, Study) else ()
    files = [Path(name), *(Path(part) for part in parts if is_path(part))]
    return [(str(file), of_bytes(file.read_bytes()) if file.is_file() else "") for file in files]


def database_state(database: Path) -> State:
    """Changes with every write to a SQLite database; empty if there is no such file."""
    found: list[str | int] = [str(database)]
    try:
        file = open_plain(database)
        if file is None:
            return ()
        with file:
            found.append(file.read(_HEADER).hex())
        for path in (database, database.with_name(f"{database.name}-wal")):
            if path.exists():
                seen = path.stat()
                found += [path.name, seen.st_ino, seen.st_size, seen.st_mtime_ns]
    except (OSError, ValueError):  # ValueError: a zero byte, in a marker that is not ours
        return ()
    return tuple(found)
