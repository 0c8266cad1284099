"""Runs a search: its workers through a launcher, then its result (`tune`, the last part).

A worker claims a trial, trains its seeds, reports to the study, and claims the next.
"""

import contextlib
import json
import math
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING

from optuna.trial import Trial, TrialState

from cppo_lab import schema
from cppo_lab.errors import UserError, describe, interrupt_on_termination, one_line, say
from cppo_lab.files import open_append, print_to, redacted, replace_file, require_folder
from cppo_lab.launch.base import Event
from cppo_lab.launch.launchers import (
    LauncherRecord,
    child,
    jobs_in_queue,
    launcher_of,
    load_launcher,
)
from cppo_lab.launch.local import default_workers
from cppo_lab.launch.training import TrainingJob
from cppo_lab.runs.attempt import Attempt
from cppo_lab.runs.folder import AlreadyRunning, is_cancelled, is_locked, read_status
from cppo_lab.runs.machine import code_version
from cppo_lab.runs.spool import read_rows
from cppo_lab.runs.tags import figure_tag
from cppo_lab.search import study as studies
from cppo_lab.search.space import Tuning
from cppo_lab.search.study import (
    MLFLOW_ID,
    PRUNED_AT,
    RUN_IDS,
    SEARCH_RUN,
    VARIABLE,
    Lost,
    SearchStudy,
    Watch,
    ended,
    exclusive,
    file_of,
    is_over,
    note,
    numbers_of,
    result_text,
    search_folder,
    storage_url,
    summarise,
    values_of,
)
from cppo_lab.sweep.file import Scalar
from cppo_lab.tracking import address
from cppo_lab.tracking.client import (
    STORE_FAULTS,
    StoreClient,
    deferred_for,
    experiment_of,
    open_client,
    store_error,
)
from cppo_lab.tracking.history import StoredRun
from cppo_lab.tracking.page import (
    Point,
    TrialRecord,
    filled,
    open_search,
    update_search,
)
from cppo_lab.tracking.read import attempts_at, metric_history
from cppo_lab.tracking.services import MIRROR_VARIABLE, NOTIFY_VARIABLE, mirror_name, webhook

if TYPE_CHECKING:
    from cppo_lab.spec import ResourcesSpec, RunSpec

FOLLOW_SECONDS = 5.0  # between queries to a cluster's controller, to limit its load
FILE = "search.json"
STOPPED = "stopped.txt"  # why workers have stopped, a line each, beside it
POLL_SECONDS = 0.25
PATIENCE_SECONDS = 60.0  # for a run to end cleanly before it is killed
TRIES = 3  # of a run whose process is killed from outside; it resumes from its checkpoint
See = Callable[[Sequence[Point], bool], None]


class Pruned(Exception):
    """The search prunes this trial; the text is the reason."""


class TrainingFailed(Exception):
    """A training run failed with an error; the text is a line."""


@dataclass(frozen=True)
class Run:
    """A training run of a search. A finished attempt at it gets the `tags` that it lacks."""

    attempt: Attempt
    client: StoreClient
    uri: str
    tags: Mapping[str, str]

    def finished(self) -> list[Point] | None:
        """The recorded curve; None while it is not done."""
        with deferred_for(self.uri):
            for stored in _stored(self.client, self.attempt.spec):
                if stored.is_result:
                    for key in self.tags.keys() - stored.tags.keys():
                        self.client.set_tag(stored.mlflow_id, key, self.tags[key])
                    columns = metric_history(self.client, stored.mlflow_id, self._metric)
                    return list(map(Point, *(column.tolist() for column in columns)))
            return None

    def live(self) -> list[Point]:
        """The validations that it has written so far, by step; another process may be training it."""
        rows = [row for row in read_rows(self.attempt.folder) if self._metric in row.metrics]
        return [Point(row.step, row.metrics[self._metric], row.time_ms) for row in rows]

    def give_reason(self, reason: str) -> None:
        """Record on the newest attempt at it why it was ended."""
        with deferred_for(self.uri):
            for stored in _stored(self.client, self.attempt.spec)[:1]:
                if not stored.is_result:
                    self.client.set_tag(stored.mlflow_id, schema.TAG_REASON, reason[:500])

    @property
    def _metric(self) -> str:
        """The metric that a search optimises."""
        return schema.validation_metric(schema.MEAN, self.attempt.spec.validation.samples)


