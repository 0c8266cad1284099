"""The code version of a result."""

import hashlib
import subprocess
from dataclasses import dataclass
from pathlib import Path

import cppo_lab

PATIENCE_SECONDS = 30


@dataclass(frozen=True)
class CodeState:
    """The code of this process: `commit` is empty outside a git checkout.

    `changes` is a fingerprint of how tracked files differ from the commit, empty if they do not.
    """

    commit: str = ""
    changes: str = ""

    @property
    def dirty(self) -> bool:
        """Whether tracked files differ from the commit."""
        return bool(self.changes)

    @property
    def version(self) -> str:
        """`<version>+<commit>` in a git checkout, with `.dirty` for uncommitted changes; else `<version>`."""
        if not self.commit:
            return cppo_lab.__version__
        return f"{cppo_lab.__version__}+{self.commit[:12]}{'.dirty' if self.dirty else ''}"


def code_version() -> str:
    """The code version of this process, see `CodeState.version`."""
    return code_state().version


def code_state(root: Path | None = None) -> CodeState:
    """The commit of the checkout at `root`, and how its files differ; that of this package where None is given."""
    root = root or Path(cppo_lab.__file__).resolve().parent.parent
    if not (root / ".git").exists():
        return CodeState()
    try:
        commit = _git(root, "rev-parse", "HEAD").strip()
        # Names only: how a difference is printed depends on the user's settings of git.
        changed = _git(root, "diff", "--name-only", "--no-renames", "--no-ext-diff", "-z", "HEAD")
        return CodeState(commit, _fingerprint(root, changed.split("\0")[:-1]))
    except (OSError, subprocess.SubprocessError):
        return CodeState()


def _fingerprint(root: Path, names: list[str]) -> str:
    """Twelve digits for the changed files as they are now."""
    if not names:
        return ""
    digest = hashlib.sha256()
    for name in sorted(names):
        path = root / name
        content = path.read_bytes() if path.is_file() else b"\0gone"
        digest.update(name.encode(errors="surrogateescape") + b"\0" + hashlib.sha256(content).digest())
    return digest.hexdigest()[:12]


def _git(root: Path, *arguments: str) -> str:
    done = subprocess.run(
        ["git", "-C", str(root), *arguments],
        check=True,
        capture_output=True,
        text=True,
        errors="surrogateescape",
        timeout=PATIENCE_SECONDS,
    )
    return done.stdout
