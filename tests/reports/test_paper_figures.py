"""Figures 4 to 11 of the paper's report: what is drawn is what the paper's files say, point by point.

The points are read off the drawing itself (the lines in the axes), and the files with `csv`, not with our reader.
"""

import csv
import gzip
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from cppo_lab.analysis.study import StudyResults, read_study
from cppo_lab.reports.figures.data import figure_csv
from cppo_lab.reports.figures.drawing import Picture
from cppo_lab.reports.figures.gallery import MECHANISMS, SETTINGS, gallery
from cppo_lab.reports.study import paper_study_request

FOLDER = Path(__file__).parents[2] / "reports" / "paper"
T_STOP = {"Qwen3-1.7B": 1120, "Qwen3-1.7B-Base": 680, "Qwen3-8B-Base": 490, "Qwen3-30B-A3B-Base": 560}
MODELS = tuple(T_STOP)
COLOUR = {
    **{"cppo": "#0052D9", "dppo": "#E05759", "trm_avg": "#D9A521", "trm_max": "#B5651D"},
    **{"cispo": "#B07AA1", "grpo": "#59A14F", "minpro": "#282828"},
}
FULL = {"cppo_tv", "cppo_topk_tv", "cppo_db0.02_w0.8"}  # CPPO under another name
Curve = dict[int, float]


def rows(name: str) -> Iterator[dict[str, str]]:
    data = (FOLDER / name).read_bytes()
    yield from csv.DictReader((gzip.decompress(data) if name.endswith("gz") else data).decode().splitlines())


@pytest.fixture(scope="module")
def study(reference_uri: str, tmp_path_factory: pytest.TempPathFactory) -> StudyResults:
    request = paper_study_request(reference_uri, tmp_path_factory.mktemp("unused"))
    return read_study(reference_uri, request.experiment, request.name, request.sweeps)


@pytest.fixture(scope="module")
def drawn(study: StudyResults) -> dict[str, tuple[Picture, Figure]]:
    """Every figure that the curves allow, drawn."""
    found = {}
    for picture in gallery(study):
        if not picture.absent:
            fig = Figure()
            picture.draw(picture.info, fig)
            found[picture.name] = (picture, fig)
    return found


@pytest.fixture(scope="module")
def validation() -> dict[tuple[str, str, str], Curve]:
    """(model, method, benchmark or "mean") -> the points inside the window, in percent."""
    found: dict[tuple[str, str, str], Curve] = {}
    for row in rows("validation_curves.csv"):
        step = int(row["step"])
        if step <= T_STOP[row["model"]]:
            key = (row["model"], row["method"], row["benchmark"])
            found.setdefault(key, {})[step] = 100 * float(row["avg_at_16"])
    for model, method in {(model, method) for model, method, _ in found}:
        parts = [found[model, method, name] for name in ("aime24", "aime25", "aime26")]
        steps = set.intersection(*(set(part) for part in parts))
        found[model, method, "mean"] = {s: sum(part[s] for part in parts) / 3 for s in sorted(steps)}
    return found


@pytest.fixture(scope="module")
def diagnostics() -> dict[tuple[str, str, str], Curve]:
    """(model, method, metric of the file) -> its points."""
    found: dict[tuple[str, str, str], Curve] = {}
    for row in rows("training_diagnostics.csv.gz"):
        key = (row["model"], row["method"], row["metric"])
        found.setdefault(key, {})[int(row["step"])] = float(row["value"])
    return found


def lines_of(ax: Axes, colour: str, least: int = 5) -> list[Line2D]:
    """The curves of a colour (marks have one point, straight lines two)."""
    return [line for line in ax.lines if line.get_color() == colour and len(line.get_xdata()) >= least]


def points(line: Line2D) -> Curve:
    return dict(zip(map(round, line.get_xdata()), map(float, line.get_ydata()), strict=True))


def assert_same(line: Line2D, curve: Curve) -> None:
    assert list(line.get_xdata()) == sorted(curve)  # every point once, none added and none left out
    assert points(line) == pytest.approx(curve, abs=1e-9)


def test_what_there_is(drawn: dict[str, tuple[Picture, Figure]]) -> None:
    assert set(drawn) == {f"figure_{number}" for number in (1, *range(4, 12))}


def test_every_drawn_number_and_name_is_in_the_csv(drawn: dict[str, tuple[Picture, Figure]]) -> None:
    for name, (picture, fig) in drawn.items():
        written = {cell for row in csv.reader(figure_csv(picture.info).splitlines()) for cell in row}
        legends = [*fig.legends, *(ax.get_legend() for ax in fig.axes)]
        texts = [text.get_text() for legend in legends if legend for text in legend.get_texts()]
        texts += [
            text.get_text()
            for ax in fig.axes
            for text in ax.texts
            if re.fullmatch(r"[\d.]+", text.get_text())
        ]
        texts += [ax.get_title(loc="left").split(" (T_stop")[0].strip() for ax in fig.axes[-2:]]
        assert texts, name
        assert [text for text in texts if text and text not in written] == [], name


