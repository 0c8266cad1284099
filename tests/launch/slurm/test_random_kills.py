"""A launcher that is killed at random moments, as often as one likes: finds points that nobody has named.

`test_killed_launchers.py` kills at each point that has a name. Another seed each time, which a failure prints:
`CPPO_KILLS=200 CPPO_SEED=7 pytest tests/launch/slurm/test_random_kills.py`.
"""

import os
import random
import secrets
import sqlite3
import time
from functools import partial
from pathlib import Path

import pytest

from cppo_lab.launch.slurm import queue
from cppo_lab.launch.slurm.ledger import NAME
from cppo_lab.launch.slurm.submit import launch_slurm
from dev.slurm.cluster import Cluster
from tests.launch.slurm.jobs import Noted
from tests.launch.slurm.launchers import HELD, kill, launcher, release_and_wait, wait_for_orphans
from tests.waiting import until

pytestmark = [pytest.mark.slurm, pytest.mark.slow]
KILLS = int(os.environ.get("CPPO_KILLS", "60"))
SEED = int(os.environ.get("CPPO_SEED", secrets.randbelow(1_000_000)))


def claims(runs: Path) -> int:
    """How many submissions have been begun."""
    with sqlite3.connect(runs / NAME) as database:
        return int(database.execute("SELECT COUNT(*) FROM submission").fetchone()[0])


def submits(runs: Path, known: int) -> bool:
    """Whether more submissions than the known ones have been begun."""
    return claims(runs) > known


def test_a_launcher_is_killed_at_random(
    bare_slurm: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    print(f"CPPO_SEED={SEED}")
    chance = random.Random(SEED)
    monkeypatch.setattr(queue, "SETTLING_SECONDS", 0.5)  # at times shorter than sbatch takes
    jobs = [Noted(tmp_path, f"job{number}") for number in range(2 + KILLS + KILLS // 10)]
    launchers = []
    began = time.monotonic()
    launcher(jobs[:2]).join()
    usual = time.monotonic() - began
    for number in range(KILLS):
        # Another job each time, and at times two, so that there is always something to submit.
        known = claims(tmp_path)
        process = launcher(jobs[: 3 + number + number // 10])
        if number % 4 < 2:  # around sbatch
            until("it submits", partial(submits, tmp_path, known))
            time.sleep(chance.uniform(0, usual / 2))
        else:
            time.sleep(chance.uniform(0, 1.5 * usual))
        kill(process, group=number % 2 == 1)
        launchers.append(process)
    for process in launchers:
        wait_for_orphans(process)
    launch_slurm(jobs, HELD, lambda event: None)
    release_and_wait(bare_slurm, tmp_path, jobs)
