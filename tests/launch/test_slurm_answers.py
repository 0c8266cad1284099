"""What Slurm's commands are asked, and what is made of their answers, without a cluster: stand-ins answer."""

import os
import pwd
import re
import shlex
import signal
import sqlite3
import subprocess
from collections import Counter
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import Mock, patch

import pytest
from submitit.helpers import DelayedSubmission

from cppo_lab import schema
from cppo_lab.errors import Interrupted
from cppo_lab.launch.queues import CANCELLED, Cancelled, cancel, settle_jobs
from cppo_lab.launch.slurm import LEDGER, queue
from cppo_lab.launch.slurm.job import GO_BACK_IF_PREEMPTED, OUTSIDE, PREDECESSOR_SECONDS, SlurmTask
from cppo_lab.launch.slurm.queue import (
    LEFT,
    SETTLING_SECONDS,
    Ledger,
    QueuedJob,
    ended_as,
    in_queue,
    jobs_of,
    refresh,
    shows_others,
    view,
)
from cppo_lab.launch.slurm.submit import title_of
from cppo_lab.launch.training import TrainingJob
from cppo_lab.runs.attempt import Attempt
from cppo_lab.runs.folder import AlreadyRunning
from cppo_lab.search.worker import Worker
from cppo_lab.spec.job import layout_tag
from cppo_lab.spec.run import fingerprint
from cppo_lab.sweep.compose import compose
from cppo_lab.sweep.preflight import PreflightJob
from tests.conftest import ROOT, user_error
from tests.jobs import job as job_of
from tests.jobs import run_of
from tests.launch.slurm.jobs import Noted, ends, notes, submit, takes
from tests.launch.stand_in import SILENT, Slurm, slurm

__all__ = ["slurm"]  # a fixture


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    path = tmp_path / "runs"
    path.mkdir()
    return path


@pytest.fixture
def ledger(runs: Path) -> Iterator[Ledger]:
    with Ledger(runs) as ledger:
        yield ledger


def submitted(ledger: Ledger, names: list[str], number: int) -> None:
    ledger.submitted(ledger.claim(names), number)


def launched(runs: Path, *jobs: Noted, **settings: object) -> list[str]:
    """The names of the jobs that are in the queue after a launch of these."""
    submit(jobs, **settings)
    with Ledger(runs) as ledger:
        return sorted(task.name for task in ledger.open_tasks())


# As `man squeue` has them. The first keep their place in the queue, or their nodes; the others have left it.
STATES = """
PENDING CONFIGURING RUNNING SUSPENDED STOPPED SIGNALING RESIZING STAGE_OUT COMPLETING REQUEUED REQUEUE_HOLD
REQUEUE_FED SPECIAL_EXIT;
BOOT_FAIL CANCELLED COMPLETED DEADLINE FAILED NODE_FAIL OUT_OF_MEMORY PREEMPTED TIMEOUT
"""
THERE, GONE = map(str.split, STATES.split(";"))


def test_every_state_of_a_job_is_in_the_queue_or_gone(slurm: Slurm, runs: Path, ledger: Ledger) -> None:
    states = [*THERE, *GONE]
    submitted(ledger, states, 40)
    slurm.shows(*(f"40_{place};{state};" for place, state in enumerate(states)))
    assert {*in_queue(runs)} == {*THERE}
    assert {name: job.state for name, job in refresh(ledger).items()} == {name: name for name in THERE}
    assert ends(ledger) == {name: name if name in GONE else None for name in states}


