"""Starts a development cluster: writes its files, then starts munged, accounting, slurmctld and a slurmd per node."""

import contextlib
import json
import os
import shutil
import stat
import time
from collections.abc import Mapping
from dataclasses import asdict

from dev.apt import install_packages
from dev.errors import DevError
from dev.slurm import network
from dev.slurm.cluster import PATH, Cluster
from dev.slurm.settings import Settings, files

# A socket's path has at most 107 characters; the longest below the folder is a step daemon's, spool/n1/n1_<job>.<step>.
LONGEST_FOLDER = 60
PROGRAMS = ("slurmctld", "slurmd", "sbatch", "munged")
ACCOUNTING_PROGRAMS = ("slurmdbd", "mariadbd", "mariadb-install-db")
NETWORK_PROGRAMS = ("unshare", "nsenter", "ip")
# Debian's and Ubuntu's, which have these programs.
PACKAGES = ("slurmctld", "slurmd", "slurm-client", "munge", "iproute2", "procps")
ACCOUNTING_PACKAGES = ("slurmdbd", "slurm-wlm-mysql-plugin", "mariadb-server")


def missing(accounting: bool = True, private_network: bool = False) -> list[str]:
    """The programs that a cluster needs and this machine lacks."""
    needed = PROGRAMS + ACCOUNTING_PROGRAMS * accounting + NETWORK_PROGRAMS * private_network
    return [program for program in needed if shutil.which(program, path=PATH) is None]


def install(accounting: bool) -> bool:
    """Installs Slurm's packages with apt-get, unless they are there. Returns whether there was anything to do.

    The packages' own services are not started: the cluster starts its own.

    Raises:
        DevError: There is no apt-get, no root, or apt-get fails.
    """
    return install_packages(PACKAGES + ACCOUNTING_PACKAGES * accounting, lambda: missing(accounting))


def start(cluster: Cluster, settings: Settings) -> bool:
    """Starts a cluster without jobs and waits until all its nodes are idle. Returns whether there was anything to do.

    Processes and files of an earlier cluster in the folder are ended and removed first.

    Raises:
        DevError: It can't be started here, one of another kind runs, or a daemon does not come up.
    """
    _check(cluster, settings)
    with cluster.lock():
        if running := cluster.running():
            if (cluster.folder / "settings.json").exists() and cluster.settings() != settings:
                raise DevError(f"a cluster of another kind runs in {cluster.folder}: stop it first")
            if running == sorted(settings.daemons()) and cluster.conf.exists():
                return False
        cluster.end_all()
        with contextlib.ExitStack() as undo:
            undo.callback(cluster.end_all)
            _start(cluster, settings)
            undo.pop_all()
    return True


def _check(cluster: Cluster, settings: Settings) -> None:
    if os.getuid() != 0:
        raise DevError(
            "the cluster needs root, to make device files and to start jobs: use sudo or a container"
        )
    if absent := missing(settings.accounting, settings.private_network):
        without = " (or start with --no-accounting)" if set(absent) <= set(ACCOUNTING_PROGRAMS) else ""
        raise DevError(f"not installed: {', '.join(absent)}: run `python3 -m dev.slurm install`{without}")
    if len(str(cluster.folder)) > LONGEST_FOLDER:
        raise DevError(f"{cluster.folder} is too long for sockets: at most {LONGEST_FOLDER} characters")


def _start(cluster: Cluster, settings: Settings) -> None:
    host, address = network.name_and_address(settings.private_network)
    with network.reserved_ports(address, settings.ports(), cluster.folder) as port:
        # Job ids start at a number that grows with time, so that jobs are not mistaken for those of an earlier cluster.
        first_job = int(time.time()) // 10 % 50_000_000 + 1
        _write(cluster, settings, files(settings, cluster.folder, host, address, port, first_job))
        _start_munge(cluster, settings)
        if settings.accounting:
            _start_accounting(cluster)
        cluster.start_controller()
        for node in settings.node_names():
            cluster.start_node(node)
        cluster.wait_for_nodes(settings.node_names())


def _write(cluster: Cluster, settings: Settings, texts: Mapping[str, str]) -> None:
    """Writes all files of a new cluster, in place of whatever is there."""
    folder = cluster.folder
    cluster.clear("lock")
    spool = [f"spool/{node}" for node in settings.node_names()]
    for name in ("state", "log", "run", "dev", "munge", "db", "spool", *spool):
        (folder / name).mkdir(mode=0o755)
    for number in range(settings.gpus):
        # /dev/null's numbers: Slurm wants a character device, and nothing can go wrong with this one.
        try:
            os.mknod(folder / "dev" / f"gpu{number}", 0o666 | stat.S_IFCHR, os.makedev(1, 3))
        except PermissionError:
            raise DevError("device files may not be made here (CAP_MKNOD): start with --gpus 0") from None
    for name, text in texts.items():
        path = folder / name
        path.touch(mode=0o600 if name == "slurmdbd.conf" else 0o644)  # slurmdbd insists
        path.write_text(text)
    (folder / "settings.json").write_text(json.dumps(asdict(settings)))


def _start_munge(cluster: Cluster, settings: Settings) -> None:
    folder = cluster.folder / "munge"
    key = folder / "key"
    key.touch(mode=0o400)
    key.write_bytes(os.urandom(128))
    options = {
        "key-file": key,
        "socket": folder / "socket",
        "pid-file": folder / "pid",
        "log-file": cluster.log / "munged.log",
        "seed-file": folder / "seed",
    }
    command = ["munged", "--foreground", *(f"--{option}={path}" for option, path in options.items())]
    # munged starts first and ends last, so that a private network lives as long as it does.
    cluster.spawn("munged", network.create_private(command) if settings.private_network else command)
    cluster.wait("munged", lambda: cluster.problem("munge", "-n", "-S", str(options["socket"])))


def _start_accounting(cluster: Cluster) -> None:
    folder = cluster.folder / "db"
    socket = folder / "socket"
    shutil.chown(folder, "mysql")
    # A server that starts removes the temporary tables of all others in the same folder.
    common = ["--no-defaults", "--user=mysql", f"--datadir={folder}/data", f"--tmpdir={folder}",
              "--innodb-log-file-size=8M"]  # fmt: skip
    # MariaDB authenticates root by the socket, without a password.
    cluster.call("mariadb-install-db", *common, "--auth-root-authentication-method=socket", "--skip-test-db",
                 "--auth-root-socket-user=root")  # fmt: skip
    cluster.spawn("mariadbd", ["mariadbd", *common, "--skip-networking", f"--socket={socket}",
                               f"--pid-file={folder}/pid", "--innodb-buffer-pool-size=64M",
                               "--innodb-lock-wait-timeout=900"])  # fmt: skip
    cluster.wait("mariadbd", lambda: "" if socket.exists() else "no socket")
    # For `localhost` MariaDB's library uses the socket that this variable names.
    cluster.spawn("slurmdbd", cluster.inside(["slurmdbd", "-D"]), MYSQL_UNIX_PORT=str(socket))
    cluster.wait("slurmdbd", lambda: cluster.problem("sacctmgr", "-n", "list", "cluster"))
    cluster.call("sacctmgr", "-i", "add", "cluster", "cppo")
