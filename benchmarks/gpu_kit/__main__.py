"""`python -m benchmarks.gpu_kit [--device cuda|cpu] [--out DIR] [PART...]`

Each part has a process and a limit of its own. Each figure is a line of DIR/gpu_kit.jsonl as soon as it is measured:
a kit that is killed leaves what it has. DIR/gpu_kit.log has what the parts print.
"""

import argparse
import json
import math
import os
import platform
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.common import ROOT, limited, nvidia

# In the order in which they are worth their time -> the seconds that each may take, 6 minutes in all.
PARTS = {
    "kernel": 80.0,
    "memory": 30.0,
    "sampler": 30.0,
    "layers": 60.0,
    "experts": 40.0,
    "rules": 30.0,
    "decode": 30.0,
    "update": 60.0,
}
FIGURES, LOG = "gpu_kit.jsonl", "gpu_kit.log"


class Record:
    """The figures of one part: appended to a file, each at once."""

    def __init__(self, part: str, path: Path) -> None:
        self.part, self.path = part, path

    def line(self, **fields: Any) -> None:
        """Write one line, and print it."""
        with self.path.open("a") as file:
            file.write(json.dumps({"part": self.part} | fields) + "\n")
        print(self.part, *(f"{value:g}" if isinstance(value, float) else value for value in fields.values()))

    def figure(self, name: str, value: float, unit: str = "", at_most: float | None = None) -> None:
        """Record a number, to six digits, and whether it is at most what it should be."""
        number = float(f"{value:.6g}")
        # JSON has neither NaN nor infinity, and neither meets a target.
        shown = number if math.isfinite(number) else str(number)
        judged = {} if at_most is None else {"at_most": at_most, "met": number <= at_most}
        self.line(name=name, value=shown, unit=unit, **judged)


def main(arguments: list[str] | None = None) -> int:
    """Do what the command line says; 0 if every part finished, whatever it measured."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gpu_kit",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(PARTS)}; default: all")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="cpu: tiny, to try the kit")
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "gpu_kit", help="folder of the result")
    parser.add_argument("--slack", type=float, default=1.0, help="multiplies the limits, for a busy machine")
    parser.add_argument("--here", action="store_true", help="in this process, without a limit")
    options = parser.parse_args(arguments)
    parts = options.parts or [*PARTS]
    if not PARTS.keys() >= {*parts}:
        parser.error(f"the parts are {', '.join(PARTS)}")
    options.out.mkdir(parents=True, exist_ok=True)
    figures = options.out / FIGURES
    if options.here:
        return measure(parts, options.device, figures)
    for name in (FIGURES, LOG):
        (options.out / name).write_text("")
    about = {"commit": commit(), "python": platform.python_version(), "gpus": nvidia("name,driver_version")}
    Record("kit", figures).line(**about)
    states = [run(name, options.device, options.out, PARTS[name] * options.slack) for name in parts]
    return 0 if set(states) == {"done"} else 1


def measure(parts: list[str], device: str, figures: Path) -> int:
    """Parts in this process."""
    import torch

    from benchmarks.gpu_kit import loss, model

    if device == "cuda" and not torch.cuda.is_available():
        print(
            f"torch {torch.__version__} sees no GPU: --device cpu tries the kit without one", file=sys.stderr
        )
        return 2
    for name in parts:
        function = getattr(loss, name, None) or getattr(model, name)
        function(torch.device(device), Record(name, figures))
    return 0


def run(name: str, device: str, out: Path, limit: float) -> str:
    """One part in a process of its own, for at most `limit` seconds; how it ended."""
    record, began = Record(name, out / FIGURES), time.monotonic()
    words = ["-m", "benchmarks.gpu_kit", name, "--here", f"--device={device}", f"--out={out}"]
    environment = {
        "OMP_WAIT_POLICY": "PASSIVE",
        "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True",
        "TRITON_INTERPRET": "1" if device == "cpu" else "0",
        "HF_HUB_OFFLINE": "1",
    }
    seen, begin = (path.stat().st_size for path in (out / FIGURES, out / LOG))
    code = limited([sys.executable, *words], limit, out / LOG, 0.0, cwd=ROOT, env=os.environ | environment)
    print((out / FIGURES).read_bytes()[seen:].decode(), end="")
    said = (out / LOG).read_bytes()[begin:].decode(errors="replace").strip().split("\n")
    state = "over its limit" if code is None else "failed" if code else "done"
    why = f"exit code {code}: {said[-1]}"[:300] if code else ""
    record.line(state=state, seconds=round(time.monotonic() - began, 1), why=why)
    return state


def commit() -> str:
    """The checkout's commit, or that of the archive which `make gpu-kit` has made."""
    try:
        command = ["git", "-C", str(ROOT), "rev-parse", "HEAD"]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        file = ROOT / "commit.txt"
        return file.read_text().strip() if file.exists() else "unknown"


if __name__ == "__main__":
    sys.exit(main())
