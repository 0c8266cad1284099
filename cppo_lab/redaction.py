"""Masking of secrets: passwords, tokens and keys in everything that is shown or stored."""

import codecs
import contextlib
import io
import re
import sys
import traceback
from collections.abc import Iterator
from typing import TextIO

from cppo_lab.safe_open import NO_ROOM

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
MASK = "***"


def redacted(text: str) -> str:
    """A URI, or any text, with secrets masked: in URIs, settings, options and headers, and tokens of known services.

    `://user:***@host`, `://***@host`, `?password=***`, `HF_TOKEN=***`, `--api-key ***`, `Bearer ***`, `hf_***`.
    """
    hidden = _ALONE.sub(rf"\1{MASK}\2", _WITH_PASSWORD.sub(rf"\1{MASK}\2", text))
    for pattern in (_NAMED, _OPTION):
        hidden = pattern.sub(_masked_value, hidden)
    for pattern in (_QUERY, _BEARER, _KNOWN):
        hidden = pattern.sub(rf"\1{MASK}", hidden)
    return hidden


def _masked_value(found: "re.Match[str]") -> str:
    """The name of a setting and its masked value. Quotes stay, since the text may be JSON."""
    quote = found[2][0] if found[2][0] in "\"'" else ""
    return f"{found[1]}{quote}{MASK}{quote}"


class RedactedLines:
    """Masks text that arrives in chunks, line by line, since a chunk may end in the middle of a password.

    Line endings stay as they are; a line of more than `_LONGEST` characters is masked in parts.
    """

    _LONGEST = 1 << 16
    _END = re.compile(r"[\n\r]")

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
    """A text stream that forwards masked text to another one: complete lines, and at a flush the rest.

    Output that a full disk cannot take is lost: no run fails because it could not print.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream, self._lines = stream, RedactedLines()

    def write(self, text: str) -> int:
        if written := self._lines.add(text):
            with _ignoring_full_disk():
                self._stream.write(written)
        return len(text)

    def flush(self) -> None:
        # `print(..., end="", flush=True)` must be shown at once, and rarely ends within a word.
        with _ignoring_full_disk():
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
def _ignoring_full_disk() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno not in NO_ROOM:
            raise


def mask_output() -> None:
    """From now on, mask everything that Python prints in this process. The output of C code is not masked."""
    if not isinstance(sys.stdout, _RedactingStream):
        sys.stdout, sys.stderr = _RedactingStream(sys.stdout), _RedactingStream(sys.stderr)


@contextlib.contextmanager
def masked_errors() -> Iterator[None]:
    """Replace an error whose text or traceback contains a secret by one with the masked text.

    Launchers write the error that ends a job to files.
    """
    try:
        yield
    except Exception as error:
        text = traceback.format_exc()
        if (masked := redacted(text)) == text:
            raise
        raise RuntimeError(f"{type(error).__name__}, with this masked:\n{masked}") from None
