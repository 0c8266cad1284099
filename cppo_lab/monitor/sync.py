"""Which runs have something that the tracking store has not got."""

from collections.abc import Iterable, Sequence
from pathlib import Path

from cppo_lab.monitor.logs import run_by_beginning
from cppo_lab.monitor.status import known_runs, sight
from cppo_lab.tracking.shipping import unsent


def run_folders(runs: Path, beginnings: Sequence[str]) -> list[Path]:
    """The folders of the runs whose ids begin so; of every known run if none is named.

    Raises UserError for a beginning that names no run, or several.
    """
    if beginnings:
        return [runs / run_by_beginning(runs, one) for one in beginnings]
    return [runs / run_id for run_id in known_runs(sight(runs))]


def waiting(folders: Iterable[Path], uri: str) -> list[Path]:
    """Those of the folders that have something to send."""
    return [folder for folder in folders if unsent(folder, uri)]
