"""Renders figures as PNG, SVG and PDF without dates, so that the same data gives the same bytes."""

from collections.abc import Callable, Sequence
from datetime import datetime

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from cppo_lab.reports.figures.saving import save
from cppo_lab.reports.figures.style import figure_style

KINDS = ("png", "svg", "pdf")
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
        return {kind: _save(fig, kind, title, made, runs) for kind in KINDS}


def lay_out_once(fig: Figure) -> None:
    """Compute the layout now, so that saving in several formats neither repeats it nor changes it.

    `Figure.draw_without_rendering` would also draw everything once.
    """
    engine = fig.get_layout_engine()
    if engine is not None:
        engine.execute(fig)
    fig.set_layout_engine("none")
    for axes in fig.axes:
        titles = [axes.get_title(where) for where in ("left", "center", "right")]
        if any(titles) and axes.title.get_position()[1] == 1.0:
            # Nothing above the panel pushed its title up. Whether something does is a question that costs the sizes of
            # all tick labels each time; matplotlib has no public switch that keeps the titles' padding.
            vars(axes)["_autotitlepos"] = False


def _save(fig: Figure, kind: str, title: str, made: str, runs: str) -> bytes:
    formats: dict[str, dict[str, object]] = {
        "png": {"Description": made, "Comment": runs},
        "svg": {"Description": made, "Keywords": [runs]},
        "pdf": {"Subject": made, "Keywords": runs},
    }
    return save(fig, kind, PNG_DPI, {"Title": title, **formats[kind], **_NO_DATE[kind]})