def _stored(client: StoreClient, spec: "RunSpec") -> list[StoredRun]:
    """The attempts at a run that the store has, newest first."""
    return attempts_at(client, schema.experiment_name(spec.core), spec.run_id)


def train(run: Run, see: See) -> list[Point]:
    """Train `run` unless it is done, and return its curve. If another process is training it, wait for that.

    `see` takes the points so far, before training starts and after each validation, and whether the run may be ended:
    it then raises Pruned, which leaves here once the run has ended cleanly. Raises TrainingFailed, and UserError if the
    store does not take the trained run.
    """
    died, refused, folder = 0, 0, run.attempt.folder
    while (curve := run.finished()) is None:
        if is_locked(folder):
            while is_locked(folder):
                see(run.live(), False)
                time.sleep(POLL_SECONDS)
            continue
        see(run.live(), True)
        if (reason := _train_here(run, see)) is None:
            refused += not is_locked(folder)  # by another process, which trains it
            if refused > TRIES:
                raise UserError(
                    f"run {run.attempt.run_id} is trained, but the tracking store does not have it, see "
                    f"{_log(folder)}: run the same command again once the store accepts it"
                )
            continue
        if is_cancelled(folder, run.attempt.created):
            raise TrainingFailed("its run was cancelled")
        died += 1
        if died == TRIES:
            raise TrainingFailed(f"its process ended {TRIES} times before its last step: {reason}")
    see(curve, False)
    return curve


def _train_here(run: Run, see: See) -> str | None:
    """Train in a child process. Returns None if it succeeded, or how it ended without a reason of its own."""
    folder, job = run.attempt.folder, TrainingJob((run.attempt,), run.uri)
    with child(_child, job, patience=PATIENCE_SECONDS) as process:
        while process.is_alive():
            process.join(POLL_SECONDS)
            if process.is_alive():
                see(run.live(), True)
    code, status = process.exitcode or 0, read_status(folder)
    if code > 0 and status.get("status") == schema.FAILED:
        raise TrainingFailed(status["reason"])
    if code > 0:
        return f"exit code {code}, see {_log(folder)}"
    return f"signal {-code}" if code else None


def _log(folder: Path) -> Path:
    return folder / "attempts" / "search_log.out"


def _child(job: TrainingJob) -> None:
    """Runs in the child: train. Output goes to a file of the run, and so does the reason of a failure."""
    print_to(_log(job.folder))
    try:
        job.run()
    except AlreadyRunning as error:
        print(error)


class _SearchState:
    """The search in MLflow, as a worker updates it. `client` is open; `mlflow_id` is the run of the study."""

    def __init__(self, study: SearchStudy, uri: str) -> None:
        self.study, self.tuning, self.uri = study, study.tuning, uri
        self.client = open_client(uri)
        self.experiment = experiment_of(self.client, self.tuning.core)
        with exclusive(study.url), self.writing():
            before = study.study.user_attrs.get(SEARCH_RUN)
            text = note(self.tuning, study.trials())
            self.mlflow_id = open_search(self.client, self.experiment, self.tuning.study, text, before)
            if self.mlflow_id != before:
                study.study.set_user_attr(SEARCH_RUN, self.mlflow_id)

    @contextlib.contextmanager
    def writing(self) -> Iterator[None]:
        """To read from and write to the study and MLflow. Raises Lost, and UserError if either fails."""
        try:
            with deferred_for(self.uri), self.study.writing():
                yield
        except STORE_FAULTS as error:
            if isinstance(error, OSError):  # also of the study's file, or of the search's
                raise
            raise store_error(self.uri, error, "used") from error

    def publish(self) -> None:
        """Write the file again, locally and to MLflow. Only one worker at a time does so, from the current study."""
        path = self.study.folder / FILE
        with exclusive(self.study.url), self.writing():
            trials = self.study.trials()
            replace_file(path, json.dumps(summarise(self.tuning, trials), indent=1) + "\n")
            ended = is_over(self.tuning, trials)
            update_search(self.client, self.mlflow_id, note(self.tuning, trials), path, ended)


