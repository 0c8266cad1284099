"""Where runs are, for every command."""

from pathlib import Path

from cppo_lab.errors import UserError

RUNS = Path("runs")  # below the working folder, beside mlflow.db


def require_folder(runs: Path) -> None:
    """Raises UserError if runs could not keep their folders in `runs`."""
    if runs.exists() and not runs.is_dir():
        raise UserError(
            f"{runs} is a file, but runs keep their folders there: move it away, or work in another folder"
        )
