"""Launches a plan: trains each unfinished run once; evaluates finished runs; and nests the runs under a parent run per
sweep in MLflow, whose description has the plan's state.

The parents are for display only: if the store is unreachable, the launch continues with a warning.
"""

import contextlib
import math
import os
import shutil
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from cppo_lab import schema
from cppo_lab.core_records import core_of
from cppo_lab.errors import (
    Interrupted,
    StoreAway,
    StoreBroken,
    UserError,
    counted,
    few,
    has,
    one_line,
    printable,
    say,
)
from cppo_lab.files import redacted, replace_file, require_folder, runs_folder
from cppo_lab.launch.base import Event, LauncherSpec
from cppo_lab.launch.launchers import launcher_of, load_launcher
from cppo_lab.launch.queues import read_queues, record_dead_ends, send, settle_jobs
from cppo_lab.launch.training import TrainingJob, training_jobs
from cppo_lab.plugins import load
from cppo_lab.rules import rule_of
from cppo_lab.runs.attempt import Attempt
from cppo_lab.runs.folder import (
    CONFIG,
    STATUS,
    AlreadyRunning,
    announce,
    ensure_folder_tag,
    forget_cancelled,
    note_withheld,
    parse_variants,
    queueing,
    read_status,
    run_lock,
    variants_text,
    write_run_list,
    write_status,
)
from cppo_lab.runs.machine import code_version
from cppo_lab.runs.spool import ShippedRecord, load_shipped, unsent
from cppo_lab.runs.state import Queued, RunFolder, RunState, explained, state_of
from cppo_lab.runs.tags import figure_tag, merged, variants_in
from cppo_lab.sweep.cost import NO_LIMITS, Limits, past_paces
from cppo_lab.sweep.enumerate import PlannedRun
from cppo_lab.sweep.file import REWARD
from cppo_lab.sweep.plan import Plan
from cppo_lab.sweep.progress import Progress
from cppo_lab.tracking import address
from cppo_lab.tracking.client import (
    STORE_FAULTS,
    StoreClient,
    experiment_of,
    fault_line,
    may_fail,
    open_client,
)
from cppo_lab.tracking.history import StoredRun, unclipped
from cppo_lab.tracking.page import SweepText, ensure_parent, register, save_view, update_parent
from cppo_lab.tracking.read import find, is_active
from cppo_lab.tracking.services import (
    MIRROR_VARIABLE,
    NOTIFY_VARIABLE,
    mirror_name,
    mirroring,
    notifying,
    webhook,
)
from cppo_lab.tracking.uploader import uploading

FIRST = 3  # runs of a launch: if they fail alike, so would the others


@dataclass(frozen=True)
class Launched:
    """The result of a launch: the state of every run, and the MLflow ids of the replaced results, by run.

    `trained` are the ids of the runs that were passed to the launcher; `left` those of runs that had failed with an
    error and were not retrained; `held` those of runs that may have been finished elsewhere. `not_started`: run id ->
    why it has not begun, which is a limit, or that the first runs failed alike.
    """

    states: dict[str, RunState]
    replaced: dict[str, tuple[str, ...]] = field(default_factory=dict)
    left: tuple[str, ...] = ()
    trained: tuple[str, ...] = ()
    held: tuple[str, ...] = ()
    not_started: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Ahead:
    """What a launch starts from: the state of every run, where the results that it `replaces`, named by their records,
    do not count.

    `unknown` are the ids of the runs without a record here, `elsewhere` what the store has of them and of stubs as
    finished, `gone` the ids of stubs that it has lost. `silence`: why it does not answer; empty if it does.
    """

    code_version: str
    folders: Mapping[str, RunFolder]
    states: dict[str, RunState]
    replaces: Mapping[str, tuple[str, ...]]
    unknown: tuple[str, ...]
    elsewhere: Mapping[str, StoredRun]
    gone: tuple[str, ...]
    silence: str

    def replaced(self, uri: str) -> dict[str, tuple[str, ...]]:
        """The results to replace by their MLflow ids, as far as they were uploaded."""
        ids = {}
        for run_id, marks in self.replaces.items():
            run, stored = self.folders[run_id], self.elsewhere.get(run_id)
            records: dict[str, ShippedRecord | StoredRun] = dict.fromkeys(marks, stored) if stored else {}
            for place in (run.path, *run.set_aside):
                records |= load_shipped(place, uri).records
            ids[run_id] = tuple(records[mark].mlflow_id for mark in marks if mark in records)
        return ids


