"""The settings of one run: Hydra composes each combination of group choices once, and plain values are set in copies.

Hydra takes 100 ms per configuration. Runs of a sweep differ in few group choices and many plain values, so the tree of
each combination of choices is kept as Hydra returned it, with references (`${trust_region.delta}`) unresolved, also for
later commands (`compose.cache`). Overrides other than `group=option` and `key=plain value` of an existing key are
passed to Hydra in full, which also reports errors. The result equals that of Hydra alone
(tests/sweep/test_settings.py).
"""

import json
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

from cppo_lab.sweep.compose.cache import composed_before
from cppo_lab.sweep.compose.through_hydra import Override, composed, parsed

REFERENCE = re.compile(r"\$\{([A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*)\}")
SHARED_CONSTANTS = ("trust_region.", "recipe.")  # of models and recipes, referred to by rules and data
NAME = re.compile(r"[A-Za-z_]\w*")


class Section:
    """The plain values under one top-level key. Shared between runs, so they must not be changed."""

    def __init__(self, value: Any) -> None:
        self.value = value

    @cached_property
    def text(self) -> str:
        """The values as JSON."""
        return json.dumps(self.value)


@dataclass(frozen=True)
class Base:
    """The composition of one choice of groups.

    `leaves`: keys without nested mappings -> their values. `references`: keys whose whole value is a reference -> the
    referenced key. `sections` have the references resolved. `ordinary`: there are no references of other kinds.
    """

    leaves: Mapping[str, Any]
    references: Mapping[str, str]
    sections: Mapping[str, Section]
    ordinary: bool

    def with_values(self, given: Mapping[str, Any]) -> dict[str, Section]:
        """The sections with some leaves set, and references to them updated."""
        changed = dict(given)
        for key in self.references:
            if key not in given:
                end = self._end(key, given)
                if end in given:
                    changed[key] = given[end]
        sections = dict(self.sections)
        fresh: dict[str, Any] = {}
        for key, value in changed.items():
            name, *path = key.split(".")
            if not path:
                fresh[name] = value
                continue
            if name not in fresh:
                fresh[name] = _copy(self.sections[name].value)
            place = fresh[name]
            for part in path[:-1]:
                place = place[part]
            place[path[-1]] = value
        return sections | {name: Section(value) for name, value in fresh.items()}

    def _end(self, key: str, given: Iterable[str]) -> str:
        """The key at the end of the chain of references from `key`."""
        while key in self.references and key not in given:
            key = self.references[key]
        return key


@cache
def base(choices: tuple[str, ...]) -> Base:
    """The configuration of a choice of groups.

    Raises UserError for an unknown choice.
    """
    tree = composed_before(choices)
    leaves = dict(_leaves(tree))
    references: dict[str, str] = {}
    ordinary = True
    for key, value in leaves.items():
        match = REFERENCE.fullmatch(value) if isinstance(value, str) else None
        if match and match[1] in leaves:
            references[key] = match[1]
        elif _is_special(value):
            ordinary = False
    ordinary = ordinary and not _is_circular(references) and not any(map(_is_special, _outside(tree)))
    plain = Base(leaves, references, {name: Section(value) for name, value in tree.items()}, ordinary)
    if not ordinary:
        return plain
    ends = {key: leaves[plain._end(key, ())] for key in references}
    return Base(leaves, references, plain.with_values(ends), ordinary)


def settings(overrides: Sequence[str]) -> dict[str, Section]:
    """The sections of the configuration that overrides make, references resolved.

    Raises UserError for an override that does not parse, an unknown group option or key.
    """
    found = [parsed(text) for text in overrides]
    if all(one.kind != "other" for one in found):
        start = base(choices_of(overrides))
        values = {one.key: one.value for one in found if one.kind == "value"}
        if start.ordinary and values.keys() <= start.leaves.keys():
            return start.with_values(values)
    return _through_hydra(overrides, found)


def choices_of(overrides: Sequence[str]) -> tuple[str, ...]:
    """The overrides that choose a group option."""
    return tuple(text for text in overrides if parsed(text).kind == "choice")


def takes(choices: Sequence[str], key: str, given: Collection[str]) -> bool:
    """Whether the composition of these group choices has a key, while the keys `given` are set.

    `trust_region` and `recipe` are not part of a run: their keys count only if a key of the run still refers to them.
    """
    start = base(tuple(choices))
    if not key.startswith(SHARED_CONSTANTS):
        return key in start.leaves
    return any(
        start._end(name, given) == key
        for name in start.references
        if name not in given and not name.startswith(SHARED_CONSTANTS)
    )


def _through_hydra(overrides: Sequence[str], found: Sequence[Override]) -> dict[str, Section]:
    # Runs that differ only in the seed are composed once, unless something refers to the seed.
    seeds = [
        (text, one.value)
        for text, one in zip(overrides, found, strict=True)
        if one.key == "seed" and one.kind == "value" and isinstance(one.value, int)
    ]
    if not seeds or any("${" in text for text in overrides):
        return dict(_composed(tuple(overrides)))
    texts = [text for text, _ in seeds]
    rest = tuple(text for text in overrides if text not in texts)
    return _composed(rest) | {"seed": Section(seeds[-1][1])}


@cache
def _composed(overrides: tuple[str, ...]) -> dict[str, Section]:
    return {name: Section(value) for name, value in composed(overrides, resolved=True).items()}


def _leaves(tree: Mapping[Any, Any], before: str = "") -> Iterable[tuple[str, Any]]:
    """The keys that an override can set, and their values."""
    for key, value in tree.items():
        if not isinstance(key, str) or not NAME.fullmatch(key):
            continue  # verl's dotted names, which our dotted paths cannot address
        if isinstance(value, dict):
            yield from _leaves(value, f"{before}{key}.")
        else:
            yield f"{before}{key}", value


def _outside(tree: Any) -> Iterable[Any]:
    """Values at keys that no override can set, and the items of lists."""
    if isinstance(tree, list):
        yield from tree
        for item in tree:
            yield from _outside(item)
    elif isinstance(tree, dict):
        for key, value in tree.items():
            if not isinstance(key, str) or not NAME.fullmatch(key):
                yield value
            yield from _outside(value)


def _is_special(value: Any) -> bool:
    """Whether OmegaConf would interpret a value."""
    return isinstance(value, str) and ("${" in value or value == "???")


def _is_circular(references: Mapping[str, str]) -> bool:
    """Whether the references have a cycle."""
    for start in references:
        key, steps = start, 0
        while key in references:
            key, steps = references[key], steps + 1
            if steps > len(references):
                return True
    return False


def _copy(value: Any) -> Any:
    """A copy of nested mappings, but not of lists, which are only replaced as a whole."""
    return {key: _copy(item) for key, item in value.items()} if isinstance(value, dict) else value
