"""A sweep over axes: where each score is drawn, with which interval, and on which scale."""

import math
import statistics

import pytest
from matplotlib.figure import Figure

from cppo_lab.analysis.grid import Axes, AxisPlace, Baseline
from cppo_lab.analysis.scoring import Scoreboard, score_sweep
from cppo_lab.analysis.statistics.summary import baseline_of, sweep_statistics
from cppo_lab.analysis.statistics.values import Score
from cppo_lab.reports import table_texts
from cppo_lab.reports.figures.axes import LINEAR, LOG, PLACES, AxesInfo, axes_info, draw
from cppo_lab.reports.figures.data import figure_csv
from cppo_lab.reports.figures.drawing import Picture, render
from cppo_lab.reports.statistics_tables import statistics_tables
from cppo_lab.reports.tables import ABOVE, BELOW, main_table
from tests.analysis.made_sweeps import MadeRun, both, expect, make_data

T_3 = 4.302652729911275  # 97.5 % quantile of Student's t with two degrees of freedom
SEEDS = (-0.01, 0.0, 0.02)


def flat(score: float) -> dict[str, dict[int, float]]:
    """A curve whose mean over any part of the window is its score."""
    return dict(both(dict.fromkeys(range(10, 101, 10), score)))


def board_of(scores: dict[str, float], spread: tuple[float, ...] = SEEDS) -> Scoreboard:
    runs = [
        MadeRun(variant, seed=seed, scores=flat(score + more))
        for variant, score in scores.items()
        for seed, more in enumerate(spread)
    ]
    return score_sweep(make_data(runs), expect(runs))


def one_axis(values: tuple[float | str, ...]) -> tuple[Scoreboard, Axes]:
    names = [f"cppo x={value}" for value in values]
    board = board_of({name: 0.3 + 0.1 * place for place, name in enumerate(names)} | {"dppo": 0.25})
    places = [AxisPlace(name, "cppo", (value,)) for name, value in zip(names, values, strict=True)]
    return board, Axes(("rule.x",), (*places, AxisPlace("dppo", "dppo", (None,))))


def shown(board: Scoreboard, axes: Axes) -> AxesInfo:
    info = axes_info(board, axes, "Title")
    assert info is not None
    return info


def test_one_axis_has_means_and_intervals() -> None:
    info = shown(*one_axis((0.04, 0.01, 0.02)))
    (panel,) = info.panels
    cppo, dppo = panel.lines
    assert cppo.x == (0.01, 0.02, 0.04)  # in order, whatever the file has
    expected = {0.04: 0.3, 0.01: 0.4, 0.02: 0.5}
    for x, mean, low, high in zip(cppo.x, cppo.mean, cppo.low, cppo.high, strict=True):
        values = [expected[x] + more for more in SEEDS]
        half = T_3 * statistics.stdev(values) / math.sqrt(3)
        assert mean == pytest.approx(100 * statistics.fmean(values))
        assert (low, high) == pytest.approx(
            tuple(100 * (statistics.fmean(values) + sign * half) for sign in (-1, 1))
        )
    assert (dppo.x, dppo.mean) == ((), pytest.approx((100 * (0.25 + sum(SEEDS) / 3),)))
    assert "0.04" in figure_csv(info)
    assert ">chain<" in render(Picture("axes", "", "Title", "", info, draw)).svg


def test_one_run_has_no_interval() -> None:
    board = board_of({"a x=1": 0.3, "a x=2": 0.4}, (0.0,))
    axes = Axes(("x",), (AxisPlace("a x=1", "a", (1,)), AxisPlace("a x=2", "a", (2,))))
    assert shown(board, axes).panels[0].lines[0].low == (None, None)


