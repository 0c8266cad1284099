"""What is made of the answers of Slurm's commands, without a cluster: stand-ins for them answer what they are told."""

import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
from submitit.helpers import DelayedSubmission

from cppo_lab import schema
from cppo_lab.errors import UserError
from cppo_lab.launch.slurm import queue, reconcile
from cppo_lab.launch.slurm.job import SlurmTask
from cppo_lab.launch.slurm.ledger import Ledger
from cppo_lab.launch.slurm.queue import ended_as, jobs_of
from cppo_lab.launch.slurm.reconcile import LEFT, in_queue, refresh
from cppo_lab.launch.slurm.submit import launch_slurm
from cppo_lab.monitor.cancel import WORD, cancel
from cppo_lab.monitor.status import Label, RunStatus
from tests.launch.slurm.jobs import Noted, slurm_spec

# `squeue` fills the format that it is asked for with each line of a file; `sacct` has one state for every job;
# `sbatch` numbers the jobs, or refuses them; `scancel` keeps what it is given.
COMMANDS = {
    "squeue": """
for word; do case "$word" in --format=*) format="${word#--format=}";; esac; done
while IFS=';' read -r job state seconds comment; do
    filled="s,%i,$job,; s,%U,$(id -u),; s,%T,$state,; s,%M,$seconds,; s,%N,,; s,%r,None,; s,%k,$comment,"
    printf '%s\\n' "$format" | sed "$filled"
done < "$ANSWERS/squeue.txt"
""",
    "sacct": """
echo asked >> "$ANSWERS/sacct_calls"
for word; do jobs="$word"; done
printf '%s\\n' "$jobs" | tr ',' '\\n' | sed "s/\\$/|$(cat "$ANSWERS/sacct.txt")/"
""",
    "sbatch": """
case "$*" in *--test-only*) exit 0;; esac
if [ -e "$ANSWERS/refuses" ]; then echo "sbatch: error: Batch job submission failed: no" >&2; exit 1; fi
echo "Submitted batch job $(($(cat "$ANSWERS/sbatch.txt") + $(echo x >> "$ANSWERS/taken"; wc -l < "$ANSWERS/taken")))"
""",
    "scancel": 'printf "%s\\n" "$@" >> "$ANSWERS/scancel.txt"',
    "scontrol": 'case "$*" in *config*) echo "MaxArraySize            = 4";; *) echo "Slurmctld(primary) is UP";; esac',
    "sinfo": "",
    "srun": "",
}


