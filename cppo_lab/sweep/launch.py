"""Launches a plan: trains each unfinished run once."""

import contextlib
import os
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

from cppo_lab import schema
from cppo_lab.core_records import core_of
from cppo_lab.errors import UserError, printable
from cppo_lab.launch.base import Event, LauncherSpec
from cppo_lab.launch.launchers import launcher_of, load_launcher
from cppo_lab.launch.queues import look
from cppo_lab.launch.reconcile import repaired
from cppo_lab.launch.training import TrainingJob, training_jobs
from cppo_lab.rules import rule_of
from cppo_lab.runs.attempt import Attempt
from cppo_lab.runs.folder import Queue, announce, forget_cancelled, variants_text
from cppo_lab.runs.machine import code_version
from cppo_lab.runs.state import Queued, RunFolder, RunState, explained, state_of
from cppo_lab.runs.tags import figure_tag, merged, names
from cppo_lab.signals import Interrupted
from cppo_lab.sweep.cost import past_paces
from cppo_lab.sweep.enumerate import PlannedRun
from cppo_lab.sweep.parents import describe_sweeps, ensure_parents, register_hypotheses
from cppo_lab.sweep.paths import require_folder, runs_folder
from cppo_lab.sweep.plan import Plan
from cppo_lab.sweep.progress import Progress
from cppo_lab.tracking import address
from cppo_lab.tracking.client import ensure_experiment, open_client
from cppo_lab.tracking.read import past_attempts
from cppo_lab.tracking.records import AttemptRecord
from cppo_lab.tracking.uploader import Uploader


@dataclass(frozen=True)
class Launched:
    """The result of a launch: the state of every run, and the MLflow ids of the replaced results, by run.

    `trained` are the ids of the runs that were passed to the launcher; `left` those of runs that had failed with an
    error and were not retrained.
    """

    states: dict[str, RunState]
    replaced: dict[str, tuple[str, ...]] = field(default_factory=dict)
    left: tuple[str, ...] = ()
    trained: tuple[str, ...] = ()


def launch(plan: Plan, uri: str, replace: bool = False, retry: Collection[str] = ()) -> Launched:
    """Train the runs of `plan` that are neither done nor running, and have not failed with an error.

    `replace`: also retrain runs that were finished with different code; their results are kept until the new ones
    exist. `retry`: ids of failed runs to train again.
    """
    runs, run_ids = runs_folder(), [run.run_id for run in plan.runs]
    require_folder(runs)
    # Create the tables and the experiment here: several runs doing so at once would collide.
    client = open_client(uri)
    experiment_id = ensure_experiment(client, uri, schema.experiment_name(plan.core), core_of(plan.core).note)
    queued = look(runs, warn=True)
    past = repaired(run_ids, plan.core, uri, runs, queued)
    _claim_done(plan, past, uri)
    parents = ensure_parents(plan, uri, experiment_id, past)
    version = code_version()
    states, going = _look(plan, queued, version, replace, lambda _: past)
    register_hypotheses(plan, uri, parents)
    todo, left = choose(plan, states, retry, going)
    _require_one_machine(todo, plan.launcher)
    _require_rules(todo)
    progress = Progress(plan, states, len(todo), past_paces(todo), [run.run_id for run in todo])
    if not todo:
        describe_sweeps(plan, uri, experiment_id, parents, states)
        return Launched(states, left=left)
    _warn_of_jobs_that_trained_nothing(todo, queued)
    for run in todo:
        announce(runs / run.run_id, {**names(run.spec), "variants": variants_text(run.variants)})
        forget_cancelled(runs / run.run_id)
    nesting = {run.run_id: parents.tags(run, past[run.run_id]) for run in todo}
    work = _attempts(plan, todo, version, going, nesting)
    describe_sweeps(
        plan, uri, experiment_id, parents, states
    )  # first, so that it is available during training
    try:
        with address.in_the_environment(uri), progress.shown():
            _train(plan, work, uri, progress.see)
    finally:  # also after an interrupt: a run may have been terminated before it could record its end
        queued = look(runs, warn=True)
        past = repaired(run_ids, plan.core, uri, runs, queued, again=True)
        states = _replacing(_by_folder_and_store(plan, queued, lambda _: past), going, version, queued)
        describe_sweeps(plan, uri, experiment_id, parents, states)
    there = {one.mlflow_id for known in past.values() for one in known}
    gone = {run_id: tuple(one for one in ids if one not in there) for run_id, ids in going.items()}
    return Launched(
        explained(states, queued), {run_id: ids for run_id, ids in gone.items() if ids}, left, tuple(nesting)
    )


