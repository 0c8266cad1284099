"""A chaos run whose every launch is refused, or trains nothing, ends and says where to look."""

from collections.abc import Collection
from pathlib import Path
from types import SimpleNamespace

import pytest

from cppo_lab.cli.answer import Exit
from dev.chaos.nemesis_run import IDLE_LAUNCHES, REFUSALS, REFUSED, NemesisRun
from dev.errors import DevError


def nemesis_of(away: Collection[str]) -> NemesisRun:
    """One that has not begun, with parts of it away."""
    nemesis = NemesisRun.__new__(NemesisRun)
    nemesis._strikes = SimpleNamespace(away=away)  # type: ignore[assignment]
    nemesis._refused, nemesis._over, nemesis._log = 0, False, Path("commands.log")
    nemesis._idle, nemesis._reached, nemesis.progress = 0, 0.0, 0.0
    nemesis.place = SimpleNamespace(folder=Path("disturbed"))  # type: ignore[assignment]
    return nemesis


def end_launch(nemesis: NemesisRun, status: int) -> None:
    """A launch ends with this exit status."""
    nemesis._launcher = SimpleNamespace(  # type: ignore[assignment]
        fault=None, words=["launch"], ended=lambda: status, found_nothing_to_do=lambda: False
    )
    nemesis._see_launcher()


@pytest.mark.parametrize("refused", REFUSED, ids=lambda status: status.name)
def test_launches_that_are_refused_one_after_the_other(refused: Exit) -> None:
    nemesis = nemesis_of(away=())
    for status in [refused] * (REFUSALS - 1) + [1] + [refused] * (REFUSALS - 1):
        end_launch(nemesis, status)
    with pytest.raises(DevError, match=r"10 launches in a row were refused: see commands\.log"):
        end_launch(nemesis, refused)


@pytest.mark.parametrize("refused", REFUSED, ids=lambda status: status.name)
def test_nothing_follows_from_refusals_while_a_server_is_away(refused: Exit) -> None:
    nemesis = nemesis_of(away=("mlflow",))
    for _ in range(2 * REFUSALS):
        end_launch(nemesis, refused)


def test_launches_after_which_no_step_is_on_file() -> None:
    nemesis = nemesis_of(away=())
    for progress in [0.1, *[0.2] * IDLE_LAUNCHES]:
        nemesis.progress = progress
        end_launch(nemesis, 0)
    with pytest.raises(
        DevError, match=r"40 launches in a row trained nothing: see .*disturbed/runs-kept/slurm"
    ):
        end_launch(nemesis, 0)
