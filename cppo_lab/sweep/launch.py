"""Carry out a plan: train what is not there yet, and nothing twice."""

import os
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from cppo_lab import schema
from cppo_lab.errors import UserError
from cppo_lab.launch.base import Event, load_launcher
from cppo_lab.launch.reconcile import State, repair, run_states
from cppo_lab.run import Attempt, is_held
from cppo_lab.sweep.enumerate import PlannedRun
from cppo_lab.sweep.plan import Plan
from cppo_lab.tracking.client import attempts, ensure_experiment, open_client
from cppo_lab.tracking.code_version import code_version
from cppo_lab.tracking.recorder import read_status

RUNS = Path("runs")  # below the working folder, beside mlflow.db


def plan_states(plan: Plan, uri: str) -> dict[str, State]:
    """The state of every run of a plan. Writes nothing."""
    return run_states([run.run_id for run in plan.runs], plan.core, uri, RUNS.resolve())


def launch(plan: Plan, uri: str) -> dict[str, State]:
    """Train the runs of `plan` that are neither done nor running; return the state of every run afterwards."""
    runs, run_ids = RUNS.resolve(), [run.run_id for run in plan.runs]
    if runs.exists() and not runs.is_dir():
        raise UserError(
            f"{runs} is a file, but runs keep their folders there: move it away, or work in another folder"
        )
    # The launcher makes the tables and the experiment: several runs doing so at once would collide.
    client = open_client(uri)
    ensure_experiment(client, uri, schema.experiment_name(plan.core))
    repair(run_ids, plan.core, uri, runs)
    states = run_states(run_ids, plan.core, uri, runs)
    _claim_done(plan, uri)
    todo = [run for run in plan.runs if states[run.run_id].state not in schema.FINISHED | {schema.RUNNING}]
    _require_one_machine(todo)
    version = code_version()
    work = [
        Attempt(
            spec=run.spec,
            layout=run.layout,
            paths=plan.paths,
            resources=run.resources,
            runs=runs,
            uri=uri,
            tags=sweep_tags(run) | {schema.TAG_CODE_VERSION: version},
            threads=plan.launcher.threads,
            visible_devices=os.environ.get("CUDA_VISIBLE_DEVICES"),
        )
        for run in todo
    ]
    progress = Progress(plan, states)
    if work:
        try:
            load_launcher(plan.launcher.name)(work, plan.launcher, progress.see)
        finally:  # after an interrupt too: a run may have been ended before it could record its own end
            repair(run_ids, plan.core, uri, runs)
    return run_states(run_ids, plan.core, uri, runs)


def _require_one_machine(runs: Sequence[PlannedRun]) -> None:
    """No launcher here spreads a run over machines. Raises UserError for a run that wants it."""
    for run in runs:
        if run.spec.core == "verl" and run.layout.nodes > 1:
            raise UserError(
                f"layout={run.layout.name} of model {run.spec.model.name} takes {run.layout.nodes} nodes, and the "
                "launchers here have one machine: choose layout=one_node (`cppo plan` says what then fits)"
            )


def sweep_tags(run: PlannedRun) -> dict[str, str]:
    """One tag for each sweep that the run belongs to; the value is the name of its variant there."""
    return {schema.sweep_tag(sweep): variant for sweep, variant in run.variants.items()}


def _claim_done(plan: Plan, uri: str) -> None:
    """Give finished runs the tags of their sweeps: another sweep may have trained them."""
    client = open_client(uri)
    tags = {run.run_id: sweep_tags(run) for run in plan.runs}
    found = attempts(client, schema.experiment_name(plan.core), tags)
    for run_id, past in found.items():
        for one in past:
            if one.status == "FINISHED":
                for tag in tags[run_id].keys() - one.sweeps:
                    client.set_tag(one.mlflow_id, tag, tags[run_id][tag])


@dataclass
class Progress:
    """Says on standard error how far the sweep is: a line per start and end, and one every few seconds."""

    plan: Plan
    states: dict[str, State]
    every: float = 10.0
    running: list[Attempt] = field(default_factory=list)
    ended: int = 0
    said: float = 0.0

    def __post_init__(self) -> None:
        self.variants = {run.run_id: run.variant for run in self.plan.runs}
        counts = Counter(state.state for state in self.states.values())
        self.todo = sum(n for state, n in counts.items() if state not in schema.FINISHED | {schema.RUNNING})
        parts = ", ".join(f"{n} {state}" for state, n in sorted(counts.items()))
        self.say(f"{self.plan.name}: {len(self.plan.runs)} runs ({parts}); {self.todo} to train")
        self.started = time.monotonic()

    def see(self, event: Event[Attempt]) -> None:
        """Take note of what a launcher saw."""
        name, status = self.name(event.job), read_status(event.job.folder)
        if event.kind == "started":
            self.running.append(event.job)
            self.say(f"{name}: started")
        elif event.kind == "ended":
            self.running.remove(event.job)
            self.ended += 1
            if is_held(event.job.folder):
                self.say(f"{name}: another launcher is training it  [{self.ended}/{self.todo}]")
            elif status.get("status") == schema.DONE:
                self.say(f"{name}: done{_score(status)}  [{self.ended}/{self.todo}]")
            elif status.get("status") == schema.COLLAPSED:
                self.say(f"{name}: collapsed: {status.get('reason')}  [{self.ended}/{self.todo}]")
            else:
                reason = status.get("reason") or f"see the logs in {event.job.folder}"
                self.say(f"{name}: FAILED: {reason}  [{self.ended}/{self.todo}]")
        elif time.monotonic() - self.said >= self.every:
            self.say(self.overview())

    def overview(self) -> str:
        """Where each running run stands, and when all will be done."""
        parts, share = [], float(self.ended)
        for attempt in self.running:
            status = read_status(attempt.folder)
            if status.get("step") is None or status.get("status") != schema.RUNNING:
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