@pytest.mark.parametrize(
    ("counts", "said"),
    [
        ((1, 1), "of one run each, without an interval"),
        ((2, 1), "with the range of two seeds"),
        ((3, 3), "with the 95 % interval of the mean over seeds"),
        ((2, 3), "with the 95 % interval of the mean over seeds; of two seeds, their range"),
    ],
)
def test_two_seeds_have_their_range(counts: tuple[int, int], said: str) -> None:
    """In the figure and in the table of scores; near 0 an interval of two seeds goes far below it."""
    scores = (0.02, 0.05, 0.04)
    runs = [
        MadeRun(f"a x={x}", seed=seed, scores=flat(scores[seed]))
        for x, count in enumerate(counts)
        for seed in range(count)
    ]
    board = score_sweep(make_data(runs), expect(runs))
    places = tuple(AxisPlace(f"a x={x}", "a", (x,)) for x in (0, 1))
    info = shown(board, Axes(("x",), places))
    half = 100 * T_3 * statistics.stdev(scores) / math.sqrt(3)
    mean = 100 * statistics.fmean(scores)
    limits = {1: (None, None), 2: pytest.approx((2, 5)), 3: pytest.approx((mean - half, mean + half))}
    texts = {1: "2.00", 2: "3.50 (2.0 to 5.0)", 3: f"3.67 ({mean - half:.1f} to {mean + half:.1f})"}
    (line,) = info.panels[0].lines
    assert list(zip(line.low, line.high, strict=True)) == [limits[count] for count in counts]
    assert info.around == said and said[:20] in render(Picture("axes", "", "Title", "", info, draw)).svg
    table = statistics_tables(board, "Title")["scores"]
    assert [row.cells[3] for row in table.rows] == [texts[count] for count in counts]
    assert ("range of both" in table.notes[-1]) == (2 in counts)


@pytest.mark.parametrize(
    ("values", "scale"),
    [
        ((0.01, 0.02, 0.04), LINEAR),
        ((0.001, 0.01, 0.1), LOG),
        ((0, 1, 100), LINEAR),  # a logarithm of 0 is nowhere
        ((2.0, 5.0, math.inf), PLACES),
        (("own", "padded"), PLACES),
    ],
)
def test_the_scale_follows_the_values(values: tuple[float | str, ...], scale: str) -> None:
    assert shown(*one_axis(values)).axes[0].scale == scale


def test_two_axes_are_a_surface() -> None:
    scores = {f"cppo a={a} b={b}": 0.1 * a + 0.01 * b for a in (1, 2) for b in (3, 4, 5)}
    board = board_of(scores | {"dppo": 0.2})
    places = [AxisPlace(f"cppo a={a} b={b}", "cppo", (a, b)) for a in (1, 2) for b in (3, 4, 5)]
    info = shown(board, Axes(("a", "b"), (*places, AxisPlace("dppo", "dppo", (None, None)))))
    (panel,) = info.panels
    assert info.surface and panel.surface_of == "cppo"
    assert {(cell.first, cell.second): cell.mean for cell in panel.cells} == {
        (a, b): pytest.approx(100 * (0.1 * a + 0.01 * b + sum(SEEDS) / 3)) for a in (1, 2) for b in (3, 4, 5)
    }
    assert [line.group for line in panel.lines] == ["dppo"]
    svg = render(Picture("axes", "", "Title", "", info, draw)).inline
    assert svg.count("#10103a") + svg.count("#fff3b0") >= 6  # on the colour scale, in the dark scheme too


NOISY = (
    0.0,
    0.02,
    -0.01,
    0.03,
    0.01,
    -0.02,
    0.02,
    0.0,
    0.01,
    -0.03,
    0.03,
    -0.01,
)  # a spread without a pattern


