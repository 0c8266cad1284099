"""What a launch shows of runs that are under way."""

import io
import os
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from cppo_lab import schema
from cppo_lab.launch.base import Event
from cppo_lab.launch.training import TrainingJob
from cppo_lab.runs.attempt import Attempt
from cppo_lab.runs.folder import write_status
from cppo_lab.runs.spool import Begin, StepEvent, open_spool
from cppo_lab.runs.state import RunState
from cppo_lab.sweep.plan import Plan
from cppo_lab.sweep.progress import ACTIVITY_SECONDS, Progress
from tests.conftest import TINY_LINE
from tests.jobs import planned
from tests.waiting import until

SCORE = schema.validation_metric(schema.MEAN, 16)
NAME = "grpo/mini_base/seed 0"


@dataclass
class Scene:
    """The quickstart's six runs, of which the first is the one that most tests look at, and what is printed."""

    plan: Plan
    capsys: pytest.CaptureFixture[str]

    def __post_init__(self) -> None:
        runs = Path("runs").resolve()
        self.attempts = [Attempt(run.spec, runs, created=time.time()) for run in self.plan.runs]
        self.ids = [run.run_id for run in self.plan.runs]
        self.folder = self.attempts[0].folder

    def progress(self, *waiting: int, **options: Any) -> Progress:
        progress = Progress(self.plan, {}, [self.ids[i] for i in waiting], **options)
        self.capsys.readouterr()
        return progress

    def job(self, *runs: int) -> TrainingJob:
        batch = "batch-0" if len(runs) > 1 else ""
        return TrainingJob(tuple(self.attempts[i] for i in runs), "", batch=batch)

    def started(self, *waiting: int, ago: float = 100.0, **others: object) -> Progress:
        """A progress whose first run has started."""
        progress = self.progress(*(waiting or (0,)), **others)
        start(progress, self.job(0), ago)
        self.said()
        return progress

    def said(self) -> list[str]:
        return self.capsys.readouterr().err.splitlines()

    def tells(self, run: int = 0, **status: object) -> None:
        """What a run has written into its folder."""
        self.attempts[run].folder.mkdir(parents=True, exist_ok=True)
        write_status(self.attempts[run].folder, status)

    def record(self, rows: dict[int, float | None], seconds: float = 2.0, run: int = 0) -> None:
        """Rows by step, with a score or none, `seconds` apart, the last one now."""
        self.attempts[run].folder.mkdir(parents=True, exist_ok=True)
        spool = open_spool(self.attempts[run].folder)
        spool.add(Begin("a", "cppo-mini", "a run", 1, {}, {}))
        now = time.time()
        for place, (step, score) in enumerate(rows.items()):
            ago = seconds * (len(rows) - 1 - place)
            metrics = {"train/loss": 1.0} | ({} if score is None else {SCORE: score})
            spool.add(StepEvent(step, round(1000 * (now - ago)), metrics))
        spool.close()


@pytest.fixture
def scene(workspace: Path, capsys: pytest.CaptureFixture[str]) -> Scene:
    return Scene(planned(f"quickstart {TINY_LINE}"), capsys)


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
    "status, said",
    [
        ({}, "starting"),
        ({"status": "done", "step": 4, "t_stop": 4, "updated": 999.0}, "starting"),  # of an earlier attempt
        ({"status": "running", "activity": "warm start 400/1000"}, "warm start 400/1000"),
        ({"status": "done", "step": 4, "t_stop": 4, "updated": 1e12}, "recording its end"),
    ],
)
def test_what_a_run_does_before_its_steps(scene: Scene, status: dict[str, object], said: str) -> None:
    if status:
        scene.tells(**status)
    assert look(scene.started()) == f"{NAME} {said}"


