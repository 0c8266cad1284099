"""The metric histories of many runs at once, as one tidy frame.

A run that has ended has its whole history in the artifact `history.npz`: one file instead of one request per metric. A
metric is taken from it if its last point is the last one in the store. All others, and the metrics of unfinished runs,
are queried from the store one by one. Results that did not come from a file on this machine are cached under the run's
version, i.e. its state and its last points.
"""

import hashlib
import logging
import math
import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import urlsplit

import pandas as pd
from mlflow.entities import Run
from mlflow.exceptions import MlflowException
from mlflow.store.artifact.artifact_repository_registry import get_artifact_repository
from mlflow.tracking import MlflowClient

from cppo_lab import schema
from cppo_lab.analysis.history_cache import HistoryCache
from cppo_lab.analysis.points import points_frame
from cppo_lab.errors import UserError
from cppo_lab.redaction import redacted
from cppo_lab.store import address
from cppo_lab.store.history import (
    HISTORY,
    LARGEST,
    Column,
    History,
    from_columns,
    last_of_each_step,
    pack,
    unclipped,
    unpack,
)
from cppo_lab.store.reader import recorded_status

REQUESTS = 4  # at once, to a server; `mlflow server` starts as many workers
# Artifacts are fetched only through the tracking server. Other locations need their own clients and raise other errors.
_SERVED = frozenset({"mlflow-artifacts", "http", "https"})

_log = logging.getLogger(__name__)

Wanted = Callable[[str], bool]
Columns = dict[str, Column]  # by metric


def read_points(client: MlflowClient, uri: str, runs: Sequence[Run], wanted: Wanted | None) -> pd.DataFrame:
    """All points of the metrics whose names are `wanted` (None: of all), one for each (run, metric, step).

    The frame is that of `points_frame`, in the order of `runs`. Unwanted metrics are held in memory for one run at a
    time.

    Raises MLflow's exceptions if the store fails. A missing or broken artifact is not an error.
    """
    source = _Source(client, uri, wanted)
    if urlsplit(uri).scheme in ("http", "https"):
        with ThreadPoolExecutor(REQUESTS) as pool:
            frame = points_frame(
                (run.info.run_id, part) for run, part in zip(runs, pool.map(source.read, runs), strict=True)
            )
    else:
        frame = points_frame((run.info.run_id, source.read(run)) for run in runs)
    source.finish()
    return frame