@dataclass(frozen=True)
class LaunchRequest:
    """What is asked of a launch besides the runs of its plan that are neither done nor running, and have not failed
    with an error.

    `replace`: also retrain runs that were finished with different code. `finished`: ids of finished runs to train
    again, whatever their code. Old results are kept until the new ones exist. `retry`: ids of failed runs to train
    again. `without_store`, `limits`: see `choose`. `keep_going`: begin all runs even if the first three fail alike.
    `stop_hopeless`: stop runs with early signs of a collapse, and leave those that were; its launcher waits for them.
    """

    replace: bool = False
    retry: Collection[str] = ()
    finished: Collection[str] = ()
    without_store: bool = False
    limits: Limits = NO_LIMITS
    keep_going: bool = False
    stop_hopeless: bool = False


USUAL = LaunchRequest()


def launch(plan: Plan, uri: str, request: LaunchRequest = USUAL) -> Launched:
    """Train the unfinished runs of `plan`, and what else `request` asks for."""
    runs, run_ids, url = runs_folder(), [run.run_id for run in plan.runs], webhook(plan.notify.url)
    mirror = mirror_name(plan.tracking.mirror)
    require_folder(runs)
    with contextlib.suppress(UserError):  # the look says that Slurm does not answer
        settle_jobs(runs)
    queued = read_queues(runs, warn=True)
    unheld = record_dead_ends(runs, run_ids, queued)
    ahead = look_ahead(plan, uri, queued, request, opens=True)
    chosen = choose(plan, ahead, uri, request)
    trained = chosen.trained
    planned = {run.run_id: run for run in plan.runs}
    todo = [planned[run_id] for run_id in trained]
    _require_one_machine(todo, plan.launcher)
    _require_code(todo)
    if todo:
        ensure_folder_tag(runs / trained[0])  # else each run would say in its own output that it is damaged
    write_stubs(plan, uri, ahead)
    parents = None
    if not ahead.silence:
        _send(unheld, uri)
        parents = ensure_parents(plan, uri)
        register_hypotheses(plan, parents)
        adopt(plan, parents, ahead)
    progress = Progress(plan, ahead.states, list(trained), past_paces(todo), request.stop_hopeless)
    describe_sweeps(plan, parents, ahead.states)  # first, so that it is available during training
    if not todo:
        return chosen
    # Runs whose Slurm job failed before they began; a wrong launcher.python causes this for every job.
    had_jobs = [run_id for run_id in trained if queued.place(run_id).job]
    silent = [run_id for run_id in had_jobs if RunFolder(runs / run_id).is_empty]
    words = queued.why_ended(silent) if silent else {}
    if failed := [run_id for run_id, word in words.items() if word == "FAILED"]:
        say(
            f"cppo: the last Slurm job of {counted(len(failed), 'run')} failed before training began "
            f"({queued.place(failed[0]).job}): "
            f"`cppo logs {failed[0]}` shows what it printed; check launcher.python and launcher.container"
        )
    new, refused = [RunFolder(runs / run_id) for run_id in trained if not (runs / run_id).exists()], False
    work = []
    for run in todo:
        announce(runs / run.run_id, run.names)
        forget_cancelled(runs / run.run_id)
        _note_withheld(runs / run.run_id, "")  # of an earlier launch
        record = ahead.folders[run.run_id].record  # nests the run, where it is already or else here
        parent = record.begin.tags.get(schema.TAG_PARENT) if record else ""
        parent = parent or (parents.of(run) if parents else "")
        attempt = Attempt(
            spec=run.spec,
            layout=run.layout,
            paths=plan.paths,
            resources=run.resources,
            runs=runs,
            tags={
                **sweep_tags(plan, run),
                **({schema.TAG_PARENT: parent} if parent else {}),
                schema.TAG_COLOUR: plan.parts[next(iter(run.variants))].colours[run.variant],
                schema.TAG_CODE_VERSION: ahead.code_version,
            },
            threads=plan.launcher.threads,
            visible_devices=os.environ.get("CUDA_VISIBLE_DEVICES"),
            replaces=ahead.replaces.get(run.run_id, ()),
            mismatch=plan.tracking.mismatch,
            answers=plan.tracking.answers,
            canaries=() if request.keep_going or len(trained) <= FIRST else trained[:FIRST],
        )
        work.append(attempt)
    replaced = ahead.replaced(uri)  # before their files are moved aside
    try:
        with (
            address.in_the_environment(uri),
            address.in_the_environment(url, NOTIFY_VARIABLE),
            address.in_the_environment(mirror, MIRROR_VARIABLE),
            progress.shown(),
        ):
            _train(plan, work, uri, progress.see, hurry=bool(ahead.silence))
    except UserError:
        refused = True
        raise
    finally:  # also after an interrupt: a run may have been terminated before it could record its end
        queued = read_queues(runs, warn=True)
        for folder in new:  # nobody has begun these runs, or has them in a queue
            if refused and folder.is_empty and state_of(folder, queued).state == schema.MISSING:
                shutil.rmtree(folder.path, ignore_errors=True)
        ended = record_dead_ends(runs, trained, queued)
        withheld = {attempt.run_id: why for attempt in work if (why := attempt.withheld_because())}
        for run_id, why in withheld.items():
            _note_withheld(runs / run_id, why)
        if not ahead.silence:  # the rest was uploaded as far as there was time
            _send([folder for folder, state in ended.items() if state], uri)
        states = _states(run_ids, queued, ahead.replaces)
        describe_sweeps(plan, parents, states)
    for run_id in list(replaced):
        if states[run_id].state not in schema.FINISHED or unsent(runs / run_id, uri) or not replaced[run_id]:
            del replaced[run_id]
    return replace(
        chosen,
        states=explained(states, queued),
        replaced=replaced,
        not_started={**chosen.not_started, **withheld},
    )


