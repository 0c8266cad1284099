"""Compares the recomputed tables with the printed ones, cell by cell, and says what the curves show about the
differences.

All values are in percent, as printed, and derived from the curves; nothing is taken from notes.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import ROUND_DOWN, ROUND_HALF_UP, Decimal
from enum import StrEnum

import pandas as pd

from cppo_lab import schema
from cppo_lab.analysis.scoring import Scoreboard, late_curve, rank_descending, step_noise
from cppo_lab.analysis.selection import RunScore, SelectionState

CENT = Decimal("0.01")
# The curves give fractions to 1e-6, so a percentage is known to 1e-4; further digits are rounding noise.
_KNOWN = Decimal("0.0001")
EVALUATIONS = 480  # 30 problems x 16 samples: the denominator of one evaluation of one benchmark
AVERAGE = "avg"  # the mean column in the printed tables


class Printing(StrEnum):
    """How a printed number relates to the exact one."""

    EITHER = "either"  # truncating and rounding give the same digits
    TRUNCATED = "truncated"
    ROUNDED = "rounded"
    NEITHER = "neither"
    COLLAPSE = "collapse"


@dataclass(frozen=True)
class AuditCell:
    """One printed cell: the text in the paper, the exact value from the curve (None: no score), and their
    difference.
    """

    model: str
    method: str
    column: str
    printed: str
    exact: Decimal | None
    printing: Printing

    @property
    def difference(self) -> Decimal | None:
        """Printed minus exact, in points; None where one of them is not a number."""
        if self.exact is None or self.printed == SelectionState.COLLAPSE.value:
            return None
        return Decimal(self.printed) - self.exact


@dataclass(frozen=True)
class AuditRun:
    """One run of the paper: its selected step, and how robust that selection is.

    `half_grid`: how many of its single-benchmark `values` are an odd multiple of 1/960 rather than k/480, i.e. the mean
    of two evaluations; `noise`: see `scoring.step_noise`, in points. `late`: mean of the last 30 % of the window, None
    of a collapsed run; `late_rank`, `printed_rank`: its ranks within the model. `ends_early`: whether its last
    evaluation lies before its T_stop.
    """

    score: RunScore
    values: int
    half_grid: int
    noise: float | None
    late: float | None
    late_rank: int | None
    printed_rank: int | None
    ends_early: bool


@dataclass(frozen=True)
class Audit:
    """Everything the report needs to say about the printed tables."""

    cells: tuple[AuditCell, ...]
    runs: tuple[AuditRun, ...]

    def cell(self, model: str, method: str, column: str) -> AuditCell:
        """The audit of one printed cell."""
        return next(c for c in self.cells if (c.model, c.method, c.column) == (model, method, column))

    def run(self, model: str, method: str) -> AuditRun:
        """The audit of one run."""
        return next(r for r in self.runs if (r.score.model, r.score.variant) == (model, method))


def percent(fraction: float) -> Decimal:
    """A fraction as an exact decimal percent, to the four decimals that the curves carry."""
    return (Decimal(repr(float(fraction))) * 100).quantize(_KNOWN, ROUND_HALF_UP)


def round_half_up(value: Decimal) -> Decimal:
    """Two decimals, half rounded up (Python's rounding would turn 30.625 into 30.62)."""
    return value.quantize(CENT, ROUND_HALF_UP)


def classify(printed: str, exact: Decimal | None) -> Printing:
    """How `printed` was derived from `exact`: truncated, rounded, either, or neither."""
    if printed == SelectionState.COLLAPSE.value or exact is None:
        return Printing.COLLAPSE
    shown = Decimal(printed)
    cut, rounded = exact.quantize(CENT, ROUND_DOWN) == shown, round_half_up(exact) == shown
    if cut and rounded:
        return Printing.EITHER
    if cut:
        return Printing.TRUNCATED
    return Printing.ROUNDED if rounded else Printing.NEITHER


def half_grid_values(values: pd.DataFrame) -> int:
    """How many values are not a multiple of 1/480 (with a tolerance, because the curves are given to 1e-6)."""
    scaled = values * EVALUATIONS
    return int(((scaled - scaled.round()).abs() > 0.01).to_numpy().sum())


def audit_tables(board: Scoreboard, printed: Sequence[Mapping[str, str]]) -> Audit:
    """Compare the board with the rows of the printed full table (`model`, `method`, benchmarks and AVERAGE as text)."""
    by_pair = {(run.model, run.variant): run for run in board.runs}
    late = {
        pair: late_curve(board.curves.of(run.mlflow_id or ""), run.t_stop) for pair, run in by_pair.items()
    }
    late_means = {
        pair: float(late[pair].mean())
        for pair, run in by_pair.items()
        if run.state is SelectionState.SCORED and len(late[pair])
    }
    numeric = {
        (row["model"], row["method"]): float(row[AVERAGE])
        for row in printed
        if row[AVERAGE] != SelectionState.COLLAPSE.value
    }
    late_ranks, printed_ranks = rank_descending(late_means), rank_descending(numeric)
    cells, runs = [], []
    for row in printed:
        pair = (row["model"], row["method"])
        score, choice = by_pair[pair], by_pair[pair].choice
        for column in (*board.benchmarks, AVERAGE):
            value = choice.score if column == AVERAGE else choice.components.get(column)
            exact = None if value is None else percent(value)
            cells.append(AuditCell(*pair, column, row[column], exact, classify(row[column], exact)))
        curve, noise = board.curves.of(score.mlflow_id or ""), step_noise(late[pair])
        window = curve if score.t_stop is None else curve[curve.index <= score.t_stop]
        parts = window[list(board.benchmarks)]
        runs.append(
            AuditRun(
                score=score,
                values=int(parts.notna().to_numpy().sum()),
                half_grid=half_grid_values(parts),
                noise=None if noise is None else 100 * noise,
                late=late_means.get(pair),
                late_rank=late_ranks.get(pair),
                printed_rank=printed_ranks.get(pair),
                ends_early=choice.last_step is not None and choice.last_step < (score.t_stop or 0),
            )
        )
    return Audit(tuple(cells), tuple(runs))


def same_curve(curve: pd.Series, other: pd.Series) -> bool:
    """Whether two curves have the same steps and, to the last given digit, the same values."""
    return curve.index.equals(other.index) and bool(((curve - other).abs() <= 2e-6).all())


def shared_curves(board: Scoreboard, ablations: pd.DataFrame) -> dict[tuple[str, str], str]:
    """(ablation, variant) -> the method of the main grid with the same mean curve, for the ablation curves that equal
    one.

    `ablations`: columns ablation, model, variant, step, value (fraction).
    """
    means = {
        (run.model, run.variant): board.curves.of(run.mlflow_id)[schema.MEAN]
        for run in board.runs
        if run.mlflow_id is not None
    }
    shared = {}
    for (ablation, model, variant), rows in ablations.groupby(["ablation", "model", "variant"]):
        curve = rows.set_index("step")["value"].sort_index()
        for (name, method), mean in means.items():
            if name == model and same_curve(mean, curve):
                shared[ablation, variant] = method
    return shared
