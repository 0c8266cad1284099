"""A figure of a report: what it shows, its frame, its drawing as SVG (also on the page), PNG and PDF, and its numbers
as CSV. And the palettes: the paper's colours, or colours, dashes and markers that are distinguishable for colour-blind
readers and in black-and-white print.

Files have no dates and no random names, so that the same data gives the same bytes.
"""

import io
import re
import textwrap
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, fields, is_dataclass
from functools import cached_property
from html import escape
from types import MappingProxyType, NoneType
from typing import Any

import numpy as np
from matplotlib import style as styles
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure, SubFigure
from matplotlib.font_manager import fontManager
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from cppo_lab.analysis.statistics.estimate import INTERVAL, RANGE
from cppo_lab.errors import UserError, printable, say
from cppo_lab.reports.names import csv_text, display_name
from cppo_lab.rules import (
    BLACK,
    DASH_DOT,
    DASH_DOTS,
    DOTS,
    GREEN,
    LONG_SHORT,
    ORANGE,
    OTHERS,
    PURPLE,
    SHORT,
    SKY,
    VERMILLION,
    Stroke,
    Variant,
    assigned,
    known,
)

HEAT_MAP = "viridis"  # light is high: readable in greyscale and with colour-vision deficiency


# The colours of drawings on a dark page: hues stay and get lighter, greys are inverted. Others are legible as they are,
# as colour scales are.
DARK: Mapping[str, str] = {
    "#000000": "#e4e4e4", "#0052d9": "#5d95fc", "#0072b2": "#45a0e3", "#009e73": "#2db185",
    "#00a3a1": "#20adab", "#111111": "#dddddd", "#17699b": "#55a0d5", "#1fa2c4": "#29a8ca",
    "#222222": "#d6d6d6", "#282828": "#d3d3d3", "#2e8b57": "#54ae77", "#555555": "#b7b7b7",
    "#59a14f": "#65ad5a", "#5c6b73": "#9cacb5", "#777777": "#9d9d9d", "#7b4fb5": "#a97ee9",
    "#888888": "#8f8f8f", "#8a1c1c": "#e47067", "#8a5a00": "#c08d46", "#8c8c00": "#9e9f27",
    "#999999": "#7f7f7f", "#9c755f": "#b78e78", "#b07aa1": "#bb84ab", "#b4bac2": "#5c6269",
    "#b5651d": "#d4813f", "#c8384a": "#f3606c", "#d3d9e0": "#3f4349", "#d55e00": "#ea7126",
    "#e0352b": "#ff5546", "#e05759": "#ef6566", "#e4e4e4": "#373737", "#f3d9dc": "#493537",
    "#ffffff": "#181d23",
}  # fmt: skip


@dataclass(frozen=True)
class Palette:
    """`stroke_of`: returns a record's stroke in this palette, so that a variant looks the same in every panel.
    `others`: strokes for all other variants. `reasons`: colours by a token's fate in Figures 1 and 3; `hatches`: the
    matching hatches.
    """

    stroke_of: Callable[[Variant], Stroke | None]
    others: Sequence[Stroke]
    reasons: Mapping[str, str]
    hatches: Mapping[str, str]

    def bar(self, kind: str, label: str) -> Patch:
        """The legend handle of the bars of tokens with this fate."""
        return Patch(facecolor=self.reasons[kind], hatch=self.hatches.get(kind, ""), label=label)

    def bars(self, kinds: Sequence[str]) -> dict[str, Any]:
        """The style of bars of tokens with these fates."""
        hatches = [self.hatches.get(kind, "") for kind in kinds]
        return {"color": [self.reasons[kind] for kind in kinds], "hatch": hatches, "zorder": 2}

    def strokes(
        self, variants: Sequence[str], aliases: Mapping[str, str] = MappingProxyType({})
    ) -> dict[str, Stroke]:
        """A stroke for each variant: its own, or else the next free stroke in the given order.

        `aliases`: variant -> the variant that it duplicates under another name.
        """
        records = {name: known(aliases.get(name, name)) for name in variants}
        strokes = {
            name: None if record is None else self.stroke_of(record) for name, record in records.items()
        }
        return assigned(strokes, self.others)


PAPER = Palette(
    stroke_of=lambda variant: variant.stroke,
    others=OTHERS,
    reasons={
        "token": "#C8384A",
        "prefix": "#F0A030",
        "response": "#A58BC4",
        "away": "#7FA6DC",
        "toward": "#D3D9E0",
    },
    hatches={},
)

