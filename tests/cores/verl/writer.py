"""A process that writes a trainer's record and is killed at a named point of it, over and over: for `test_steps`.

Run as `python -m tests.cores.verl.writer FOLDER POINT ...`: for each point, in turn, a process is forked that continues
the record and dies by SIGKILL there. A point is OPERATION:NUMBER, the operation that it dies in the midst of, counted
from its start. Prints a JSON line for each: where it began, what it kept, what it recorded, where the next one would
begin.
"""

import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from cppo_lab.cores.verl import checkpoints

EVERY = 5  # a checkpoint


class Deaths:
    """Counts operations, and ends this process in the one that is asked for."""

    def __init__(self, point: str) -> None:
        self.operation, number = point.split(":")
        self.left = int(number)

    def at(self, operation: str) -> bool:
        """Whether this is the one."""
        if operation != self.operation:
            return False
        self.left -= 1
        return self.left == 0

    def pass_by(self, operation: str) -> None:
        if self.at(operation):
            os.kill(os.getpid(), signal.SIGKILL)


def write(folder: Path, deaths: Deaths, tell: Callable[[Any], None]) -> None:
    """Continue the record until death."""
    sync, replace = os.fsync, Path.replace

    def dying_sync(descriptor: int) -> None:
        if deaths.at("half"):  # the kernel has only a part of what was to be written
            os.ftruncate(descriptor, max(0, os.fstat(descriptor).st_size - 1500))
            os.kill(os.getpid(), signal.SIGKILL)
        deaths.pass_by("written")
        sync(descriptor)
        deaths.pass_by("synced")

    def dying_replace(path: Path, target: Any) -> Path:
        deaths.pass_by("replace")
        found = replace(path, target)
        deaths.pass_by("replaced")
        return found

    os.fsync, Path.replace = dying_sync, dying_replace  # type: ignore[assignment, method-assign]
    with checkpoints.writing(folder):
        step = checkpoints.resume_step(folder)
        number = 0 if step is None else step + 1
        tell(number)
        kept = checkpoints.cut_after(folder, step)
        tell([n for n, _ in kept])
        while True:
            deaths.pass_by("row")
            if number % EVERY == 0:
                (checkpoints.checkpoint_folder(folder, number) / "actor").mkdir(parents=True, exist_ok=True)
                deaths.pass_by("checkpoint")
            checkpoints.append_row(folder, number, {"train/reward": number / 7, "x" * 3000: 1.0})
            number += 1


def life(folder: Path, point: str) -> dict[str, Any]:
    """One process, to its end."""
    told, telling = os.pipe()
    pid = os.fork()
    if not pid:
        os.close(told)
        try:
            write(folder, Deaths(point), lambda value: os.write(telling, f"{json.dumps(value)}\n".encode()))
        finally:
            os._exit(1)
    os.close(telling)
    with os.fdopen(told) as pipe:
        lines = [json.loads(line) for line in pipe]
    _, status = os.waitpid(pid, 0)
    return {
        "point": point,
        "killed": os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL,
        "begin": lines[0],
        "kept": lines[1] if len(lines) > 1 else None,
        "rows": [(step, row["train/reward"]) for _, (step, row) in checkpoints.rows(folder)],
        "resume": checkpoints.resume_step(folder),
    }


if __name__ == "__main__":
    for named in sys.argv[2:]:
        print(json.dumps(life(Path(sys.argv[1]), named)), flush=True)