def choose(
    plan: Plan, states: Mapping[str, RunState], retry: Collection[str], again: Collection[str]
) -> tuple[list[PlannedRun], tuple[str, ...]]:
    """The runs to train, and the ids of those left out that failed with an error.

    `states` disregard the results of the runs in `again`, which were made with different code.
    """
    never = schema.FINISHED | {schema.RUNNING}
    open_runs = [run for run in plan.runs if states[run.run_id].state not in never]
    failed = [run.run_id for run in open_runs if states[run.run_id].state == schema.FAILED]
    left = tuple(run_id for run_id in failed if run_id not in {*retry, *again})
    return [run for run in open_runs if run.run_id not in left], left


def look_ahead(
    plan: Plan, uri: str, replace: bool = False
) -> tuple[dict[str, RunState], dict[str, tuple[str, ...]]]:
    """The states that a launch would start from, and the MLflow ids of the results that it would replace, by run.

    Writes nothing, and asks the store only about runs without a record here, and about results to be replaced.
    """
    queued, version = look(runs_folder(), warn=True), code_version()
    states, going = _look(
        plan, queued, version, replace, lambda run_ids: past_attempts(run_ids, plan.core, uri)
    )
    return explained(states, queued), going


Ask = Callable[
    [Sequence[str]], Mapping[str, Sequence[AttemptRecord]]
]  # all attempts at some runs in the store


def _look(
    plan: Plan, queued: Queued, version: str, replace: bool, ask: Ask
) -> tuple[dict[str, RunState], dict[str, tuple[str, ...]]]:
    """The states to start from, and the MLflow ids of the results to replace, which do not count in these."""
    states = _by_folder_and_store(plan, queued, ask, say=True)
    outdated = [
        run_id
        for run_id, state in states.items()
        if state.state in schema.FINISHED and state.code_version != version
    ]
    going = {}
    if replace and outdated:
        past = ask(outdated)
        results = {
            run_id: tuple(attempt.mlflow_id for attempt in past[run_id] if attempt.is_result)
            for run_id in outdated
        }
        outdated = [run_id for run_id in outdated if results[run_id]]
        going = {run_id: results[run_id] for run_id in outdated}
    _tell_of_other_code([states[run_id].code_version for run_id in outdated], replace)
    return _replacing(states, going, version, queued), going


def _by_folder_and_store(plan: Plan, queued: Queued, ask: Ask, say: bool = False) -> dict[str, RunState]:
    """The state of every run by its folder, and by the store if it has no record here: it may have been finished
    elsewhere.
    """
    folders = {run.run_id: RunFolder(runs_folder() / run.run_id) for run in plan.runs}
    states = {run_id: state_of(folder, queued) for run_id, folder in folders.items()}
    waiting = {schema.MISSING, schema.QUEUED}
    asked = [i for i, folder in folders.items() if states[i].state in waiting and folder.is_empty]
    past = ask(asked) if asked else {}
    elsewhere = {}
    for run_id in asked:
        result = next((attempt for attempt in past[run_id] if attempt.is_result), None)
        if result is not None:
            elsewhere[run_id] = RunState(result.status, result.reason, result.code_version)
    if asked and say:
        runs = "1 run has" if len(asked) == 1 else f"{len(asked)} runs have"
        text = f"cppo: {runs} no record here; the tracking store has {len(elsewhere)} of these as finished elsewhere"
        print(text, file=sys.stderr, flush=True)
    return states | elsewhere


def _replacing(
    states: dict[str, RunState], going: Collection[str], version: str, queued: Queued
) -> dict[str, RunState]:
    """The states, where results by other code than `version` of the runs `going` do not count."""
    states = dict(states)
    for run_id in going:
        live = state_of(RunFolder(runs_folder() / run_id), queued, replacing=True)
        old = live.state in schema.FINISHED and live.code_version != version
        states[run_id] = RunState(schema.MISSING) if old else live
    return states


def _warn_of_jobs_that_trained_nothing(todo: Sequence[PlannedRun], queued: Queued) -> None:
    """Warn about runs whose Slurm job failed before the run began; a wrong launcher.python causes this for every
    job.
    """
    had_jobs = [run.run_id for run in todo if queued.place(run.run_id).job]
    silent = [run_id for run_id in had_jobs if RunFolder(runs_folder() / run_id).is_empty]
    words = queued.why_ended(silent) if silent else {}
    failed = [run_id for run_id, word in words.items() if word == "FAILED"]
    if failed:
        runs = "1 run" if len(failed) == 1 else f"{len(failed)} runs"
        print(
            f"cppo: the last Slurm job of {runs} failed before training began ({queued.place(failed[0]).job}): "
            f"`cppo logs {failed[0]}` shows what it printed; check launcher.python and launcher.container",
            file=sys.stderr,
            flush=True,
        )


