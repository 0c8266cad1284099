"""Masking of secrets: passwords, tokens and keys in everything that is shown or stored."""

import codecs
import contextlib
import errno
import io
import re
import sys
import traceback
from collections.abc import Iterator
from typing import TextIO

# A password may have any character but these. A text may end before its `@`; what it ends in is a port if it is all
# digits. Where a user's name is alone, as in https://TOKEN@host, it may be a token.
_WITH_PASSWORD = re.compile(r"""(://[^\s/:@"'<>]*:)(?:[^\s"'<>]*(@)|(?!\d+(?:/|\Z))[^\s"'<>]*\Z)""")
_ALONE = re.compile(r"""(://)[^\s/:@"'<>]+(@)""")
_QUERY = re.compile(
    r"""([?&](?:password|passwd|pwd|secret|token|access_token|api_?key|signature|sig|x-amz-[\w-]+)=)[^&\s"'<>]+""",
    re.I,
)
# Words that end the name of a setting whose value gives access: HF_TOKEN=..., --api-key ..., "password": "...".
_SECRET = (
    r"(?i:password|passwd|passphrase|secret|secret[_-]?key|api[_-]?key|access[_-]?key(?:[_-]?id)?|private[_-]?key"
    r"|credentials?)"
)
_VALUE = r"""("[^"\n]*"|'[^'\n]*'|[^\s"',;&<>*][^\s"',;&<>]*)"""
# A name is looked at as far as 60 signs: a stranger's text must not make this slow. /etc/passwd is a path.
_NAMED = re.compile(
    rf"""((?<!/)(?:\b[\w-]{{0,60}}?{_SECRET}|\b[A-Z0-9_]{{0,60}}TOKEN)["']?\s{{0,9}}[=:]\s{{0,9}}){_VALUE}"""
)
_OPTION = re.compile(rf"(--(?:[\w-]{{0,60}}-)?(?:{_SECRET}|token)(?:=|[ \t]{{1,9}})){_VALUE}")
_BEARER = re.compile(r"(\bBearer[ \t]+|\bAuthorization:[ \t]*\w+[ \t]+)[A-Za-z0-9._~+/=-]{8,}", re.I)
# What services begin their tokens with: Hugging Face, GitHub, GitLab, Slack, OpenAI, AWS.
_KNOWN = re.compile(
    r"\b(hf_(?=[A-Za-z0-9]{30})|(?:gh[pousr]_|github_pat_|glpat-|xox[abprs]-|sk-|AKIA|ASIA)(?=[A-Za-z_-]{0,60}[0-9]))"
    r"[A-Za-z0-9_-]{12,}"
)
MASK = "***"


def redacted(text: str) -> str:
    """A URI, or any text, with whatever gives access masked: in URIs, settings, options, headers, and known tokens.

    `://user:***@host`, `://***@host`, `?password=***`, `HF_TOKEN=***`, `--api-key ***`, `Bearer ***`, `hf_***`.
    """
    hidden = _ALONE.sub(rf"\1{MASK}\2", _WITH_PASSWORD.sub(rf"\1{MASK}\2", text))
    for pattern in (_NAMED, _OPTION):
        hidden = pattern.sub(_masked_value, hidden)
    for pattern in (_QUERY, _BEARER, _KNOWN):
        hidden = pattern.sub(rf"\1{MASK}", hidden)
    return hidden


def _masked_value(found: "re.Match[str]") -> str:
    """Quotes stay: the text may be JSON."""
    quote = found[2][0] if found[2][0] in "\"'" else ""
    return f"{found[1]}{quote}{MASK}{quote}"


class RedactedLines:
    """Text that comes in pieces of bytes, masked line by line: a piece may end in the middle of a password.

    Ends of lines stay as they are; a line of more than `_LONGEST` signs is masked in parts.
    """

    _LONGEST = 1 << 16
    _END = re.compile(r"[\n\r]")

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._open = ""  # the line that is not whole yet

    def add(self, piece: bytes | str) -> str:
        """The lines that are whole now."""
        text = self._open + (piece if isinstance(piece, str) else self._decoder.decode(piece))
        end = max(text.rfind("\n"), text.rfind("\r")) + 1
        if not end and len(text) > self._LONGEST:
            end = len(text)
        self._open = text[end:]
        return redacted(text[:end])

    def rest(self) -> str:
        """What is left at the end, without its own end of line."""
        text, self._open = self._open + self._decoder.decode(b"", final=True), ""
        return redacted(text)


class _RedactingStream(io.TextIOBase):
    """A text stream that passes masked text on to another one: whole lines, and at a flush the rest.

    What a full disk has no room for is lost: no run fails because it could not print.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream, self._lines = stream, RedactedLines()

    def write(self, text: str) -> int:
        if written := self._lines.add(text):
            with _losing_what_has_no_room():
                self._stream.write(written)
        return len(text)

    def flush(self) -> None:
        # `print(..., end="", flush=True)` wants to be seen, and ends between words.
        with _losing_what_has_no_room():
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


@contextlib.contextmanager
def _losing_what_has_no_room() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise


def mask_output() -> None:
    """From now on, mask everything that Python prints in this process. The output of C code is not masked."""
    if not isinstance(sys.stdout, _RedactingStream):
        sys.stdout, sys.stderr = _RedactingStream(sys.stdout), _RedactingStream(sys.stderr)


@contextlib.contextmanager
def masked_errors() -> Iterator[None]:
    """An error whose text or traceback gives access to something is replaced by one with the same text, masked.

    Launchers write what ends a job into files.
    """
    try:
        yield
    except Exception as error:
        text = traceback.format_exc()
        if (masked := redacted(text)) == text:
            raise
        raise RuntimeError(f"{type(error).__name__}, with this masked:\n{masked}") from None
