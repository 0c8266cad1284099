"""Which code made a result."""

import subprocess
from pathlib import Path

import cppo_lab


def code_version() -> str:
    """`<version>+<commit>` in a git checkout, with `.dirty` for uncommitted changes; else `<version>`."""
    root = Path(cppo_lab.__file__).resolve().parent.parent
    if not (root / ".git").exists():
        return cppo_lab.__version__
    try:
        commit = _git(root, "rev-parse", "--short=12", "HEAD")
        dirty = ".dirty" if _git(root, "status", "--porcelain", "--untracked-files=no") else ""
    except (OSError, subprocess.CalledProcessError):
        return cppo_lab.__version__
    return f"{cppo_lab.__version__}+{commit}{dirty}"


def _git(root: Path, *arguments: str) -> str:
    done = subprocess.run(
        ["git", "-C", str(root), *arguments], check=True, capture_output=True, text=True, timeout=30
    )
    return done.stdout.strip()
