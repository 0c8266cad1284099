"""An image with this project in it, and programs that stand in for a container runtime of the cluster."""

import json
import shlex
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dev.slurm.cluster import PATH
from tests.conftest import ROOT
from tests.launch.slurm import container_runtime

PROJECT = "/opt/project"  # where the image has it
COMMANDS = ("scontrol", "squeue", "sbatch", "scancel", "sacct", "sinfo", "srun")
RUNTIMES = ("pyxis", "apptainer")


def stand_ins(folder: Path, names: Sequence[str] = ("srun", "apptainer")) -> Path:
    """A folder of programs for PATH."""
    folder.mkdir(exist_ok=True)
    for name in names:
        words = [sys.executable, container_runtime.__file__, name, str(folder)]
        (folder / name).write_text(f'#!/bin/sh\nexec {shlex.join(words)} "$@"\n')
        (folder / name).chmod(0o755)
    return folder


def asked(folder: Path) -> list[str]:
    """For which runtimes the stand-ins were called."""
    path = folder / container_runtime.ASKED
    return path.read_text().split() if path.exists() else []


def make_image(path: Path, **environment: str) -> Path:
    """An image whose `python` has this project and its tests, and which has none of Slurm's programs."""
    system = ["/usr", "/etc", "/proc", "/sys", "/dev"]
    places = [one for one in (sys.prefix, sys.base_prefix) if not one.startswith("/usr")]
    image = {
        "binds": {**{one: one for one in (*system, *places)}, str(ROOT): PROJECT},
        "hidden": [found for name in COMMANDS if (found := shutil.which(name, path=PATH))],
        "env": {"PATH": f"{sys.prefix}/bin:/usr/bin:/bin", "PYTHONPATH": PROJECT, **environment},
    }
    path.write_text(json.dumps(image))
    return path


def settings(runtime: str, image: Path, **more: Any) -> dict[str, Any]:
    """`launcher.container`."""
    return {"runtime": runtime, "image": str(image), "mounts": (), "environment": (), **more}


def overrides(runtime: str, image: Path) -> list[str]:
    """The same on the command line."""
    return [f"launcher.container.runtime={runtime}", f"launcher.container.image='{image}'"]
