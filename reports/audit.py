"""The audit of the paper's printed tables: its numbers against those recomputed from its curves, cell by cell, and what
does not fit, with a verdict.

All values are in percent, as printed, and derived from the curves; nothing is taken from notes.
"""

import itertools
import math
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from decimal import ROUND_DOWN, Decimal
from typing import NamedTuple

import pandas as pd

from cppo_lab import schema
from cppo_lab.analysis.scoring import RunScore, Scoreboard, SelectionState, Stat, late_curve, step_noise
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
# How a printed number relates to the exact number: truncating and rounding give the same digits, or one of them does.
_EITHER, _TRUNCATED, _ROUNDED, _NEITHER = "either", "truncated", "rounded", "neither"
_COLLAPSE = SelectionState.COLLAPSE.value  # printed in place of a number
# The verdicts on a discrepancy.
CONFIRMED, NOT_SEEN, FOUND = "confirmed", "not seen in these curves", "found in these curves"


def audit_section(scored: Scored) -> Section | None:
    """The audit of the paper's curves; None if runs are missing."""
    if scored.board.gaps:
        return None
    audit = audit_tables(scored.board, printed_table("table_full"))
    findings = discrepancies(audit, scored.board, ablation_curves())
    numbers = audit.cells["difference"].dropna()
    summary = (
        f"The selection rule applied to the paper's curves gives all {len(numbers)} printed numbers of Table 4 to "
        f"within {numbers.abs().max()} points. The list has first the known discrepancies of the printed tables, "
        "each tested against the curves, then those that only the curves show."
    )
    rows = [
        TextRow(
            cell.model,
            False,
            (
                display_name(cell.method),
                "Avg" if cell.column == AVERAGE else benchmark_name(cell.column),
                cell.printed,
                ABSENT if cell.exact is None else str(cell.exact),
                ABSENT if cell.difference is None else f"{cell.difference:+}",
                cell.printing,
            ),
            (cell.model, cell.method),
        )
        for cell in audit.cells.itertuples()
    ]
    headings = ("Method", "Column", "Printed", "Curve", "Difference", "Printed digits")
    cells = TextTable("Every printed number next to the curve's", "Model", headings, rows)
    return Section(
        "audit",
        "Audit of the printed tables",
        {"summary": summary, "discrepancies": findings, "cells": cells, "anchors": scored.anchors},
        f"{len(findings)} discrepancies",
        tables={"audit": cells},
    )


class Audit(NamedTuple):
    """Everything the report needs to say about the printed tables.

    `cells`: a row per printed number: `model`, `method`, `column`, the text `printed`, the `exact` value from the curve
    (None: no score), `printing` (how the one follows from the other) and `difference` (printed minus exact, in points;
    None where either is not a number).

    `runs`: a row per run, indexed by model and method: its score `run`, its `printed` mean, and how robust its selected
    step is. `half_grid`: how many of its single-benchmark `values` are an odd multiple of 1/960 rather than k/480, i.e.
    the mean of two evaluations; `noise`: see `scoring.step_noise`. `late`: mean of the last 30 % of the window, NaN of
    a collapsed run; `late_rank`, `printed_rank`: its ranks within the model.
    """

    cells: pd.DataFrame
    runs: pd.DataFrame


