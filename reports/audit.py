"""The audit of the paper's printed tables: its numbers against those recomputed from its curves, cell by cell, and what
does not fit, with a verdict.

All values are in percent, as printed, and derived from the curves; nothing is taken from notes.
"""

import itertools
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import ROUND_DOWN, Decimal
from enum import StrEnum

import pandas as pd

from cppo_lab import schema
from cppo_lab.analysis.scoring import (
    RunScore,
    Scoreboard,
    SelectionState,
    Stat,
    late_curve,
    rank_descending,
    step_noise,
)
from cppo_lab.analysis.statistics.values import in_window
from cppo_lab.reports.names import (
    ABSENT,
    CENT,
    OURS,
    benchmark_name,
    display_name,
    percent,
    points,
    round_half_up,
)
from cppo_lab.reports.sections import Scored, Section
from cppo_lab.reports.tables import TextRow, TextTable, ablation_curves, printed_table

_EVALUATIONS = 480  # 30 problems x 16 samples: the denominator of a benchmark's evaluation
AVERAGE = "avg"  # the mean column in the printed tables
# The verdicts on a discrepancy.
CONFIRMED, NOT_SEEN, FOUND = "confirmed", "not seen in these curves", "found in these curves"


def audit_section(scored: Scored) -> Section | None:
    """The audit of the paper's curves; None if runs are missing."""
    if scored.board.gaps:
        return None
    audit, ablations = audit_tables(scored.board, printed_table("table_full")), ablation_curves()
    findings = discrepancies(audit, scored.board, ablations)
    numbers = [cell.difference for cell in audit.cells if cell.difference is not None]
    summary = (
        f"The selection rule applied to the paper's curves gives all {len(numbers)} printed numbers of Table 4 to "
        f"within {max(map(abs, numbers))} points. The list has first the known discrepancies of the printed tables, "
        "each tested against the curves, then those that only the curves show."
    )
    cells = _cells(audit)
    return Section(
        "audit",
        "Audit of the printed tables",
        {"summary": summary, "discrepancies": findings, "cells": cells, "anchors": scored.anchors},
        f"{len(findings)} discrepancies",
        tables={"audit": cells},
    )


class Printing(StrEnum):
    """How a printed number relates to the exact number."""

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
        """Printed minus exact, in points; None where either is not a number."""
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
        """The audit of a printed cell."""
        return next(c for c in self.cells if (c.model, c.method, c.column) == (model, method, column))

    def run(self, model: str, method: str) -> AuditRun:
        """The audit of a run."""
        return next(r for r in self.runs if (r.score.model, r.score.variant) == (model, method))


def _cells(audit: Audit) -> TextTable:
    """Every printed number and the curve's."""
    rows = tuple(
        TextRow(
            cell.model,
            False,
            (
                display_name(cell.method),
                "Avg" if cell.column == AVERAGE else benchmark_name(cell.column),
                cell.printed,
                ABSENT if cell.exact is None else str(cell.exact),
                ABSENT if cell.difference is None else f"{cell.difference:+}",
                cell.printing.value,
            ),
            (cell.model, cell.method),
        )
        for cell in audit.cells
    )
    headings = ("Method", "Column", "Printed", "Curve", "Difference", "Printed digits")
    return TextTable("Every printed number next to the curve's", "Model", headings, rows)


def audit_tables(board: Scoreboard, printed: Sequence[Mapping[str, str]]) -> Audit:
    """Compare the board with the rows of the printed full table (`model`, `method`, benchmarks and AVERAGE as text)."""
    by_pair = {(run.model, run.variant): run for run in board.runs}
    late = {pair: late_curve(board.curves.of(run.mlflow_id), run.t_stop) for pair, run in by_pair.items()}
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
        noise = step_noise(late[pair])
        parts = in_window(board.curves.of(score.mlflow_id), score.t_stop)[list(board.benchmarks)]
        runs.append(
            AuditRun(
                score=score,
                values=int(parts.notna().to_numpy().sum()),
                half_grid=_half_grid_values(parts),
                noise=None if noise is None else 100 * noise,
                late=late_means.get(pair),
                late_rank=late_ranks.get(pair),
                printed_rank=printed_ranks.get(pair),
                ends_early=choice.last_step is not None and choice.last_step < (score.t_stop or 0),
            )
        )
    return Audit(tuple(cells), tuple(runs))


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


