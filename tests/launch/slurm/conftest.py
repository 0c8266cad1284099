"""The session's Slurm without accounts, as many clusters are, for the tests in this folder."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from dev.slurm.cluster import PATH, Cluster
from tests.conftest import ROOT
from tests.slurm.conftest import as_slurm, slurm, slurm_cluster
from tests.waiting import until

__all__ = ["slurm", "slurm_cluster"]  # fixtures


def wait_until_empty(slurm: Cluster) -> None:
    """Until no job is left."""
    until("the queue is empty", lambda: not slurm.call("squeue -h"))


@pytest.fixture(scope="session")
def without_accounts(slurm_cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a `sacct` that finds a Slurm without accounting, and says so in its own words."""
    folder = tmp_path_factory.mktemp("without_accounts")
    lines = slurm_cluster.conf.read_text().splitlines()
    kept = [line for line in lines if not line.startswith("AccountingStor")]
    (folder / "slurm.conf").write_text(
        "\n".join([*kept, "AccountingStorageType=accounting_storage/none", ""])
    )
    sacct = folder / "sacct"
    sacct.write_text(f'#!/bin/sh\nPATH="{PATH}" SLURM_CONF="{folder}/slurm.conf" exec sacct "$@"\n')
    sacct.chmod(0o755)
    return folder


@pytest.fixture(scope="module")
def bare_slurm(slurm_cluster: Cluster, without_accounts: Path) -> Iterator[Cluster]:
    """The cluster as this module's Slurm, where `sacct` fails; jobs find the project and its tests. Afterwards it has
    no jobs, and all its nodes."""
    with as_slurm(slurm_cluster, [str(without_accounts)]) as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]))
        yield slurm_cluster