def test_accounts_are_asked_for_every_job_in_few_requests(
    slurm: Slurm, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("cppo_lab.launch.slurm.queue.SACCT_JOBS", 3)
    slurm.says("sacct.txt", "CANCELLED by 1000")
    jobs = [str(number) for number in range(10, 18)]
    assert ended_as(jobs) == dict.fromkeys(jobs, "CANCELLED")
    assert slurm.logged("sacct_calls").count("asked") == 3
    for name in ("sacct", "scontrol"):
        slurm.command(name, SILENT)
    assert capsys.readouterr().err == ""
    monkeypatch.setattr("cppo_lab.launch.slurm.queue.SACCT_SECONDS", 0.1)
    assert ended_as(jobs) == {}  # at the first request, and it says so
    assert capsys.readouterr().err.count("sacct did not answer within 0 s") == 1
    monkeypatch.setattr("cppo_lab.launch.slurm.queue.PATIENCE_SECONDS", 0.1)
    assert shows_others() == (os.getuid() == 0)


@pytest.mark.parametrize(
    "accounts, ended", {"RUNNING": LEFT, "PENDING": LEFT, "": LEFT, "OUT_OF_MEMORY": "OUT_OF_MEMORY"}.items()
)
def test_accounts_that_lag_do_not_say_how_a_job_ended(
    slurm: Slurm, ledger: Ledger, runs: Path, accounts: str, ended: str
) -> None:
    slurm.says("sacct.txt", accounts)
    submitted(ledger, ["a"], 17)
    assert view(runs).words(["a"]) == ({} if ended == LEFT else {"a": ended})
    assert refresh(ledger) == {}
    assert ledger.newest_tasks()["a"].ended == ended


def test_jobs_of_launchers_that_died_before_they_were_complete_are_cancelled(
    slurm: Slurm, ledger: Ledger
) -> None:
    """Also by a launcher after one that died as it cancelled them."""
    late, hollow = ledger.claim(["a", "b"]), ledger.claim(["d"])
    ledger.end(ledger.open_tasks(late), LEFT)
    submitted(ledger, ["c"], 70)
    array = (f"77_{task};PENDING;{late}" for task in (0, 1))  # in the queue after it was given up
    slurm.shows("70;PENDING;x", *array, f"88;PENDING;{hollow}")
    with (
        patch("cppo_lab.launch.slurm.queue.cancel", Mock(side_effect=KeyboardInterrupt)),
        pytest.raises(KeyboardInterrupt),
    ):
        refresh(ledger)
    for _ in range(2):  # once
        assert list(refresh(ledger)) == ["c"]
        assert sorted(slurm.cancelled) == ["77", "88"]
        assert ledger.unanswered() == []
    assert ledger.newest_tasks()["d"].ended.startswith("cancelled: its launcher was killed")


def test_a_repair_says_which_jobs_are_over_and_which_there_never_were(
    slurm: Slurm, runs: Path, ledger: Ledger
) -> None:
    submitted(ledger, ["a", "b"], 70)
    adopted = ledger.claim(["c"])
    ledger.claim(["d"])  # its launcher died before sbatch did anything
    slurm.shows("70_0;RUNNING;x", f"77;PENDING;{adopted}")
    assert sorted(settle_jobs(runs)) == [
        "b: Slurm job 70_1 is over",
        "c: Slurm job 77 is over",
        "d: its submission never became a Slurm job",
    ]
    assert settle_jobs(runs) == []


@pytest.mark.parametrize(
    "config, longest, sizes",
    [
        ("MaxArraySize = 4", 3, [3, 3, 2]),
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
def test_every_run_is_in_one_array_that_the_cluster_allows(
    slurm: Slurm, runs: Path, ledger: Ledger, config: str, longest: int, sizes: list[int]
) -> None:
    slurm.says("config.txt", config)
    slurm.says("longest", longest)
    jobs = [Noted(runs, f"run{number}") for number in range(8)]
    assert launched(runs, *jobs) == [job.name for job in jobs]
    arrays = Counter(task.job_id for task in ledger.open_tasks())
    assert [size for _, size in sorted(arrays.items())] == sizes


def test_what_fits_is_submitted_and_what_does_not_is_named(
    slurm: Slurm, runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    jobs = [Noted(runs, f"run{number}", resources=takes(qos=f"q{number // 3}")) for number in range(6)]
    slurm.says("full", 4)
    assert launched(runs, *jobs) == ["run0", "run1", "run2", "run3"]
    line = "cppo: Slurm takes no more jobs now (QOSMaxSubmitJobPerUserLimit): not submitted: "
    assert capsys.readouterr().err.endswith(f"{line}run4, run5: launch again when others have ended\n")
    slurm.shows(*(f"{job};PENDING;x" for job in ("100_0", "100_1", "100_2", "101")))
    assert len(launched(runs, *jobs)) == 4
    slurm.says("full", 9)
    assert len(launched(runs, *jobs)) == 6


def test_a_refusal_says_whether_anything_was_submitted(slurm: Slurm, runs: Path) -> None:
    good = [Noted(runs, "a"), Noted(runs, "b")]
    refused, away = (Noted(runs, name, resources=takes(partition=name)) for name in ("refused", "away"))
    rejects = "Slurm rejects these jobs: no such partition: {} submitted; check resources"
    for limit, jobs, text in (
        (0, good, r"takes no more jobs now \(QOSMax.*\): not submitted: a, b: launch again"),
        (99, [refused], rejects.format("nothing was")),
        (99, [*good, refused], rejects.format("2 other runs were")),
        (99, [away], r"controller does not answer \(Socket timed out\): nothing was submitted; see that"),
    ):
        slurm.says("full", limit)
        with user_error(text):
            launched(runs, *jobs)
    slurm.shows("100_0;PENDING;x", "100_1;PENDING;x")
    assert launched(runs, *good, Noted(runs, "bad")) == ["a", "b", "bad"]  # what was refused is free


def test_the_trial_of_a_job_is_cancelled_whatever_sbatch_says_around_its_number(
    slurm: Slurm, runs: Path
) -> None:
    slurm.command(
        "sbatch",
        """case "$*" in
        *--test-only*) echo "sbatch: error: nodes are down" >&2; exit 1;;
        *--parsable*) printf 'Welcome to the cluster\\n---\\n%s\\n' "77;cluster";;
        *) echo "Submitted batch job 78";;
        esac""",
    )
    assert launched(runs, Noted(runs, "a")) == ["a"]
    assert slurm.cancelled == ["77"]


@pytest.mark.parametrize(
    "answer, job",
    {
        "Submitted batch job 78": "78",
        "Submitted batch job 78 on cluster north": "78",
        r"This is job 3 of 10\nSubmitted batch job 78": "78",
        r"cr\351dit: 5 h\nSubmitted batch job 78": "78",  # in Latin-1
        "job 78 is queued": "78",
        "Submitted batch job 99999999999999999999": "",
        "": "",
    }.items(),
)
def test_the_number_of_a_job_is_found_in_what_sbatch_says(
    slurm: Slurm, runs: Path, ledger: Ledger, answer: str, job: str
) -> None:
    slurm.command("sbatch", f"printf '{answer}\\n'")
    with nullcontext() if job else user_error("Could not make sense of sbatch output .*: launch again; if"):
        launched(runs, Noted(runs, "a"))
    assert [task.job for task in ledger.open_tasks()] == [job]


# Variables of the shell that reach sbatch: never, where `resources` leaves all to the cluster, and always.
VARIABLES = """
SBATCH_TIMELIMIT SBATCH_CLUSTERS SBATCH_ARRAY_INX SBATCH_SIGNAL SBATCH_WAIT SBATCH_NO_REQUEUE
SBATCH_CPUS_PER_GPU SBATCH_GPUS_PER_SOCKET SUBMITIT_PREEMPT_SIGNAL SUBMITIT_EXECUTOR _TEST_CLUSTER_
SLURM_JOB_ID SLURM_EXPORT_ENV SRUN_CPUS_PER_TASK SCONTROL_ALL SQUEUE_STATES;
SBATCH_RESERVATION SBATCH_ACCOUNT SBATCH_PARTITION SBATCH_MEM_PER_NODE SBATCH_MEM_PER_CPU SBATCH_MEM_PER_GPU;
SBATCH_EXPORT SBATCH_LICENSES_X SLURM_CONF SLURM_CLUSTERS
"""
NEVER, UNLESS_SET, ALWAYS = map(str.split, VARIABLES.split(";"))


@pytest.mark.parametrize(
    "asked, job", [(False, {}), (True, {}), (False, {"gpus": 2}), (False, {"gpus": 2, "cpus": 24})]
)
def test_no_variable_of_the_shell_overrides_what_the_launcher_sets(
    slurm: Slurm, runs: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], asked: bool,
    job: dict[str, Any],
) -> None:  # fmt: skip
    """Slurm refuses --cpus-per-task and --cpus-per-gpu together: the shell says the latter if no layout says either."""
    shell = [*NEVER, *UNLESS_SET, *ALWAYS]
    for name in shell:
        monkeypatch.setenv(name, "/dev/null")
    wanted = takes(account="a", partition="p", memory_gb=1) if asked else takes()
    sbatch = {"reservation": "spring"} if asked else {}
    launched(runs, Noted(runs, "a", **job, resources=wanted), sbatch=sbatch)
    environment = slurm.logged("environment").splitlines()
    passed = [name for name in shell if f"{name}=/dev/null" in environment]
    without_cpus = ["SBATCH_CPUS_PER_GPU"] if job == {"gpus": 2} else []
    assert passed == [*without_cpus, *([] if asked else UNLESS_SET), *ALWAYS]
    assert all(os.environ[name] == "/dev/null" for name in shell)
    said = capsys.readouterr().err.strip()
    dropped = sorted(name for name in shell if name.startswith("SBATCH_") and name not in passed)
    assert said.startswith(f"cppo: {', '.join(dropped)}: ignored, since") and "\n" not in said


@patch("submitit.slurm.slurm.SlurmJobEnvironment.USR_SIG", "USR1")
def test_launcher_and_job_agree_on_the_signal_and_the_variables(slurm: Slurm, runs: Path) -> None:
    """Whatever submitit took from the shell when it was loaded, and whatever of the shell the cluster passes on."""
    launched(runs, Noted(runs, "a"), srun=("--export=ALL,X=1",))
    assert slurm.options["signal"] == "USR2@120"
    [submitted] = runs.rglob("*_submitted.pkl")
    assert DelayedSubmission.load(submitted).function.grace_seconds == 120
    [start] = [shlex.split(line) for line in slurm.script if line.startswith("srun ")]
    assert start.index("--export=ALL") < start.index("--export=ALL,X=1")  # srun takes the last
    assert "export PYTHONSAFEPATH=1 SUBMITIT_PREEMPT_SIGNAL=USR2" in slurm.script


EIGHT = {"gpus": 8, "cpus": 96}
BEGIN_ALIKE = dict.fromkeys(("gpus", "licenses", "export"), "x")  # or like the beginning of one of ours


@pytest.mark.parametrize(
    "job, settings, resources, expected",
    [
        ({}, {"threads": 2}, {}, "cpus-per-task=2 srun=2 gpus-per-node=- mem=-"),
        ({}, {}, {"cpus": 6, "gpu_type": "a100"}, "cpus-per-task=6 srun=6 gpus-per-node=-"),
        ({"gpus": 2}, {}, {}, "gpus-per-node=2 cpus-per-task=- srun=- mem=-"),
        ({"gpus": 2}, {}, {"gpu_type": "a100"}, "gpus-per-node=a100:2"),
        ({}, {}, {"memory_gb": 0}, "mem=0M"),
        ({}, {}, {"memory_gb": 1.5}, "mem=1536M"),
        ({}, {"sbatch": {"exclusive": True, "nice": 0}}, {}, "exclusive= nice=0"),
        ({}, {"sbatch": {"exclusive": False, "hold": None}}, {}, "exclusive=- hold=-"),
        ({}, {"sbatch": BEGIN_ALIKE}, {}, "gpus=x licenses=x export=x"),
        # What a layout asks for, with the memory of nodes that are taken whole; anything that a user says comes first.
        ({"gpus": 2, "cpus": 24}, {"threads": 2}, {}, "cpus-per-task=24 srun=24 mem=-"),
        (EIGHT, {}, {}, "cpus-per-task=96 srun=96 mem=0M"),
        ({"gpus": 2, "cpus": 24, "nodes": 2}, {}, {}, "cpus-per-task=24 srun=24 mem=0M"),
        (EIGHT, {}, {"cpus": 64, "memory_gb": 500}, "cpus-per-task=64 srun=64 mem=512000M"),
        (EIGHT, {"srun": ("--cpus-per-task=80",)}, {}, "cpus-per-task=96 srun=80"),
        (
            EIGHT,
            {"sbatch": {"cpus-per-gpu": 8, "mem-per-gpu": "90G"}},
            {},
            "cpus-per-task=- srun=- mem=- cpus-per-gpu=8",
        ),
        (EIGHT, {"sbatch": {"cpus-per-gpu": None, "mem-per-cpu": False}}, {}, "srun=96 mem=0M"),
        ({"nodes": 2}, {}, {}, "srun=1 mem=-"),
    ],
)
def test_the_options_of_a_job(
    slurm: Slurm, runs: Path, job: dict[str, Any], settings: dict[str, object], resources: dict[str, object],
    expected: str,
) -> None:  # fmt: skip
    """`srun` is its number of CPUs; what it is not asked for is `-`."""
    launched(runs, Noted(runs, "a", **job, resources=takes(**resources)), **settings)
    asked = slurm.options
    if cpus := re.search(
        r"\nsrun .*--cpus-per-task=(\d+)", slurm.logged("script")
    ):  # the last, as srun takes it
        asked["srun"] = cpus[1]
    names = [word.partition("=")[0] for word in expected.split()]
    assert " ".join(f"{name}={asked.get(name, '-')}" for name in names) == expected


def test_every_layout_on_gpus_asks_for_cpus() -> None:
    texts = [path.read_text() for path in (ROOT / "conf" / "layout").glob("*.yaml")]
    silent = [text for text in texts if "device: cuda" in text and not re.search(r"\ncpus_per_gpu: \d", text)]
    assert len(texts) > 9 and silent == []


@pytest.mark.parametrize(
    "words, cpus",
    {
        "core=verl model=qwen3_1_7b": 96,
        "core=verl model=qwen3_1_7b layout.devices_per_node=1": 12,
        "core=verl model=qwen3_1_7b layout.cpus_per_gpu=null": None,  # the cluster gives them by itself
        "core=verl model=tiny_qwen3 +layout.cpus_per_gpu=5": None,
        "layout=one_node": None,  # the embedded core has no layout
    }.items(),
)
def test_every_kind_of_job_asks_for_the_cpus_of_its_gpus(words: str, cpus: int | None, runs: Path) -> None:
    composed = compose(words.split())
    training = job_of(composed.run, runs, "", layout=composed.layout)
    preflight = PreflightJob(composed.run, runs, composed.layout, folder=runs / "preflight")
    worker = Worker(cast(Any, None), training)
    assert [job.cpus for job in (training, preflight, worker)] == [cpus] * 3
    # Times are kept by the layout without them, as those of older versions are.
    none = composed.layout.model_copy(update={"cpus_per_gpu": None})
    assert layout_tag(composed.layout) == layout_tag(none) == f"{none.name}@{fingerprint(none)}"


@pytest.mark.parametrize(
    "state, reason, held",
    [
        ("PENDING", "launch failed requeued held", True),
        ("PENDING", "JobHeldUser", True),
        ("PENDING", "JobHoldMaxRequeue", True),
        ("REQUEUE_HOLD", "", True),
        ("SPECIAL_EXIT", "", True),
        ("PENDING", "Resources", False),
        ("REQUEUED", "", False),
    ],
)
def test_a_job_that_slurm_holds_says_how_it_is_released(
    slurm: Slurm, runs: Path, ledger: Ledger, state: str, reason: str, held: bool
) -> None:
    submitted(ledger, ["a", "b"], 17)
    slurm.shows(f"17_0;RUNNING;x;{reason}", f"17_1;{state};x;{reason}")
    why = f", {reason}" if reason else ""
    end = ": `scontrol release 17_1` lets it start" if held else ""
    places = view(runs).places()
    assert places["b"].waits == f"Slurm job 17_1: {state.lower()}{why}{end}"
    assert (places["a"].waits, places["a"].active) == (None, True)


@pytest.mark.parametrize("state", ["PENDING", "COMPLETING", "FAILED", ""])
def test_a_queue_that_shows_nothing_is_checked(slurm: Slurm, runs: Path, ledger: Ledger, state: str) -> None:
    submitted(ledger, ["a", "b"], 100)
    if state:
        slurm.says("job.txt", f"JobId=101 ArrayJobId=100 JobState={state} Reason=x")
    if state in THERE:
        with user_error("shows none of your jobs, and `scontrol show job 100` one"):
            refresh(ledger)
        assert view(runs).places()["a"].waits.startswith("not known now: squeue shows none of your jobs")
    else:
        assert refresh(ledger) == {}
    assert len(ledger.open_tasks()) == (2 if state in THERE else 0)


def test_a_new_job_that_a_queue_does_not_show_yet_is_not_submitted_again(
    slurm: Slurm, runs: Path, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some sites' squeue answers from a cache."""
    submitted(ledger, ["a", "b"], 100)
    slurm.shows("100_0;RUNNING;x")
    slurm.says("job.txt", "JobId=101 ArrayJobId=100 ArrayTaskId=1 JobState=PENDING Reason=x")
    with user_error("shows not all of your jobs, and `scontrol show job 100_1` one"):
        refresh(ledger)
    monkeypatch.setattr(queue, "_CACHED_SECONDS", 0.0)
    assert set(refresh(ledger)) == {"a"}


def test_jobs_of_another_cluster_are_neither_lost_nor_cancelled(slurm: Slurm, runs: Path) -> None:
    job = Noted(runs, "a")
    slurm.says("config.txt", "ClusterName = north")
    launched(runs, job)
    slurm.shows("100;PENDING;x")
    assert list(in_queue(runs)) == ["a"]
    slurm.says("config.txt", "ClusterName = south")
    line = "jobs of these runs are on the cluster north, and Slurm's commands ask south: set SLURM_CONF"
    for ask in (
        lambda: in_queue(runs),
        lambda: settle_jobs(runs),
        lambda: launched(runs, job),
        lambda: cancel(runs, ["a"], False),
    ):
        with user_error(line):
            ask()
    with Ledger(runs) as ledger:
        assert [task.job for task in ledger.open_tasks()] == ["100"]
    assert slurm.cancelled == []
    assert view(runs).places()["a"].waits.startswith(f"not known now: {line}")


@pytest.mark.parametrize("comment", [None, "project 7|x", 0])
def test_a_submission_is_found_whatever_comment_the_site_demands(
    slurm: Slurm, runs: Path, ledger: Ledger, comment: object
) -> None:
    launched(runs, Noted(runs, "a"), sbatch={"comment": comment})
    [token] = {task.token for task in ledger.open_tasks()}
    comment, name = (token, "cppo/a") if comment is None else (str(comment), f"cppo/a@{token}")
    assert (slurm.options["comment"], slurm.options["job-name"]) == (comment, name)
    for shown in (name, f"cppo-{token}"):  # the second as older versions gave it
        with sqlite3.connect(ledger.path) as database:  # as if its launcher had died before sbatch answered
            database.execute("UPDATE submission SET job_id = NULL")
        database.close()
        slurm.shows(f"100;PENDING;{comment};;{shown}")
        assert [job.job for job in refresh(ledger).values()] == ["100"]


@pytest.mark.parametrize(
    "variants, size, title",
    [
        ({"mine": "cppo w_min=0.8, λ|x", "study": "b"}, 1, "mine/cppo_w_min=0.8_x-1-{id}"),
        ({}, 1, "cppo/cppo-1-{id}"),
        ({"quickstart": "n" * 300}, 1, "quickstart/" + "n" * 89),
        ({"quickstart": "cppo"}, 3, "quickstart/cppo-3-runs"),
    ],
)
def test_a_job_is_named_after_its_sweep_and_run(
    runs: Path, variants: dict[str, str], size: int, title: str
) -> None:
    spec = run_of("rule=cppo seed=1")
    attempt = Attempt(spec, runs, tags={schema.sweep_tag(sweep): name for sweep, name in variants.items()})
    job = TrainingJob((attempt,) * size, "", batch="batch-1" if size > 1 else "")
    assert title_of(job) == title.format(id=spec.run_id[:4])


TWO = ["a" * 12, "b" * 12]


@pytest.mark.parametrize("queued_only", [True, False])
def test_of_what_is_to_be_cancelled_only_what_waits_if_so_said(
    slurm: Slurm, runs: Path, ledger: Ledger, queued_only: bool
) -> None:
    submitted(ledger, TWO, 17)
    slurm.shows("17_0;RUNNING;x", "17_1;PENDING;x")
    left_alone = "Slurm job 17_0 has started meanwhile: left alone"
    assert {run.run_id: (run.text, run.done) for run in cancel(runs, TWO, queued_only)} == {
        TWO[0]: (left_alone if queued_only else "ended; the next launch resumes it", not queued_only),
        TWO[1]: ("taken out of Slurm's queue (job 17_1)", True),
    }
    assert slurm.cancelled == (["17_1"] if queued_only else ["17_0", "17_1"])
    assert (runs / TWO[0] / "cancelled").exists() != queued_only  # one that is left alone is wanted still
    assert ends(ledger) == {TWO[0]: None, TWO[1]: CANCELLED}


def test_nothing_is_asked_or_made_for_runs_that_were_never_submitted(
    runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "")  # a machine without Slurm
    assert in_queue(runs) == {}
    assert list(runs.iterdir()) == []
    with Ledger(runs) as ledger:
        submitted(ledger, ["a"], 17)
        ledger.end(ledger.open_tasks(), "COMPLETED")
        assert refresh(ledger) == in_queue(runs) == {}


def test_a_claim_without_an_answer_is_given_time_to_come_to_the_queue(
    slurm: Slurm, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    token = ledger.claim(["a"])
    [task] = ledger.open_tasks()
    ledger.folder_of(token).mkdir(parents=True)
    (ledger.folder_of(token) / "17_submitted.pkl").touch()
    # Meanwhile sbatch comes through.
    sleep = Mock(side_effect=lambda seconds: slurm.shows(f"17;PENDING;{token}"))
    monkeypatch.setattr(
        "cppo_lab.launch.slurm.queue.SETTLING_SECONDS", SETTLING_SECONDS
    )  # which the fixture has made 0
    clock = SimpleNamespace(time=lambda: task.created + SETTLING_SECONDS / 4, sleep=sleep)
    monkeypatch.setattr("cppo_lab.launch.slurm.queue.time", clock)
    assert [job.job for job in refresh(ledger).values()] == ["17"]
    sleep.assert_called_once_with(pytest.approx(SETTLING_SECONDS * 3 / 4))
    assert [task.job for task in ledger.open_tasks()] == ["17"]
    assert slurm.cancelled == []


STRANGER = 1_234_567  # the uid of another account


@pytest.fixture
def theirs(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> Ledger:
    """A ledger with a claim of another account for two runs. All jobs in the queue are that account's."""
    monkeypatch.setenv("OWNER", str(STRANGER))
    with monkeypatch.context() as patch:
        patch.setattr("os.getuid", lambda: STRANGER)
        ledger.claim(TWO)
    return ledger


def test_a_job_of_another_account_is_noted_and_left_to_it(slurm: Slurm, theirs: Ledger, runs: Path) -> None:
    """Only they can cancel it, although its launcher died before it was complete."""
    [token] = theirs.unanswered()
    slurm.shows(f"17_0;RUNNING;{token}", f"17_1;PENDING;{token}")
    jobs = {name: (job.job, job.owner) for name, job in refresh(theirs).items()}
    assert jobs == {TWO[0]: ("17_0", STRANGER), TWO[1]: ("17_1", STRANGER)}
    trains = f"Slurm job 17_0 of {STRANGER} trains it: ask them to cancel it"
    waits = f"will not be trained: Slurm job 17_1 of {STRANGER} ends as soon as it starts"
    assert cancel(runs, TWO, queued_only=False) == [
        Cancelled(TWO[0], trains, False),
        Cancelled(TWO[1], waits, True),
    ]
    assert slurm.cancelled == []
    assert [task.ended for task in theirs.open_tasks()] == [None, None]
    # The first goes on, and is wanted still.
    assert [(runs / run_id / "cancelled").exists() for run_id in TWO] == [False, True]


@pytest.mark.parametrize("hidden", [True, False])
def test_jobs_that_the_cluster_hides_are_in_the_queue_still(
    slurm: Slurm, theirs: Ledger, runs: Path, hidden: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    [token] = theirs.unanswered()
    theirs.submitted(token, 17)
    monkeypatch.setattr("cppo_lab.launch.slurm.queue.shows_others", lambda: not hidden)
    why = f"a job of {STRANGER}, which Slurm does not show to you"
    pending = {
        name: QueuedJob(f"17_{place}", STRANGER, "PENDING", why, token) for place, name in enumerate(TWO)
    }
    jobs = in_queue(runs)
    assert jobs == (pending if hidden else {})
    assert refresh(theirs) == jobs
    assert len(theirs.open_tasks()) == len(jobs)  # only its owner can see that it has ended


@pytest.mark.parametrize(
    "settings, shown",
    {
        "PrivateData = none": True,
        "PrivateData = accounts,usage": True,
        "PrivateData = accounts,jobs,users": False,
        "PrivateData = ALL": False,
        "SlurmctldPort = 6817": False,
    }.items(),
)
def test_the_cluster_says_whether_it_shows_the_jobs_of_others(
    slurm: Slurm, monkeypatch: pytest.MonkeyPatch, settings: str, shown: bool
) -> None:
    slurm.says("config.txt", f"Configuration data\n{settings}")
    for account, sees in ((STRANGER, shown), (0, True)):  # from root nothing is hidden
        monkeypatch.setattr("os.getuid", lambda account=account: account)
        assert shows_others() is sees


ALL = dict.fromkeys(("sbatch", "squeue", "scancel", "srun"), "")
DOWN = "Slurm's controller does not answer \\({}\\): check that it is up, and SLURM_CONF$"
CHECK = "squeue: {}: check that Slurm's controller is up \\(`scontrol ping`\\)$"


@pytest.mark.parametrize(
    "commands, said",
    [
        ({}, "sbatch, squeue, scancel, srun not found .* go to a login node"),
        (
            ALL | {"squeue": "#!/nowhere/sh"},
            r"squeue cannot be started \(No such file or directory\): check Slurm's",
        ),
        ({"scontrol": "echo Slurmctld is DOWN; echo more; exit 1"}, DOWN.format("Slurmctld is DOWN")),
        ({"scontrol": "echo cannot read slurm.conf >&2; exit 1"}, DOWN.format("cannot read slurm.conf")),
        ({"scontrol": "exit 3"}, DOWN.format("exit status 3")),
        ({"scontrol": SILENT}, "scontrol: .* did not answer within 0 s: try again later"),
        ({"squeue": SILENT}, "squeue: .* did not answer within 0 s: try again later"),
        ({"squeue": "echo Invalid user: x >&2; exit 1"}, CHECK.format("Invalid user: x")),
        ({"squeue": ""}, ""),  # scontrol is not installed everywhere
        ({"squeue": "", "scontrol": "echo primary is DOWN; echo backup is UP; exit 1"}, ""),
    ],
)
def test_what_is_said_when_commands_do_not_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, commands: dict[str, str], said: str
) -> None:
    for seconds in ("PING_SECONDS", "PATIENCE_SECONDS"):
        monkeypatch.setattr(queue, seconds, 0.1 if SILENT in commands.values() else 60.0)
    answers, asked = Slurm(tmp_path), tmp_path / "asked"
    for name, text in (({"squeue": f"echo > {asked}"} | commands) if commands else {}).items():
        answers.command(name, text)
    monkeypatch.setenv("PATH", str(tmp_path))
    if not said:
        assert queue._query([]) == []
        return
    with user_error(said):
        queue._query([])
    assert not asked.exists()


@pytest.mark.parametrize("is_there", [True, False])
def test_nothing_is_submitted_where_the_configuration_or_the_controller_is_missing(
    slurm: Slurm, runs: Path, monkeypatch: pytest.MonkeyPatch, is_there: bool
) -> None:
    slurm.command("scontrol", "echo Slurmctld is DOWN; exit 1")
    path = runs / "slurm.conf"
    if is_there:
        path.touch()
    monkeypatch.setenv("SLURM_CONF", str(path))
    with user_error("Slurmctld is DOWN" if is_there else "slurm.conf cannot be read: name Slurm's"):
        launched(runs, Noted(runs, "a"))
    assert not (runs / LEDGER).exists()


def test_lines_that_are_no_jobs_are_left_out(slurm: Slurm) -> None:
    """A cluster's own wrapper may print what it likes; a comment may hold every character."""
    slurm.command(
        "squeue",
        r"""
for word; do case "$word" in --format=*) format="${word#--format=}";; esac; done
mark="${format%%"%i"*}"
echo "the queue is busy today"
printf '%s%s\n' "$mark" "7|1000|RUNNING|None|a|b|cppo" "$mark" "not a job" "$mark" "8|root|RUNNING|None||cppo"
printf '%s%s\nd|cppo\n' "$mark" "9|1000|PENDING|Priority|c" "$mark" "99999999999999999999|0|RUNNING|None||x"
""",
    )
    jobs = [(job.job, job.owner, job.state, job.reason, job.comment) for job in jobs_of([])]
    assert jobs == [("7", 1000, "RUNNING", "", "a|b"), ("9", 1000, "PENDING", "Priority", "c\nd")]


def test_all_jobs_of_accounts_that_the_machine_knows_are_asked_for(slurm: Slurm) -> None:
    """squeue refuses the whole request for a user whom it does not know."""
    accounts = {account.pw_uid for account in pwd.getpwall()}
    strangers = [next(uid for uid in range(4_000_000_000, 5_000_000_000) if uid not in accounts), 2**70]
    jobs_of([*strangers, *accounts])
    users = ",".join(map(str, sorted(accounts | {os.getuid()})))
    assert {f"--user={users}", "--all"} <= set(slurm.logged("squeue_asked").split())


def job_that(*ends: BaseException | None) -> Mock:
    """A job on one node that ends so, one time after the other."""
    return Mock(spec=Noted, nodes=1, run=Mock(side_effect=ends))


def test_a_requeued_job_waits_for_its_predecessor_but_not_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []  # the clock stands still but for that
    clock = SimpleNamespace(monotonic=lambda: sum(slept), sleep=slept.append)
    monkeypatch.setattr("cppo_lab.launch.slurm.job.time", clock)
    trained = AlreadyRunning("run b is being trained by another process")
    SlurmTask(job := job_that(*[trained] * 3, None), requeues=2)()
    assert (job.run.call_count, len(slept)) == (4, 3)
    with pytest.raises(AlreadyRunning, match="run b is being trained by another process"):
        SlurmTask(job_that(*[trained] * 10_000), requeues=2)()
    assert sum(slept[3:]) == pytest.approx(PREDECESSOR_SECONDS, abs=1.5)


WARNED = Interrupted(signal.SIGTERM)


@pytest.fixture
def requeues(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The signals for which submitit's handler has requeued this job."""
    seen: list[int] = []
    signal.signal(signal.SIGUSR2, lambda number, frame: seen.append(number))
    monkeypatch.setenv("SLURM_RESTART_COUNT", "0")
    monkeypatch.delenv(OUTSIDE, raising=False)
    return seen


@pytest.mark.parametrize(
    "answer, requeued",
    {
        "JobId=7 JobState=RUNNING PreemptTime=2026-11-26T10:00:00 Comment=x": True,
        "JobId=7 JobState=RUNNING Reason=None PreemptTime=2026-11-26T10:00:00": True,
        "JobId=7 JobState=RUNNING PreemptTime=None": False,
        "JobId=7 JobState=COMPLETING PreemptTime=2026-11-26T10:00:00": False,
        "": False,
        None: False,
    }.items(),
)
def test_a_job_that_is_ended_goes_back_only_if_slurm_preempts_it(
    slurm: Slurm, requeues: list[int], monkeypatch: pytest.MonkeyPatch, answer: str | None, requeued: bool
) -> None:
    if answer is None:
        monkeypatch.setenv("PATH", "")
    elif answer:
        slurm.says("job.txt", answer)
    with nullcontext() if requeued else pytest.raises(Interrupted, match="terminated by SIGTERM"):
        SlurmTask(job_that(WARNED), requeues=2)()
    assert requeues == [signal.SIGUSR2] * requeued


def test_a_job_that_slurm_has_requeued_already_ends_as_interrupted(requeues: list[int]) -> None:
    refused = Mock(side_effect=subprocess.CalledProcessError(1, ["scontrol", "requeue", "7"]))
    signal.signal(signal.SIGUSR2, refused)
    with pytest.raises(Interrupted, match="terminated by SIGUSR2") as error:
        SlurmTask(job_that(Interrupted(signal.SIGUSR2)), requeues=2)()
    refused.assert_called_once()
    assert error.value.__suppress_context__  # no word of `scontrol`


GAVE_UP = "it was requeued 2 times, the most allowed (launcher.requeues=2): launch again to resume"


@pytest.mark.parametrize("contained", [False, True])
@pytest.mark.parametrize("restarts", [1, 2])
def test_a_warned_job_goes_back_into_the_queue_as_often_as_it_may(
    runs: Path, requeues: list[int], monkeypatch: pytest.MonkeyPatch, restarts: int, contained: bool
) -> None:
    """In a container the batch script is asked, which alone can call `scontrol`."""
    outside, goes_back = runs / "outside", restarts < 2
    monkeypatch.setenv("SLURM_RESTART_COUNT", str(restarts))
    if contained:
        monkeypatch.setenv(OUTSIDE, str(outside))
    task = SlurmTask(Noted(runs, "a"), requeues=2)
    if goes_back and not contained:
        assert isinstance(task.checkpoint(), DelayedSubmission)
    else:
        with pytest.raises(
            SystemExit, match="the batch script requeues" if goes_back else re.escape(GAVE_UP)
        ):
            task.checkpoint()
    assert notes(runs) == ([] if goes_back else [("a", f"gave-up {GAVE_UP}")])
    assert (outside.read_text() if outside.exists() else "") == ("requeue" if goes_back and contained else "")


@pytest.mark.parametrize("restarts, asked", [(1, GO_BACK_IF_PREEMPTED), (2, "")])
def test_a_job_that_is_ended_in_a_container_leaves_the_question_to_the_batch_script(
    runs: Path, requeues: list[int], monkeypatch: pytest.MonkeyPatch, restarts: int, asked: str
) -> None:
    outside = runs / "outside"
    monkeypatch.setenv(OUTSIDE, str(outside))
    monkeypatch.setenv("SLURM_RESTART_COUNT", str(restarts))
    with pytest.raises(Interrupted):
        SlurmTask(job := job_that(WARNED), requeues=2)()
    assert (outside.read_text() if outside.exists() else "") == asked
    assert (job.give_up.called, requeues) == (False, [])


def test_a_task_of_an_array_takes_the_name_of_its_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(OUTSIDE, raising=False)
    for name, value in {"JOB_NAME": "quickstart@token", "ARRAY_TASK_ID": "1", "JOB_ID": "7"}.items():
        monkeypatch.setenv(f"SLURM_{name}", value)
    monkeypatch.setattr("cppo_lab.launch.slurm.job.command_output", asked := Mock())
    SlurmTask(Mock(), 0, "quickstart/cppo-1-3f2a")._take_name()
    asked.assert_called_once_with("scontrol", "update", "JobId=7", "JobName=quickstart/cppo-1-3f2a@token")
