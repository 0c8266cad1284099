"""What cannot work is refused in one line before anything is submitted; what can run later is queued."""

import os
import re
from pathlib import Path

import pytest

from cppo_lab.launch.slurm.queue import Ledger, in_queue
from dev.slurm.cluster import PATH, Cluster
from tests.conftest import TINY, Command, user_error
from tests.launch.slurm.conftest import wait_until_empty
from tests.launch.slurm.jobs import Noted, submit, takes

pytestmark = [pytest.mark.slurm, pytest.mark.slow]
LAUNCH = " ".join(["launch quickstart", *TINY, "launcher=slurm"])


@pytest.mark.parametrize(
    "override, said",
    [
        ("resources.partition=nowhere", "invalid partition specified: nowhere"),
        ("resources.memory_gb=100000", "Requested node configuration is not available"),
        ("resources.cpus=4000", r"it would never start \(PartitionConfig\)"),
        ("+launcher.sbatch.reservation=never", "reservation is invalid"),
        ("+launcher.sbatch.licences=x", "unrecognized option"),
    ],
)
def test_a_parameter_is_refused(
    override: str, said: str, bare_slurm: Cluster, workspace: Path, cppo: Command
) -> None:
    """Those that need no Slurm: tests/hostile/overrides.py."""
    lines = cppo(LAUNCH, override, code=2).err.splitlines()
    [error] = [line for line in lines if line.startswith("cppo: error: ")]
    assert re.search(said, error)
    assert bare_slurm.call("squeue", "-h") == ""
    runs = workspace / "runs"
    if runs.exists():
        with Ledger(runs) as ledger:
            assert ledger.open_tasks() == []


def test_it_is_refused_however_late_the_answer_is_read(
    bare_slurm: Cluster, workspace: Path, monkeypatch: pytest.MonkeyPatch, cppo: Command
) -> None:
    """The scheduler's next pass replaces the reason that the submission gave by the begin time."""
    sbatch = workspace / "bin" / "sbatch"
    sbatch.parent.mkdir()
    sbatch.write_text(f"""#!/bin/bash
        PATH={PATH}
        sbatch "$@" > {workspace}/said || exit $?
        cat {workspace}/said
        case "$*" in *--begin*) ;; *) exit;; esac
        until [[ $(squeue --noheader --jobs=$(cat {workspace}/said) --format=%r) == BeginTime ]]; do sleep 0.2; done
        """)
    sbatch.chmod(0o755)
    monkeypatch.setenv("PATH", str(sbatch.parent), prepend=os.pathsep)
    assert "it would never start (PartitionConfig)" in cppo(f"{LAUNCH} resources.cpus=4000", code=2).err
    assert (workspace / "said").read_text().strip().isdigit()
    assert bare_slurm.call("squeue", "-h") == ""


def test_nodes_that_are_drained(bare_slurm: Cluster, tmp_path: Path) -> None:
    """As during maintenance: what can run later is queued, and only what can never run is refused."""
    nodes = "NodeName=" + ",".join(bare_slurm.node_states())
    bare_slurm.call("scontrol", "update", nodes, "State=DRAIN", "Reason=maintenance")
    try:
        submit([Noted(tmp_path, "one")])
        [queued] = in_queue(tmp_path).values()
        assert queued.state == "PENDING"
        for name, resources in (("memory", takes(memory_gb=100_000)), ("cores", takes(cpus=4000))):
            with user_error("Slurm rejects these jobs"):
                submit([Noted(tmp_path, name, resources=resources)])
        assert bare_slurm.call("squeue", "-h", "-r", "-o", "%i").split() == [queued.job]
    finally:
        bare_slurm.call("scontrol", "update", nodes, "State=RESUME")
    wait_until_empty(bare_slurm)
    assert (tmp_path / "log").read_text().splitlines()[-1].endswith("end")
