"""The table of 95 % intervals over seeds, for a sweep with several."""

from cppo_lab.analysis.scoring import Scoreboard
from cppo_lab.analysis.statistics.estimate import Estimate
from cppo_lab.analysis.statistics.paired import Difference
from cppo_lab.analysis.statistics.summary import sweep_statistics
from cppo_lab.analysis.statistics.values import Score
from cppo_lab.reports.names import display_name
from cppo_lab.reports.tables import core_of
from cppo_lab.reports.text_tables import TextRow, TextTable


def interval_table(board: Scoreboard, title: str) -> TextTable | None:
    """None where no cell has two runs: a single run has no interval."""
    found = sweep_statistics(board)
    if not any(cell.runs > 1 for cell in found.cells):
        return None
    baseline = display_name(found.baseline)
    several = len(board.models) > 1
    rows = tuple(
        TextRow(
            label=(f"{cell.model}: " if several else "") + display_name(cell.variant),
            shaded=cell.variant == "cppo",
            cells=(
                str(cell.runs),
                _text(cell.scores.get(Score.BEST)),
                _signed(cell.differences.get(Score.BEST)),
                _text(cell.scores.get(Score.FINAL)),
                _signed(cell.differences.get(Score.FINAL)),
                f"{cell.collapsed} of {cell.runs}",
            ),
        )
        for cell in found.cells
    )
    headings = ("runs", "best step", f"minus {baseline}", "final", f"minus {baseline}", "collapsed")
    notes = (
        "Percent; mean over seeds and half width of its 95 % interval (Student's t); differences are paired by seed "
        "where both have the same seeds. No half width: one run, or all runs have the same score.",
        "best step: the selection rule, which favours a noisy run. final: mean of the last 30 % of the window, in "
        "which a collapsed run counts with the score it ended at.",
    )
    return TextTable(title, core_of(board), "method", headings, rows, notes)


def _text(estimate: Estimate | None, signed: bool = False) -> str:
    if estimate is None:
        return "–"
    sign = "+" if signed else ""
    half = "" if estimate.half is None else f" ± {100 * estimate.half:.1f}"
    return f"{100 * estimate.value:{sign}.1f}{half}"


def _signed(difference: Difference | None) -> str:
    return "–" if difference is None else _text(difference.estimate, signed=True)
