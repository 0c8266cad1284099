"""The study of a search, in Optuna's storage: created once, continued only with an equal definition.

A worker claims a trial, and its heartbeat says that it lives. A trial whose worker is silent is repeated as Optuna does
it: it fails, and a new trial has its point, its curve and its attributes. Here both are one trial, with the number of
the first.

What a search has found is here too: as lines for people, and as the file that the report reads. An objective is a
number from the validation curve of a run, averaged over the seeds. A curve has (training step, score) for each
validation, also before training; scores are fractions.
"""

import contextlib
import copy
import hashlib
import json
import os
import re
import socket
import threading
import time
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

import optuna
from optuna.exceptions import (
    ExperimentalWarning,
    OptunaError,
    StorageInternalError,
    UpdateFinishedTrialError,
)
from optuna.pruners import BasePruner, HyperbandPruner, MedianPruner, NopPruner
from optuna.samplers import BaseSampler, NSGAIISampler, RandomSampler, TPESampler
from optuna.storages import BaseStorage, JournalStorage, RDBStorage, RetryHeartbeatStaleTrialCallback
from optuna.storages.journal import JournalFileBackend
from optuna.trial import FrozenTrial, Trial, TrialState, create_trial
from sqlalchemy import NullPool, create_engine, text
from sqlalchemy.exc import SQLAlchemyError

from cppo_lab.errors import UserError, one_line, say
from cppo_lab.files import redacted
from cppo_lab.search.space import Tuning, describe, require_equal, tidy
from cppo_lab.sweep.columns import aligned
from cppo_lab.sweep.cost import cost_of
from cppo_lab.sweep.file import Choices, Parameter, Scalar
from cppo_lab.sweep.table import interval
from cppo_lab.tracking import address
from cppo_lab.tracking.client import create_atomically, deferred_for
from cppo_lab.tracking.page import OBJECTIVES, filled

VARIABLE = "OPTUNA_STORAGE"  # Optuna's variable; workers get the URL through it, so no file has a password
DEFAULT_URL = "sqlite:///optuna.db"  # relative to the working folder
ADVISORY_LOCK = (
    0x6370706F  # PostgreSQL's advisory locks are numbers shared by all users of a database; this is "cppo"
)
LOCK_WAIT_SECONDS = 60  # for SQLite, while another process writes
BEAT_SECONDS = 10  # between heartbeats
SILENT_SECONDS = 60  # without a heartbeat, after which a worker counts as dead

# User attributes of a study and of its trials.
DEFINITION, SEARCH_RUN = "definition", "mlflow_id"
MLFLOW_ID, REASON, RUN_IDS, WORKER = "mlflow_id", "reason", "run_ids", "worker"
_BEAT = "heartbeat"  # in a journal, where Optuna keeps none
_OWNER = "owner"  # in studies of version 0.1, whose trials have no heartbeat
PRUNED_AT = "pruned by the search at step"

warnings.filterwarnings("ignore", category=ExperimentalWarning)  # of heartbeats, since years
_repeat = RetryHeartbeatStaleTrialCallback(inherit_intermediate_values=True)


def storage_url(given: str | None = None) -> str:
    """The storage to use: `given`, else OPTUNA_STORAGE, else `sqlite:///optuna.db`; files by their absolute path.

    Raises UserError for a storage that workers cannot share.
    """
    url = (os.environ.get(VARIABLE) or DEFAULT_URL) if given is None else given
    try:
        if url.endswith(".journal") and "://" not in url:
            return str(Path(url).resolve())
        is_file = url.startswith("sqlite:///") and url.removeprefix("sqlite:///") not in ("", ":memory:", "/")
        if is_file or re.match(r"postgresql(\+\w+)?://", url):
            return address.absolute_uri(url)
    except RuntimeError:  # of pathlib for a loop before Python 3.13
        raise UserError(f"storage {redacted(url)!r} is a circular link: name another file") from None
    raise UserError(
        f"storage {redacted(url)!r} is not supported: use sqlite:///FILE.db, a path that ends in .journal (for a "
        "file system that machines share), or postgresql://USER:PASSWORD@HOST/DATABASE"
    )


def file_of(url: str) -> Path | None:
    """The file of a storage; None for a server."""
    return address.sqlite_file(url) or (Path(url) if url.endswith(".journal") else None)


