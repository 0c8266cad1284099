"""Sweep files as plain values: read within bounds, every key once, nothing but text, numbers, lists and mappings."""

import re
import stat
from collections import Counter
from pathlib import Path
from typing import Any

import yaml

from cppo_lab.errors import UserError

MAX_BYTES = 1_000_000
MAX_VALUES = 100_000  # aliases of aliases would make any number
PLAIN = "only text, numbers, true, false, lists and mappings are values"


class _Loader(yaml.SafeLoader):
    """Safe YAML in which 1e-6 is a number, as in YAML 1.2 and in Hydra; PyYAML wants 1.0e-6."""


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"[-+]?[0-9]+[eE][-+]?[0-9]+"), list("-+0123456789")
)


def read_text(path: Path, source: str) -> str:
    """The text of a sweep file; `source` is its name in messages.

    Raises UserError for anything but a readable file of reasonable size, FileNotFoundError where there is none.
    """
    try:
        mode = path.stat().st_mode
        if stat.S_ISDIR(mode):
            raise UserError(f"sweep file {source} is a folder: name a file in it")
        if not stat.S_ISREG(mode):
            raise UserError(f"sweep file {source} is no regular file: copy its text into one")
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except FileNotFoundError:
        raise
    except (OSError, ValueError) as error:
        reason = (error.strerror if isinstance(error, OSError) else None) or str(error)
        raise UserError(f"sweep file {source} cannot be read: {reason}: name a file that can") from None
    if len(data) > MAX_BYTES:
        raise UserError(f"sweep file {source} has more than {MAX_BYTES:,} bytes: no sweep needs as many")
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise UserError(f"sweep file {source} is not UTF-8 text: save it as UTF-8") from None


def mapping(text: str, source: str) -> dict[str, Any]:
    """The top-level mapping of a YAML text.

    Raises UserError naming the place or the key of what is wrong.
    """
    try:
        loader = _Loader(text)
        node = loader.get_single_node()
        if node is not None:
            _refuse_twins(node, source)
        values = loader.construct_document(node) if node is not None else None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        place = f" line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        problem = str(getattr(error, "problem", None) or error).splitlines()[0]
        raise UserError(f"sweep {source}{place}: not valid YAML: {problem}") from None
    if not isinstance(values, dict):
        raise UserError(
            f"sweep {source}: a sweep file is a mapping with title, question, models, variants, axes"
        )
    _refuse_unusual(values, source)
    return values


def _refuse_twins(root: yaml.Node, source: str) -> None:
    """PyYAML would silently keep the last of two equal keys."""
    seen: set[int] = set()
    todo = [("", root)]
    while todo:
        path, node = todo.pop()
        if id(node) in seen or not isinstance(node, yaml.CollectionNode):
            continue
        seen.add(id(node))
        if isinstance(node, yaml.SequenceNode):
            todo += [(f"{path}{i}.", item) for i, item in enumerate(node.value)]
            continue
        names = Counter(key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode))
        for key, value in node.value:
            name = key.value if isinstance(key, yaml.ScalarNode) else "?"
            if names[name] > 1:
                last = [key for key, _ in node.value if key.value == name][1].start_mark
                raise UserError(
                    f"sweep {source} line {last.line + 1}, column {last.column + 1}: key {path + name!r} stands there "
                    "twice: remove one"
                )
            todo.append((f"{path}{name}.", value))


def _refuse_unusual(values: Any, source: str) -> None:
    """Dates, bytes, sets, keys that are not text, and more values than any sweep has."""
    count, todo = 0, [("", values)]
    while todo:
        path, value = todo.pop()
        count += 1
        if count > MAX_VALUES:
            raise UserError(
                f"sweep {source}: {PLAIN}, {MAX_VALUES:,} at most: aliases make more of them here"
            )
        if isinstance(value, dict):
            for key in value:
                if not isinstance(key, str):
                    raise UserError(f"sweep {source}: {path}{key}: the key {key!r} is not text: quote it")
            todo += [(f"{path}{key}.", item) for key, item in value.items()]
        elif isinstance(value, list):
            todo += [(f"{path}{i}.", item) for i, item in enumerate(value)]
        elif isinstance(value, str) and "${" in value:
            name = path.rstrip(".")
            raise UserError(
                f"sweep {source}: {name}={value!r}: a sweep file holds plain values; ${{...}} belongs into conf/"
            )
        elif not (value is None or isinstance(value, str | int | float)):
            name, kind = path.rstrip("."), type(value).__name__
            raise UserError(f"sweep {source}: {name}={value!r} is a {kind}: {PLAIN}: quote it")