def _half_grid_values(values: pd.DataFrame) -> int:
    """How many values are not a multiple of 1/480 (with a tolerance, because the curves are given to 1e-6)."""
    scaled = values * _EVALUATIONS
    return int(((scaled - scaled.round()).abs() > 0.01).to_numpy().sum())


def shared_curves(board: Scoreboard, ablations: pd.DataFrame) -> dict[tuple[str, str], str]:
    """(ablation, variant) -> the method of the main grid with the same mean curve, of the ablation curves with a match.

    `ablations`: columns ablation, model, variant, step, value (fraction).
    """
    means = {
        (run.model, run.variant): board.curves.of(run.mlflow_id)[schema.MEAN]
        for run in board.runs
        if run.mlflow_id
    }
    shared = {}
    for (ablation, model, variant), rows in ablations.groupby(["ablation", "model", "variant"]):
        curve = rows.set_index("step")["value"].sort_index()
        for (name, method), mean in means.items():
            if name == model and _same_curve(mean, curve):
                shared[ablation, variant] = method
    return shared


def _same_curve(curve: pd.Series, other: pd.Series) -> bool:
    """Whether two curves have the same steps and, to the last given digit, the same values."""
    return curve.index.equals(other.index) and bool(((curve - other).abs() <= 2e-6).all())


@dataclass(frozen=True)
class Discrepancy:
    """A claim about the printed tables, whether the curves confirm it, and the evidence in a sentence or two."""

    claim: str
    verdict: str
    evidence: str


def discrepancies(audit: Audit, board: Scoreboard, ablations: pd.DataFrame) -> list[Discrepancy]:
    """The known discrepancies first, in the order they were noted, then what only the curves show.

    `ablations`: see `tables.ablation_curves`.
    """
    return [
        _cutting(audit),
        _printed_otherwise(audit, "Qwen3-1.7B", "dppo", {"aime25": "28.33", "aime26": "25.21"}),
        _printed_otherwise(audit, "Qwen3-1.7B-Base", "trm_avg", {"aime26": "9.38", AVERAGE: "11.67"}),
        *(_collapse(audit, run) for run in audit.runs if run.score.state is SelectionState.COLLAPSE),
        _noise(audit, board),
        _late(audit, board),
        _ordering(ablations),
        _shared(shared_curves(board, ablations)),
        _two_evaluations(audit),
        _ties(audit),
        _early(audit),
        _untrained(audit),
    ]


def _cutting(audit: Audit) -> Discrepancy:
    telling = [cell for cell in audit.cells if cell.printing in (Printing.TRUNCATED, Printing.ROUNDED)]
    cut = [cell for cell in telling if cell.printing is Printing.TRUNCATED]
    rounded = [cell for cell in telling if cell.printing is Printing.ROUNDED]
    neither = sum(cell.printing is Printing.NEITHER for cell in audit.cells)
    either = sum(cell.printing is Printing.EITHER for cell in audit.cells)
    ours = [cell for cell in telling if cell.method == OURS]
    # The part below the second decimal, as a fraction of the last printed digit.
    remainders = {cell: (cell.exact or Decimal(0)) * 100 % 1 for cell in telling}
    threshold = min(remainders[cell] for cell in rounded if cell.method != OURS)
    above = [cell for cell in cut if remainders[cell] >= threshold]
    highest = max(remainders[cell] for cell in cut if cell not in above)
    largest = max(abs(cell.difference) for cell in audit.cells if cell.difference is not None)
    exceptions = _listed(
        f"{display_name(c.method)} on {c.model}, {_column(c.column)}: {c.exact} printed {c.printed}"
        for c in above
    )
    return Discrepancy(
        "The paper truncates instead of rounding, but not everywhere.",
        CONFIRMED if cut and rounded else NOT_SEEN,
        f"{either} printed numbers are the same either way, {len(cut)} are truncated, {len(rounded)} are rounded, "
        f"{neither} are neither; the largest difference from the curve is {largest} points. In the "
        f"{display_name(OURS)} rows {sum(c.printing is Printing.ROUNDED for c in ours)} of {len(ours)} distinguishing "
        f"numbers are rounded. In the other rows a remainder of up to {highest:.2f} of the last digit is truncated "
        f"and one from {threshold:.2f} is rounded up, except: {exceptions}. This report rounds half up everywhere.",
    )


