"""The paper's curves as runs, read from the files of this package instead of a store."""

from collections.abc import Callable, Collection, Mapping, Sequence

import pandas as pd

from cppo_lab import schema
from cppo_lab.analysis.points import points_frame
from cppo_lab.answers.outcomes import Outcomes
from cppo_lab.errors import UserError, unknown
from cppo_lab.notebook.declared import DeclaredRun
from cppo_lab.tracking.history import StoredRun, from_columns
from cppo_lab.tracking.reference_curves import ReferenceRun, reference_runs

WHOLE = "study"  # all sweeps with curves in the paper


def paper_runs(name: str) -> list[DeclaredRun]:
    """The runs of a sweep (`study`: of all sweeps) for which the paper has curves, in its order.

    Raises UserError for a sweep without curves in the paper.
    """
    runs = reference_runs()
    sweeps = dict.fromkeys(sweep for run in runs for sweep in run.sweeps)
    if name != WHOLE and name not in sweeps:
        raise unknown("sweep of the paper's curves", name, [*sweeps, WHOLE])
    return [
        DeclaredRun(sweep, run.run_id, run.sweeps[sweep], run.rule, run.model, schema.PAPER, None, run.t_stop)
        for sweep in sweeps
        if name in (WHOLE, sweep)
        for run in runs
        if sweep in run.sweeps
    ]


class PaperSource:
    """Implements `analysis.run_source.RunSource` for the paper's curves. A run's id also serves as its MLflow id."""

    def __init__(self) -> None:
        self._runs: dict[str, ReferenceRun] = {run.run_id: run for run in reference_runs()}

    def find(self, run_ids: Collection[str]) -> list[StoredRun]:
        return [_stored(run) for run_id, run in sorted(self._runs.items()) if run_id in run_ids]

    def metric_names(self, runs: Sequence[StoredRun]) -> frozenset[str]:
        return frozenset(name for run in runs for name in self._runs[run.mlflow_id].points)

    def points(self, runs: Sequence[StoredRun], wanted: Callable[[str], bool]) -> pd.DataFrame:
        return points_frame(
            (
                run.mlflow_id,
                from_columns(
                    {
                        name: (list(curve), list(curve.values()), [0] * len(curve))
                        for name, curve in self._runs[run.mlflow_id].points.items()
                        if wanted(name)
                    }
                ),
            )
            for run in runs
        )

    def outcomes(self, runs: Sequence[StoredRun]) -> Mapping[str, Outcomes]:
        raise UserError(
            "source='paper': the paper has no outcomes of single problems; load your own runs: source='runs'"
        )


def _stored(run: ReferenceRun) -> StoredRun:
    tags = run.tags() | {schema.TAG_STATUS: schema.DONE}
    return StoredRun(run.run_id, "", tags, name=f"{run.variant} on {run.model} (paper)")