class _Source:
    """Reads the histories of the runs of one store. `read` is thread-safe."""

    def __init__(self, client: MlflowClient, uri: str, wanted: Wanted | None) -> None:
        self._client, self._uri = client, uri
        self._wanted = wanted if wanted is not None else lambda _: True
        self._cache = HistoryCache(uri)
        self._broken: list[str] = []
        self._written = False

    def read(self, run: Run) -> History:
        """The wanted metrics of one run."""
        latest = _latest(run)
        names = [name for name in sorted(latest) if self._wanted(name)]
        found: Columns = {}
        folder = address.artifact_folder(run.info.artifact_uri)
        local = None if folder is None else folder / HISTORY
        if _has_ended(run) and local is not None and names:
            found, _ = self._from_artifact(lambda: _read_local(local), run, latest)
        if any(name not in found for name in names):
            found |= self._cached_or_queried(run, latest, [name for name in names if name not in found])
        return from_columns({name: found[name] for name in names if name in found})

    def _cached_or_queried(
        self, run: Run, latest: Mapping[str, tuple[int, float]], names: Sequence[str]
    ) -> Columns:
        """The metrics `names`, possibly with others, from the cache or the store."""
        mlflow_id, version = run.info.run_id, _version(run)
        kept = self._cache.get(mlflow_id, version)
        found = _by_metric(kept) if kept is not None else {}
        if all(name in found for name in names):
            return found
        packed = None
        if _has_ended(run) and urlsplit(run.info.artifact_uri).scheme in _SERVED:
            fetched, packed = self._from_artifact(lambda: self._fetch(run), run, latest)
            found |= fetched
        missing = [name for name in names if name not in found]
        found |= {name: _query(self._client, mlflow_id, name) for name in missing}
        if missing or kept is not None or packed is None:
            packed = pack(from_columns(found))
        self._cache.put(mlflow_id, version, packed)
        self._written = True
        return found

    def _from_artifact(
        self, load: Callable[[], bytes | None], run: Run, latest: Mapping[str, tuple[int, float]]
    ) -> tuple[Columns, bytes | None]:
        """The metrics of the run's artifact whose last point agrees with the store; and the artifact itself if all of
        them agree.
        """
        try:
            data = load()
            if data is None:
                return {}, None
            columns = _by_metric(unpack(data, f"{HISTORY} of MLflow run {run.info.run_id}"))
        except UserError as error:
            self._broken.append(str(error))
            return {}, None
        except (MlflowException, OSError) as error:  # OSError includes the HTTP client's errors
            reason = redacted(str(error).partition("\n")[0])
            self._broken.append(f"{HISTORY} of MLflow run {run.info.run_id} cannot be read ({reason})")
            return {}, None
        agreed = {name: column for name, column in columns.items() if _ends_at(column, latest.get(name))}
        return agreed, data if len(agreed) == len(columns) else None

    def _fetch(self, run: Run) -> bytes | None:
        """The artifact from the server; None if the run has none."""
        os.environ.setdefault("MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR", "false")  # one bar per run
        repository = get_artifact_repository(run.info.artifact_uri, tracking_uri=self._uri)
        # The listed size is checked first, so that an oversized file is not downloaded at all.
        entry = next((one for one in repository.list_artifacts() if one.path == HISTORY), None)
        if entry is None or entry.is_dir or (entry.file_size or 0) > LARGEST:
            return None
        with tempfile.TemporaryDirectory(prefix="cppo-") as folder:
            return _read_local(Path(repository.download_artifacts(HISTORY, folder)))

    def finish(self) -> None:
        """Prune the cache if it has grown, and log which artifacts could not be used: nothing is lost, but reading
        takes longer.
        """
        if self._written:
            self._cache.prune()
        if self._broken:
            runs = "run" if len(self._broken) == 1 else "runs"
            _log.warning(
                "asked the store point by point for %d %s: %s", len(self._broken), runs, min(self._broken)
            )


def _has_ended(run: Run) -> bool:
    return recorded_status(run.data.tags) != schema.RUNNING


def _latest(run: Run) -> dict[str, tuple[int, float]]:
    """Step and value of the last point of each metric, as the store has them."""
    return {point.key: (point.step, unclipped(point.value)) for point in run.data.to_proto().metrics}


def _version(run: Run) -> str:
    """A key that changes with the run's state and with the last point of any metric."""
    points = sorted(
        (point.key, point.step, point.timestamp, repr(point.value)) for point in run.data.to_proto().metrics
    )
    content = repr((run.info.run_id, recorded_status(run.data.tags), run.info.end_time, points))
    return hashlib.sha256(content.encode()).hexdigest()


def _by_metric(history: History) -> Columns:
    return {
        name: (history.step[place], history.value[place], history.time_ms[place])
        for name, place in history.points()
    }


def _ends_at(column: Column, last: tuple[int, float] | None) -> bool:
    if last is None:
        return False
    step, value = int(column[0][-1]), float(column[1][-1])
    return step == last[0] and (value == last[1] or (math.isnan(value) and math.isnan(last[1])))


def _query(client: MlflowClient, mlflow_id: str, metric: str) -> Column:
    """One metric from the store, which orders points by time. If a step was logged twice, the last value counts."""
    with address.no_collection():
        points = client.get_metric_history(mlflow_id, metric)
    return last_of_each_step((point.step, point.value, point.timestamp) for point in points)


def _read_local(path: Path) -> bytes | None:
    if not path.is_file():
        return None
    if path.stat().st_size > LARGEST:
        raise UserError(f"{path} has {path.stat().st_size} bytes, more than the {LARGEST} allowed")
    return path.read_bytes()
