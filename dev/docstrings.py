"""Our docstrings, which are plain text with Markdown's backticks, as reStructuredText for Sphinx.

`name: text` lines with indented continuations become a list. Google's sections (Args, Returns, Raises, Columns) are
left to sphinx.ext.napoleon, except that markup characters of reStructuredText are escaped.
"""

import re
from collections.abc import Iterator, Sequence
from typing import Any

SECTIONS = frozenset({"Args:", "Returns:", "Raises:", "Columns:"})
_LITERAL = re.compile(r"`([^`]+)`")
_ENTRY = re.compile(r"\S[^:]{0,60}: ")
_MARKUP = re.compile(r"[*|]|_(?!\w)")


def as_restructured_text(lines: Sequence[str]) -> list[str]:
    """The lines of a docstring, escaped, with lists of entries as reStructuredText lists."""
    text = _escaped("\n".join(lines))
    found: list[str] = []
    for paragraph in re.split(r"\n{2,}", text):
        found += [*_block(paragraph.split("\n")), ""]
    return found


def _escaped(text: str) -> str:
    """Turn backticks into literals and escape all other markup."""
    parts = _LITERAL.split(text)
    parts[::2] = [_MARKUP.sub(r"\\\g<0>", plain) for plain in parts[::2]]
    parts[1::2] = [f"``{' '.join(literal.split())}``" for literal in parts[1::2]]
    return "".join(parts)


def _block(lines: list[str]) -> Iterator[str]:
    """One paragraph: as it is, or as a list if it has entries with names."""
    entries = sum(bool(_ENTRY.match(line)) for line in lines)
    continued = any(line.startswith("    ") for line in lines[1:])
    if lines[0] in SECTIONS or lines[0].startswith(" ") or not (continued or entries > 1):
        yield from lines
        return
    for line in lines:
        yield f"  {line.strip()}" if line.startswith(" ") or not _ENTRY.match(line) else f"* {line}"


def process(app: Any, kind: str, name: str, about: Any, options: Any, lines: list[str]) -> None:
    """Handler of Sphinx's event `autodoc-process-docstring`."""
    lines[:] = as_restructured_text(lines)


def setup(app: Any) -> dict[str, bool]:
    """Entry point of the Sphinx extension; it runs before napoleon, whose priority is 500."""
    app.connect("autodoc-process-docstring", process, priority=400)
    return {"parallel_read_safe": True}
