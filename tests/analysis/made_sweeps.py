"""Small sweeps made by hand: what a reader would return, without a store, and such runs in a store."""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pandas as pd
from mlflow import MlflowClient
from mlflow.entities import Metric, Param

from cppo_lab import schema
from cppo_lab.analysis.inputs import RUN_COLUMNS, ExpectedRun, SweepData, points_frame
from cppo_lab.analysis.scoring import Scoreboard, score_sweep
from cppo_lab.answers.outcomes import Outcomes
from cppo_lab.tracking.history import from_columns
from tests.answers import made


@dataclass(frozen=True)
class MadeRun:
    """One run: `scores` maps benchmark -> step -> Avg@16 as a fraction; `logged` maps any other metric
    likewise.
    """

    variant: str
    model: str = "chain"
    seed: int | None = 0
    scores: Mapping[str, Mapping[int, float]] = field(default_factory=dict)
    logged: Mapping[str, Mapping[int, float]] = field(default_factory=dict)
    status: str = schema.DONE
    reason: str = ""
    t_stop: int | None = 100
    run_id: str = ""
    core: str = "mini"
    warm_start: str = ""

    @property
    def key(self) -> str:
        """Its run id, unless one was given."""
        return self.run_id or f"{self.model}-{self.variant}-{self.seed}"


def both(curve: Mapping[int, float]) -> dict[str, Mapping[int, float]]:
    """The same curve for two benchmarks, so that it is also their mean."""
    return {"chain24": curve, "chain25": curve}


def make_data(runs: Sequence[MadeRun], sweep: str = "demo") -> SweepData:
    """The frames of a reader."""
    rows, points, begun = [], [], {}
    for number, run in enumerate(runs):
        start = pd.Timestamp(2026, 1, 1, tz="UTC") + pd.Timedelta(hours=number)
        mlflow_id, begun[run.key] = f"{number:032x}", int(start.timestamp() * 1000)
        found = (mlflow_id, run.key, run.variant, run.variant, run.model, run.core, run.seed, run.t_stop)
        rows.append((*found, run.status, run.reason, run.key, start, start, run.warm_start))
        curves = {schema.validation_metric(name): curve for name, curve in run.scores.items()} | dict(
            run.logged
        )
        columns = {
            name: (list(curve), list(curve.values()), [0] * len(curve)) for name, curve in curves.items()
        }
        points.append((mlflow_id, from_columns(columns)))
    frame = pd.DataFrame(rows, columns=list(RUN_COLUMNS)).astype({"seed": "Int64", "t_stop": "Int64"})
    return SweepData("cppo-mini", sweep, frame, points_frame(points), begun=begun)


def expect(runs: Sequence[MadeRun]) -> tuple[ExpectedRun, ...]:
    """A declaration of exactly these runs."""
    return tuple(ExpectedRun(run.key, run.model, run.variant, run.seed) for run in runs)


def scored(
    runs: Sequence[MadeRun],
    sweep: str = "demo",
    gaps: Sequence[MadeRun] = (),
    pairing: bool | None = None,
    **data: Any,
) -> Scoreboard:
    """The runs scored; `gaps` are declared and not there. `data`: further fields of the `SweepData`."""
    partial = bool(gaps) or any(run.status not in schema.FINISHED for run in runs)
    return score_sweep(replace(make_data(runs, sweep), **data), expect([*runs, *gaps]), partial, pairing)


def scored_outcomes(outcomes: Mapping[tuple[str, int], Outcomes]) -> Scoreboard:
    """(variant, seed) -> outcomes, from which the scores follow. A run with fewer validations than others collapsed."""
    t_stop, runs = max(int(kept.steps[-1]) for kept in outcomes.values()), []
    for (variant, seed), kept in outcomes.items():
        scores = pd.DataFrame(made.averages(kept), kept.steps, kept.benchmarks).to_dict()
        status = schema.DONE if kept.steps[-1] == t_stop else schema.COLLAPSED
        runs.append(MadeRun(variant, seed=seed, scores=scores, t_stop=t_stop, status=status))
    kept_of = {f"{number:032x}": kept for number, kept in enumerate(outcomes.values())}
    return scored(runs, outcomes=kept_of)


def experiment_in(uri: str, name: str) -> str:
    """The id of an experiment in a SQLite store; its artifacts are beside the store."""
    client, folder = MlflowClient(uri), Path(uri.removeprefix("sqlite:///")).parent / "artifacts"
    there = client.get_experiment_by_name(name)
    return there.experiment_id if there else client.create_experiment(name, folder.as_uri())


def write_runs(
    uri: str,
    runs: Sequence[MadeRun],
    sweep: str = "main",
    params: Mapping[str, str] | None = None,
    **more: str,
) -> dict[str, str]:
    """Puts runs into the store at `uri`, all with these parameters and more tags: their MLflow ids by run id."""
    client, ids = MlflowClient(uri), {}
    experiment = experiment_in(uri, schema.experiment_name(runs[0].core))
    for number, run in enumerate(runs, 1):
        tags = {
            schema.TAG_RUN_ID: run.key,
            schema.TAG_RULE: run.variant,
            schema.TAG_MODEL: run.model,
            schema.TAG_CORE: run.core,
            schema.TAG_SEED: str(run.seed),
            schema.TAG_T_STOP: str(run.t_stop),
            schema.TAG_STATUS: run.status,
            schema.sweep_tag(sweep): run.variant,
        }
        ids[run.key] = mlflow_id = client.create_run(experiment, number, tags | more).info.run_id
        points = [
            Metric(name, value, step, step)
            for name, curve in run.logged.items()
            for step, value in curve.items()
        ]
        client.log_batch(mlflow_id, points, [*itertools.starmap(Param, (params or {}).items())])
        client.set_terminated(mlflow_id)
    return ids
