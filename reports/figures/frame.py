"""The frame of a figure: its title, the origin of its numbers, one legend for all panels, and the axis of training
steps.
"""

import textwrap
from collections.abc import Iterable, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.legend import Legend
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from cppo_lab.analysis.statistics.bands import INTERVAL, RANGE
from cppo_lab.reports.figures.palette import Key

CHARACTERS_PER_INCH = 13  # of title and legend, a conservative estimate
HANDLE_INCHES = 0.75  # a legend entry's line and the space around it
LINE_INCHES = 0.22


def above(title: str, source: str, bands: Iterable[str]) -> tuple[str, ...]:
    """The text above a stand-alone figure: title, source, and an explanation of its kinds of `bands`."""
    words = {
        INTERVAL: "the pointwise 95 % interval of the mean over seeds",
        RANGE: "the range of two seeds",
    }
    kinds = set(bands)
    explained = " or ".join(text for kind, text in words.items() if kind in kinds)
    return (title, source, *([f"bands: {explained}"] if explained else []))


def legend_columns(labels: tuple[str, ...], width: float) -> int:
    """The number of legend entries that fit side by side into `width` inches."""
    longest = max((len(label) for label in labels), default=0)
    return max(1, min(len(labels), int(width / (longest / CHARACTERS_PER_INCH + HANDLE_INCHES)), 7))


def surround(fig: Figure, size: tuple[float, float], texts: tuple[str, ...], legend: tuple[Key, ...]) -> None:
    """Size the figure for panels of `size` inches, and add the legend and `texts` (title and source; empty if a page
    shows them next to the drawing).
    """
    width, height = size
    lines = [line for text in texts for line in textwrap.wrap(text, int(width * CHARACTERS_PER_INCH))]
    columns = legend_columns(tuple(key.label for key in legend), width)
    below = -(-len(legend) // columns)
    extra = 0.2 if lines else 0.05
    fig.set_size_inches(width, height + LINE_INCHES * (len(lines) + below) + extra)
    fig.set_layout_engine("constrained")
    if lines:
        fig.suptitle("\n".join(lines), fontsize=10, parse_math=False)
    if legend:
        as_they_are(
            fig.legend(
                *handles_and_labels(legend),
                loc="outside lower center",
                ncols=columns,
                handlelength=handle_length(legend),
            )
        )


def handles_and_labels(keys: Sequence[Key]) -> tuple[list[Line2D], list[str]]:
    """The handles and labels of a legend of `keys`."""
    return [key.handle for key in keys], [key.label for key in keys]


def handle_length(keys: Sequence[Key]) -> float:
    """The length of the legend's lines in font sizes; dashed lines need more room."""
    return 4.5 if any(key.stroke.dash for key in keys) else 2.2


def as_they_are(legend: Legend) -> None:
    """Show names literally, including dollar signs."""
    for text in legend.get_texts():
        text.set_parse_math(False)


def step_axis(ax: Axes) -> None:
    """Set the x axis to training steps, from 0 to the last one drawn."""
    ax.set_xlabel("training step")
    ax.xaxis.set_major_locator(MaxNLocator("auto", steps=[1, 2, 5, 10], integer=True))
    last = max(float(ax.dataLim.x1), 1.0)
    ax.set_xlim(-0.02 * last, 1.02 * last)