def audit_tables(board: Scoreboard, printed: Sequence[Mapping[str, str]]) -> Audit:
    """Compare the board with the rows of the printed full table (`model`, `method`, benchmarks and AVERAGE as text)."""
    by_pair = {(run.model, run.variant): run for run in board.runs}
    cells, runs = [], {}
    for row in printed:
        pair = (row["model"], row["method"])
        run, choice = by_pair[pair], by_pair[pair].choice
        for column in (*board.benchmarks, AVERAGE):
            value = choice.score if column == AVERAGE else choice.components.get(column)
            exact = None if value is None else percent(value)
            cells.append((*pair, column, row[column], exact, *_printing(row[column], exact)))
        late = late_curve(board.curves.of(run.mlflow_id), run.t_stop)
        values = board.window(run)[list(board.benchmarks)]
        # A tolerance, because the curves are given to 1e-6.
        apart = (values * _EVALUATIONS - (values * _EVALUATIONS).round()).abs() > 0.01
        runs[pair] = {
            "run": run,
            "printed": row[AVERAGE],
            "values": values.notna().to_numpy().sum(),
            "half_grid": apart.to_numpy().sum(),
            "noise": step_noise(late),
            "late": late.mean() if run.state is SelectionState.SCORED else math.nan,
        }
    frame = pd.DataFrame.from_dict(runs, orient="index")
    means = frame[["late"]].assign(printed=pd.to_numeric(frame["printed"], errors="coerce"))
    ranks = means.groupby(level=0).rank(method="min", ascending=False).add_suffix("_rank")
    names = ("model", "method", "column", "printed", "exact", "printing", "difference")
    return Audit(pd.DataFrame(cells, columns=names), frame.join(ranks))


def _printing(printed: str, exact: Decimal | None) -> tuple[str, Decimal | None]:
    """How `printed` was derived from `exact`, and the difference."""
    if printed == _COLLAPSE or exact is None:
        return _COLLAPSE, None
    shown = Decimal(printed)
    cut, rounded = exact.quantize(CENT, ROUND_DOWN) == shown, round_half_up(exact) == shown
    kind = {(True, True): _EITHER, (True, False): _TRUNCATED, (False, True): _ROUNDED}
    return kind.get((cut, rounded), _NEITHER), shown - exact


class Discrepancy(NamedTuple):
    """A claim about the printed tables, whether the curves confirm it, and the evidence in a sentence or two."""

    claim: str
    verdict: str
    evidence: str


_Finding = tuple[str, object, str]  # a claim, what is true if the curves show it, and the evidence


def discrepancies(audit: Audit, board: Scoreboard, ablations: pd.DataFrame) -> list[Discrepancy]:
    """The known discrepancies first, in the order they were noted, then what only the curves show.

    `ablations`: see `tables.ablation_curves`.
    """
    return [
        Discrepancy(claim, seen if shown else NOT_SEEN, evidence)
        for findings, seen in ((_noted(audit, board, ablations), CONFIRMED), (_in_curves(audit), FOUND))
        for claim, shown, evidence in findings
    ]


