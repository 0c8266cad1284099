"""Two real users of this machine in one group, and a folder that they share. Needs root."""

import contextlib
import os
import pwd
import secrets
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dev.errors import DevError

ROOT = Path(__file__).parents[2]
PATIENCE_SECONDS = 60.0  # wait for another program that changes the same files


@dataclass(frozen=True)
class Account:
    """A user with a home and a private group, who is in the group `shared` too.

    `python`, the project's `code` and the installed `packages` are in places that they can read.
    """

    name: str
    shared: str
    python: Path
    code: Path
    packages: Path

    @property
    def number(self) -> int:
        """The user's uid."""
        return pwd.getpwnam(self.name).pw_uid

    def environment(self) -> dict[str, str]:
        """The environment to run the project's commands with `python`, with its own home."""
        return {
            "HOME": pwd.getpwnam(self.name).pw_dir,
            "USER": self.name,
            "LOGNAME": self.name,
            "PYTHONPATH": os.pathsep.join([str(self.code), str(self.packages)]),
            "LD_LIBRARY_PATH": str(self.python.parents[1] / "lib"),
            "PYTHONDONTWRITEBYTECODE": "1",
        }

    def identity(self) -> dict[str, Any]:
        """The arguments of `subprocess.Popen` that start a process as this user, with a umask of 022."""
        group = pwd.getpwnam(self.name).pw_gid
        return {"user": self.name, "group": group, "extra_groups": [self.shared], "umask": 0o022}


@contextlib.contextmanager
def two_accounts() -> Iterator[tuple[Account, Account, Path]]:
    """Two users, and a folder with the set-group-ID bit that belongs to their group."""
    mark = secrets.token_hex(3)
    names, shared = (f"ada{mark}", f"bob{mark}"), f"lab{mark}"
    # pytest's folders are private to its user.
    base = Path(tempfile.mkdtemp(prefix="cppo-accounts-", dir="/tmp"))
    base.chmod(0o755)
    try:
        _administer("groupadd", shared)
        for name in names:
            home = ["--create-home", "--home-dir", str(base / name)]
            _administer("useradd", "--user-group", "--groups", shared, *home, name)
        places = _places(base)
        # git refuses another user's checkout, and what a run records would lack the commit.
        for name in names:
            settings = base / name / ".gitconfig"
            settings.write_text(f'[safe]\n\tdirectory = "{places[1]}"\n')
            shutil.chown(settings, name, name)
        project = base / "project"
        project.mkdir()
        shutil.chown(project, "root", shared)
        project.chmod(0o2775)
        first, second = (Account(name, shared, *places) for name in names)
        yield first, second, project
    finally:
        for name in names:
            subprocess.run(["userdel", name], check=False, capture_output=True)
        subprocess.run(["groupdel", shared], check=False, capture_output=True)
        shutil.rmtree(base, ignore_errors=True)


def _administer(*command: str) -> None:
    """Run a command that changes /etc/passwd, one at a time."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode == 0:
            return
        if "lock" not in done.stderr or time.monotonic() > deadline:
            raise DevError(f"{' '.join(command)}: {done.stderr.strip()}")
        time.sleep(0.2)


def _places(base: Path) -> tuple[Path, Path, Path]:
    """Paths of this Python, the project's code and the installed packages that any user can read.

    Files below a private folder (root's home) get a second path, by hard links.
    """
    prefix = _readable(Path(sys.base_prefix), base / "python")
    packages = _readable(Path(sysconfig.get_path("purelib")), base / "packages")
    code = ROOT
    if not _is_open(code):
        code = base / "code"
        code.mkdir()
        listed = subprocess.check_output(["git", "-C", str(ROOT), "ls-files", "-z"], text=True)
        for name in {".git", *(path.partition("/")[0] for path in listed.split("\0")[:-1])}:
            _linked(ROOT / name, code / name)
    return prefix / "bin" / f"python3.{sys.version_info.minor}", code, packages


def _readable(path: Path, second: Path) -> Path:
    """The path if any user can read it, else a second one of the same files."""
    return path if _is_open(path) else _linked(path, second)


def _linked(source: Path, target: Path) -> Path:
    """A second path of a tree by hard links; a copy if the file system has none."""
    command = ["cp", "--archive", str(source), str(target)]
    if subprocess.run([*command, "--link"], check=False, capture_output=True).returncode:
        shutil.rmtree(target, ignore_errors=True)
        subprocess.run(command, check=True)
    return target


def _is_open(path: Path) -> bool:
    return all(folder.stat().st_mode & 0o005 == 0o005 for folder in (path, *path.parents))
