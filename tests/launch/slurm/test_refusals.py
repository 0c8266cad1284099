"""What cannot work is refused in one line before anything is submitted, and no name reaches a shell."""

import os
import re
from pathlib import Path

import pytest
from pydantic import ValidationError

from cppo_lab.cli import main
from cppo_lab.errors import UserError
from cppo_lab.launch.slurm.ledger import Ledger
from cppo_lab.launch.slurm.queue import in_queue
from cppo_lab.launch.slurm.submit import OURS, launch_slurm
from dev.slurm.cluster import PATH, Cluster
from tests.conftest import TINY
from tests.launch.slurm.jobs import Noted, slurm_spec, takes
from tests.waiting import until

pytestmark = [pytest.mark.slurm, pytest.mark.slow]
LAUNCH = ["launch", "quickstart", *TINY, "launcher=slurm"]


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("resources.partition=nowhere", "invalid partition specified: nowhere"),
        ("resources.memory_gb=100000", "Requested node configuration is not available"),
        ("resources.cpus=4000", r"it would never start \(PartitionConfig\)"),
        ("+launcher.sbatch.reservation=never", "reservation is invalid"),
        ("+launcher.sbatch.licences=x", "unrecognized option"),
        ("launcher.worker=2", "workers"),
        ("launcher.requeue=2", "requeues"),
        ("+launcher.sbatch.output=x", r"sbatch\.output='x' must not be set here: see `cppo logs`"),
        ("+launcher.sbatch.tim=5", "must not be set here: set resources.hours"),
        ("resources.hours=0.01", "resources.hours=0.01 is a limit of 1 min"),
        ('resources.partition="debug\ntouch x"', r"partition='debug\\ntouch x': must match"),
    ],
)
def test_a_parameter_is_refused(
    override: str,
    said: str,
    bare_slurm: Cluster,
    workspace: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main([*LAUNCH, override]) == 2
    error = capsys.readouterr().err.strip()
    errors = [line for line in error.splitlines() if line.startswith("cppo: error: ")]
    assert len(errors) == 1
    assert re.search(said, errors[0])
    print(errors[0])
    assert bare_slurm.call("squeue", "-h") == ""
    runs = workspace / "runs"
    if runs.exists():
        with Ledger(runs) as ledger:
            assert ledger.open_tasks() == []
    assert not (workspace / "x").exists()


def test_it_is_refused_however_late_the_answer_is_read(
    bare_slurm: Cluster,
    workspace: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
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
    assert main([*LAUNCH, "resources.cpus=4000"]) == 2
    assert "it would never start (PartitionConfig)" in capsys.readouterr().err
    assert (workspace / "said").read_text().strip().isdigit()
    assert bare_slurm.call("squeue", "-h") == ""


@pytest.mark.parametrize("name", [*sorted(OURS.keys() - {"comment"}), "part", "no-re", "comm"])
def test_options_of_ours_cannot_be_set_twice(name: str) -> None:
    with pytest.raises(ValidationError, match="must not be set here"):
        slurm_spec(sbatch={name: "x"})


@pytest.mark.parametrize(
    "name", ["gpus", "comment", "exclusive", "mem-per-cpu", "hold", "licenses", "export"]
)
def test_other_options_can_be_set(name: str) -> None:
    assert slurm_spec(sbatch={name: "x"}).sbatch == {name: "x"}


@pytest.mark.parametrize("name", ["Exclusive", "a b", "x=1", "-x", "a\nb", ""])
def test_options_are_names(name: str) -> None:
    with pytest.raises(ValidationError):
        slurm_spec(sbatch={name: "x"})


def test_all_jobs_are_refused_when_one_is(bare_slurm: Cluster, tmp_path: Path) -> None:
    good, bad = Noted(tmp_path, "good"), Noted(tmp_path, "bad", resources=takes(partition="nowhere"))
    with pytest.raises(UserError, match="nowhere"):
        launch_slurm([good, bad], slurm_spec(), lambda event: None)
    assert bare_slurm.call("squeue", "-h") == ""


def test_names_are_no_shell(bare_slurm: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = tmp_path / "a b'c$(touch x)\"`touch x`;#&"
    runs.mkdir()
    monkeypatch.chdir(runs)
    jobs = [Noted(runs, f"job $(touch x) '{number}") for number in range(2)]
    spec = slurm_spec(
        setup=("export SAID='it is $said'", 'echo "$SAID" > setup'),
        sbatch={"begin": "now", "gres-flags": "disable-binding"},
        srun=("--export=ALL,OF_SRUN=$(touch x)",),
    )
    # As in a job of Slurm's: what it is told there is not true of the new ones.
    for name in ("SLURM_JOB_ID", "SLURM_ARRAY_JOB_ID", "SLURM_ARRAY_TASK_ID", "SLURM_RESTART_COUNT"):
        monkeypatch.setenv(name, "77")
    monkeypatch.setenv("SLURM_MEM_PER_NODE", "1")
    launch_slurm(jobs[:1], spec, lambda event: None)
    launch_slurm(jobs, spec, lambda event: None)
    assert os.environ["SLURM_JOB_ID"] == "77"
    until(
        "both have ended",
        lambda: (runs / "log").exists() and (runs / "log").read_text().count("|end\n") == 2,
    )
    until("the queue is empty", lambda: not in_queue(runs))
    assert (runs / "setup").read_text() == "it is $said\n"
    assert not list(tmp_path.rglob("x"))


@pytest.mark.parametrize("name", ["new\nline", "100%a", "back\\slash"])
def test_folders_that_slurm_would_read_differently(name: str, bare_slurm: Cluster, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="rename it, or work in another folder"):
        launch_slurm([Noted(tmp_path / name, "job")], slurm_spec(), lambda event: None)
    assert list(tmp_path.iterdir()) == []


def test_where_there_is_no_slurm(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(
        UserError, match=r"sbatch, squeue, scancel, srun not found on this machine.*login node"
    ):
        launch_slurm([Noted(workspace, "job")], slurm_spec(), lambda event: None)
