"""Runs a search: its workers through a launcher, then its result."""

import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from optuna.trial import FrozenTrial, TrialState

from cppo_lab.errors import UserError, one_line
from cppo_lab.launch.base import Event
from cppo_lab.launch.launchers import LauncherRecord, jobs_in_queue, launcher_of, load_launcher
from cppo_lab.launch.local import default_workers
from cppo_lab.launch.queues import repair
from cppo_lab.runs.machine import code_version
from cppo_lab.sweep.paths import require_folder
from cppo_lab.sweep.search.progress import Watch, counted, table
from cppo_lab.sweep.search.space import Tuning
from cppo_lab.sweep.search.state import SearchState, best_numbers, is_over
from cppo_lab.sweep.search.storage import VARIABLE
from cppo_lab.sweep.search.study import MLFLOW_ID, OWNER, REASON, RUN_IDS, SearchStudy, held_by_others
from cppo_lab.sweep.search.worker import Worker
from cppo_lab.tracking import address
from cppo_lab.tracking.search_record import TrialRecord

FOLLOW_SECONDS = 5.0  # between queries to a cluster's controller, to limit its load


@dataclass(frozen=True)
class TuneResult:
    """The result of a search when its workers have ended."""

    text: str
    over: bool


def tune(tuning: Tuning, uri: str, url: str, runs: Path) -> TuneResult:
    """Work on the search until no trial is left. Other commands may work on it at the same time.

    Raises UserError if the study has another definition, or a store cannot be used.
    """
    require_folder(runs)
    launcher = tuning.base.launcher
    # Created here once, since workers that start together would all try to create tables, study and experiment.
    study = SearchStudy(tuning, url, runs)
    state = SearchState(study, uri)
    first = Worker(
        tuning,
        uri,
        runs,
        number=0,
        code_version=code_version(),
        threads=launcher.threads,
        visible_devices=os.environ.get("CUDA_VISIBLE_DEVICES"),
    )
    left = tuning.trials - sum(trial.state.is_finished() for trial in study.trials())
    if left:
        try:
            with address.in_the_environment(url, VARIABLE), address.in_the_environment(uri):
                _work(first, left, study.trials)
        finally:  # also after an interrupt: a worker may have been terminated before it could record its end
            _release(study, state, uri, runs)
    state.publish()
    trials = study.trials()
    return TuneResult(_summary(tuning, trials, study.folder), is_over(tuning, trials))


def _release(study: SearchStudy, state: SearchState, uri: str, runs: Path) -> None:
    """Make sure that no trial stays RUNNING in MLflow without a process; a worker that resumes it marks it again."""
    for trial in study.abandoned():
        if MLFLOW_ID in trial.user_attrs:
            TrialRecord(state.client, trial.user_attrs[MLFLOW_ID]).pause()
        repair(runs, trial.user_attrs.get(RUN_IDS, []), uri)


def _work(first: Worker, left: int, trials: Callable[[], list[FrozenTrial]]) -> None:
    """Run the workers, and report their progress."""
    launcher = first.tuning.base.launcher
    record = launcher_of(launcher.name)
    most = launcher.workers or record.search_workers or default_workers([first])
    count = 1 if record.in_process else min(left, most)
    workers = [replace(first, number=number) for number in range(count)]
    watch = (
        None if record.in_process else Watch(first.tuning, trials)
    )  # a worker in this process reports itself

    def see(event: Event[Worker]) -> None:
        if watch is not None:
            watch.glance()

    load_launcher(launcher.name)(workers, launcher.model_copy(update={"workers": count}), see)
    if watch is not None:
        if record.queue:
            _follow(workers, watch, record)
        watch.look()


def _follow(workers: Sequence[Worker], watch: Watch, launcher: LauncherRecord) -> None:
    """Report on workers in the launcher's queue until the last one has left it."""
    names, before = {worker.name for worker in workers}, ""
    try:
        while True:
            try:
                jobs = jobs_in_queue(launcher.name, workers[0].folder.parent)
            except UserError as error:  # the controller may be restarting, which does not affect the workers
                now = str(error)
            else:
                here = [job for name, job in jobs.items() if name in names]
                if not here:
                    return
                now = f"{launcher.title}: " + ", ".join(f"{job.job} {job.state.lower()}" for job in here)
            if now != before:
                print(now, file=sys.stderr, flush=True)
            before = now
            watch.glance()
            time.sleep(FOLLOW_SECONDS)
    except KeyboardInterrupt:
        print(
            f"cppo: the workers keep running under {launcher.title}; the same command watches them again",
            file=sys.stderr,
        )
        raise


def _summary(tuning: Tuning, trials: list[FrozenTrial], folder: Path) -> str:
    """The final summary: the best trials, the failures, and what is left."""
    lines = [f"{tuning.study}: {counted(tuning, trials)}"]
    best = best_numbers(trials)
    if best:
        title = "best trial" if len(tuning.search.search.objectives) == 1 else "Pareto front"
        lines += ["", f"{title}:", table(tuning, trials, best)]
    for trial in trials:
        if trial.state is TrialState.FAIL:
            lines.append(f"trial {trial.number} FAILED: {one_line(str(trial.user_attrs.get(REASON, '')))}")
    others = held_by_others(trials, folder)
    if others:
        owners = sorted({str(trial.user_attrs.get(OWNER)) for trial in others})
        numbers = ", ".join(str(trial.number) for trial in others)
        lines.append(f"trials {numbers} are with workers of {', '.join(owners)}: continue them there")
    if not is_over(tuning, trials):
        lines.append(f"run the same command to continue; workers' logs: {folder / 'attempts'}")
    return "\n".join(lines)
