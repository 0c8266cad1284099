"""The metric histories of many runs at once, as one tidy frame.

A run that has ended has its whole history in the artifact `history.npz`: one file instead of one request per metric. A
metric is taken from it if its last point is the last one in the store. All others, and the metrics of unfinished runs,
are queried from the store one by one.
"""

import logging
import math
import os
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import urlsplit

import pandas as pd
from mlflow.entities import Run
from mlflow.exceptions import MlflowException
from mlflow.store.artifact.artifact_repository_registry import get_artifact_repository
from mlflow.tracking import MlflowClient

from cppo_lab import schema
from cppo_lab.analysis.points import points_frame
from cppo_lab.errors import UserError
from cppo_lab.files import redacted
from cppo_lab.tracking import address
from cppo_lab.tracking.history import (
    HISTORY,
    LARGEST,
    Column,
    History,
    from_columns,
    last_of_each_step,
    unclipped,
    unpack,
)
from cppo_lab.tracking.records import recorded_status

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
    source.warn()
    return frame


class _Source:
    """Reads the histories of the runs of one store. `read` is thread-safe."""

    def __init__(self, client: MlflowClient, uri: str, wanted: Wanted | None) -> None:
        self._client, self._uri = client, uri
        self._wanted = wanted if wanted is not None else lambda _: True
        self._broken: list[str] = []

    def read(self, run: Run) -> History:
        """The wanted metrics of one run."""
        latest = {point.key: (point.step, unclipped(point.value)) for point in run.data.to_proto().metrics}
        names = [name for name in sorted(latest) if self._wanted(name)]
        packed = self._packed(run) if names and recorded_status(run.data.tags) != schema.RUNNING else {}
        return from_columns(
            {
                name: packed[name]
                if name in packed and _ends_at(packed[name], latest[name])
                else _query(self._client, run.info.run_id, name)
                for name in names
            }
        )

    def _packed(self, run: Run) -> Columns:
        """The metrics of the run's artifact; none if it has none, or one that cannot be used."""
        folder = address.artifact_folder(run.info.artifact_uri)
        try:
            data = self._fetch(run) if folder is None else _read_local(folder / HISTORY)
            if data is None:
                return {}
            history = unpack(data, f"{HISTORY} of MLflow run {run.info.run_id}")
        except UserError as error:
            self._broken.append(str(error))
            return {}
        except (MlflowException, OSError) as error:  # OSError includes the HTTP client's errors
            reason = redacted(str(error).partition("\n")[0])
            self._broken.append(f"{HISTORY} of MLflow run {run.info.run_id} cannot be read ({reason})")
            return {}
        return {
            name: (history.step[place], history.value[place], history.time_ms[place])
            for name, place in history.points()
        }

    def _fetch(self, run: Run) -> bytes | None:
        """The artifact from the server; None if the run has none there."""
        if urlsplit(run.info.artifact_uri).scheme not in _SERVED:
            return None
        os.environ.setdefault("MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR", "false")  # one bar per run
        repository = get_artifact_repository(run.info.artifact_uri, tracking_uri=self._uri)
        # The listed size is checked first, so that an oversized file is not downloaded at all.
        entry = next((one for one in repository.list_artifacts() if one.path == HISTORY), None)
        if entry is None or entry.is_dir or (entry.file_size or 0) > LARGEST:
            return None
        with tempfile.TemporaryDirectory(prefix="cppo-") as folder:
            return _read_local(Path(repository.download_artifacts(HISTORY, folder)))

    def warn(self) -> None:
        """Log which artifacts could not be used: nothing is lost, but reading takes longer."""
        if self._broken:
            runs = "run" if len(self._broken) == 1 else "runs"
            _log.warning(
                "asked the store point by point for %d %s: %s", len(self._broken), runs, min(self._broken)
            )


def _ends_at(column: Column, last: tuple[int, float]) -> bool:
    step, value = int(column[0][-1]), float(column[1][-1])
    return step == last[0] and (value == last[1] or (math.isnan(value) and math.isnan(last[1])))


def _query(client: MlflowClient, mlflow_id: str, metric: str) -> Column:
    """One metric from the store, which orders points by time. If a step was logged twice, the last value counts."""
    points = client.get_metric_history(mlflow_id, metric)
    return last_of_each_step((point.step, point.value, point.timestamp) for point in points)


def _read_local(path: Path) -> bytes | None:
    if not path.is_file():
        return None
    if path.stat().st_size > LARGEST:
        raise UserError(f"{path} has {path.stat().st_size} bytes, more than the {LARGEST} allowed")
    return path.read_bytes()
