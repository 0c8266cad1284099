"""The configuration groups and their options. Imports only the standard library, since the help text lists them."""

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from cppo_lab import PARTS_FOLDER
from cppo_lab.errors import UserError
from cppo_lab.plugins import CORE_GROUP, LAUNCHER_GROUP, entry_points

CONF = PARTS_FOLDER / "conf"
# Added options of the group `rule`: their file, and its content.
_ADDED: dict[str, tuple[str, Mapping[str, Any]]] = {}


@cache
def shipped() -> Mapping[str, Sequence[str]]:
    """The groups and options in conf/."""
    return {
        folder.name: sorted(file.stem for file in folder.glob("*.yaml"))
        for folder in sorted(CONF.iterdir())
        if folder.is_dir()
    }


@cache  # called for every run of a plan
def groups() -> Mapping[str, Sequence[str]]:
    """Configuration groups and their options: from conf/, installed packages, and rule files next to a sweep file."""
    installed = {
        group: sorted({*shipped()[group], *entry_points(names)})
        for group, names in (("core", CORE_GROUP), ("launcher", LAUNCHER_GROUP))
    }
    return {**shipped(), **installed, "rule": sorted({*shipped()["rule"], *_ADDED})}


def add_rule(name: str, values: Mapping[str, Any], source: str) -> None:
    """Add an option to the group `rule` for the rest of this process; `source` is its file.

    Raises UserError for a name that another file defines differently.
    """
    if name not in _ADDED:
        _ADDED[name] = (source, values)
        groups.cache_clear()
    other, present = _ADDED[name]
    if present != values:
        change = "has changed: start again" if other == source else f"is another one in {other}: rename one"
        raise UserError(f"rule file {source}: rule {name!r} {change}")


def added_rules() -> Mapping[str, Mapping[str, Any]]:
    """The added options of the group `rule`, with their content."""
    return {name: values for name, (_, values) in _ADDED.items()}
