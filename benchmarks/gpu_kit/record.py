"""What a part has measured, on disk after each figure: a part that is ended half-way keeps what it had."""

import json
import math
import os
import platform
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

import torch

from benchmarks.common import Figure, nvidia


class Record:
    """The figures and notes of one part, and the machine that they are from, in the file `path`."""

    def __init__(self, path: Path, device: str) -> None:
        self.path = path
        self.figures: dict[str, Figure] = {}
        self.notes: list[str] = []
        self.machine = machine(device)

    def figure(
        self, name: str, value: float | None, unit: str, *, at_most: float | None = None, absent: str = ""
    ) -> None:
        """Keep one figure, to six digits; without a value, the reason is `absent`."""
        rounded = None if value is None else float(f"{value:.6g}")
        # JSON has neither NaN nor infinity, and a figure that is one is no measurement.
        if rounded is not None and not math.isfinite(rounded):
            rounded, absent = None, f"it is {rounded}"
        self.figures[name] = Figure(rounded, unit, at_most=at_most, absent=absent)
        self._write()

    def note(self, text: str) -> None:
        """Keep one line of text."""
        self.notes.append(text)
        self._write()

    def _write(self) -> None:
        figures = {name: asdict(figure) for name, figure in self.figures.items()}
        whole = {"machine": self.machine, "notes": self.notes, "figures": figures}
        beside = self.path.with_suffix(".part")
        beside.write_text(json.dumps(whole, indent=1), encoding="utf-8")
        beside.replace(self.path)


def machine(device: str) -> dict[str, str]:
    """Device, driver and versions, each in words."""
    gpu = {"device": "CPU", "driver": "none", "cuda": "none"}
    if device == "cuda":
        properties = torch.cuda.get_device_properties(0)
        gpu["device"] = f"{properties.name}, {properties.total_memory / 1e9:.0f} GB"
        gpu |= {"driver": (nvidia("driver_version") or ["unknown"])[0], "cuda": torch.version.cuda or "none"}
    return gpu | {
        "torch": str(torch.__version__),
        "python": platform.python_version(),
        "threads": str(len(os.sched_getaffinity(0))),
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
    }
