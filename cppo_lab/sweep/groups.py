"""The configuration groups and their options. Imports the standard library alone: the help text lists them."""

from collections.abc import Mapping, Sequence
from functools import cache

from cppo_lab import PARTS_FOLDER

CONF = PARTS_FOLDER / "conf"


@cache  # every run of a plan asks
def groups() -> Mapping[str, Sequence[str]]:
    """Configuration groups and their options."""
    return {
        folder.name: sorted(
            file.name.removesuffix(".yaml") for file in folder.iterdir() if file.name.endswith(".yaml")
        )
        for folder in sorted(CONF.iterdir(), key=lambda entry: entry.name)
        if folder.is_dir()
    }
