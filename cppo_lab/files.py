"""The folder of all runs, files in folders that others can write to, and secrets in texts. Needs only the standard
library.

Files are opened and replaced if they are plain ones: a pipe would block its reader for ever, a device has no end, and a
link redirects what is written to another file. All writes to a run's folder go through this module.
"""

import codecs
import contextlib
import errno
import fcntl
import io
import json
import os
import re
import secrets
import shutil
import stat
import sys
import traceback
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO, TextIO

from cppo_lab.errors import UserError

# Errors of a path that leads to no file: it does not exist, has a file as a folder, circular links, or is a socket.
NOWHERE = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENXIO})

# Errors of a write that has no room: a full disk, a used-up quota, a limit on the size of a file (`ulimit -f`).
NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


@contextlib.contextmanager
def ignoring(numbers: Collection[int]) -> Iterator[None]:
    """Ignore an OSError with any of these numbers, such as NOWHERE or NO_ROOM."""
    try:
        yield
    except OSError as error:
        if error.errno not in numbers:
            raise


def open_plain(path: Path) -> BinaryIO | None:
    """The file at `path`, opened for reading; None if there is none, or something that is not a plain file.

    Raises OSError if it cannot be read.
    """
    with ignoring(NOWHERE), contextlib.suppress(UserError):
        return os.fdopen(_open(path, os.O_RDONLY), "rb")
    return None


def read_plain(path: Path, largest: int) -> bytes | None:
    """The content of the file; None where `open_plain` gives None, and if it has more than `largest` bytes.

    Raises OSError if it cannot be read.
    """
    file = open_plain(path)
    if file is None:
        return None
    with file:
        content = file.read(largest + 1)
    return content if len(content) <= largest else None


def read_object(path: Path, largest: int) -> dict[str, Any]:
    """The JSON object in the file; empty if it holds none, or where `read_plain` gives None. Raises OSError if it
    cannot be read.
    """
    try:
        values = json.loads(read_plain(path, largest) or b"")
    except (ValueError, RecursionError):
        return {}
    return values if isinstance(values, dict) else {}


def has_database(path: Path) -> bool:
    """Whether there is a SQLite file with tables. One whose maker was killed is empty (or, for SQLite, a byte), and who
    opens it would make them.
    """
    return path.is_file() and path.stat().st_size > 1


def open_below(folder: Path, *names: str) -> BinaryIO | None:
    """The plain file at the path `names` below `folder`; None if there is none.

    Raises UserError if the file or a folder of the path is a link, or the file is not plain; OSError if it cannot
    be read.
    """
    path = _below(folder, names)
    with ignoring(NOWHERE):
        return os.fdopen(_open(path, os.O_RDONLY | os.O_NOFOLLOW), "rb")
    return None


def names_below(folder: Path, *names: str) -> list[str]:
    """The sorted contents of the folder at the path `names` below `folder`; empty if there is none.

    Raises as `open_below` does.
    """
    path = _below(folder, names)
    with ignoring(NOWHERE):
        return sorted(os.listdir(path))  # noqa: PTH208  names, not paths
    return []


def open_lock(path: Path) -> TextIO:
    """The file at `path`, opened for locking, reading and writing, and created if missing; its content stays.

    Raises UserError if `path` is not a plain file, OSError if it cannot be opened.
    """
    return os.fdopen(_open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW), "r+", encoding="utf-8")


def open_append(path: Path) -> TextIO:
    """The file at `path`, created if missing and opened for appending. Raises as `open_lock` does."""
    return os.fdopen(
        _open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW), "a", encoding="utf-8"
    )


def _open(path: Path, flags: int) -> int:
    """A descriptor of the plain file at `path`, which no pipe can make wait."""
    try:
        descriptor = os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC, 0o666)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENXIO):  # a link; a socket, or a pipe without a reader
            raise _not_plain(path) from None
        raise
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise _not_plain(path)
    return descriptor


def _below(folder: Path, names: Sequence[str]) -> Path:
    """The path `names` below `folder`. Raises UserError if it leads through a link."""
    for name in names:
        if name in ("", ".", "..") or "/" in name:
            raise ValueError(f"{names}: must be names within a folder")
        folder = folder / name
        if folder.is_symlink():
            raise _not_plain(folder)
    return folder