@contextlib.contextmanager
def exclusive(url: str) -> Iterator[None]:
    """Let only one process at a time make changes that must appear atomic; on a server, across machines."""
    path = file_of(url)
    if path is not None:
        with address.locked(path, "search.lock"):
            yield
        return
    # PostgreSQL releases the lock when the connection ends for any reason.
    with create_engine(url, poolclass=NullPool).connect() as connection:
        connection.execute(text("SELECT pg_advisory_lock(:key)"), {"key": ADVISORY_LOCK})
        yield


def open_storage(url: str) -> BaseStorage:
    """The storage at `url`, with its tables.

    Raises UserError if it cannot be reached or its driver is not installed.
    """
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    path = file_of(url)
    if path is not None and not path.parent.is_dir():
        raise UserError(
            f"storage {redacted(url)}: folder {path.parent} does not exist: make it, or name another place"
        )
    try:
        if url.endswith(".journal"):
            _require_journal(Path(url))
            return JournalStorage(JournalFileBackend(url))
        # Two machines may create the tables at the same time; a killed process leaves no half of a file.
        with exclusive(url) if path is None or address.is_new(path) else contextlib.nullcontext():
            if path is not None:
                create_atomically(path, lambda beside: RDBStorage(f"sqlite:///{beside}").engine.dispose())
            return RDBStorage(
                url,
                {} if path is None else {"connect_args": {"timeout": LOCK_WAIT_SECONDS}},
                heartbeat_interval=BEAT_SECONDS,
                grace_period=SILENT_SECONDS,
            )
    except ImportError:
        raise UserError(
            f"storage {redacted(url)}: its driver is not installed: pip install psycopg2-binary, and begin "
            "the URL with postgresql://"
        ) from None
    except (SQLAlchemyError, OptunaError, OSError, ValueError, RuntimeError) as error:
        raise _unusable(url, error) from None


def _unusable(url: str, error: Exception) -> UserError:
    first_line = redacted((str(error).strip().splitlines() or [type(error).__name__])[0])
    return UserError(f"storage {redacted(url)} cannot be used: {first_line}")


def _require_journal(path: Path) -> None:
    """Require a valid journal file: Optuna would append to any file, and then fail to read it.

    Raises UserError.
    """
    # Another process may write the last line.
    lines = path.read_bytes().split(b"\n")[:-1] if path.is_file() else []
    for number, line in enumerate(lines, start=1):
        try:
            is_record = "op_code" in json.loads(line)
        except (ValueError, TypeError, RecursionError):
            is_record = False
        if not is_record:
            raise UserError(
                f"storage {path}: line {number} is no record of Optuna's journal: name another file, or remove "
                "that line"
            )


def search_folder(runs: Path, tuning: Tuning) -> Path:
    """The folder of a search, for its file and the logs of its workers, below the folder of all runs."""
    return runs / "searches" / tuning.study


class Lost(Exception):
    """Another worker has the trial, because this worker was taken for dead."""


class TrialClaim(NamedTuple):
    """A trial that this worker has; `number` is its place in the budget, the same when Optuna repeats it."""

    trial: Trial
    number: int


