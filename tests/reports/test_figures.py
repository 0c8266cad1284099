"""The infos behind the figures, and their files: the same bytes every time. Pixels are looked at, not tested. The CSV
of a figure: every value and label once, under the names above it, or an error.
"""

import io
import math
import re
import sys
from dataclasses import field, fields, is_dataclass, make_dataclass, replace
from typing import Any
from xml.etree import ElementTree

import matplotlib
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.backends.backend_pdf import pdfRepr
from matplotlib.figure import Figure
from PIL import Image

from cppo_lab import schema
from cppo_lab.analysis.statistics.estimate import INTERVAL, RANGE
from cppo_lab.reports import exact_view, search
from cppo_lab.reports.figures import axes, curves, drawing, gallery
from cppo_lab.reports.figures.drawing import (
    APPEARANCE,
    HEADING,
    USUAL_STYLE,
    Picture,
    figure_csv,
    figure_style,
    legend_columns,
    panel_grid,
    parse_style,
    render,
)
from cppo_lab.rules import Stroke
from tests.analysis.made_sweeps import MadeRun, both, scored
from tests.conftest import user_error

TWO_SEEDS = (
    MadeRun("cppo", seed=0, scores=both({10: 0.2, 20: 0.4, 30: 0.3, 110: 0.9})),
    MadeRun("cppo", seed=1, scores=both({10: 0.4, 20: 0.2})),
    MadeRun("dppo", seed=0, scores=both({10: 0.5, 20: 0.0}), status=schema.COLLAPSED),
)


def curves_of(*runs: MadeRun) -> drawing.PanelsInfo:
    return curves.curves_info(scored(runs), "Demo & <more>")


PICTURE = Picture("figure_curves", "", "Demo", "", curves_of(*TWO_SEEDS), curves.draw)


@pytest.fixture(scope="module")
def drawn() -> drawing.Drawn:
    return render(PICTURE)


def test_seeds_become_a_mean_a_band_and_a_mark_each() -> None:
    three = [MadeRun("trm_avg", seed=seed, scores=both({10: 0.2 + 0.1 * seed})) for seed in range(3)]
    (panel,) = curves_of(*TWO_SEEDS, *three).panels
    dppo, trm_avg, cppo = panel.lines
    assert cppo.steps == (10, 20)  # where both seeds have a value
    assert (cppo.band, trm_avg.band) == (RANGE, INTERVAL)  # two runs have no interval worth drawing
    assert (*cppo.low, *cppo.mean, *cppo.high) == pytest.approx((20.0, 20.0, 30.0, 30.0, 40.0, 40.0))
    half = 4.302652729911275 * 10 / math.sqrt(3)  # t of two degrees of freedom, at 97.5%
    assert (*trm_avg.low, *trm_avg.mean, *trm_avg.high) == pytest.approx((30 - half, 30, 30 + half))
    assert cppo.seeds[0].steps == (10, 20, 30)  # step 110 is outside the window
    assert [(seed.best_step, seed.best) for seed in cppo.seeds] == [(20, 40.0), (10, 40.0)]
    assert dppo.seeds[0].collapsed
    # Of equal bests the earliest step; a collapsed variant never. The text is the score of the table.
    assert panel.top == curves.Top("cppo", 10, pytest.approx(40.0), "mean 40.00")


def test_what_has_no_validation_or_is_unfinished() -> None:
    info = curves_of(
        MadeRun("cppo", seed=0, scores=both({10: 0.2, 20: 0.4})),
        MadeRun("cppo", seed=1, scores=both({10: 0.8}), status=schema.RUNNING),  # drawn, but not in the mean
        MadeRun("dppo"),
    )
    (line,) = info.panels[0].lines
    assert (line.variant, line.steps, line.mean) == ("cppo", (10, 20), pytest.approx((20.0, 40.0)))
    assert len(line.seeds) == 2 and [key.label for key in info.keys] == ["CPPO"]
    assert info.panels[0].top is None  # a provisional cell does not compete


def test_the_legend_fits_the_figure() -> None:
    for labels, width, columns in (((), 5, 1), (("ab",) * 3, 20, 3), (("x" * 60,) * 4, 7.2, 1)):
        assert legend_columns(labels, width) == columns