def _not_plain(path: Path) -> UserError:
    return UserError(f"{path} is a link or not a plain file, and was not made by this program: remove it")


@contextlib.contextmanager
def replacing(path: Path, synced: bool = False) -> Iterator[BinaryIO]:
    """A file that atomically replaces `path` at the end of the block; if writing fails, the old file stays. `synced`:
    it is then on disk.

    The caller makes sure that nobody else replaces the same file meanwhile. The new file is written as `NAME.partial`;
    a kill may leave that behind, and the next call removes it.
    """
    partial = path.with_name(f"{path.name}.partial")
    partial.unlink(missing_ok=True)  # removes a link, not its target
    descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    try:
        with os.fdopen(descriptor, "wb") as file:
            yield file
            if synced:
                file.flush()
                os.fsync(file.fileno())
        partial.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)
        raise


def replace_file(path: Path, content: str | bytes | memoryview, synced: bool = False) -> None:
    """Put `content` into `path`, as `replacing` does. Raises OSError if it cannot be written."""
    with replacing(path, synced) as file:
        file.write(content.encode() if isinstance(content, str) else content)


def is_shared(folder: Path) -> bool:
    """Whether a group shares `folder`: it is group-writable, and new files of this process get its group."""
    try:
        status = folder.stat()
    except OSError:
        return False
    inherited = bool(status.st_mode & stat.S_ISGID) or status.st_gid == os.getegid()
    return inherited and bool(status.st_mode & stat.S_IWGRP)


RUNS = Path("runs")  # below the working folder, beside mlflow.db
ANYBODY = "CPPO_RUNS_OF_ANYBODY"  # set to 1 to accept the risk described in docs/security.md


def runs_folder() -> Path:
    """The absolute path of the folder of all runs.

    Raises UserError for a circular link.
    """
    try:
        return RUNS.resolve()
    except (OSError, RuntimeError):  # RuntimeError: raised by pathlib for a loop before Python 3.13
        raise UserError(
            f"{RUNS.absolute()} is a circular link: remove it, or work in another folder"
        ) from None


def require_folder(runs: Path) -> None:
    """Raises UserError if runs cannot have their folders in `runs`, or if every user may write there."""
    if runs.exists() and not runs.is_dir():
        raise UserError(
            f"{runs} is a file, but runs keep their folders there: move it away, or work in another folder"
        )
    place = runs if runs.exists() else runs.parent
    if os.environ.get(ANYBODY) == "1" or not _for_everybody(place):
        return
    raise UserError(
        f"{place} is writable for every user of this machine, and whoever writes there can have jobs run their code as "
        f"you (docs/security.md): chmod o-w {place}, or set {ANYBODY}=1 if all of them may"
    )


def share_with_group() -> None:
    """If a group shares the folder of runs, make all files that this process and its children create group-writable.

    Sets the umask, since MLflow, Optuna, submitit and Ray create files there, too.
    """
    try:
        runs = runs_folder()
    except UserError:  # reported by the commands that need the folder
        return
    if is_shared(runs if runs.exists() else runs.parent):
        os.umask(os.umask(0o077) & ~0o070)


def _for_everybody(folder: Path) -> bool:
    """Whether users who are neither the owner nor in the group may add or replace files in it.

    In a sticky folder such as /tmp they can only add files, so it may contain the folder of all runs, but not be that
    folder.
    """
    try:
        mode = folder.stat().st_mode
    except OSError:  # reported when the folder is created
        return False
    return bool(mode & stat.S_IWOTH) and not (mode & stat.S_ISVTX and folder.name != RUNS.name)


