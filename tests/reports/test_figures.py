"""The infos behind the figures, and that files are the same bytes every time. Pixels are looked at, not
tested.
"""

import re
import subprocess
import sys
from dataclasses import replace

import matplotlib
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from cppo_lab import schema
from cppo_lab.analysis.scoring import Scoreboard, score_sweep
from cppo_lab.analysis.statistics.estimate import INTERVAL, RANGE, mean_estimate
from cppo_lab.errors import UserError
from cppo_lab.reports.figures import drawing, palette, training, validation
from cppo_lab.reports.figures.drawing import (
    Picture,
    figure_style,
    legend_columns,
    panel_grid,
    parse_style,
    render,
)
from cppo_lab.reports.figures.palette import PALETTES
from cppo_lab.reports.sweep import FIGURE_4_MODELS
from cppo_lab.rules import METHOD_COLOURS
from tests.analysis.made_sweeps import MadeRun, both, expect, make_data


def board_of(*runs: MadeRun) -> Scoreboard:
    return score_sweep(make_data(runs), expect(runs))


@pytest.fixture
def two_seeds() -> Scoreboard:
    return board_of(
        MadeRun("cppo", seed=0, scores=both({10: 0.2, 20: 0.4, 30: 0.3, 110: 0.9})),
        MadeRun("cppo", seed=1, scores=both({10: 0.4, 20: 0.2})),
        MadeRun("dppo", seed=0, scores=both({10: 0.5, 20: 0.0}), status=schema.COLLAPSED),
    )


def test_the_paper_figure_has_its_panels_lines_and_bests(paper_board: Scoreboard) -> None:
    info = validation.curves_info(paper_board, "Figure 4")
    assert [(panel.model, panel.t_stop, len(panel.lines)) for panel in info.panels] == [
        ("Qwen3-1.7B", 1120, 7),
        ("Qwen3-1.7B-Base", 680, 7),
        ("Qwen3-8B-Base", 490, 7),
        ("Qwen3-30B-A3B-Base", 560, 7),
    ]
    tops = [(panel.top.variant, panel.top.step, panel.top.text) for panel in info.panels if panel.top]
    assert tops == [
        ("cppo", 980, "31.88"),
        ("cppo", 500, "12.78"),
        ("cppo", 420, "31.11"),
        ("cppo", 545, "54.79"),
    ]
    assert [(key.label, key.stroke.colour) for key in info.keys] == [
        ("GRPO", "#59A14F"),
        ("MinPRO", "#282828"),
        ("CISPO", "#B07AA1"),
        ("DPPO", "#E05759"),
        ("TRM-Max", "#B5651D"),
        ("TRM-Avg", "#D9A521"),
        ("CPPO", "#0052D9"),
    ]
    assert "not trained here" in info.source
    assert len(info.run_ids) == 28
    collapsed = [
        (panel.model, line.variant)
        for panel in info.panels
        for line in panel.lines
        if line.seeds[0].collapsed
    ]
    assert collapsed == [("Qwen3-30B-A3B-Base", "cispo")]


def test_figure_4_shows_the_base_models_and_names_their_runs_alone(paper_board: Scoreboard) -> None:
    info = validation.curves_info(paper_board, "Figure 4", FIGURE_4_MODELS)
    assert [panel.model for panel in info.panels] == list(FIGURE_4_MODELS)
    assert len(info.run_ids) == 21
    assert not [run_id for run_id in info.run_ids if run_id.startswith("paper-Qwen3-1.7B-cppo")]


def test_seeds_become_a_mean_a_band_and_a_mark_each(two_seeds: Scoreboard) -> None:
    info = validation.curves_info(two_seeds, "Demo")
    (panel,) = info.panels
    dppo, cppo = panel.lines
    assert cppo.steps == (10, 20)  # where both seeds have a value
    assert cppo.mean == pytest.approx((30.0, 30.0))
    assert cppo.band == RANGE  # two runs have no interval worth drawing
    assert cppo.low == pytest.approx((20.0, 20.0))
    assert cppo.high == pytest.approx((40.0, 40.0))
    assert cppo.seeds[0].steps == (10, 20, 30)  # step 110 is outside the window
    assert [(seed.best_step, seed.best) for seed in cppo.seeds] == [(20, 40.0), (10, 40.0)]
    assert dppo.seeds[0].collapsed
    # Of equal bests the earliest step; a collapsed variant never. The text is the score of the table.
    assert panel.top == validation.Top("cppo", 10, pytest.approx(40.0), "mean 40.00")
    assert "core=mini" in info.source


def test_a_variant_without_validation_has_no_line() -> None:
    runs = [MadeRun("cppo", scores=both({10: 0.2})), MadeRun("dppo")]
    info = validation.curves_info(score_sweep(make_data(runs), expect(runs), partial=True), "Demo")
    assert [line.variant for line in info.panels[0].lines] == ["cppo"]
    assert [key.label for key in info.keys] == ["CPPO"]