@dataclass(frozen=True)
class Slurm:
    """What the stand-ins answer, and what they were told to do."""

    folder: Path

    def shows(self, *jobs: str) -> None:
        """`squeue` shows these from now on: job;state;time;comment."""
        (self.folder / "squeue.txt").write_text("".join(f"{job}\n" for job in jobs))

    def remembers(self, state: str) -> None:
        """`sacct` has every job as `state`."""
        (self.folder / "sacct.txt").write_text(state)

    @property
    def cancelled(self) -> list[str]:
        """The jobs that `scancel` was given."""
        path = self.folder / "scancel.txt"
        words = path.read_text().split() if path.exists() else []
        return [word for word in words if not word.startswith("-")]


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Slurm:
    folder = tmp_path / "answers"
    folder.mkdir()
    for name, text in COMMANDS.items():
        (folder / name).write_text(f"#!/bin/sh\n{text}\n")
        (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("ANSWERS", str(folder))
    monkeypatch.setattr(reconcile, "SETTLING_SECONDS", 0.0)
    (folder / "sbatch.txt").write_text("99")
    answers = Slurm(folder)
    answers.shows()
    answers.remembers("")
    return answers


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    path = tmp_path / "runs"
    path.mkdir()
    return path


def submitted(ledger: Ledger, names: Sequence[str], number: int) -> None:
    ledger.submitted(ledger.claim(names), number)


# As `man squeue` has them. The first keep their place in the queue, or their nodes; the others have left it.
THERE = [
    *("PENDING", "CONFIGURING", "RUNNING", "SUSPENDED", "STOPPED", "SIGNALING", "RESIZING", "STAGE_OUT"),
    *("COMPLETING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "SPECIAL_EXIT"),
]
GONE = [
    *("BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED"),
    "TIMEOUT",
]


def test_every_state_of_a_job_is_in_the_queue_or_gone(slurm: Slurm, runs: Path) -> None:
    states = [*THERE, *GONE]
    with Ledger(runs) as ledger:
        submitted(ledger, states, 40)
        slurm.shows(*(f"40_{place};{state};0:00;" for place, state in enumerate(states)))
        assert sorted(in_queue(runs)) == sorted(THERE)
        found = refresh(ledger)
        assert {name: job.state for name, job in found.items()} == {name: name for name in THERE}
        assert sorted(task.name for task in ledger.open_tasks()) == sorted(THERE)
        newest = ledger.newest_tasks()
        assert [newest[name].ended for name in GONE] == GONE


def test_the_time_of_a_job_in_seconds(slurm: Slurm) -> None:
    times = {
        "0:07": 7,
        "12:34": 754,
        "1:02:03": 3_723,
        "2-03:04:05": 183_845,
        "1-00:00:00": 86_400,
        "INVALID": 0,
    }
    slurm.shows(*(f"{place};RUNNING;{text};" for place, text in enumerate(times)))
    assert [job.seconds for job in jobs_of([])] == list(times.values())


def test_accounts_are_asked_for_every_job_in_few_requests(
    slurm: Slurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queue, "SACCT_JOBS", 3)
    slurm.remembers("CANCELLED by 1000")
    jobs = [str(number) for number in range(10, 18)]
    assert ended_as(jobs) == dict.fromkeys(jobs, "CANCELLED")
    assert (slurm.folder / "sacct_calls").read_text().count("asked") == 3


@pytest.mark.parametrize(
    ("accounts", "ended"),
    [("RUNNING", LEFT), ("PENDING", LEFT), ("", LEFT), ("OUT_OF_MEMORY", "OUT_OF_MEMORY")],
)
def test_accounts_that_lag_do_not_say_how_a_job_ended(
    slurm: Slurm, runs: Path, accounts: str, ended: str
) -> None:
    slurm.remembers(accounts)
    with Ledger(runs) as ledger:
        submitted(ledger, ["a"], 17)
        assert refresh(ledger) == {}
        assert [task.ended for task in ledger.tasks_of("a")] == [ended]


def test_an_array_that_comes_after_it_was_given_up_is_cancelled_as_a_whole(slurm: Slurm, runs: Path) -> None:
    with Ledger(runs) as ledger:
        late = ledger.claim(["a", "b"])
        ledger.end(ledger.open_tasks_of(late), LEFT)
        submitted(ledger, ["c"], 70)
        slurm.shows("70;PENDING;0:00;x", f"77_0;PENDING;0:00;{late}", f"77_1;PENDING;0:00;{late}")
        assert list(refresh(ledger)) == ["c"]
        assert slurm.cancelled == ["77"]
        assert ledger.unanswered() == []
        refresh(ledger)
        assert slurm.cancelled == ["77"]  # once


def test_a_job_whose_launcher_died_before_it_was_complete_is_cancelled(slurm: Slurm, runs: Path) -> None:
    with Ledger(runs) as ledger:
        token = ledger.claim(["a"])
        slurm.shows(f"88;PENDING;0:00;{token}")
        refresh(ledger)
        assert slurm.cancelled == ["88"]
        assert str(ledger.newest_tasks()["a"].ended).startswith("cancelled: its launcher was killed")


def test_every_run_is_in_one_array_that_the_cluster_allows(slurm: Slurm, runs: Path) -> None:
    jobs = [Noted(runs, f"run{number}") for number in range(8)]
    events: list[str] = []
    launch_slurm(jobs, slurm_spec(), lambda event: events.append(event.job.name))
    assert events == [job.name for job in jobs]
    with Ledger(runs) as ledger:
        tasks = ledger.open_tasks()
    assert sorted(task.name for task in tasks) == sorted(events)
    assert all(task.job_id is not None for task in tasks)
    assert max(Counter(task.job_id for task in tasks).values()) <= 4  # MaxArraySize


def test_runs_that_slurm_refuses_are_free_to_be_launched_again(slurm: Slurm, runs: Path) -> None:
    job = Noted(runs, "a")
    (slurm.folder / "refuses").touch()
    with pytest.raises(UserError, match="Slurm rejects these jobs"):
        launch_slurm([job], slurm_spec(), lambda event: None)
    with Ledger(runs) as ledger:
        assert ledger.open_tasks() == []
    (slurm.folder / "refuses").unlink()
    launch_slurm([job], slurm_spec(), lambda event: None)
    with Ledger(runs) as ledger:
        assert [(task.name, task.job) for task in ledger.open_tasks()] == [("a", "100")]


@pytest.mark.parametrize("restarts", [0, 1, 2, 3])
def test_a_job_goes_back_into_the_queue_as_often_as_it_may(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, restarts: int
) -> None:
    monkeypatch.setenv("SLURM_RESTART_COUNT", str(restarts))
    task = SlurmTask(Noted(tmp_path, "a"), requeues=2)
    if restarts < 2:
        assert isinstance(task.checkpoint(), DelayedSubmission)
        return
    with pytest.raises(SystemExit, match=r"was requeued 2 times.*launcher\.requeues=2"):
        task.checkpoint()


@pytest.mark.parametrize("queued_only", [True, False])
def test_of_what_is_to_be_cancelled_only_what_waits_if_so_said(
    slurm: Slurm, runs: Path, queued_only: bool
) -> None:
    ids = ["a" * 12, "b" * 12]
    with Ledger(runs) as ledger:
        submitted(ledger, ids, 17)
    slurm.shows("17_0;RUNNING;0:07;x", "17_1;PENDING;0:00;x")
    chosen = [RunStatus(one, Label("mini", "cppo", "m", 0), schema.QUEUED) for one in ids]
    found = {one.run_id: one for one in cancel(runs, chosen, queued_only)}
    assert slurm.cancelled == (["17_1"] if queued_only else ["17_0", "17_1"])
    assert (found[ids[0]].done, found[ids[1]].done) == (not queued_only, True)
    assert (runs / ids[0] / "cancelled").exists() != queued_only  # one that is left alone is wanted still
    with Ledger(runs) as ledger:
        assert [task.name for task in ledger.open_tasks()] == ids[:1]
        assert ledger.newest_tasks()[ids[1]].ended == WORD