COLORBLIND = Palette(
    stroke_of=lambda variant: variant.accessible,
    others=tuple(
        Stroke(
            (GREEN, PURPLE, BLACK, SKY, ORANGE)[index % 5],
            (SHORT, DASH_DOT, DOTS, DASH_DOTS, LONG_SHORT, (2.0, 3.0))[index % 6],
            (">", "p", "h", "<", "D", "P", "^")[index % 7],
        )
        for index in range(30)
    ),
    reasons={
        "token": VERMILLION,
        "prefix": "#F0E442",
        "response": PURPLE,
        "away": SKY,
        "toward": "#D3D9E0",
    },
    hatches={"token": "////", "prefix": "....", "response": "xxxx"},
)

PALETTES: Mapping[str, Palette] = {"paper": PAPER, "colorblind": COLORBLIND}


_PNG_DPI = 150
_CHARACTERS_PER_INCH = 13  # of title and legend, a conservative estimate
_HANDLE_INCHES = 0.75  # a legend entry's line and the space around it
LINE_INCHES = 0.22
_HEAD = "head"  # the id of the text above a figure, which a page has beside the drawing
_POINTS = 72.0  # per inch: the unit of SVG
_RC: Mapping[str, Any] = {
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "#555555",
    "axes.linewidth": 0.8,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#E4E4E4",
    "grid.linewidth": 0.6,
    "text.color": "#222222",
    "axes.labelcolor": "#222222",
    "axes.titlecolor": "#222222",
    "xtick.color": "#555555",
    "ytick.color": "#555555",
    "xtick.labelcolor": "#222222",
    "ytick.labelcolor": "#222222",
    "legend.frameon": False,
    "lines.linewidth": 1.4,
    "lines.solid_capstyle": "round",
    "figure.facecolor": "white",
    "savefig.facecolor": "white",
    "path.simplify": True,
    # Deterministic files: SVG ids are hashes of the content with this salt instead of random ones.
    "svg.hashsalt": "cppo-lab",
    "svg.fonttype": "none",  # text stays text, on the page and for an editor
    "pdf.compression": 6,
}
_USUAL_SIZE = 9.0  # points, for which the inches below and the sizes in `sized` are chosen
_LEAST_PANEL = (2.6, 1.6)  # inches of a panel: narrower ones are stacked
# The fonts of a family by its usual name, all of them part of matplotlib; the last has nearly every character.
_FONTS: Mapping[str, tuple[str, ...]] = {
    "sans": ("DejaVu Sans",),
    "serif": ("STIXGeneral", "DejaVu Serif"),
}


@dataclass(frozen=True)
class Style:
    """How the figures of a report are set: their `width` in inches (None: each its own), `font` (sans, serif or an
    installed family) and the `size` of usual text in points.
    """

    width: float | None = None
    font: str = "sans"
    size: float = _USUAL_SIZE


USUAL_STYLE = Style()
_STYLE: ContextVar[Style] = ContextVar("style", default=USUAL_STYLE)


def parse_style(text: str) -> Style:
    """The style of `--figures width=3.3in,font=serif,size=8pt`, any of the three.

    Raises UserError for anything else.
    """
    values: dict[str, Any] = {}
    for part in map(str.strip, text.split(",")):
        key, equals, value = (word.strip() for word in part.partition("="))
        if not equals or key not in (*_QUANTITIES, "font") or key in values:
            why = "stated twice" if key in values else "not a setting of figures"
            raise UserError(f"--figures {part!r}: {why}; valid: width=3.3in, font=serif, size=8pt")
        if key == "font":
            if value not in _FONTS and value not in fontManager.get_font_names():
                raise UserError(
                    f"--figures {part!r}: no such font here; valid: sans, serif, or an installed family"
                )
            values[key] = value
            continue
        units, (low, high), unit, what = _QUANTITIES[key]
        match = re.fullmatch(rf"(\d+\.?\d*|\.\d+)\s*({'|'.join(units)})", value, flags=re.ASCII)
        values[key] = float(match[1]) * units[match[2]] if match else 0.0
        if not low <= values[key] <= high:
            raise UserError(f"--figures {part!r}: {what}, from {low:g}{unit} to {high:g}{unit}")
    return Style(**values)


