"""Two people launch from one folder: each run is in one job, whoever submitted it, and each can go on with it."""

import json
import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from cppo_lab.runs.folder import read_status
from dev.slurm.accounts import Account, two_accounts
from dev.slurm.cluster import Cluster
from tests.conftest import TINY
from tests.launch.slurm import holding
from tests.launch.slurm.conftest import wait_until_empty
from tests.waiting import CEILING_SECONDS, until

pytestmark = [pytest.mark.slurm, pytest.mark.slow]
SWEEP = ["quickstart", *TINY, "seed=0", "training.t_stop=8", "training.collapse_share=0"]
ON_SLURM = [*SWEEP, "launcher=slurm"]
KNOWN = ("PATH", "SLURM_CONF", "OMP_NUM_THREADS", "OMP_WAIT_POLICY", "CPPO_TEST_SESSION")


class Person(Account):
    """Somebody who calls `cppo`."""

    def start(self, folder: Path, *words: str) -> "subprocess.Popen[str]":
        """`cppo` in a folder, as on a login node."""
        return subprocess.Popen(
            [str(self.python), "-m", "cppo_lab.cli", *words],
            cwd=folder,
            env={name: os.environ[name] for name in KNOWN if name in os.environ} | self.environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            **self.identity(),
        )

    def cppo(self, folder: Path, *words: str, code: int = 0) -> str:
        """What a command prints; it has to end with `code`."""
        process = self.start(folder, *words)
        printed, _ = process.communicate(timeout=CEILING_SECONDS)
        assert process.returncode == code, printed
        return printed


People = tuple[Person, Person, Path]


@pytest.fixture(scope="module")
def both(bare_slurm: Cluster) -> Iterator[People]:
    """Two accounts and their project's folder."""
    with two_accounts() as (ada, bob, project):
        yield Person(**vars(ada)), Person(**vars(bob)), project
        bare_slurm.end_jobs()  # while Slurm still knows whose they are


@pytest.fixture
def people(both: People, request: pytest.FixtureRequest) -> People:
    """The two, and a folder of this test's own in their project."""
    ada, bob, project = both
    folder = project / request.node.name.removeprefix("test_")
    folder.mkdir()
    os.chown(folder, -1, project.stat().st_gid)
    folder.chmod(0o2775)
    return ada, bob, folder


def jobs(slurm: Cluster) -> list[str]:
    """Who has a job in the queue, once for each."""
    return sorted(slurm.call("squeue -h -r -o %u").split())


def states(account: Person, folder: Path) -> list[str]:
    """The states of the sweep's runs, as one of them sees them."""
    return [row["state"] for row in json.loads(account.cppo(folder, "status", *SWEEP, "--json"))["runs"]]


def test_one_submits_and_the_other_sees_it(bare_slurm: Cluster, people: People) -> None:
    ada, bob, folder = people
    assert "3 runs are in Slurm's queue" in ada.cppo(
        folder, "launch", *ON_SLURM, "+launcher.sbatch.hold=true"
    )
    assert jobs(bare_slurm) == [ada.name] * 3
    assert "3 runs (3 queued)" in bob.cppo(folder, "launch", *ON_SLURM)
    assert jobs(bare_slurm) == [ada.name] * 3
    assert states(bob, folder) == ["queued"] * 3
    bob.cppo(folder, "status", *SWEEP, "--repair")
    assert states(ada, folder) == ["queued"] * 3
    said = bob.cppo(folder, "cancel", *SWEEP)
    assert f"of {ada.name} ends as soon as it starts" in said
    assert jobs(bare_slurm) == [ada.name] * 3
    ada.cppo(folder, "launch", *ON_SLURM)  # she wants them again
    array = bare_slurm.call("squeue -h -o %F").split()[0]
    bare_slurm.call("scontrol release", array)
    wait_until_empty(bare_slurm)
    assert states(bob, folder) == ["done"] * 3
    assert "3 runs (3 done); 0 to train" in bob.cppo(folder, "launch", *ON_SLURM)
    closed = [
        path for path in folder.rglob("*") if not path.is_symlink() and not path.stat().st_mode & stat.S_IWGRP
    ]
    assert closed == []
    assert {path.lstat().st_gid for path in folder.rglob("*")} == {folder.stat().st_gid}


def test_one_goes_on_with_what_the_other_began(bare_slurm: Cluster, people: People) -> None:
    ada, bob, folder = people
    one = [*ON_SLURM, "variant=cppo"]
    held = holding.python().replace(sys.executable, str(ada.python))
    ada.cppo(folder, "launch", *one, f"launcher.python={held}")
    (run,) = [path.parent for path in (folder / "runs").glob("*/status.json")]
    until("it trains", lambda: holding.holds(run))
    # Bob's launch leaves it alone, and he cannot cancel it.
    bob.cppo(folder, "launch", *one)
    assert jobs(bare_slurm) == [ada.name]
    assert f"of {ada.name} trains it: ask them" in bob.cppo(folder, "cancel", *SWEEP, code=1)
    ada.cppo(folder, "cancel", *SWEEP)
    wait_until_empty(bare_slurm)
    ended = read_status(run)
    assert (ended["status"], ended["step"]) == ("partial", holding.STEP)
    bob.cppo(folder, "launch", *one)
    assert jobs(bare_slurm) in ([bob.name], [])
    wait_until_empty(bare_slurm)
    (after,) = json.loads(ada.cppo(folder, "status", *SWEEP, "variant=cppo", "--json"))["runs"]
    assert after["state"] == "done", ada.cppo(folder, "logs", run.name)


def test_both_launch_a_new_folder_at_once(bare_slurm: Cluster, people: People) -> None:
    ada, bob, folder = people
    hold = "+launcher.sbatch.hold=true"
    started = [account.start(folder, "launch", *ON_SLURM, hold) for account in (ada, bob) for _ in range(2)]
    for process in started:
        printed, _ = process.communicate()
        assert process.returncode == 0, printed
    found = jobs(bare_slurm)
    assert len(found) == 3 and len(set(found)) == 1
    bare_slurm.end_jobs()
