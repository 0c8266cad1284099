"""The section on the effects of a factorial sweep: what each change of an axis does to a score, alone and together."""

from collections.abc import Mapping

from cppo_lab.analysis.inputs import Axes
from cppo_lab.analysis.statistics.estimate import Estimate, holm
from cppo_lab.analysis.statistics.paired import Effect, effects
from cppo_lab.analysis.statistics.values import Quantity, Score, run_values
from cppo_lab.analysis.statistics.verdicts import with_quantity
from cppo_lab.reports.exact_view import shown_ratio
from cppo_lab.reports.figures.axes import draw_effects, effects_info
from cppo_lab.reports.figures.drawing import Picture
from cppo_lab.reports.names import OURS, display_name, estimate_text, p_text, value_text
from cppo_lab.reports.sections import Scored, Section
from cppo_lab.reports.tables import TextRow, TextTable, completed

_NOTES = (
    "Points, with the 95 % interval of the mean over seeds: each gives one contrast of its runs, the mean over the "
    "settings of the other axes. Numbers: the highest value against the lowest; else each value against the first. Two "
    "changes: by how much the second makes the difference of the first larger. Mean: over all settings.",
    "adjusted p: two-sided, of the final mean, with Holm's adjustment over the table.",
)
_VALUES = ("model", "group", "change", "estimate", "low", "high", "seeds")  # of the final mean, fractions
_FINAL, _ERROR = "final mean", "error"
_SCORES: Mapping[Score | Quantity, str] = {
    Score.FINAL: _FINAL,
    Score.AREA: "area",
    Quantity.RETURN: "mean return",
    Quantity.LOG_ERROR: _ERROR,
}
_OF_ERRORS = "error: a ratio, of geometric means of the surrogate's |error| over the steps."


def effects_section(scored: Scored, axes: Axes) -> Section | None:
    """The section; None if every effect lacks a run in each seed."""
    board, title = scored.board, f"Effects ({scored.title})"
    measured = {name: _measured(scored, axes, score) for score, name in _SCORES.items()}
    final, columns = measured[_FINAL], {name: of_score for name, of_score in measured.items() if of_score}
    if not final:
        return None
    adjusted = holm([1.0 if (p := estimate.p_value()) is None else p for estimate in final.values()])
    rows, shown = [], []
    for (effect, estimate), p in zip(final.items(), adjusted, strict=True):
        shown.append((effect.model, _group(effect), _change(effect, axes), estimate))
        texts = (
            shown_ratio(of_score.get(effect))
            if name == _ERROR
            else estimate_text(of_score.get(effect), signed=True)
            for name, of_score in columns.items()
        )
        tested = p_text(None if estimate.error is None else p)
        cells = (shown[-1][2], *texts, tested, str(estimate.n))
        rows.append(TextRow(shown[-1][1], effect.group == OURS, cells, (effect.model, effect.group)))
    notes = (*_NOTES, _OF_ERRORS) if _ERROR in columns else _NOTES
    table = TextTable("Effects", "method", ("change", *columns, "adjusted p", "seeds"), rows, notes)
    table = completed(table, board, scored.title)
    info = effects_info(board, shown, title, scored.palette)
    values = ((*names, each.value, each.low, each.high, each.n) for *names, each in shown)
    return Section(
        "effects",
        "Effects",
        {"tables": [table], "anchors": scored.anchors},
        tables={"effects": table},
        pictures=(Picture("figure_effects", "", title, "", info, draw_effects),),
        values={"effects": [dict(zip(_VALUES, row, strict=True)) for row in values]},
    )


def _measured(scored: Scored, axes: Axes, score: Score | Quantity) -> dict[Effect, Estimate]:
    board, runs, measured = scored.board, run_values(scored.board), dict[Effect, Estimate]()
    if isinstance(score, Quantity):
        runs = with_quantity(board, runs, score)
    for model in board.models:
        places = [place for place in axes.places if (model, place.variant) in board.cells]
        measured |= effects(runs, model, places, scored.baseline, score)
    return measured


def _group(effect: Effect) -> str:
    name = display_name(effect.group)
    return f"{name} minus {display_name(effect.against)}" if effect.against else name


def _change(effect: Effect, axes: Axes) -> str:
    """`staleness 0 to 8 × mismatch 0.002 to 0.2`."""
    words = (
        f"{axes.keys[place].rpartition('.')[2]} {value_text(before)} to {value_text(after)}"
        for place, before, after in effect.changes
    )
    return " \N{MULTIPLICATION SIGN} ".join(words) or "mean"
