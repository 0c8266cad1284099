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
from typing import Any

from cppo_lab import schema
from cppo_lab.errors import announcing_interrupt, counted, say
from cppo_lab.launch.base import Event
from cppo_lab.launch.launchers import launcher_of
from cppo_lab.launch.training import TrainingJob
from cppo_lab.runs.attempt import Attempt
from cppo_lab.runs.folder import Cause, cancel, end_process, is_locked, read_status
from cppo_lab.runs.spool import RunRows, score_of, score_text, summarise
from cppo_lab.runs.state import CAUSE_TEXTS, STARTING, RunState
from cppo_lab.sweep.plan import Plan

LOOK_SECONDS = 0.5  # between polls of the runs
BATCH_SECONDS = 2.0  # the same of a job of several runs: a poll opens files of each
ACTIVITY_SECONDS = 5.0  # between two lines about the same activity, if not on a terminal
_CLEAR = "\r\x1b[K"
_RECORDING = "recording its end"


class StartedJob:
    """A started job: the rows of its runs since then, and what it does before the first row."""

    def __init__(self, job: TrainingJob) -> None:
        self.job, self.since, self.looked, self.activity = job, time.time(), 0.0, ""
        self.told = 0.0  # when the last line about an activity was printed
        self.rows = {attempt.run_id: RunRows(attempt.folder, self.since) for attempt in job.attempts}

    @property
    def steps_left(self) -> int:
        """Training steps that its runs have not taken."""
        return sum(
            attempt.spec.training.t_stop - (self.rows[attempt.run_id].step or 0)
            for attempt in self.job.attempts
        )

    @property
    def has_rows(self) -> bool:
        """Whether a run has recorded a step since the start."""
        return any(rows.times for rows in self.rows.values())

    @property
    def pace(self) -> float | None:
        """Seconds per step, of all runs together; None before the second step."""
        times = [rows.times for rows in self.rows.values() if len(rows.times) > 1]
        steps = sum(last - first for (first, _), (last, _) in times)
        if not steps:
            return None
        return (max(last for _, (_, last) in times) - min(first for (_, first), _ in times)) / steps

    def seconds_left(self, past: Mapping[str, float], usual: float | None) -> float | None:
        """Estimated from its pace, or that of `past` runs of its kind, or else the `usual` pace; None without any."""
        pace = self.pace or (None if self.job.batch else past.get(self.job.attempts[0].run_id)) or usual
        if pace is None:
            return None
        last = max((rows.times[-1][1] for rows in self.rows.values() if rows.times), default=None)
        return max(0.0, self.steps_left * pace - (0.0 if last is None else time.time() - last))


