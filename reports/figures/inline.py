"""Drawings as `<svg>` elements for a page, one per panel, so that a narrow page can stack them."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from html import escape

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from cppo_lab.reports.dark_drawings import adaptable
from cppo_lab.reports.figures import axes, curves, diagnostics, survival
from cppo_lab.reports.figures.files import lay_out_once
from cppo_lab.reports.figures.saving import make_transparent, save
from cppo_lab.reports.figures.style import figure_style

CURVE_INCHES = (4.4, 3.0)  # small, so that the text stays legible when a phone scales the drawing
AXES_INCHES = (5.6, 3.0)
DIAGNOSTIC_INCHES = (3.8, 2.4)


@dataclass(frozen=True)
class InlineFigure:
    """A drawing on the page. `svg` is our own markup; `caption` is plain text."""

    caption: str
    svg: str


def inline_curves(info: curves.CurvesInfo) -> tuple[InlineFigure, ...]:
    """One drawing for each model."""
    figures = []
    for index, panel in enumerate(info.panels):
        caption = panel.model + ("" if panel.t_stop is None else f" (T_stop = {panel.t_stop})")
        draw = partial(_draw_curves, panel, info.y_label)
        label = f"Validation curves of {panel.model}"
        figures.append(InlineFigure(caption, inline_svg(draw, f"curves{index}", CURVE_INCHES, label)))
    return tuple(figures)


def inline_axes(info: axes.AxesInfo) -> tuple[InlineFigure, ...]:
    """One drawing for each model (on a surface, for each group); the first has the legend."""
    figures = []
    for index, panel in enumerate(info.panels):
        draw, title = partial(_draw_axes, info, panel), axes.panel_title(panel)
        size = AXES_INCHES if not info.surface else (AXES_INCHES[0], 3.4)
        svg = inline_svg(draw, f"axes{index}", size, f"Score by setting, {title}", scale=info.surface)
        figures.append(InlineFigure(title, svg))
    return tuple(figures)


def inline_diagnostics(
    info: diagnostics.DiagnosticsInfo,
) -> tuple[tuple[str, tuple[InlineFigure, ...]], ...]:
    """(model, one drawing for each metric of the model)."""
    blocks = []
    for row, model in enumerate(info.models):
        figures = []
        for column, panel in enumerate(p for p in info.panels if p.model == model and p.traces):
            draw, label = partial(_draw_diagnostic, panel), f"{panel.label}, {model}"
            svg = inline_svg(draw, f"diagnostics{row}-{column}", DIAGNOSTIC_INCHES, label)
            figures.append(InlineFigure(panel.label, svg))
        blocks.append((model, tuple(figures)))
    return tuple(blocks)


def inline_survival(info: survival.SurvivalInfo) -> tuple[InlineFigure, ...]:
    """One drawing for each model on which a run collapsed."""
    figures = []
    for index, panel in enumerate(info.panels):
        draw, label = partial(_draw_survival, panel), f"Runs of {panel.model} that have not collapsed"
        figures.append(
            InlineFigure(panel.model, inline_svg(draw, f"survival{index}", DIAGNOSTIC_INCHES, label))
        )
    return tuple(figures)


def _draw_survival(panel: survival.SurvivalPanel, fig: Figure) -> None:
    survival.draw_panel(panel, fig.subplots(), titled=False)


def _draw_curves(panel: curves.Panel, y_label: str, fig: Figure) -> None:
    curves.draw_panel(panel, fig.subplots(), y_label, titled=False)


def _draw_axes(info: axes.AxesInfo, panel: axes.AxisPanel, fig: Figure) -> None:
    axes.draw_panel(info, panel, fig.subplots(), titled=False)


def _draw_diagnostic(panel: diagnostics.DiagnosticPanel, fig: Figure) -> None:
    diagnostics.draw_panel(panel, fig.subplots(), "")


def inline_svg(
    draw: Callable[[Figure], None], name: str, size: tuple[float, float], label: str, scale: bool = False
) -> str:
    """The drawing as an `<svg>` element for a page: text stays text, and every id starts with `name`.

    Without a prefix, figures on one page would share ids (clip paths, markers) and use each other's. `size`: width and
    height in inches; the page scales the drawing to the available width. `label`: its description for screen readers.
    `scale`: its colours encode numbers, so the dark scheme does not change them.
    """
    with figure_style(live_text=True):
        fig = Figure(figsize=size, layout="constrained")
        FigureCanvasAgg(fig)
        draw(fig)
        lay_out_once(fig)
        make_transparent(fig)
        svg = save(fig, "svg", fig.dpi, {"Date": None}).decode()
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r'\bid="([^"]+)"', rf'id="{name}-\1"', svg)
    svg = re.sub(r"url\(#([^)]+)\)", rf"url(#{name}-\1)", svg)
    svg = re.sub(r'xlink:href="#([^"]+)"', rf'xlink:href="#{name}-\1"', svg)
    opening, rest = svg.split(">", 1)
    opening = re.sub(r' (?:width|height)="[^"]*"', "", opening)
    text = f'{opening} role="img" aria-label="{escape(label, quote=True)}">{rest}'
    return adaptable(text, scale)
