"""Training runs on a real slurmctld: the numbers of a local launch, whatever happens to them on the way."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import pytest
from mlflow.entities import Run

from cppo_lab import schema
from cppo_lab.cli import main
from cppo_lab.cli.training import plan_states
from cppo_lab.launch.slurm.queue import QueuedJob, in_queue
from cppo_lab.runs.state import RunState
from dev.slurm.cluster import Cluster
from tests.conftest import TINY, working_in
from tests.jobs import planned
from tests.launch.slurm import holding
from tests.launch.slurm.conftest import wait_until_empty
from tests.launch.slurm.jobs import wait_until_gone
from tests.recorded import histories, mlflow_runs
from tests.waiting import until

pytestmark = [pytest.mark.slurm, pytest.mark.slow]
SLURM = "launcher=slurm"


def attempts() -> dict[str, list[Run]]:
    """The MLflow runs of each run."""
    stored: dict[str, list[Run]] = {}
    for run in mlflow_runs():
        stored.setdefault(run.data.tags[schema.TAG_RUN_ID], []).append(run)
    return stored


Histories = dict[str, dict[str, dict[int, float]]]


def states(sweep: list[str]) -> dict[str, RunState]:
    """The states of the runs of a sweep of the working folder."""
    return plan_states(planned(sweep))


def run_id(sweep: list[str]) -> str:
    """The id of a sweep's only run."""
    [run] = planned(sweep).runs
    return run.run_id


T_STOP = 8
LONG = ["quickstart", *TINY, "variant=cppo", f"training.t_stop={T_STOP}", "training.collapse_share=0"]
GO_ON = ["warned", "requeued", "its node failed", "preempted"]
FATES = {  # and where each run gets to meet it
    "warned": ["+launcher.sbatch.nodelist=n1"],
    "requeued": ["+launcher.sbatch.nodelist=n1"],
    "its node failed": ["+launcher.sbatch.nodelist=n2"],
    "preempted": ["+launcher.sbatch.nodelist=n3", "resources.partition=low_grace", "resources.cpus=2"],
    "used up": ["+launcher.sbatch.nodelist=n4", "launcher.requeues=0"],
    "terminated": ["+launcher.sbatch.nodelist=n4"],
}


class Aftermath(NamedTuple):
    """What came of the runs, by fate."""

    states: dict[str, RunState]
    stored: dict[str, list[Run]]
    expected: Histories


def sweep_of(fate: str) -> list[str]:
    """Each fate is met by another seed."""
    return [*LONG, f"seed={list(FATES).index(fate)}"]


def unbroken(folder: Path, fates: Sequence[str]) -> Histories:
    """What the runs that meet these fates record where nothing happens to them: launched from another folder, here."""
    with working_in(folder):
        for fate in fates:
            assert main(["launch", *sweep_of(fate), "launcher=inline"]) == 0
        return histories()


@pytest.fixture(scope="module")
def aftermath(bare_slurm: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Aftermath]:
    """Runs that meet with every fate, all at the same time."""
    expected = unbroken(tmp_path_factory.mktemp("local"), GO_ON)
    with working_in(folder := tmp_path_factory.mktemp("slurm")):
        ids = {fate: run_id(sweep_of(fate)) for fate in FATES}
        for fate, settings in FATES.items():
            held = f"launcher.python={holding.python()}"
            assert main(["launch", *sweep_of(fate), SLURM, *settings, held]) == 0
        jobs = meet_fates(bare_slurm, ids)
        # It goes on elsewhere: Slurm says to a dead node what it did not hear once it is back, and the job's next life
        # would be ended there for the one before.
        failed = ids["its node failed"]
        until("it waits", lambda: in_queue(folder / "runs")[failed].state == "PENDING")
        bare_slurm.call(f"scontrol update JobId={jobs[failed].job} ReqNodeList=n4")
        wait_until_gone(folder / "runs")
        bare_slurm.resume_node("n2")
        # Nothing is left to do, and ends are recorded.
        assert main(["launch", *sweep_of("warned"), SLURM]) == 0
        found = {fate: states(sweep_of(fate))[ids[fate]] for fate in FATES}
        yield Aftermath(found, attempts(), expected)


def strike(slurm: Cluster, fate: str, job: str) -> None:
    """Let it happen."""
    if fate in ("warned", "used up"):
        slurm.call("scancel --signal=USR2", job)  # as Slurm does before the time limit
    elif fate == "requeued":
        slurm.call("scontrol requeue", job)
    elif fate == "its node failed":
        slurm.fail_node("n2")
    elif fate == "preempted":
        slurm.call("sbatch -p high -w n3 -c 2 -o /dev/null --wrap true")
    elif fate == "terminated":
        slurm.call("scancel --signal=TERM", job)  # not as it is preempted: it does not go on


def meet_fates(slurm: Cluster, ids: dict[str, str]) -> dict[str, QueuedJob]:
    """Strike each of the working folder's runs, by fate, once it trains; the jobs that they were in, by run."""
    runs, left = Path("runs").resolve(), set(ids)
    jobs = in_queue(runs)

    def strike_those_that_train() -> bool:
        for fate in [fate for fate in left if holding.holds(runs / ids[fate])]:
            strike(slurm, fate, jobs[ids[fate]].job)
            left.remove(fate)
        return not left

    until("each has met its fate", strike_those_that_train)
    return jobs


def test_a_run_that_slurm_takes_away_ends_like_an_unbroken_one(aftermath: Aftermath) -> None:
    recorded = histories()
    for fate in GO_ON:
        run = run_id(sweep_of(fate))
        assert aftermath.states[fate].state == "done", fate
        assert len(aftermath.stored[run]) == 1
        assert recorded[run] == aftermath.expected[run]


def test_a_run_that_does_not_go_on_says_why(aftermath: Aftermath) -> None:
    """One that fails: test_waiting."""
    for fate, words in (
        ("used up", "SIGUSR2 (time limit or preemption) at step"),
        ("terminated", "SIGTERM at step"),
    ):
        state, why = aftermath.states[fate], f"interrupted: terminated by {words}"
        assert (state.state, state.reason[: len(why)]) == ("partial", why)
    reason = "requeued 0 times, the most allowed (launcher.requeues=0)"
    assert reason in aftermath.states["used up"].reason
    assert aftermath.states["terminated"].step == holding.STEP


def test_jobs_that_end_before_training_are_named_at_the_next_launch(
    bare_slurm: Cluster, workspace: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """A Python that the node does not have ends every job so: without a word, it would be launched for ever."""
    absent, sweep = workspace / "no_python", sweep_of("warned")
    for _ in range(2):
        assert main(["launch", *sweep, SLURM, f"launcher.python={absent}"]) == 0
        wait_until_empty(bare_slurm)
    [line] = [line for line in capfd.readouterr().err.splitlines() if "before training began" in line]
    assert "the last Slurm job of 1 run failed" in line and "launcher.python" in line
    assert f"`cppo logs {run_id(sweep)}`" in line
    assert main(["logs", run_id(sweep)]) == 0
    assert str(absent) in capfd.readouterr().out
