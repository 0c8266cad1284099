"""Installs what a development cluster needs, from Debian's or Ubuntu's packages."""

from dev.apt import install_packages
from dev.slurm.errors import ClusterError
from dev.slurm.starting import missing

PACKAGES = ("slurmctld", "slurmd", "slurm-client", "munge", "iproute2", "procps")
ACCOUNTING_PACKAGES = ("slurmdbd", "slurm-wlm-mysql-plugin", "mariadb-server")


def install(accounting: bool) -> bool:
    """Installs Slurm's packages with apt-get, unless they are there. Returns whether there was anything to do.

    The packages' own services are not started: the cluster starts its own.

    Raises:
        DevError: There is no apt-get, no root, or apt-get fails.
    """
    absent = missing(accounting)
    if not absent:
        return False
    install_packages(PACKAGES + (ACCOUNTING_PACKAGES if accounting else ()), absent)
    if absent := missing(accounting):
        raise ClusterError(f"still missing after apt-get: {', '.join(absent)}")
    return True
