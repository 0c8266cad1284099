"""The output of the attempts at a run, truncated and with secrets masked, for storing with the run."""

import contextlib
import os
import re
import stat
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from cppo_lab.redaction import redacted

ATTEMPTS = "attempts"  # in a run's folder: the output files of jobs of launchers on this machine
ARTIFACTS = "output"  # where it goes among a run's artifacts
MOST_BYTES = 1_000_000
_SPACE = re.compile(rb"\s")


class Printed(NamedTuple):
    """A file that a process prints to, and the offset at which that process began; earlier bytes are from others."""

    path: str
    start: int


def own_output() -> list[Printed]:
    """The regular files behind this process's standard output and standard error, as they are now.

    Terminals, pipes and removed files are left out. This finds Slurm's output files, whatever their names are.
    """
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError, AttributeError):  # closed, or there is none
            stream.flush()
    found: dict[str, int] = {}
    for number in (1, 2):
        with contextlib.suppress(OSError):
            is_open = os.fstat(number)
            path = Path(f"/proc/self/fd/{number}").readlink()
            if stat.S_ISREG(is_open.st_mode) and os.path.samestat(is_open, path.lstat()):
                found.setdefault(str(path), is_open.st_size)
    return [Printed(path, start) for path, start in found.items()]


def captured_output(
    folder: Path, also: Iterable[Printed] = (), most_bytes: int = MOST_BYTES
) -> list[tuple[str, bytes]]:
    """The output as (path of the artifact, content): about `most_bytes` in all at most.

    The files of launchers in the run's `folder`, oldest first, then those of `also` (`own_output` of each attempt)
    that are not among them. Long output is cut to its head and tail, with a line on how much was omitted.
    """
    spans = _spans(folder, also)
    shares = _shares([end - start for _, start, end in spans], most_bytes)
    found: dict[str, bytes] = {}
    for (path, start, end), most in zip(spans, shares, strict=True):
        with contextlib.suppress(OSError):  # gone meanwhile
            name = f"{ARTIFACTS}/{path.name}.txt"  # MLflow's page shows files of that ending
            if name in found:
                name = f"{ARTIFACTS}/{len(found)}_{path.name}.txt"
            found[name] = _content(path, start, end, most)
    return list(found.items())


def _spans(folder: Path, also: Iterable[Printed]) -> list[tuple[Path, int, int]]:
    """Non-empty files, each once, with the first and last byte offset of this run's output."""
    own = [
        Printed(str(path), 0) for kind in ("out", "err") for path in (folder / ATTEMPTS).glob(f"*_log.{kind}")
    ]
    first: dict[Path, tuple[int, int, float]] = {}
    for path, start in (*own, *also):
        with contextlib.suppress(OSError):
            place = Path(path).parent.resolve() / Path(path).name
            is_there = place.lstat()  # a link could lead anywhere
            if stat.S_ISREG(is_there.st_mode):
                earlier = first.get(place, (start,))[0]
                first[place] = (min(start, earlier), is_there.st_size, is_there.st_mtime)
    ordered = sorted(first.items(), key=lambda item: (item[1][2], item[0]))
    return [(path, start, end) for path, (start, end, _) in ordered if end > start]


def _shares(sizes: Sequence[int], most: int) -> list[int]:
    """The number of bytes to keep of each: short ones stay whole, long ones share the rest."""
    shares, room = [0] * len(sizes), most
    by_size = sorted(range(len(sizes)), key=lambda i: sizes[i])
    for left, i in zip(range(len(sizes), 0, -1), by_size, strict=True):
        shares[i] = min(sizes[i], room // left)
        room -= shares[i]
    return shares


def _content(path: Path, start: int, end: int, most: int) -> bytes:
    """The bytes of a file from `start` to `end`, masked; where they are more than `most`, their head and tail."""
    with path.open("rb") as file:
        file.seek(start)
        if end - start <= most:
            return _masked(file.read(end - start))
        head = file.read(most // 2)
        file.seek(end - most // 2)
        tail = file.read(most // 2)
    # Cut at white space: secrets contain none, and half a secret would not be recognised and masked.
    head = head[: max(head.rfind(space) for space in b" \n\r\t") + 1]
    space = _SPACE.search(tail)
    tail = tail[space.end() :] if space else b""
    left_out = end - start - len(head) - len(tail)
    line = f"\n[... {left_out:,} of {end - start:,} bytes are left out here: see {path} ...]\n"
    return _masked(head) + line.encode() + _masked(tail)


def _masked(content: bytes) -> bytes:
    return redacted(content.decode(errors="surrogateescape")).encode(errors="surrogateescape")
