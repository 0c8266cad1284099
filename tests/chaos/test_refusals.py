"""A chaos run whose every launch is refused ends, and says where to look."""

from collections.abc import Collection
from pathlib import Path
from types import SimpleNamespace

import pytest

from dev.chaos.nemesis_run import REFUSALS, REFUSED, NemesisRun
from dev.errors import DevError


def storm_of(away: Collection[str]) -> NemesisRun:
    """One that has not begun, with parts of it away."""
    storm = NemesisRun.__new__(NemesisRun)
    storm._strikes = SimpleNamespace(away=away)  # type: ignore[assignment]
    storm._refused, storm._over, storm._log = 0, False, Path("commands.log")
    return storm


def end_launch(storm: NemesisRun, status: int) -> None:
    """A launch ends with this exit status."""
    storm._launcher = SimpleNamespace(  # type: ignore[assignment]
        fault=None, words=["launch"], ended=lambda: status, found_nothing_to_do=lambda: False
    )
    storm._see_launcher()


def test_launches_that_are_refused_one_after_the_other() -> None:
    storm = storm_of(away=())
    for status in [REFUSED] * (REFUSALS - 1) + [1] + [REFUSED] * (REFUSALS - 1):
        end_launch(storm, status)
    with pytest.raises(DevError, match=r"10 launches in a row were refused: see commands\.log"):
        end_launch(storm, REFUSED)


def test_nothing_follows_from_refusals_while_a_server_is_away() -> None:
    storm = storm_of(away=("mlflow",))
    for _ in range(2 * REFUSALS):
        end_launch(storm, REFUSED)
