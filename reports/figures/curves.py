"""Figure 4: validation curves, one panel per model, one line per variant, the selected step of every run
marked.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from cppo_lab.analysis.audit import percent, round_half_up
from cppo_lab.analysis.scoring import Scoreboard
from cppo_lab.analysis.selection import SelectionState
from cppo_lab.reports.figures.frame import above, step_axis, surround
from cppo_lab.reports.figures.lines import Line, draw_lines, drawn_variants, left_out_note, line_of
from cppo_lab.reports.figures.palette import PALETTES, PAPER, Key
from cppo_lab.reports.names import display_name, origin
from cppo_lab.reports.tables import core_of


@dataclass(frozen=True)
class Top:
    """The variant with the highest table score. `text` is that score; the star marks its best run."""

    variant: str
    step: int
    score: float
    text: str


@dataclass(frozen=True)
class Panel:
    """One model; `top` is None if no cell competes (collapsed and provisional ones do not)."""

    model: str
    t_stop: int | None
    lines: tuple[Line, ...]
    top: Top | None


@dataclass(frozen=True)
class CurvesInfo:
    """Everything the figure shows. `source` states the origin of the numbers and is part of the figure."""

    title: str
    source: str
    y_label: str
    panels: tuple[Panel, ...]
    keys: tuple[Key, ...]
    run_ids: tuple[str, ...]

    @property
    def legend(self) -> tuple[tuple[str, str], ...]:
        """(label, colour), for a page."""
        return tuple((key.label, key.stroke.colour) for key in self.keys)


def curves_info(
    board: Scoreboard,
    title: str,
    models: Sequence[str] | None = None,
    aliases: Mapping[str, str] = MappingProxyType({}),
    palette: str = PAPER,
) -> CurvesInfo:
    """The figure of a scored sweep, for `models` or all models. A variant without curves is not in the legend.

    `aliases`: see `Palette.strokes`; `palette`: one of PALETTES.
    """
    shown = [run for run in board.runs if models is None or run.model in models]
    variants = drawn_variants(board)
    strokes = PALETTES[palette].strokes(variants, aliases)
    panels = []
    for model in dict.fromkeys(run.model for run in shown):
        of_model = [run for run in shown if run.model == model]
        lines = [
            line_of(board, runs, strokes[name]) for name in variants if (runs := board.runs_of(model, name))
        ]
        kept = tuple(line for line in lines if line is not None)
        stops = [run.t_stop for run in of_model if run.t_stop is not None]
        panels.append(Panel(model, max(stops, default=None), kept, _top(board, model, kept)))
    drawn = {line.variant for panel in panels for line in panel.lines}
    return CurvesInfo(
        title=title,
        source=origin(core_of(board)) + left_out_note(board),
        y_label=f"mean Avg@{board.curves.samples} (%)",
        panels=tuple(panels),
        keys=tuple(Key(display_name(name), strokes[name]) for name in variants if name in drawn),
        run_ids=tuple(sorted({run.run_id for run in shown if run.run_id is not None})),
    )


def scored_keys(board: Scoreboard, panel: Panel) -> tuple[Key, ...]:
    """The lines of a panel, each labelled with the score of the table."""
    entries = []
    for line in panel.lines:
        cell = board.cells[panel.model, line.variant]
        score = "" if cell.score is None else str(round_half_up(percent(cell.score.mean)))
        text = SelectionState.COLLAPSE.value if cell.state is SelectionState.COLLAPSE else score
        entries.append(Key(f"{line.label}: {text}{'†' if cell.provisional else ''}", line.stroke))
    return tuple(entries)


def _top(board: Scoreboard, model: str, lines: Sequence[Line]) -> Top | None:
    competing = []
    for line in lines:
        cell = board.cells[model, line.variant]
        if cell.state is SelectionState.SCORED and not cell.provisional and cell.score is not None:
            competing.append((cell.score.mean, line))
    if not competing:
        return None
    mean, line = max(reversed(competing), key=lambda entry: entry[0])  # on ties, the line drawn on top
    score, step = max((seed.best[1], -seed.best[0]) for seed in line.seeds if seed.best is not None)
    number = str(round_half_up(percent(mean)))  # the same number as in the table
    return Top(line.variant, -step, score, number if len(line.seeds) == 1 else f"mean {number}")


def draw_panel(panel: Panel, ax: Axes, y_label: str = "", titled: bool = True) -> None:
    """Draw one model: thin seed lines with their band, the mean line, a dot at each selected step, a star at the best
    run.
    """
    draw_lines(ax, panel.lines)
    if panel.top is not None:
        _mark_top(ax, panel, panel.top)
    if titled:
        stop = "" if panel.t_stop is None else f" (T_stop = {panel.t_stop})"
        ax.set_title(panel.model + stop, loc="left", parse_math=False)
    step_axis(ax)
    ax.set_ylabel(y_label)


def _mark_top(ax: Axes, panel: Panel, top: Top) -> None:
    colour = next(line.colour for line in panel.lines if line.variant == top.variant)
    last = max(seed.steps[-1] for line in panel.lines for seed in line.seeds)
    ax.plot(top.step, top.score, "*", markersize=12, color=colour, markeredgecolor="white", zorder=60)
    ax.annotate(
        top.text,
        (top.step, top.score),
        xytext=(0, 7),
        textcoords="offset points",
        ha="right" if top.step > 0.9 * last else "center",
        color=colour,
        fontsize=9,
        fontweight="bold",
        zorder=61,
    )


def draw(info: CurvesInfo, fig: Figure, headed: bool = True, in_row: int = 2) -> None:
    """All panels, `in_row` in a row, with title and source (if `headed`) and a shared legend."""
    columns = min(in_row, len(info.panels))
    rows = -(-len(info.panels) // columns)
    width = {1: 7.2, 2: 10.8}.get(columns, 3.9 * columns)
    bands = [line.band for panel in info.panels for line in panel.lines]
    texts = above(info.title, info.source, bands) if headed else ()
    surround(fig, (width, (4.2 if columns == 1 else 3.3) * rows), texts, info.keys)
    axes = fig.subplots(rows, columns, squeeze=False)
    for index, ax in enumerate(axes.flat):
        if index < len(info.panels):
            draw_panel(info.panels[index], ax, info.y_label if index % columns == 0 else "")
        else:
            ax.remove()
