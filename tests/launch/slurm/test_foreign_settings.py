"""Other jobs of the user, variables of their shell and nodes that are drained do not disturb a launch."""

import os
import subprocess
from pathlib import Path

import pytest

from cppo_lab.errors import UserError
from cppo_lab.launch.slurm.queue import cancel, in_queue, jobs_of
from cppo_lab.launch.slurm.submit import launch_slurm
from dev.slurm.cluster import Cluster
from tests.launch.slurm.conftest import ROOT
from tests.launch.slurm.jobs import Noted, notes, slurm_spec, takes
from tests.waiting import until

pytestmark = [pytest.mark.slurm, pytest.mark.slow]
HELD = slurm_spec(sbatch={"hold": True})
COMMENTS = [b"my\nnote", b"a|b|c|d|e|f|g", b"not UTF-8: \xff\xfe", b"\n\n|", b"0123456789abcdef"]
# Each is an option of its command, which hides jobs or columns, asks back, or changes what is printed.
VARIABLES = {
    "SQUEUE_PARTITION": "high", "SQUEUE_STATES": "RUNNING", "SQUEUE_USERS": "daemon", "SQUEUE_FORMAT": "%i",
    "SQUEUE_NAMES": "other", "SQUEUE_ACCOUNT": "none", "SQUEUE_SORT": "bad", "SCANCEL_STATE": "RUNNING",
    "SCANCEL_INTERACTIVE": "1", "SCANCEL_NAME": "other", "SCANCEL_PARTITION": "high", "SACCT_FORMAT": "jobid",
    "SINFO_PARTITION": "high", "SINFO_FORMAT": "%N", "SLURM_TIME_FORMAT": "relative",
}  # fmt: skip


def submit(comment: bytes) -> str:
    """A held job of somebody else's making, with a comment; its number."""
    command = [
        b"sbatch",
        b"--parsable",
        b"--hold",
        b"--output=/dev/null",
        b"--comment=" + comment,
        b"--wrap=true",
    ]
    return subprocess.run(command, check=True, capture_output=True).stdout.decode().strip()


def test_comments_of_other_jobs(bare_slurm: Cluster, tmp_path: Path) -> None:
    others = [submit(comment) for comment in COMMENTS]
    jobs = [Noted(tmp_path, "one"), Noted(tmp_path, "two")]
    try:
        seen = {job.job: job for job in jobs_of([])}
        assert {seen[other].state for other in others} == {"PENDING"}
        launch_slurm(jobs, HELD, lambda event: None)
        mine = in_queue(tmp_path)
        assert set(mine) == {"one", "two"}
    finally:
        cancel(others)
    # The queue remembers them for a while (MinJobAge).
    seen = {job.job: job for job in jobs_of([])}
    assert {seen[other].state for other in others} == {"CANCELLED"}
    assert in_queue(tmp_path) == mine
    cancel([job.job for job in mine.values()])


def test_variables_of_the_shell(bare_slurm: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in VARIABLES.items():
        monkeypatch.setenv(name, value)
    jobs = [Noted(tmp_path, "one"), Noted(tmp_path, "two")]
    for _ in range(2):
        launch_slurm(jobs, HELD, lambda event: None)
    for name in VARIABLES:
        monkeypatch.delenv(name)
    shown = bare_slurm.call("squeue", "-h", "-r", "-o", "%i").split()
    assert len(shown) == 2
    assert {job.job for job in in_queue(tmp_path).values()} == set(shown)
    for name, value in VARIABLES.items():
        monkeypatch.setenv(name, value)
    cancel(shown)
    for name in VARIABLES:
        monkeypatch.delenv(name)
    until("they have left the queue", lambda: not bare_slurm.call("squeue", "-h"))


def test_a_shell_whose_variables_jobs_do_not_get(
    bare_slurm: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The variables of the batch script reach the task all the same, and the job is this cluster's."""
    shell = {"SBATCH_EXPORT": "NONE", "SBATCH_CLUSTERS": "other", "SUBMITIT_PREEMPT_SIGNAL": "HUP"}
    for name, value in shell.items():
        monkeypatch.setenv(name, value)
    settings = slurm_spec(setup=(f"export PYTHONPATH={ROOT}",))
    launch_slurm([Noted(tmp_path, "one")], settings, lambda event: None)
    until("it has run", lambda: not in_queue(tmp_path))
    assert notes(tmp_path) == [("one", "begin"), ("one", "end")]


def test_nodes_that_are_drained(bare_slurm: Cluster, tmp_path: Path) -> None:
    """As during maintenance: what can run later is queued, and only what can never run is refused."""
    nodes = "NodeName=" + ",".join(bare_slurm.node_states())
    bare_slurm.call("scontrol", "update", nodes, "State=DRAIN", "Reason=maintenance")
    try:
        launch_slurm([Noted(tmp_path, "one")], slurm_spec(), lambda event: None)
        [queued] = in_queue(tmp_path).values()
        assert queued.state == "PENDING"
        for name, resources in (("memory", takes(memory_gb=100_000)), ("cores", takes(cpus=4000))):
            with pytest.raises(UserError, match="Slurm rejects these jobs"):
                launch_slurm([Noted(tmp_path, name, resources=resources)], slurm_spec(), lambda event: None)
        assert bare_slurm.call("squeue", "-h", "-r", "-o", "%i").split() == [queued.job]
    finally:
        bare_slurm.call("scontrol", "update", nodes, "State=RESUME")
    until("it has run", lambda: not bare_slurm.call("squeue", "-h"))
    assert (tmp_path / "log").read_text().splitlines()[-1].endswith("end")


def test_a_controller_that_is_away_is_said_to_be(
    bare_slurm: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may go away between the first question and sbatch."""
    script = tmp_path / "bin" / "sbatch"
    script.parent.mkdir()
    script.write_text(
        "#!/bin/sh\necho 'sbatch: error: Batch job submission failed: Unable to contact slurm controller "
        "(connect failure)' >&2\nexit 1\n"
    )
    script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{script.parent}:{os.environ['PATH']}")
    with pytest.raises(UserError, match="Slurm's controller does not answer") as refused:
        launch_slurm([Noted(tmp_path / "runs", "one")], slurm_spec(), lambda event: None)
    assert "resources" not in str(refused.value)
    assert "nothing was submitted" in str(refused.value)
