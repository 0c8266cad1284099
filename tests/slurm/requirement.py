"""What the tests in this folder need of the machine, and what happens where it is not there."""

import os
from typing import NoReturn

import pytest

from dev.slurm import starting


def absent() -> str:
    """Why there can't be a Slurm on this machine; empty if there can."""
    if os.getuid() != 0:
        return "needs root"
    missing = starting.missing()
    return f"not installed: {', '.join(missing)} (python3 -m dev.slurm install)" if missing else ""


def give_up(reason: str) -> NoReturn:
    """Skips the test, or fails it where CI or CPPO_REQUIRE_SLURM says that Slurm has to be there."""
    for name in ("CI", "CPPO_REQUIRE_SLURM"):
        if os.environ.get(name, "") not in ("", "0", "false"):
            pytest.fail(f"{name} is set, so Slurm has to be there, but: {reason}")
    pytest.skip(f"Slurm: {reason}")
