"""Figures -> bytes: PNG, SVG and PDF without dates, so that the same data gives the same bytes."""

import io
from collections.abc import Callable, Sequence
from datetime import datetime

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from cppo_lab.reports.figures.style import figure_style

PNG_DPI = 150
_NO_DATE: dict[str, dict[str, datetime | None]] = {
    "png": {},
    "svg": {"Date": None},
    "pdf": {"CreationDate": None, "ModDate": None},
}


def render(
    draw: Callable[[Figure], None], title: str, run_ids: Sequence[str], command: str = ""
) -> dict[str, bytes]:
    """The drawing in all three formats; the run ids and the command that made it are in the metadata of each."""
    runs = "runs: " + " ".join(run_ids)
    made = f"made by: {command}" if command else "made by: cppo report"
    with figure_style():
        fig = Figure()
        FigureCanvasAgg(fig)
        draw(fig)
        lay_out_once(fig)
        return {kind: _save(fig, kind, title, made, runs) for kind in ("png", "svg", "pdf")}


def lay_out_once(fig: Figure) -> None:
    """Computes the layout now, so that saving in several formats neither repeats it nor differs in it."""
    fig.draw_without_rendering()
    fig.set_layout_engine("none")


def _save(fig: Figure, kind: str, title: str, made: str, runs: str) -> bytes:
    fields: dict[str, object] = {
        "png": {"Description": made, "Comment": runs},
        "svg": {"Description": made, "Keywords": [runs]},
        "pdf": {"Subject": made, "Keywords": runs},
    }[kind]
    out = io.BytesIO()
    fig.savefig(out, format=kind, dpi=PNG_DPI, metadata={"Title": title, **fields, **_NO_DATE[kind]})
    return out.getvalue()