def _note_withheld(folder: Path, why: str) -> None:
    """Note why the run of a folder is held, or with an empty `why` that it is not, unless it is being trained."""
    if why or read_status(folder).get("reason"):
        with contextlib.suppress(AlreadyRunning), run_lock(folder):
            note_withheld(folder, why)


def _send(folders: Iterable[Path], uri: str) -> None:
    """Upload what the store lacks of runs, and say what it refuses."""
    try:
        send(list(folders), uri)
    except UserError as error:
        say(f"cppo: {error}")


def look_ahead(
    plan: Plan, uri: str, queued: Queued, request: LaunchRequest = USUAL, opens: bool = False
) -> Ahead:
    """What a launch would start from. Writes nothing.

    The store is asked which runs without a record here have been finished elsewhere; not if all runs have a record,
    or if it is a file that does not exist yet. With `opens` it is opened nevertheless, and created.
    """
    folders = {run.run_id: RunFolder(runs_folder() / run.run_id) for run in plan.runs}
    states = {run_id: state_of(run, queued) for run_id, run in folders.items()}
    stubs = {i: str(run.status["origin"]) for i, run in folders.items() if run.status.get("origin")}
    waits = {schema.MISSING, schema.QUEUED}
    unknown = tuple(i for i, run in folders.items() if states[i].state in waits and run.is_empty)
    silence = ""
    sought = () if address.is_absent(uri) else (*unknown, *stubs)
    elsewhere: dict[str, StoredRun] = {}
    if sought or opens:
        try:
            elsewhere = {i: run for i, run in find(uri, plan.core, sought).items() if run.is_result}
        except StoreBroken:
            raise
        except StoreAway as error:
            silence = str(error)
    lacking = [run_id for run_id in stubs if not silence and run_id not in elsewhere]
    gone = tuple(run_id for run_id in lacking if sought and stubs[run_id] == redacted(uri))
    if absent := [run_id for run_id in lacking if run_id not in (*gone, *request.finished)]:
        stores = printable(few(sorted({stubs[run_id] for run_id in absent})))
        say(
            f"cppo: {counted(len(absent), 'run')} finished elsewhere ({few(absent)}), not in this tracking store: a "
            f"report needs the one that has them ({stores}), or `cppo retry SWEEP --run ID --finished`"
        )
    if count := len(elsewhere.keys() & {*unknown}):
        runs = f"{counted(len(unknown), 'run')} {has(len(unknown))}"
        say(f"cppo: {runs} no record here; the tracking store has {count} of these as finished elsewhere")
    for run_id, run in elsewhere.items():
        reason, version = (run.tags.get(tag, "") for tag in (schema.TAG_REASON, schema.TAG_CODE_VERSION))
        states[run_id] = RunState(run.status, reason, version)
    states |= dict.fromkeys(gone, RunState(schema.MISSING))

    results = {
        run_id: state.code_version for run_id, state in states.items() if state.state in schema.FINISHED
    }
    version = code_version()
    others = {
        run_id: code for run_id, code in results.items() if code != version and run_id not in request.finished
    }
    if others:
        named = printable(few(sorted({code or "unknown" for code in others.values()})))
        fate = "kept; `cppo launch --replace` trains them again"
        if request.replace:
            fate = "trained again; each is replaced once that has finished"
        were = "were" if len(others) > 1 else "was"
        say(f"{counted(len(others), 'finished run')} {were} made by other code ({named}): {fate}")
    again = [i for i in results if i in request.finished or (request.replace and i in others)]
    replaces = {
        run_id: (_record_of(elsewhere[run_id]),) if run_id in elsewhere else _results(folders[run_id])
        for run_id in again
    }
    states |= _states(replaces, queued, replaces)
    return Ahead(version, folders, states, replaces, unknown, elsewhere, gone, silence)


