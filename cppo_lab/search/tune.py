"""Runs a search: its workers through a launcher, then its result."""

import os
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from optuna.trial import TrialState

from cppo_lab import schema
from cppo_lab.core_records import core_of
from cppo_lab.errors import UserError, say
from cppo_lab.files import require_folder
from cppo_lab.launch.base import Event
from cppo_lab.launch.launchers import LauncherRecord, jobs_in_queue, launcher_of, load_launcher
from cppo_lab.launch.local import default_workers
from cppo_lab.launch.training import TrainingJob
from cppo_lab.runs.attempt import Attempt
from cppo_lab.runs.machine import code_version
from cppo_lab.search.results import Watch, ended, is_over, numbers_of, result_text
from cppo_lab.search.space import Tuning
from cppo_lab.search.study import VARIABLE, SearchStudy
from cppo_lab.search.worker import SearchState, Worker
from cppo_lab.tracking import address
from cppo_lab.tracking.services import MIRROR_VARIABLE, NOTIFY_VARIABLE, mirror_name, webhook

FOLLOW_SECONDS = 5.0  # between queries to a cluster's controller, to limit its load


def tune(tuning: Tuning, uri: str, url: str, runs: Path) -> tuple[str, bool]:
    """Work on the search until no trial is left; what has become of it, and whether it is over. Other commands may work
    on it at the same time.

    Raises UserError if the study has another definition, a store cannot be used, or a run takes several nodes.
    """
    base = tuning.base
    if base.layout is not None and core_of(base.run.core).nodes(base.layout) > 1:
        raise UserError(
            f"layout={base.layout.name} of model {base.run.model.name} takes {base.layout.nodes} nodes, and a worker "
            "of a search trains on one: choose a layout of one node (layout=one_node; `cppo plan` says what then fits)"
        )
    hook, mirrored = webhook(base.notify.url), mirror_name(base.tracking.mirror)
    require_folder(runs)
    # Created here once, since workers that start together would all try to create tables, study and experiment.
    study = SearchStudy(tuning, url, runs)
    state = SearchState(study, uri)
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
    if left := tuning.trials - ended(study.trials()):
        with (
            address.in_the_environment(url, VARIABLE),
            address.in_the_environment(uri),
            address.in_the_environment(hook, NOTIFY_VARIABLE),
            address.in_the_environment(mirrored, MIRROR_VARIABLE),
        ):
            _work(Worker(tuning, TrainingJob((run,), uri)), left, study)
    state.publish()
    trials = study.trials()
    lines = [result_text(tuning, trials)]
    if running := numbers_of(trials, TrialState.RUNNING):
        lines.append(f"trials {running} are with other workers")
    over = is_over(tuning, trials)
    if not over:
        lines.append(f"run the same command to continue; workers' logs: {study.folder / 'attempts'}")
    return "\n".join(lines), over


def _work(first: Worker, left: int, study: SearchStudy) -> None:
    """Run the workers, and report their progress."""
    launcher = first.tuning.base.launcher
    record, start = launcher_of(launcher.name), load_launcher(launcher.name)
    if record.in_process:  # the worker reports itself
        start([first], launcher.model_copy(update={"workers": 1}), lambda _: None)
        return
    count = min(left, launcher.workers or record.search_workers or default_workers([first]))
    workers = [replace(first, number=number) for number in range(count)]
    watch = Watch(first.tuning, study.trials)

    def see(event: Event[Worker]) -> None:
        watch.glance()

    start(workers, launcher.model_copy(update={"workers": count}), see)
    if record.queue:
        _follow(workers, watch, record)
    watch.look()


def _follow(workers: Sequence[Worker], watch: Watch, launcher: LauncherRecord) -> None:
    """Report on workers in the launcher's queue until the last one has left it."""
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
