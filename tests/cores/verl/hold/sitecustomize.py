"""Python runs this in every process whose PYTHONPATH has this folder: tests change modules when they are loaded.

HOLD_AFTER_STEP: the trainer stops behind this step. When its row is on disk the trainer makes the file `held` in the
run's folder, and waits to be killed. SLOW_ENGINE: vLLM's engine waits so many seconds before each token, so that new
weights find it in the middle of responses.
"""

import importlib.machinery
import importlib.util
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any


def hold(steps: Any) -> None:
    """Replace `append_row` of `cppo_lab.cores.verl.checkpoints`."""
    append = steps.append_row

    def append_and_hold(folder: Path, step: int, metrics: Any) -> None:
        append(folder, step, metrics)
        if step == int(os.environ["HOLD_AFTER_STEP"]):
            (folder / "held").touch()
            while True:
                signal.pause()

    steps.append_row = append_and_hold


def slow(core: Any) -> None:
    """Replace the steps of the engine in `vllm.v1.engine.core`."""
    for name in ("step", "step_with_batch_queue"):
        step = getattr(core.EngineCore, name)

        def later(self: Any, step: Any = step) -> Any:
            time.sleep(float(os.environ["SLOW_ENGINE"]))  # noqa: TID251  is what is tested
            return step(self)

        setattr(core.EngineCore, name, later)


CHANGES = {}
if "HOLD_AFTER_STEP" in os.environ:
    CHANGES["cppo_lab.cores.verl.checkpoints"] = hold
if "SLOW_ENGINE" in os.environ:
    CHANGES["vllm.v1.engine.core"] = slow


class WhenLoaded:
    """Waits for these modules, and does nothing for others."""

    @staticmethod
    def find_spec(name: str, path: object = None, target: object = None) -> Any:
        if (change := CHANGES.pop(name, None)) is None:
            return None
        spec = importlib.util.find_spec(name)
        assert spec is not None and isinstance(spec.loader, importlib.machinery.SourceFileLoader)
        execute = spec.loader.exec_module

        def execute_and_change(module: Any) -> None:
            execute(module)
            change(module)

        spec.loader.exec_module = execute_and_change  # type: ignore[method-assign]
        return spec


if CHANGES:
    sys.meta_path.insert(0, WhenLoaded)  # type: ignore[arg-type]