def _require_rules(todo: Sequence[PlannedRun]) -> None:
    """Import the rules of other packages before anything is started.

    Raises UserError for one that cannot be loaded, or does not accept its constants.
    """
    for run in todo:
        rule = run.spec.rule
        if rule.path is not None:
            constants = rule.arguments(run.spec.rollout.max_response_length)
            rule_of(rule.name, rule.path).check(constants, run.spec.divergence.measure)


def _attempts(
    plan: Plan,
    todo: Sequence[PlannedRun],
    version: str,
    replaces: Mapping[str, tuple[str, ...]],
    nesting: Mapping[str, Mapping[str, str]],
) -> list[Attempt]:
    return [
        Attempt(
            spec=run.spec,
            layout=run.layout,
            paths=plan.paths,
            resources=run.resources,
            runs=runs_folder(),
            tags={**sweep_tags(plan, run), **nesting[run.run_id], schema.TAG_CODE_VERSION: version},
            threads=plan.launcher.threads,
            visible_devices=os.environ.get("CUDA_VISIBLE_DEVICES"),
            replaces=replaces.get(run.run_id, ()),
            mismatch=plan.tracking.mismatch,
            answers=plan.tracking.answers,
        )
        for run in todo
    ]


def _workers(launcher: LauncherSpec) -> int:
    """The number of jobs that the launcher runs at a time; 1 if that is unknown."""
    record = launcher_of(launcher.name)
    if record.in_process:
        return 1
    return launcher.workers or (len(os.sched_getaffinity(0)) if record.one_machine else 1)


def _train(plan: Plan, work: Sequence[Attempt], uri: str, see: Callable[[Event[TrainingJob]], None]) -> None:
    """Pass the work to the launcher; unfinished runs are shown as queued."""
    waits = launcher_of(plan.launcher.name).queue is None  # until the jobs have ended
    jobs = training_jobs(work, uri, _workers(plan.launcher), uploads=not waits)
    for job in jobs:
        job.list_runs()
    folders = [attempt.folder for attempt in work]
    with (
        Uploader(folders, uri) if waits else contextlib.nullcontext(),
        Queue(runs_folder(), [attempt.run_id for attempt in work]) as queue,
    ):

        def report(event: Event[TrainingJob]) -> None:
            if event.kind in ("ended", "cancelled"):
                for run_id in event.job.run_ids:
                    queue.ended(run_id)
            see(event)

        try:
            load_launcher(plan.launcher.name)(jobs, plan.launcher, report)
        except Interrupted as signal:  # a run in this process was interrupted, which ends the whole launch
            raise KeyboardInterrupt from signal


def _tell_of_other_code(versions: Sequence[str], replace: bool) -> None:
    """Say on standard error how many results other code has made, by their `versions`, and what becomes of them."""
    if not versions:
        return
    others = sorted({version or "unknown" for version in versions})
    named = printable(", ".join(others[:3])) + (", ..." if len(others) > 3 else "")
    fate = (
        "trained again; each is replaced once that has finished"
        if replace
        else "kept; --replace trains them again"
    )
    count = f"{len(versions)} finished run" + ("s were" if len(versions) > 1 else " was")
    print(f"{count} made by other code ({named}): {fate}", file=sys.stderr, flush=True)


def _require_one_machine(runs: Sequence[PlannedRun], launcher: LauncherSpec) -> None:
    """Raises UserError for a run that needs several machines, unless the launcher supports that."""
    if not launcher_of(launcher.name).one_machine:
        return
    for run in runs:
        if core_of(run.spec.core).nodes(run.layout) > 1:
            raise UserError(
                f"layout={run.layout.name} of model {run.spec.model.name} takes {run.layout.nodes} nodes, and "
                f"launcher={launcher.name} has one machine: choose launcher=slurm, or layout=one_node (`cppo plan` "
                "says what then fits)"
            )


def sweep_tags(plan: Plan, run: PlannedRun) -> dict[str, str]:
    """One tag per sweep of the run, with its variant's name there; and a tag with the tables and figures of the paper
    that they feed.
    """
    tags = {schema.sweep_tag(sweep): variant for sweep, variant in run.variants.items()}
    feeds = [feed for sweep in plan.sweeps if sweep.name in run.variants for feed in sweep.feeds]
    return tags | figure_tag(feeds)


def _claim_done(plan: Plan, past: Mapping[str, Sequence[AttemptRecord]], uri: str) -> None:
    """Add the tags of their sweeps to finished runs, which another sweep may have trained."""
    client = open_client(uri)
    for run in plan.runs:
        tags = sweep_tags(plan, run)
        wanted = {schema.sweep_tag(sweep) for sweep in run.variants}
        for one in past[run.run_id]:
            if not one.is_result or wanted <= one.sweeps:
                continue
            had = client.get_run(one.mlflow_id).data.tags
            for key, value in (merged(had, tags) | {key: had[key] for key in wanted & had.keys()}).items():
                if had.get(key) != value:
                    client.set_tag(one.mlflow_id, key, value)