def _noted(audit: Audit, board: Scoreboard, ablations: pd.DataFrame) -> Iterator[_Finding]:
    """The known discrepancies."""
    counts = (
        audit.cells["printing"]
        .value_counts()
        .reindex([_EITHER, _TRUNCATED, _ROUNDED, _NEITHER], fill_value=0)
    )
    either, cut, rounded, neither = counts
    telling = audit.cells[audit.cells["printing"].isin([_TRUNCATED, _ROUNDED])]
    # The part below the second decimal, as a fraction of the last printed digit.
    telling = telling.assign(rest=telling["exact"] * 100 % 1, up=telling["printing"] == _ROUNDED)
    is_ours = telling["method"] == OURS
    ours = telling[is_ours]
    threshold = telling[telling["up"] & ~is_ours]["rest"].min()
    down = telling[~telling["up"]]
    above = down[down["rest"] >= threshold]
    highest = down[down["rest"] < threshold]["rest"].max()
    exceptions = _listed(
        f"{display_name(cell.method)} on {cell.model}, {_column(cell.column)}: {cell.exact} printed {cell.printed}"
        for cell in above.itertuples()
    )
    yield (
        "The paper truncates instead of rounding, but not everywhere.",
        cut and rounded,
        f"{either} printed numbers are the same either way, {cut} are truncated, {rounded} are rounded, "
        f"{neither} are neither; the largest difference from the curve is "
        f"{audit.cells['difference'].dropna().abs().max()} points. In the "
        f"{display_name(OURS)} rows {ours['up'].sum()} of {len(ours)} distinguishing "
        f"numbers are rounded. In the other rows a remainder of up to {highest:.2f} of the last digit is truncated "
        f"and one from {threshold:.2f} is rounded up, except: {exceptions}. This report rounds half up everywhere.",
    )
    for model, method, claimed in (
        ("Qwen3-1.7B", "dppo", {"aime25": "28.33", "aime26": "25.21"}),
        ("Qwen3-1.7B-Base", "trm_avg", {"aime26": "9.38", AVERAGE: "11.67"}),
    ):
        rows = audit.cells.set_index(["model", "method"]).loc[[(model, method)]]
        cells = [cell for cell in rows.itertuples() if cell.column in claimed]
        off = any(cell.difference is None or abs(cell.difference) >= CENT for cell in cells)
        noted = ", ".join(f"{_column(column)} {value}" for column, value in claimed.items())
        exact = ", ".join(f"{_column(cell.column)} {cell.exact} (printed {cell.printed})" for cell in cells)
        yield (
            f"{display_name(method)} on {model}: the curve at its best step was noted as {noted}, unlike the printed "
            "row.",
            off,
            f"At the selected step {audit.runs['run'][model, method].choice.step} the curve gives {exact}"
            + ("." if off else ": print and curve agree to less than 0.01 points."),
        )
    for run, printed in zip(audit.runs["run"], audit.runs["printed"], strict=True):
        if run.state is SelectionState.COLLAPSE:
            choice, others = run.choice, _scores(audit, run.model)
            best = choice.score or 0.0
            yield (
                f"{_name(run)} is printed “{printed}” although its best mean inside the window is a finite number.",
                best,
                f"Its best mean is {points(best)} at step {choice.step}; its last point is step "
                f"{choice.last_step}, at {points(choice.last_score or 0.0)}. By the selection rule alone it would rank "
                f"{1 + sum(score >= best for score in others)} of {len(others) + 1} on this model.",
            )
    noise = sorted(100 * audit.runs["noise"].dropna())
    margins = [
        100 * (high - low)
        for model in board.models
        for high, low in itertools.pairwise(_scores(audit, model))
    ]
    middle = statistics.median(noise)
    smaller = sum(margin < middle for margin in margins)
    yield (
        "The step-to-step noise of one run is as large as several of the printed margins.",
        smaller,
        f"In the last 30 % of the window one evaluation scatters by {noise[0]:.2f} to {noise[-1]:.2f} points "
        f"(median {middle:.2f}); {smaller} of the {len(margins)} margins between neighbours in a column are smaller "
        "than that median. One run per cell cannot tell such neighbours apart.",
    )
    parts, first = [], set()
    for model, runs in audit.runs.dropna(subset="late").groupby(level=0, sort=False):
        ranked = runs.droplevel(0).sort_values("late_rank", kind="stable")
        first.add(ranked.index[0])
        top = " and ".join(
            f"{display_name(name)} {points(late)}" for name, late in ranked["late"][:2].items()
        )
        moved = ranked.index[ranked["late_rank"] != ranked["printed_rank"]]
        differs = (
            f" (rank differs from print for {', '.join(map(display_name, moved))})" if len(moved) else ""
        )
        parts.append(f"{model}: {top}{differs}")
    yield (
        "The mean of the last 30 % of the window keeps CPPO first in every column, but not every second place.",
        first == {OURS},
        "First and second: " + "; ".join(parts) + ".",
    )
    # Which panels of the ablations have a curve in common, and which curves are those of the main table.
    curves = {
        names: rows.set_index("step")["value"].sort_index()
        for names, rows in ablations.groupby(["ablation", "variant", "model"])
    }
    of_panel = {
        ablation: curve
        for (ablation, variant, _), curve in curves.items()
        if variant == "cppo_no_prefix_budget"
    }
    same = _same_curve(of_panel["position_weight_ordering"], of_panel["single_mechanism"])
    yield (
        "The panel on the ordering of position weights compares CPPO without prefix budget, ordered against shuffled.",
        same,
        "Its ordered curve and the single-mechanism panel's curve without prefix budget are "
        + ("the same at every step." if same else "different curves."),
    )
    by_method: dict[str, list[str]] = {}
    for (ablation, variant, model), curve in curves.items():
        for run in board.runs:
            main = board.curves.of(run.mlflow_id)[schema.MEAN]
            if run.model == model and _same_curve(main, curve):
                panel = ablation if variant == run.variant else f"{ablation} (as {variant})"
                by_method.setdefault(run.variant, []).append(panel)
    evidence = _listed(f"{display_name(method)}: {', '.join(panels)}" for method, panels in by_method.items())
    yield (
        "Two ablation curves, DPPO and full CPPO, are runs of the main table.",
        {"dppo", "cppo"} == set(by_method),
        f"Equal point by point with the main grid: {evidence}.",
    )


