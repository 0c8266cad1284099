"""Figures 4 to 11 of the paper's report: what is drawn is what the paper's files say, point by point.

The points are read off the drawing itself (the lines in the axes), and the files with `csv`, not with our reader.
"""

import csv
import gzip
import itertools
import re
from collections import defaultdict
from pathlib import Path

import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from cppo_lab.analysis.study import read_study
from cppo_lab.reports.figures.drawing import Picture, figure_csv, figure_style
from cppo_lab.reports.figures.gallery import MECHANISMS, SETTINGS, gallery
from cppo_lab.reports.study import paper_study_request
from tests.conftest import ROOT

FOLDER = ROOT / "reports" / "paper"
T_STOP = {"Qwen3-1.7B": 1120, "Qwen3-1.7B-Base": 680, "Qwen3-8B-Base": 490, "Qwen3-30B-A3B-Base": 560}
MODELS = tuple(T_STOP)
AIME = ("aime24", "aime25", "aime26")
COLOUR = {
    "cppo": "#0052D9",
    "dppo": "#E05759",
    "trm_avg": "#D9A521",
    "trm_max": "#B5651D",
    "cispo": "#B07AA1",
    "grpo": "#59A14F",
    "minpro": "#282828",
}
FULL = {"cppo_tv", "cppo_topk_tv", "cppo_db0.02_w0.8"}  # CPPO under another name
Curve = dict[int, float]
Curves = dict[tuple[str, ...], Curve]
Drawn = dict[str, tuple[Picture, Figure]]


def curves(name: str, keys: tuple[str, ...], value: str, scale: float = 1.0) -> Curves:
    """The curves of a file of the paper, by the values of these columns."""
    result: Curves = defaultdict(dict)
    with (gzip.open if name.endswith("gz") else open)(FOLDER / name, "rt") as file:
        for row in csv.DictReader(file):
            result[tuple(row[key] for key in keys)][int(row["step"])] = scale * float(row[value])
    return result


@pytest.fixture(scope="module")
def drawn(reference_uri: str, shared_path: Path) -> Drawn:
    """Every figure that the curves allow, drawn."""
    request = paper_study_request(reference_uri, shared_path)
    figures = {}
    for picture in gallery(read_study(reference_uri, request.experiment, request.name, request.sweeps)):
        if not picture.absent:
            with figure_style():
                picture.draw(picture.info, figure := Figure())
            figures[picture.name] = (picture, figure)
    return figures


@pytest.fixture(scope="module")
def validation() -> Curves:
    """(model, method, benchmark or "mean") -> the points inside the window, in percent."""
    of_files = curves("validation_curves.csv", ("model", "method", "benchmark"), "avg_at_16", 100)
    inside = {
        key: {step: score for step, score in curve.items() if step <= T_STOP[key[0]]}
        for key, curve in of_files.items()
    }
    for pair in itertools.product(MODELS, COLOUR):
        parts = [inside[*pair, name] for name in AIME]
        steps = set.intersection(*map(set, parts))
        inside[*pair, "mean"] = {step: sum(part[step] for part in parts) / 3 for step in steps}
    return inside


@pytest.fixture(scope="module")
def diagnostics() -> Curves:
    """(model, method, metric of the file) -> its points."""
    return curves("training_diagnostics.csv.gz", ("model", "method", "metric"), "value")


def lines_of(ax: Axes, colour: str = "") -> list[Line2D]:
    """The curves, of a colour, by width (marks have one point, straight lines two)."""
    lines = [line for line in ax.lines if len(line.get_xdata()) >= 5 and colour in ("", line.get_color())]
    return sorted(lines, key=lambda line: line.get_linewidth())


def points(line: Line2D) -> Curve:
    return dict(zip(map(round, line.get_xdata()), map(float, line.get_ydata()), strict=True))


def assert_same(line: Line2D, curve: Curve) -> None:
    assert list(line.get_xdata()) == sorted(curve)  # every point once, none added and none left out
    assert points(line) == pytest.approx(curve, abs=1e-9)


