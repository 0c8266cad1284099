"""Installs packages of Debian or Ubuntu without starting the services that come with them."""

import os
import shutil
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

from dev.errors import DevError

POLICY = Path("/usr/sbin/policy-rc.d")


def install_packages(packages: Sequence[str], missing: Callable[[], list[str]]) -> bool:
    """Installs `packages` unless no program is missing. Returns whether there was anything to do.

    Raises:
        DevError: There is no apt-get, no root, apt-get fails, or programs are missing afterwards.
    """
    if not (absent := missing()):
        return False
    if shutil.which("apt-get") is None:
        raise DevError(f"no apt-get on this machine: install {', '.join(absent)} by its own means")
    if os.getuid() != 0:
        raise DevError("apt-get needs root: use sudo")
    policy = not POLICY.exists()
    if policy:
        POLICY.write_text("#!/bin/sh\nexit 101\n")
        POLICY.chmod(0o755)
    try:
        for words in (["update"], ["install", "--yes", "--no-install-recommends", *packages]):
            done = subprocess.run(
                ["apt-get", "--quiet=2", *words], env=os.environ | {"DEBIAN_FRONTEND": "noninteractive"},
                check=False, capture_output=True, text=True,
            )  # fmt: skip
            if done.returncode:
                reason = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
                raise DevError(f"apt-get {words[0]} failed: {reason}")
    finally:
        if policy:
            POLICY.unlink()
    if absent := missing():
        raise DevError(f"still missing after apt-get: {', '.join(absent)}")
    return True
