"""Scores the runs of a sweep's declared grid and names every gap; and how robust a selected score is."""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from cppo_lab import schema
from cppo_lab.analysis.inputs import ExpectedRun, SweepData, remedy_of
from cppo_lab.analysis.selection import (
    CellScore,
    Choice,
    RunScore,
    SelectionState,
    ValidationCurves,
    choose,
    score_cell,
    state_in_store,
    validation_curves,
)
from cppo_lab.errors import UserError, counted

_MOST_LISTED = 20  # gaps that are named; the others are counted


class NothingScored(UserError):
    """No run has been validated yet, so there is nothing to report."""


@dataclass(frozen=True, eq=False)
class Scoreboard:
    """A scored sweep. `models` and `variants` are in declaration order; `cells` has every declared pair.

    `unused` are runs of the sweep that the declaration does not name (older configurations); they are listed but never
    counted. `pairing`: whether the sweep file requests comparison seed by seed; None if it does not say.
    """

    data: SweepData
    curves: ValidationCurves
    models: tuple[str, ...]
    variants: tuple[str, ...]
    runs: tuple[RunScore, ...]
    cells: dict[tuple[str, str], CellScore]
    unused: pd.DataFrame
    pairing: bool | None = None

    @property
    def core(self) -> str:
        """The core behind the runs (an experiment holds those of one core); several are named together."""
        return "+".join(sorted({run.core for run in self.runs if run.core})) or schema.PAPER

    @property
    def benchmarks(self) -> tuple[str, ...]:
        """The benchmarks of all runs, sorted by name."""
        return self.curves.benchmarks

    @property
    def means_over_benchmarks(self) -> bool:
        """Whether a score of some model is a mean over benchmarks."""
        return any(len(self.benchmarks_of(model)) > 1 for model in self.models)

    def params_of(self, run: RunScore) -> Mapping[str, str]:
        """The configuration that a run logged; empty without one."""
        return self.data.params.get(run.mlflow_id, {})

    def benchmarks_of(self, model: str) -> tuple[str, ...]:
        """The benchmarks of the runs on `model`, sorted by name."""
        return self.curves.of_model.get(model, ())

    def runs_of(self, model: str, variant: str) -> tuple[RunScore, ...]:
        """The runs of one cell in declaration order; empty if the cell is not declared."""
        return self._of_cell.get((model, variant), ())

    @cached_property
    def _of_cell(self) -> Mapping[tuple[str, str], tuple[RunScore, ...]]:
        """Grouped once, so that a lookup does not scan all runs."""
        return _by_cell(self.runs)

    def logged(self, model: str, variant: str, metric: str) -> pd.DataFrame:
        """The points of a metric that the runs of one cell have, as in `data.metrics`."""
        return self._points(metric, self.runs_of(model, variant))

    def points_of(self, run: RunScore, metric: str) -> pd.DataFrame:
        """The points of a metric of one run, as in `data.metrics`."""
        return self._points(metric, [run])

    def _points(self, metric: str, runs: Sequence[RunScore]) -> pd.DataFrame:
        rows = [self._rows.get((metric, run.mlflow_id), ()) for run in runs]
        places = np.sort(np.concatenate([np.empty(0, np.int64), *rows]))
        return self.data.metrics.take(places.astype(np.int64))

    @cached_property
    def _rows(self) -> Mapping[Any, NDArray[np.int64]]:
        """(metric, run) -> its rows in `data.metrics`, grouped once: filtering takes longer the more points it has."""
        rows: Mapping[Any, NDArray[np.int64]] = self.data.metrics.groupby(
            ["metric", "mlflow_id"], observed=True
        ).indices
        return rows

    @cached_property
    def results(self) -> frozenset[tuple[str, str, int]]:
        """(model, variant, seed) of the runs that have a result."""
        return frozenset(
            (run.model, run.variant, run.seed) for run in self.runs if run.seed is not None and run.is_result
        )

    @property
    def gaps(self) -> tuple[RunScore, ...]:
        """The runs that are not finished results."""
        return tuple(run for run in self.runs if not run.is_result)


def score_sweep(
    data: SweepData, expected: Sequence[ExpectedRun], partial: bool = False, pairing: bool | None = None
) -> Scoreboard:
    """Score every expected run and cell. `pairing` is passed on to the scoreboard.

    Raises UserError if the grid has gaps (unless `partial`), listing them; if nothing can be scored; or if `expected`
    is empty or has two configurations of the same name.
    """
    if not expected:
        raise UserError(
            f"sweep {data.sweep!r} declares no runs: add variants or models to its file in sweeps/"
        )
    named: dict[tuple[str, str, int | None], ExpectedRun] = {}
    for entry in expected:
        twin = named.setdefault((entry.model, entry.variant, entry.seed), entry)
        if twin.run_id != entry.run_id:  # they would be averaged as if they were seeds
            raise UserError(
                f"sweep {data.sweep!r} declares two configurations as {entry.describe()} ({twin.run_id} and "
                f"{entry.run_id}): give each setting a different variant name in sweeps/{data.sweep}.yaml"
            )
    curves = validation_curves(data.metrics, data.runs)
    stored = _stored_runs(data.runs)
    runs = tuple(_score(entry, stored.get(_key(entry)), curves) for entry in dict.fromkeys(expected))
    gaps = [run for run in runs if not run.is_result]
    if gaps and not partial:
        raise UserError(
            f"sweep {data.sweep!r} is incomplete, {len(gaps)} of {len(runs)} runs have no result yet: "
            f"{'; '.join(describe_gaps(gaps))}. Run {remedy_of(data.experiment)}, or pass --partial to report "
            "the others"
        )
    if all(run.choice.score is None for run in runs):
        raise NothingScored(
            f"sweep {data.sweep!r} has no validation score yet: none of its {len(runs)} runs evaluated "
            f"inside its window; wait for the first evaluation, or see `cppo status`"
        )
    cells = {pair: score_cell(of_cell, curves.benchmarks) for pair, of_cell in _by_cell(runs).items()}
    used = {run.mlflow_id for run in runs}
    return Scoreboard(
        data=data,
        curves=curves,
        models=tuple(dict.fromkeys(model for model, _ in cells)),
        variants=tuple(dict.fromkeys(variant for _, variant in cells)),
        runs=runs,
        cells=cells,
        unused=data.runs[~data.runs["mlflow_id"].isin(used)],
        pairing=pairing,
    )