def _results(run: RunFolder) -> tuple[str, ...]:
    """The results of a run here by their records: that of the folder, or else those that were moved aside."""
    if run.status.get("status") not in schema.FINISHED:
        return tuple(path.name for path in run.set_aside)
    record = run.status.get("record") or (run.record and run.record.begin.record)
    return (record,) if record else ()


def _states(
    run_ids: Iterable[str], queued: Queued, replaces: Mapping[str, tuple[str, ...]]
) -> dict[str, RunState]:
    """The states of runs, where the results that are to be replaced do not count."""
    states = {}
    for run_id in run_ids:
        run = RunFolder(runs_folder() / run_id)
        state = state_of(run, queued, replacing=run_id in replaces)
        is_old = state.state in schema.FINISHED and {*_results(run)} & {*replaces.get(run_id, ())}
        states[run_id] = RunState(schema.MISSING) if is_old else state
    return states


def write_stubs(plan: Plan, uri: str, ahead: Ahead) -> None:
    """Write what was finished elsewhere into the folders of the runs, and remove the stubs that the store has lost."""
    for run in plan.runs:
        folder, stored = ahead.folders[run.run_id].path, ahead.elsewhere.get(run.run_id)
        if stored is None and run.run_id not in ahead.gone:
            continue
        with contextlib.suppress(AlreadyRunning), run_lock(folder):
            before = read_status(folder)
            if before.get("record") and not before.get("origin"):
                continue  # it has been begun here meanwhile
            if stored is None:
                for name in (STATUS, CONFIG):
                    (folder / name).unlink(missing_ok=True)
                if [path.name for path in folder.iterdir()] == ["lock"]:
                    shutil.rmtree(folder)
                say(
                    f"cppo: run {run.run_id} was finished elsewhere, and is not in the tracking store any more: removed"
                )
                continue
            scores = {
                "score": schema.validation_metric(schema.MEAN, run.spec.validation.samples),
                "best": schema.BEST,
                "best_step": schema.BEST_STEP,
                "final_mean": schema.FINAL_MEAN,
            }
            numbers: dict[str, Any] = {
                key: value
                for key, name in scores.items()
                if name in stored.latest and math.isfinite(value := unclipped(stored.latest[name][2]))
            }
            if "best_step" in numbers:
                numbers["best_step"] = int(numbers["best_step"])
            status = {
                **run.names,
                **numbers,
                "run_id": run.run_id,
                "status": stored.status,
                "reason": one_line(stored.tags.get(schema.TAG_REASON, "")),
                "code_version": one_line(stored.tags.get(schema.TAG_CODE_VERSION, "")),
                "variants": one_line(variants_text(variants_in(stored.tags))),
                "record": _record_of(stored),
                "origin": redacted(uri),
            }
            if status != before:
                replace_file(folder / CONFIG, run.spec.model_dump_json(indent=2) + "\n")
                write_status(folder, status)


