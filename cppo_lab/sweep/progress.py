"""How far a launch is, said on standard error as it goes."""

import sys
import time
from collections import Counter
from dataclasses import dataclass, field

from cppo_lab import schema
from cppo_lab.attempt import Attempt
from cppo_lab.launch.base import Event
from cppo_lab.launch.run_state import RunState
from cppo_lab.runs.folder import read_status
from cppo_lab.runs.lock import is_held
from cppo_lab.sweep.plan import Plan


@dataclass
class Progress:
    """Says on standard error how far the sweep is: a line per start and end, and one every few seconds."""

    plan: Plan
    states: dict[str, RunState]
    todo: int  # runs that the launcher is to train
    every: float = 10.0
    running: list[Attempt] = field(default_factory=list)
    ended: int = 0
    submitted: int = 0
    said: float = 0.0

    def __post_init__(self) -> None:
        self.variants = {run.run_id: run.variant for run in self.plan.runs}
        runs = len(self.plan.runs)
        counts = Counter(state.state for state in self.states.values())
        parts = ", ".join(f"{n} {state}" for state, n in sorted(counts.items()))
        self.say(f"{self.plan.name}: {runs} run{'s' * (runs != 1)} ({parts}); {self.todo} to train")
        self.started = time.monotonic()

    def see(self, event: Event[Attempt]) -> None:
        """Take note of what a launcher saw."""
        name = self.name(event.job)
        if event.kind == "submitted":
            self.submitted += 1
            if self.submitted == self.todo:
                self.say(f"{self.todo} runs are in Slurm's queue")
        elif event.kind == "started":
            self.running.append(event.job)
            self.say(f"{name}: started")
        elif event.kind == "cancelled":
            self.ended += 1
            self.say(f"{name}: cancelled  [{self.ended}/{self.todo}]")
        elif event.kind == "ended":
            self.running.remove(event.job)
            self.ended += 1
            going = is_held(event.job.folder)
            status = read_status(event.job.folder)  # after it: one that has ended meanwhile has said so
            if going:
                self.say(f"{name}: another launcher is training it  [{self.ended}/{self.todo}]")
            elif status.get("status") == schema.DONE:
                self.say(f"{name}: done{_score(status)}  [{self.ended}/{self.todo}]")
            elif status.get("status") == schema.COLLAPSED:
                self.say(f"{name}: collapsed: {status.get('reason')}  [{self.ended}/{self.todo}]")
            elif status.get("status") == schema.PARTIAL:
                self.say(f"{name}: {status.get('reason')}  [{self.ended}/{self.todo}]")
            else:
                reason = status.get("reason") or f"see the logs in {event.job.folder}"
                self.say(f"{name}: FAILED: {reason}  [{self.ended}/{self.todo}]")
        elif time.monotonic() - self.said >= self.every:
            self.say(self.overview())

    def overview(self) -> str:
        """The progress of each running run, and when all will be done."""
        parts, share = [], float(self.ended)
        for attempt in self.running:
            status = read_status(attempt.folder)
            running = status.get("status") == schema.RUNNING
            # What an earlier attempt has left there says nothing of this one.
            if not running and status.get("updated", 0.0) >= attempt.created:
                share += 1
                parts.append(f"{self.name(attempt)} recording its end")
                continue
            if not running or status.get("step") is None:
                parts.append(f"{self.name(attempt)} starting")
                continue
            share += status["step"] / status["t_stop"]
            parts.append(f"{self.name(attempt)} step {status['step']}/{status['t_stop']}{_score(status)}")
        left = ""
        if share > 0:
            seconds = (time.monotonic() - self.started) * (self.todo - share) / share
            left = f"  (about {seconds / 60:.0f} min left)" if seconds >= 60 else "  (under a minute left)"
        return "; ".join(parts) + left

    def name(self, attempt: Attempt) -> str:
        """How people know the run."""
        return f"{self.variants[attempt.spec.run_id]}/{attempt.spec.model.name}/seed {attempt.spec.seed}"

    def say(self, text: str) -> None:
        """One line on standard error."""
        self.said = time.monotonic()
        print(text, file=sys.stderr, flush=True)


def _score(status: dict[str, object]) -> str:
    score = status.get("score")
    return f", score {100 * score:.1f} %" if isinstance(score, float) else ""