@dataclass(frozen=True)
class Worker:
    """A job for a launcher. Its file has no passwords: the URL of the storage is in the environment (study.VARIABLE).

    `training`: a representative run, which takes as much of a machine as each of the search's runs.
    """

    tuning: Tuning
    training: TrainingJob
    number: int = 0

    @property
    def name(self) -> str:
        """The job's name in the launcher."""
        return f"{self.tuning.study}-worker-{self.number}"

    @property
    def folder(self) -> Path:
        """The search's folder; the launcher's logs are below it."""
        return search_folder(self.training.attempts[0].runs, self.tuning)

    @property
    def places(self) -> tuple[Path, ...]:
        """The folders of its training runs, and the folder of the study's file."""
        file = file_of(storage_url())
        return (*self.training.places, *(() if file is None else (file.parent,)))

    @property
    def fresh_process(self) -> bool:
        """Whether it needs a new process; no, since its training runs have separate processes."""
        return False

    @property
    def nodes(self) -> int:
        """The number of machines per training run."""
        return self.training.nodes

    @property
    def gpus(self) -> int:
        """The number of GPUs per machine of a training run."""
        return self.training.gpus

    @property
    def cpus(self) -> int | None:
        """The number of CPUs per machine of a training run; None: its layout asks for none."""
        return self.training.cpus

    @property
    def resources(self) -> "ResourcesSpec | None":
        """The time and resources of a training run."""
        return self.training.resources

    def give_up(self, why: str) -> None:
        """Print why it stops, and write it for `tune`; its trial is then free."""
        print(f"{self.name} stops: {why}", flush=True)
        self._note(why)

    def _note(self, why: str) -> None:
        # OSError: of a full disk, say, which may be the reason.
        with contextlib.suppress(OSError), open_append(self.folder / STOPPED) as file:
            file.write(f"{one_line(redacted(why))}\n")

    def run(self) -> None:
        """Work until no trial is left. An interrupt ends the training cleanly, and the trial is then free."""
        try:
            self._work()
        except Exception as error:
            self._note(str(error) if isinstance(error, UserError) else describe(error))
            raise

    def _work(self) -> None:
        interrupt_on_termination()  # the local launcher repeats its SIGTERM
        study = SearchStudy(self.tuning, storage_url(), self.training.attempts[0].runs)
        state = _SearchState(study, self.training.uri)
        watch = Watch(study)
        state.publish()
        leave_at = math.inf
        while time.monotonic() < leave_at:
            with study.claim() as claim:
                if claim is not None:
                    watch.look()
                    try:
                        _work_on(self, state, *claim)
                    except Lost:
                        say(
                            f"trial {claim.number}: another worker has it, since this one gave no sign of life"
                        )
            if claim is not None:
                leave_at = math.inf
                state.publish()
                watch.look()
                continue
            running = numbers_of(study.trials(), TrialState.RUNNING)
            if not running:
                break
            if leave_at == math.inf:
                wait = studies.SILENT_SECONDS + studies.BEAT_SECONDS
                leave_at = time.monotonic() + wait
                say(
                    f"trials {running} are with other workers: waiting {wait} s in case that one of them is dead"
                )
            watch.glance()
            time.sleep(POLL_SECONDS)


