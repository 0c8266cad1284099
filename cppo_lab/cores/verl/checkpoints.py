"""Manages verl's checkpoints: the best by validation is kept, those of dead attempts are deleted."""

import os
import shutil
from pathlib import Path

from cppo_lab.cores.base import CHECKPOINTS
from cppo_lab.cores.verl import steps

BEST = "best_checkpoint"
STEP = "step"  # in the kept checkpoint: a file with its step


def keep_best(folder: Path, metric: str) -> None:
    """Keep the checkpoint of the recorded step with the highest `metric`, on a tie the later one.

    By hard links, which need no space while verl keeps it too. The record determines which one it is, so calling this
    again after a kill completes the work.
    """
    scores = [(row[metric], step) for _, (step, row) in steps.rows(folder) if step and metric in row]
    if not scores:
        return
    step = max(scores)[1]
    source = steps.checkpoint_folder(folder, step)
    if best_step(folder) == step or not steps.is_whole(source):
        return
    partial, best = folder / f"{BEST}.partial", folder / BEST
    shutil.rmtree(partial, ignore_errors=True)
    shutil.copytree(source, partial, copy_function=_link_or_copy)
    (partial / STEP).write_text(f"{step}\n", encoding="utf-8")
    shutil.rmtree(best, ignore_errors=True)
    partial.replace(best)


def best_step(folder: Path) -> int | None:
    """The step of the checkpoint that is kept; None if there is none."""
    try:
        return int((folder / BEST / STEP).read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):  # ValueError: a kill during its removal
        return None


def drop_others(folder: Path, step: int | None) -> None:
    """Remove every checkpoint except that of `step`.

    A trainer does not know those of an earlier attempt. It would overwrite the files of one with the same step, to
    which the best checkpoint may be linked.
    """
    for path in (folder / CHECKPOINTS).glob(f"{steps.PREFIX}*"):
        if step is None or path != steps.checkpoint_folder(folder, step):
            shutil.rmtree(path)


def _link_or_copy(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:  # another file system, or one without links
        shutil.copy2(source, target)
