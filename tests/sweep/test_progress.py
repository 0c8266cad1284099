"""What a launch shows of runs that are under way."""

import io
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from cppo_lab import schema
from cppo_lab.launch.base import Event
from cppo_lab.launch.training import TrainingJob
from cppo_lab.runs.attempt import Attempt
from cppo_lab.runs.folder import write_status
from cppo_lab.runs.spool import Begin, StepEvent, open_spool
from cppo_lab.runs.state import RunState
from cppo_lab.sweep.file import load_sweep
from cppo_lab.sweep.plan import Plan, make_plan
from cppo_lab.sweep.progress import ACTIVITY_SECONDS, Progress
from tests.conftest import TINY
from tests.waiting import until

SCORE = schema.validation_metric(schema.MEAN, 16)
NAME = "grpo/mini_base/seed 0"


@pytest.fixture
def plan(workspace: Path) -> Plan:
    return make_plan(load_sweep("quickstart"), TINY)


@pytest.fixture
def attempt(plan: Plan, workspace: Path) -> Attempt:
    return Attempt(plan.runs[0].spec, workspace / "runs", created=time.time())


def record(folder: Path, rows: dict[int, float | None], seconds: float = 2.0) -> None:
    """Rows by step, with a score or none, `seconds` apart, the last one now."""
    folder.mkdir(parents=True, exist_ok=True)
    spool = open_spool(folder)
    spool.add(Begin("a", "cppo-mini", "a run", 1, {}, {}))
    now = time.time()
    for place, (step, score) in enumerate(rows.items()):
        ago = seconds * (len(rows) - 1 - place)
        metrics = {"train/loss": 1.0} | ({} if score is None else {SCORE: score})
        spool.add(StepEvent(step, round(1000 * (now - ago)), metrics))
    spool.close()


def started(plan: Plan, attempt: Attempt, ago: float = 100.0, **others: object) -> Progress:
    progress = Progress(plan, {}, **{"waiting": [attempt.run_id], **others})  # type: ignore[arg-type]
    start(progress, TrainingJob((attempt,), ""), ago)
    return progress


def start(progress: Progress, job: TrainingJob, ago: float = 100.0) -> None:
    progress.see(Event("started", job))
    started = progress.running[-1]
    started.since -= ago
    for rows in started.rows.values():
        rows.since -= ago


def look(progress: Progress) -> str:
    for started in progress.running:
        progress.look(started)
    return progress.overview()


@pytest.mark.parametrize(
    ("status", "said"),
    [
        ({}, "starting"),
        ({"status": "done", "step": 4, "t_stop": 4, "updated": 999.0}, "starting"),  # of an earlier attempt
        ({"status": "running", "activity": "warm start 400/1000"}, "warm start 400/1000"),
        ({"status": "done", "step": 4, "t_stop": 4, "updated": 1e12}, "recording its end"),
    ],
)
def test_what_a_run_does_before_its_steps(
    plan: Plan, attempt: Attempt, status: dict[str, object], said: str
) -> None:
    attempt.folder.mkdir(parents=True)
    if status:
        write_status(attempt.folder, status)
    assert look(started(plan, attempt)) == f"{NAME} {said}"


