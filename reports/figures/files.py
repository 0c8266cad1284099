"""Figures -> bytes: PNG, SVG and PDF without dates, so that the same data gives the same bytes."""

import io
import re
from collections.abc import Callable, Sequence
from datetime import datetime
from html import escape

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from cppo_lab.reports.figures.style import figure_style

PNG_DPI = 150
_NO_DATE: dict[str, dict[str, datetime | None]] = {
    "png": {},
    "svg": {"Date": None},
    "pdf": {"CreationDate": None, "ModDate": None},
}


def render(draw: Callable[[Figure], None], title: str, run_ids: Sequence[str]) -> dict[str, bytes]:
    """The drawing in all three formats; the run ids are in the metadata of each."""
    with figure_style():
        fig = Figure()
        FigureCanvasAgg(fig)
        draw(fig)
        _lay_out_once(fig)
        return {kind: _save(fig, kind, title, run_ids) for kind in ("png", "svg", "pdf")}


def _lay_out_once(fig: Figure) -> None:
    """Computes the layout now, so that saving in several formats neither repeats it nor differs in it."""
    fig.draw_without_rendering()
    fig.set_layout_engine("none")


def _save(fig: Figure, kind: str, title: str, run_ids: Sequence[str]) -> bytes:
    runs = "runs: " + " ".join(run_ids)
    about = {"png": {"Description": runs}, "svg": {"Description": runs}, "pdf": {"Subject": runs}}[kind]
    out = io.BytesIO()
    fig.savefig(out, format=kind, dpi=PNG_DPI, metadata={"Title": title, **about, **_NO_DATE[kind]})
    return out.getvalue()


def inline_svg(draw: Callable[[Figure], None], name: str, width: float, height: float, label: str) -> str:
    """The drawing as an `<svg>` element for a page: text stays text, and every id starts with `name`.

    Several figures on one page would otherwise share ids (clip paths, markers) and show each other's.
    `width`, `height`: inches; the page scales the drawing to the width it has. `label`: what it shows, for
    readers who cannot see it.
    """
    with figure_style(live_text=True):
        fig = Figure(figsize=(width, height), layout="constrained")
        FigureCanvasAgg(fig)
        draw(fig)
        _lay_out_once(fig)
        out = io.StringIO()
        fig.savefig(out, format="svg", transparent=True, metadata={"Date": None})
    svg = out.getvalue()
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r'\bid="([^"]+)"', rf'id="{name}-\1"', svg)
    svg = re.sub(r"url\(#([^)]+)\)", rf"url(#{name}-\1)", svg)
    svg = re.sub(r'xlink:href="#([^"]+)"', rf'xlink:href="#{name}-\1"', svg)
    opening, rest = svg.split(">", 1)
    opening = re.sub(r' (?:width|height)="[^"]*"', "", opening)
    return f'{opening} role="img" aria-label="{escape(label, quote=True)}">{rest}'
