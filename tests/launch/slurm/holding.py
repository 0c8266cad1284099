"""Training that holds at a step until it is struck: `python -m tests.launch.slurm.holding` in place of `python`.

A launcher calls it with Python's own arguments (`launcher.python`). The run's first life in Slurm holds behind step
STEP, which is on record, where it is about to record the next; a later one trains to the end.
"""

import os
import runpy
import shlex
import sys
import time
from pathlib import Path

from cppo_lab.runs.spool import Line, Spool, StepEvent

STEP = 5  # behind a checkpoint (validation.every=2 of TINY), and further than it
HELD = "held-at-step"  # a file in the run's folder: who writes it does nothing more


def python() -> str:
    """What `launcher.python` has to be."""
    return f"{shlex.quote(sys.executable)} -m {__name__}"


def holds(folder: Path) -> bool:
    """Whether the run in `folder` has got to where it holds."""
    return (folder / HELD).exists()


def _hold() -> None:
    add = Spool.add

    def held(spool: Spool, line: Line) -> None:
        if isinstance(line, StepEvent) and line.step == STEP + 1:
            (spool.path.parents[1] / HELD).touch()
            while True:
                time.sleep(0.1)  # noqa: TID251  hangs until it is killed
        add(spool, line)

    Spool.add = held  # type: ignore[method-assign]


def main(arguments: list[str]) -> None:
    """Python's own `-u -m MODULE ARGUMENT...`."""
    assert arguments[:2] == ["-u", "-m"], arguments
    if os.environ.get("SLURM_RESTART_COUNT", "0") == "0":
        _hold()
    sys.argv = arguments[2:]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main(sys.argv[1:])