def test_diagnostics_take_what_was_logged_and_bin_it() -> None:
    runs = [
        MadeRun(
            "cppo",
            seed=seed,
            scores=both({10: 0.2}),
            logged={"train/reward": dict.fromkeys(range(1000), value)},
        )
        for seed, value in enumerate((0.2, 0.4))
    ]
    runs += [
        MadeRun(
            "grpo",
            seed=seed,
            scores=both({10: 0.2}),
            logged={"rule/prefix_budget_share": {1: value}, "rule/divergence_mean": {1: value}},
        )
        for seed, value in enumerate((0.0, 0.1, 1.0))
    ]
    runs.append(
        MadeRun(
            "dppo", scores=both({10: 0.2}), logged={"rule/masked_fraction": {1: 0.01, 2: sys.float_info.max}}
        )
    )
    info = curves.diagnostics_info(scored(runs), "Demo")
    assert [panel.metric for panel in info.panels] == [
        "train/reward",
        "rule/masked_fraction",
        "rule/divergence_mean",
        "rule/prefix_budget_share",
    ]
    (cppo,), (dppo,), (divergence,), (share,) = (panel.traces for panel in info.panels)
    assert (share.low, share.high) == ((0.0,), (1.0,)) and divergence.high[
        0
    ] > 1.5  # with an interval of 0.37 ± 1.4
    assert (cppo.runs, dppo.variant, dppo.steps, dppo.mean) == (2, "dppo", (1.0,), (0.01,))
    assert len(cppo.steps) <= curves.POINTS
    for values, value in ((cppo.mean, 0.3), (cppo.low, 0.2), (cppo.high, 0.4)):
        assert values == pytest.approx([value] * len(cppo.steps))
    assert curves.diagnostics_info(scored(TWO_SEEDS), "Demo") is None
    absent = curves.warmup_info(scored(TWO_SEEDS), ("chain",), "Warm-up")
    assert isinstance(absent, drawing.Absent) and "on chain logged rule/delta_b_mean and" in absent.reason


def test_drawing_is_the_same_every_time_and_leaves_the_users_settings_alone(drawn: drawing.Drawn) -> None:
    before = dict(matplotlib.rcParams)
    with matplotlib.rc_context({"lines.linewidth": 17.0, "axes.facecolor": "red"}):
        assert render(PICTURE).files == drawn.files
    assert dict(matplotlib.rcParams) == before
    assert b"dc:date" not in drawn.files["figure_curves.svg"]
    assert b"CreationDate" not in drawn.files["figure_curves.pdf"]


def test_characters_that_the_font_lacks_are_named_in_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    named = replace(PICTURE, info=curves_of(MadeRun("\U0010abcdλ\U0010abce", scores=both({10: 0.2}))))
    render(named)
    said = "cppo: figure_curves: its font has no \\U0010abcd\\U0010abce, boxes in PNG and PDF: --figures font=FAMILY"
    assert capsys.readouterr().err.startswith(said)


def part(**values: Any) -> Any:
    """A dataclass of these values, among which a title is a heading, strokes and ids of runs are appearance."""
    kinds = {"title": HEADING, "stroke": APPEARANCE, "run_ids": APPEARANCE}
    parts = [(name, Any, field(metadata=kinds.get(name))) for name in values]
    return make_dataclass("Part", parts)(**values)


def test_every_file_says_what_made_it_of_which_runs() -> None:
    command = "cppo report './my sweep.yaml' 'rule.w_min=0.6,0.8' --palette colorblind"
    runs, title = ("mini-cppo-0a1b", "mini-(dppo)-2", "ü中\\"), "Curves (50 % & <more>) δ"

    def draw(info: object, fig: Figure) -> None:
        fig.subplots().plot([0, 1], [1, 0])

    info = part(source="a store", run_ids=runs)
    files = render(Picture("f", "", title, "", info, draw), command).files
    texts = (f"{title} (a store)", f"made by: {command}", "runs: " + " ".join(runs))
    said = Image.open(io.BytesIO(files["f.png"])).info
    assert (said["Title"], said["Description"], said["Comment"]) == texts
    for key, text in zip(("Title", "Subject", "Keywords"), texts, strict=True):
        assert f"/{key} ".encode() + pdfRepr(text) in files["f.pdf"]
    (meta,) = ElementTree.fromstring(files["f.svg"]).iter("{http://www.w3.org/2000/svg}metadata")
    for name, text in zip(("title", "description", "subject"), texts, strict=True):
        entry = next(meta.iter("{http://purl.org/dc/elements/1.1/}" + name))
        assert "".join(entry.itertext()).strip() == text
    assert b"<image" not in files["f.svg"] and b"/Subtype /Image" not in files["f.pdf"]  # vectors


