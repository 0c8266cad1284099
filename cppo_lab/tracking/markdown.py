"""Markdown as MLflow's page renders it, with untrusted text in it."""

import re
from collections.abc import Iterable, Sequence

# Escaped as entities: MLflow's converter does not honour every backslash, and entities start no address or markup.
_SPECIAL = re.compile(r"[&<>\\`*_\[\]#~|:!@]|(?<=www)\.")


_GAP = " &emsp;| "


def escaped(text: str) -> str:
    """`text` on one line, shown literally: no markup, HTML or address in it takes effect."""
    one_line = " ".join(text.split())
    return _SPECIAL.sub(lambda found: f"&#{ord(found.group())};", one_line)


def code(text: str) -> str:
    """`text` as a piece of code, on one line. A backtick would end it, and a bar would end a table's cell."""
    one_line = " ".join(text.split())
    return escaped(one_line) if set(one_line) & {"`", "|"} or not one_line else f"`{one_line}`"


def link(text: str, address: str) -> str:
    """A link; `text` is escaped, the `address` is one of ours."""
    return f"[{escaped(text)}]({address})"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table of cells that are Markdown already."""
    # MLflow's page sets the columns of a table side by side without a gap.
    lines = [_GAP.join(head), " | ".join(["---"] * len(head)), *(_GAP.join(row) for row in rows)]
    return "\n".join(f"| {line} |" for line in lines)
