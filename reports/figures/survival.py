"""The share of runs that have not collapsed, over training steps, with one panel per model with a collapse."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from cppo_lab.analysis.scoring import Scoreboard
from cppo_lab.analysis.statistics.collapse import CellCollapse
from cppo_lab.reports.figures.data import APPEARANCE, HEADING
from cppo_lab.reports.figures.drawing import panel_grid, step_axis
from cppo_lab.reports.figures.palette import PALETTES, PAPER, Key, keys_of
from cppo_lab.reports.figures.validation import drawn_variants, left_out_note
from cppo_lab.reports.names import display_name, origin
from cppo_lab.reports.tables import core_of, run_ids_of
from cppo_lab.rules import Stroke

_APART = 0.6  # percent between lines that would coincide


@dataclass(frozen=True)
class SurvivalLine:
    """One variant: the percentage of its runs that survive each step at which one collapses, from step 0 to the last
    observed step. `at_risk`: runs still observed there.
    """

    variant: str
    label: str
    stroke: Stroke = field(metadata=APPEARANCE)
    runs: int
    steps: tuple[int, ...]
    surviving: tuple[float, ...]
    at_risk: tuple[int, ...]


@dataclass(frozen=True)
class SurvivalPanel:
    """One model."""

    model: str
    lines: tuple[SurvivalLine, ...]


@dataclass(frozen=True)
class SurvivalInfo:
    """Everything the figure shows."""

    title: str = field(metadata=HEADING)
    source: str = field(metadata=HEADING)
    panels: tuple[SurvivalPanel, ...]
    keys: tuple[Key, ...]
    run_ids: tuple[str, ...] = field(metadata=APPEARANCE)


def survival_info(
    board: Scoreboard, cells: Sequence[CellCollapse], title: str, palette: str = PAPER
) -> SurvivalInfo | None:
    """The figure of a scored sweep; None if no run collapsed."""
    models = [model for model in board.models if any(one.collapsed and one.model == model for one in cells)]
    if not models:
        return None
    variants = drawn_variants(board)
    strokes = PALETTES[palette].strokes(variants)
    of_cell = {(one.model, one.variant): one for one in cells}
    panels = []
    for model in models:
        found = [of_cell[model, name] for name in variants if (model, name) in of_cell]
        panels.append(SurvivalPanel(model, tuple(_line(one, strokes[one.variant]) for one in found)))
    drawn = {line.variant for panel in panels for line in panel.lines}
    return SurvivalInfo(
        title=title,
        source=origin(core_of(board)) + left_out_note(board),
        panels=tuple(panels),
        keys=keys_of(strokes, drawn),
        run_ids=run_ids_of(board.runs),
    )


def _line(cell: CellCollapse, stroke: Stroke) -> SurvivalLine:
    shares = [1.0, *(point.share.value for point in cell.curve)]
    left = [cell.runs, *(point.at_risk - point.collapses for point in cell.curve)]
    steps = [0, *(point.step for point in cell.curve)]
    if steps[-1] < cell.last_step:
        steps, shares, left = [*steps, cell.last_step], [*shares, shares[-1]], [*left, left[-1]]
    surviving = tuple(100 * share for share in shares)
    return SurvivalLine(
        cell.variant, display_name(cell.variant), stroke, cell.runs, tuple(steps), surviving, tuple(left)
    )


def draw_panel(panel: SurvivalPanel, ax: Axes) -> None:
    """Draw one model. Coinciding lines are shifted slightly."""
    for order, line in enumerate(panel.lines):
        heights = [height - _APART * order for height in line.surviving]
        style = line.stroke.marked() | {"linewidth": 1.4, "zorder": 3 + order}
        ax.step(line.steps, heights, where="post", **style)
    ax.set_ylim(-6, 104)
    ax.set_ylabel("runs not collapsed (%)")
    ax.set_title(panel.model, loc="left", parse_math=False)
    step_axis(ax)


def draw(info: SurvivalInfo, fig: Figure) -> None:
    """All panels, two in a row, with title and source and a shared legend."""
    columns = min(2, len(info.panels))
    size = (5.4 * columns, 3.3 * -(-len(info.panels) // columns))
    axes = panel_grid(fig, len(info.panels), 2, size, (info.title, info.source), info.keys)
    for panel, ax in zip(info.panels, axes, strict=True):
        draw_panel(panel, ax)
