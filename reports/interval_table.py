"""The table of 95 % intervals over seeds, for a sweep with several."""

from cppo_lab.analysis.intervals import Interval, baseline_of, intervals
from cppo_lab.analysis.scoring import Scoreboard
from cppo_lab.reports.names import display_name
from cppo_lab.reports.tables import core_of
from cppo_lab.reports.text_tables import TextRow, TextTable


def interval_table(board: Scoreboard, title: str) -> TextTable | None:
    """None where no cell has two runs: a single run has no interval."""
    cells = intervals(board)
    if not any(cell.runs > 1 for cell in cells):
        return None
    baseline = display_name(baseline_of(board.variants))
    several = len(board.models) > 1
    rows = tuple(
        TextRow(
            label=(f"{cell.model}: " if several else "") + display_name(cell.variant),
            shaded=cell.variant == "cppo",
            cells=(
                str(cell.runs),
                _text(cell.best),
                _text(cell.best_difference, signed=True),
                _text(cell.final),
                _text(cell.final_difference, signed=True),
                f"{cell.collapsed} of {cell.runs}",
            ),
        )
        for cell in cells
    )
    headings = ("runs", "best step", f"minus {baseline}", "final", f"minus {baseline}", "collapsed")
    notes = (
        "Percent; mean over seeds and half width of its 95 % interval (Student's t); differences are paired by seed.",
        "best step: the selection rule, which favours a noisy run. final: mean of the last 30 % of the window, in "
        "which a collapsed run counts with the score it ended at.",
    )
    return TextTable(title, core_of(board), "method", headings, rows, notes)


def _text(interval: Interval | None, signed: bool = False) -> str:
    if interval is None:
        return "–"
    sign = "+" if signed else ""
    half = "" if interval.half is None else f" ± {100 * interval.half:.1f}"
    return f"{100 * interval.mean:{sign}.1f}{half}"