def _record_of(stored: StoredRun) -> str:
    return stored.tags.get(schema.TAG_RECORD) or stored.mlflow_id


def choose(plan: Plan, ahead: Ahead, uri: str, request: LaunchRequest) -> Launched:
    """The runs to train, `trained`, and those left out: that failed with an error, that are held, and, with the reason,
    that do not fit into the `limits` of the whole plan.

    If the store does not answer, runs without a record here are held, since they may have been finished elsewhere:
    unless the store is a file in the working folder, or `without_store`. Runs whose hypotheses it cannot register are
    held in any case. This is said on standard error. With `stop_hopeless`, runs that were stopped are left.
    """
    never = schema.FINISHED | {schema.RUNNING} | ({schema.STOPPED} if request.stop_hopeless else set())
    states = {run.run_id: ahead.states[run.run_id].state for run in plan.runs}
    again = {*request.retry, *ahead.replaces}
    left = tuple(i for i, state in states.items() if state == schema.FAILED and i not in again)
    todo = [run for run in plan.runs if states[run.run_id] not in never and run.run_id not in left]
    at_once = 1 if any(core_of(run.spec.core).gpus(run.layout) for run in todo) else None
    beyond = request.limits.beyond(plan.runs, todo, states, _workers(plan.launcher, len(todo), at_once))
    todo = [run for run in todo if run.run_id not in beyond]
    chosen = Launched(ahead.states, left=left, trained=tuple(run.run_id for run in todo), not_started=beyond)
    if not ahead.silence:
        return chosen
    database = address.sqlite_file(uri)
    may_train = request.without_store or (database is not None and database.parent.resolve() == Path.cwd())
    tests = {sweep.name for sweep in plan.sweeps if sweep.hypotheses}
    held_ids = tuple(
        run.run_id
        for run in todo
        if run.run_id in ahead.unknown and (not may_train or tests & run.variants.keys())
    )
    line = ahead.silence
    if held_ids:
        count = f"{counted(len(held_ids), 'run')} without a record here"
        why = "hypotheses cannot be registered" if may_train else "runs may have been finished elsewhere"
        how = (
            ", or name a store that does in MLFLOW_TRACKING_URI: a registration precedes its runs"
            if may_train
            else f", or train {'those that test no hypotheses' if tests else 'them'} with `cppo launch --without-store`"
        )
        line += f"; held, since {why}: {count} ({few(held_ids)}): launch again when it answers{how}"
    say(f"cppo: {line}")
    held = {*held_ids}
    trained = tuple(run_id for run_id in chosen.trained if run_id not in held)
    return replace(chosen, trained=trained, held=held_ids)


