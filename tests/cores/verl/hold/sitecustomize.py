"""Python runs this in every process whose PYTHONPATH has this folder: the trainer stops behind a step, for a test.

HOLD_AFTER_STEP: the step. When its row is on disk the trainer makes the file `held` in the run's folder, and waits to
be killed.
"""

import importlib.machinery
import importlib.util
import os
import signal
import sys
from pathlib import Path
from typing import Any

MODULE = "cppo_lab.cores.verl.checkpoints"


def hold(steps: Any) -> None:
    """Replace `append_row` of the loaded module."""
    append = steps.append_row

    def append_and_hold(folder: Path, step: int, metrics: Any) -> None:
        append(folder, step, metrics)
        if step == int(os.environ["HOLD_AFTER_STEP"]):
            (folder / "held").touch()
            while True:
                signal.pause()

    steps.append_row = append_and_hold


class WhenLoaded:
    """Waits for the module, and does nothing for others."""

    @staticmethod
    def find_spec(name: str, path: object = None, target: object = None) -> Any:
        if name != MODULE:
            return None
        sys.meta_path.remove(WhenLoaded)  # type: ignore[arg-type]
        spec = importlib.util.find_spec(name)
        assert spec is not None and isinstance(spec.loader, importlib.machinery.SourceFileLoader)
        execute = spec.loader.exec_module

        def execute_and_hold(module: Any) -> None:
            execute(module)
            hold(module)

        spec.loader.exec_module = execute_and_hold  # type: ignore[method-assign]
        return spec


if "HOLD_AFTER_STEP" in os.environ:
    sys.meta_path.insert(0, WhenLoaded)  # type: ignore[arg-type]
