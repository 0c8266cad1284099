"""How files get broken: strategies of bytes and of JSON values that are nearly right, and what a test may bear."""

import contextlib
import copy
import io
import json
import os
import signal
import stat
import zipfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import FrameType
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from cppo_lab.errors import UserError
from tests.waiting import CEILING_SECONDS

VARIABLE = "CPPO_FUZZ"  # examples of each test; without it some dozens, always the same
SECONDS = int(CEILING_SECONDS)  # within which one example has an answer
_WANTED = int(os.environ.get(VARIABLE, "0"))

# What JSON and YAML can hold where a number, a name or a list is meant.
SCALARS: list[Any] = [
    None, True, False, 0, -1, 2**31, 2**63, -(2**63) - 1, 10**400, 0.5, -0.0, 1e308, 1e-320, float("nan"),
    float("inf"), float("-inf"), "", " ", "\0", "a\nb", "\x1b[2J", "\ud800", "é" * 50, "x" * 3000, "../../x",
    "/etc/passwd", ".", "null", "1e9", "-5", "${x}", "$(x)", "<script>", "{", "a,b", "a=b", "'\"",
]  # fmt: skip
TREES = st.recursive(
    st.sampled_from(SCALARS),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=6,
)
_GARBAGE = st.sampled_from(
    [
        b"",
        b"\0",
        b"\0" * 64,
        b"\xff\xfe",
        b"\xc3\x28",
        b"\n",
        b"{",
        b"[" * 20_000,
        b"9" * 5000,
        b"null\n",
        b"\x80\x04N.",
    ]
) | st.binary(max_size=40)


def fuzz(quick: int) -> settings:
    """Settings of a fuzzed test: `quick` examples, the same every time, or as many random ones as CPPO_FUZZ says."""
    return settings(
        max_examples=_WANTED or quick,
        derandomize=not _WANTED,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )


_WOUND = st.tuples(st.integers(0, 5), st.integers(0, 10**6), st.integers(0, 200), _GARBAGE)


def damaged(*originals: bytes) -> st.SearchStrategy[bytes]:
    """One of `originals`, cut, flipped, spliced or doubled in up to three places; or bytes of no kind."""
    wounds = st.lists(_WOUND, min_size=1, max_size=3)
    return st.builds(_wounded, st.sampled_from(originals), wounds) | _GARBAGE


def _wounded(data: bytes, wounds: list[tuple[int, int, int, bytes]]) -> bytes:
    for kind, place, length, garbage in wounds:
        place %= len(data) + 1
        part, rest = data[place : place + length], data[place + length :]
        flipped = bytes([part[0] ^ (1 << length % 8)]) + part[1:] if part else b""
        behind = (b"", flipped + rest, garbage + part + rest, garbage + rest, rest, part + part + rest)
        data = data[:place] + behind[kind]
    return data


def altered(tree: Any) -> st.SearchStrategy[Any]:
    """`tree`, a value as JSON has them, with up to three of its inner values replaced, removed or joined by others."""
    places = list(_places(tree))
    change = st.tuples(st.sampled_from(places), st.sampled_from(["set", "set", "drop", "add"]), TREES)
    return st.lists(change, min_size=1, max_size=3).map(lambda changes: _changed(tree, changes))


def _places(tree: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    items = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    yield path
    for key, value in items:
        yield from _places(value, (*path, key))


def _changed(tree: Any, changes: list[tuple[tuple[Any, ...], str, Any]]) -> Any:
    root = [copy.deepcopy(tree)]
    for path, kind, value in changes:
        holder: Any = root
        with contextlib.suppress(LookupError, TypeError):  # an earlier change has taken the place away
            for key in (0, *path)[:-1]:
                holder = holder[key]
            last = (0, *path)[-1]
            if kind == "set":
                holder[last] = value
            elif kind == "drop" and path:
                del holder[last]
            elif isinstance(holder[last], dict):
                holder[last][str(value)[:20]] = value
            elif isinstance(holder[last], list):
                holder[last].append(value)
    return root[0]


def as_json(tree: Any) -> bytes:
    """JSON as Python writes it, NaN, lone surrogates and long integers included."""
    return json.dumps(tree).encode()


def zipped(members: Mapping[str, bytes]) -> bytes:
    """A zip of these files."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return buffer.getvalue()


def members(data: bytes) -> dict[str, bytes]:
    """The files of a zip."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


class Hangs(BaseException):
    """Nothing of ours catches it."""


@contextlib.contextmanager
def within(seconds: int = SECONDS, timer: int = signal.ITIMER_REAL) -> Iterator[None]:
    """Raises Hangs in whoever waits longer: for a pipe that nobody writes to, for a lock, in a loop.

    `timer`: ITIMER_VIRTUAL for this process's own processor time, whatever else the machine does.
    """

    def ring(number: int, frame: FrameType | None) -> None:
        raise Hangs(f"no answer within {seconds} s")

    rings = signal.SIGALRM if timer == signal.ITIMER_REAL else signal.SIGVTALRM
    before = signal.signal(rings, ring)
    signal.setitimer(timer, seconds)
    try:
        yield
    finally:
        signal.setitimer(timer, 0)
        signal.signal(rings, before)


def refused(call: Callable[[], object], *named: str) -> str:
    """Call it; the text of its UserError, empty if it has none. Every other exception is the test's.

    The text is one line that has all of `named` in it.
    """
    with within():
        try:
            call()
        except UserError as error:
            text = str(error)
            assert text.strip()
            assert len(text.splitlines()) == 1, text
            assert all(name in text for name in named), (named, text)
            return text
    return ""


def snapshot(folder: Path) -> dict[str, tuple[int, bytes | str]]:
    """Every entry below a folder by its relative path: its kind, and what it holds."""
    found = {}
    for path in sorted(folder.rglob("*")):
        kind = stat.S_IFMT(path.lstat().st_mode)
        read = {stat.S_IFREG: Path.read_bytes, stat.S_IFLNK: os.readlink}.get(kind)
        found[str(path.relative_to(folder))] = (kind, read(path) if read else b"")
    return found
