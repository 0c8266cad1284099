"""Where the kit's files lie, and which commit this is."""

import json
import subprocess
from pathlib import Path

from cppo_lab.runs.machine import git

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "build" / "gpu_kit"  # git ignores it
SITE = FOLDER / "site"  # the packages that a bare machine lacks
COMMIT = FOLDER / "commit.json"


def commit() -> str:
    """This checkout's commit, with `.dirty` for changes; from the gathered kit where git or its folder is not there."""
    if (ROOT / ".git").exists():
        try:
            digits = git(ROOT, "rev-parse", "HEAD").strip()
            return digits + (".dirty" if git(ROOT, "status", "--porcelain").strip() else "")
        except (OSError, subprocess.SubprocessError):
            pass
    try:
        return str(json.loads(COMMIT.read_text(encoding="utf-8"))["commit"])
    except (OSError, ValueError, KeyError, TypeError):
        return "unknown"
