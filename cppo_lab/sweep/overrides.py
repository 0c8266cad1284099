"""Values of sweep files in Hydra's override grammar."""

import re
from functools import lru_cache

from cppo_lab.errors import UserError
from cppo_lab.sweep.declared import Scalar

# Words that Hydra's grammar parses as text in any context.
WORD = re.compile(r"(?!(?:true|false|null|inf|nan)$)[a-z_][a-z0-9_]*", re.IGNORECASE | re.ASCII)


def override(key: str, value: Scalar) -> str:
    """A key of a sweep file and its value as an override."""
    return _override(key, value, type(value).__name__)


@lru_cache(maxsize=100_000)
def _override(key: str, value: Scalar, kind: str) -> str:
    """`kind` distinguishes values that Python's cache would treat as equal: 1, 1.0 and True."""
    return f"{key}={quote(value)}"


def quote(value: Scalar) -> str:
    """A value in Hydra's override grammar; text stays text, whatever it looks like.

    Raises UserError for text with a reference.
    """
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)
    if WORD.fullmatch(value):
        return value
    if "${" in value:
        raise UserError(f"value {value!r}: a sweep file holds plain values; ${{...}} belongs into conf/")
    # In Hydra's grammar backslashes are special only directly before a quote.
    escaped = re.sub(r"(\\*)('|$)", lambda m: m[1] * 2 + ("\\'" if m[2] else ""), value)
    return f"'{escaped}'"
