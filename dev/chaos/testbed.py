"""The testbed of a chaos run: its own Slurm, PostgreSQL, MLflow servers and a small disk."""

import fcntl
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from cppo_lab.tracking.address import absolute_uri
from dev.errors import DevError
from dev.servers.mlflow_server import MlflowServer
from dev.servers.postgres import Postgres, default_folder, missing
from dev.slurm import starting
from dev.slurm.accounts import Account, two_accounts
from dev.slurm.cluster import Cluster
from dev.slurm.cluster import default_folder as slurm_folder
from dev.slurm.settings import Settings

NAME = "chaos"
# One job at a time on each node; a dead node is noticed soon.
CLUSTER = Settings(nodes=3, cpus=1, gpus=0, accounting=False, extra={"SlurmdTimeout": "10"})
DISK = 96 * 2**20  # bytes of the disk that the runs are on
BLOCK = 2**20


def require() -> None:
    """Raises DevError, before anything is started, for what this machine lacks."""
    if os.getuid() != 0:
        raise DevError("the cluster needs root: use sudo or a container")
    for what, absent in (("slurm", starting.missing(accounting=False)), ("servers", missing())):
        if absent:
            raise DevError(f"not installed: {', '.join(absent)}: run `python3 -m dev.{what} install`")


@contextmanager
def exclusive() -> Iterator[None]:
    """Lets one chaos run at a time use the cluster and servers.

    Raises DevError if there is another one.
    """
    with Path(tempfile.gettempdir(), f"cppo-chaos-{os.getuid()}.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise DevError("another chaos run is in progress on this machine: wait for its end") from None
        yield


class Disk:
    """A separate file system for a folder, which can be filled and emptied. Its group may write to it."""

    def __init__(self, folder: Path) -> None:
        self.folder, self._ballast = folder, folder / "ballast"

    def mount(self) -> str:
        """Mounts a disk at the folder; returns why that is impossible here, or an empty text."""
        self.folder.mkdir(parents=True)
        options = f"size={DISK},mode=2775,gid={self.folder.stat().st_gid}"
        done = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", options, "cppo-chaos", os.fspath(self.folder)],
            check=False, capture_output=True, text=True,
        )  # fmt: skip
        return done.stderr.strip() if done.returncode else ""

    def unmount(self, kept: Path) -> None:
        """Copies its content to another folder and unmounts it."""
        self.empty()
        shutil.copytree(self.folder, kept)
        subprocess.run(["umount", "--lazy", os.fspath(self.folder)], check=True)

    def fill(self) -> None:
        """Fills all free space."""
        with self._ballast.open("wb", buffering=0) as file:
            for size in (BLOCK, 4096, 1):
                try:
                    while True:
                        file.write(b"\0" * size)
                except OSError:
                    continue

    def empty(self) -> None:
        """Frees the space that `fill` took."""
        self._ballast.unlink(missing_ok=True)


@dataclass(frozen=True)
class Testbed:
    """Everything that the disturbed study depends on. `no_disk`: why the folder of runs is not on a separate disk."""

    folder: Path
    disk: Disk
    no_disk: str
    colleague: Account
    cluster: Cluster
    postgres: Postgres
    server: MlflowServer

    @property
    def runs(self) -> Path:
        """The folder of runs."""
        return self.disk.folder


@contextmanager
def testbed(folder: Path) -> Iterator[Testbed]:
    """It is started, and removed at the end.

    Its folder belongs to a group shared with a second user, `colleague`, who launches too; the main user is root.
    Afterwards the folder has the runs in `runs-kept` and the cluster's logs in `slurm-log`.
    """
    cluster, database = Cluster(slurm_folder(NAME)), Postgres(default_folder(NAME))
    disk = Disk(folder / "runs")
    folder.mkdir(parents=True)
    with ExitStack() as undo:
        colleague, _, _ = undo.enter_context(two_accounts())
        folder.parent.chmod(0o711)
        shutil.chown(folder, group=colleague.shared)
        folder.chmod(0o2775)
        if not (no_disk := disk.mount()):
            undo.callback(disk.unmount, folder / "runs-kept")
        database.remove()  # left by a killed chaos run
        undo.callback(database.remove)
        database.start()
        server = MlflowServer(folder, absolute_uri(database.make_database("mlflow")))
        undo.callback(server.stop)
        server.start()
        cluster.stop()
        undo.callback(_stop, cluster, folder / "slurm-log")
        starting.start(cluster, CLUSTER)
        yield Testbed(folder, disk, no_disk, colleague, cluster, database, server)


def _stop(cluster: Cluster, log: Path) -> None:
    cluster.stop()
    shutil.copytree(cluster.log, log)
    shutil.rmtree(cluster.folder, ignore_errors=True)