def _work_on(worker: Worker, search: _SearchState, trial: Trial, number: int) -> None:
    """Draw the point of a trial, train, and record the result. Raises Lost."""
    tuning, study, client, uri = worker.tuning, search.study, search.client, worker.training.uri
    with search.writing():
        record = TrialRecord.open(client, search.experiment, (tuning.study, search.mlflow_id), number)
        trial.set_user_attr(MLFLOW_ID, record.mlflow_id)
        curve = dict(study.trials()[number].intermediate_values)

    def end(state: TrialState, status: str, reason: str = "", values: Sequence[float] = ()) -> None:
        with search.writing():
            named = zip(tuning.search.search.objectives, values, strict=False)
            record.finish(status, dict(named), reason)
            study.end(trial, state, values, reason)

    def run_of(point: dict[str, Scalar], seed: int) -> Run:
        """The training run of a seed, as a launch would start it."""
        spec, template = tuning.at(point, seed).run, worker.training.attempts[0]
        tags = {
            schema.sweep_tag(tuning.search.name): f"trial {number}",
            schema.TAG_PARENT: record.mlflow_id,
            **figure_tag(tuning.search.feeds),
        }
        newest = _stored(client, spec)[:1]  # its tags keep their values
        missing = {key: tags[key] for key in tags if not any(key in stored.tags for stored in newest)}
        attempt = replace(template, spec=spec, tags={**missing, **template.tags}, created=time.time())
        return Run(attempt, client, uri, tags)

    def note_new(earlier: Sequence[Sequence[Point]], points: Sequence[Point]) -> bool:
        """Send new points to the study and MLflow. Returns whether there were any.

        Their scores are means over the seeds so far. The steps of seed i follow those of the seeds before it. The
        score before training is included once.
        """
        before, every = len(earlier) * tuning.t_stop, tuning.every
        scores = [filled(points_of, tuning.t_stop, every) for points_of in earlier]
        new = [
            Point(
                before + point.step,
                fmean([point.score, *(seed[point.step // every] for seed in scores)]),
                point.time_ms,
            )
            for point in points
            if before + point.step not in curve and not (earlier and point.step == 0)
        ]
        with search.writing():
            if new:
                record.scores(new)
            for point in new:
                curve[point.step] = point.score
                study.score(trial, point.step, point.score)
        return bool(new)

    def curve_of(run: Run, earlier: Sequence[Sequence[Point]]) -> list[Point]:
        """The curve of the next seed. Raises Pruned."""
        prunes, asked = tuning.search.search.pruner.name != "none", False

        def see(points: Sequence[Point], may_end: bool) -> None:
            nonlocal asked
            is_new = note_new(earlier, points)
            ending = bool(points) and points[-1].step >= tuning.t_stop
            if not prunes or not may_end or ending or (asked and not is_new):
                return
            asked = True
            with deferred_for(study.url):
                if curve and trial.should_prune():
                    raise Pruned(f"{PRUNED_AT} {max(curve)}")

        try:
            return train(run, see)
        except Pruned as ending:
            run.give_reason(str(ending))
            raise

    try:
        point = study.draw(trial)
        with search.writing():
            runs = [run_of(point, seed) for seed in tuning.seeds]
            run_ids = [run.attempt.spec.run_id for run in runs]
            trial.set_user_attr(RUN_IDS, run_ids)
            record.describe(point, run_ids)
        curves: list[list[Point]] = []
        for run in runs:
            curves.append(curve_of(run, curves))
        values = values_of(tuning.search.search.objectives, curves, tuning.t_stop, tuning.every)
        if not all(map(math.isfinite, values)):
            raise TrainingFailed(f"its score is {values}")
        end(TrialState.COMPLETE, schema.DONE, values=values)
    except Pruned as ending:
        end(TrialState.PRUNED, schema.PRUNED, str(ending))
    except TrainingFailed as failure:
        end(TrialState.FAIL, schema.FAILED, str(failure))
    except Lost:
        raise
    except BaseException:
        with deferred_for(uri):
            record.pause()
        raise


def tune(tuning: Tuning, uri: str, url: str, runs: Path) -> tuple[str, bool]:
    """Work on the search until no trial is left; what has become of it, and whether it is over. Other commands may work
    on it at the same time.

    Raises UserError if the study has another definition, a store cannot be used, or a run takes several nodes.
    """
    base = tuning.base
    if base.nodes > 1:
        raise UserError(
            f"layout={base.layout.name} of model {base.run.model.name} takes {base.layout.nodes} nodes, and a worker "
            "of a search trains on one: choose a layout of one node (layout=one_node; `cppo plan` says what then fits)"
        )
    hook, mirrored = webhook(base.notify.url), mirror_name(base.tracking.mirror)
    require_folder(runs)
    # Created here once, since workers that start together would all try to create tables, study and experiment.
    study = SearchStudy(tuning, url, runs)
    state = _SearchState(study, uri)
    run = Attempt(
        base.run,
        runs,
        tags={schema.TAG_CODE_VERSION: code_version()},
        layout=base.layout,
        paths=base.paths,
        resources=base.resources,
        threads=base.launcher.threads,
        visible_devices=os.environ.get("CUDA_VISIBLE_DEVICES"),
        mismatch=base.tracking.mismatch,
        answers=base.tracking.answers,
    )
    with open_append(study.folder / STOPPED) as stopped:
        before = stopped.tell()
    if remaining := tuning.trials - ended(study.trials()):
        with (
            address.in_the_environment(url, VARIABLE),
            address.in_the_environment(uri),
            address.in_the_environment(hook, NOTIFY_VARIABLE),
            address.in_the_environment(mirrored, MIRROR_VARIABLE),
        ):
            _run_workers(Worker(tuning, TrainingJob((run,), uri)), remaining, study)
    state.publish()
    trials = study.trials()
    lines = [result_text(tuning, trials)]
    if running := numbers_of(trials, TrialState.RUNNING):
        lines.append(f"trials {running} are with other workers")
    over = is_over(tuning, trials)
    if not over:
        whys = {*(study.folder / STOPPED).read_bytes()[before:].decode(errors="replace").splitlines()}
        lines += [f"a worker has stopped: {why}" for why in sorted(whys)]
        lines.append(f"run the same command to continue; workers' logs: {study.folder / 'attempts'}")
    return "\n".join(lines), over


def _run_workers(first: Worker, remaining: int, study: SearchStudy) -> None:
    """Run the workers, and report their progress."""
    launcher = first.tuning.base.launcher
    record, start = launcher_of(launcher.name), load_launcher(launcher.name)
    if record.in_process:  # the worker reports itself
        start([first], launcher.model_copy(update={"workers": 1}), lambda _: None)
        return
    count = min(remaining, launcher.workers or record.search_workers or default_workers([first]))
    workers = [replace(first, number=number) for number in range(count)]
    watch = Watch(study)

    def see(event: Event[Worker]) -> None:
        watch.glance()

    start(workers, launcher.model_copy(update={"workers": count}), see)
    if record.queue:
        _follow(workers, watch, record)
    watch.look()


def _follow(workers: Sequence[Worker], watch: Watch, launcher: LauncherRecord) -> None:
    """Report on workers in the launcher's queue until all have left it."""
    names, before = {worker.name for worker in workers}, ""
    try:
        while True:
            try:
                queue = jobs_in_queue(launcher.name, workers[0].folder.parent)
            except UserError as error:  # the controller may be restarting, which does not affect the workers
                now = str(error)
            else:
                jobs = [job for name, job in queue.items() if name in names]
                if not jobs:
                    return
                now = f"{launcher.title}: " + ", ".join(f"{job.job} {job.state.lower()}" for job in jobs)
            if now != before:
                say(now)
            before = now
            watch.glance()
            time.sleep(FOLLOW_SECONDS)
    except KeyboardInterrupt:
        say(f"cppo: the workers keep running under {launcher.title}; the same command watches them again")
        raise
