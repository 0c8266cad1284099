"""A sweep over axes: where each score is drawn, with which interval, and on which scale."""

import itertools
import math
import re
import statistics
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from matplotlib.figure import Figure
from scipy import stats

from cppo_lab.analysis.inputs import Axes, AxisPlace, Baseline
from cppo_lab.analysis.scoring import Scoreboard
from cppo_lab.analysis.statistics.estimate import mean_estimate
from cppo_lab.reports.figures.axes import (
    DRIFT,
    LINEAR,
    LOG,
    PLACES,
    AxesInfo,
    axes_info,
    draw,
    drift_info,
    effects_info,
)
from cppo_lab.reports.figures.drawing import Drawn, Picture, figure_csv, render
from cppo_lab.reports.sections import Scored
from cppo_lab.reports.statistics_tables import statistics_tables
from cppo_lab.reports.sweep import effects_section
from tests.analysis.made_sweeps import MadeRun, both, scored
from tests.analysis.statistics.made_curves import flat
from tests.reports.conftest import svg_alone

T_3 = 4.302652729911275  # 97.5 % quantile of Student's t with two degrees of freedom
SEEDS = (-0.01, 0.0, 0.02)


def made(scores: dict[str, Sequence[float]]) -> Scoreboard:
    """The scores of each variant's seeds, whose curves are flat."""
    return scored(flat(scores, "chain"))


def around(score: float) -> list[float]:
    return [score + more for more in SEEDS]


def shown(
    board: Scoreboard, names: tuple[str, ...], places: dict[str, tuple[str, tuple[object, ...]]]
) -> AxesInfo:
    """The figure of variants at (group, values on the axes)."""
    at = tuple(AxisPlace(name, *place) for name, place in places.items())  # type: ignore[arg-type]
    return axes_info(board, Axes(names, at), "Title")


def drawing(info: AxesInfo) -> Drawn:
    with svg_alone():
        return render(Picture("axes", "", "Title", "", info, draw))


def one_axis(values: tuple[float | str, ...]) -> AxesInfo:
    places = {f"cppo x={value}": ("cppo", (value,)) for value in values}
    scores = {name: around(0.3 + 0.1 * number) for number, name in enumerate(places)}
    board = made({**scores, "dppo": around(0.25)})
    return shown(board, ("rule.x",), {**places, "dppo": ("dppo", (None,))})


def test_one_axis_has_means_in_its_order() -> None:
    info = one_axis((0.04, 0.01, 0.02))
    cppo, dppo = info.panels[0].lines
    assert cppo.x == (0.01, 0.02, 0.04) and dppo.x == ()  # in order, whatever the file has
    means = [100 * statistics.fmean(around(score)) for score in (0.4, 0.5, 0.3, 0.25)]
    assert [*cppo.mean, *dppo.mean] == pytest.approx(means)
    assert "0.04" in figure_csv(info)
    assert ">chain<" in drawing(info).svg


@pytest.mark.parametrize(
    "counts, said",
    {
        (1, 1): "of one run each, without an interval",
        (2, 1): "with the range of two seeds",
        (3, 3): "with the 95 % interval of the mean over seeds",
        (2, 3): "with the 95 % interval of the mean over seeds; of two seeds, their range",
    }.items(),
)
def test_two_seeds_have_their_range(counts: tuple[int, int], said: str) -> None:
    """In the figure and in the table of scores, whose intervals end at 0; one of two seeds goes far below it."""
    scores = (0.02, 0.05, 0.04)
    board = made({f"a x={x}": scores[:count] for x, count in enumerate(counts)})
    info = shown(board, ("x",), {f"a x={x}": ("a", (x,)) for x in (0, 1)})
    _, high = stats.ttest_1samp(scores, 0).confidence_interval()
    expected = {
        1: ((None, None), "2.00"),
        2: (pytest.approx((2, 5)), "3.50 (2.00 to 5.00)"),
        3: (pytest.approx((0, 100 * high)), f"3.67 (0.00 to {100 * high:.2f})"),
    }
    (line,), table = info.panels[0].lines, statistics_tables(Scored("made", "Title", board, ""))["scores"]
    for n, *ends, row in zip(counts, line.low, line.high, table.rows, strict=True):
        assert (tuple(ends), row.cells[3]) == expected[n]
    assert info.around == said and said[:20] in drawing(info).svg
    assert ("range of both" in table.notes[-1]) == (2 in counts)


def test_the_scale_follows_the_values() -> None:
    for values, scale in (
        ((0.01, 0.02, 0.04), LINEAR),
        ((0.001, 0.01, 0.1), LOG),
        ((0, 1, 100), LINEAR),  # a logarithm of 0 is nowhere
        ((2.0, 5.0, math.inf), PLACES),
        (("own", "padded"), PLACES),
    ):
        assert one_axis(values).axes[0].scale == scale