def test_time_left_is_measured(plan: Plan, attempt: Attempt, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two steps of 200 s each are left of four; what is waiting takes what the running one takes."""
    progress = started(plan, attempt, ago=10_000)
    other = plan.runs[1].run_id
    assert look(progress) == f"{NAME} starting"  # nothing measured: no time
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now)
    record(attempt.folder, {0: 0.25, 1: None, 2: 0.5}, seconds=200)
    assert progress.seconds_left() is None
    text = look(progress)
    assert text.endswith(f"{NAME} step 2/4, last 50.0 %, best 50.0 %")
    assert text.startswith("50 % of 4 steps, 200 s per step, about 7 min left; ")
    progress.waiting = [other]
    assert progress.seconds_left() == pytest.approx(2 * 200 + 4 * 200, abs=0.01)
    progress.states = {other: RunState(schema.PARTIAL, step=3)}  # it has one step to take
    assert progress.seconds_left() == pytest.approx(2 * 200 + 200, abs=0.01)


def test_time_left_by_past_runs_before_the_first_step(plan: Plan, attempt: Attempt) -> None:
    first, second = plan.runs[0].run_id, plan.runs[1].run_id
    progress = started(plan, attempt, pace={first: 300.0, second: 60.0}, waiting=[first, second])
    assert progress.waiting == [second]
    assert progress.seconds_left() == pytest.approx(4 * 300 + 4 * 60)
    progress.pace = {first: 300.0}
    assert progress.seconds_left() is None  # nothing is known of the one that waits


def test_a_pipe_gets_a_line_per_validation_and_every_few_seconds_before_the_first(
    plan: Plan, attempt: Attempt, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    progress = started(plan, attempt)
    now = 1000.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    capsys.readouterr()
    attempt.folder.mkdir(parents=True)
    for done in (0, 1, 400, 999):
        write_status(attempt.folder, {"status": "running", "activity": f"warm start {done}/1000"})
        look(progress)
        look(progress)
        if done == 1:
            monkeypatch.setattr(time, "monotonic", lambda: now + ACTIVITY_SECONDS)
    write_status(attempt.folder, {"status": "running", "activity": "validation"})
    look(progress)
    record(attempt.folder, {0: 0.25, 1: None, 2: 0.5, 3: None, 4: 0.375})
    for _ in range(3):
        look(progress)
    lines = capsys.readouterr().err.splitlines()
    assert lines[-1].endswith("  (100 % of 4 steps, 0.5 steps/s, under a minute left)")
    assert [line.partition("  (")[0] for line in lines] == [
        f"{NAME}: warm start 0/1000",
        f"{NAME}: warm start 400/1000",
        f"{NAME}: validation",
        f"{NAME}: step 0/4, last 25.0 %, best 25.0 % (step 0)",
        f"{NAME}: step 2/4, last 50.0 %, best 50.0 % (step 2)",
        f"{NAME}: step 4/4, last 37.5 %, best 50.0 % (step 2)",
    ]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_has_one_line_in_its_place(
    plan: Plan, attempt: Attempt, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stderr", screen := Terminal())
    monkeypatch.setenv("COLUMNS", "40")
    progress = started(plan, attempt)
    record(attempt.folder, {0: 0.25, 2: 0.5})
    before = screen.getvalue().count("\n")
    for _ in range(3):
        progress._in_place(look(progress))
    text = screen.getvalue()
    assert text.count("\n") == before
    shown = text.rpartition("\x1b[K")[2]
    assert len(shown) < 40
    assert shown.startswith("50 % of 4 steps")


def test_ctrl_c_says_at_once_what_is_waited_for(
    plan: Plan, attempt: Attempt, capfd: pytest.CaptureFixture[str]
) -> None:
    progress = started(plan, attempt)
    capfd.readouterr()
    said: Callable[[], str] = lambda: capfd.readouterr().err  # noqa: E731 - read where the signal has been handled
    with pytest.raises(KeyboardInterrupt), progress.shown():
        try:
            os.kill(os.getpid(), signal.SIGINT)
            until("the interrupt", lambda: False)
        finally:
            text = said()
    assert f"waiting for {NAME} to record how far they came" in text
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_ctrl_c_while_nothing_runs_says_nothing(plan: Plan, capfd: pytest.CaptureFixture[str]) -> None:
    progress = Progress(plan, {}, [plan.runs[0].run_id])
    capfd.readouterr()
    progress._at_interrupt()
    assert capfd.readouterr().err == ""


def test_before_the_first_run_starts_no_time_is_said(plan: Plan) -> None:
    first = plan.runs[0].run_id
    progress = Progress(plan, {}, pace={first: 60.0}, waiting=[first, plan.runs[1].run_id])
    assert progress.seconds_left() is None
    assert progress.overview() == "0/2 ended"


def test_steps_without_a_validation_have_no_score(plan: Plan, attempt: Attempt) -> None:
    progress = started(plan, attempt)
    record(attempt.folder, {1: None, 2: None})
    assert look(progress).rpartition("; ")[2] == f"{NAME} step 2/4"


def test_a_cancelled_batch_is_one_line_and_counts_all_its_runs(
    plan: Plan, attempt: Attempt, workspace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = Attempt(plan.runs[1].spec, workspace / "runs")
    waiting = [run.run_id for run in plan.runs[:3]]
    progress = Progress(plan, {}, waiting)
    capsys.readouterr()
    progress.see(Event("cancelled", TrainingJob((attempt, other), "", batch="batch-0")))
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith("grpo/mini_base") and line.endswith("(2 runs): cancelled  [2/3]")
    assert progress.waiting == [plan.runs[2].run_id]


def test_jobs_that_do_the_same_before_their_first_step_are_counted(plan: Plan, workspace: Path) -> None:
    attempts = [Attempt(run.spec, workspace / "runs", created=0.0) for run in plan.runs[:3]]
    progress = Progress(plan, {}, [run.run_id for run in plan.runs[:4]])
    activities = ("importing the trainer", "importing the trainer", "warm start 400/1000")
    for attempt, activity in zip(attempts, activities, strict=True):
        attempt.folder.mkdir(parents=True)
        write_status(attempt.folder, {"status": "running", "activity": activity})
        start(progress, TrainingJob((attempt,), ""))
    name = progress.name(attempts[2])
    assert look(progress) == f"0/4 ended; importing the trainer: 2 of 4 runs; {name} warm start 400/1000"


def test_runs_of_one_job_share_a_line_for_each_validation(
    plan: Plan, workspace: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each condition has its line once all of its runs are there; steps, their rate and the time left are of all."""
    by_variant = [run for name in ("grpo", "cppo") for run in plan.runs if run.variant == name]
    attempts = tuple(Attempt(run.spec, workspace / "runs") for run in by_variant)
    assert len(attempts) == 4
    progress = Progress(plan, {}, [one.run_id for one in attempts])
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now)
    start(progress, TrainingJob(attempts, "", batch="batch-0"), ago=10_000)
    capsys.readouterr()
    first, second, third, _ = attempts
    record(first.folder, {0: 0.25, 1: None, 2: 0.5}, seconds=100)
    record(second.folder, {0: 0.75, 1: None}, seconds=100)
    record(third.folder, {0: 0.5}, seconds=100)
    # 200 s and 100 s ago to now: 2 + 1 steps in 200 s; 13 of 16 are left.
    share = "18 % of 16 steps, 67 s per step, about 14 min left"
    text = look(progress)
    name = "grpo/mini_base and 1 more (4 runs)"
    assert text == f"{share}; 0/4 ended; {name} 3 of 16 steps"
    lines = capsys.readouterr().err.splitlines()
    assert lines == [f"grpo/mini_base (2 runs): step 0/4, mean 50.0 % (25.0 to 75.0 %)  ({share})"]
    look(progress)
    assert capsys.readouterr().err == ""


def test_a_run_without_a_step_is_expected_to_take_what_others_took(plan: Plan, workspace: Path) -> None:
    first, second = (Attempt(run.spec, workspace / "runs") for run in plan.runs[:2])
    progress = Progress(plan, {}, [first.run_id, second.run_id])
    start(progress, job := TrainingJob((first,), ""), ago=10_000)
    record(first.folder, {0: None, 4: None}, seconds=400)
    progress.see(Event("ended", job))
    start(progress, TrainingJob((second,), ""))
    assert progress.seconds_left() == pytest.approx(4 * 100)
    assert progress.share() == "50 % of 8 steps, about 7 min left"


def test_one_submitted_run_is_counted_as_one(
    plan: Plan, attempt: Attempt, capsys: pytest.CaptureFixture[str]
) -> None:
    Progress(plan, {}, [attempt.run_id]).see(Event("submitted", TrainingJob((attempt,), "")))
    assert capsys.readouterr().err.splitlines()[-1] == "1 run is in Slurm's queue"
