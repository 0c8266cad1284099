"""Reads the tracking store: the runs of an experiment, page by page, their histories, and their artifacts."""

import gc
import logging
import math
import re
import tempfile
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache, cached_property
from itertools import chain
from pathlib import Path
from typing import TypeVar

import numpy as np
from mlflow import MlflowClient
from mlflow.entities import Run, ViewType
from mlflow.exceptions import MlflowException
from mlflow.store.artifact.artifact_repo import ArtifactRepository
from mlflow.store.artifact.artifact_repository_registry import get_artifact_repository
from sqlalchemy.exc import SQLAlchemyError

from cppo_lab import schema
from cppo_lab.answers import ANSWERS
from cppo_lab.errors import StoreAway, UserError, counted, in_time
from cppo_lab.files import read_plain, redacted
from cppo_lab.tracking import address
from cppo_lab.tracking.client import (
    REMEDY,
    STORE_FAULTS,
    WRONG_TYPES,
    StoreClient,
    fault_line,
    open_client,
    prepare,
    require_answer,
    store_error,
)
from cppo_lab.tracking.history import (
    HISTORY,
    LARGEST,
    Column,
    History,
    StoredRun,
    unclipped,
    unpack,
)

PAGE = 1000  # runs per request
SERVER_PAGE = 200  # to a server, which takes seconds for a page
FEW = 10  # runs that take a request each
REQUESTS = 8  # at once, to a server: two for each worker that `mlflow server` starts; none then waits for us
# Histories come through the tracking server alone: other places need other clients and raise other errors.
_SERVED = ("mlflow-artifacts:", "http:", "https:")
SILENCE_SECONDS = 10.0  # without an answer, after which a server or a database counts as away
T = TypeVar("T")
_PLAIN = re.compile(r"[\w.\-]+")
_OF_RUN = f"tags.`{schema.TAG_RUN_ID}` = '{{}}'"  # MLflow's filter for the attempts at a run
_log = logging.getLogger(__name__)


def open_store(uri: str) -> StoreClient:
    """A client that reads the store at `uri`. Raises SQLAlchemyError if it is a database server that does not
    answer.
    """
    prepare()
    require_answer(uri)
    return StoreClient(uri)


@contextmanager
def reading(uri: str) -> Iterator[StoreClient]:
    """A client that reads the store at `uri`. Raises UserError if MLflow fails on the store meanwhile."""
    try:
        yield open_store(uri)
    except (MlflowException, SQLAlchemyError) as error:
        raise store_error(uri, error, "read") from error


def experiment_id(client: MlflowClient, name: str, uri: str) -> str:
    """The id of the experiment `name`. Raises UserError if there is none, or if it was deleted."""
    experiment = client.get_experiment_by_name(name)
    if experiment is None:
        names = sorted(entry.name for entry in client.search_experiments(view_type=ViewType.ACTIVE_ONLY))
        is_paper = name == schema.experiment_name(schema.PAPER)
        raise UserError(
            f"experiment {name!r} does not exist in {redacted(uri)}: it has {', '.join(names) or 'none'}; run "
            f"`{'cppo reference import' if is_paper else 'cppo launch SWEEP'}` first, or set MLFLOW_TRACKING_URI to "
            "the store that holds it"
        )
    if experiment.lifecycle_stage != "active":
        raise UserError(
            f"experiment {name!r} of {redacted(uri)} was deleted: restore it with "
            f"`mlflow experiments restore --experiment-id {experiment.experiment_id}`"
        )
    return str(experiment.experiment_id)


def search_runs(
    client: MlflowClient,
    experiment_id: str,
    condition: str = "",
    newest_first: bool = False,
    view: int = ViewType.ACTIVE_ONLY,
    tag: str | None = None,
) -> Iterator[Run]:
    """The runs of an experiment that meet MLflow's filter `condition` and have the tag `tag` (None: any), read lazily.
    `view`: also or only deleted ones.

    Oldest first by default, so that a run that starts meanwhile does not shift others to another page.
    """
    if tag is not None and _PLAIN.fullmatch(tag):  # MLflow's filters cannot quote other names
        condition += " and " * bool(condition) + f"tags.`{tag}` LIKE '%'"
    served = str(client.tracking_uri).startswith(("http://", "https://"))
    token = None
    while True:
        with _no_collection():
            page = client.search_runs(
                [experiment_id],
                filter_string=condition,
                run_view_type=view,
                max_results=SERVER_PAGE if served else PAGE,
                order_by=[f"attributes.start_time {'DESC' if newest_first else 'ASC'}"],
                page_token=token,
            )
        yield from (run for run in page if tag is None or tag in run.data.tags)
        token = page.token
        if not token:
            return


