"""Installs what a development cluster needs, from Debian's or Ubuntu's packages."""

import os
import shutil
import subprocess
from pathlib import Path

from dev.slurm.errors import ClusterError
from dev.slurm.starting import missing

PACKAGES = ("slurmctld", "slurmd", "slurm-client", "munge", "iproute2")
ACCOUNTING_PACKAGES = ("slurmdbd", "slurm-wlm-mysql-plugin", "mariadb-server")
POLICY = Path("/usr/sbin/policy-rc.d")


def install(accounting: bool) -> bool:
    """Installs Slurm's packages with apt-get, unless they are there. Returns whether there was anything to do.

    The packages' own services are not started: the cluster starts its own.

    Raises:
        ClusterError: There is no apt-get, no root, or apt-get fails.
    """
    absent = missing(accounting)
    if not absent:
        return False
    if shutil.which("apt-get") is None:
        raise ClusterError(f"no apt-get on this machine: install {', '.join(absent)} by its own means")
    if os.getuid() != 0:
        raise ClusterError("apt-get needs root: use sudo")
    policy = not POLICY.exists()
    if policy:
        POLICY.write_text("#!/bin/sh\nexit 101\n", encoding="ascii")
        POLICY.chmod(0o755)
    try:
        _apt_get("update")
        packages = PACKAGES + (ACCOUNTING_PACKAGES if accounting else ())
        _apt_get("install", "--yes", "--no-install-recommends", *packages)
    finally:
        if policy:
            POLICY.unlink()
    if absent := missing(accounting):
        raise ClusterError(f"still missing after apt-get: {', '.join(absent)}")
    return True


def _apt_get(*arguments: str) -> None:
    env = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    done = subprocess.run(
        ["apt-get", "--quiet=2", *arguments], env=env, check=False, capture_output=True, text=True
    )
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
        raise ClusterError(f"apt-get {arguments[0]} failed: {reason}")
