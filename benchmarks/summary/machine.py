"""What the figures were measured on: the machine, and the versions of what was measured."""

import os
import platform
import re
import subprocess
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

PACKAGES = ("torch", "mlflow", "numpy", "pandas", "transformers", "verl")
MEMORY = re.compile(r"^MemTotal:\s+(\d+) kB", re.MULTILINE)
MODEL = re.compile(r"^model name\s*:\s*(.+)$", re.MULTILINE)


def machine() -> dict[str, str]:
    """Processor, threads, memory, GPUs and operating system, each in words."""
    return {
        "Processor": _processor(),
        "Threads": str(len(os.sched_getaffinity(0))),
        "Memory": _memory(),
        "GPU": _gpus(),
        "System": f"{platform.system()} {platform.release()} on {platform.machine()}",
    }


def versions() -> dict[str, str]:
    """Of Python and of the packages that decide the figures; "not installed" where there is none."""
    return {"Python": platform.python_version()} | {name: _version(name) for name in PACKAGES}


def load() -> float:
    """Processes that ran or waited for a processor, mean over the last minute."""
    return os.getloadavg()[0]


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "not installed"


def _processor() -> str:
    found = MODEL.search(_text(Path("/proc/cpuinfo")))
    return found[1].strip() if found else platform.processor() or platform.machine()


def _memory() -> str:
    found = MEMORY.search(_text(Path("/proc/meminfo")))
    return f"{int(found[1]) / 2**20:.0f} GiB" if found else "unknown"


def _gpus() -> str:
    return ", ".join(_gpu_names()) or "none"


def _gpu_names() -> Iterator[str]:
    """As NVIDIA's own command has them: torch may be a build that sees none."""
    command = ["nvidia-smi", "--query-gpu=name,memory.total", "--format=csv,noheader"]
    try:
        said = subprocess.run(command, check=True, capture_output=True, text=True, timeout=30).stdout
    except (OSError, subprocess.SubprocessError):
        return
    yield from (line.strip() for line in said.splitlines() if line.strip())


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError:
        return ""
