"""A search small enough for tests, and what a test wants to know of it."""

from pathlib import Path
from typing import Any

import yaml

from cppo_lab.search.space import Tuning, resolve
from cppo_lab.sweep.file import Search, load_sweep
from tests.conftest import TINY

# A search names its models elsewhere.
_KEYS = [text.replace("=", ": ", 1) for text in TINY if not text.startswith("model=")]
SETTINGS = {"rule": "cppo", **yaml.safe_load("\n".join(_KEYS))}


def search_values(**changes: Any) -> dict[str, Any]:
    """The content of a search file; `changes` go into its section `search`."""
    section: dict[str, Any] = {
        "trials": 4,
        "parameters": {
            "rule.delta_b": {"low": 0.002, "high": 0.05, "log": True},
            "rule.w_min": {"low": 0.4, "high": 1.0, "step": 0.05},
        },
        "objectives": ["final_score"],
        "sampler": {"name": "tpe", "seed": 0, "startup": 4},
        "pruner": {"name": "none"},
    }
    return {
        "title": "T",
        "question": "Q?",
        "models": ["mini_base"],
        "settings": SETTINGS,
        "seeds": [0],
        "search": {**section, **changes},
    }


def write_search(values: dict[str, Any], path: str = "tune.yaml") -> str:
    """Write a search file into the working folder; its path."""
    Path(path).write_text(yaml.safe_dump(values, sort_keys=False), encoding="utf-8")
    return path


def made_tuning(values: dict[str, Any] | None = None, *overrides: str, **options: Any) -> Tuning:
    """A validated search. It writes `tune.yaml` into the working folder."""
    search = load_sweep("./" + write_search(values or search_values()))
    assert isinstance(search, Search)
    return resolve(search, overrides, **options)
