"""A Slurm without accounting, as many clusters are, for the tests in this folder: one a session, started on demand."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from dev.slurm import starting
from dev.slurm.cluster import PATH, Cluster
from dev.slurm.settings import Settings
from tests.slurm.conftest import session_folder, slurm, slurm_cluster, slurm_installed
from tests.waiting import until

__all__ = ["slurm", "slurm_cluster", "slurm_installed"]  # fixtures
ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="session")
def bare_cluster(slurm_installed: None, request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """The cluster of this folder's tests: four nodes of two CPUs, `sacct` fails."""
    cluster = Cluster(session_folder("-bare"))
    starting.start(cluster, Settings(accounting=False))
    yield cluster
    cluster.stop()
    if not request.session.testsfailed:
        shutil.rmtree(cluster.folder, ignore_errors=True)  # else its logs stay


@pytest.fixture(scope="module")
def around_slurm(bare_cluster: Cluster) -> Iterator[pytest.MonkeyPatch]:
    """The environment in which the cluster is this process's Slurm, and jobs find the project and its tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SLURM_CONF", str(bare_cluster.conf))
        patch.setenv("PATH", PATH)
        patch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]))
        patch.delenv("MLFLOW_TRACKING_URI", raising=False)
        yield patch


@pytest.fixture(scope="module")
def bare_slurm(bare_cluster: Cluster, around_slurm: pytest.MonkeyPatch) -> Iterator[Cluster]:
    """The cluster as this module's Slurm. Afterwards it has no jobs, and all its nodes."""
    yield bare_cluster
    bare_cluster.call("scancel", "--user=root")
    # A job that ends while the controller is away is asked about again a minute later.
    until("no job is left", lambda: not bare_cluster.call("squeue", "-h"), 120)
    until("all nodes are idle", lambda: set(bare_cluster.node_states().values()) == {"idle"}, 60)