def _require_code(todo: Sequence[PlannedRun]) -> None:
    """Import the rules and rewards of other packages before anything is started.

    Raises UserError for a rule or reward that cannot be loaded, or a rule that does not accept its constants or that
    its core cannot give what it needs.
    """
    for run in todo:
        if reward := getattr(run.spec.data, "reward", None):
            load(reward, REWARD)
        rule = run.spec.rule
        if rule.path is not None:
            constants = rule.arguments(run.spec.rollout.max_response_length)
            record = rule_of(rule.name, rule.path)
            record.check(constants, run.spec.divergence.measure)
            try:
                run.spec.check_needs(rule, record.needs)
            except ValueError as error:
                raise UserError(f"configuration: {error}") from error


def _train(
    plan: Plan, work: Sequence[Attempt], uri: str, see: Callable[[Event[TrainingJob]], None], hurry: bool
) -> None:
    """Pass the work to the launcher; unfinished runs are shown as queued. `hurry`: the store was away."""
    record = launcher_of(plan.launcher.name)
    waits = record.queue is None  # until the jobs have ended
    jobs = training_jobs(work, uri, _workers(plan.launcher, 1), uploads=not waits)
    for job in jobs:
        if job.batch:  # so that `cppo logs` and `cppo cancel` find it
            write_run_list(job.folder, job.run_ids)
    folders = [attempt.folder for attempt in work]
    with contextlib.ExitStack() as stack:
        if waits:
            stack.enter_context(notifying(folders, folders, jobs[0].mark, waits))
            stack.enter_context(mirroring(folders))
            stack.enter_context(uploading(folders, uri, hurry))
        without = stack.enter_context(queueing(runs_folder(), [attempt.run_id for attempt in work]))

        def report(event: Event[TrainingJob]) -> None:
            if event.kind in ("ended", "cancelled"):
                without(event.job.run_ids)
            see(event)

        try:
            load_launcher(plan.launcher.name)(jobs, plan.launcher, report)
        except Interrupted as signal:  # a run in this process was interrupted, which ends the whole launch
            raise KeyboardInterrupt from signal


def _workers(launcher: LauncherSpec, in_queue: int, here: int | None = None) -> int:
    """The jobs that a launcher runs at a time; where its settings do not say, `in_queue` with a queue, and on this
    machine `here` (None: a job per core).
    """
    record = launcher_of(launcher.name)
    if record.in_process:
        return 1
    return launcher.workers or ((here or len(os.sched_getaffinity(0))) if record.one_machine else in_queue)


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


# If several launchers add the same missing tag, the store accepts a single request; the others then find the tag.
TAG_TRIES = 3


@dataclass(frozen=True)
class Parents:
    """The parents of a plan's sweeps, in the store of `client`: MLflow ids by sweep; `new` are the sweeps whose parent
    has no description yet.
    """

    client: StoreClient
    experiment_id: str = ""
    by_sweep: Mapping[str, str] = field(default_factory=dict)
    new: frozenset[str] = frozenset()

    def of(self, run: PlannedRun) -> str:
        """The parent of the first of a run's sweeps; empty if there is none."""
        return next((self.by_sweep[sweep] for sweep in run.variants if sweep in self.by_sweep), "")


def sweep_tags(plan: Plan, run: PlannedRun) -> dict[str, str]:
    """One tag per sweep of the run, with its variant's name there; and a tag with the tables and figures of the paper
    that they feed.
    """
    tags = {schema.sweep_tag(sweep): variant for sweep, variant in run.variants.items()}
    feeds = [feed for sweep in plan.sweeps if sweep.name in run.variants for feed in sweep.feeds]
    return tags | figure_tag(feeds)


