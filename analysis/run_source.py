"""Where `cppo_lab.load` gets its runs: a store, by MLflow's client, or the paper's curves (`notebook.paper`)."""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Protocol

import pandas as pd

from cppo_lab import schema
from cppo_lab.analysis.answers import read_outcomes
from cppo_lab.analysis.points import newest_of_each, points_frame
from cppo_lab.answers.outcomes import Outcomes
from cppo_lab.tracking import address
from cppo_lab.tracking.history import StoredRun
from cppo_lab.tracking.read import experiment_runs, histories, reading, stored_run


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

    def points(self, runs: Sequence[StoredRun], wanted: Callable[[str], bool]) -> pd.DataFrame:
        """The points of the `wanted` metrics, as a frame of `points.points_frame`, in the order of the runs."""
        ...

    def outcomes(self, runs: Sequence[StoredRun]) -> Mapping[str, Outcomes]:
        """MLflow run -> each problem's outcome at each validation, of the runs that kept them."""
        ...


class StoreSource:
    """Implements `RunSource`: the runs of `experiment` in the store at `uri`."""

    def __init__(self, uri: str, experiment: str) -> None:
        self._uri, self._experiment = uri, experiment

    def find(self, run_ids: Collection[str]) -> list[StoredRun]:
        address.require_store(self._uri)
        wanted = frozenset(run_ids)
        with reading(self._uri) as client:
            runs = map(stored_run, experiment_runs(client, self._experiment, schema.TAG_RUN_ID))
            return newest_of_each(run for run in runs if run.tags[schema.TAG_RUN_ID] in wanted)

    def metric_names(self, runs: Sequence[StoredRun]) -> frozenset[str]:
        return frozenset(name for run in runs for name in run.latest)

    def points(self, runs: Sequence[StoredRun], wanted: Callable[[str], bool]) -> pd.DataFrame:
        with reading(self._uri) as client:
            return points_frame(histories(client, runs, wanted))

    def outcomes(self, runs: Sequence[StoredRun]) -> Mapping[str, Outcomes]:
        return read_outcomes(self._uri, {run.mlflow_id: run.artifact_uri for run in runs}, of_any_number=True)
