"""Many jobs as one array, also of batches, on a real slurmctld: throttled, and indifferent to the controller's restart;
what Slurm's accounts add. What cannot work is refused in one line before anything is submitted; what can run later is
queued.
"""

import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from cppo_lab.launch.base import Event
from cppo_lab.launch.slurm.queue import LEFT, Ledger, ended_as, in_queue, refresh
from cppo_lab.launch.slurm.submit import launch_slurm
from cppo_lab.runs.attempt import Equipped
from cppo_lab.runs.folder import read_status
from cppo_lab.sweep.compose import compose
from dev.slurm.cluster import PATH, Cluster
from tests.conftest import TINY_LINE, Command, user_error
from tests.jobs import planned
from tests.launch.slurm.conftest import ROOT, wait_until_empty
from tests.launch.slurm.jobs import (
    Long,
    Noted,
    Sized,
    begun,
    ended,
    ends,
    most_at_once,
    notes,
    slurm_spec,
    submit,
    takes,
)
from tests.launch.test_batches import SHORT, recorded
from tests.waiting import until

pytestmark = [pytest.mark.slurm, pytest.mark.slow]


def test_a_job_on_gpus_and_its_step_have_the_cpus_of_its_layout(bare_slurm: Cluster, tmp_path: Path) -> None:
    """A job that asks for none has one, on which the processes of eight GPUs would run."""
    composed = compose(
        ["core=verl", "model=qwen3_1_7b", "layout.devices_per_node=2", "layout.cpus_per_gpu=1"]
    )
    cpus = Equipped(composed.run, tmp_path, composed.layout).cpus
    jobs = [Sized(tmp_path, "layout", gpus=2, cpus=cpus), Sized(tmp_path, "cluster", gpus=2)]
    jobs.append(Sized(tmp_path, "user", gpus=2, cpus=2, resources=takes(cpus=1)))
    submit(jobs)
    until("they have noted it", lambda: len(notes(tmp_path)) == 12)
    for name, numbers in {"layout": ["2"] * 3, "cluster": ["1", "1", "none"], "user": ["1"] * 3}.items():
        *given, gpus = [what for _, what in notes(tmp_path, name)]
        assert (given, len(gpus.split())) == (numbers, 2), name
    wait_until_empty(bare_slurm)


