"""What the tests in this folder need of the machine, and what happens where it is not there."""

import importlib.util
import os
from typing import NoReturn

import pytest

from dev.servers import postgres


def absent() -> str:
    """Why there can't be a PostgreSQL on this machine; empty if there can."""
    if missing := postgres.missing():
        return f"not installed: {', '.join(missing)} (python3 -m dev.servers install)"
    return (
        ""
        if importlib.util.find_spec("psycopg2")
        else "not installed: psycopg2 (pip install psycopg2-binary)"
    )


def give_up(reason: str) -> NoReturn:
    """Skips the test, or fails it where CI or CPPO_REQUIRE_POSTGRES says that PostgreSQL has to be there."""
    for name in ("CI", "CPPO_REQUIRE_POSTGRES"):
        if os.environ.get(name, "") not in ("", "0", "false"):
            pytest.fail(f"{name} is set, so PostgreSQL has to be there, but: {reason}")
    pytest.skip(f"PostgreSQL: {reason}")