def _column(column: str) -> str:
    return "mean" if column == AVERAGE else benchmark_name(column)


def _scores(audit: Audit, model: str) -> list[float]:
    """The best means of the runs on a model that did not collapse, the highest first."""
    runs = audit.runs["run"][model]
    return sorted(
        (run.choice.score or 0.0 for run in runs if run.state is SelectionState.SCORED), reverse=True
    )


def _same_curve(curve: pd.Series, other: pd.Series) -> bool:
    """Whether two curves have the same steps and, to the last given digit, the same values."""
    return curve.index.equals(other.index) and bool(((curve - other).abs() <= 2e-6).all())


def _in_curves(audit: Audit) -> Iterator[_Finding]:
    """What only the curves show."""
    runs = audit.runs
    many = runs["half_grid"] > 0.1 * runs["values"]
    averaged, stray = (
        _listed(f"{_name(row.run)}, {row.half_grid} of {row.values}" for row in part.itertuples())
        for part in (runs[many], runs[~many & (runs["half_grid"] > 0)])
    )
    yield (
        "Some curves are the mean of two evaluations.",
        many.any(),
        "One evaluation can only give multiples of 1/480. Odd multiples of 1/960, about half of all values if two are "
        f"averaged, appear throughout in: {averaged}; and singly in: {stray}. An average of two has "
        "less noise, so these rows are not on a par with the others.",
    )
    tied = [run for run in runs["run"] if len(run.choice.ties) > 1]
    steps = _listed(
        f"{_name(run)}: steps {', '.join(map(str, run.choice.ties))} are tied, and the printed components "
        f"are those of step {run.choice.step}"
        for run in tied
    )
    yield "Where several steps share the best mean, the table shows the earliest.", tied, f"{steps}."
    early = [
        f"{_name(run)} ends at step {run.choice.last_step} of {run.t_stop}"
        for run in runs["run"]
        if run.choice.last_step is not None and run.choice.last_step < (run.t_stop or 0)
    ]
    claim = "Some runs end before T_stop, so their window is shorter than that of their neighbours."
    yield claim, early, f"{_listed(early)}."
    bases = runs["run"].map(lambda run: run.choice.base).dropna().groupby(level=0, sort=False)
    parts = [
        f"{model}: {stat.n} runs start at {points(min(values))} to {points(max(values))} "
        f"(standard deviation {points(stat.std)})"
        for model, values in bases
        if (stat := Stat.of(values)) is not None and stat.std is not None
    ]
    yield (
        "The same untrained model scores differently in different runs: the noise of the evaluation alone.",
        parts,
        _listed(parts) + f". Step 0 was evaluated on {bases.ngroups} of the models only.",
    )


def _name(run: RunScore) -> str:
    """`CISPO on Qwen3-30B-A3B-Base`."""
    return run.describe(display_name)


def _listed(items: Iterable[str]) -> str:
    """Items as a phrase."""
    return "; ".join(items) or "none"
