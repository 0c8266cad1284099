"""What a part has measured, on disk after each figure: a part that is ended half-way keeps what it had."""

import json
import os
import platform
import subprocess
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks.summary.form import Figure, Result


class Record:
    """The figures and notes of one part, and the machine that they are from, in the file `path`."""

    def __init__(self, name: str, path: Path) -> None:
        self.name, self.path = name, path
        self.figures: dict[str, Figure] = {}
        self.notes: list[str] = []
        self.machine: dict[str, str] = {}

    def figure(
        self, name: str, value: float | None, unit: str, *, at_most: float | None = None, absent: str = ""
    ) -> None:
        """Keep one figure, to six digits; without a value, the reason is `absent`."""
        rounded = None if value is None else float(f"{value:.6g}")
        # JSON has neither NaN nor infinity, and a figure that is one is no measurement.
        if rounded is not None and not abs(rounded) < float("inf"):
            rounded, absent = None, f"it is {rounded}"
        self.figures[name] = Figure(rounded, unit, at_most=at_most, absent=absent)
        self._write()

    def note(self, text: str) -> None:
        """Keep one line of text."""
        self.notes.append(text)
        self._write()

    def on(self, device: str) -> None:
        """Say which machine this is; a part's first call."""
        self.machine = machine(device)
        self._write()

    def _write(self) -> None:
        whole = {
            "machine": self.machine,
            "notes": self.notes,
            "figures": json.loads(Result(self.name, self.figures).line())["figures"],
        }
        beside = self.path.with_suffix(".part")
        beside.write_text(json.dumps(whole, indent=1), encoding="utf-8")
        beside.replace(self.path)


def machine(device: str) -> dict[str, str]:
    """Device, driver and versions, each in words."""
    import torch

    found: dict[str, Any] = {"device": "CPU", "driver": "none", "cuda": "none"}
    if device == "cuda":
        properties = torch.cuda.get_device_properties(0)
        found = {
            "device": f"{properties.name}, {properties.total_memory / 1e9:.0f} GB",
            "driver": _driver(),
            "cuda": torch.version.cuda or "none",
        }
    return found | {
        "torch": str(torch.__version__),
        "python": platform.python_version(),
        "threads": str(len(os.sched_getaffinity(0))),
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
    }


def _driver() -> str:
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        said = subprocess.run(command, check=True, capture_output=True, text=True, timeout=30).stdout
    except (OSError, subprocess.SubprocessError):
        return "unknown"
    return (said.splitlines() or ["unknown"])[0].strip()