class SearchStudy:
    """A worker's access to the study of a search. `folder` has the search's file and logs, on this machine."""

    def __init__(self, tuning: Tuning, url: str, runs: Path) -> None:
        """Open the study, or create it.

        Raises UserError if a study of that name has a different definition, or the storage cannot be used.
        """
        self.tuning, self.url, self.storage = tuning, url, open_storage(url)
        self.folder = search_folder(runs, tuning)
        self.folder.mkdir(parents=True, exist_ok=True)
        with exclusive(url), deferred_for(url):
            self.study = optuna.create_study(
                storage=self.storage,
                study_name=tuning.study,
                directions=["maximize"] * len(tuning.search.search.objectives),
                pruner=make_pruner(tuning),
                load_if_exists=True,
            )
            definition = self.study.user_attrs.get(DEFINITION)
            if definition is None:
                self.study.set_user_attr(DEFINITION, tuning.definition())
        require_equal(tuning, definition, url)

    def trials(self) -> list[FrozenTrial]:
        """The trials of this search's budget, by number; those that have not begun are WAITING."""
        with self.writing():
            return numbered(self.study.get_trials(deepcopy=False))[: self.tuning.trials]

    @contextlib.contextmanager
    def claim(self) -> Iterator[TrialClaim | None]:
        """Claim the first trial that waits, with its number; None if there is none. An exception gives it back."""
        claim = self._take()
        if claim is None:
            yield None
            return
        ended = threading.Event()
        beating = threading.Thread(target=self._beat, args=(claim.trial.number, ended), daemon=True)
        beating.start()
        try:
            yield claim
        except BaseException:
            # It waits for another worker, unless it has ended. An unreachable storage gives it back by the silence.
            with contextlib.suppress(Exception), exclusive(self.url), deferred_for(self.url):
                self.study.tell(claim.trial.number, state=TrialState.FAIL, skip_if_finished=True)
                self._repeat_lost()
            raise
        finally:
            ended.set()
            beating.join()

    def _take(self) -> TrialClaim | None:
        """The next trial. All trials of the budget are created in advance, so that their number limits the claims."""
        with exclusive(self.url), deferred_for(self.url):
            self._repeat_lost()
            for _ in range(self.tuning.trials - len(_newest(self.study.get_trials(deepcopy=False)))):
                self.study.add_trial(create_trial(state=TrialState.WAITING))
            trials = _newest(self.study.get_trials(deepcopy=False))[: self.tuning.trials]
            for number, trial in enumerate(trials):
                # Another machine may be first, and even have ended it.
                with contextlib.suppress(UpdateFinishedTrialError):
                    if trial.state is not TrialState.WAITING:
                        continue
                    # Before the claim: a worker that is killed right behind it is silent.
                    self._sign(trial.number)
                    trial_id = self._id(trial.number)
                    if self.storage.set_trial_state_values(trial_id, TrialState.RUNNING):
                        worker = f"{socket.gethostname()} {os.getpid()}"
                        self.storage.set_trial_user_attr(trial_id, WORKER, worker)
                        self.study.sampler = make_sampler(self.tuning, number)
                        return TrialClaim(Trial(self.study, trial_id), number)
        return None

    def _id(self, number: int) -> int:
        study_id = self.storage.get_study_id_from_name(self.tuning.study)
        return self.storage.get_trial_id_from_study_id_trial_number(study_id, number)

    def _sign(self, number: int) -> None:
        """Say that the worker of a trial lives."""
        if isinstance(self.storage, RDBStorage):
            self.storage.record_heartbeat(self._id(number))
        else:
            self.storage.set_trial_user_attr(self._id(number), _BEAT, time.time())

    def _beat(self, number: int, ended: threading.Event) -> None:
        while not ended.wait(BEAT_SECONDS):
            with contextlib.suppress(Exception):  # the next sign may arrive; who lost the trial sees it later
                self._sign(number)

    def _repeat_lost(self) -> None:
        """Let trials wait again that their workers have lost. A process killed in here leaves the work to the next."""
        optuna.storages.fail_stale_trials(self.study)
        for trial in self.study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):
            # Optuna does not know of dead workers in a journal, and in studies of version 0.1.
            about, begun = trial.user_attrs, trial.datetime_start.timestamp() if trial.datetime_start else 0.0
            knows = isinstance(self.storage, RDBStorage) and (_OWNER not in about or WORKER in about)
            if not knows and time.time() - float(about.get(_BEAT, begun)) > SILENT_SECONDS:
                self.study.tell(trial.number, state=TrialState.FAIL, skip_if_finished=True)
        for trial in _newest(self.study.get_trials()):
            reason = trial.user_attrs.get(REASON, PRUNED_AT)  # no reason, or killed while pruning
            if trial.state is TrialState.FAIL and reason.startswith(PRUNED_AT):
                for key in (WORKER, REASON, _BEAT, _OWNER):
                    trial.user_attrs.pop(key, None)
                _repeat(self.study, trial)

    @contextlib.contextmanager
    def writing(self) -> Iterator[None]:
        """To read from the study, and write to a trial that this worker has. Raises Lost, and UserError if the storage
        fails.
        """
        try:
            with deferred_for(self.url):
                yield
        except UpdateFinishedTrialError:
            raise Lost from None
        except (SQLAlchemyError, StorageInternalError) as error:
            raise _unusable(self.url, error) from error

    def draw(self, trial: Trial) -> dict[str, Scalar]:
        """The trial's point; values that are not drawn yet are drawn now. Raises Lost."""
        with self.writing():
            return {
                key: tidy(suggest(trial, key, parameter, self.tuning.is_whole(key)))
                for key, parameter in self.tuning.space.items()
            }

    def score(self, trial: Trial, step: int, value: float) -> None:
        """Record a point of the curve that is used for pruning. Raises Lost."""
        with self.writing():
            if len(self.study.directions) == 1:
                trial.report(value, step)
            else:  # `report` refuses it; the report page still draws the curve
                self.storage.set_trial_intermediate_value(self._id(trial.number), step, value)

    def end(self, trial: Trial, state: TrialState, values: Sequence[float] = (), reason: str = "") -> None:
        """End the trial: with the values of its objectives, or with the reason why it has none. Raises Lost."""
        with self.writing():
            if reason:
                trial.set_user_attr(REASON, reason)
            if self.study.tell(trial, values or None, state, skip_if_finished=True).state is not state:
                raise Lost