@dataclass
class Progress:
    """Shows the progress of the sweep. On a terminal the last line is updated in place; otherwise each start,
    validation and end is a line.

    `waiting`: the ids of the runs that the launcher is to train, later of those that have not been started. `pace` has
    the seconds per step of past runs of the same kind, by run id. `stop_hopeless`: stop runs with early signs of a
    collapse.
    """

    plan: Plan
    states: Mapping[str, RunState]
    waiting: list[str]
    pace: Mapping[str, float] = field(default_factory=dict)
    stop_hopeless: bool = False
    ended: int = 0
    submitted: int = 0
    holds: bool = False

    def __post_init__(self) -> None:
        self.running = list[StartedJob]()
        self.paces = list[float]()  # of the job that ended last, if it was measured
        self.warned = set[str]()  # runs whose early signs have been reported
        self.todo = len(self.waiting)
        # The common name of runs that differ in the seed alone.
        self.conditions = {run.run_id: f"{run.variant}/{run.spec.model.name}" for run in self.plan.runs}
        self.t_stop = {run.run_id: run.spec.training.t_stop for run in self.plan.runs}
        self.steps = sum(self.t_stop[run_id] for run_id in self.waiting)
        self._lock = threading.RLock()  # shared by the polling thread and the launcher's events
        self._over = threading.Event()
        counts = Counter(state.state for state in self.states.values())
        parts = ", ".join(f"{n} {state}" for state, n in sorted(counts.items()))
        self.say(f"{self.plan.name}: {counted(len(self.plan.runs), 'run')} ({parts}); {self.todo} to train")

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
                for started in self.running:
                    if time.monotonic() - started.looked >= (BATCH_SECONDS if started.job.batch else 0.0):
                        self.look(started)
                if self.running and sys.stderr.isatty():
                    self._in_place(self.overview())

    def _at_interrupt(self) -> None:
        """Runs in a signal handler, so it must not wait for a lock or use a stream that is being written."""
        names = [self._name_of(started.job) for started in self.running]
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
            job, name = event.job, self._name_of(event.job)
            if event.kind == "submitted":
                self.submitted += len(job.attempts)
                if self.submitted == self.todo:
                    are = "is" if self.todo == 1 else "are"
                    title = launcher_of(self.plan.launcher.name).title
                    self.say(f"{counted(self.todo, 'run')} {are} in {title}'s queue")
                return
            for run_id in {*job.run_ids} & {*self.waiting}:
                self.waiting.remove(run_id)
            if event.kind == "started":
                self.running.append(StartedJob(job))
                self.say(f"{name}: started{' together' if job.batch else ''}")
            elif event.kind == "cancelled":
                self.ended += len(job.attempts)
                if not self._holds(job.withheld_because):
                    self.say(f"{name}: cancelled  [{self.ended}/{self.todo}]")
            elif event.kind == "ended":
                self._end(job, name)

    def _end(self, job: TrainingJob, name: str) -> None:
        """Print how a job ended: a line for its successful runs together, and a line for every other."""
        for started in [started for started in self.running if started.job is job]:
            self.look(started)
            self.running.remove(started)
            self.paces = [started.pace] if started.pace else self.paces
        done = 0
        for attempt in job.attempts:
            # The status is read after the lock: an attempt that ended meanwhile has recorded it.
            locked, status = is_locked(attempt.folder), read_status(attempt.folder)
            if job.batch and not locked and status.get("status") == schema.DONE:
                done += 1
                continue
            self.ended += 1
            if not locked and self._holds(attempt.withheld_because()):
                continue
            self.say(
                f"{self.name(attempt)}: {_end_text(attempt, locked, status)}  [{self.ended}/{self.todo}]"
            )
        if job.batch:
            self.ended += done
            self.say(f"{name}: {done} done  [{self.ended}/{self.todo}]")

    def _holds(self, why: str) -> bool:
        """Whether there is a reason `why` runs do not begin; it is said once."""
        if why and not self.holds:
            self.say(f"the rest is held: {why}")
        self.holds |= bool(why)
        return bool(why)

    def look(self, started: StartedJob) -> None:
        """Read what a job has recorded; if not on a terminal, print a line for each of its validations."""
        started.looked = time.monotonic()
        news: dict[str, list[int]] = {}  # validated steps by run
        for run_id, rows in started.rows.items():
            news[run_id] = [
                row.step
                for row in rows.news()
                if score_of(row) is not None and row.time_ms / 1000 >= started.since
            ]
            if news[run_id] and run_id not in self.warned:
                self._warn(started, run_id)
        if sys.stderr.isatty():
            return
        job, lines = started.job, []
        for condition, run_ids in self._conditions(job).items():
            curves = [started.rows[run_id].scores for run_id in run_ids]
            # Of several runs, once the last of them has it.
            for step in sorted({at for run_id in run_ids for at in news[run_id]}.intersection(*curves)):
                if job.batch:
                    name = f"{condition} ({counted(len(run_ids), 'run')})"
                    values = [100 * curve[step] for curve in curves]
                    spread = f" ({min(values):.1f} to {max(values):.1f} %)" if len(values) > 1 else ""
                    text = f"mean {sum(values) / len(values):.1f} %{spread}"
                else:
                    name, [scores] = self._name_of(job), curves
                    best = max((at for at in scores if at <= step), key=lambda at: (scores[at], -at))
                    text = score_text(scores[step], scores[best], best)
                lines.append(f"{name}: step {step}/{self.t_stop[run_ids[0]]}, {text}")
        if lines and (share := self.share()):
            lines[-1] += f"  ({share})"
        for line in lines:
            self.say(line)
        activity = "" if started.has_rows else self._activity(started)
        # The words before the first number say which activity it is, the rest how far it is.
        other = re.split(r"\d", activity)[0] != re.split(r"\d", started.activity)[0]
        is_new = activity not in ("", started.activity)
        if is_new and (other or time.monotonic() - started.told >= ACTIVITY_SECONDS):
            started.activity, started.told = activity, time.monotonic()
            if activity != STARTING:
                self.say(f"{self._name_of(started.job)}: {activity}")

    def _warn(self, started: StartedJob, run_id: str) -> None:
        """Report the early signs that a run has at its last validation, and stop it if that is asked for."""
        scores, t_stop = started.rows[run_id].scores, self.t_stop[run_id]
        at = max(scores)
        if not (signs := schema.early_signs(scores[at], max(scores.values()))):
            return
        self.warned.add(run_id)
        [attempt] = [attempt for attempt in started.job.attempts if attempt.run_id == run_id]
        self.say(f"{self.name(attempt)}: step {at}/{t_stop}, {signs}")
        if self.stop_hopeless and at < t_stop:
            cancel(attempt.folder, f"{signs} at step {at}")
            if problem := end_process(attempt.folder):
                self.say(f"{self.name(attempt)}: cannot be stopped: {problem}")

    def _activity(self, started: StartedJob) -> str:
        """What a job does besides training steps, from the folder of its first run."""
        attempt = started.job.attempts[0]
        status = read_status(attempt.folder)
        if status.get("status") == schema.RUNNING:
            return str(status.get("activity") or "")
        # Leftovers of an earlier attempt do not count.
        if status.get("status") and status.get("updated", 0.0) >= attempt.created:
            return _RECORDING
        return STARTING

    def overview(self) -> str:
        """How far the launch is, and what each running job does; jobs that do the same before their first step are
        counted.
        """
        parts = [share] if (share := self.share()) else []
        parts += [f"{self.ended}/{self.todo} ended"] if self.todo > 1 else []
        by_activity: dict[str, list[str]] = {}
        for started in self.running:
            activity, name = self._activity(started), self._name_of(started.job)
            if started.has_rows:
                parts.append(f"{name} {self._steps_text(started, activity)}")
            else:
                kind = re.split(r",? ?\d", activity)[0]
                by_activity.setdefault(kind, []).extend(
                    [f"{name} {activity}".strip()] * len(started.job.attempts)
                )
        for kind, names in by_activity.items():
            alone = len({*names}) == 1
            parts.append(
                names[0] if alone else f"{kind or 'starting'}: {len(names)} of {counted(self.todo, 'run')}"
            )
        return "; ".join(parts)

    def _steps_text(self, started: StartedJob, activity: str) -> str:
        """`step 12/40, last 43.2 %, best 44.1 %, validation`; of several runs the steps of all."""
        if started.job.batch:
            steps = sum(self.t_stop[run_id] for run_id in started.rows)
            return f"{steps - started.steps_left:,} of {steps:,} steps"
        [(run_id, rows)] = started.rows.items()
        t_stop, parts = self.t_stop[run_id], [] if activity == STARTING else [activity]
        scores = score_text(*summarise(rows.scores, t_stop)[:2])
        return ", ".join(filter(None, [f"step {rows.step}/{t_stop}", scores, *parts]))

    def share(self) -> str:
        """`34 % of 9,600 steps, 21 steps/s, about 4 min left`, as far as it is measured; slow: `90 s per step`."""
        parts, seconds = [], self.seconds_left()
        if self.ended or any(started.has_rows for started in self.running):
            remaining = sum(started.steps_left for started in self.running) + sum(
                map(self._steps_of, self.waiting)
            )
            parts.append(f"{100 * (self.steps - remaining) // max(self.steps, 1)} % of {self.steps:,} steps")
        if paces := [pace for started in self.running if (pace := started.pace)]:
            rate = sum(1 / pace for pace in paces)
            steps = f"{rate:,.0f} steps/s" if rate >= 10 else f"{rate:.1f} steps/s"
            parts.append(f"{1 / rate:.0f} s per step" if rate < 0.1 else steps)
        if seconds is not None:
            minutes = seconds / 60
            time_left = f"{minutes:.0f} min" if minutes < 90 else f"{minutes / 60:.1f} h"
            parts.append("under a minute left" if minutes < 1 else f"about {time_left} left")
        return ", ".join(parts)

    def _steps_of(self, run_id: str) -> int:
        """The steps that a waiting run has to take; it resumes where it stopped."""
        state = self.states.get(run_id)
        return self.t_stop[run_id] - ((state.step if state else None) or 0)

    def seconds_left(self) -> float | None:
        """Estimated seconds until all runs have ended, with the current parallelism; None if nothing says how long the
        steps of a run take.
        """
        measured = [pace for started in self.running if (pace := started.pace)] or self.paces
        usual = max(measured, default=None)
        running = [started.seconds_left(self.pace, usual) for started in self.running]
        jobs = [seconds for seconds in running if seconds is not None]
        if not jobs or len(jobs) < len(running):
            return None
        # A run that has not begun is assumed to take as long as past runs of its kind, or else as the running ones; in
        # a job of several runs a step takes another time than alone.
        past = {} if any(started.job.batch for started in self.running) else self.pace
        for run_id in self.waiting:
            pace = past.get(run_id) or usual
            if pace is None:
                return None
            jobs[jobs.index(min(jobs))] += self._steps_of(run_id) * pace  # it starts when the next job ends
        return max(jobs)

    def name(self, attempt: Attempt) -> str:
        """The run's display name."""
        return f"{self.conditions[attempt.run_id]}/seed {attempt.spec.seed}"

    def _conditions(self, job: TrainingJob) -> dict[str, list[str]]:
        conditions: dict[str, list[str]] = {}
        for run_id in job.run_ids:
            conditions.setdefault(self.conditions[run_id], []).append(run_id)
        return conditions

    def _name_of(self, job: TrainingJob) -> str:
        """The name of a job's run; of several the first condition, and their number."""
        if not job.batch:
            return self.name(job.attempts[0])
        first, *others = self._conditions(job)
        return f"{first}{f' and {len(others)} more' if others else ''} ({counted(len(job.attempts), 'run')})"

    def say(self, text: str) -> None:
        """Print a permanent line on standard error."""
        start = _CLEAR if sys.stderr.isatty() else ""
        say(f"{start}{text}")

    def _in_place(self, text: str) -> None:
        """Replace the last line of a terminal."""
        if sys.stderr.isatty():
            room = shutil.get_terminal_size().columns - 1
            shown = text if len(text) <= room else text[: max(room - 1, 1)] + "…"
            print(f"{_CLEAR}{shown}", end="", file=sys.stderr, flush=True)


def _end_text(attempt: Attempt, locked: bool, status: Mapping[str, Any]) -> str:
    """How an attempt ended, by the status of its run: `done, last 43.2 %, best 44.1 % (step 8), final mean 43.5 %`."""
    state, reason = status.get("status"), status.get("reason")
    if locked:
        return "another launcher is training it"
    if state == schema.DONE:
        scores = score_text(*map(status.get, ("score", "best", "best_step", "final_mean")))
        return ", ".join(filter(None, ["done", scores]))
    if state == schema.COLLAPSED:
        return f"collapsed: {reason}"
    if state in (schema.PARTIAL, schema.STOPPED):
        return str(reason)
    if state == schema.RUNNING:  # killed: nobody has recorded its end yet
        return f"interrupted: {CAUSE_TEXTS[Cause.DIED]}"
    return f"FAILED: {reason or 'it ended without a word'}: see `cppo logs {attempt.run_id}`"
