"""An array whose jobs are batches, on a real slurmctld: each run once."""

import subprocess
import sys
from pathlib import Path

import pytest

from cppo_lab.cli import main
from cppo_lab.launch.slurm.ledger import Ledger
from cppo_lab.runs.folder import read_status
from cppo_lab.sweep.file import load_sweep
from cppo_lab.sweep.plan import make_plan
from dev.slurm.cluster import Cluster
from tests.conftest import Command
from tests.launch.test_batches import SHORT, recorded
from tests.waiting import until

pytestmark = [pytest.mark.slurm, pytest.mark.slow]
SWEEP = ["quickstart", *SHORT, "variant=grpo,cppo", "seed=0,1,2,3"]
SLURM = ["launcher=slurm", "launcher.workers=2"]


def run_ids() -> list[str]:
    return [run.run_id for run in make_plan(load_sweep(SWEEP[0]), SWEEP[1:]).runs]


def test_an_array_of_batches_with_two_launchers_at_once(
    bare_slurm: Cluster, workspace: Path, cppo: Command
) -> None:
    command = [sys.executable, "-m", "cppo_lab.cli", "launch", *SWEEP, *SLURM]
    launchers = [subprocess.Popen(command, stdout=subprocess.DEVNULL) for _ in range(2)]
    for launcher in launchers:
        assert launcher.wait() == 0
    with Ledger(Path("runs")) as ledger:
        tasks = ledger.newest_tasks()
    assert set(tasks) == set(run_ids())
    jobs = [task.job for task in tasks.values()]
    assert len(set(jobs)) == 2 and {jobs.count(job) for job in jobs} == {4}
    until("the queue is empty", lambda: not bare_slurm.call("squeue", "-h"))
    rows = cppo("status", *SWEEP, "--json").answer["runs"]
    assert {row["state"] for row in rows} == {"done"}
    assert all(len(recorded(run_id)) == 7 for run_id in run_ids())


def test_a_run_is_taken_out_of_a_batch_that_waits(bare_slurm: Cluster, workspace: Path) -> None:
    one = [*SWEEP, "launcher=slurm", "+launcher.sbatch.hold=true"]
    assert main(["launch", *one]) == 0
    out, *others = run_ids()
    assert main(["cancel", "--run", out]) == 0
    with Ledger(Path("runs")) as ledger:
        left = {task.name: task.job for task in ledger.open_tasks()}
    assert set(left) == set(others)
    [job] = set(left.values())
    bare_slurm.call("scontrol", "release", job)
    until("the queue is empty", lambda: not bare_slurm.call("squeue", "-h"))
    states = {run_id: read_status(Path("runs") / run_id)["status"] for run_id in run_ids()}
    assert states == {out: "", **dict.fromkeys(others, "done")}