def _newest(trials: Sequence[FrozenTrial]) -> list[FrozenTrial]:
    """The trials in their order, each as its last repetition."""
    newest: dict[int, FrozenTrial] = {}
    for trial in trials:
        first = RetryHeartbeatStaleTrialCallback.retried_trial_number(trial)
        newest[trial.number if first is None else first] = trial
    return [newest[first] for first in sorted(newest)]


def numbered(trials: Sequence[FrozenTrial]) -> list[FrozenTrial]:
    """The trials of a search, from those that Optuna counts: the last repetition of each, with the first number."""
    numbered = [copy.copy(trial) for trial in _newest(trials)]
    for number, trial in enumerate(numbered):
        trial.number = number
    return numbered


def find_trials(tuning: Tuning, url: str) -> list[FrozenTrial]:
    """The existing trials of a search. Writes nothing; a missing file has no study.

    Raises UserError as opening the study does.
    """
    path = file_of(url)
    if path is not None and not path.is_file():
        return []
    try:
        study = optuna.load_study(study_name=tuning.study, storage=open_storage(url))
    except KeyError:
        return []
    require_equal(tuning, study.user_attrs.get(DEFINITION), url)
    return numbered(study.get_trials(deepcopy=False))[: tuning.trials]


def suggest(trial: Trial, key: str, parameter: Parameter, whole: bool) -> Scalar:
    """The trial's value of a parameter, drawn once; an integer if `whole`."""
    if isinstance(parameter, Choices):
        return trial.suggest_categorical(key, parameter.choices)
    low, high, step = parameter.low, parameter.high, parameter.step
    if whole:
        return trial.suggest_int(key, int(low), int(high), step=int(step or 1), log=parameter.log)
    return trial.suggest_float(key, low, high, step=step, log=parameter.log)


def make_sampler(tuning: Tuning, number: int) -> BaseSampler:
    """The sampler of the point of trial `number`.

    Seeded by the trial number: workers never draw the same points, and a repeated trial draws its own point again.
    """
    spec = tuning.search.search.sampler
    seed = int.from_bytes(hashlib.sha256(f"{spec.seed} {number}".encode()).digest()[:4], "big")
    if spec.name == "random":
        return RandomSampler(seed=seed)
    if spec.name == "nsga2":
        return NSGAIISampler(population_size=spec.startup, seed=seed)
    # Running trials count as bad, so that parallel workers do not choose the same point.
    return TPESampler(n_startup_trials=spec.startup, seed=seed, constant_liar=True)


def make_pruner(tuning: Tuning) -> BasePruner:
    """The pruner. The steps of a trial run through its seeds in turn."""
    spec, run = tuning.search.search.pruner, tuning.base.run
    if spec.name == "median":
        return MedianPruner(n_startup_trials=spec.startup, n_warmup_steps=spec.warmup_steps)
    if spec.name == "hyperband":
        return HyperbandPruner(
            min_resource=max(run.validation.every, spec.warmup_steps),
            max_resource=run.training.t_stop * len(tuning.seeds),
        )
    return NopPruner()