_QUANTITIES = {  # the sizes of its units, limits, the unit of these, and what it is
    "width": (
        {"in": 1.0, "cm": 1 / 2.54, "mm": 1 / 25.4, "pt": 1 / 72.27},
        (2.0, 40.0),
        "in",
        "a width is a number with in, cm, mm or pt, such as 3.3in",
    ),
    "size": ({"": 1.0, "pt": 1.0}, (5.0, 24.0), "pt", "a size is a number of points, such as 8pt"),
}


def sized(points: float) -> float:
    """A font size that is `points` where usual text has its usual size."""
    return points * (_STYLE.get().size / _USUAL_SIZE)  # exactly `points` for the usual size


# The metadata of a field that the CSV leaves out, as it leaves out strokes and palettes: looks, or run ids, which
# are in runs.csv; and of a text about the whole figure, which it has once and not in every row.
APPEARANCE = {"kind": "appearance"}
HEADING = {"kind": "heading"}


@dataclass(frozen=True)
class Info:
    """What every figure shows: its title, and where its numbers come from; and the runs behind it."""

    title: str = field(metadata=HEADING)
    source: str = field(metadata=HEADING)
    run_ids: tuple[str, ...] = field(metadata=APPEARANCE)

    @property
    def heads(self) -> tuple[str, ...]:
        """The text above it: title, source, and an explanation of the bands of its lines."""
        bands = bands_of(self)
        return (self.title, self.source, *([f"bands: {bands}"] if bands else []))


@dataclass(frozen=True)
class Key:
    """An entry of a legend."""

    label: str
    stroke: Stroke


@dataclass(frozen=True)
class PanelsInfo(Info):
    """A figure of panels with a common legend."""

    panels: tuple[Any, ...] = ()
    keys: tuple[Key, ...] = ()
    y_label: str | None = None


@dataclass(frozen=True)
class Absent:
    """Why a figure cannot be drawn."""

    reason: str


@dataclass(frozen=True)
class Picture:
    """One figure: `name` is the stem of its file names; `label` ("Figure 4" or empty), `title` and `caption` are texts.

    `info`: all that it shows, with its `title`, `source` and `run_ids`, or why it cannot be drawn. `draw` draws it on
    the figure that it is given, or returns another library's figure.
    """

    name: str
    label: str
    title: str
    caption: str
    info: Any
    draw: Callable[[Any, Figure], Figure | None]

    @classmethod
    def of(
        cls, name: str, info: Info, draw: Callable[[Any, Figure], Figure | None], caption: str = ""
    ) -> "Picture":
        """A figure without a label, under the title of its `info`; without a caption, it says what its bands are."""
        if not caption and (bands := bands_of(info)):
            caption = f"Bands: {bands}."
        return cls(f"figure_{name}", "", info.title, caption, info, draw)

    @property
    def heading(self) -> str:
        """`Figure 4. Validation curves`; without a label, the title."""
        return f"{self.label}. {self.title}" if self.label else self.title

    @property
    def absent(self) -> str:
        """Why it cannot be drawn; empty if it can."""
        return self.info.reason if isinstance(self.info, Absent) else ""

    @property
    def explained(self) -> str:
        """The caption with where the numbers come from; empty if it cannot be drawn."""
        return "" if self.absent else f"{self.caption} Source: {self.info.source}.".strip()


