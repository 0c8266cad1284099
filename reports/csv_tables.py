"""Tables and boards as CSV text, in percent."""

import csv
import io
from collections.abc import Iterable, Sequence

from cppo_lab import schema
from cppo_lab.analysis.audit import Audit, percent
from cppo_lab.analysis.scoring import Scoreboard
from cppo_lab.analysis.statistics.values import run_values
from cppo_lab.reports.escapes import csv_cell
from cppo_lab.reports.tables import Entry, FullTable, MainTable, core_of


def csv_text(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """CSV with \n line ends on every platform; no cell is a formula (`escapes.csv_cell`)."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow([csv_cell(cell) for cell in header])
    # Most of a million cells are numbers, which the call would return as they are.
    writer.writerows([csv_cell(cell) if isinstance(cell, str) else cell for cell in row] for row in rows)
    return out.getvalue()


def _csv_entry(entry: Entry) -> str:
    """The mean alone, or the word in its place; a provisional cell keeps its dagger."""
    text = entry.word if entry.value is None else f"{entry.value}"
    return text + ("†" if entry.provisional else "")


def _core_column(core: str) -> tuple[list[str], list[str]]:
    """The core column: none for the paper's tables, which keep exactly the paper's columns; others name their core in
    every row.
    """
    return ([], []) if core == schema.PAPER else (["core"], [core])


def main_csv(table: MainTable) -> str:
    """Table 1: `method` and one column per model, in percent."""
    head, core = _core_column(table.core)
    rows = ([row.variant, *map(_csv_entry, row.entries), *core] for row in table.rows)
    return csv_text(["method", *table.models, *head], rows)


def full_csv(table: FullTable) -> str:
    """Table 4: `model, t_stop, method`, the benchmarks (empty if a model does not have one), `avg`; in percent."""
    head, core = _core_column(table.core)
    columns = [*dict.fromkeys(name for block in table.blocks for name in block.benchmarks), "avg"]
    rows = []
    for block in table.blocks:
        for row in block.rows:
            entries = dict(zip((*block.benchmarks, "avg"), map(_csv_entry, row.entries), strict=True))
            lead = [block.model, "" if block.t_stop is None else block.t_stop, row.variant]
            rows.append([*lead, *(entries.get(name, "") for name in columns), *core])
    return csv_text(["model", "t_stop", "method", *columns, *head], rows)


def long_csv(board: Scoreboard) -> str:
    """One row per (model, variant, benchmark): mean, standard deviation and number of runs, in percent."""
    header = (
        "core",
        "model",
        "t_stop",
        "method",
        "benchmark",
        "state",
        "provisional",
        "runs",
        "n",
        "mean",
        "std",
    )
    rows: list[list[object]] = []
    core = core_of(board)
    for (model, variant), cell in board.cells.items():
        stats = {**cell.components, "avg": cell.score, "base": cell.base, "gain": cell.gain}
        for name, stat in stats.items():
            lead = [
                core,
                model,
                cell.t_stop,
                variant,
                name,
                cell.state.value,
                int(cell.provisional),
                cell.expected,
            ]
            if stat is None:
                rows.append([*lead, 0, "", ""])
            else:
                rows.append(
                    [*lead, stat.n, percent(stat.mean), "" if stat.std is None else percent(stat.std)]
                )
    return csv_text(header, rows)


def runs_csv(board: Scoreboard) -> str:
    """One row per expected run: what it is, its state, the selected step and score (percent), the last score, the score
    `final` of the statistics, and the digest of the weights that it began with.
    """
    header = [
        *("model", "method", "seed", "rule", "core", "run_id", "mlflow_run_id", "status", "state", "t_stop"),
        *("step", "tied_steps", "avg", *board.benchmarks, "base", "last_step", "last"),
        *("final", "warm_start"),
    ]
    final = {(run.model, run.variant, run.seed): run.final for run in run_values(board)}
    starts = dict(zip(board.data.runs["mlflow_id"], board.data.runs["warm_start"], strict=True))
    rows = []
    for run in board.runs:
        choice = run.choice
        scores = [choice.score, *(choice.components.get(name) for name in board.benchmarks), choice.base]
        shown = ["" if value is None else percent(value) for value in (*scores, choice.last_score)]
        found = (run.model, run.variant, run.seed, run.rule, run.core, run.run_id, run.mlflow_id, run.status)
        ties = " ".join(map(str, choice.ties))
        chosen = (run.state.value, run.t_stop, choice.step, ties, *shown[:-1], choice.last_step, shown[-1])
        late = final.get((run.model, run.variant, run.seed))
        rows.append(
            [*found, *chosen, "" if late is None else percent(late), starts.get(run.mlflow_id or "", "")]
        )
    return csv_text(header, rows)


def audit_csv(audit: Audit) -> str:
    """One row per printed cell, with what is known of its run."""
    header = [
        *("model", "method", "column", "printed", "curve", "difference", "printing", "step", "tied_steps"),
        *("state", "last_step", "ends_early", "half_grid_values", "values", "late_mean", "late_rank"),
        *("printed_rank", "noise"),
    ]
    rows = []
    for cell in audit.cells:
        run = audit.run(cell.model, cell.method)
        choice, late = run.score.choice, run.late.stat
        printed = (cell.printed, cell.exact, cell.difference, cell.printing.value)
        chosen = (choice.step, " ".join(map(str, choice.ties)), run.score.state.value, choice.last_step)
        grid = (int(run.ends_early), run.half_grid, run.values)
        firm = (None if late is None else percent(late.mean), run.late.rank, run.printed_rank)
        noise = None if run.noise is None else f"{run.noise:.4f}"
        rows.append((cell.model, cell.method, cell.column, *printed, *chosen, *grid, *firm, noise))
    return csv_text(header, rows)