FORMAT = 1
EVERY_SECONDS = 2.0  # between periodic updates
_NAMES = {
    TrialState.COMPLETE: "complete",
    TrialState.PRUNED: "pruned",
    TrialState.FAIL: "failed",
    TrialState.RUNNING: "running",
}
# In the order in which they are listed.
_WORDS = {
    TrialState.COMPLETE: "done",
    TrialState.PRUNED: "pruned",
    TrialState.FAIL: "FAILED",
    TrialState.RUNNING: "running",
    TrialState.WAITING: "left",
}


def values_of(
    objectives: Sequence[str], curves: Sequence[Sequence[tuple[Any, ...]]], t_stop: int, every: int
) -> list[float]:
    """Each objective, averaged over the runs whose curves are given."""
    scores = [filled(curve, t_stop, every) for curve in curves]
    return [fmean(map(OBJECTIVES[name], scores)) for name in objectives]


def ended(trials: Sequence[FrozenTrial]) -> int:
    """How many of the trials have ended."""
    return sum(trial.state.is_finished() for trial in trials)


def is_over(tuning: Tuning, trials: Sequence[FrozenTrial]) -> bool:
    """Whether every trial of the budget has ended."""
    return ended(trials) >= tuning.trials


def numbers_of(trials: Sequence[FrozenTrial], state: TrialState) -> str:
    """The numbers of the trials in `state`, for a message."""
    return ", ".join(str(trial.number) for trial in trials if trial.state is state)


def best_numbers(trials: Sequence[FrozenTrial]) -> list[int]:
    """The best trial, the earliest on ties; for several objectives the Pareto front. All objectives are maximised."""
    values = {trial.number: trial.values for trial in trials if trial.state is TrialState.COMPLETE}
    front = [
        number
        for number, score in values.items()
        if not any(rival != score and all(map(float.__ge__, rival, score)) for rival in values.values())
    ]
    return front if front and len(values[front[0]]) > 1 else front[:1]


def summarise(tuning: Tuning, trials: Sequence[FrozenTrial]) -> dict[str, Any]:
    """The whole search as plain values."""
    search = tuning.search
    return {
        "format": FORMAT,
        "name": search.name,
        "study": tuning.study,
        "title": search.title,
        "question": search.question,
        "core": tuning.core,
        "model": tuning.model,
        "seeds": list(tuning.seeds),
        "sampler": search.search.sampler.name,
        "pruner": search.search.pruner.name,
        "objectives": list(search.search.objectives),
        "parameters": tuning.parameters(),
        "t_stop": tuning.t_stop,
        "trials": [
            {
                "number": trial.number,
                "state": _NAMES[trial.state],
                "params": {key: tidy(value) for key, value in trial.params.items()},
                "values": trial.values if trial.state is TrialState.COMPLETE else None,
                "curve": sorted(trial.intermediate_values.items()),
                "run_ids": trial.user_attrs.get(RUN_IDS, []),
                "mlflow_id": trial.user_attrs.get(MLFLOW_ID),
                "reason": trial.user_attrs.get(REASON, ""),
                "seconds": round(trial.duration.total_seconds(), 1) if trial.duration else None,
            }
            for trial in trials
            if trial.state in _NAMES
        ],
        "best": best_numbers(trials),
    }


def note(tuning: Tuning, trials: Sequence[FrozenTrial]) -> str:
    """The description that MLflow shows."""
    return "\n".join(
        [
            f"# {tuning.search.title}\n",
            f"{tuning.search.question}\n",
            "| parameter | values |\n| --- | --- |",
            *(f"| {key} | {describe(parameter)} |" for key, parameter in tuning.space.items()),
            f"\nStudy `{tuning.study}`: {ended(trials)} of {tuning.trials} trials done.",
            *(f"Best so far: {_line(trials[number], tuning)}" for number in best_numbers(trials)),
        ]
    )


def _line(trial: FrozenTrial, tuning: Tuning) -> str:
    """An ended trial in a line: number and values with the point, or the reason why it has none."""
    if trial.state is not TrialState.COMPLETE:
        return f"trial {trial.number}: {_WORDS[trial.state]}: {_reason(trial)}"
    pairs = zip(tuning.search.search.objectives, trial.values, strict=True)
    values = ", ".join(f"{name} {value:.4f}" for name, value in pairs)
    point = " ".join(
        f"{key}={value:.4g}" if isinstance(value, float) else f"{key}={value}"
        for key, value in trial.params.items()
    )
    return f"trial {trial.number}: {values} at {point}"


