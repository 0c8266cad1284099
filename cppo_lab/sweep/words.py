"""Words for shell completion of commands about sweeps, read directly from the files.

Nothing is validated, so that neither pydantic nor Hydra is imported: a listed key may not apply to a run. Unreadable
files give no words.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from cppo_lab import PARTS_FOLDER
from cppo_lab.sweep.groups import CONF, groups
from cppo_lab.sweep.source import plain

SHIPPED = PARTS_FOLDER / "sweeps"
_LARGEST = 1_000_000  # bytes of a file to read
_LAUNCH_ONLY = frozenset({"defaults", "name"})


def sweep_names() -> list[str]:
    """The shipped sweeps."""
    return sorted(entry.stem for entry in SHIPPED.iterdir() if entry.suffix == ".yaml")


def override_words(sweep: str) -> dict[str, list[str]]:
    """Keys of overrides, each with its known values: groups with their options, axes and variants of the sweep, and the
    keys of conf/.
    """
    found: dict[str, list[str]] = {key: [] for key in _keys()}
    found |= {group: list(options) for group, options in groups().items()}
    for key, values in _of_sweep(sweep).items():
        found[key] = list(dict.fromkeys([*values, *found.get(key, [])])) if key != "model" else values
    return dict(sorted(found.items()))


def _of_sweep(name: str, deep: bool = True) -> dict[str, list[str]]:
    path = Path(name) if name.endswith((".yaml", ".yml")) or "/" in name else SHIPPED / f"{name}.yaml"
    content = _yaml(path)
    found: dict[str, list[str]] = {}
    parts = content.get("sweeps")
    if deep and isinstance(parts, list):
        for part in parts:
            place = str(path.parent / str(part)) if "/" in str(part) or "." in str(part) else str(part)
            for key, values in _of_sweep(place, deep=False).items():
                found[key] = list(dict.fromkeys([*found.get(key, []), *values]))
    variants = content.get("variants")
    if isinstance(variants, dict):
        found["variant"] = list(map(str, variants))
    models = content.get("models")
    if models:
        found["model"] = list(dict.fromkeys(_texts(models)))
    axes = content.get("axes")
    if isinstance(axes, dict):
        found |= {str(key): list(dict.fromkeys(_texts(values))) for key, values in axes.items()}
    return found


def _texts(values: Any) -> Iterator[str]:
    """The single values of a list, or of a list for each core."""
    if isinstance(values, dict):
        values = list(values.values())
    for one in values if isinstance(values, list) else [values]:
        if isinstance(one, list):
            yield from _texts(one)
        else:
            yield str(one).lower() if isinstance(one, bool) else str(one)


def _keys() -> Iterator[str]:
    """The dotted keys of the configuration, from the files of conf/."""
    yield from _dotted(_yaml(CONF / "config.yaml"), "")
    for file in sorted(CONF.glob("*/*.yaml")):
        # A file for `_global_` names its sections itself; for other files the section is the group.
        whole = "@package _global_" in file.read_text(encoding="utf-8")
        yield from _dotted(_yaml(file), "" if whole else f"{file.parent.name}.")


def _dotted(values: Mapping[str, Any], prefix: str) -> Iterator[str]:
    for key, value in values.items():
        if (not prefix and key in _LAUNCH_ONLY) or (key == "name" and prefix.count(".") == 1):
            continue
        if isinstance(value, dict) and value:
            yield from _dotted(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}"


def _yaml(path: Path) -> dict[str, Any]:
    """The mapping in a YAML file; empty if it cannot be read or is not a mapping."""
    try:
        if path.stat().st_size > _LARGEST:
            return {}
        content = plain(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}