def test_a_page_shows_the_drawing_of_the_file_below_its_head(drawn: drawing.Drawn) -> None:
    width, height = map(float, re.findall(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', drawn.svg)[0])
    top = drawing.LINE_INCHES * 72 * 3  # title, source, and what the bands are
    assert drawn.head == pytest.approx(top, abs=8)
    assert f'viewBox="0 {drawn.head:g} {width:g} {height - drawn.head:g}"' in drawn.inline
    paths = re.findall(r'<path d="[^"]+"', drawn.svg)
    assert "bands: the range of two seeds" in drawn.svg and "core=mini" in drawn.svg
    assert len(paths) > 20 and paths == re.findall(r'<path d="[^"]+"', drawn.inline)
    for colour in ("0052d9", "e05759", "ffffff", "222222"):  # variables with their light value
        assert f"var(--k{colour}, #{colour})" in drawn.inline
        assert f"--k{colour}:{drawing.DARK['#' + colour]};" in drawing.dark_style()
    assert all(line.startswith("@media screen") for line in drawing.dark_style().splitlines())


def test_the_values_of_a_curve_lie_where_it_is_drawn(drawn: drawing.Drawn) -> None:
    (panel,) = drawn.curves
    dppo, cppo = panel["lines"]
    assert dppo["name"] == "DPPO" and cppo == {"name": "CPPO", "x": [10.0, 20.0], "y": [30.0, 30.0]}
    (left, top, width, height), (x0, x1), (y0, y1) = panel["box"], panel["x"], panel["y"]
    place = [left + (10 - x0) / (x1 - x0) * width, top + (y1 - 30) / (y1 - y0) * height]
    starts = re.findall(r'<path d="M ([\d.]+) ([\d.]+) \nL', drawn.svg)
    assert any(place == pytest.approx([*map(float, start)], abs=0.2) for start in starts)


@pytest.mark.parametrize(
    "steps",
    [{"a": 50}, dict.fromkeys("abcdef", 50), {"a": 40, "b": 45, "c": 97, "d": 90}, dict.fromkeys("ab", 100)],
)
def test_labels_of_collapses_do_not_overlap_and_stay_inside(steps: dict[str, int]) -> None:
    """Measured where they are drawn, in the narrowest panel, beside a line that ran to step 100."""
    runs = [
        MadeRun(name, scores=both({0: 0.3, step: 0.0}), status=schema.COLLAPSED)
        for name, step in steps.items()
    ]
    [panel] = curves_of(*runs, MadeRun("cppo", scores=both({0: 0.3, 100: 0.3}))).panels
    with figure_style():
        fig = Figure(figsize=(3.6, 2.6), layout="constrained")
        canvas, ax = FigureCanvasAgg(fig), fig.subplots()
        curves.draw_lines(ax, panel.lines)
        drawing.step_axis(ax)
        fig.draw_without_rendering()
        boxes = [text.get_window_extent(canvas.get_renderer()) for text in ax.texts]
    assert len(boxes) == len(steps)
    for index, box in enumerate(boxes):
        assert ax.bbox.x0 - 1 <= box.x0 and box.x1 <= ax.bbox.x1 + 1
        assert not any(box.overlaps(other) for other in boxes[:index])


def test_a_style_has_its_width_font_and_size(drawn: drawing.Drawn) -> None:
    styled = render(PICTURE, style=parse_style(" width = 8.4cm , font = serif, size=6pt"))
    assert 'viewBox="0 0 238.1' in styled.svg  # points of 8.4 cm
    assert b"/MediaBox [ 0 0 238.1" in styled.files["figure_curves.pdf"]
    assert "'STIXGeneral'" in styled.svg and "'DejaVu Sans'" not in styled.svg
    small, usual = (
        {float(size) for size in re.findall(r"font-size: ([\d.]+)px", text)}
        for text in (styled.svg, drawn.svg)
    )
    assert 6.0 in small and max(small) == 7.0 < max(usual)
    assert styled.files["figure_curves.csv"] == drawn.files["figure_curves.csv"]
    assert render(PICTURE).files == drawn.files  # and is gone after it
    assert parse_style("width=84mm").width == pytest.approx(84 / 25.4)
    assert parse_style("font=DejaVu Sans Mono").font == "DejaVu Sans Mono"


def test_panels_are_stacked_where_the_width_takes_no_two() -> None:
    info = drawing.PanelsInfo("Title", "", (), tuple("abc"))
    for style, columns in (
        (USUAL_STYLE, 3),
        (parse_style("width=6.5in"), 2),
        (parse_style("width=3.3in"), 1),
    ):
        with figure_style(style):
            (_, ax), *_ = panel_grid(Figure(), info, 3, (3.8, 3.3))
            assert ax.get_subplotspec().get_gridspec().ncols == columns  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "text, says",
    [
        ("", "'': not a setting of figures; valid: width=3.3in, font=serif, size=8pt"),
        ("width=3in,width=4in", "'width=4in': stated twice"),
        *((f"width={value}", "a width is") for value in ("-3in", "infin", "1in", "99in", "1e1in", "3 ft")),
        *((f"size={value}", "a size is a number of points") for value in ("", "x", "4pt", "25", "8in")),
        ("font=No Such Font", "'font=No Such Font': no such font here; valid: sans, serif, or an installed"),
    ],
)
def test_what_is_no_style(text: str, says: str) -> None:
    with user_error(f"^--figures .*{re.escape(says)}"):
        parse_style(text)


def test_everything_is_there_once() -> None:
    stroke = Stroke("#000000")
    seeds = (
        part(run_id="a1", stroke=stroke, best=0.25, steps=(0, 5), values=(0.1, 0.25)),
        part(run_id="b2", stroke=stroke, best=None, steps=(0,), values=(0.3,)),
    )
    panels = part(model="m", floors=(None, 0.02), lines=seeds), part(model="n", floors=(), lines=())
    # Of the last panel nothing is drawn but its name.
    assert figure_csv(part(title="t", panels=panels, run_ids=("a1", "b2"))) == (
        "series,text,model,run_id,best,place,floors,steps,values\n"
        "title,t,,,,,,,\n"
        "panels,,m,,,1,,,\n"
        "panels,,m,,,2,0.02,,\n"
        "panels.lines,,m,a1,0.25,1,,0,0.1\n"
        "panels.lines,,m,a1,0.25,2,,5,0.25\n"
        "panels.lines,,m,b2,,1,,0,0.3\n"
        "panels,,n,,,,,,\n"
    )


def test_words_stand_beside_the_numbers_of_their_place() -> None:
    values = {"values": (0.5, 0.25), "kinds": ("token", ""), "kept": (True, False), "others": ("=1+1",)}
    assert figure_csv(part(rule="cppo", **values)) == (
        "series,rule,place,values,kinds,kept,others\n"
        ",cppo,1,0.5,token,1,\n"
        ",cppo,2,0.25,,0,\n"
        ",cppo,1,,,,'=1+1\n"
    )


@pytest.mark.parametrize(
    "info, said",
    [
        *(
            (part(value=value), "field value of Part cannot be written")
            for value in ({"a": 1.0}, ((1.0, 2.0),), (Stroke("#000000"), 1.0), [1.0], object())
        ),
        (
            part(label="reward", below=part(label="CPPO")),
            "label of Part would replace that of a part above it",
        ),
    ],
)
def test_what_cannot_be_written_is_an_error(info: object, said: str) -> None:
    with pytest.raises(TypeError, match=said):
        figure_csv(info)


def test_figures_leave_out_how_they_look_and_nothing_else() -> None:
    modules = (axes, exact_view, gallery, search, curves)
    left_out = {
        part.name
        for module in modules
        for kind in vars(module).values()
        if isinstance(kind, type) and is_dataclass(kind) and kind.__module__.startswith("cppo_lab.reports")
        for part in fields(kind)
        if part.metadata == dict(APPEARANCE)
    }
    assert left_out == {"run_ids", "plot"}
