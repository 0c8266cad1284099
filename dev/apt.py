"""Installs packages of Debian or Ubuntu without starting the services that come with them."""

import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from dev.errors import DevError

POLICY = Path("/usr/sbin/policy-rc.d")


def install_packages(packages: Sequence[str], absent: Sequence[str]) -> None:
    """Installs `packages`, which contain the `absent` programs.

    Raises:
        DevError: There is no apt-get, no root, or apt-get fails.
    """
    if shutil.which("apt-get") is None:
        raise DevError(f"no apt-get on this machine: install {', '.join(absent)} by its own means")
    if os.getuid() != 0:
        raise DevError("apt-get needs root: use sudo")
    policy = not POLICY.exists()
    if policy:
        POLICY.write_text("#!/bin/sh\nexit 101\n", encoding="ascii")
        POLICY.chmod(0o755)
    try:
        _apt_get("update")
        _apt_get("install", "--yes", "--no-install-recommends", *packages)
    finally:
        if policy:
            POLICY.unlink()


def _apt_get(*arguments: str) -> None:
    env = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    done = subprocess.run(
        ["apt-get", "--quiet=2", *arguments], env=env, check=False, capture_output=True, text=True
    )
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
        raise DevError(f"apt-get {arguments[0]} failed: {reason}")
