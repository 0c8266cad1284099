"""What sweep files and conf/ say for those who look for a name: `cppo list` and the shell's completion.

Read directly from the files and not validated, so that neither pydantic nor Hydra is imported. Unreadable files say
nothing.
"""

import re
from collections.abc import Iterator, Mapping
from itertools import takewhile
from pathlib import Path
from typing import Any

import yaml

from cppo_lab import PARTS_FOLDER
from cppo_lab.errors import one_line
from cppo_lab.sweep.groups import CONF
from cppo_lab.sweep.source import plain

SHIPPED = PARTS_FOLDER / "sweeps"
_LARGEST = 1_000_000  # bytes of a file to read
_DECLARES = ("models", "sweeps")  # keys of which a sweep file has one
_KEY = re.compile(r"(?P<indent> *)(?P<name>\w+):(?:.*?\s# *(?P<comment>.*))?")


def sweep_files() -> dict[str, Path]:
    """The sweeps, studies and searches that a command can name here -> their files: those that come with the product,
    and by their paths those in the working folder and in its folder `sweeps`.
    """
    here = [*sorted(Path().glob("*.yaml")), *sorted(Path("sweeps").glob("*.yaml"))]
    return {path.stem: path for path in sorted(SHIPPED.glob("*.yaml"))} | {
        str(path): path for path in here if path.resolve().parent != SHIPPED
    }


def sweeps() -> Iterator[dict[str, str]]:
    """Name, title and question of each of `sweep_files`; other YAML files are left out."""
    for name, path in sweep_files().items():
        content = _yaml(path)
        if "title" in content and any(key in content for key in _DECLARES):
            yield {
                "name": name,
                "title": one_line(str(content["title"])),
                "question": one_line(str(content.get("question") or "")),
            }


def variants(sweep: str) -> list[str]:
    """The variants of a sweep, or of the sweeps of a study."""
    files = sweep_files()
    content = _yaml(files.get(sweep, Path(sweep)))
    parts = content.get("sweeps")
    contents = [content, *(_yaml(files.get(str(part), Path(str(part)))) for part in parts or ())]
    names = (list(content.get("variants") or ()) for content in contents)
    return list(dict.fromkeys(str(name) for listed in names for name in listed))


def option_words(group: str) -> dict[str, str]:
    """The options of a group in conf/, each with the first sentence of its file's heading."""
    return {path.stem: _heading(path) for path in sorted((CONF / group).glob("*.yaml"))}


def _heading(path: Path) -> str:
    """The first sentence of a file's first comment."""
    lines = path.read_text(encoding="utf-8").splitlines()
    comment = takewhile(lambda line: line.startswith("#"), (line for line in lines if "@package" not in line))
    return re.split(r"(?<=.{8}\.)\s+(?=[A-Z])", " ".join(line.lstrip("# ") for line in comment))[0]


def key_words() -> dict[str, str]:
    """Dotted key of the configuration -> the comment behind it in conf/. The files of the default configuration come
    first: elsewhere comments may be about the value alone.
    """
    base = CONF / "config.yaml"
    defaults = [
        CONF / group / f"{option}.yaml"
        for entry in _yaml(base)["defaults"]
        if isinstance(entry, Mapping)
        for group, option in entry.items()
    ]
    words: dict[str, str] = {}
    for path in [base, *defaults, *sorted(CONF.glob("*/*.yaml"))]:
        text = path.read_text(encoding="utf-8")
        # A file for `_global_` names its sections itself; for other files the section is the group.
        whole = path == base or "@package _global_" in text
        above: list[tuple[int, str]] = [] if whole else [(-1, path.parent.name)]
        for match in filter(None, map(_KEY.match, text.splitlines())):
            depth = len(match["indent"])
            above = [*(entry for entry in above if entry[0] < depth), (depth, match["name"])]
            if match["comment"]:
                words.setdefault(".".join(name for _, name in above), match["comment"])
    return words


def _yaml(path: Path) -> dict[str, Any]:
    """The mapping in a YAML file; empty if it cannot be read or is not a mapping."""
    try:
        if path.stat().st_size > _LARGEST:
            return {}
        content = plain(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}