@dataclass(frozen=True)
class Drawn:
    """A figure with its `files` by name, of which an absent one has none. `head`: height in points of the text above
    it; `curves`: the labelled lines of each panel with linear axes, for the page's script: names, colours and points,
    and where the panel is.
    """

    picture: Picture
    files: Mapping[str, bytes] = field(default_factory=dict)
    head: float = 0.0
    curves: Sequence[Mapping[str, Any]] = ()

    @property
    def svg(self) -> str:
        """The drawing."""
        return self.files[f"{self.picture.name}.svg"].decode()

    @cached_property
    def inline(self) -> str:
        """The SVG as an element of a page: without its head, with unique ids, and with colours as variables."""
        name, shown = self.picture.name, re.sub(r"(?s)<metadata>.*?</metadata>", "", self.svg)
        opening, body = shown.split("<svg", 1)[1].split(">", 1)
        body = re.sub(r'(\bid="|url\(#|xlink:href="#)', rf"\g<1>{name}-", body)
        body = re.sub(
            r"#([0-9a-f]{6})(?=[;\"])",
            lambda match: f"var(--k{match[1]}, {match[0]})" if match[0] in DARK else match[0],
            body,
        )
        width, height = map(float, re.findall(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', opening)[0])
        box = f'viewBox="0 {self.head:g} {width:g} {height - self.head:g}"'
        label = escape(self.picture.heading, quote=True)
        return f'<svg {box} style="--w:{width:.0f}" role="img" aria-label="{label}">{body.strip()}'


def dark_style() -> str:
    """The style sheet with the dark colours of all drawings; for screens only."""
    values = "".join(f"--k{light[1:]}:{dark};" for light, dark in DARK.items())
    wanted, asked = ':root:not([data-scheme="light"]) .card', ':root[data-scheme="dark"] .card'
    return (
        f"@media screen and (prefers-color-scheme: dark) {{ {wanted} {{ {values} }} }}\n"
        f"@media screen {{ {asked} {{ {values} }} }}"
    )


@contextmanager
def figure_style(style: Style = USUAL_STYLE) -> Iterator[None]:
    """Apply the figures' settings inside the block, independent of the user's matplotlib settings."""
    before, generic = _STYLE.set(style), "serif" if style.font == "serif" else "sans-serif"
    settings = {
        **_RC,
        "font.size": style.size,
        "axes.labelsize": style.size,
        "legend.fontsize": style.size,
        "axes.titlesize": style.size + 1,
        "font.family": [generic],
        f"font.{generic}": [*_FONTS.get(style.font, (style.font, *_FONTS["sans"]))],
        "mathtext.fontset": "stix" if generic == "serif" else "dejavusans",
    }
    try:
        with styles.context(["default", settings]):
            yield
    finally:
        _STYLE.reset(before)


@contextmanager
def _glyphs_named(figure: str) -> Iterator[None]:
    """Names characters that the block cannot draw in a line on standard error, in place of a warning for each."""
    with warnings.catch_warnings(record=True) as warned:
        yield
    missing = set()
    for warning in warned:
        if glyph := re.match(r"Glyph (\d+)", str(warning.message)):
            missing.add(chr(int(glyph[1])))
        else:
            warnings.warn(warning.message, stacklevel=2)
    if missing:
        shown = printable("".join(sorted(missing)[:20]))
        say(
            f"cppo: {figure}: its font has no {shown}, boxes in PNG and PDF: --figures font=FAMILY names another"
        )


def render(picture: Picture, command: str = "cppo report", style: Style = USUAL_STYLE) -> Drawn:
    """Draw a picture once. The run ids and the command that made it are in the metadata of each file."""
    if picture.absent:
        return Drawn(picture)
    title = f"{picture.heading} ({picture.info.source})"
    runs = "runs: " + " ".join(picture.info.run_ids)
    made = f"made by: {command}"
    metadata: dict[str, dict[str, Any]] = {
        "svg": {"Description": made, "Keywords": [runs], "Date": None},
        "png": {"Description": made, "Comment": runs},
        "pdf": {"Subject": made, "Keywords": runs, "CreationDate": None, "ModDate": None},
    }
    files = {f"{picture.name}.csv": figure_csv(picture.info).encode()}
    with figure_style(style), _glyphs_named(picture.name):
        fig = Figure()
        FigureCanvasAgg(fig)
        fig = picture.draw(picture.info, fig) or fig
        # Laid out now, so that saving in several formats neither repeats it nor changes it;
        # `Figure.draw_without_rendering` would also draw everything once, as saving does with any engine, even "none".
        if (engine := fig.get_layout_engine()) is not None:
            engine.execute(fig)
        fig.set_layout_engine(None)
        heads = [text.get_window_extent() for text in fig.texts if text.get_gid() == _HEAD]
        head = round(float(fig.bbox.y1 - heads[0].y0) / fig.dpi * _POINTS, 1) if heads else 0.0
        scale, curves = _POINTS / fig.dpi, []
        for ax in fig.axes:
            lines = [line for line in ax.lines if not str(line.get_label()).startswith("_")]
            if not lines or {ax.get_xscale(), ax.get_yscale()} != {"linear"}:
                continue
            of_lines = []
            for line in lines:
                places = np.asarray(line.get_xydata(), dtype=float)
                columns = zip("xy", places[np.isfinite(places).all(axis=1)].T, strict=True)
                points = {name: [float(f"{value:.6g}") for value in column] for name, column in columns}
                of_lines.append({"name": line.get_label(), **points})
            box = [ax.bbox.x0, fig.bbox.height - ax.bbox.y1, ax.bbox.width, ax.bbox.height]
            panel = {
                "box": [round(scale * float(side), 1) for side in box],
                "x": [*map(float, ax.get_xlim())],
                "y": [*map(float, ax.get_ylim())],
                "what": ax.get_xlabel(),
                "lines": of_lines,
            }
            curves.append(panel)
        for kind, words in metadata.items():
            out = io.BytesIO()
            fig.savefig(out, format=kind, metadata={"Title": title, **words}, dpi=_PNG_DPI)
            files[f"{picture.name}.{kind}"] = out.getvalue()
    return Drawn(picture, files, head, curves)


def bands_of(info: Info) -> str:
    """What the bands of a figure's lines are; empty if it has none."""
    words = {
        INTERVAL: "the pointwise 95 % interval of the mean over seeds",
        RANGE: "the range of two seeds",
    }
    kinds = {names.get("band") for _, names, _ in _series(info, {})}
    return " or ".join(text for kind, text in words.items() if kind in kinds)


def keys_of(strokes: Mapping[str, Stroke], drawn: Collection[str]) -> tuple[Key, ...]:
    """The legend of those variants that are `drawn`, in the order of their strokes."""
    return tuple(Key(display_name(name), stroke) for name, stroke in strokes.items() if name in drawn)


def legend_columns(labels: tuple[str, ...], width: float) -> int:
    """The number of legend entries that fit side by side into `width` inches."""
    longest = max((len(label) for label in labels), default=0)
    return max(1, min(len(labels), int(width / sized(longest / _CHARACTERS_PER_INCH + _HANDLE_INCHES)), 7))


def surround(
    fig: Figure, size: tuple[float, float], texts: tuple[str, ...], legend: tuple[Key, ...] = ()
) -> None:
    """Size the figure for panels of `size` inches, and add the legend and `texts` (title and source).

    A style's width replaces that of `size`; narrow panels are then lower, too, but not in proportion: text has its own
    size.
    """
    width, height = size
    if (wanted := _STYLE.get().width) is not None:
        width, height = wanted, height * min(1.0, wanted / width) ** 0.5
    characters = int(width * _CHARACTERS_PER_INCH / sized(1))
    lines = [line for text in texts for line in textwrap.wrap(text, characters)]
    columns = legend_columns(tuple(key.label for key in legend), width)
    below = -(-len(legend) // columns)
    fig.set_size_inches(width, height + sized(LINE_INCHES * (len(lines) + below)) + sized(0.2))
    fig.set_layout_engine("constrained")
    fig.suptitle("\n".join(lines), fontsize=sized(10), parse_math=False, gid=_HEAD)
    if legend:
        key_legend(fig, legend, loc="outside lower center", ncols=columns)


def panel_grid(
    fig: Figure, info: PanelsInfo, in_row: int, size: tuple[float, float]
) -> Iterator[tuple[Any, Axes]]:
    """Each panel of `info` with its axes of `size` inches, at most `in_row` in a row and as many as fit a style's
    width, with its head and its legend.
    """
    count, (wide, tall) = len(info.panels), size
    columns = min(in_row, count)
    if (wanted := _STYLE.get().width) is not None:
        columns = max(1, min(columns, int(wanted / sized(_LEAST_PANEL[0]))))
        tall = max(tall * min(1.0, wanted / columns / wide), sized(_LEAST_PANEL[1]))
        wide = wanted / columns
    rows = -(-count // columns)
    surround(fig, (wide * columns, tall * rows), info.heads, info.keys)
    axes = fig.subplots(rows, columns, squeeze=False)
    for ax in axes.flat[count:]:
        ax.remove()
    return zip(info.panels, axes.flat[:count], strict=True)


def key_legend(place: Figure | SubFigure | Axes, keys: Sequence[Key], **settings: Any) -> None:
    """The legend of `keys`; dashed lines need more room."""
    length = 4.5 if any(key.stroke.dash for key in keys) else 2.2
    handles = []
    for key in keys:
        look = key.stroke.marked() | {"linewidth": 1.6 if key.stroke.dash else 2.2}
        look.pop("markevery", None)
        handles.append(Line2D([], [], **look))
    legend = place.legend(handles, [key.label for key in keys], handlelength=length, **settings)
    for text in legend.get_texts():  # as they are, including dollar signs
        text.set_parse_math(False)


def show_text(ax: Axes, text: str, **settings: Any) -> None:
    """A panel that has this text in place of curves."""
    ax.set_axis_off()
    ax.text(0.5, 0.5, text, ha="center", va="center", color="#777777", parse_math=False, **settings)


def fill(ax: Axes, line: Any, steps: Sequence[float] | None = None) -> None:
    """The band, if any, of a line that has `low`, `high` and a `stroke`."""
    if line.band:
        x = line.steps if steps is None else steps
        ax.fill_between(x, line.low, line.high, color=line.stroke.colour, alpha=0.12, linewidth=0, zorder=2)


def legend_below(ax: Axes, columns: int = 3, height: float = -0.17) -> None:
    """Draw the legend of a panel below its axis, if it has labels."""
    if ax.get_legend_handles_labels()[1]:
        place = (0.5, height)
        legend = ax.legend(loc="upper center", bbox_to_anchor=place, ncols=columns, fontsize=sized(8))
        for text in legend.get_texts():
            text.set_parse_math(False)


def whole_ticks(ax: Axes) -> None:
    """Ticks of the x axis at whole numbers alone."""
    ax.xaxis.set_major_locator(MaxNLocator("auto", steps=[1, 2, 5, 10], integer=True))


def step_axis(ax: Axes) -> None:
    """Set the x axis to training steps, from 0 to the last step drawn."""
    ax.set_xlabel("training step")
    whole_ticks(ax)
    last = max(float(ax.dataLim.x1), 1.0)
    ax.set_xlim(-0.02 * last, 1.02 * last)


# Everything that a figure shows, numbers and labels, as CSV.
#
# An info is a tree of frozen dataclasses: panels hold lines, lines hold equally long tuples of numbers. Every such
# group of tuples becomes a row per index; the enclosing names (model, variant, metric, ...) come first in each row. A
# part without tuples is a row by itself. So one function serves all figures, and the columns follow from the info.
#
# Every field is written, unless its metadata is `APPEARANCE`, or it is a stroke or a palette. A field that is neither a
# value, nor a tuple of values, nor a part, is an error.

Scalar = str | int | float
_PLAIN = (str, int, float, NoneType)
# One line of a figure: its path in the tree, the enclosing names, and its values by name, all equally long.
_Line = tuple[str, Mapping[str, Scalar], Mapping[str, tuple[Any, ...]]]


def figure_csv(info: Any) -> str:
    """Everything that `info`, a dataclass, shows, in its units.

    `series` is a row's path in the tree; `place` counts the values of a line from 1. Raises TypeError for a field that
    cannot be written, or whose name a field of a part above it has.
    """
    lines = list(_series(info, {}))
    names = dict.fromkeys(name for _, given, _ in lines for name in given)
    # A line's tuple may share its field name with a name elsewhere in the tree.
    columns = dict.fromkeys(name for *_, values in lines for name in values if name not in names)
    rows = []
    for path, given, values in lines:
        # A row for each place; of a part without tuples, one without a place.
        places = enumerate(zip(*values.values(), strict=True), 1) if values else [("", ())]
        for place, row in places:
            cells = {**dict(zip(values, row, strict=True)), **given}
            rows.append([path, *map(cells.get, names), place, *map(cells.get, columns)])
    return csv_text(["series", *names, "place", *columns], rows)


def _series(node: Any, names: Mapping[str, Scalar], *path: str) -> Iterator[_Line]:
    """The lines of a dataclass: the texts about it, its values, then those of its parts."""
    named, groups, parts = dict(names), dict[int, dict[str, tuple[Any, ...]]](), list[tuple[str, Any]]()
    for attribute in fields(node):
        name, value = attribute.name, getattr(node, attribute.name)
        is_look = attribute.metadata == APPEARANCE or isinstance(value, Stroke | Palette)
        if is_look or value is None or value == ():
            continue
        if attribute.metadata == HEADING:
            yield ".".join((*path, name)), {"text": str(value)}, {}
        elif isinstance(value, Scalar):
            if names.get(name, value) != value:
                raise TypeError(f"{name} of {type(node).__name__} would replace that of a part above it")
            named[name] = int(value) if isinstance(value, bool) else value
        elif isinstance(value, tuple) and all(isinstance(part, _PLAIN) for part in value):
            plain = (int(part) if isinstance(part, bool) else part for part in value)
            groups.setdefault(len(value), {})[name] = tuple(plain)
        elif all(map(is_dataclass, below := value if isinstance(value, tuple) else (value,))):
            parts += [(name, part) for part in below]
        else:
            raise TypeError(f"field {name} of {type(node).__name__} cannot be written to the figure's CSV")
    for group in groups.values():
        yield ".".join(path), named, group
    for name, part in parts:
        yield from _series(part, named, *path, name)
    if not groups and not parts and named != names:
        yield ".".join(path), named, {}
