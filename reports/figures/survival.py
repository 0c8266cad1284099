"""The share of runs that have not collapsed, over training steps, with one panel per model with a collapse."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from cppo_lab.analysis.scoring import Scoreboard
from cppo_lab.analysis.statistics.collapse import CellCollapse
from cppo_lab.reports.figures.data import APPEARANCE, Info
from cppo_lab.reports.figures.drawing import panel_grid, step_axis
from cppo_lab.reports.figures.palette import PALETTES, PAPER, Key, keys_of
from cppo_lab.reports.figures.validation import drawn_variants, source_of
from cppo_lab.reports.names import display_name
from cppo_lab.reports.tables import run_ids_of
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
class SurvivalInfo(Info):
    """Everything the figure shows."""

    panels: tuple[SurvivalPanel, ...]
    keys: tuple[Key, ...]


def survival_info(
    board: Scoreboard, cells: Sequence[CellCollapse], title: str, palette: str = PAPER
) -> SurvivalInfo | None:
    """The figure of a scored sweep; None if no run collapsed."""
    strokes = PALETTES[palette].strokes(drawn_variants(board))
    of_cell = {(cell.model, cell.variant): cell for cell in cells}
    panels = []
    for model in board.models:
        of_model = [of_cell[model, name] for name in strokes if (model, name) in of_cell]
        if not any(cell.collapsed for cell in of_model):
            continue
        lines = []
        for cell in of_model:
            points = [(0, 1.0, cell.runs)]
            points += [(each.step, each.share.value, each.at_risk - each.collapses) for each in cell.curve]
            if points[-1][0] < cell.last_step:
                points.append((cell.last_step, *points[-1][1:]))
            steps, shares, at_risk = zip(*points, strict=True)
            about = (cell.variant, display_name(cell.variant), strokes[cell.variant], cell.runs)
            lines.append(SurvivalLine(*about, steps, tuple(100 * share for share in shares), at_risk))
        panels.append(SurvivalPanel(model, tuple(lines)))
    if not panels:
        return None
    keys = keys_of(strokes, {line.variant for panel in panels for line in panel.lines})
    return SurvivalInfo(title, source_of(board), run_ids_of(board.runs), tuple(panels), keys)


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
    axes = panel_grid(fig, len(info.panels), 2, (5.4, 3.3), (info.title, info.source), info.keys)
    for panel, ax in zip(info.panels, axes, strict=True):
        draw_panel(panel, ax)
