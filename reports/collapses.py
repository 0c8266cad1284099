"""The section on collapses: a table of their frequency, their steps, and the figure."""

from dataclasses import dataclass

from cppo_lab.analysis.grid import USUAL, Baseline
from cppo_lab.analysis.scoring import Scoreboard
from cppo_lab.analysis.statistics.collapse import CellCollapse, LogRank, cell_collapses
from cppo_lab.analysis.statistics.estimate import Estimate, Share
from cppo_lab.analysis.statistics.summary import baseline_of
from cppo_lab.analysis.statistics.values import run_values
from cppo_lab.reports.figures.drawing import Picture
from cppo_lab.reports.figures.palette import PAPER
from cppo_lab.reports.figures.survival import SurvivalInfo, draw, survival_info
from cppo_lab.reports.names import ABSENT, OURS, baseline_name, display_name, origin, points
from cppo_lab.reports.tables import TextRow, TextTable, core_of


@dataclass(frozen=True)
class CollapseView:
    """`summary`: one sentence. `steps` and `figure` are None if no run collapsed; the page then folds the rest."""

    summary: str
    table: TextTable
    steps: TextTable | None
    figure: SurvivalInfo | None

    @property
    def tables(self) -> tuple[TextTable, ...]:
        """The tables that exist."""
        return (self.table,) if self.steps is None else (self.table, self.steps)

    @property
    def pictures(self) -> tuple[Picture, ...]:
        """The figure with its files, if there is one."""
        if self.figure is None:
            return ()
        return (Picture("figure_survival", "", self.figure.title, "", self.figure, draw),)


def collapse_view(
    board: Scoreboard, title: str, palette: str = PAPER, baseline: Baseline = USUAL
) -> CollapseView | None:
    """The collapses of a scored sweep; None if no run is finished. `baseline`: as in `summary.sweep_statistics`."""
    baseline = baseline_of(board.variants, baseline)
    cells = cell_collapses(board, run_values(board), baseline)
    if not cells:
        return None
    single = [cell for cell in cells if cell.model]
    runs, collapsed = sum(cell.runs for cell in single), sum(cell.collapsed for cell in single)
    return CollapseView(
        summary=f"{collapsed} of {runs} finished runs collapsed."
        if collapsed
        else f"None of {runs} finished runs collapsed; the table bounds the probability of rare collapses.",
        table=_table(board, cells, title, baseline),
        steps=_steps(board, cells, title) if collapsed else None,
        figure=survival_info(board, single, f"Runs that have not collapsed ({title})", palette),
    )


def _label(board: Scoreboard, cell: CellCollapse) -> str:
    where = f"{cell.model or 'all models'}: " if len(board.models) > 1 else ""
    return where + display_name(cell.variant)


def _row(board: Scoreboard, cell: CellCollapse, cells: tuple[str, ...]) -> TextRow:
    pair = (cell.model, cell.variant) if cell.model else None
    return TextRow(_label(board, cell), cell.variant == OURS, cells, pair)


def _table(board: Scoreboard, cells: tuple[CellCollapse, ...], title: str, baseline: Baseline) -> TextTable:
    rows = tuple(
        _row(
            board,
            cell,
            (
                str(cell.runs),
                str(cell.collapsed),
                _share(cell.share),
                _estimate(cell.surviving),
                ABSENT if cell.mean is None or not cell.model else _share(cell.mean),
                _test(cell.test),
            ),
        )
        for cell in cells
    )
    base = baseline_name(baseline)
    headings = (
        "runs",
        "collapsed",
        "probability",
        "final mean of the others",
        "final mean of all",
        f"against {base}",
    )
    notes = (
        f"Source: {origin(core_of(board))}.",
        "Percent. probability: that a run collapses, with Wilson's 95 % interval. final mean of the others: of the "
        "runs that did not collapse, ± half the 95 % interval (Student's t). final mean of all: with a 95 % interval "
        "that allows for unseen collapses, too; a collapse counts as score 0 if none was seen.",
        f"against {base}: two-sided p of the log-rank test of the steps at which runs collapse, over all ways to "
        "assign the runs to the two methods; over all models it is stratified by model. None if no run collapsed.",
    )
    return TextTable(f"Collapses ({title})", core_of(board), "method", headings, rows, notes)


def _steps(board: Scoreboard, cells: tuple[CellCollapse, ...], title: str) -> TextTable:
    rows = tuple(
        _row(board, cell, (str(point.step), str(point.at_risk), str(point.collapses), _share(point.share)))
        for cell in cells
        for point in cell.curve
    )
    notes = (
        f"Source: {origin(core_of(board))}.",
        "The share of runs that survive the step (Kaplan and Meier, percent), with a 95 % interval (Greenwood's, "
        "on the scale log(-log)). A collapse is dated by the run's last validation; finished runs are censored at the "
        "end of the window.",
    )
    headings = ("step", "runs before it", "collapses", "share that lasts")
    return TextTable(f"Steps of the collapses ({title})", core_of(board), "method", headings, rows, notes)


def _share(share: Share) -> str:
    value = points(share.value)
    if share.low is None or share.high is None:
        return value
    return f"{value} ({points(share.low)} to {points(share.high)})"


def _estimate(found: Estimate | None) -> str:
    if found is None:
        return ABSENT
    return points(found.value) + ("" if found.half is None else f" ± {points(found.half)}")


def _test(test: LogRank | None) -> str:
    if test is None:
        return "none"
    return ("p < 0.001" if test.p < 0.001 else f"p = {test.p:.3f}") + ("" if test.exact else " (normal)")
