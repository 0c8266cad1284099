"""Manages verl's checkpoints: the last one that can be read is found, the best by validation is kept, those of dead
attempts are deleted.
"""

import json
import os
import shutil
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from cppo_lab.cores.base import CHECKPOINTS
from cppo_lab.cores.verl import steps
from cppo_lab.errors import UserError
from cppo_lab.files import replacing

BEST = "best_checkpoint"
STEP = "step"  # in the kept checkpoint: a file with its step
SIZES = "sizes.json"  # in each checkpoint: the bytes of its files, by name
READERS = 8  # threads; a checksum takes longer than reading from a fast disk


def seal(checkpoint: Path) -> None:
    """Write the sizes of the files of a checkpoint that has been written; they are on disk when this returns.

    The files themselves may not be: a power cut then leaves them shorter, which `fault` sees.
    """
    sizes = {str(path.relative_to(checkpoint)): path.stat().st_size for path in _files(checkpoint)}
    with replacing(checkpoint / SIZES) as file:
        file.write(json.dumps(sizes).encode())
        file.flush()
        os.fsync(file.fileno())


def last_readable(folder: Path) -> int | None:
    """The last step to resume from, after its checkpoint has been read. Says in one line which ones are damaged.

    Deletes nothing. Raises UserError if a checkpoint cannot be read for another reason.
    """
    step = steps.resume_step(folder)
    while step is not None:
        path = steps.checkpoint_folder(folder, step)
        try:
            why = fault(path) or _unreadable(path)
        except OSError as error:
            raise UserError(
                f"checkpoint {path} cannot be read: {error}. Nothing was deleted: repair the disk and retry the run, "
                "or remove that folder to resume from an older checkpoint"
            ) from error
        if not why:
            return step
        step = steps.resume_step(folder, before=step)
        instead = "training starts over" if step is None else f"training resumes from step {step}"
        print(f"checkpoint {path} is ignored, {instead}: {why}", file=sys.stderr, flush=True)
    return None


def fault(checkpoint: Path) -> str:
    """Which file is not as long as when the checkpoint was written; empty for none, or if that was not recorded."""
    try:
        sizes: Any = json.loads((checkpoint / SIZES).read_bytes())
    except FileNotFoundError:  # of an earlier release
        return ""
    except (ValueError, RecursionError):
        sizes = None
    if not isinstance(sizes, dict):
        return f"{SIZES} is damaged"
    for name, size in sizes.items():
        path = checkpoint / name
        if not path.is_file():
            return f"{name} is missing"
        if path.stat().st_size != size:
            return f"{name} has {path.stat().st_size} of {size} bytes"
    return ""


def _unreadable(checkpoint: Path) -> str:
    """Which file of torch's format or JSON cannot be read, and why; empty for none. Megatron's shards are not read."""
    with ThreadPoolExecutor(READERS) as pool:
        return next(filter(None, pool.map(_unreadable_file, _files(checkpoint))), "")


def _unreadable_file(path: Path) -> str:
    from cppo_lab.cores.mini.checkpoint import check_whole  # imports torch

    try:
        if path.suffix == ".json":
            json.loads(path.read_bytes())
        elif path.suffix == ".pt":
            with path.open("rb") as file:
                check_whole(file)
    except (ValueError, RecursionError) as error:
        return f"{path.name}: {error}"
    return ""


def _files(checkpoint: Path) -> list[Path]:
    return sorted(path for path in checkpoint.rglob("*") if path.is_file())


def keep_best(folder: Path, metric: str) -> None:
    """Keep the checkpoint of the recorded step with the highest `metric`, on a tie the later one.

    By hard links, which need no space while verl keeps it too. The record determines which one it is, so calling this
    again after a kill completes the work. Steps whose checkpoint is lost do not count.
    """
    kept = best_step(folder)
    scores = [
        (row[metric], step)
        for _, (step, row) in steps.rows(folder)
        if step and metric in row and (step == kept or steps.is_whole(steps.checkpoint_folder(folder, step)))
    ]
    if not scores:
        return
    step = max(scores)[1]
    source = steps.checkpoint_folder(folder, step)
    if kept == step or fault(source):
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


def forget_later(folder: Path, step: int | None) -> None:
    """Let a best checkpoint of a step after `step`, which will be retrained, no longer count as that of its step.

    Its files may be those of a damaged one. They stay until another checkpoint replaces them.
    """
    kept = best_step(folder)
    if kept is not None and (step is None or kept > step):
        (folder / BEST / STEP).unlink()


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
