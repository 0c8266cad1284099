"""A real Slurm for the tests in this folder: one cluster for the session, started on demand.

Without Slurm the tests are skipped, but where CI or CPPO_REQUIRE_SLURM is set that is a failure.
"""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from dev.slurm import starting
from dev.slurm.cluster import PATH, Cluster, default_folder
from dev.slurm.daemons import look_up
from dev.slurm.settings import Settings
from tests.requirement import SLURM
from tests.waiting import until


def session_folder(what: str = "") -> Path:
    """A folder for a cluster of this test session."""
    return default_folder(f"tests-{os.getpid()}{what}")


def remove(cluster: Cluster) -> None:
    """Stops a cluster and removes what is left of it."""
    cluster.stop()
    shutil.rmtree(cluster.folder, ignore_errors=True)


@pytest.fixture(scope="session")
def slurm_installed() -> None:
    """Skips or fails the test where Slurm can't run, and clears away what killed sessions have left running."""
    SLURM.demand()
    for folder in session_folder().parent.glob("tests-*"):
        session = folder.name.split("-")[1]
        if session.isdigit() and look_up(int(session)) is None:
            remove(Cluster(folder))


@pytest.fixture(scope="session")
def slurm_cluster(slurm_installed: None, request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """The cluster of this session: four nodes of two CPUs and eight GPUs each, with accounting."""
    cluster = Cluster(session_folder())
    starting.start(cluster, Settings())
    yield cluster
    cluster.stop()
    if not request.session.testsfailed:
        shutil.rmtree(cluster.folder, ignore_errors=True)  # else its logs stay


@pytest.fixture
def slurm(slurm_cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    """The session's cluster as this test's Slurm: its commands find it. Afterwards it has no jobs."""
    monkeypatch.setenv("SLURM_CONF", str(slurm_cluster.conf))
    monkeypatch.setenv("PATH", PATH)
    yield slurm_cluster
    slurm_cluster.call("scancel", "--user=root")
    until("no job is left", lambda: not slurm_cluster.call("squeue", "-h"), 120)
    until("all nodes are idle", lambda: set(slurm_cluster.node_states().values()) == {"idle"}, 300)


@pytest.fixture
def small_cluster(slurm_installed: None) -> Iterator[Cluster]:
    """A folder for a second, short-lived cluster beside the session's."""
    cluster = Cluster(session_folder("-2"))
    yield cluster
    remove(cluster)
