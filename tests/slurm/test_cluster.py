"""The development cluster itself: it starts, stops, survives being killed, and behaves as Slurm does elsewhere."""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from dev.errors import DevError
from dev.slurm import daemons, starting
from dev.slurm.cluster import Cluster
from dev.slurm.settings import Settings
from tests.slurm.conftest import PATIENT, cluster_folder
from tests.waiting import CEILING_SECONDS, until

pytestmark = [pytest.mark.slurm, pytest.mark.slow]
ROOT = Path(__file__).parents[2]
# Long enough for a job on a busy machine to see SIGTERM, short enough to wait for SIGKILL.
SMALL = Settings(nodes=2, accounting=False, extra={**PATIENT, "KillWait": "15", "MaxArraySize": "77"})
OURS = f".{os.getpid()}"  # a fraction of a second that tells our sleeping processes from other people's
# Ignores SIGTERM and leaves two processes behind it, one of which is in another session and has lost its environment.
STUBBORN = (
    f"trap '' TERM; sleep 9001{OURS} & setsid sleep 9002{OURS} & "
    f"env -i setsid sleep 9003{OURS} & sleep 9004{OURS}"
)


def alive(cluster: Cluster) -> list[str]:
    """Everything of a cluster that runs, by name."""
    return sorted(daemons.of_cluster(cluster.folder))


def sleeping() -> set[str]:
    """Which of the stubborn job's processes run, whoever they belong to."""
    found = subprocess.run(["ps", "-e", "-o", "args="], capture_output=True, text=True, check=True).stdout
    return {line for line in found.splitlines() if line.startswith("sleep 900") and line.endswith(OURS)}


def gone(folder: Path) -> bool:
    """Removes a folder in which others still write."""
    shutil.rmtree(folder, ignore_errors=True)
    return not folder.exists()


def command(cluster: Cluster, *words: str) -> subprocess.CompletedProcess[str]:
    """Runs the command line on a cluster's folder."""
    line = [sys.executable, "-m", "dev.slurm", "--folder", str(cluster.folder), *words]
    return subprocess.run(
        line, cwd=ROOT, capture_output=True, text=True, timeout=CEILING_SECONDS, check=False
    )


@pytest.fixture(scope="module")
def small_folder() -> Iterator[Cluster]:
    """A cluster of these tests' own, which may be started and stopped, beside the session's."""
    with cluster_folder("-2") as cluster:
        yield cluster


@pytest.fixture
def small(small_folder: Cluster) -> Cluster:
    """It runs, has no jobs, and takes some."""
    starting.start(small_folder, SMALL)
    small_folder.end_jobs()
    small_folder.wait_for_nodes(["n1", "n2"])
    return small_folder


def test_starts_and_stops(small: Cluster) -> None:
    """The next test starts it again."""
    assert small.running() == ["munged", "slurmctld", "slurmd-n1", "slurmd-n2"]
    assert not starting.start(small, SMALL)
    with pytest.raises(DevError, match="another kind runs"):
        starting.start(small, Settings(nodes=1, accounting=False))
    assert small.node_states() == {"n1": "idle", "n2": "idle"}
    assert small.stop()
    assert alive(small) == []
    assert not small.stop()
    assert sorted(path.name for path in small.folder.iterdir()) == ["lock", "log"]


def test_stop_ends_stubborn_jobs(small: Cluster) -> None:
    small.call("sbatch", "--output=/dev/null", f"--wrap={STUBBORN}")
    until("the job runs", lambda: len(sleeping()) == 4)
    small.stop()
    assert (alive(small), sleeping()) == ([], set())


@pytest.mark.parametrize("left", ["folder", "daemons", "some daemons", "daemons without folder"])
def test_starts_over_whatever_is_left(small: Cluster, left: str) -> None:
    first = small.call("sbatch", "--parsable", "--output=/dev/null", "--wrap=sleep infinity")
    until("the job runs", lambda: any(name.startswith("jobs-") for name in alive(small)))
    if left == "folder":  # as after a reboot
        small.end("*", patience=0)
        assert alive(small) == []
    if left == "some daemons":
        small.end("slurmctld", "slurmd-n2", patience=0)
    if left == "daemons without folder":
        until("the folder is gone", lambda: gone(small.folder))
    again = starting.start(small, SMALL)
    assert again is (left != "daemons")
    jobs = small.call("squeue", "-h", "-o", "%A").split()
    assert jobs == ([] if again else [first.strip()])
    assert set(small.node_states()) == {"n1", "n2"}


def test_private_network() -> None:
    with cluster_folder("-3") as cluster:
        started = command(cluster, "start", "--nodes", "2", "--no-accounting", "--private-network")
        assert (started.returncode, started.stderr) == (0, "")
        assert f"--folder {cluster.folder} run -- COMMAND" in started.stdout
        shown = "srun -N2 printenv SLURMD_NODENAME; tail -n +3 /proc/net/dev"
        *nodes, device = command(cluster, "run", "--", "sh", "-c", shown).stdout.splitlines()
        assert sorted(nodes) == ["n1", "n2"]
        assert device.strip().startswith("lo:")
        assert command(cluster, "stop").stdout == "stopped\n"


def test_listens_on_loopback_only(slurm: Cluster) -> None:
    job = subprocess.Popen(["srun", "--quiet", "-N2", "sleep", "infinity"], env=slurm.env())
    try:
        until("the job runs", lambda: "jobs-n2" in alive(slurm))
        lines = subprocess.run(
            ["ss", "-Hltunp"], capture_output=True, text=True, check=True
        ).stdout.splitlines()
    finally:
        job.send_signal(signal.SIGKILL)
        job.wait()
    ours = {one.pid for group in daemons.of_cluster(slurm.folder).values() for one in group} | {job.pid}
    addresses = [line.split()[4] for line in lines if any(f"pid={pid}," in line for pid in ours)]
    assert len(addresses) >= 2 + 4 + 2  # slurmctld and slurmdbd, the nodes, srun
    assert [address for address in addresses if not address.startswith("127.")] == []