@contextmanager
def _no_collection() -> Iterator[None]:
    """Suspend garbage collection, which takes two thirds of the time of a page or a history from MLflow."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def newest_runs(
    client: MlflowClient,
    experiment: str,
    condition: str = "",
    view: int = ViewType.ACTIVE_ONLY,
    tag: str | None = None,
) -> Iterator[Run]:
    """As `search_runs`, of an experiment given by name, newest first; empty if it does not exist."""
    if (stored := client.get_experiment_by_name(experiment)) is not None:
        yield from search_runs(client, stored.experiment_id, condition, True, view, tag)


def is_active(client: MlflowClient, mlflow_id: str) -> bool:
    """Whether the store has the run, and nobody has deleted it."""
    try:
        return bool(client.get_run(mlflow_id).info.lifecycle_stage == "active")
    except MlflowException:
        return False


def stored_run(run: Run) -> StoredRun:
    """An MLflow run without MLflow's types."""
    info, data = run.info, run.data
    return StoredRun(
        info.run_id,
        info.artifact_uri or "",
        data.tags,
        info.run_name or "",
        info.start_time,
        info.end_time,
        str(info.experiment_id),
        data.params,
        {point.key: (point.step, point.timestamp, point.value) for point in data.to_proto().metrics},
    )


def attempts_at(client: MlflowClient, experiment: str, run_id: str) -> list[StoredRun]:
    """All attempts at a run, newest first."""
    return list(map(stored_run, newest_runs(client, experiment, _OF_RUN.format(run_id))))


def newest_of_each(attempts: Iterable[StoredRun]) -> list[StoredRun]:
    """An attempt at each run, sorted by run id: the newest that is a result, or the newest of all if none is."""
    ranked = sorted(attempts, key=lambda run: (run.run_id, run.is_result, run.start_ms or 0, run.mlflow_id))
    return list({run.run_id: run for run in ranked}.values())


def find(uri: str, core: str, run_ids: Collection[str]) -> dict[str, StoredRun]:
    """Those of the runs that the store has: of each the newest finished attempt, or else the newest.

    Few take a request each; for more, every run of the experiment is read once. Raises StoreAway if the store cannot be
    read, or a server or database does not answer for SILENCE_SECONDS.
    """
    # A file answers, or is said to be locked.
    seconds = SILENCE_SECONDS if address.sqlite_file(uri) is None else None
    experiment = schema.experiment_name(core)
    try:
        client = in_time(lambda: (open_store if uri.startswith("http") else open_client)(uri), seconds)
        client.patience = seconds
        attempts = newest_runs(client, experiment, tag=schema.TAG_RUN_ID)
        if len(run_ids) <= FEW:
            attempts = chain(*(newest_runs(client, experiment, _OF_RUN.format(run_id)) for run_id in run_ids))
        stored = (stored_run(run) for run in attempts if run.data.tags[schema.TAG_RUN_ID] in run_ids)
        return {run.run_id: run for run in newest_of_each(stored)}
    except UserError:
        raise
    except Exception as error:  # noqa: BLE001 - a server may answer anything in place of runs
        raise StoreAway(
            f"tracking store {redacted(uri)} cannot be read: {fault_line(error)}: {REMEDY}"
        ) from None


class StoredFiles:
    """The artifacts of the MLflow run `mlflow_id`, which are at `artifact_uri` (empty: the store is asked where);
    implements `answers.records.AnswerFiles`.
    """

    # MlflowClient's own functions for artifacts ask for the whole run and for its models first, with each file.

    def __init__(self, client: MlflowClient, mlflow_id: str, artifact_uri: str = "") -> None:
        self.client, self.mlflow_id, self.artifact_uri = client, mlflow_id, artifact_uri
        self._listed = cache(self._list)

    @cached_property
    def _repository(self) -> ArtifactRepository:
        uri = self.artifact_uri or self.client.get_run(self.mlflow_id).info.artifact_uri
        return get_artifact_repository(uri, tracking_uri=self.client.tracking_uri)

    def _list(self, folder: str) -> dict[str, int]:
        """The bytes of each file in a folder, by its path."""
        try:
            entries = self._repository.list_artifacts(folder or None)
        except (*STORE_FAULTS, *WRONG_TYPES) as error:
            raise self._unreadable(error) from None
        return {entry.path: entry.file_size or 0 for entry in entries if not entry.is_dir}

    def names(self) -> list[str]:
        return sorted(path.removeprefix(f"{ANSWERS}/") for path in self._listed(ANSWERS))

    def content(self, name: str, largest: int) -> bytes | None:
        size = self._listed(name.rpartition("/")[0]).get(name)
        if size is None:
            return None
        if size > largest:  # an oversized file is not downloaded at all
            raise UserError(
                f"{self.what(name)} has {size} bytes, more than the {largest} allowed: delete that artifact, or run "
                "that configuration again"
            )
        try:
            with tempfile.TemporaryDirectory(prefix="cppo-") as target:
                path = Path(self._repository.download_artifacts(name, target))
                with path.open("rb") as file:
                    return file.read(largest + 1)
        except (*STORE_FAULTS, *WRONG_TYPES) as error:
            raise self._unreadable(error) from None

    def what(self, name: str) -> str:
        return f"{name} of MLflow run {self.mlflow_id}"

    def _unreadable(self, error: Exception) -> StoreAway:
        return StoreAway(
            f"the artifacts of MLflow run {self.mlflow_id} cannot be read: {fault_line(error)}: {REMEDY}"
        )


