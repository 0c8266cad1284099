"""Saves a laid-out figure as the bytes of one format.

`Figure.savefig` draws a figure that ever had a layout engine twice, first for a layout that is then unused. Drawing
dominates the time of a report, so the canvases are called directly here.
"""

import io
from collections.abc import Mapping
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.backends.backend_pdf import FigureCanvasPdf
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure


def save(fig: Figure, kind: str, dpi: float, metadata: Mapping[str, Any]) -> bytes:
    """The figure as "png", "svg" or "pdf"; `dpi` applies to PNG only. `metadata` as in `Figure.savefig`."""
    out = io.BytesIO()
    fig.dpi = dpi  # the vector formats change it
    if kind == "png":
        FigureCanvasAgg(fig).print_png(out, metadata=dict(metadata))
    elif kind == "svg":
        FigureCanvasSVG(fig).print_svg(out, metadata=dict(metadata))
    else:
        FigureCanvasPdf(fig).print_pdf(out, metadata=dict(metadata))
    return out.getvalue()


def make_transparent(fig: Figure) -> None:
    """Remove the backgrounds of the figure and its axes, for a page with its own background."""
    for patch in (fig.patch, *(axes.patch for axes in fig.axes)):
        patch.set(facecolor="none", edgecolor="none")