def ensure_parents(plan: Plan, uri: str) -> Parents:
    """A parent for each sweep of the plan, created if it does not exist, as their experiment is; none if the store does
    not take them.

    Raises UserError if somebody has deleted the experiment.
    """
    client, experiment_id = open_client(uri), ""
    with contextlib.suppress(*STORE_FAULTS):  # which the parents meet, too
        experiment_id = experiment_of(client, plan.core)
    with may_fail("the parents of the sweeps"):
        by_sweep = {sweep.name: ensure_parent(client, experiment_id, sweep.name) for sweep in plan.sweeps}
        new = {i for i, parent in by_sweep.items() if schema.TAG_NOTE not in client.get_run(parent).data.tags}
        return Parents(client, experiment_id, by_sweep, frozenset(new))
    return Parents(client)


def adopt(plan: Plan, parents: Parents, ahead: Ahead) -> None:
    """Add the tags of their sweeps to finished runs that another sweep has trained, and nest those without a parent.

    The store is not asked which runs these are: their status lacks a sweep, or the parent of a sweep is new. What a run
    has of other sweeps stays.
    """
    with may_fail("the tags of finished runs"):
        client, alive = parents.client, set(parents.by_sweep.values())
        for run in plan.runs:
            folder, stored = ahead.folders[run.run_id], ahead.elsewhere.get(run.run_id)
            path, status = folder.path, folder.status
            if stored is None and (status.get("status") not in schema.FINISHED or "origin" in status):
                continue
            variants = variants_in(stored.tags) if stored else parse_variants(status.get("variants"))
            if run.variants.keys() <= variants.keys() and not parents.new & run.variants.keys():
                continue
            shipped = stored or load_shipped(path, client.tracking_uri).records.get(str(status.get("record")))
            if shipped is None or not shipped.mlflow_id:
                continue
            had = client.get_run(shipped.mlflow_id).data.tags
            sweeps = {key: value for key, value in had.items() if key.startswith(schema.TAG_SWEEP_PREFIX)}
            tags = {**merged(had, sweep_tags(plan, run)), **sweeps}
            parent = had.get(schema.TAG_PARENT, "")
            if parent and parent not in alive and is_active(client, parent):
                alive.add(parent)
            if parent not in alive:
                tags[schema.TAG_PARENT] = parents.of(run)
            for key, value in tags.items():
                if had.get(key) != value:
                    client.set_tag(shipped.mlflow_id, key, value)
            with contextlib.suppress(AlreadyRunning, OSError), run_lock(path):
                write_status(path, {**read_status(path), "variants": variants_text(variants_in(tags))})


def register_hypotheses(plan: Plan, parents: Parents) -> None:
    """Register the hypotheses of the plan's sweeps, before any run that tests them begins.

    Raises UserError if the store does not accept them: without a registration the runs would test nothing.
    """
    for sweep in plan.sweeps:
        if not sweep.hypotheses:
            continue
        try:
            register(
                parents.client,
                parents.by_sweep[sweep.name],
                plan.statement(sweep),
                plan.parts[sweep.name].declared.settings,
                "seed" if plan.is_paired(sweep.name) else "none",
            )
        except (*STORE_FAULTS, KeyError) as error:
            why = "the sweep has no run there" if isinstance(error, KeyError) else fault_line(error)
            raise UserError(
                f"sweep {sweep.source}: its hypotheses could not be registered ({why}), and nothing "
                "was started: launch again when the tracking store takes them"
            ) from error


def describe_sweeps(plan: Plan, parents: Parents | None, states: Mapping[str, RunState]) -> None:
    """Update the descriptions of the plan's sweeps, and the view that MLflow's page opens on."""
    if parents is None or not parents.experiment_id:
        return
    with may_fail("the descriptions"):
        for tries_left in reversed(range(TAG_TRIES)):
            try:
                for sweep in plan.sweeps:
                    text = SweepText(sweep.name, sweep.title, sweep.question, sweep.feeds)
                    planned = {
                        run.run_id: states[run.run_id].state
                        for run in plan.runs
                        if sweep.name in run.variants
                    }
                    update_parent(parents.client, parents.by_sweep[sweep.name], text, planned)
                save_view(parents.client, parents.experiment_id)
                return
            except STORE_FAULTS:
                if not tries_left:
                    raise