# A password may contain any character but these. A truncated text may lack the `@`; digits alone at its end are then a
# port. A user name without a password, as in https://TOKEN@host, may be a token.
_WITH_PASSWORD = re.compile(r"""(://[^\s/:@"'<>]*:)(?:[^\s"'<>]*(@)|(?!\d+(?:/|\Z))[^\s"'<>]*\Z)""")
_ALONE = re.compile(r"""(://)[^\s/:@"'<>]+(@)""")
_QUERY = re.compile(
    r"""([?&](?:password|passwd|pwd|secret|token|access_token|api_?key|signature|sig|x-amz-[\w-]+)=)[^&\s"'<>]+""",
    re.I,
)
# Endings of the names of settings whose value is a secret: HF_TOKEN=..., --api-key ..., "password": "...".
_SECRET = (
    r"(?i:password|passwd|passphrase|secret|secret[_-]?key|api[_-]?key|access[_-]?key(?:[_-]?id)?|private[_-]?key"
    r"|credentials?)"
)
_VALUE = r"""("[^"\n]*"|'[^'\n]*'|[^\s"',;&<>*][^\s"',;&<>]*)"""
# A name is matched up to 60 characters, so that no text makes this slow. /etc/passwd is a path, not a setting.
_NAMED = re.compile(
    rf"""((?<!/)(?:\b[\w-]{{0,60}}?{_SECRET}|\b[A-Z0-9_]{{0,60}}TOKEN)["']?\s{{0,9}}[=:]\s{{0,9}}){_VALUE}"""
)
_OPTION = re.compile(rf"(--(?:[\w-]{{0,60}}-)?(?:{_SECRET}|token)(?:=|[ \t]{{1,9}})){_VALUE}")
_BEARER = re.compile(r"(\bBearer[ \t]+|\bAuthorization:[ \t]*\w+[ \t]+)[A-Za-z0-9._~+/=-]{8,}", re.I)
# Prefixes of the tokens of Hugging Face, GitHub, GitLab, Slack, OpenAI and AWS.
_KNOWN = re.compile(
    r"\b(hf_(?=[A-Za-z0-9]{30})|(?:gh[pousr]_|github_pat_|glpat-|xox[abprs]-|sk-|AKIA|ASIA)(?=[A-Za-z_-]{0,60}[0-9]))"
    r"[A-Za-z0-9_-]{12,}"
)
# A webhook's address is a secret as a whole; those of Slack, Discord and Teams are known by their hosts.
_HOOK = re.compile(
    r"""((?:\bnotify\.url|\bCPPO_NOTIFY_URL)["']?[ \t]{0,9}[=:][ \t]{0,9}["']{0,2}|https://hooks\.slack\.com/|/api/webhooks/|"""
    r"""\.webhook\.office\.com/)[^\s"'<>]+""",
    re.I,
)
MASK = "***"


def redacted(text: str) -> str:
    """A URI, or any text, with secrets masked: in URIs, settings, options and headers, and tokens of known services.

    `://user:***@host`, `://***@host`, `?password=***`, `HF_TOKEN=***`, `--api-key ***`, `Bearer ***`, `hf_***`.
    """
    hidden = _ALONE.sub(_masked, _WITH_PASSWORD.sub(_masked, text))
    for pattern in (_NAMED, _OPTION):
        hidden = pattern.sub(_masked_value, hidden)
    for pattern in (_HOOK, _QUERY, _BEARER, _KNOWN):
        hidden = pattern.sub(_masked, hidden)
    return hidden


def _masked(match: "re.Match[str]") -> str:
    """What stands around a secret. Not a template, for which `re` imports itself: a stream that Python flushes when its
    modules are gone would wait for ever for the import lock, if a thread that has been ended held it.
    """
    before, *after = match.groups("")
    return "".join((before, MASK, *after))


def _masked_value(setting: "re.Match[str]") -> str:
    """The name of a setting and its masked value. Quotes stay, since the text may be JSON."""
    quote = setting[2][0] if setting[2][0] in "\"'" else ""
    return f"{setting[1]}{quote}{MASK}{quote}"


class RedactedLines:
    """Masks text that arrives in chunks, line by line, since a chunk may end in the middle of a password.

    Line endings stay as they are; a line of more than `_LONGEST` characters is masked in parts.
    """

    _LONGEST = 1 << 16

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._open = ""  # the unfinished line

    def add(self, piece: bytes | str) -> str:
        """Add a chunk; returns the lines that are now complete, masked."""
        text = self._open + (piece if isinstance(piece, str) else self._decoder.decode(piece))
        end = max(text.rfind("\n"), text.rfind("\r")) + 1
        if not end and len(text) > self._LONGEST:
            end = len(text)
        self._open = text[end:]
        return redacted(text[:end])

    def rest(self) -> str:
        """The last, unfinished line, masked."""
        text, self._open = self._open + self._decoder.decode(b"", final=True), ""
        return redacted(text)


