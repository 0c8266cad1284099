"""The record that verl's trainer leaves in the run's folder: a line of metrics per training step, and how it ended.

The trainer runs in a separate process, perhaps on another machine. It appends to a file, which is flushed to disk
before the next step begins; the process that started it follows the file and passes the rows to the recorder. So no
step is lost if the store is down or either process ends. The file also shows which checkpoints are complete: that of
step n, if row n exists, since the trainer writes the row after the checkpoint.
"""

import fcntl
import json
import math
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from cppo_lab.cores.base import CHECKPOINTS
from cppo_lab.errors import UserError
from cppo_lab.files import open_append, open_lock, replace_file, replacing
from cppo_lab.schema import Outcome

Row = tuple[int, dict[str, float]]
STEPS, OUTCOME = "verl_steps.jsonl", "verl_outcome.json"
PREFIX = "global_step_"
PATIENCE_SECONDS = 60.0  # Ray's processes outlive a killed driver by a few seconds


@contextmanager
def writing(folder: Path) -> Iterator[None]:
    """Hold the write lock of this record; wait for the trainer of a dead attempt to end.

    Raises UserError if it does not end in time.
    """
    with open_lock(folder / "verl_trainer.lock") as lock:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise UserError(
                        f"a trainer of an earlier attempt still writes to {folder}: end its Ray processes"
                    ) from None
                time.sleep(0.2)
        yield


def append_row(folder: Path, step: int, metrics: Mapping[str, float]) -> None:
    """Add the row of `step`; it is on disk when this returns."""
    with open_append(folder / STEPS) as file:
        file.write(json.dumps({"step": step, "metrics": dict(metrics)}) + "\n")
        file.flush()
        os.fsync(file.fileno())


def rows(folder: Path, offset: int = 0) -> Iterator[tuple[int, Row]]:
    """(offset after the line, row) for every complete line from byte `offset` on."""
    try:
        file = (folder / STEPS).open("rb")
    except FileNotFoundError:
        return
    with file:
        file.seek(offset)
        for line in file:
            if not line.endswith(b"\n"):  # still being written, or cut off by a kill
                return
            offset += len(line)
            values = json.loads(line)
            yield offset, (values["step"], values["metrics"])


def resume_step(folder: Path, before: float = math.inf) -> int | None:
    """The last step before `before` to resume from: its row and its checkpoint exist, read or not."""
    recorded = [step for _, (step, _) in rows(folder) if step < before]
    return max((step for step in recorded if is_whole(checkpoint_folder(folder, step))), default=None)


def checkpoint_folder(folder: Path, step: int) -> Path:
    """The folder of verl's checkpoint of `step`."""
    return folder / CHECKPOINTS / f"{PREFIX}{step}"


def is_whole(checkpoint: Path) -> bool:
    """Whether the checkpoint of a recorded step still has its weights: verl deletes only the weights of old ones."""
    return (checkpoint / "actor").is_dir()


def cut_after(folder: Path, step: int | None) -> list[Row]:
    """Drop the rows after `step` (all, if None), which will be retrained, and an outcome; return the others."""
    (folder / OUTCOME).unlink(missing_ok=True)
    kept = [] if step is None else [row for _, row in rows(folder) if row[0] <= step]
    with replacing(folder / STEPS) as file:
        for number, metrics in kept:
            file.write(json.dumps({"step": number, "metrics": metrics}).encode() + b"\n")
        file.flush()
        os.fsync(file.fileno())
    return kept


def write_outcome(folder: Path, outcome: Outcome) -> None:
    """Write how training ended."""
    replace_file(folder / OUTCOME, json.dumps(vars(outcome)))


def read_outcome(folder: Path) -> Outcome | None:
    """How training ended; None if it has not ended."""
    try:
        values: dict[str, Any] = json.loads((folder / OUTCOME).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    return Outcome(**values)