def test_an_unfinished_seed_is_drawn_but_not_in_the_mean() -> None:
    runs = [
        MadeRun("cppo", seed=0, scores=both({10: 0.2, 20: 0.4})),
        MadeRun("cppo", seed=1, scores=both({10: 0.8}), status=schema.RUNNING),
    ]
    info = validation.curves_info(score_sweep(make_data(runs), expect(runs), partial=True), "Demo")
    (line,) = info.panels[0].lines
    assert (line.steps, line.mean) == ((10, 20), pytest.approx((20.0, 40.0)))
    assert len(line.seeds) == 2
    assert info.panels[0].top is None  # a provisional cell does not compete


@pytest.mark.parametrize(
    ("labels", "width", "columns"), [((), 5, 1), (("ab",) * 3, 20, 3), (("x" * 60,) * 4, 7.2, 1)]
)
def test_the_legend_fits_the_figure(labels: tuple[str, ...], width: float, columns: int) -> None:
    assert legend_columns(labels, width) == columns


def test_diagnostics_take_what_was_logged_and_bin_it() -> None:
    steps = range(1000)
    runs = [
        MadeRun("cppo", seed=0, scores=both({10: 0.2}), logged={"train/reward": dict.fromkeys(steps, 0.2)}),
        MadeRun("cppo", seed=1, scores=both({10: 0.2}), logged={"train/reward": dict.fromkeys(steps, 0.4)}),
        MadeRun("dppo", scores=both({10: 0.2}), logged={"rule/masked_fraction": {1: 0.01}}),
    ]
    info = training.diagnostics_info(board_of(*runs), "Demo")
    assert info is not None
    assert [panel.metric for panel in info.panels] == ["train/reward", "rule/masked_fraction"]
    reward, masked = info.panels
    (trace,) = reward.traces
    assert trace.runs == 2
    assert len(trace.steps) <= training.POINTS
    for values, value in ((trace.mean, 0.3), (trace.low, 0.2), (trace.high, 0.4)):
        assert values == pytest.approx([value] * len(trace.steps))
    assert [(t.variant, t.steps, t.mean) for t in masked.traces] == [("dppo", (1.0,), (0.01,))]
    assert training.diagnostics_info(board_of(MadeRun("cppo", scores=both({10: 0.2}))), "Demo") is None


def test_colours_of_other_variants_are_distinct() -> None:
    names = ("cppo", "dppo", "a", "b", "c", "d", "e")
    strokes = PALETTES["paper"].strokes(names)
    assert strokes["cppo"].colour == "#0052D9"
    assert (
        len({strokes[name].colour for name in names} | set(METHOD_COLOURS.values()))
        == len(METHOD_COLOURS) + 5
    )


def picture(info: validation.CurvesInfo, name: str = "figure_curves", title: str = "Demo") -> Picture:
    return Picture(name, "", title, "", info, validation.draw)


def test_the_same_info_gives_the_same_bytes_without_dates(two_seeds: Scoreboard) -> None:
    info = validation.curves_info(two_seeds, "Demo & <more>")
    files = render(picture(info)).files
    assert files == render(picture(info)).files
    assert files["figure_curves.png"].startswith(b"\x89PNG")
    assert files["figure_curves.pdf"].startswith(b"%PDF")
    assert b"dc:date" not in files["figure_curves.svg"]
    assert b"CreationDate" not in files["figure_curves.pdf"]
    for kind in ("png", "svg", "pdf"):
        assert b"chain-cppo-1" in files[f"figure_curves.{kind}"]  # the run ids travel in the metadata


def test_drawing_leaves_the_users_settings_alone(two_seeds: Scoreboard) -> None:
    shown = picture(validation.curves_info(two_seeds, "Demo"))
    before = dict(matplotlib.rcParams)
    with matplotlib.rc_context({"lines.linewidth": 17.0, "axes.facecolor": "red"}):
        odd = render(shown).files
    assert odd == render(shown).files
    assert dict(matplotlib.rcParams) == before


def test_drawings_of_a_page_share_no_ids_and_point_at_their_own(two_seeds: Scoreboard) -> None:
    info = validation.curves_info(two_seeds, "Demo")
    drawn = [render(picture(info, name, 'a "quoted" <label>')) for name in ("one", "two")]
    ids = [set(re.findall(r'\bid="([^"]+)"', each.inline)) for each in drawn]
    assert ids[0] and not ids[0] & ids[1]
    for each, own in zip(drawn, ids, strict=True):
        targets = set(re.findall(r'url\(#([^)]+)\)|href="#([^"]+)"', each.inline))
        assert targets
        assert {first or second for first, second in targets} <= own
        assert "&lt;label&gt;" in each.inline
        assert "<text" in each.inline  # live text
        assert each.inline.count("<svg") == 1


