"""The code version of a result."""

import hashlib
import os
import secrets
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import cppo_lab

PATIENCE_SECONDS = 30


@dataclass(frozen=True)
class CodeState:
    """The code of this process: `commit` is empty outside a git checkout.

    `changes` is a fingerprint of how tracked files differ from the commit, empty if they do not. `unread` is why git
    could not read a checkout, empty if it could.
    """

    commit: str = ""
    changes: str = ""
    unread: str = ""

    @property
    def dirty(self) -> bool:
        """Whether tracked files differ from the commit."""
        return bool(self.changes)

    @property
    def version(self) -> str:
        """`<version>+<commit>` in a git checkout, with `.dirty` for uncommitted changes; else `<version>`.

        `<version>+unread.<random digits>` for a checkout that git could not read: it equals no other version, since
        nothing says that the code was the same.
        """
        if self.unread:
            return f"{cppo_lab.__version__}+unread.{secrets.token_hex(6)}"
        if not self.commit:
            return cppo_lab.__version__
        return f"{cppo_lab.__version__}+{self.commit[:12]}{'.dirty' if self.dirty else ''}"


def code_version() -> str:
    """The code version of this process, see `CodeState.version`; standard error says if it could not be read."""
    state = code_state()
    if state.unread:
        print(
            f"git cannot read the code version ({state.unread}): results are recorded with a version that equals no "
            "other; try `git status` where the code is",
            file=sys.stderr,
            flush=True,
        )
    return state.version


def code_state(root: Path | None = None) -> CodeState:
    """The commit of the checkout at `root`, and how its files differ; that of this package where None is given."""
    root = root or Path(cppo_lab.__file__).resolve().parent.parent
    if not (root / ".git").exists():
        return CodeState()
    try:
        commit = git(root, "rev-parse", "HEAD").strip()
        # Names only: how a difference is printed depends on the user's settings of git.
        changed = git(root, "diff", "--name-only", "--no-renames", "--no-ext-diff", "-z", "HEAD")
        return CodeState(commit, _fingerprint(root, changed.split("\0")[:-1]))
    except (OSError, subprocess.SubprocessError) as error:
        said = str(getattr(error, "stderr", None) or error).strip().splitlines()
        return CodeState(unread=said[0] if said else type(error).__name__)


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


def git(root: Path, *arguments: str) -> str:
    """What git says of the checkout at `root`, whatever a user or a hook has set for other repositories.

    Raises OSError without git, and a SubprocessError if it fails.
    """
    # Git sets GIT_DIR and others for its hooks, and a user may: they would name another repository, index or work tree.
    variables = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    # A broken .git must not make git find a repository around the checkout.
    variables["GIT_CEILING_DIRECTORIES"] = str(root.resolve().parent)
    done = subprocess.run(
        ["git", "-C", str(root), *arguments],
        check=True,
        capture_output=True,
        text=True,
        errors="surrogateescape",
        timeout=PATIENCE_SECONDS,
        env=variables,
    )
    return done.stdout