# A spread without a pattern.
NOISY = (0.0, 0.02, -0.01, 0.03, 0.01, -0.02, 0.02, 0.0, 0.01, -0.03, 0.03, -0.01)


@pytest.mark.parametrize(
    "rise, spread, said",
    [
        (0.0, NOISY, "which is within noise, so they are not coloured"),
        (0.2, NOISY, ""),
        (0.0, (0.0,) * 12, "within noise"),  # all cells alike
        (0.2, (0.0,), "one run per cell shows no noise"),
    ],
)
def test_two_axes_are_a_surface_and_noise_has_no_colours(
    rise: float, spread: tuple[float, ...], said: str
) -> None:
    places = {f"cppo a={a} b={b}": ("cppo", (a, b)) for a in (1, 2) for b in (3, 4)}
    scores = {
        name: [0.3 + rise * number + more for more in spread[number::4] or spread]
        for number, name in enumerate(places)
    }
    beside = {"dppo": ("dppo", (None, None)), **{f"grpo b={b}": ("grpo", (None, b)) for b in (3, 4)}}
    board = made({**scores, **dict.fromkeys(beside, around(0.2))})
    info = shown(board, ("a", "b"), places | beside)
    (panel,) = info.panels
    assert info.surface and panel.surface_of == "cppo"
    assert [(cell.first, cell.second) for cell in panel.cells] == [values for _, values in places.values()]
    means = [100 * statistics.fmean(of_seeds) for of_seeds in scores.values()]
    assert [cell.mean for cell in panel.cells] == pytest.approx(means)
    assert [line.group for line in panel.lines] == [*beside]
    picture = drawing(info)
    coloured = "#10103a" in picture.inline or "#fff3b0" in picture.inline  # in the dark scheme, too
    assert coloured == ("within noise" not in said)
    if not said:
        assert info.noise is None
        return
    assert info.noise.startswith("chain: ") and said in info.noise
    assert "chain: " in picture.svg and said.split()[0] in picture.svg
    assert said in figure_csv(info)
    assert ("at least 95 % of maps" in info.noise) is (len(spread) > 1)


def test_a_value_with_dollars_is_text() -> None:
    """As text of an environment variable has; matplotlib would take what is between them for a formula."""
    values = [(x, y) for x in ("$DATA/a_$", "b") for y in ("$w_$", "v")]
    places = {f"cppo x={x} y={y}": ("cppo", (x, y)) for x, y in values}
    surface = shown(made(dict.fromkeys(places, around(0.3))), ("rule.x", "rule.y"), places)
    assert {*re.findall(r">(\$.*?)<", drawing(surface).svg)} == {"$DATA/a_$", "$w_$"}
    assert ">$DATA/a_$<" in drawing(one_axis(("$DATA/a_$", "b"))).svg


def test_three_axes_have_no_such_figure() -> None:
    axes = Axes(("x", "y", "z"), (AxisPlace("a", "a", (1, 1, 1)),))
    assert axes_info(made({"a": [0.1]}), axes, "Title") is None


def test_a_baseline_with_axes_is_the_one_at_the_same_values() -> None:
    scores = {"own x=1": 0.1, "own x=2": 0.3, "padded x=1": 0.2, "padded x=2": 0.25, "grpo": 0.4}
    board = made({name: around(score) for name, score in scores.items()})
    same = {f"{name} x={x}": f"own x={x}" for name in ("own", "padded") for x in (1, 2)}
    sweep = Scored("made", "Title", board, "", baseline=Baseline("own", same))
    table = statistics_tables(sweep)["differences"]
    assert table.lead == "minus own at the same values"
    assert "paired: by seed, as the design of the runs asks; else Welch's." in table.notes[0]
    assert [f"{row.label} {row.cells[0]}" for row in table.rows] == ["padded x=1 +10.00", "padded x=2 −5.00"]
    assert table.notes[-1] == "Without own at the same values, and so without a difference: GRPO."


@pytest.mark.parametrize("values", [(1, 2), (1, 100), ("p", "q")])
def test_lines_at_one_value_do_not_hide_each_other(values: tuple[int | str, int | str]) -> None:
    places = {f"{name} x={x}": (name, (x,)) for name in ("a", "b") for x in values}
    figure = Figure()
    draw(shown(made(dict.fromkeys(places, SEEDS)), ("x",), places), figure)
    (ax,) = figure.axes
    to_axes = ax.transData - ax.transAxes
    a, b = (to_axes.transform(line.get_xydata())[:, 0] for line in ax.lines)
    apart = b[0] - a[0]
    assert b - a == pytest.approx(apart) and 0.005 < apart < 0.02 and a[0] > 0 and b[1] < 1