def test_a_page_shows_the_drawing_of_the_file_below_its_head(two_seeds: Scoreboard) -> None:
    drawn = render(picture(validation.curves_info(two_seeds, "Demo")))
    width, height = map(float, re.findall(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', drawn.svg)[0])
    top = drawing.LINE_INCHES * 72 * 3  # title, source, and what the bands are
    assert drawn.head == pytest.approx(top, abs=8)
    assert f'viewBox="0 {drawn.head:g} {width:g} {height - drawn.head:g}"' in drawn.inline
    paths = re.findall(r'<path d="[^"]+"', drawn.svg)
    assert len(paths) > 20 and paths == re.findall(r'<path d="[^"]+"', drawn.inline)


def test_known_colours_are_variables_with_their_light_value(two_seeds: Scoreboard) -> None:
    inline = render(picture(validation.curves_info(two_seeds, "Demo"))).inline
    for colour in ("0052d9", "e05759", "ffffff", "222222"):
        assert f"var(--k{colour}, #{colour})" in inline
        assert f"--k{colour}:{palette.DARK['#' + colour]};" in drawing.dark_style()
    assert all(line.startswith("@media screen") for line in drawing.dark_style().splitlines())


def test_the_values_of_a_curve_lie_where_it_is_drawn(two_seeds: Scoreboard) -> None:
    drawn = render(picture(validation.curves_info(two_seeds, "Demo")))
    (panel,) = drawn.curves
    assert [line["name"] for line in panel["lines"]] == ["DPPO", "CPPO"]
    assert (panel["lines"][1]["x"], panel["lines"][1]["y"]) == ([10.0, 20.0], [30.0, 30.0])
    (left, top, width, height), (x0, x1), (y0, y1) = panel["box"], panel["x"], panel["y"]
    place = [left + (10 - x0) / (x1 - x0) * width, top + (y1 - 30) / (y1 - y0) * height]
    starts = re.findall(r'<path d="M ([\d.]+) ([\d.]+) \nL', drawn.svg)
    assert any(place == pytest.approx(list(map(float, start)), abs=0.2) for start in starts)


def test_only_the_figures_import_matplotlib_and_nothing_pyplot() -> None:
    code = (
        "import sys; import cppo_lab.analysis.scoring, cppo_lab.reports.table_texts, cppo_lab.reports.table_texts;"
        "assert 'matplotlib' not in sys.modules, 'matplotlib';"
        "import cppo_lab.reports.build;"
        "bad = {'matplotlib.pyplot', 'torch', 'hydra', 'submitit', 'cppo_lab.sweep'} & set(sys.modules);"
        "assert not bad, bad"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def fallen(steps: dict[str, int], last: int = 100) -> list[validation.Line]:
    """A line for each variant, that collapsed at its step; and one that ran to the `last`."""
    ends = [*steps.items(), ("cppo", last)]
    return [
        validation.Line(
            name,
            name,
            palette.Stroke("#000000"),
            (validation.SeedLine("r", (0, step), (30.0, 0.0), 0, 30.0, name != "cppo"),),
            (0, step),
            "",
            *((30.0, 0.0),) * 3,
        )
        for name, step in ends
    ]


@pytest.mark.parametrize(
    "steps",
    [{"a": 50}, dict.fromkeys("abcdef", 50), {"a": 40, "b": 45, "c": 49, "d": 90}, dict.fromkeys("ab", 100)],
)
def test_labels_of_collapses_do_not_overlap_and_stay_inside(steps: dict[str, int]) -> None:
    labels = validation.collapse_labels(fallen(steps))
    assert {label.variant for label in labels} == set(steps)
    boxes = []
    for label in labels:
        start = label.step / 100 - (validation.LABEL_SHARE if label.to_the_left else 0)
        assert 0 <= start <= 1 - validation.LABEL_SHARE
        boxes.append((label.level, start))
    for index, (level, start) in enumerate(boxes):
        for other, begin in boxes[:index]:
            assert level != other or abs(start - begin) >= validation.LABEL_SHARE
    assert min(level for level, _ in boxes) == 0


def test_the_word_is_no_wider_than_its_place() -> None:
    """LABEL_SHARE holds in the narrowest panel, measured where it is drawn."""
    with figure_style():
        fig = Figure(figsize=(3.6, 2.6), layout="constrained")
        canvas = FigureCanvasAgg(fig)
        ax = fig.subplots()
        validation.draw_lines(ax, fallen({"a": 40, "b": 45, "c": 97}))
        drawing.step_axis(ax)
        fig.draw_without_rendering()
        boxes = [text.get_window_extent(canvas.get_renderer()) for text in ax.texts]
    assert len(boxes) == 3
    for index, box in enumerate(boxes):
        assert box.width <= validation.LABEL_SHARE * ax.bbox.width
        assert not any(box.overlaps(other) for other in boxes[:index])


def test_a_figure_says_what_its_bands_are(two_seeds: Scoreboard) -> None:
    assert drawing.above("t", "s", ["", ""]) == ("t", "s")
    fig = Figure()
    validation.draw(validation.curves_info(two_seeds, "Demo"), fig)
    assert fig.get_suptitle().endswith("bands: the range of two seeds")
    assert "core=mini" in fig.get_suptitle()
    assert "95 % interval" in drawing.above("t", "s", [INTERVAL])[-1]


def test_three_seeds_have_the_interval_of_their_mean() -> None:
    scores = (0.30, 0.34, 0.44)
    runs = [MadeRun("cppo", seed=seed, scores=both({10: score})) for seed, score in enumerate(scores)]
    (line,) = validation.curves_info(board_of(*runs), "Demo").panels[0].lines
    expected = mean_estimate(scores)
    assert expected is not None and expected.low is not None and expected.high is not None
    assert line.band == INTERVAL
    assert (*line.mean, *line.low, *line.high) == pytest.approx(
        (100 * expected.value, 100 * expected.low, 100 * expected.high)
    )


def sizes_of(svg: str) -> set[float]:
    return {float(size) for size in re.findall(r"font-size: ([\d.]+)px", svg)}


def test_a_style_has_its_width_font_and_size(two_seeds: Scoreboard) -> None:
    shown = picture(validation.curves_info(two_seeds, "Demo"))
    usual = render(shown)
    drawn = render(shown, style=parse_style("width=8.4cm,font=serif,size=6pt"))
    assert float(re.findall(r'viewBox="0 0 ([\d.]+) ', drawn.svg)[0]) == pytest.approx(
        72 * 8.4 / 2.54, abs=0.1
    )
    assert b"/MediaBox [ 0 0 238.1" in drawn.pdf
    assert "'STIXGeneral'" in drawn.svg and "'DejaVu Sans'" not in drawn.svg
    assert 6.0 in sizes_of(drawn.svg) and max(sizes_of(drawn.svg)) == 7.0 < max(sizes_of(usual.svg))
    assert drawn.files["figure_curves.csv"] == usual.files["figure_curves.csv"]
    assert render(shown).files == usual.files  # and is gone after it


def test_panels_are_stacked_where_the_width_takes_no_two(two_seeds: Scoreboard) -> None:
    def draw(info: object, fig: Figure) -> None:
        for ax in panel_grid(fig, 3, 3, (11.4, 3.3), ("Title",), ()):
            ax.plot([0, 1], [0, 1])

    shown = replace(picture(validation.curves_info(two_seeds, "Demo")), draw=draw)
    columns = {}
    for width in ("", "width=6.5in", "width=3.3in"):
        with figure_style(parse_style(width) if width else drawing.USUAL_STYLE):
            fig = Figure()
            draw(None, fig)
            columns[width] = [ax.get_subplotspec().get_gridspec().ncols for ax in fig.axes]  # type: ignore[union-attr]
        assert render(shown, style=parse_style(width) if width else drawing.USUAL_STYLE).svg
    assert columns == {"": [3] * 3, "width=6.5in": [2] * 3, "width=3.3in": [1] * 3}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "'': not a setting of figures; valid: width=3.3in, font=serif, size=8pt"),
        ("width", "'width': not a setting"),
        ("height=3in", "'height=3in': not a setting"),
        ("width=3in,width=4in", "'width=4in': stated twice"),
        ("width=3", "'width=3': a width is a number with in, cm, mm or pt, such as 3.3in, from 2in to 40in"),
        *(
            (f"width={value}", "a width is")
            for value in ("-3in", "nan", "infin", "1in", "99in", "1e1in", "3 ft")
        ),
        *((f"size={value}", "a size is a number of points") for value in ("", "x", "4pt", "25", "8in")),
        ("font=No Such Font", "'font=No Such Font': no such font here; valid: sans, serif, or an installed"),
        ("font=", "'font=': no such font"),
    ],
)
def test_what_is_no_style(text: str, says: str) -> None:
    with pytest.raises(UserError) as error:
        parse_style(text)
    assert str(error.value).startswith("--figures ") and says in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(("text", "inches"), [("3.3in", 3.3), ("84mm", 84 / 25.4), ("8.4cm", 8.4 / 2.54)])
def test_widths(text: str, inches: float) -> None:
    assert parse_style(f"width={text}").width == pytest.approx(inches)
    assert parse_style(f" width = {text} , font = DejaVu Sans Mono ").font == "DejaVu Sans Mono"