def _column(column: str) -> str:
    return "mean" if column == AVERAGE else benchmark_name(column)


def _printed_otherwise(audit: Audit, model: str, method: str, claimed: dict[str, str]) -> Discrepancy:
    cells = [audit.cell(model, method, column) for column in claimed]
    off = [cell for cell in cells if cell.difference is None or abs(cell.difference) >= Decimal("0.01")]
    run = audit.run(model, method)
    noted = ", ".join(f"{_column(column)} {value}" for column, value in claimed.items())
    return Discrepancy(
        f"{display_name(method)} on {model}: the curve at its best step was noted as {noted}, unlike the printed row.",
        CONFIRMED if off else NOT_SEEN,
        f"At the selected step {run.score.choice.step} the curve gives "
        + ", ".join(f"{_column(cell.column)} {cell.exact} (printed {cell.printed})" for cell in cells)
        + ("." if off else ": print and curve agree to less than 0.01 points."),
    )


def _collapse(audit: Audit, run: AuditRun) -> Discrepancy:
    choice, model = run.score.choice, run.score.model
    others = [r for r in audit.runs if r.score.model == model and r.score.state is SelectionState.SCORED]
    best = choice.score or 0.0
    rank = 1 + sum((r.score.choice.score or 0.0) >= best for r in others)
    printed = audit.cell(model, run.score.variant, AVERAGE).printed
    return Discrepancy(
        f"{_name(run)} is printed “{printed}” although its best mean inside the window is a finite number.",
        CONFIRMED if best else NOT_SEEN,
        f"Its best mean is {points(best)} at step {choice.step}; its last point is step "
        f"{choice.last_step}, at {points(choice.last_score or 0.0)}. By the selection rule alone it would rank "
        f"{rank} of {len(others) + 1} on this model.",
    )


def _noise(audit: Audit, board: Scoreboard) -> Discrepancy:
    noise = sorted(run.noise for run in audit.runs if run.noise is not None)
    margins = []
    for model in board.models:
        printed = (r for r in audit.runs if r.score.model == model and r.score.state is SelectionState.SCORED)
        scores = sorted((r.score.choice.score or 0.0 for r in printed), reverse=True)
        margins += [100 * (high - low) for high, low in itertools.pairwise(scores)]
    middle = statistics.median(noise)
    smaller = sum(margin < middle for margin in margins)
    return Discrepancy(
        "The step-to-step noise of one run is as large as several of the printed margins.",
        CONFIRMED if smaller else NOT_SEEN,
        f"In the last 30 % of the window one evaluation scatters by {noise[0]:.2f} to {noise[-1]:.2f} points "
        f"(median {middle:.2f}); {smaller} of the {len(margins)} margins between neighbours in a column are smaller "
        "than that median. One run per cell cannot tell such neighbours apart.",
    )


def _late(audit: Audit, board: Scoreboard) -> Discrepancy:
    parts, all_first = [], True
    for model in board.models:
        runs = sorted(
            (r for r in audit.runs if r.score.model == model and r.late is not None),
            key=lambda r: r.late_rank or 0,
        )
        all_first &= runs[0].score.variant == OURS
        top = " and ".join(f"{display_name(r.score.variant)} {points(r.late or 0.0)}" for r in runs[:2])
        moved = [display_name(r.score.variant) for r in runs if r.late_rank != r.printed_rank]
        parts.append(
            f"{model}: {top}" + (f" (rank differs from print for {', '.join(moved)})" if moved else "")
        )
    return Discrepancy(
        "The mean of the last 30 % of the window keeps CPPO first in every column, but not every second place.",
        CONFIRMED if all_first else NOT_SEEN,
        "First and second: " + "; ".join(parts) + ".",
    )


