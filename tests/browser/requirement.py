"""What the tests in this folder need of the machine, and what happens where it is not there."""

import importlib.util
import os
from pathlib import Path
from typing import NoReturn

import pytest

CHROMIUM = Path("/usr/bin/chromium")


def absent() -> str:
    """Why there can't be a browser test on this machine; empty if there can."""
    if not CHROMIUM.is_file():
        return f"{CHROMIUM} is not there (apt-get install chromium)"
    missing = [name for name in ("playwright", "flask") if importlib.util.find_spec(name) is None]
    return f"not installed: {', '.join(missing)} (pip install playwright 'cppo-lab[ui]')" if missing else ""


def give_up(reason: str) -> NoReturn:
    """Skips the test, or fails it where CI or CPPO_REQUIRE_BROWSER says that a browser has to be there."""
    for name in ("CI", "CPPO_REQUIRE_BROWSER"):
        if os.environ.get(name, "") not in ("", "0", "false"):
            pytest.fail(f"{name} is set, so a browser has to be there, but: {reason}")
    pytest.skip(f"browser: {reason}")
