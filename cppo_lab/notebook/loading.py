"""`cppo_lab.load`: loads the results of a sweep by name, from the store or from the paper's files."""

from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from cppo_lab import schema
from cppo_lab.analysis.points import points_frame
from cppo_lab.answers.outcomes import Outcomes
from cppo_lab.errors import UserError, unknown
from cppo_lab.files import redacted
from cppo_lab.notebook.results import DeclaredRun, Results, declared_runs, override_text
from cppo_lab.sweep.file import Search, load_sweep
from cppo_lab.sweep.plan import make_plan
from cppo_lab.tracking import address
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


RUNS, PAPER = "runs", "paper"


def load(
    sweep: str | Path,
    *overrides: str,
    uri: str | Path | None = None,
    source: str = RUNS,
    **values: Any,
) -> Results:
    """The results of a sweep or study as tidy pandas frames.

    Args:
        sweep: name of a shipped sweep or study, or path to a sweep file.
        overrides: as on the command line: "core=verl", "rule.w_min=0.6,0.8". They choose the runs, as in `cppo launch`.
        uri: the tracking store, as a URI or as the path of a SQLite file. Default: MLFLOW_TRACKING_URI, else
            `tracking.uri` of the configuration, else sqlite:///mlflow.db in the working folder.
        source: "runs" for your runs, "paper" for the paper's curves, which come with this package (sweep: "main",
            an ablation, or "study" for all; without overrides and uri).
        values: overrides as keyword arguments; a sequence is several values: seed=[0, 1], model="mini_base",
            **{"rule.w_min": 0.8}.

    Returns:
        The current state of the store. `runs` is read now, `history` and `outcomes` when they are called.

    Raises:
        UserError: an unknown sweep, override or source; a store that is missing, cannot be read or has none of the
        runs.
    """
    texts = [*overrides, *(override_text(key, value) for key, value in values.items())]
    name = str(sweep)
    if source == PAPER:
        _refuse_for_paper(texts, uri)
        return Results(name, "the paper's curves", paper_runs(name), PaperSource())
    if source != RUNS:
        raise unknown("source", source, [RUNS, PAPER])
    from cppo_lab.analysis.run_source import (
        StoreSource,
    )  # imports MLflow, which the paper's curves do without

    declared = load_sweep(name)
    if isinstance(declared, Search):
        raise UserError(
            f"{declared.name} is a search, whose trials are no grid: see `cppo report {declared.name}`, or load "
            "a sweep"
        )
    plan = make_plan(declared, texts)
    store = _store(uri, plan.tracking.uri)
    experiment = schema.experiment_name(plan.core)
    results = Results(
        plan.name,
        f"experiment {experiment} of {redacted(store)}",
        declared_runs(plan, texts),
        StoreSource(store, experiment),
    )
    if (results.runs["state"] == schema.MISSING).all():
        command = " ".join(["cppo launch", name, *texts])
        raise UserError(
            f"experiment {experiment!r} of {redacted(store)} has none of the {len(plan.runs)} runs of {plan.name}: "
            f"train them with `{command}`, or name the store that has them: uri="
        )
    return results


def _store(uri: str | Path | None, configured: str | None) -> str:
    """The store to read: `uri`, or the store that commands would use."""
    if uri is None:
        return address.tracking_uri(configured)
    path = isinstance(uri, Path) or (":" not in uri and uri.endswith(".db"))
    with address.in_the_environment(f"sqlite:///{uri}" if path else str(uri)):
        return address.tracking_uri()


def _refuse_for_paper(texts: list[str], uri: object) -> None:
    if texts:
        raise UserError(f"source='paper' with {' '.join(texts)!r}: its curves take no overrides; remove them")
    if uri is not None:
        raise UserError(
            "source='paper' with uri=: its curves come with this package, from no store; remove it"
        )
