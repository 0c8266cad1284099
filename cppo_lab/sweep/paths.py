"""The folder of all runs, for every command."""

import os
import stat
from pathlib import Path

from cppo_lab.errors import UserError
from cppo_lab.files import is_shared

RUNS = Path("runs")  # below the working folder, beside mlflow.db
ANYBODY = "CPPO_RUNS_OF_ANYBODY"  # set to 1 to accept the risk described in docs/security.md


def runs_folder() -> Path:
    """The absolute path of the folder of all runs.

    Raises UserError for a circular link.
    """
    try:
        return RUNS.resolve()
    except (OSError, RuntimeError):  # RuntimeError: raised by pathlib for a loop before Python 3.13
        raise UserError(
            f"{RUNS.absolute()} is a circular link: remove it, or work in another folder"
        ) from None


def require_folder(runs: Path) -> None:
    """Raises UserError if runs cannot have their folders in `runs`, or if every user may write there."""
    if runs.exists() and not runs.is_dir():
        raise UserError(
            f"{runs} is a file, but runs keep their folders there: move it away, or work in another folder"
        )
    place = runs if runs.exists() else runs.parent
    if os.environ.get(ANYBODY) == "1" or not _for_everybody(place):
        return
    raise UserError(
        f"{place} is writable for every user of this machine, and whoever writes there can have jobs run their code as "
        f"you (docs/security.md): chmod o-w {place}, or set {ANYBODY}=1 if all of them may"
    )


def share_with_group() -> None:
    """If a group shares the folder of runs, make all files that this process and its children create group-writable.

    Sets the umask, since MLflow, Optuna, submitit and Ray create files there, too.
    """
    try:
        runs = runs_folder()
    except UserError:  # reported by the commands that need the folder
        return
    if is_shared(runs if runs.exists() else runs.parent):
        os.umask(os.umask(0o077) & ~0o070)


def _for_everybody(folder: Path) -> bool:
    """Whether users who are neither the owner nor in the group may add or replace files in it.

    In a sticky folder such as /tmp they can only add files, so it may contain the folder of all runs, but not be that
    folder.
    """
    try:
        mode = folder.stat().st_mode
    except OSError:  # reported when the folder is created
        return False
    return bool(mode & stat.S_IWOTH) and not (mode & stat.S_ISVTX and folder.name != RUNS.name)
