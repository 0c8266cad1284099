"""Where runs are, for every command."""

from pathlib import Path

from cppo_lab.errors import UserError

RUNS = Path("runs")  # below the working folder, beside mlflow.db


def runs_folder() -> Path:
    """The folder of all runs, by its absolute path.

    Raises UserError for a link that leads nowhere but to itself.
    """
    try:
        return RUNS.resolve()
    except (OSError, RuntimeError):  # RuntimeError: what pathlib makes of a loop before Python 3.13
        raise UserError(
            f"{RUNS.absolute()} is a link that leads to itself: remove it, or work in another folder"
        ) from None


def require_folder(runs: Path) -> None:
    """Raises UserError if runs could not keep their folders in `runs`."""
    if runs.exists() and not runs.is_dir():
        raise UserError(
            f"{runs} is a file, but runs keep their folders there: move it away, or work in another folder"
        )
