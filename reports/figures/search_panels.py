"""A figure of a search: panels with a common heading. In files they are side by side under title and source; on a page
each is a separate drawing, so that a narrow page can stack them.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from cppo_lab.analysis.search import SearchResult
from cppo_lab.reports.figures.frame import surround
from cppo_lab.reports.figures.inline import InlineFigure, inline_svg
from cppo_lab.reports.names import origin

PAGE_INCHES = (4.6, 3.3)  # small, so that the text stays legible when a phone scales the drawing
FILE_INCHES = (5.2, 3.9)
IN_ROW = 3


@dataclass(frozen=True)
class SearchPanel:
    """One panel: `caption` describes it, `draw` draws it."""

    caption: str
    draw: Callable[[Axes], None]


@dataclass(frozen=True)
class SearchFigure:
    """One figure; `name` is the stem of its file names. Without panels, `absent` says why there is nothing to draw.

    `data`: its numbers as CSV, in percent; empty if they are columns of `table_trials.csv`.
    """

    name: str
    title: str
    caption: str
    panels: tuple[SearchPanel, ...]
    source: str
    run_ids: tuple[str, ...]
    absent: str = ""
    data: str = ""


def search_figure(
    result: SearchResult,
    name: str,
    title: str,
    caption: str,
    panels: tuple[SearchPanel, ...],
    absent: str = "",
    data: str = "",
) -> SearchFigure:
    """A figure that names the search as its source and the training runs behind it."""
    run_ids = sorted({run_id for trial in result.trials for run_id in trial.run_ids})
    source = f"search {result.study}, model {result.model}; {origin(result.core)}"
    return SearchFigure(f"figure_{name}", title, caption, panels, source, tuple(run_ids), absent, data)


def draw_figure(figure: SearchFigure, fig: Figure) -> None:
    """All panels, with title and source."""
    columns = 2 if len(figure.panels) == 4 else min(IN_ROW, len(figure.panels))
    rows = -(-len(figure.panels) // columns)
    width = max(columns * FILE_INCHES[0], 6.4)
    surround(fig, (width, rows * FILE_INCHES[1]), (figure.title, figure.source), ())
    axes = fig.subplots(rows, columns, squeeze=False)
    for index, ax in enumerate(axes.flat):
        if index < len(figure.panels):
            figure.panels[index].draw(ax)
            ax.set_title(figure.panels[index].caption, loc="left", parse_math=False)
        else:
            ax.remove()


def inline_panels(figure: SearchFigure) -> tuple[InlineFigure, ...]:
    """One drawing for each panel, with its caption as separate text."""
    return tuple(
        InlineFigure(
            panel.caption,
            inline_svg(
                partial(_draw_panel, panel),
                f"{figure.name}{index}",
                PAGE_INCHES,
                f"{figure.title}: {panel.caption}",
            ),
        )
        for index, panel in enumerate(figure.panels)
    )


def _draw_panel(panel: SearchPanel, fig: Figure) -> None:
    panel.draw(fig.subplots())


def legend_below(ax: Axes, columns: int = 3) -> None:
    """Draw the legend of one panel below its axis, if it has labels."""
    if not ax.get_legend_handles_labels()[1]:
        return
    legend = ax.legend(loc="upper center", bbox_to_anchor=(0.5, -0.17), ncols=columns, fontsize=8)
    for entry in legend.get_texts():
        entry.set_parse_math(False)
