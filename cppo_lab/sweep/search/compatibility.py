"""Checks that a study matches a search file: a study can be continued only with the definition that created it."""

from typing import Any

from cppo_lab.errors import UserError
from cppo_lab.files import redacted
from cppo_lab.sweep.search.space import Tuning


def require_equal(tuning: Tuning, known: dict[str, Any] | None, url: str) -> None:
    """Raises UserError if the study was created with a different definition."""
    if known is None:
        return
    differences = _differences(known, tuning.definition())
    if differences:
        more = f" (and {len(differences) - 1} more)" if len(differences) > 1 else ""
        raise UserError(
            f"study {tuning.study!r} in {redacted(url)} was made with another definition: {differences[0]}{more}: give "
            "this search a study of its own with --study NAME, or restore what it was"
        )


def _differences(old: dict[str, Any], new: dict[str, Any]) -> list[str]:
    """The differences, as `key was X, is Y`; sections are compared key by key."""
    found = []
    for section, value in new.items():
        was = old.get(section)
        if isinstance(value, dict) and isinstance(was, dict):
            prefix = "search.parameters." if section == "parameters" else ""
            for key in sorted(was.keys() | value.keys()):
                if was.get(key) != value.get(key):
                    found.append(f"{prefix}{key} was {_shown(was.get(key))}, is {_shown(value.get(key))}")
        elif was != value:
            found.append(f"{section} was {_shown(was)}, is {_shown(value)}")
    return found


def _shown(value: Any) -> str:
    if isinstance(value, dict):
        return (
            "{" + ", ".join(f"{key}: {one}" for key, one in value.items() if one not in (None, False)) + "}"
        )
    return "not there" if value is None else str(value)
