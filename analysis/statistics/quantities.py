"""Quantities other than scores that claims are about, computed from the logs of single runs; and response lengths.

rise: mean score in the last 30 % of the window minus that in the first 30 %. early prefix masks: the mean share of the
masked tokens that the prefix budget rejects, in the first 30 % of the steps minus that in the rest.
"""

from dataclasses import replace

from cppo_lab import schema
from cppo_lab.analysis.scoring import Scoreboard
from cppo_lab.analysis.statistics.values import FinishedRuns, Quantity, RunValues, finished_runs, rise

PREFIX_SHARE = "rule/prefix_budget_share"
LENGTH = "train/response_length"


def with_quantity(board: Scoreboard, runs: tuple[RunValues, ...], quantity: Quantity) -> FinishedRuns:
    """The runs with their `measured` value, None if a run did not log the metrics it needs."""
    scored = finished_runs(board)
    if quantity is Quantity.RISE:
        found = {(run.model, run.variant, run.seed): rise(board, run) for run in scored}
    else:
        found = {}
        for model, variant in board.cells:
            early = _early_prefix(board, model, variant)
            for run in board.runs_of(model, variant):
                found[model, variant, run.seed] = early.get(run.mlflow_id or "")
    return FinishedRuns(replace(run, measured=found[run.model, run.variant, run.seed]) for run in runs)


def _early_prefix(board: Scoreboard, model: str, variant: str) -> dict[str, float]:
    """MLflow run -> the quantity. Training ends with the window, or else at the last logged step."""
    ends = {run.mlflow_id: run.t_stop for run in board.runs_of(model, variant)}
    found = {}
    for mlflow_id, points in board.logged(model, variant, PREFIX_SHARE).groupby("mlflow_id", observed=True):
        end = ends.get(str(mlflow_id)) or int(points["step"].max())
        early = points["value"][points["step"] <= schema.early_until(end)]
        rest = points["value"][(points["step"] > schema.early_until(end)) & (points["step"] <= end)]
        if len(early) and len(rest):
            found[str(mlflow_id)] = float(early.mean() - rest.mean())
    return found


def mean_length(board: Scoreboard, model: str, variant: str) -> float | None:
    """The mean length in tokens of the responses that the runs of a cell sampled; None if no run logged it."""
    logged = board.logged(model, variant, LENGTH)["value"]
    return float(logged.mean()) if len(logged) and logged.mean() > 0 else None
