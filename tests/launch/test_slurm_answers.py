"""What is made of the answers of Slurm's commands, without a cluster: stand-ins for them answer what they are told."""

import os
import shlex
import signal
import sqlite3
import subprocess
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace

import pytest
from submitit.helpers import DelayedSubmission

from cppo_lab import schema
from cppo_lab.errors import UserError
from cppo_lab.launch.slurm import job as job_module
from cppo_lab.launch.slurm import queue
from cppo_lab.launch.slurm.container import GO_BACK_IF_PREEMPTED, OUTSIDE
from cppo_lab.launch.slurm.job import PREDECESSOR_SECONDS, SlurmTask
from cppo_lab.launch.slurm.ledger import Ledger
from cppo_lab.launch.slurm.queue import LEFT, SETTLING_SECONDS, ended_as, in_queue, jobs_of, refresh, view
from cppo_lab.launch.slurm.submit import launch_slurm
from cppo_lab.monitor.cancel import WORD, cancel
from cppo_lab.monitor.status import Label, RunStatus
from cppo_lab.runs.folder import AlreadyRunning
from cppo_lab.signals import Interrupted
from tests.launch.slurm.jobs import Noted, notes, slurm_spec, takes

# `squeue` fills the format that it is asked for with each line of a file; `sacct` has one state for every job;
# `sbatch` numbers the jobs, or refuses them; `scancel` keeps what it is given.
COMMANDS = {
    "squeue": """
for word; do case "$word" in --format=*) format="${word#--format=}";; esac; done
while IFS=';' read -r job state seconds comment reason name; do
    filled="s,%i,$job,; s,%U,${OWNER:-$(id -u)},; s,%T,$state,; s,%M,$seconds,; s,%N,,; s,%r,${reason:-None},"
    filled="$filled; s,%j,${name:-cppo},; s,%k,$comment,"
    printf '%s\\n' "$format" | sed "$filled"
done < "$ANSWERS/squeue.txt"
""",
    "sacct": """
echo asked >> "$ANSWERS/sacct_calls"
for word; do jobs="$word"; done
printf '%s\\n' "$jobs" | tr ',' '\\n' | sed "s/\\$/|$(cat "$ANSWERS/sacct.txt")/"
""",
    "sbatch": """
says() { echo "sbatch: error: $1" >&2; exit 1; }
last=$(sed -nE 's/^#SBATCH --array=0-([0-9]+).*/\\1/p' "$1")
tasks=$(($(cat "$ANSWERS/tasks" 2>/dev/null || echo 0) + ${last:-0} + 1))
full="$(cat "$ANSWERS/full" 2>/dev/null)"
case "$*" in *--test-only*) [ "$full" != 0 ] || says QOSMaxSubmitJobPerUserLimit; exit 0;; esac
[ "${last:-0}" -lt "$(cat "$ANSWERS/longest" 2>/dev/null || echo 99)" ] || says "Invalid job array specification"
[ "$tasks" -le "${full:-99}" ] || says QOSMaxSubmitJobPerUserLimit
if grep -q partition=refused "$1"; then says "no such partition"; fi
echo "$tasks" > "$ANSWERS/tasks"
env > "$ANSWERS/environment"
cp "$1" "$ANSWERS/script"
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

    def answers(self, command: str, text: str) -> None:
        """A stand-in's shell script from now on."""
        (self.folder / command).write_text(f"#!/bin/sh\n{text}\n")

    def shows(self, *jobs: str) -> None:
        """`squeue` shows these from now on: job;state;time;comment, and a reason and a name if there are."""
        (self.folder / "squeue.txt").write_text("".join(f"{job}\n" for job in jobs))

    def remembers(self, state: str) -> None:
        """`sacct` has every job as `state`."""
        (self.folder / "sacct.txt").write_text(state)

    @property
    def script(self) -> list[str]:
        """The lines of the batch script that was submitted last."""
        return (self.folder / "script").read_text().splitlines()

    @property
    def environment(self) -> set[str]:
        """The names of the variables with which it was submitted."""
        lines = (self.folder / "environment").read_text().splitlines()
        return {line.partition("=")[0] for line in lines}

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
    monkeypatch.setattr(queue, "SETTLING_SECONDS", 0.0)
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


def launched(runs: Path, *groups: Noted) -> list[str]:
    """The names of the jobs that are in the queue after a launch of these."""
    launch_slurm(groups, slurm_spec(), lambda event: None)
    with Ledger(runs) as ledger:
        return sorted(task.name for task in ledger.open_tasks())


@pytest.mark.parametrize(
    ("config", "longest", "sizes"),
    [
        ("MaxArraySize = 1001\nSchedulerParameters = max_array_tasks=3,bf_continue", 3, [3, 3, 2]),
        ("MaxArraySize = 3\nSchedulerParameters = bf_continue,max_array_tasks=5", 2, [2, 2, 2, 2]),
        (
            "MaxArraySize = 1001\nSchedulerParameters = (null)",
            3,
            [2, 2, 2, 2],
        ),  # a limit that it does not say
        ("MaxArraySize = 1001", 1, [1] * 8),
    ],
)
def test_arrays_are_as_long_as_the_cluster_allows(
    slurm: Slurm, runs: Path, config: str, longest: int, sizes: list[int]
) -> None:
    (slurm.folder / "config").write_text(config)
    (slurm.folder / "scontrol").write_text('#!/bin/sh\ncat "$ANSWERS/config"; echo is UP\n')
    (slurm.folder / "longest").write_text(str(longest))
    assert len(launched(runs, *(Noted(runs, f"run{number}") for number in range(8)))) == 8
    with Ledger(runs) as ledger:
        arrays = Counter(task.job_id for task in ledger.open_tasks())
    assert [arrays[number] for number in sorted(arrays, key=str)] == sizes


def test_what_fits_is_submitted_and_what_does_not_is_named(
    slurm: Slurm, runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    jobs = [Noted(runs, f"run{number}", resources=takes(qos=f"q{number // 3}")) for number in range(6)]
    (slurm.folder / "full").write_text("4")
    assert launched(runs, *jobs) == ["run0", "run1", "run2", "run3"]
    line = "cppo: Slurm takes no more jobs now (QOSMaxSubmitJobPerUserLimit): not submitted: "
    assert capsys.readouterr().err.endswith(f"{line}run4, run5: launch again when others have ended\n")
    slurm.shows(*(f"{job};PENDING;0:00;x" for job in ("100_0", "100_1", "100_2", "101")))
    assert len(launched(runs, *jobs)) == 4
    (slurm.folder / "full").write_text("9")
    assert len(launched(runs, *jobs)) == 6


def test_a_refusal_says_whether_anything_was_submitted(slurm: Slurm, runs: Path) -> None:
    (slurm.folder / "full").write_text("0")
    with pytest.raises(
        UserError, match=r"takes no more jobs now \(QOSMax.*\): not submitted: a: launch again"
    ):
        launched(runs, Noted(runs, "a"))
    (slurm.folder / "full").unlink()
    bad = Noted(runs, "bad", resources=takes(partition="refused"))
    with pytest.raises(UserError, match=r"no such partition: nothing was submitted; check resources"):
        launched(runs, bad)
    with pytest.raises(UserError, match=r"no such partition: 2 other runs were submitted; check resources"):
        launched(runs, Noted(runs, "a"), Noted(runs, "b"), bad)


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


# Variable -> whether it reaches sbatch, where `resources` leaves all to the cluster, and where it sets what it can.
SHELL = {
    "SBATCH_TIMELIMIT": (False, False),
    "SBATCH_CLUSTERS": (False, False),
    "SBATCH_ARRAY_INX": (False, False),
    "SBATCH_SIGNAL": (False, False),
    "SBATCH_WAIT": (False, False),
    "SBATCH_NO_REQUEUE": (False, False),
    "SBATCH_RESERVATION": (True, False),
    "SBATCH_ACCOUNT": (True, False),
    "SBATCH_PARTITION": (True, False),
    "SBATCH_MEM_PER_NODE": (True, False),
    "SBATCH_MEM_PER_CPU": (True, False),
    "SBATCH_EXPORT": (True, True),
    "SBATCH_LICENSES_X": (True, True),
    "SUBMITIT_PREEMPT_SIGNAL": (False, False),
    "SUBMITIT_EXECUTOR": (False, False),
    "SLURM_JOB_ID": (False, False),
    "SLURM_EXPORT_ENV": (False, False),
    "SRUN_CPUS_PER_TASK": (False, False),
    "SCONTROL_ALL": (False, False),
    "SLURM_CONF": (True, True),
    "SLURM_CLUSTERS": (True, True),
}


@pytest.mark.parametrize("asked", [False, True])
def test_no_variable_of_the_shell_overrides_what_the_launcher_sets(
    slurm: Slurm, runs: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], asked: bool
) -> None:
    for name in SHELL:
        monkeypatch.setenv(name, "x")
    wanted = takes(account="a", partition="p", memory_gb=1) if asked else takes()
    spec = slurm_spec(sbatch={"reservation": "spring"} if asked else {})
    launch_slurm([Noted(runs, "a", resources=wanted)], spec, lambda event: None)
    passed = {name: name in slurm.environment for name in SHELL}
    assert passed == {name: cases[asked] for name, cases in SHELL.items()}
    assert all(os.environ[name] == "x" for name in SHELL)
    said = capsys.readouterr().err.strip()
    dropped = [name for name in SHELL if name.startswith("SBATCH_") and not passed[name]]
    assert said.startswith(f"cppo: {', '.join(sorted(dropped))}: ignored, since") and "\n" not in said


def test_launcher_and_job_agree_on_the_signal_and_the_variables(
    slurm: Slurm, runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever submitit took from the shell when it was loaded, and whatever of the shell the cluster passes on."""
    monkeypatch.setattr("submitit.slurm.slurm.SlurmJobEnvironment.USR_SIG", "USR1")
    launch_slurm([Noted(runs, "a")], slurm_spec(srun=("--export=ALL,X=1",)), lambda event: None)
    assert "#SBATCH --signal=USR2@120" in slurm.script
    [start] = [shlex.split(line) for line in slurm.script if line.startswith("srun ")]
    assert start.index("--export=ALL") < start.index("--export=ALL,X=1")  # srun takes the last
    assert "export PYTHONSAFEPATH=1 SUBMITIT_PREEMPT_SIGNAL=USR2" in slurm.script


@pytest.mark.parametrize(
    ("gpus", "settings", "resources", "there", "missing"),
    [
        (0, {"threads": 2}, {}, ["cpus-per-task=2", "srun=--cpus-per-task=2"], ["gpus-per-node", "mem"]),
        (0, {}, {"cpus": 6}, ["cpus-per-task=6", "srun=--cpus-per-task=6"], []),
        (2, {}, {}, ["gpus-per-node=2"], ["cpus-per-task", "srun=--cpus-per-task"]),
        (2, {}, {"gpu_type": "a100"}, ["gpus-per-node=a100:2"], []),
        (0, {}, {"gpu_type": "a100"}, [], ["gpus-per-node"]),
        (0, {}, {"memory_gb": 0}, ["mem=0M"], []),
        (0, {}, {"memory_gb": 1.5}, ["mem=1536M"], []),
        (0, {"sbatch": {"exclusive": True, "nice": 0}}, {}, ["exclusive", "nice=0"], []),
        (0, {"sbatch": {"exclusive": False, "hold": None}}, {}, [], ["exclusive", "hold"]),
    ],
)
def test_the_options_of_a_job(
    slurm: Slurm, runs: Path, gpus: int, settings: dict[str, object], resources: dict[str, object],
    there: list[str], missing: list[str],
) -> None:  # fmt: skip
    job = Noted(runs, "a", gpus=gpus, resources=takes(**resources))
    launch_slurm([job], slurm_spec(**settings), lambda event: None)
    options = [line.removeprefix("#SBATCH --") for line in slurm.script if line.startswith("#SBATCH")]
    [start] = [shlex.split(line) for line in slurm.script if line.startswith("srun ")]
    options += [f"srun={word}" for word in start if word.startswith("--")]
    assert set(there) <= set(options)
    assert not {option.rpartition("=")[0] or option for option in options} & set(missing)


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


@pytest.mark.parametrize(
    ("state", "reason", "held"),
    [
        ("PENDING", "launch failed requeued held", True),
        ("PENDING", "launch_failed_requeued_held", True),
        ("PENDING", "job requeued in held state", True),
        ("PENDING", "JobHeldUser", True),
        ("PENDING", "JobHeldAdmin", True),
        ("PENDING", "JobHoldMaxRequeue", True),
        ("REQUEUE_HOLD", "", True),
        ("SPECIAL_EXIT", "", True),
        ("PENDING", "Resources", False),
        ("PENDING", "AssocMaxJobsLimit", False),
        ("REQUEUED", "", False),
    ],
)
def test_a_job_that_slurm_holds_says_how_it_is_released(
    slurm: Slurm, runs: Path, state: str, reason: str, held: bool
) -> None:
    with Ledger(runs) as ledger:
        submitted(ledger, ["a", "b"], 17)
    slurm.shows(f"17_0;RUNNING;0:07;x;{reason}", f"17_1;{state};0:00;x;{reason}")
    why = f", {reason}" if reason else ""
    end = ": `scontrol release 17_1` lets it start" if held else ""
    assert view(runs).waiting("b") == f"Slurm job 17_1: {state.lower()}{why}{end}"
    assert view(runs).waiting("a") is None


@pytest.mark.parametrize("state", [*THERE, *GONE, ""])
def test_a_queue_that_shows_nothing_is_checked(slurm: Slurm, runs: Path, state: str) -> None:
    answer = (
        f"echo JobId=101 ArrayJobId=100 JobState={state} Reason=x"
        if state
        else "echo Invalid job id >&2; exit 1"
    )
    slurm.answers("scontrol", f'case "$*" in *job*100) {answer};; *) echo is UP;; esac')
    jobs = [Noted(runs, "a"), Noted(runs, "b")]
    launch_slurm(jobs, slurm_spec(), lambda event: None)
    events: list[object] = []
    if state in THERE:
        with pytest.raises(
            UserError, match="squeue shows none of your jobs, and `scontrol show job 100` one"
        ):
            launch_slurm(jobs, slurm_spec(), events.append)
        assert (view(runs).waiting("a") or "").startswith("not known now: squeue shows none of your jobs")
    else:
        launch_slurm(jobs, slurm_spec(), events.append)
    assert len(events) == (0 if state in THERE else 2)


def test_jobs_of_another_cluster_are_neither_lost_nor_cancelled(
    slurm: Slurm, runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slurm.answers("scontrol", 'echo "ClusterName = $CLUSTER"; echo is UP')
    monkeypatch.setenv("CLUSTER", "north")
    launch_slurm([Noted(runs, "a")], slurm_spec(), lambda event: None)
    slurm.shows("100;PENDING;0:00;x")
    assert list(in_queue(runs)) == ["a"]
    monkeypatch.setenv("CLUSTER", "south")
    line = "jobs of these runs are on the cluster north, and Slurm's commands ask south: set SLURM_CONF"
    with Ledger(runs) as ledger:
        for ask in (
            lambda: in_queue(runs),
            lambda: refresh(ledger),
            lambda: launch_slurm([Noted(runs, "a")], slurm_spec(), lambda event: None),
            lambda: cancel(runs, [RunStatus("a", Label("mini", "cppo", "m", 0), schema.QUEUED)], False),
        ):
            with pytest.raises(UserError, match=line):
                ask()
        assert [task.job for task in ledger.open_tasks()] == ["100"]
    assert slurm.cancelled == []
    assert (view(runs).waiting("a") or "").startswith(f"not known now: {line}")


@pytest.mark.parametrize("comment", [None, "project 7|x", 0])
def test_a_submission_is_found_whatever_comment_the_site_demands(
    slurm: Slurm, runs: Path, comment: object
) -> None:
    launch_slurm([Noted(runs, "a")], slurm_spec(sbatch={"comment": comment}), lambda event: None)
    with Ledger(runs) as ledger:
        [task] = ledger.open_tasks()
        options = {
            name: shlex.split(value)[0]
            for line in slurm.script
            for name, _, value in [line.removeprefix("#SBATCH --").partition("=")]
            if name in ("comment", "job-name")
        }
        token = task.token
        wanted = {"comment": token, "job-name": "cppo"}
        if comment is not None:
            wanted = {"comment": str(comment), "job-name": f"cppo-{token}"}
        assert options == wanted
        # As if its launcher had died before sbatch answered.
        with sqlite3.connect(runs / "slurm.db") as database:
            database.execute("UPDATE submission SET job_id = NULL")
        database.close()
        slurm.shows(f"100;PENDING;0:00;{options['comment']};;{options['job-name']}")
        assert [job.job for job in refresh(ledger).values()] == ["100"]


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


def test_nothing_is_asked_or_made_for_runs_that_were_never_submitted(
    slurm: Slurm, runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "")  # a machine without Slurm
    assert in_queue(runs) == {}
    assert list(runs.iterdir()) == []
    with Ledger(runs) as ledger:
        submitted(ledger, ["a"], 17)
        ledger.end(ledger.open_tasks(), "COMPLETED")
        assert refresh(ledger) == {}
    assert in_queue(runs) == {}


def test_a_claim_without_an_answer_is_given_time_to_come_to_the_queue(
    slurm: Slurm, runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slept: list[float] = []
    with Ledger(runs) as ledger:
        token = ledger.claim(["a"])
        [task] = ledger.open_tasks()
        (ledger.folder_of(token)).mkdir(parents=True)
        (ledger.folder_of(token) / "17_submitted.pkl").touch()

        def sleep(seconds: float) -> None:
            slept.append(seconds)
            slurm.shows(f"17;PENDING;0:00;{token}")  # meanwhile sbatch has come through

        monkeypatch.setattr(queue, "SETTLING_SECONDS", SETTLING_SECONDS)  # which the fixture has made 0
        monkeypatch.setattr(
            queue, "time", SimpleNamespace(time=lambda: task.created + SETTLING_SECONDS / 4, sleep=sleep)
        )
        assert [job.job for job in refresh(ledger).values()] == ["17"]
        assert slept == [pytest.approx(SETTLING_SECONDS * 3 / 4)]
        assert [task.job for task in ledger.open_tasks()] == ["17"]
        assert slurm.cancelled == []


STRANGER = 1_234_567  # the uid of another account
TWO = ["a" * 12, "b" * 12]


@pytest.fixture
def theirs(runs: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Ledger]:
    """A ledger with a claim of another account for two runs. All jobs in the queue are that account's."""
    monkeypatch.setenv("OWNER", str(STRANGER))
    with monkeypatch.context() as patch:
        patch.setattr(os, "getuid", lambda: STRANGER)
        with Ledger(runs) as ledger:
            ledger.claim(TWO)
    with Ledger(runs) as ledger:
        yield ledger


def test_a_job_of_another_account_is_noted_and_left_to_it(slurm: Slurm, theirs: Ledger) -> None:
    """Only they can cancel it, although its launcher died before it was complete."""
    [token] = theirs.unanswered()
    slurm.shows(f"17_0;PENDING;0:00;{token}", f"17_1;PENDING;0:00;{token}")
    found = refresh(theirs)
    assert {name: (job.job, job.owner) for name, job in found.items()} == {
        TWO[0]: ("17_0", STRANGER),
        TWO[1]: ("17_1", STRANGER),
    }
    assert slurm.cancelled == []
    assert [task.ended for task in theirs.open_tasks()] == [None, None]


@pytest.mark.parametrize("hidden", [True, False])
def test_jobs_that_the_cluster_hides_are_in_the_queue_still(
    slurm: Slurm, theirs: Ledger, runs: Path, hidden: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    theirs.submitted(theirs.unanswered()[0], 17)
    monkeypatch.setattr(queue, "shows_others", lambda: not hidden)
    found = in_queue(runs)
    if not hidden:
        assert found == {}
        return
    assert {name: (job.job, job.state, job.owner) for name, job in found.items()} == {
        TWO[0]: ("17_0", "PENDING", STRANGER),
        TWO[1]: ("17_1", "PENDING", STRANGER),
    }
    assert found[TWO[0]].reason == f"a job of {STRANGER}, which Slurm does not show to you"
    assert refresh(theirs) == found
    assert len(theirs.open_tasks()) == 2  # only its owner can see that it has ended


def test_what_another_account_trains_is_not_cancelled_and_what_waits_will_not_train(
    slurm: Slurm, theirs: Ledger, runs: Path
) -> None:
    theirs.submitted(theirs.unanswered()[0], 17)
    slurm.shows("17_0;RUNNING;0:07;x", "17_1;PENDING;0:00;x")
    chosen = [RunStatus(one, Label("mini", "cppo", "m", 0), schema.QUEUED) for one in TWO]
    active, waiting = cancel(runs, chosen, queued_only=False)
    assert (active.run_id, active.done) == (TWO[0], False)
    assert active.text == f"Slurm job 17_0 of {STRANGER} trains it: ask them to cancel it"
    assert (waiting.run_id, waiting.done) == (TWO[1], True)
    said = f"will not be trained: Slurm job 17_1 of {STRANGER} ends as soon as it starts"
    assert waiting.text == said
    assert slurm.cancelled == []
    assert not (runs / TWO[0] / "cancelled").exists()  # it goes on, and is wanted still
    assert (runs / TWO[1] / "cancelled").exists()


@dataclass(frozen=True)
class Late(Noted):
    """A job whose predecessor still holds the lock the first `busy` times."""

    busy: int = 0

    def run(self) -> None:
        """Note it, as often as it is tried."""
        self.note("tried")
        if len(notes(self.runs, self.name)) <= self.busy:
            raise AlreadyRunning(f"run {self.name} is being trained by another process")


@dataclass
class Clock:
    """Stands still but for what is slept."""

    now: float = 0.0
    slept: list[float] = field(default_factory=list)

    def monotonic(self) -> float:
        """Seconds."""
        return self.now

    def sleep(self, seconds: float) -> None:
        """At once."""
        self.now += seconds
        self.slept.append(seconds)


def test_a_requeued_job_waits_for_its_predecessor_but_not_for_ever(
    runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    monkeypatch.setattr(job_module, "time", clock)
    SlurmTask(Late(runs, "a", busy=3), requeues=2)()
    assert len(notes(runs, "a")) == 4
    assert len(clock.slept) == 3
    with pytest.raises(AlreadyRunning, match="run b is being trained by another process"):
        SlurmTask(Late(runs, "b", busy=10_000), requeues=2)()
    assert sum(clock.slept[3:]) == pytest.approx(PREDECESSOR_SECONDS, abs=1.5)


@dataclass(frozen=True)
class Warned(Noted):
    """A job that a signal ends."""

    number: int = signal.SIGTERM

    def run(self) -> None:
        """As far as the signal."""
        raise Interrupted(self.number)


@pytest.fixture
def requeues(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """The signals for which submitit's handler has requeued this job."""
    seen: list[int] = []
    before = signal.signal(signal.SIGUSR2, lambda number, frame: seen.append(number))
    monkeypatch.delenv("SLURM_RESTART_COUNT", raising=False)
    monkeypatch.delenv(OUTSIDE, raising=False)
    yield seen
    signal.signal(signal.SIGUSR2, before)


@pytest.mark.parametrize(
    ("answer", "requeued"),
    [
        ("echo JobId=7 JobState=RUNNING PreemptTime=2026-11-26T10:00:00 Comment=x", True),
        ("echo JobId=7 JobState=RUNNING PreemptTime=None", False),
        ("echo JobId=7 JobState=COMPLETING PreemptTime=2026-11-26T10:00:00", False),
        ("exit 1", False),
        (None, False),
    ],
)
def test_a_job_that_is_ended_goes_back_only_if_slurm_preempts_it(
    slurm: Slurm, runs: Path, requeues: list[int], monkeypatch: pytest.MonkeyPatch,
    answer: str | None, requeued: bool,
) -> None:  # fmt: skip
    if answer is None:
        monkeypatch.setenv("PATH", "")
    else:
        (slurm.folder / "scontrol").write_text(f"#!/bin/sh\n{answer}\n")
    task = SlurmTask(Warned(runs, "a"), requeues=2)
    if requeued:
        task()
    else:
        with pytest.raises(Interrupted, match="terminated by SIGTERM"):
            task()
    assert requeues == [signal.SIGUSR2] * requeued


def test_a_job_that_slurm_has_requeued_already_ends_as_interrupted(runs: Path, requeues: list[int]) -> None:
    def refused(number: int, frame: object) -> None:
        requeues.append(number)
        raise subprocess.CalledProcessError(1, ["scontrol", "requeue", "7"])

    signal.signal(signal.SIGUSR2, refused)
    with pytest.raises(Interrupted, match="terminated by SIGUSR2") as error:
        SlurmTask(Warned(runs, "a", number=signal.SIGUSR2), requeues=2)()
    assert requeues == [signal.SIGUSR2]
    assert error.value.__suppress_context__  # no word of `scontrol`


@pytest.mark.parametrize(
    ("restarts", "asked"), [(0, GO_BACK_IF_PREEMPTED), (1, GO_BACK_IF_PREEMPTED), (2, None)]
)
def test_in_a_container_the_batch_script_is_asked_while_the_job_may_go_back(
    runs: Path, requeues: list[int], monkeypatch: pytest.MonkeyPatch, restarts: int, asked: str | None
) -> None:
    outside = runs / "outside"
    monkeypatch.setenv(OUTSIDE, str(outside))
    monkeypatch.setenv("SLURM_RESTART_COUNT", str(restarts))
    with pytest.raises(Interrupted):
        SlurmTask(Warned(runs, "a"), requeues=2)()
    assert (outside.read_text() if outside.exists() else None) == asked
    assert requeues == []