def test_every_drawn_number_and_name_is_in_the_csv_and_in_view(drawn: Drawn) -> None:
    assert set(drawn) == {f"figure_{number}" for number in (1, *range(4, 12))}
    for name, (picture, fig) in drawn.items():
        written = {cell for row in csv.reader(figure_csv(picture.info).splitlines()) for cell in row}
        legends = [*fig.legends, *(ax.get_legend() for ax in fig.axes)]
        texts = [text.get_text() for legend in legends if legend for text in legend.get_texts()]
        marks = [text.get_text() for ax in fig.axes for text in ax.texts]
        texts += [text for text in marks if re.fullmatch(r"[\d.]+", text)]
        texts += [ax.get_title(loc="left").split(" (T_stop")[0].strip() for ax in fig.axes[-2:]]
        assert texts and {text for text in texts if text} <= written, name
        for ax in fig.axes if name != "figure_1" else ():
            (left, right), (low, high) = ax.get_xlim(), ax.get_ylim()
            for x, y in (point for line in lines_of(ax) for point in line.get_xydata()):
                assert not (x < left or x > right or y < low or y > high), name  # where it is not NaN


@pytest.mark.parametrize("name, models", [("figure_1", MODELS[3:]), ("figure_4", MODELS[1:])])
def test_main_curves(drawn: Drawn, validation: Curves, name: str, models: tuple[str, ...]) -> None:
    for ax, model in zip(drawn[name][1].axes[-len(models) :], models, strict=True):
        assert ax.get_title(loc="left").startswith(model + " ")
        for method, colour in COLOUR.items():
            (line,) = lines_of(ax, colour)
            assert_same(line, validation[model, method, "mean"])


def test_ablations(drawn: Drawn) -> None:
    of_file = curves("ablation_curves.csv", ("ablation", "variant"), "aime24_25_26_avg_at_16", 100)
    seen: dict[str, str] = {}
    axes = [*drawn["figure_5"][1].axes, *drawn["figure_6"][1].axes]
    for ax, (sweep, _) in zip(axes, [*MECHANISMS, *SETTINGS], strict=True):
        of_sweep = {variant: curve for (ablation, variant), curve in of_file.items() if ablation == sweep}
        assert len(lines_of(ax)) == len(of_sweep)
        for variant, curve in of_sweep.items():
            # A run of the main grid stands for its twin here; the files round both to six decimals of a fraction.
            (line,) = (line for line in lines_of(ax) if points(line) == pytest.approx(curve, abs=3e-4))
            colour = str(line.get_color())
            assert colour == COLOUR.get("cppo" if variant in FULL else variant, colour)
            assert seen.setdefault(variant, colour) == colour  # the same in every panel


def test_warmup(drawn: Drawn) -> None:
    of_file = curves("warmup_diagnostics.csv", ("metric", "model"), "value")
    rate, share = "delta_b_effective_mean", "prefix_budget_mask_fraction"
    names = itertools.product((rate, share), MODELS[1:])
    for ax, name in zip(drawn["figure_7"][1].axes, names, strict=True):
        assert_same(lines_of(ax, COLOUR["cppo"])[-1], of_file[name])
        floor = [line.get_ydata()[0] for line in ax.lines if line.get_color() == "#555555"]
        assert floor == ([0.02] if rate in name else [])


@pytest.mark.parametrize("number, model", list(enumerate(MODELS, 8)))
def test_all_curves_of_a_model(
    drawn: Drawn, validation: Curves, diagnostics: Curves, number: int, model: str
) -> None:
    axes = drawn[f"figure_{number}"][1].axes
    assert "; ".join(ax.get_title(loc="left") for ax in axes) == (
        "AIME24; AIME25; AIME26; reward (fraction); response length (k tokens); relative log-prob error"
    )
    for method, colour in COLOUR.items():
        for ax, benchmark in zip(axes[:3], AIME, strict=True):
            (line,) = lines_of(ax, colour)
            assert_same(line, validation[model, method, benchmark])
        lines = [*lines_of(axes[3], colour), *(lines_of(ax, colour)[0] for ax in axes[4:])]
        metrics = ("reward", "reward_smoothed", "response_length_k", "rel_logprob_error")
        for line, metric in zip(lines, metrics, strict=True):
            assert_same(line, diagnostics[model, method, metric])