@pytest.mark.parametrize(("name", "models"), [("figure_1", MODELS[3:]), ("figure_4", MODELS[1:])])
def test_main_curves(
    drawn: dict[str, tuple[Picture, Figure]],
    validation: dict[tuple[str, str, str], Curve],
    name: str,
    models: tuple[str, ...],
) -> None:
    panels = drawn[name][1].axes[-len(models) :]
    for ax, model in zip(panels, models, strict=True):
        assert ax.get_title(loc="left").startswith(model + " ")
        for method, colour in COLOUR.items():
            (line,) = lines_of(ax, colour)
            assert_same(line, validation[model, method, "mean"])


@pytest.mark.parametrize("number", [5, 6])
def test_ablations(drawn: dict[str, tuple[Picture, Figure]], number: int) -> None:
    curves: dict[str, dict[str, Curve]] = {}
    for row in rows("ablation_curves.csv"):
        of_sweep = curves.setdefault(row["ablation"], {})
        of_sweep.setdefault(row["variant"], {})[int(row["step"])] = 100 * float(row["aime24_25_26_avg_at_16"])
    fig = drawn[f"figure_{number}"][1]
    seen: dict[str, str] = {}
    for ax, (sweep, _) in zip(fig.axes, MECHANISMS if number == 5 else SETTINGS, strict=True):
        drawn_lines = [line for line in ax.lines if len(line.get_xdata()) >= 5]
        assert len(drawn_lines) == len(curves[sweep])
        for variant, curve in curves[sweep].items():
            # A run of the main grid stands for its twin here; the files round both to six decimals of a fraction.
            fits = [line for line in drawn_lines if points(line) == pytest.approx(curve, abs=3e-4)]
            assert len(fits) == 1, (sweep, variant)
            colour = str(fits[0].get_color())
            assert colour == COLOUR.get("cppo" if variant in FULL else variant, colour)
            assert seen.setdefault(variant, colour) == colour  # the same in every panel


def test_warmup(drawn: dict[str, tuple[Picture, Figure]]) -> None:
    curves: dict[tuple[str, str], Curve] = {}
    for row in rows("warmup_diagnostics.csv"):
        curves.setdefault((row["metric"], row["model"]), {})[int(row["step"])] = float(row["value"])
    axes = iter(drawn["figure_7"][1].axes)
    for metric in ("delta_b_effective_mean", "prefix_budget_mask_fraction"):
        for model in MODELS[1:]:
            ax = next(axes)
            line = lines_of(ax, COLOUR["cppo"])[0]
            assert_same(line, curves[metric, model])
            low, high = ax.get_ylim()
            assert low <= min(curves[metric, model].values())
            assert max(curves[metric, model].values()) <= high
            floor = [line for line in ax.lines if line.get_color() == "#555555"]
            assert [line.get_ydata()[0] for line in floor] == ([0.02] if metric.startswith("delta_b") else [])


@pytest.mark.parametrize("index", range(4))
def test_all_curves_of_a_model(
    drawn: dict[str, tuple[Picture, Figure]],
    validation: dict[tuple[str, str, str], Curve],
    diagnostics: dict[tuple[str, str, str], Curve],
    index: int,
) -> None:
    model, axes = MODELS[index], drawn[f"figure_{8 + index}"][1].axes
    assert [ax.get_title(loc="left") for ax in axes] == [
        *("AIME24", "AIME25", "AIME26"),
        *("reward (fraction)", "response length (k tokens)", "relative log-prob error"),
    ]
    for method, colour in COLOUR.items():
        for ax, benchmark in zip(axes[:3], ("aime24", "aime25", "aime26"), strict=True):
            (line,) = lines_of(ax, colour)
            assert_same(line, validation[model, method, benchmark])
        raw, smooth = sorted(lines_of(axes[3], colour), key=lambda line: line.get_linewidth())
        assert_same(raw, diagnostics[model, method, "reward"])
        assert_same(smooth, diagnostics[model, method, "reward_smoothed"])
        for ax, metric in zip(axes[4:], ("response_length_k", "rel_logprob_error"), strict=True):
            of_steps = sorted(lines_of(ax, colour), key=lambda line: line.get_linewidth())
            assert_same(of_steps[0], diagnostics[model, method, metric])


def test_all_of_it_is_in_view(drawn: dict[str, tuple[Picture, Figure]]) -> None:
    for name, (_, fig) in drawn.items():
        for ax in fig.axes:
            (left, right), (low, high) = ax.get_xlim(), ax.get_ylim()
            for line in ax.lines if name != "figure_1" else ():
                if len(line.get_xdata()) < 5:
                    continue
                steps, values = line.get_xdata(), line.get_ydata()
                assert left <= np.nanmin(steps) and np.nanmax(steps) <= right, name
                assert low <= np.nanmin(values) and np.nanmax(values) <= high, name