def test_drift_is_by_age_and_third_of_steps_with_a_mu_of_that_age() -> None:
    """The mean over steps of each seed's runs; of a method that has other values, a panel each."""
    ages, rates, runs, places = (0, 1, 4), (0.1, 0.2), [], []
    for age, rate in itertools.product(ages, rates):
        name = f"cppo delta={rate} staleness={age}"
        places.append(AxisPlace(name, "cppo", (rate, age)))
        for seed, more in enumerate(SEEDS):
            logged = {
                metric: {step: (99.0 if step <= age else rate * age * part + more) for step in range(1, 11)}
                for part, metric in enumerate(DRIFT.values(), 1)
            }
            runs.append(MadeRun(name, seed=seed, scores=both({10: 0.5}), logged=logged))
    board, axes = scored(runs), Axes(("rule.delta", "rollout.staleness"), tuple(places))
    info, half = drift_info(board, axes, "Title"), T_3 * statistics.stdev(SEEDS) / math.sqrt(3)
    for panel, rate in zip(info.panels, rates, strict=True):
        assert panel.surface_of == f"cppo delta={rate}"
        assert [line.group for line in panel.lines] == ["early third", "middle third", "late third"]
        for part, line in enumerate(panel.lines, 1):
            assert line.x == ages and line.runs == (3, 3, 3)
            means = np.array([rate * age * part + statistics.fmean(SEEDS) for age in ages])
            assert (*line.mean, *line.high) == pytest.approx([*means, *(means + half)])
    svg = drawing(info).svg
    assert ">chain: cppo delta=0.2<" in svg and "late third" in svg
    assert "late third" in figure_csv(info) and "of the mean over seeds" in info.around
    for other in (replace(axes, places=axes.places[:2]), Axes(("rule.delta",), ())):  # one age, none
        assert drift_info(board, other, "Title") is None
    assert drift_info(scored([replace(run, logged={}) for run in runs]), axes, "Title") is None


def test_effects_are_drawn_and_listed_with_their_intervals() -> None:
    """Differences of differences of flat curves, by hand; the surrogate's error as a ratio."""
    scores = {(0, "on"): 0.50, (4, "on"): 0.56, (0, "off"): 0.60, (4, "off"): 0.70}
    runs = [
        MadeRun(
            f"a {x} {y}",
            seed=seed,
            scores=both(dict.fromkeys(range(10, 101, 10), score + more * (1 + (x == 4)))),
            logged={"exact/error": {10: -0.2 if x else 0.1, 20: 0.0}},
            core="exact",
        )
        for (x, y), score in scores.items()
        for seed, more in enumerate(SEEDS)
    ]
    places = tuple(AxisPlace(f"a {x} {y}", "a", (x, y)) for x, y in scores)
    sweep = Scored("demo", "Demo", scored(runs), "sqlite://")
    section = effects_section(sweep, Axes(("rule.x", "data.y"), places))
    rows = {row.cells[0]: row.cells[1:] for row in section.tables["effects"].rows}
    test = stats.ttest_1samp([8 + 100 * more for more in SEEDS], 0.0)
    mean, (low, high) = 8 + 100 * statistics.fmean(SEEDS), test.confidence_interval()
    of_x = f"+{mean:.2f} (+{low:.2f} to +{high:.2f})"
    assert rows["x 0 to 4"] == (of_x, of_x, "2.00", f"{3 * test.pvalue:.3f}", "3")  # Holm: of three effects
    assert rows["y on to off"][:2] == ("+12.00", "+12.00")
    assert rows["x 0 to 4 \N{MULTIPLICATION SIGN} y on to off"][0] == "+4.00"
    (picture,) = section.pictures
    with svg_alone():
        svg, csv = render(picture).svg, figure_csv(picture.info)
    assert ">x 0 to 4<" in svg and svg.count(">y on to off<") == 1 and f"{mean:.6g}"[:6] in csv
    (effect, *_) = section.values["effects"]
    assert (effect["change"], effect["seeds"]) == ("x 0 to 4", 3)
    assert (effect["estimate"], effect["high"]) == pytest.approx((mean / 100, high / 100))
    assert effects_section(sweep, Axes()) is None
    # An effect is no share: its interval may end below 0.
    worse = mean_estimate([-0.3, -0.1, 0.1])
    (line,) = effects_info(sweep.board, [("chain", "cppo", "x", worse)], "Title").panels[0].lines
    half = T_3 * 20 / math.sqrt(3)
    assert (*line.low, *line.high) == pytest.approx((-10 - half, -10 + half))
    wide = replace(mean_estimate([-0.9, 0.9, 0.3]), most=1.0)  # as `effects` has it
    (line,) = effects_info(sweep.board, [("chain", "cppo", "x", wide)], "Title").panels[0].lines
    assert (*line.low, *line.high) == (-100, 100)