def _ordering(ablations: pd.DataFrame) -> Discrepancy:
    def curve(ablation: str) -> pd.Series:
        rows = ablations[
            (ablations["ablation"] == ablation) & (ablations["variant"] == "cppo_no_prefix_budget")
        ]
        return rows.set_index("step")["value"].sort_index()

    same = _same_curve(curve("position_weight_ordering"), curve("single_mechanism"))
    return Discrepancy(
        "The panel on the ordering of position weights compares CPPO without prefix budget, ordered against shuffled.",
        CONFIRMED if same else NOT_SEEN,
        "Its ordered curve and the single-mechanism panel's curve without prefix budget are "
        + ("the same at every step." if same else "different curves."),
    )


def _shared(shared: dict[tuple[str, str], str]) -> Discrepancy:
    by_method: dict[str, list[str]] = {}
    for (ablation, variant), method in sorted(shared.items()):
        by_method.setdefault(method, []).append(
            ablation if variant == method else f"{ablation} (as {variant})"
        )
    evidence = _listed(f"{display_name(method)}: {', '.join(panels)}" for method, panels in by_method.items())
    return Discrepancy(
        "Two ablation curves, DPPO and full CPPO, are runs of the main table.",
        CONFIRMED if {"dppo", "cppo"} == set(by_method) else NOT_SEEN,
        f"Equal point by point with the main grid: {evidence}.",
    )


def _two_evaluations(audit: Audit) -> Discrepancy:
    averaged = [run for run in audit.runs if run.half_grid > 0.1 * run.values]
    stray = [run for run in audit.runs if 0 < run.half_grid <= 0.1 * run.values]
    return Discrepancy(
        "Some curves are the mean of two evaluations.",
        FOUND if averaged else NOT_SEEN,
        "One evaluation can only give multiples of 1/480. Odd multiples of 1/960, about half of all values if two are "
        f"averaged, appear throughout in: {_listed(f'{_name(r)}, {r.half_grid} of {r.values}' for r in averaged)}; "
        f"and singly in: {_listed(f'{_name(r)}, {r.half_grid} of {r.values}' for r in stray)}. An average of two has "
        "less noise, so these rows are not on a par with the others.",
    )


def _ties(audit: Audit) -> Discrepancy:
    tied = [run for run in audit.runs if len(run.score.choice.ties) > 1]
    return Discrepancy(
        "Where several steps share the best mean, the table shows the earliest.",
        FOUND if tied else NOT_SEEN,
        _listed(
            f"{_name(run)}: steps {', '.join(map(str, run.score.choice.ties))} are tied, and the printed components "
            f"are those of step {run.score.choice.step}"
            for run in tied
        )
        + ".",
    )


def _early(audit: Audit) -> Discrepancy:
    early = [run for run in audit.runs if run.ends_early]
    return Discrepancy(
        "Some runs end before T_stop, so their window is shorter than that of their neighbours.",
        FOUND if early else NOT_SEEN,
        _listed(f"{_name(r)} ends at step {r.score.choice.last_step} of {r.score.t_stop}" for r in early)
        + ".",
    )


def _untrained(audit: Audit) -> Discrepancy:
    bases: dict[str, list[float]] = {}
    for run in audit.runs:
        if run.score.choice.base is not None:
            bases.setdefault(run.score.model, []).append(run.score.choice.base)
    parts = [
        f"{model}: {stat.n} runs start at {points(min(values))} to {points(max(values))} "
        f"(standard deviation {points(stat.std)})"
        for model, values in bases.items()
        if (stat := Stat.of(values)) is not None and stat.std is not None
    ]
    return Discrepancy(
        "The same untrained model scores differently in different runs: the noise of the evaluation alone.",
        FOUND if parts else NOT_SEEN,
        _listed(parts) + f". Step 0 was evaluated on {len(bases)} of the models only.",
    )


def _name(run: AuditRun) -> str:
    """`CISPO on Qwen3-30B-A3B-Base`."""
    return f"{display_name(run.score.variant)} on {run.score.model}"


def _listed(items: Iterable[str]) -> str:
    """Items as a phrase."""
    return "; ".join(items) or "none"
