"""The verdicts as a table, for the files beside the page."""

from cppo_lab.reports.names import OURS, origin
from cppo_lab.reports.text_tables import TextRow, TextTable
from cppo_lab.reports.verdict_view import VerdictLine, VerdictView


def verdict_table(view: VerdictView) -> TextTable | None:
    """One row for each comparison, labelled with its claim; None without comparisons."""
    rows = [_row(line, number) for line in view.lines for number in range(len(line.comparisons))]
    if not rows:
        return None
    headings = (
        *("outcome", "method", "against", "model", "runs", "difference", "95 % interval", "adjusted p"),
        *("P(improvement)", "seeds to decide", "comparison", "power of the claim"),
    )
    notes = [f"Source: {origin(view.core)}.", view.summary, view.method]
    notes += [f"{line.text}: {line.deviation}" for line in view.lines if line.deviation]
    notes += [view.caution] if view.caution else []
    notes += [f"One run per method cannot say: {'; '.join(view.cannot)}."] if view.cannot else []
    return TextTable("Verdicts", view.core, "claim", headings, tuple(rows), tuple(notes))


def _row(line: VerdictLine, number: int) -> TextRow:
    each = line.comparisons[number]
    cells = (
        *(
            line.outcome + " (exploratory)" * line.exploratory,
            each.label,
            each.against,
            each.model,
            each.runs,
            each.difference,
            each.interval,
        ),
        *(each.p, each.improvement, each.seeds, each.outcome, line.power),
    )
    return TextRow(line.text, each.ours[1] == OURS, cells, each.ours)
