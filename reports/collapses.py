"""The section on collapses: a table of their frequency, their steps, and the figure."""

from statistics import median

from cppo_lab import schema
from cppo_lab.analysis.scoring import Scoreboard, describe_gap
from cppo_lab.analysis.selection import SelectionState
from cppo_lab.analysis.statistics.collapse import CellCollapse, cell_collapses
from cppo_lab.analysis.statistics.values import run_values
from cppo_lab.reports.figures.drawing import Picture
from cppo_lab.reports.figures.survival import draw, survival_info
from cppo_lab.reports.names import OURS, baseline_name, display_name, estimate_text, points, with_interval
from cppo_lab.reports.sections import Scored, Section
from cppo_lab.reports.tables import TextRow, TextTable, cell_row, completed
from cppo_lab.runs.spool import early_signs


def collapse_section(scored: Scored) -> Section | None:
    """The collapses of a scored sweep; None if no run is finished."""
    board, title = scored.board, scored.title
    baseline = scored.statistics.baseline
    cells = cell_collapses(board, run_values(board), baseline)
    if not cells:
        return None
    single = [cell for cell in cells if cell.model]
    runs, collapsed = sum(cell.runs for cell in single), sum(cell.collapsed for cell in single)
    summary = (
        f"{collapsed} of {runs} finished runs collapsed."
        if collapsed
        else f"None of {runs} finished runs collapsed; the table bounds the probability of rare collapses."
    )
    several = len(board.models) > 1
    table = completed(_table(cells, several, baseline_name(baseline)), board, title)
    steps = completed(_steps(cells, several), board, title) if collapsed else None
    figure = survival_info(board, single, f"Runs that have not collapsed ({title})", scored.palette)
    return Section(
        "collapses",
        "Collapses",
        {
            "summary": f"{summary} {_early(board)}".strip(),
            "table": table,
            "steps": steps,
            "figure": figure,
            "anchors": scored.anchors,
        },
        tables={f"collapses{scored.suffix}": table, f"collapse_steps{scored.suffix}": steps},
        pictures=(Picture("figure_survival", "", figure.title, "", figure, draw),) if figure else (),
    )


def _early(board: Scoreboard) -> str:
    """How early the warning came in the finished runs, and which other runs have early signs now, in words."""
    leads, false, others, now = list[int](), 0, 0, list[str]()
    for run in board.runs:
        curve = board.curves.of(run.mlflow_id or "")[schema.MEAN].dropna()
        signs = [
            step for step, *pair in zip(curve.index, curve, curve.cummax(), strict=True) if early_signs(*pair)
        ]
        if run.state is SelectionState.COLLAPSE:
            leads.append(int(curve.index[-1]) - signs[0] if signs else 0)
        elif run.state is SelectionState.SCORED:
            false, others = false + bool(signs), others + 1
        elif signs and signs[-1] == curve.index[-1]:
            now.append(describe_gap(run))
    sentences = []
    if leads:
        ahead = f"{median(leads):g} steps ahead in the median"
        sentences.append(
            f"The early warning came before {sum(map(bool, leads))} of {len(leads)} collapses, {ahead}."
        )
    if false:
        sentences.append(f"It also came in {false} of {others} runs without a collapse.")
    if now:
        sentences.append(f"Early signs of a collapse: {'; '.join(now)}.")
    return " ".join(sentences)


def _row(cell: CellCollapse, cells: tuple[str, ...], several: bool) -> TextRow:
    if cell.model:
        return cell_row(cell.model, cell.variant, cells)
    label = ("all models: " if several else "") + display_name(cell.variant)
    return TextRow(label, cell.variant == OURS, cells)


def _table(cells: tuple[CellCollapse, ...], several: bool, base: str) -> TextTable:
    rows = []
    for cell in cells:
        mean = with_interval(cell.mean if cell.model else None, points)
        counts = (str(cell.runs), str(cell.collapsed), with_interval(cell.share, points))
        test, p = cell.test, "none"
        if test is not None:
            p = ("p < 0.001" if test.p < 0.001 else f"p = {test.p:.3f}") + " (normal)" * (not test.exact)
        rows.append(_row(cell, (*counts, estimate_text(cell.surviving), mean, p), several))
    headings = (
        *("runs", "collapsed", "probability", "final mean of the others", "final mean of all"),
        f"against {base}",
    )
    notes = (
        "Percent. probability: that a run collapses, with Wilson's 95 % interval. final mean of the others: of the "
        "runs that did not collapse, with the 95 % interval (Student's t). final mean of all: with a 95 % interval "
        "that allows for unseen collapses, too; a collapse counts as score 0 if none was seen.",
        f"against {base}: two-sided p of the log-rank test of the steps at which runs collapse, over all ways to "
        "assign the runs to the two methods; over all models it is stratified by model. None if no run collapsed.",
    )
    return TextTable("Collapses", "method", headings, rows, notes)


def _steps(cells: tuple[CellCollapse, ...], several: bool) -> TextTable:
    rows = tuple(
        _row(cell, (*numbers, with_interval(point.share, points)), several)
        for cell in cells
        for point in cell.curve
        for numbers in [map(str, (point.step, point.at_risk, point.collapses))]
    )
    notes = (
        "The share of runs that survive the step (Kaplan and Meier, percent), with a 95 % interval (Greenwood's, "
        "on the scale log(-log)). A collapse is dated by the run's last validation; finished runs are censored at the "
        "end of the window.",
    )
    headings = ("step", "runs before it", "collapses", "share that lasts")
    return TextTable("Steps of the collapses", "method", headings, rows, notes)