def stored_files(uri: str, core: str, run_id: str) -> StoredFiles | None:
    """The files of the newest finished attempt at a run, or else of the newest attempt; None if the store has no
    attempt.

    Raises StoreAway if the store does not answer.
    """
    run = find(uri, core, [run_id]).get(run_id)
    return None if run is None else StoredFiles(open_client(uri), run.mlflow_id, run.artifact_uri)


def metric_history(client: StoreClient, mlflow_id: str, metric: str) -> Column:
    """The points of a metric, by step. If a step was logged twice, the last value counts."""
    with _no_collection():
        points = client.points(mlflow_id, metric)
        rows = sorted({step: (step, unclipped(value), time_ms) for step, value, time_ms in points}.values())
    steps, values, times = zip(*rows, strict=True) if rows else ((), (), ())
    return np.array(steps, np.int64), np.array(values, np.float64), np.array(times, np.int64)


def histories(
    client: StoreClient, runs: Sequence[StoredRun], wanted: Callable[[str], bool] | None = None
) -> Iterator[tuple[str, History]]:
    """Each run's MLflow id and its metrics whose names are `wanted` (None: all), in the order of the runs.

    A run that has ended has its whole history in the artifact `history.npz`: a file instead of a request per metric.
    Metrics that the file lacks up to the store's last point, and those of unfinished runs, take a request each. A
    missing or broken file is no error: it costs time, and a warning names broken files.
    """
    broken: list[str] = []

    def read(run: StoredRun) -> History:
        names = [name for name in sorted(run.latest) if wanted is None or wanted(name)]
        packed = _packed(client, run, broken) if names and run.status != schema.RUNNING else {}
        history = {
            name: packed[name]
            if name in packed and _reaches(packed[name], run.latest[name])
            else metric_history(client, run.mlflow_id, name)
            for name in names
        }
        return {name: columns for name, columns in history.items() if len(columns[0])}

    with ThreadPoolExecutor(REQUESTS) as pool:
        served = str(client.tracking_uri).startswith("http")
        read_all = pool.map(read, runs) if served else map(read, runs)
        yield from zip((run.mlflow_id for run in runs), read_all, strict=True)
    if broken:
        _log.warning("asked the store point by point for %s: %s", counted(len(broken), "run"), min(broken))


def _packed(client: MlflowClient, run: StoredRun, broken: list[str]) -> History:
    """The metrics in the run's file; none if it is missing, or cannot be used: its fault is added to `broken`."""
    folder = address.artifact_folder(run.artifact_uri, client.tracking_uri)
    if folder is None and not run.artifact_uri.startswith(_SERVED):
        return {}
    try:
        if folder is None:
            data = StoredFiles(client, run.mlflow_id, run.artifact_uri).content(HISTORY, LARGEST)
        else:  # a twentieth of the time that MLflow takes
            data = read_plain(folder / HISTORY, LARGEST)
        return {} if data is None else unpack(data, f"{HISTORY} of MLflow run {run.mlflow_id}")
    except (UserError, OSError) as error:
        broken.append(redacted(str(error).partition("\n")[0]))
        return {}


def _reaches(column: Column, last: tuple[int, int, float]) -> bool:
    """Whether a run's file has the store's last point. It may have later ones: those of steps without a validation."""
    place = int(column[0].searchsorted(last[0]))
    if place == len(column[0]) or int(column[0][place]) != last[0]:
        return False
    value, stored = float(column[1][place]), unclipped(last[2])
    return value == stored or (math.isnan(value) and math.isnan(stored))
