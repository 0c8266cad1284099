"""Two people of one group, as real users of this machine, and a folder that they share. It takes root."""

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

from dev.slurm.errors import ClusterError

ROOT = Path(__file__).parents[2]
PATIENCE_SECONDS = 60.0  # for another program that changes the same files


@dataclass(frozen=True)
class Account:
    """A user with a home and a private group, who is in the group `shared` too. `python` is one that they can start."""

    name: str
    shared: str
    python: Path

    @property
    def number(self) -> int:
        """The user's number."""
        return pwd.getpwnam(self.name).pw_uid

    def environment(self) -> dict[str, str]:
        """What it takes to start the project's commands with `python`, and a home of its own."""
        return {
            "HOME": pwd.getpwnam(self.name).pw_dir,
            "USER": self.name,
            "LOGNAME": self.name,
            "PYTHONPATH": os.pathsep.join([str(ROOT), sysconfig.get_path("purelib")]),
            "LD_LIBRARY_PATH": str(self.python.parents[1] / "lib"),
            "PYTHONDONTWRITEBYTECODE": "1",
        }

    def identity(self) -> dict[str, Any]:
        """The arguments of `subprocess.Popen` that make a process theirs, with a umask of 022."""
        group = pwd.getpwnam(self.name).pw_gid
        return {"user": self.name, "group": group, "extra_groups": [self.shared], "umask": 0o022}


@contextlib.contextmanager
def two_accounts() -> Iterator[tuple[Account, Account, Path]]:
    """Two users, and a folder with the set-group-ID bit that belongs to their group."""
    mark = secrets.token_hex(3)
    names, shared = (f"ada{mark}", f"bob{mark}"), f"lab{mark}"
    base = Path(
        tempfile.mkdtemp(prefix="cppo-accounts-", dir="/tmp")
    )  # pytest's folders are its user's alone
    base.chmod(0o755)
    try:
        _administer("groupadd", shared)
        for name in names:
            home = ["--create-home", "--home-dir", str(base / name)]
            _administer("useradd", "--user-group", "--groups", shared, *home, name)
        python = _python(base)
        project = base / "project"
        project.mkdir()
        shutil.chown(project, "root", shared)
        project.chmod(0o2775)
        first, second = (Account(name, shared, python) for name in names)
        yield first, second, project
    finally:
        for name in names:
            subprocess.run(["userdel", name], check=False, capture_output=True)
        subprocess.run(["groupdel", shared], check=False, capture_output=True)
        shutil.rmtree(base, ignore_errors=True)


def _administer(*command: str) -> None:
    """One of the commands that change /etc/passwd, of which one at a time does."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode == 0:
            return
        if "lock" not in done.stderr or time.monotonic() > deadline:
            raise ClusterError(f"{' '.join(command)}: {done.stderr.strip()}")
        time.sleep(0.2)


def _python(base: Path) -> Path:
    """This Python, where any user can start it: in root's home nobody else can. The project has to be readable."""
    for needed in (ROOT, Path(sysconfig.get_path("purelib"))):
        if not _is_open(needed):
            raise ClusterError(f"{needed} can be read by its owner alone: other users cannot run it there")
    prefix = Path(sys.base_prefix)
    if not _is_open(prefix):
        subprocess.run(["cp", "--archive", "--link", str(prefix), str(base / "python")], check=True)
        prefix = base / "python"
    return prefix / "bin" / f"python3.{sys.version_info.minor}"


def _is_open(path: Path) -> bool:
    return all(folder.stat().st_mode & 0o005 == 0o005 for folder in (path, *path.parents))
