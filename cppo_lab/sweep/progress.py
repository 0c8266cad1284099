"""Shows the progress of a launch on standard error."""

import contextlib
import os
import re
import shutil
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from cppo_lab import schema
from cppo_lab.launch.base import Event
from cppo_lab.launch.training import TrainingJob
from cppo_lab.runs.attempt import Attempt
from cppo_lab.runs.folder import is_held, read_status
from cppo_lab.runs.spool import RunRows, score_of, score_text
from cppo_lab.runs.state import STARTING, RunState
from cppo_lab.signals import announcing_interrupt
from cppo_lab.sweep.plan import Plan

LOOK_SECONDS = 0.5  # between polls of the runs
ACTIVITY_SECONDS = 5.0  # between two lines about the same activity, if not on a terminal
_CLEAR = "\r\x1b[K"


@dataclass
class StartedRun:
    """A started run: its rows since then, and its activity before the first one."""

    attempt: Attempt
    rows: RunRows
    activity: str = ""
    told: float = 0.0  # when the last line about an activity was printed


@dataclass
class Progress:
    """Shows the progress of the sweep. On a terminal the last line is updated in place; otherwise each start,
    validation and end is a line.

    `pace` has the seconds per step of past runs of the same kind, by run id.
    """

    plan: Plan
    states: dict[str, RunState]
    todo: int  # runs that the launcher is to train
    pace: Mapping[str, float] = field(default_factory=dict)
    waiting: list[str] = field(default_factory=list)  # ids of the runs that have not been started
    running: list[StartedRun] = field(default_factory=list)
    batches: list[TrainingJob] = field(default_factory=list)  # jobs of several runs that have been started
    ended: int = 0
    submitted: int = 0

    def __post_init__(self) -> None:
        self.variants = {run.run_id: run.variant for run in self.plan.runs}
        self.t_stop = {run.run_id: run.spec.training.t_stop for run in self.plan.runs}
        self._lock = threading.RLock()  # shared by the polling thread and the launcher's events
        self._over = threading.Event()
        self._launched = time.monotonic()
        runs = len(self.plan.runs)
        counts = Counter(state.state for state in self.states.values())
        parts = ", ".join(f"{n} {state}" for state, n in sorted(counts.items()))
        self.say(f"{self.plan.name}: {runs} run{'s' * (runs != 1)} ({parts}); {self.todo} to train")

    @contextlib.contextmanager
    def shown(self) -> Iterator[None]:
        """Follow the runs until the end of the block. Ctrl-C immediately prints what is being waited for."""
        thread = threading.Thread(target=self._poll, name="progress", daemon=True)
        thread.start()
        try:
            with announcing_interrupt(self._at_interrupt):
                yield
        finally:
            self._over.set()
            thread.join()
            self._in_place("")

    def _poll(self) -> None:
        while not self._over.wait(LOOK_SECONDS):
            with self._lock, contextlib.suppress(OSError):  # a folder may be moved away at this moment
                for one in self.running:
                    self._look(one)
                if self.running or self.batches:
                    self._in_place(self.overview())

    def _at_interrupt(self) -> None:
        """Runs in a signal handler, so it must not wait for a lock or use a stream that is being written."""
        names = [*(self.name(one.attempt) for one in self.running), *map(self._name_of, self.batches)]
        if not names:
            return
        shown = ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")
        text = f"interrupted: waiting for {shown} to record how far they came; Ctrl-C again does not wait"
        start = _CLEAR if sys.stderr.isatty() else ""
        with contextlib.suppress(OSError):
            os.write(2, f"{start}cppo: {text}\n".encode())

    def see(self, event: Event[TrainingJob]) -> None:
        """Process a launcher's event."""
        with self._lock:
            if event.job.batch:
                self._see_batch(event.kind, event.job)
            else:
                self._see_run(event.kind, event.job.attempts[0])

    def _see_run(self, kind: str, attempt: Attempt) -> None:
        name = self.name(attempt)
        if kind == "submitted":
            self._submit(1)
        elif kind == "started":
            self.running.append(StartedRun(attempt, RunRows(attempt.folder, since=time.time())))
            self._begun(attempt)
            self.say(f"{name}: started")
        elif kind == "cancelled":
            self._begun(attempt)
            self.ended += 1
            self.say(f"{name}: cancelled  [{self.ended}/{self.todo}]")
        elif kind == "ended":
            self._end(attempt, name)

    def _see_batch(self, kind: str, batch: TrainingJob) -> None:
        """Print one line for all runs of a batch at its start, and one for all successful runs at its end."""
        name = self._name_of(batch)
        if kind == "submitted":
            self._submit(len(batch.attempts))
        elif kind == "started":
            self.batches.append(batch)
            for attempt in batch.attempts:
                self._begun(attempt)
            self.say(f"{name}: started together")
        elif kind == "cancelled":
            for attempt in batch.attempts:
                self._begun(attempt)
            self.ended += len(batch.attempts)
            self.say(f"{name}: cancelled  [{self.ended}/{self.todo}]")
        elif kind == "ended":
            self.batches.remove(batch)
            self._end_batch(name, batch)

    def _name_of(self, batch: TrainingJob) -> str:
        """The name of a batch: its first condition, and its number of runs."""
        first, *others = dict.fromkeys(self.name(one).rpartition("/")[0] for one in batch.attempts)
        more = f" and {len(others)} more" if others else ""
        return f"{first}{more} ({len(batch.attempts)} runs)"

    def _end_batch(self, name: str, batch: TrainingJob) -> None:
        """Print how many runs of a batch are done, and a separate line for every other run."""
        done = 0
        for attempt in batch.attempts:
            if not is_held(attempt.folder) and read_status(attempt.folder).get("status") == schema.DONE:
                done += 1
            else:
                self._end(attempt, self.name(attempt))
        self.ended += done
        self.say(f"{name}: {done} done  [{self.ended}/{self.todo}]")

    def _submit(self, count: int) -> None:
        self.submitted += count
        if self.submitted == self.todo:
            self.say(f"{self.todo} runs are in Slurm's queue")

    def _begun(self, attempt: Attempt) -> None:
        if attempt.spec.run_id in self.waiting:
            self.waiting.remove(attempt.spec.run_id)

    def _end(self, attempt: Attempt, name: str) -> None:
        """Print how an attempt ended."""
        for one in [one for one in self.running if one.attempt is attempt]:
            self._look(one)
            self.running.remove(one)
        self.ended += 1
        count = f"[{self.ended}/{self.todo}]"
        going = is_held(attempt.folder)
        status = read_status(
            attempt.folder
        )  # read afterwards: an attempt that ended meanwhile has recorded it
        reason = status.get("reason")
        if going:
            self.say(f"{name}: another launcher is training it  {count}")
        elif status.get("status") == schema.DONE:
            self.say(f"{name}: done{_scores(status)}  {count}")
        elif status.get("status") == schema.COLLAPSED:
            self.say(f"{name}: collapsed: {reason}  {count}")
        elif status.get("status") == schema.PARTIAL:
            self.say(f"{name}: {reason}  {count}")
        else:
            logs = f"see `cppo logs {attempt.spec.run_id}`"
            self.say(f"{name}: FAILED: {reason or 'it ended without a word'}: {logs}  {count}")

    def _look(self, one: StartedRun) -> None:
        """Read what a run has recorded; if not on a terminal, print a line for each validation of this attempt."""
        name, t_stop = self.name(one.attempt), self.t_stop[one.attempt.spec.run_id]
        for row in one.rows.news():
            score = score_of(row)
            if score is not None and row.time_ms / 1000 >= one.rows.since and not sys.stderr.isatty():
                best = one.rows.summary(t_stop)
                assert best is not None  # this validation is among its scores
                left = _left_text(self.seconds_left())
                self.say(
                    f"{name}: step {row.step}/{t_stop}, {score_text(score, best.best, best.best_step)}{left}"
                )
        activity = "" if one.rows.times else self._activity(one)
        if activity in ("", one.activity) or sys.stderr.isatty():
            return
        # The words before the first number say which activity it is, the rest how far it is.
        other = re.split(r"\d", activity)[0] != re.split(r"\d", one.activity)[0]
        if other or time.monotonic() - one.told >= ACTIVITY_SECONDS:
            one.activity, one.told = activity, time.monotonic()
            if activity != STARTING:
                self.say(f"{name}: {activity}")

    def _activity(self, one: StartedRun) -> str:
        """The activity of a run besides training steps, from its folder."""
        status = read_status(one.attempt.folder)
        if status.get("status") == schema.RUNNING:
            return str(status.get("activity") or "")
        # Leftovers of an earlier attempt do not count.
        if status.get("status") and status.get("updated", 0.0) >= one.attempt.created:
            return "recording its end"
        return STARTING

    def overview(self) -> str:
        """The activity of each running run, and the estimated remaining time of all."""
        parts = [f"{self.ended}/{self.todo} ended"] if self.todo > 1 else []
        for one in self.running:
            run_id, activity = one.attempt.spec.run_id, self._activity(one)
            said = [] if one.rows.times and activity == STARTING else [activity]
            if one.rows.times or (one.rows.step and activity not in (STARTING, "recording its end")):
                said.insert(0, f"step {one.rows.step}/{self.t_stop[run_id]}")
                if scores := one.rows.summary(self.t_stop[run_id]):
                    said.append(score_text(scores.last, scores.best))
            parts.append(f"{self.name(one.attempt)} {', '.join(filter(None, said))}")
        for batch in self.batches:
            whole = batch.attempts[0].spec.training.t_stop
            ended = sum((read_status(one.folder).get("step") or 0) >= whole for one in batch.attempts)
            parts.append(f"{self._name_of(batch)}: {ended} at step {whole}")
        return "; ".join(parts) + _left_text(self.seconds_left())

    def seconds_left(self) -> float | None:
        """Estimated seconds until all runs have ended, with the current parallelism; None if a run has no measured step
        time.

        With batches, the estimate is based on the runs that have ended so far.
        """
        if self.batches:
            return (time.monotonic() - self._launched) * (self.todo / self.ended - 1) if self.ended else None
        running = []
        for one in self.running:
            run_id, rows = one.attempt.spec.run_id, one.rows
            pace = rows.pace or self.pace.get(run_id)
            if pace is None:
                return None
            since = time.time() - rows.times[-1][1] if rows.times else 0.0
            running.append(max(0.0, (self.t_stop[run_id] - (rows.step or 0)) * pace - since))
        if not running:
            return None
        # A run that has not begun is assumed to take as long as past runs of its kind, or else as the running ones.
        own = [one.rows.pace for one in self.running if one.rows.pace]
        waiting = []
        for run_id in self.waiting:
            pace = self.pace.get(run_id) or (max(own) if own else None)
            if pace is None:
                return None
            waiting.append(self.t_stop[run_id] * pace)
        for seconds in waiting:  # each starts when the next running one ends
            first = min(range(len(running)), key=lambda i: running[i])
            running[first] += seconds
        return max(running)

    def name(self, attempt: Attempt) -> str:
        """The run's display name."""
        return f"{self.variants[attempt.spec.run_id]}/{attempt.spec.model.name}/seed {attempt.spec.seed}"

    def say(self, text: str) -> None:
        """Print a permanent line on standard error."""
        start = _CLEAR if sys.stderr.isatty() else ""
        print(f"{start}{text}", file=sys.stderr, flush=True)

    def _in_place(self, text: str) -> None:
        """Replace the last line of a terminal."""
        if sys.stderr.isatty():
            room = shutil.get_terminal_size().columns - 1
            shown = text if len(text) <= room else text[: max(room - 1, 1)] + "…"
            print(f"{_CLEAR}{shown}", end="", file=sys.stderr, flush=True)


def _left_text(seconds: float | None) -> str:
    if seconds is None:
        return ""
    if seconds < 60:
        return "  (under a minute left)"
    minutes = seconds / 60
    return f"  (about {minutes:.0f} min left)" if minutes < 90 else f"  (about {minutes / 60:.1f} h left)"


def _scores(status: Mapping[str, object]) -> str:
    """`, last 43.2 %, best 44.1 % (step 8), final mean 43.5 %` from the status of a run that has ended."""
    last, best, mean = (
        value if isinstance(value, float) else None
        for value in (status.get(name) for name in ("score", "best", "final_mean"))
    )
    step = status.get("best_step")
    text = score_text(last, best, step if isinstance(step, int) else None, mean)
    return f", {text}" if text else ""