def test_time_left_is_measured(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two steps of 200 s each are left of four; what is waiting takes what the running one takes."""
    progress = scene.started(ago=10_000)
    assert look(progress) == f"{NAME} starting"  # nothing measured: no time
    now = time.time()
    monkeypatch.setattr("time.time", lambda: now)
    scene.record({0: 0.25, 1: None, 2: 0.5}, seconds=200)
    assert progress.seconds_left() is None
    measured = "50 % of 4 steps, 200 s per step, about 7 min left"
    assert look(progress) == f"{measured}; {NAME} step 2/4, last 50.0 %, best 50.0 %"
    progress.waiting = [scene.ids[1]]
    assert progress.seconds_left() == pytest.approx(2 * 200 + 4 * 200, abs=0.01)
    progress.states = {scene.ids[1]: RunState(schema.PARTIAL, step=3)}  # it has one step to take
    assert progress.seconds_left() == pytest.approx(2 * 200 + 200, abs=0.01)


def test_before_the_first_step_no_time_is_said_but_by_past_runs(scene: Scene) -> None:
    first, second = scene.ids[:2]
    progress = scene.progress(0, 1, pace={first: 60.0})
    assert progress.seconds_left() is None
    assert progress.overview() == "0/2 ended"
    submitted = scene.progress(0)
    submitted.plan = planned("quickstart launcher=slurm")
    submitted.see(Event("submitted", scene.job(0)))
    assert scene.said() == ["1 run is in Slurm's queue"]
    progress = scene.started(0, 1, pace={first: 300.0, second: 60.0})
    assert progress.waiting == [second]
    assert progress.seconds_left() == pytest.approx(4 * 300 + 4 * 60)
    progress.pace = {first: 300.0}
    assert progress.seconds_left() is None  # nothing is known of the one that waits
    scene.record({1: None, 2: None})
    assert look(progress).rpartition("; ")[2] == f"{NAME} step 2/4"  # without a validation


def test_a_pipe_gets_a_line_per_validation_and_every_few_seconds_before_the_first(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    progress = scene.started()
    monkeypatch.setattr("time.monotonic", lambda: 1000.0)
    for done in (0, 1, 400, 999):
        scene.tells(status="running", activity=f"warm start {done}/1000")
        look(progress)
        look(progress)
        if done == 1:
            monkeypatch.setattr("time.monotonic", lambda: 1000.0 + ACTIVITY_SECONDS)
    scene.tells(status="running", activity="validation")
    look(progress)
    scene.record({0: 0.25, 1: None, 2: 0.5, 3: None, 4: 0.375})
    for _ in range(3):
        look(progress)
    lines = scene.said()
    # How far the launch is stands behind the newest validation alone.
    assert [line for line in lines if "%" in line.partition("  (")[2]] == lines[-1:]
    assert lines[-1].endswith("  (100 % of 4 steps, 0.5 steps/s, under a minute left)")
    assert [line.removeprefix(f"{NAME}: ").partition("  (")[0] for line in lines] == [
        "warm start 0/1000",
        "warm start 400/1000",
        "validation",
        "step 0/4, last 25.0 %, best 25.0 % (step 0)",
        "step 2/4, last 50.0 %, best 50.0 % (step 2)",
        "step 4/4, last 37.5 %, best 50.0 % (step 2)",
    ]


def test_a_terminal_has_one_line_in_its_place(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stderr", screen := io.StringIO())
    monkeypatch.setattr(screen, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("COLUMNS", "40")
    progress = scene.started()
    scene.record({0: 0.25, 2: 0.5})
    before = screen.getvalue()
    for _ in range(3):
        progress._in_place(look(progress))
    shown = screen.getvalue().removeprefix(before)
    assert shown == 3 * "\r\x1b[K50 % of 4 steps, 1.0 steps/s, under a …"


def test_ctrl_c_says_at_once_what_is_waited_for(workspace: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """By the descriptor, which `capsys` does not see; nothing where nothing runs."""
    scene = Scene(planned(f"quickstart {TINY_LINE}"), capfd)
    for progress, names in ((scene.progress(0), []), (scene.started(), [NAME])):
        with pytest.raises(KeyboardInterrupt), progress.shown():
            try:
                os.kill(os.getpid(), signal.SIGINT)
                until("the interrupt", lambda: False)
            finally:
                said = scene.said()
        ends = "to record how far they came; Ctrl-C again does not wait"
        assert said == [f"cppo: interrupted: waiting for {name} {ends}" for name in names]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_jobs_of_several_runs(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each condition has its line once all of its runs are there; steps, their rate and the time left are of all."""
    progress = scene.progress(0, 1, 2)
    progress.see(Event("cancelled", scene.job(0, 1)))
    assert scene.said() == ["grpo/mini_base (2 runs): cancelled  [2/3]"]
    assert progress.waiting == [scene.ids[2]]
    now = time.time()
    monkeypatch.setattr("time.time", lambda: now)
    order = [i for name in ("grpo", "cppo") for i, run in enumerate(scene.plan.runs) if run.variant == name]
    progress = scene.progress(*order)
    start(progress, scene.job(*order), ago=10_000)
    scene.said()
    scores: Sequence[dict[int, float | None]] = ({0: 0.25, 1: None, 2: 0.5}, {0: 0.75, 1: None}, {0: 0.5})
    for run, rows in zip(order[:3], scores, strict=True):
        scene.record(rows, seconds=100, run=run)
    # 200 s and 100 s ago to now: 2 + 1 steps in 200 s; 13 of 16 are left.
    share = "18 % of 16 steps, 67 s per step, about 14 min left"
    assert look(progress) == f"{share}; 0/4 ended; grpo/mini_base and 1 more (4 runs) 3 of 16 steps"
    assert scene.said() == [f"grpo/mini_base (2 runs): step 0/4, mean 50.0 % (25.0 to 75.0 %)  ({share})"]
    look(progress)
    assert scene.said() == []


def test_a_job_that_goes_on_does_not_tell_again_what_its_runs_had(scene: Scene) -> None:
    runs = [i for i, run in enumerate(scene.plan.runs) if run.variant == "grpo"]
    for run in runs:
        scene.record({0: 0.25, 1: None, 2: 0.5}, run=run)
    progress = scene.progress(*runs)
    start(progress, scene.job(*runs), ago=-1.0)
    scene.said()
    look(progress)
    assert scene.said() == []
    progress.running[0].since -= 100.0
    for run in runs:
        scene.record({3: None, 4: 0.75}, run=run)
        look(progress)
    [line] = scene.said()
    assert line.startswith("grpo/mini_base (2 runs): step 4/4, mean 75.0 % (75.0 to 75.0 %)")


def test_jobs_that_do_the_same_before_their_first_step_are_counted(scene: Scene) -> None:
    progress = scene.progress(0, 1, 2, 3)
    for run, activity in enumerate(["importing the trainer"] * 2 + ["warm start 400/1000"]):
        scene.tells(run, status="running", activity=activity)
        start(progress, scene.job(run))
    name = progress.name(scene.attempts[2])
    assert look(progress) == f"0/4 ended; importing the trainer: 2 of 4 runs; {name} warm start 400/1000"


def test_a_run_without_a_step_is_expected_to_take_what_others_took(scene: Scene) -> None:
    progress = scene.progress(0, 1)
    start(progress, job := scene.job(0), ago=10_000)
    scene.record({0: None, 4: None}, seconds=400)
    progress.see(Event("ended", job))
    start(progress, scene.job(1))
    assert progress.seconds_left() == pytest.approx(4 * 100)
    assert progress.share() == "50 % of 8 steps, about 7 min left"
