"""What surrounds the panels of a figure: its title, where the numbers come from, and one legend for all
panels.
"""

import textwrap

from matplotlib.figure import Figure
from matplotlib.lines import Line2D

CHARACTERS_PER_INCH = 13  # of the title's and the legend's letters, on the safe side
HANDLE_INCHES = 0.75  # a legend entry's line and the space around it
LINE_INCHES = 0.22


def legend_columns(labels: tuple[str, ...], width: float) -> int:
    """How many legend entries fit side by side into `width` inches."""
    longest = max((len(label) for label in labels), default=0)
    return max(1, min(len(labels), int(width / (longest / CHARACTERS_PER_INCH + HANDLE_INCHES)), 7))


def surround(
    fig: Figure, size: tuple[float, float], texts: tuple[str, ...], legend: tuple[tuple[str, str], ...]
) -> None:
    """Sizes the figure for panels of `size` inches and adds title and source (`texts`; none where a page says
    both beside the drawing) and the legend (label, colour).
    """
    width, height = size
    lines = [line for text in texts for line in textwrap.wrap(text, int(width * CHARACTERS_PER_INCH))]
    labels = tuple(label for label, _ in legend)
    columns = legend_columns(labels, width)
    below = -(-len(labels) // columns)
    extra = 0.2 if lines else 0.05
    fig.set_size_inches(width, height + LINE_INCHES * (len(lines) + below) + extra)
    fig.set_layout_engine("constrained")
    if lines:
        fig.suptitle("\n".join(lines), fontsize=10, parse_math=False)
    if not legend:
        return
    handles = [Line2D([], [], color=colour, linewidth=2.2) for _, colour in legend]
    for text in fig.legend(handles, labels, loc="outside lower center", ncols=columns).get_texts():
        text.set_parse_math(False)
