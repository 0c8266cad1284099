"""Sources of single runs: the tables of a SQLite store, or MLflow's client.

A SQLite file is read with the standard library, which saves the seconds that importing MLflow takes. Every other store,
and a file that a killed writer left in need of recovery, is read by MLflow's client (`store_source`).
"""

from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Protocol

import pandas as pd

from cppo_lab import schema
from cppo_lab.analysis.answers import read_outcomes
from cppo_lab.analysis.newest import newest_of_each
from cppo_lab.analysis.points import points_frame
from cppo_lab.answers.outcomes import Outcomes
from cppo_lab.errors import UserError
from cppo_lab.store import address
from cppo_lab.store.history import from_columns
from cppo_lab.store.read_only import SqliteReader, open_reader
from cppo_lab.store.reader import StoredRun

Wanted = Callable[[str], bool]


class RunSource(Protocol):
    """Runs and their logged data. Every method raises UserError if the store fails."""

    def find(self, run_ids: Collection[str]) -> list[StoredRun]:
        """One run for each id that the store has, sorted by id: the newest that is a result, or else the newest
        of all.
        """
        ...

    def metric_names(self, runs: Sequence[StoredRun]) -> frozenset[str]:
        """Every metric that one of the runs has logged."""
        ...

    def points(self, runs: Sequence[StoredRun], wanted: Wanted) -> pd.DataFrame:
        """The points of the `wanted` metrics, as a frame of `points.points_frame`, in the order of the runs."""
        ...

    def outcomes(self, runs: Sequence[StoredRun]) -> Mapping[str, Outcomes]:
        """MLflow run -> each problem's outcome at each validation, of the runs that kept them."""
        ...


def open_source(uri: str, experiment: str) -> RunSource:
    """The runs of `experiment` in the store at `uri`.

    Raises UserError if the store does not exist, cannot be reached or is not MLflow's.
    """
    address.require_store(uri)
    if address.sqlite_file(uri) is not None:
        with open_reader(uri) as reader:
            if isinstance(reader, SqliteReader):
                return SqliteSource(uri, experiment)
    from cppo_lab.analysis.store_source import StoreSource

    return StoreSource(uri, experiment)


class SqliteSource:
    """Implements `RunSource` on the tables of a SQLite store. Each call opens the file again, so that no writer has to
    wait.
    """

    def __init__(self, uri: str, experiment: str) -> None:
        self._uri, self._experiment = uri, experiment

    def find(self, run_ids: Collection[str]) -> list[StoredRun]:
        wanted = frozenset(run_ids)
        with open_reader(self._uri) as reader:
            found = _tables(reader, self._uri).runs(self._experiment, schema.TAG_RUN_ID)
            return newest_of_each(run for run in found if run.tags[schema.TAG_RUN_ID] in wanted)

    def metric_names(self, runs: Sequence[StoredRun]) -> frozenset[str]:
        with open_reader(self._uri) as reader:
            named = _tables(reader, self._uri).metric_names([run.mlflow_id for run in runs])
        return frozenset(name for names in named.values() for name in names)

    def points(self, runs: Sequence[StoredRun], wanted: Wanted) -> pd.DataFrame:
        ids = [run.mlflow_id for run in runs]
        with open_reader(self._uri) as reader:
            tables = _tables(reader, self._uri)
            named = defaultdict(list, tables.metric_names(ids))
            chosen = ((one, [name for name in named[one] if wanted(name)]) for one in ids)
            return points_frame((one, from_columns(tables.columns(one, names))) for one, names in chosen)

    def outcomes(self, runs: Sequence[StoredRun]) -> Mapping[str, Outcomes]:
        return read_outcomes(self._uri, {run.mlflow_id: run.artifact_uri for run in runs}, of_any_number=True)


def _tables(reader: object, uri: str) -> SqliteReader:
    if not isinstance(reader, SqliteReader):
        raise UserError(f"{uri} was replaced while it was read: call cppo_lab.load again")
    return reader