def _reason(trial: FrozenTrial) -> str:
    return one_line(str(trial.user_attrs.get(REASON, "")))


def counts(tuning: Tuning, trials: Sequence[FrozenTrial]) -> dict[str, int]:
    """The number of trials by state; trials that are not created yet count as left."""
    numbers = Counter(_WORDS[trial.state] for trial in trials)
    numbers["left"] += tuning.trials - len(trials)
    return {word: numbers[word] for word in _WORDS.values() if numbers[word]}


def counted(tuning: Tuning, trials: Sequence[FrozenTrial]) -> str:
    """The number of trials by state, as text."""
    parts = ", ".join(f"{number} {word}" for word, number in counts(tuning, trials).items())
    return f"{tuning.trials} trials ({parts})"


def summary_text(tuning: Tuning, trials: Sequence[FrozenTrial]) -> str:
    """The plan of a search as text; `trials` are those of its study."""
    search, spec = tuning.search, tuning.search.search
    width = max(len(key) for key in tuning.space)
    cost, run_cost = "", cost_of(tuning.base.run, tuning.base.layout, ())
    if run_cost is not None and run_cost.gpu_hours is not None:
        of_trial = run_cost.gpu_hours * len(tuning.seeds)
        trial, study = (interval([(total, run_cost.basis)]) for total in (of_trial, of_trial * tuning.trials))
        cost = f", {trial} GPU-hours ({study} for all trials without pruning)"
    return "\n".join(
        [
            f"{search.name}: {search.title}. {search.question}".rstrip(),
            "",
            *(f"{key.ljust(width)}  {describe(parameter)}" for key, parameter in tuning.space.items()),
            "",
            f"maximises {', '.join(spec.objectives)} on {tuning.model}, averaged over the seeds "
            f"{', '.join(map(str, tuning.seeds))}; sampler {spec.sampler.name}, pruner {spec.pruner.name}",
            f"study {tuning.study}: {counted(tuning, trials)}",
            f"one trial: {len(tuning.seeds)} x {tuning.t_stop} training steps{cost}",
        ]
    )


def result_text(tuning: Tuning, trials: Sequence[FrozenTrial]) -> str:
    """What has become of a search: the best trials with their points, and the failures."""
    objectives, best = tuning.search.search.objectives, best_numbers(trials)
    lines = [f"{tuning.study}: {counted(tuning, trials)}"]
    if best:
        title = "best trial" if len(objectives) == 1 else "Pareto front"
        rows = [
            [str(number), *(f"{value:.4f}" for value in trials[number].values)]
            + [str(tidy(trials[number].params[key])) for key in tuning.space]
            for number in best
        ]
        lines += ["", f"{title}:", aligned(["trial", *objectives, *tuning.space], rows)]
    for trial in trials:
        if trial.state is TrialState.FAIL:
            lines.append(f"trial {trial.number} FAILED: {_reason(trial)}")
    return "\n".join(lines)


class Watch:
    """Prints a line for each trial that begins or ends, with the progress of the search, on standard error."""

    def __init__(self, study: SearchStudy) -> None:
        self._study, self._looked, begun = study, 0.0, study.trials()
        self._states = {trial.number: trial.state for trial in begun}
        say(f"{study.tuning.study}: {counted(study.tuning, begun)}")

    def glance(self) -> None:
        """Update if the last update was some seconds ago."""
        if time.monotonic() - self._looked >= EVERY_SECONDS:
            self.look()

    def look(self) -> None:
        """Print what has changed since the last update."""
        tuning, trials, so_far = self._study.tuning, self._study.trials(), ""
        if (best := best_numbers(trials)) and len(self._study.study.directions) > 1:
            so_far = f", {len(best)} on the Pareto front"
        elif best:
            so_far = f", best {trials[best[0]].values[0]:.4f} of trial {best[0]}"
        for trial in trials:
            if trial.state is self._states.get(trial.number, TrialState.WAITING):
                continue
            if trial.state is TrialState.RUNNING:
                say(f"trial {trial.number}: started")
            elif trial.state.is_finished():
                say(f"{_line(trial, tuning)}  [{ended(trials)}/{tuning.trials}{so_far}]")
        self._states = {trial.number: trial.state for trial in trials}
        self._looked = time.monotonic()