class _RedactingStream(io.TextIOBase):
    """A text stream that forwards masked text to another: complete lines, and at a flush what is left.

    Output that a full disk cannot take is lost: no run fails because it could not print.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream, self._lines = stream, RedactedLines()

    def write(self, text: str) -> int:
        if written := self._lines.add(text):
            with ignoring(NO_ROOM):
                self._stream.write(written)
        return len(text)

    def flush(self) -> None:
        # `print(..., end="", flush=True)` must be shown at once, and rarely ends within a word.
        with ignoring(NO_ROOM):
            self._stream.write(self._lines.rest())
            self._stream.flush()

    def fileno(self) -> int:
        return self._stream.fileno()

    def isatty(self) -> bool:
        return self._stream.isatty()

    def writable(self) -> bool:
        return True

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return self._stream.encoding


def mask_output() -> None:
    """From now on, mask everything that Python prints in this process. The output of C code is not masked."""
    if not isinstance(sys.stdout, _RedactingStream):
        sys.stdout, sys.stderr = _RedactingStream(sys.stdout), _RedactingStream(sys.stderr)


def print_to(path: Path) -> None:
    """Redirect the output of this process and its children to the end of a file; secrets in Python's are masked."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with open_append(path) as log:
        for stream in (sys.stdout, sys.stderr):
            os.dup2(log.fileno(), stream.fileno())
    mask_output()


@contextlib.contextmanager
def masked_errors() -> Iterator[None]:
    """Replace an error whose text or traceback contains a secret by an error with the masked text.

    Launchers write the error that ends a job to files.
    """
    try:
        yield
    except Exception as error:
        text = traceback.format_exc()
        if (masked := redacted(text)) == text:
            raise
        raise RuntimeError(f"{type(error).__name__}, with this masked:\n{masked}") from None


# A folder that appears as a whole or not at all: it is written next to its place and renamed. The next export to
# the same place removes the leftovers of a killed export.


def require_free(out: Path) -> Path:
    """The resolved path of `out`. Raises UserError if it exists, unless it is an empty folder."""
    try:
        place = out.resolve()
    except (OSError, RuntimeError):  # RuntimeError: raised by pathlib for circular links before Python 3.13
        raise UserError(f"--out {out} is a circular link: name another folder") from None
    if place.exists() and not place.is_dir():
        raise UserError(f"--out {out} is a file: name a folder")
    if place.is_dir() and any(place.iterdir()):
        raise UserError(f"--out {out} exists and is not empty: name another folder, or remove it yourself")
    return place


@contextlib.contextmanager
def appearing(place: Path, replace: bool = False) -> Iterator[Path]:
    """An empty folder that is renamed to `place` (from `require_free`) at the end; if writing fails, or the caller has
    removed it, nothing appears.

    `replace`: it replaces the existing folder; if writing fails, the old folder stays.
    Raises UserError if somebody else has put something there meanwhile.
    """
    place.parent.mkdir(parents=True, exist_ok=True)
    ours = re.compile(rf"\.{re.escape(place.name)}\.export-[0-9a-f]{{8}}")
    for path in place.parent.iterdir():
        if ours.fullmatch(path.name):  # of a killed export: a live one holds a lock
            remove_unlocked(path)
    folder = place.with_name(f".{place.name}.export-{secrets.token_hex(4)}")
    folder.mkdir()
    lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with contextlib.suppress(OSError):  # a file system without locks: then leftovers are not removed
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield folder
        if not folder.exists():
            return
        for path in folder.rglob("*"):  # transformers makes its weights private, whatever the umask
            if path.is_file():
                path.chmod(os.fstat(lock).st_mode & 0o666)
        old = place.with_name(f".{place.name}.export-{secrets.token_hex(4)}")
        if replace and place.exists():
            place.rename(old)
        try:
            folder.rename(place)
        except OSError as error:
            with contextlib.suppress(OSError):  # if somebody else has put something there
                old.rename(place)
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
                raise
            raise UserError(f"--out {place}: another process has written there in the meantime") from None
        shutil.rmtree(old, ignore_errors=True)
    except OSError as error:
        if error.errno in NO_ROOM and error.filename is None:  # a write names no file
            error.filename = str(place)
        raise
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)


def remove_unlocked(folder: Path) -> None:
    """Remove a folder, unless it is a link or a process holds its lock."""
    with contextlib.suppress(OSError):
        lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder, ignore_errors=True)
        finally:
            os.close(lock)
