"""A worker of a search: claims a trial, trains its seeds, reports to the study, and claims the next."""

import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from optuna.trial import TrialState

from cppo_lab import schema
from cppo_lab.files import redacted
from cppo_lab.launch.training import TrainingJob
from cppo_lab.runs.attempt import Attempt
from cppo_lab.runs.tags import figure_tag
from cppo_lab.spec import ResourcesSpec
from cppo_lab.sweep.declared import Scalar
from cppo_lab.sweep.search.objectives import running_mean, values_of
from cppo_lab.sweep.search.progress import Watch
from cppo_lab.sweep.search.space import Tuning
from cppo_lab.sweep.search.state import SearchState
from cppo_lab.sweep.search.storage import file_of, storage_url
from cppo_lab.sweep.search.study import MLFLOW_ID, REASON, RUN_IDS, SearchStudy, TrialClaim, searches_folder
from cppo_lab.sweep.search.training import Pruned, Run, TrainingFailed, train
from cppo_lab.tracking import address, search_record
from cppo_lab.tracking.client import deferred_for
from cppo_lab.tracking.search_record import Point, TrialRecord, score_metric


@dataclass(frozen=True)
class Worker:
    """A job for a launcher. Its file has no passwords: the URLs are in the environment (storage.VARIABLE and
    store.VARIABLE).
    """

    tuning: Tuning
    uri: str
    runs: Path
    number: int
    code_version: str
    threads: int = 1
    visible_devices: str | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "uri": redacted(self.uri)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, uri=address.with_password(state["uri"]))

    @property
    def name(self) -> str:
        """The job's name in the launcher."""
        return f"{self.tuning.study}-worker-{self.number}"

    @property
    def folder(self) -> Path:
        """The search's folder; the launcher's logs are below it."""
        return searches_folder(self.runs) / self.tuning.study

    @property
    def places(self) -> tuple[Path, ...]:
        """The folders of its training runs, and the folder of the study's file."""
        file = file_of(storage_url())
        return (*self._job.places, *(() if file is None else (file.parent,)))

    @property
    def fresh_process(self) -> bool:
        """Whether it needs a new process; no, since its training runs have separate processes."""
        return False

    @property
    def nodes(self) -> int:
        """The number of machines per training run."""
        return self._job.nodes

    @property
    def gpus(self) -> int:
        """The number of GPUs per machine of a training run."""
        return self._job.gpus

    @property
    def resources(self) -> ResourcesSpec:
        """The time and resources of one training run."""
        return self.tuning.base.resources

    @property
    def _job(self) -> TrainingJob:
        """A representative training run of the search."""
        base = self.tuning.base
        return TrainingJob((Attempt(base.run, self.runs, layout=base.layout, paths=base.paths),), self.uri)

    def give_up(self, why: str) -> None:
        """Print why it stops; its trial is then free."""
        print(f"{self.name} stops: {why}", flush=True)

    def run(self) -> None:
        """Work until no trial is left. An interrupt ends the training cleanly, and the trial is then free."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, _interrupt)
        study = SearchStudy(self.tuning, storage_url(), self.runs)
        state = SearchState(study, self.uri)
        watch = Watch(self.tuning, study.trials)
        state.publish()
        while True:
            with study.claim() as claim:
                if claim is None:
                    break
                watch.look()
                _Work(self, study, state, claim).do()
            state.publish()
            watch.look()


def _interrupt(number: int, frame: FrameType | None) -> None:
    # The local launcher repeats its SIGTERM; the training is ended cleanly only once.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise KeyboardInterrupt


class _Work:
    """One worker on one trial."""

    def __init__(self, worker: Worker, study: SearchStudy, state: SearchState, claim: TrialClaim) -> None:
        self.worker, self.study, self.trial = worker, study, claim.trial
        self.tuning, self.client = worker.tuning, state.client
        known = claim.trial.user_attrs.get(MLFLOW_ID)
        search = (self.tuning.study, state.mlflow_id)
        with deferred_for(worker.uri):
            self.record = TrialRecord.open(self.client, state.experiment, search, claim.number, known)
            self.trial.set_user_attr(MLFLOW_ID, self.record.mlflow_id)
        self.number = claim.number
        self.noted = study.curve(claim.number)

    def do(self) -> None:
        """Draw the point, train, and record the result."""
        try:
            point = self.study.draw(self.trial)
            with deferred_for(self.worker.uri):
                runs = [self._run(point, seed) for seed in self.tuning.seeds]
                run_ids = [run.attempt.spec.run_id for run in runs]
                self.trial.set_user_attr(RUN_IDS, run_ids)
                self.record.describe(point, run_ids)
            self._conclude(self._train(runs))
        except Pruned as ending:
            self._end(TrialState.PRUNED, schema.PRUNED, str(ending))
        except TrainingFailed as failure:
            self._end(TrialState.FAIL, schema.FAILED, str(failure))
        except BaseException:
            with deferred_for(self.worker.uri):
                self.record.pause()
            raise

    def _conclude(self, curves: Sequence[Sequence[Point]]) -> None:
        names, run = self.tuning.search.search.objectives, self.tuning.base.run
        pairs = [[(point.step, point.score) for point in curve] for curve in curves]
        values = values_of(names, pairs, self.tuning.t_stop, run.validation.every)
        with deferred_for(self.worker.uri):
            self.record.finish(schema.DONE, dict(zip(names, values, strict=True)))
            self.study.study.tell(self.trial, values)

    def _end(self, state: TrialState, status: str, reason: str) -> None:
        with deferred_for(self.worker.uri):
            self.record.finish(status, {}, reason)
            self.trial.set_user_attr(REASON, reason)
            self.study.study.tell(self.trial, state=state)

    def _run(self, point: Mapping[str, Scalar], seed: int) -> Run:
        """The training run of one seed, as a launch would start it."""
        worker, composed = self.worker, self.tuning.at(point, seed)
        spec, metric = composed.run, score_metric(composed.run)
        wanted = {
            schema.sweep_tag(self.tuning.search.name): f"trial {self.number}",
            schema.TAG_PARENT: self.record.mlflow_id,
            **figure_tag(self.tuning.search.feeds),
        }
        attempt = Attempt(
            spec=spec,
            layout=composed.layout,
            paths=composed.paths,
            resources=composed.resources,
            runs=worker.runs,
            tags={
                **search_record.missing_tags(self.client, spec, wanted),
                schema.TAG_CODE_VERSION: worker.code_version,
            },
            threads=worker.threads,
            visible_devices=worker.visible_devices,
            mismatch=composed.tracking.mismatch,
            answers=composed.tracking.answers,
        )

        def finished() -> list[Point] | None:
            with deferred_for(worker.uri):
                done = search_record.finished_id(self.client, spec)
                if done is None:
                    return None
                search_record.tag_finished(self.client, done, wanted)
                return search_record.recorded_curve(self.client, done, metric)

        return Run(attempt, worker.uri, finished, lambda: search_record.live_curve(attempt.folder, metric))

    def _train(self, runs: Sequence[Run]) -> list[list[Point]]:
        """The curves of all seeds, trained one after the other."""
        curves: list[list[Point]] = []
        for run in runs:
            curves.append(self._train_seed(run, curves))
        return curves

    def _train_seed(self, run: Run, earlier: Sequence[Sequence[Point]]) -> list[Point]:
        """The curve of the next seed. Raises Pruned."""
        prunes = self.tuning.search.search.pruner.name != "none"
        asked = False

        def see(points: Sequence[Point]) -> int | None:
            nonlocal asked
            new = self._note(earlier, points)
            ending = bool(points) and points[-1].step >= self.tuning.t_stop
            if not prunes or ending or (asked and not new):
                return None
            asked = True
            return max(self.noted) if self.noted and self.trial.should_prune() else None

        try:
            return train(run, see)
        except Pruned as ending:
            with deferred_for(self.worker.uri):
                search_record.give_reason(self.client, run.attempt.spec, str(ending))
            raise

    def _note(self, earlier: Sequence[Sequence[Point]], points: Sequence[Point]) -> bool:
        """Send new points to the study and MLflow. Returns whether there were any.

        The steps of seed i follow those of the seeds before it. The score before training is included once.
        """
        every, t_stop = self.tuning.base.run.validation.every, self.tuning.t_stop
        curves = [[(point.step, point.score) for point in curve] for curve in earlier]
        new = []
        for point in points:
            step = len(earlier) * t_stop + point.step
            if step in self.noted or (earlier and point.step == 0):
                continue
            mean = running_mean(curves, point.step, point.score, t_stop, every)
            new.append(Point(step, mean, point.time_ms))
            self.noted[step] = mean
        if new:
            with deferred_for(self.worker.uri):
                self.record.scores(new)
                for one in new:
                    self.study.score(self.trial, one.step, one.score)
        return bool(new)