def _by_cell(runs: Sequence[RunScore]) -> Mapping[tuple[str, str], tuple[RunScore, ...]]:
    """(model, variant) -> its runs; cells in the order of their first run."""
    cells: dict[tuple[str, str], list[RunScore]] = defaultdict(list)
    for run in runs:
        cells[run.model, run.variant].append(run)
    return {pair: tuple(of_cell) for pair, of_cell in cells.items()}


def _stored_runs(runs: pd.DataFrame) -> Mapping[tuple[object, ...], Any]:
    """The rows of the runs by the ways in which a declaration may identify them (`_key`). If several runs match by name
    alone, finished runs are preferred, then newer ones.
    """
    done = runs["status"].isin(schema.FINISHED)
    rows: dict[tuple[object, ...], Any] = {}
    for row in runs.assign(done=done).sort_values(["done", "start", "mlflow_id"]).itertuples():
        name = row.model, row.variant
        rows[(row.run_id,)] = rows[name] = rows[*name, None if pd.isna(row.seed) else int(row.seed)] = row
    return rows


def _key(entry: ExpectedRun) -> tuple[object, ...]:
    if entry.run_id is not None:
        return (entry.run_id,)
    return (entry.model, entry.variant) if entry.seed is None else (entry.model, entry.variant, entry.seed)


def _score(entry: ExpectedRun, row: Any, curves: ValidationCurves) -> RunScore:
    if row is None:
        state = SelectionState.MISSING
        return RunScore(
            entry.run_id, "", entry.model, entry.variant, entry.seed, state=state, choice=Choice(state)
        )
    t_stop = None if pd.isna(row.t_stop) else int(row.t_stop)
    choice = choose(curves.of(row.mlflow_id), t_stop, curves.benchmarks)
    return RunScore(
        run_id=row.run_id,
        mlflow_id=row.mlflow_id,
        model=entry.model,
        variant=entry.variant,
        seed=None if pd.isna(row.seed) else int(row.seed),
        state=state_in_store(row.status, row.core, choice),
        choice=choice,
        rule=row.rule,
        core=row.core,
        status=row.status,
        reason=row.reason,
        t_stop=t_stop,
    )


def describe_gap(run: RunScore, *others: RunScore) -> str:
    """`cppo on chain-8, seed 1 (failed: out of memory)`; with `others` that differ in their seeds, `seeds 1 to 4`."""
    named = run.describe()
    if others:
        seeds = sorted(gap.seed or 0 for gap in (run, *others))
        whole = len(seeds) > 2 and seeds[-1] - seeds[0] == len(others)
        listed = f"{seeds[0]} to {seeds[-1]}" if whole else ", ".join(map(str, seeds))
        named = f"{run.variant} on {run.model}, seeds {listed}"
    return f"{named} ({run.state.value}{': ' + run.reason if run.reason else ''})"


def describe_gaps(gaps: Sequence[RunScore]) -> list[str]:
    """Every gap, those that differ in their seeds alone together; of a long list the first ones and the number of the
    others.
    """
    alike: dict[tuple[str, str, str, str], list[RunScore]] = {}
    for run in gaps:
        alike.setdefault((run.variant, run.model, run.state.value, run.reason), []).append(run)
    groups = list(alike.values())
    unnamed = sum(map(len, groups[_MOST_LISTED:]))
    more = [f"and {counted(unnamed, 'more run')}"] if unnamed else []
    return [*(describe_gap(*runs) for runs in groups[:_MOST_LISTED]), *more]


# Robustness of a selected score: the late part of the window, ranks, and the step-to-step noise of a run.
#
# The score of the best step favours a noisy run. The mean over the last 30 % of the matched window has no selection
# bias, so it is reported next to the selected score.


def late_curve(curve: pd.DataFrame, t_stop: int | None) -> pd.Series:
    """The mean scores of one run in the last LATE_SHARE of [0, T_stop]; or of its own length if T_stop is unknown."""
    end = t_stop if t_stop is not None else (int(curve.index.max()) if len(curve) else 0)
    steps, means = curve.index.to_numpy(), curve[schema.MEAN]
    return means[(steps > schema.late_after(end)) & (steps <= end) & means.notna().to_numpy()]


def step_noise(late: pd.Series) -> float | None:
    """Standard deviation of one evaluation around the run's trend, in a `late_curve`; None for fewer than 3 points.

    Estimated from differences of neighbouring evaluations (divided by sqrt 2), which a slow trend hardly affects.
    """
    steps = np.diff(late.to_numpy(dtype=np.float64))
    if len(steps) < 2:
        return None
    return math.sqrt(math.fsum(float(value) ** 2 for value in steps) / len(steps) / 2)


def rank_descending(values: dict[tuple[str, str], float]) -> dict[tuple[str, str], int]:
    """Ranks inside each model (the first item of the key): 1 + the number of strictly higher values."""
    series = pd.Series(list(values.values()), dtype=float)
    ranks = series.groupby([model for model, _ in values]).rank(method="min", ascending=False)
    return dict(zip(values, ranks.astype(int).tolist(), strict=True))
