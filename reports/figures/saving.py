"""A figure that is laid out -> the bytes of one format.

`Figure.savefig` draws a figure that ever had a layout engine twice, the first time for a layout that it then does not
use. Most of the time of a report is drawing, so the canvases are called directly here.
"""

import io
from collections.abc import Mapping
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.backends.backend_pdf import FigureCanvasPdf
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure


def save(fig: Figure, kind: str, dpi: float, metadata: Mapping[str, Any]) -> bytes:
    """The figure as "png", "svg" or "pdf"; `dpi` counts for pixels alone. `metadata` as in `Figure.savefig`."""
    out = io.BytesIO()
    fig.dpi = dpi  # the vector formats leave their own behind
    if kind == "png":
        FigureCanvasAgg(fig).print_png(out, metadata=dict(metadata))
    elif kind == "svg":
        FigureCanvasSVG(fig).print_svg(out, metadata=dict(metadata))
    else:
        FigureCanvasPdf(fig).print_pdf(out, metadata=dict(metadata))
    return out.getvalue()


def make_transparent(fig: Figure) -> None:
    """Leave out the backgrounds of the figure and its axes, for a page that has one of its own."""
    for patch in (fig.patch, *(axes.patch for axes in fig.axes)):
        patch.set(facecolor="none", edgecolor="none")
