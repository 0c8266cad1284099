"""Folders of batches (jobs that train several runs), next to those of the runs. They hold the output of the job.

As for a run, the lock of the folder is held while the process of the batch lives.
"""

import secrets
from collections.abc import Iterable
from pathlib import Path

from cppo_lab.runs.lock import holder
from cppo_lab.safe_open import read_plain, replace_file

PREFIX = "batch-"
LIST = "runs.txt"  # ids of the runs of a batch, one a line
_LARGEST = 1_000_000  # bytes of a list


def new_batch() -> str:
    """A name for a new batch."""
    return f"{PREFIX}{secrets.token_hex(8)}"


def list_runs(folder: Path, run_ids: Iterable[str]) -> None:
    """Write the list of the runs that the batch of `folder` is to train."""
    folder.mkdir(parents=True, exist_ok=True)
    replace_file(folder / LIST, "".join(f"{run_id}\n" for run_id in run_ids))


def batches_of(runs: Path, run_id: str) -> list[Path]:
    """The folders of the batches that were to train a run. Writes nothing."""
    return [folder for folder in sorted(runs.glob(f"{PREFIX}*")) if run_id in _listed(folder)]


def in_living_batch(runs: Path, run_id: str) -> bool:
    """Whether a live batch trains the run, so that its process also trains other runs."""
    who = holder(runs / run_id)
    return who is not None and any(holder(folder) == who for folder in batches_of(runs, run_id))


def _listed(folder: Path) -> list[str]:
    return (read_plain(folder / LIST, _LARGEST) or b"").decode(errors="replace").split()