def test_jobs_are_one_array_four_at_a_time_and_outlive_the_controller(
    bare_slurm: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = [Noted(tmp_path, f"job{number}", "gate") for number in range(12)]
    events: list[Event[Noted]] = []
    launch_slurm(jobs, slurm_spec(workers=4), events.append)
    assert [event.kind for event in events] == ["submitted"] * 12
    until("four have begun", lambda: begun(tmp_path).total() == 4)
    names = bare_slurm.call("squeue -h -r -o", "%T %j").splitlines()
    assert sorted(names) == ["PENDING cppo"] * 8 + [f"RUNNING cppo/job{number}" for number in range(4)]
    reasons = {job.reason for job in in_queue(tmp_path).values() if job.state == "PENDING"}
    assert reasons == {"JobArrayTaskLimit"}
    bare_slurm.end("slurmctld")  # while four run: a job that ends now would try for a minute to report it
    late = Noted(tmp_path, "late")
    (impatient := tmp_path / "slurm.conf").write_text(
        bare_slurm.conf.read_text().replace("MessageTimeout=60", "MessageTimeout=2")
    )
    with monkeypatch.context() as patch, user_error("controller"):
        patch.setenv("SLURM_CONF", str(impatient))
        launch_slurm([late], slurm_spec(), events.append)
    bare_slurm.start_controller()
    launch_slurm([*jobs, late], slurm_spec(), events.append)
    assert [event.job for event in events[12:]] == [late]
    until("the late one has ended", lambda: ended(tmp_path, [late]))
    assert begun(tmp_path).total() == 4 + 1
    (tmp_path / "gate").touch()
    wait_until_empty(bare_slurm)
    assert begun(tmp_path) == Counter([job.name for job in [*jobs, late]])
    assert most_at_once(tmp_path) <= 4 + 1
    with Ledger(tmp_path) as ledger:
        assert (refresh(ledger), ledger.open_tasks()) == ({}, [])


@pytest.mark.parametrize("accounts", [True, False])
def test_why_a_job_is_gone_that_the_queue_has_forgotten(
    accounts: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    """One has ended, and one was cancelled. Without accounts nothing else is different."""
    cluster: Cluster = request.getfixturevalue("slurm" if accounts else "bare_slurm")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    expected = {"ends": "COMPLETED", "cancelled": "CANCELLED"}
    submit([Noted(tmp_path, "ends"), Long(tmp_path, "cancelled")])
    until("one has ended", lambda: set(in_queue(tmp_path)) == {"cancelled"} and begun(tmp_path)["cancelled"])
    cluster.call("scancel", in_queue(tmp_path)["cancelled"].job)
    wait_until_empty(cluster)
    with Ledger(tmp_path) as ledger:
        tasks = [ledger.newest_tasks()[name].job for name in expected]
        if accounts:  # which lag behind the queue
            until(
                "it is on record", lambda: ended_as(tasks) == dict(zip(tasks, expected.values(), strict=True))
            )
        monkeypatch.setattr("cppo_lab.launch.slurm.queue.jobs_of", lambda owners: [])  # a long time later
        refresh(ledger)
        assert ends(ledger) == (expected if accounts else dict.fromkeys(expected, LEFT))


SWEEP = f"quickstart {SHORT} variant=grpo,cppo seed=0,1,2,3"


def run_ids() -> list[str]:
    return [run.run_id for run in planned(SWEEP).runs]


def test_an_array_of_batches_with_two_launchers_at_once(bare_slurm: Cluster, cppo: Command) -> None:
    words = f"-m cppo_lab.cli launch {SWEEP} launcher=slurm launcher.workers=2".split()
    launchers = [subprocess.Popen([sys.executable, *words], stdout=subprocess.DEVNULL) for _ in range(2)]
    assert [launcher.wait() for launcher in launchers] == [0, 0]
    with Ledger(Path("runs")) as ledger:
        tasks = ledger.newest_tasks()
    assert set(tasks) == set(run_ids())
    assert [*Counter(task.job for task in tasks.values()).values()] == [4, 4]
    wait_until_empty(bare_slurm)
    assert {*cppo(f"status {SWEEP} --json").states} == {("done", "")}
    assert all(len(recorded(run_id)) == 7 for run_id in run_ids())


def test_a_run_is_taken_out_of_a_batch_that_waits(bare_slurm: Cluster, cppo: Command) -> None:
    cppo(f"launch {SWEEP} launcher=slurm +launcher.sbatch.hold=true")
    out, *others = run_ids()
    cppo(f"cancel --run {out}")
    with Ledger(Path("runs")) as ledger:
        waiting = {task.name: task.job for task in ledger.open_tasks()}
    assert set(waiting) == set(others)
    [job] = set(waiting.values())
    bare_slurm.call("scontrol release", job)
    wait_until_empty(bare_slurm)
    states = {run_id: read_status(Path("runs") / run_id)["status"] for run_id in run_ids()}
    assert states == {out: "", **dict.fromkeys(others, "done")}


LAUNCH = f"launch quickstart {TINY_LINE} launcher=slurm"


@pytest.mark.parametrize(
    "override, said",
    {
        "resources.partition=nowhere": "invalid partition specified: nowhere",
        "resources.memory_gb=100000": "Requested node configuration is not available",
        "resources.cpus=4000": r"it would never start \(PartitionConfig\)",
        "+launcher.sbatch.reservation=never": "reservation is invalid",
        "+launcher.sbatch.licences=x": "unrecognized option",
    }.items(),
)
def test_a_parameter_is_refused(
    override: str, said: str, bare_slurm: Cluster, workspace: Path, cppo: Command
) -> None:
    """Those that need no Slurm: tests/hostile/overrides.py."""
    lines = cppo(LAUNCH, override, code=2).err.splitlines()
    [error] = [line for line in lines if line.startswith("cppo: error: ")]
    assert re.search(said, error)
    assert bare_slurm.call("squeue -h") == ""
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
    assert bare_slurm.call("squeue -h") == ""


def test_nodes_that_are_drained(bare_slurm: Cluster, tmp_path: Path) -> None:
    """As during maintenance: what can run later is queued, and only what can never run is refused."""
    nodes = "NodeName=" + ",".join(bare_slurm.node_states())
    bare_slurm.call(f"scontrol update {nodes} State=DRAIN Reason=maintenance")
    try:
        submit([Noted(tmp_path, "one")])
        [queued] = in_queue(tmp_path).values()
        assert queued.state == "PENDING"
        for name, resources in (("memory", takes(memory_gb=100_000)), ("cores", takes(cpus=4000))):
            with user_error("Slurm rejects these jobs"):
                submit([Noted(tmp_path, name, resources=resources)])
        assert bare_slurm.call("squeue -h -r -o %i").split() == [queued.job]
    finally:
        bare_slurm.call(f"scontrol update {nodes} State=RESUME")
    wait_until_empty(bare_slurm)
    assert (tmp_path / "log").read_text().splitlines()[-1].endswith("end")