@pytest.mark.parametrize(
    ("rise", "spread", "said"),
    [
        (0.0, NOISY, "which is within noise, so they are not coloured"),
        (0.2, NOISY, ""),
        (0.0, (0.0,) * 12, "within noise"),  # all cells alike
        (0.2, (0.0,), "one run per cell shows no noise"),
    ],
)
def test_noise_has_no_colours(rise: float, spread: tuple[float, ...], said: str) -> None:
    places = [AxisPlace(f"cppo a={a} b={b}", "cppo", (a, b)) for a in (1, 2) for b in (3, 4)]
    per_cell = max(1, len(spread) // 4)
    runs = [
        MadeRun(
            place.variant,
            seed=seed,
            scores=flat(0.3 + rise * number + spread[(number + 4 * seed) % len(spread)]),
        )
        for number, place in enumerate(places)
        for seed in range(per_cell)
    ]
    info = shown(score_sweep(make_data(runs), expect(runs)), Axes(("a", "b"), tuple(places)))
    drawing = render(Picture("axes", "", "Title", "", info, draw))
    coloured = "#10103a" in drawing.inline or "#fff3b0" in drawing.inline
    assert coloured == ("within noise" not in said)
    if not said:
        assert info.noise is None
        return
    assert info.noise is not None and info.noise.startswith("chain: ") and said in info.noise
    assert "chain: " in drawing.svg and said.split()[0] in drawing.svg
    assert said in figure_csv(info)


def test_no_axis_and_three_axes_have_no_such_figure() -> None:
    board = board_of({"a": 0.1, "b": 0.2})
    places = (AxisPlace("a", "a", (1, 1, 1)), AxisPlace("b", "b", (2, 2, 2)))
    assert axes_info(board, Axes(("x", "y", "z"), places), "Title") is None
    assert axes_info(board, Axes(), "Title") is None


def test_the_baseline_of_the_file_counts() -> None:
    assert baseline_of(("grpo", "dppo", "cppo"), Baseline("cppo")).name == "cppo"
    assert baseline_of(("grpo", "dppo", "cppo"), Baseline("gone")).name == "dppo"
    runs = [
        MadeRun(
            variant, seed=seed, scores=flat(score + more * (1 + place))
        )  # the spreads differ, hence the differences
        for place, (variant, score) in enumerate({"grpo": 0.2, "dppo": 0.5, "cppo": 0.2001}.items())
        for seed, more in enumerate(SEEDS)
    ]
    board = score_sweep(make_data(runs), expect(runs))
    found = sweep_statistics(board, resamples=10, baseline=Baseline("grpo"))
    assert found.baseline == Baseline("grpo")
    table = main_table(board, "Scores", found)
    cells = {row.pair[1]: str(row.cells[0]) for row in table.rows if row.pair}
    assert cells["dppo"].endswith(f" {ABOVE}")
    assert not cells["grpo"].endswith((ABOVE, BELOW)) and "above, " in table.notes[-1]
    lower = main_table(board, "Scores", sweep_statistics(board, resamples=10, baseline=Baseline("dppo")))
    assert str(lower.rows[0].cells[0]).endswith(BELOW)
    assert r"$\downarrow$" in table_texts.latex(lower)


def test_a_baseline_with_axes_is_the_one_at_the_same_values() -> None:
    scores = {"own x=1": 0.1, "own x=2": 0.3, "padded x=1": 0.2, "padded x=2": 0.25, "grpo": 0.4}
    board = board_of(scores)
    baseline = Baseline(
        "own", {"own x=1": "own x=1", "own x=2": "own x=2", "padded x=1": "own x=1", "padded x=2": "own x=2"}
    )
    found = sweep_statistics(board, resamples=10, baseline=baseline)
    final = {cell.variant: cell.differences[Score.FINAL] for cell in found.cells if cell.differences}
    assert {name: (each.against, each.estimate.value) for name, each in final.items()} == {
        "padded x=1": ("own x=1", pytest.approx(0.1)),
        "padded x=2": ("own x=2", pytest.approx(-0.05)),
    }
    table = statistics_tables(board, "Title", {}, found)["differences"]
    assert table.lead == "minus own at the same values"
    assert [row.label for row in table.rows] == ["padded x=1", "padded x=2"]


@pytest.mark.parametrize("values", [(1, 2), (1, 100), ("p", "q")])
def test_lines_at_one_value_do_not_hide_each_other(values: tuple[int | str, int | str]) -> None:
    places = [AxisPlace(f"{name} x={x}", name, (x,)) for name in ("a", "b") for x in values]
    info = shown(board_of({place.variant: 0.3 for place in places}), Axes(("x",), tuple(places)))
    figure = Figure()
    draw(info, figure)
    (ax,) = figure.axes
    a, b = (
        ax.transAxes.inverted().transform(ax.transData.transform(line.get_xydata()))[:, 0]
        for line in ax.lines
    )
    assert (b - a == pytest.approx(b[0] - a[0])) and 0.005 < b[0] - a[0] < 0.02
    assert a[0] > 0 and b[1] < 1
