"""Implements `run_source.RunSource` with MLflow's client, for any store that MLflow supports."""

from collections.abc import Collection, Mapping, Sequence

import pandas as pd
from mlflow.entities import Run

from cppo_lab import schema
from cppo_lab.analysis.answers import read_outcomes
from cppo_lab.analysis.histories import Wanted, read_points
from cppo_lab.analysis.newest import newest_of_each
from cppo_lab.analysis.reader import list_runs
from cppo_lab.answers.outcomes import Outcomes
from cppo_lab.store.listing import reading, stored_run
from cppo_lab.store.reader import StoredRun


class StoreSource:
    """The runs of `experiment`, as of the last call of `find`."""

    def __init__(self, uri: str, experiment: str) -> None:
        self._uri, self._experiment = uri, experiment
        self._runs: dict[str, Run] = {}

    def find(self, run_ids: Collection[str]) -> list[StoredRun]:
        wanted = frozenset(run_ids)
        listed = list_runs(self._uri, self._experiment).runs
        found = [run for run in listed if run.data.tags.get(schema.TAG_RUN_ID) in wanted]
        kept = newest_of_each(map(stored_run, found))
        of_id = {run.info.run_id: run for run in found}
        self._runs |= {run.mlflow_id: of_id[run.mlflow_id] for run in kept}
        return kept

    def metric_names(self, runs: Sequence[StoredRun]) -> frozenset[str]:
        return frozenset(name for run in runs for name in self._runs[run.mlflow_id].data.metrics)

    def points(self, runs: Sequence[StoredRun], wanted: Wanted) -> pd.DataFrame:
        with reading(self._uri) as client:
            return read_points(client, self._uri, [self._runs[run.mlflow_id] for run in runs], wanted)

    def outcomes(self, runs: Sequence[StoredRun]) -> Mapping[str, Outcomes]:
        return read_outcomes(self._uri, {run.mlflow_id: run.artifact_uri for run in runs}, of_any_number=True)
