"""The section on the effects of a factorial sweep: what each change of an axis does to a score, alone and together."""

from collections.abc import Mapping

from cppo_lab.analysis.grid import Axes
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
    "Points, with the 95 % interval of the mean over seeds: each gives one contrast of its own runs, the mean over the "
    "settings of the other axes. Numbers: the highest value against the lowest; else each value against the first. Two "
    "changes: by how much the second makes the difference of the first larger. Mean: over all settings.",
    "adjusted p: two-sided, of the final mean, with Holm's adjustment over the table.",
)
_VALUES = ("model", "group", "change", "estimate", "low", "high", "seeds")  # of the final mean, fractions
_ERROR = "error"
_SCORES: Mapping[Score | Quantity, str] = {
    Score.FINAL: "final mean",
    Score.AREA: "area",
    Quantity.RETURN: "mean return",
    Quantity.LOG_ERROR: _ERROR,
}
_OF_ERRORS = "error: a ratio, of geometric means of the surrogate's |error| over the steps."


def effects_section(scored: Scored, axes: Axes) -> Section | None:
    """The section; None if every effect lacks a run in each seed."""
    board, title = scored.board, f"Effects ({scored.title})"
    measured = {score: _measured(scored, axes, score) for score in _SCORES}
    final = measured[Score.FINAL]
    columns = {name: measured[score] for score, name in _SCORES.items() if measured[score]}
    if not final:
        return None
    p_values = [estimate.p_value() for estimate in final.values()]
    adjusted = holm([1.0 if p is None else p for p in p_values])
    rows, shown, values = [], [], []
    for (effect, estimate), p, of_all in zip(final.items(), p_values, adjusted, strict=True):
        group, change = _group(effect), _change(effect, axes)
        cells = (
            change,
            *(_text(name, of_score.get(effect)) for name, of_score in columns.items()),
            p_text(None if p is None else of_all),
            str(estimate.n),
        )
        rows.append(TextRow(group, effect.group == OURS, cells, (effect.model, effect.group)))
        shown.append((effect.model, group, change, estimate))
        values.append((*shown[-1][:3], estimate.value, estimate.low, estimate.high, estimate.n))
    headings = ("change", *columns, "adjusted p", "seeds")
    notes = (*_NOTES, _OF_ERRORS) if _ERROR in columns else _NOTES
    table = completed(TextTable("Effects", "method", headings, rows, notes), board, scored.title)
    info = effects_info(board, shown, title, scored.palette)
    return Section(
        "effects",
        "Effects",
        {"tables": [table], "anchors": scored.anchors},
        tables={"effects": table},
        pictures=(Picture("figure_effects", "", title, "", info, draw_effects),),
        values={"effects": [dict(zip(_VALUES, row, strict=True)) for row in values]},
    )


def _text(name: str, estimate: Estimate | None) -> str:
    return shown_ratio(estimate) if name == _ERROR else estimate_text(estimate, signed=True)


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
