"""A real Slurm for the tests: one cluster for each of pytest's processes that needs one, started on demand.

Without Slurm the tests are skipped, but where CI or CPPO_REQUIRE_SLURM is set that is a failure. What a killed session
leaves running, the reaper ends (tests/reaper.py).
"""

import contextlib
import os
import shutil
from collections.abc import Iterator, Sequence

import pytest

from dev.slurm import starting
from dev.slurm.cluster import PATH, Cluster, default_folder
from dev.slurm.settings import Settings
from tests.requirement import SLURM
from tests.waiting import until

# docs/slurm_dev.md says what each costs. Nothing here ends because a busy machine has not answered in time: what a
# test wants ended, it ends.
PATIENT = {
    "KillWait": "3600",
    "SlurmdTimeout": "3600",
    "SlurmctldTimeout": "3600",
    "MessageTimeout": "60",
    "TCPTimeout": "60",
    "MinJobAge": "3600",
}
# A job that may begin does so within a second.
PROMPT = {
    "SchedulerParameters": "sched_min_interval=100000,bf_interval=1,batch_sched_delay=0,sched_interval=1"
}


@contextlib.contextmanager
def cluster_folder(what: str = "") -> Iterator[Cluster]:
    """The folder of a cluster of this session, which ends with the block. Skips or fails where Slurm can't run."""
    SLURM.demand()
    cluster = Cluster(default_folder(f"tests-{os.getpid()}{what}"))
    yield cluster
    cluster.stop()
    shutil.rmtree(cluster.folder, ignore_errors=True)


@pytest.fixture(scope="session")
def slurm_cluster() -> Iterator[Cluster]:
    """The cluster of this session: four nodes of two CPUs and eight GPUs each, with accounting."""
    with cluster_folder() as cluster:
        starting.start(cluster, Settings(grace=3600, extra={**PATIENT, **PROMPT}))
        yield cluster


@contextlib.contextmanager
def as_slurm(cluster: Cluster, programs: Sequence[str] = ()) -> Iterator[pytest.MonkeyPatch]:
    """The environment in which a cluster is this process's Slurm. Afterwards the cluster has no jobs, and all nodes.

    `programs` are folders whose programs stand in for Slurm's.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SLURM_CONF", str(cluster.conf))
        patch.setenv("PATH", os.pathsep.join([*programs, PATH]))
        patch.delenv("MLFLOW_TRACKING_URI", raising=False)
        yield patch
    cluster.end_jobs()
    until("all nodes are idle", lambda: set(cluster.node_states().values()) == {"idle"})


@pytest.fixture
def slurm(slurm_cluster: Cluster) -> Iterator[Cluster]:
    """The session's cluster as this test's Slurm: its commands find it. Afterwards it has no jobs."""
    with as_slurm(slurm_cluster):
        yield slurm_cluster
