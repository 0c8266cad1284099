"""The report of a search: its page, its figures' infos, its tables, and searches of every shape."""

import csv
import json
import os
import pickle
import re
import shlex
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from cppo_lab.analysis.search import SearchResult, Value, parse_search
from cppo_lab.errors import UserError
from cppo_lab.reports import build
from cppo_lab.reports.build import build_report
from cppo_lab.reports.figures.drawing import Drawn, Picture
from cppo_lab.reports.figures.palette import DARK
from cppo_lab.reports.figures.search import importances, search_figures
from cppo_lab.reports.saved import MARKER
from cppo_lab.reports.search import SearchRequest, certainty, finding, launch_commands, override
from tests.analysis.made_search import (
    copied,
    log_search,
    log_training,
    made_search,
    made_trial,
    two_objectives,
)

STUDY = "tune_made-mini_base"
SHIPPED: dict[str, Value] = {"rule.delta_b": 0.02, "rule.w_min": 0.8, "rule.delta": 0.15}
TABLES = {f"table_{name}.{kind}" for name in ("trials", "space") for kind in ("md", "tex", "csv")}


def parsed(content: dict[str, Any]) -> SearchResult:
    return parse_search(json.dumps(content), "x")


def pictures(*names: str) -> set[str]:
    return {f"figure_{name}.{kind}" for name in names for kind in ("png", "svg", "pdf", "csv")}


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.fixture
def made(empty_store: Path, tmp_path: Path) -> SearchRequest:
    """A request for a store of its own, without any search yet."""
    uri = copied(empty_store, tmp_path)
    return SearchRequest(
        uri,
        "cppo-mini",
        STUDY,
        tmp_path / "report",
        "cppo report tune_made",
        "cppo tune tune_made",
        shipped=SHIPPED,
    )


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Figures have their files, which are empty, and their numbers."""
    svg = '<svg viewBox="0 0 1 1"></svg>'

    def render(picture: Picture, _command: str, _style: object) -> Drawn:
        return Drawn(picture, svg, b"", b"", 0.0, ())

    monkeypatch.setattr(build, "render", render)


def built(request: SearchRequest, content: dict[str, Any]) -> dict[str, bytes]:
    """The files of the report of `content`."""
    log_search(request.uri, content)
    return contents(build_report(request).parent)


@pytest.fixture(scope="module")
def reported(empty_store: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The report of the made search, its training runs included."""
    folder = tmp_path_factory.mktemp("made")
    uri, content = copied(empty_store, folder), made_search()
    log_search(uri, content)
    log_training(uri, content)
    page = build_report(
        SearchRequest(
            uri,
            "cppo-mini",
            STUDY,
            folder / "r",
            "cppo report tune_made",
            "cppo tune tune_made",
            shipped=SHIPPED,
        )
    )
    assert page == folder / "r" / "index.html"
    return contents(page.parent)


def test_the_report_of_a_search(reported: dict[str, bytes]) -> None:
    files = reported
    drawn = pictures("history", "importances", "slices", "sensitivity", "curves")
    assert set(files) == TABLES | drawn | {"index.html", "report.json", "tables.tex", "overleaf.zip", MARKER}
    html = files["index.html"].decode()
    assert (
        "The best of 24 trials is trial 22: rule.delta_b=0.008106, rule.w_min=0.7: final score 59.8\xa0%."
        in html
    )
    assert "24 trials: 20 complete, 3 pruned, 1 failed" in html
    assert "core=mini: a miniature model on a synthetic task, not comparable" in html
    assert "the best of 20, and so too high on average (selection bias)" in html
    assert "Over 2 seeds one trial scatters by 0.6 points (standard deviation, pooled over 20 trials)" in html
    assert "trial 22 leads by 0.3 points, and trials 12, 19 and 9 are within two standard errors" in html
    assert "59.8 ± 0.6" in html
    assert "pruned at step 20 of seed 0" in html
    assert "out of memory" in html
    exact = made_trial(22, (0, 1))["params"]["rule.delta_b"]
    assert f"cppo launch main rule.delta_b={exact!r} rule.w_min=0.7 seed=2,3" in html
    assert "cppo tune tune_made --trials 48" in html
    assert html.count("<svg") == 5
    for name in drawn:
        if name.endswith("svg"):
            assert b"cppo report tune_made" in files[name]
            assert b"run-22-1" in files[name]


def test_the_numbers_of_the_figures(reported: dict[str, bytes]) -> None:
    def columns(figure: str, name: str) -> dict[str, float]:
        rows = csv.DictReader(reported[f"figure_{figure}.csv"].decode().splitlines())
        return {row["at"]: float(row["value"]) for row in rows if row["name"] == name}

    trials = csv.DictReader(reported["table_trials.csv"].decode().splitlines())
    complete = {row["trial"]: row for row in trials if row["state"] == "complete"}
    for figure in ("history", "slices", "sensitivity"):
        for name, column in (("final score", "final_score"), ("rule.delta_b", "rule.delta_b")):
            values = {trial: float(row[column]) for trial, row in complete.items()}
            assert columns(figure, name) == pytest.approx(values, abs=1e-4)
    curve = dict(made_trial(22, (0, 1))["curve"])
    assert columns("curves", "trial 22") == pytest.approx(
        {str(at): 100 * score for at, score in curve.items()}
    )
    assert sum(columns("importances", "final score").values()) == pytest.approx(1)


def test_the_tables(reported: dict[str, bytes]) -> None:
    files = reported
    rows = list(csv.DictReader(files["table_trials.csv"].decode().splitlines()))
    assert len(rows) == 24
    best = rows[0]
    trial = made_trial(22, (0, 1))
    assert float(best["rule.delta_b"]) == trial["params"]["rule.delta_b"]  # every digit
    assert float(best["final_score"]) == pytest.approx(100 * trial["values"][0], abs=1e-4)
    assert [float(one) for one in best["final_score_by_seed"].split()] == pytest.approx(
        [100 * trial["values"][0] - 0.4, 100 * trial["values"][0] + 0.4], abs=1e-3
    )
    assert (best["run_ids"], best["core"]) == ("run-22-0 run-22-1", "mini")
    values = [float(row["final_score"]) for row in rows if row["state"] == "complete"]
    assert values == sorted(values, reverse=True)
    assert [row["state"] for row in rows[20:]] == ["pruned"] * 3 + ["failed"]
    assert rows[-1]["reason"] == "out of memory"
    markdown = files["table_trials.md"].decode()
    assert "| 22 | complete | 0.008106 | 0.7 | 59.8 ± 0.6 | 0.9 |" in markdown
    assert r"\rowcolor{black!8} 22 & complete" in files["table_trials.tex"].decode()
    assert "0.002 to 0.05, log scale,0.02,0.008106,mini" in files["table_space.csv"].decode().replace('"', "")


def test_the_same_search_gives_the_same_bytes_in_another_process(made: SearchRequest) -> None:
    first = built(made, made_search())
    code = "import pickle, sys; from cppo_lab.reports.build import build_report;"
    code += "build_report(pickle.loads(sys.stdin.buffer.read()))"
    environment = dict(os.environ, PYTHONHASHSEED="7")
    subprocess.run([sys.executable, "-c", code], input=pickle.dumps(made), check=True, env=environment)
    again = contents(made.out)
    assert [name for name in again if again[name] != first.get(name)] == []
    assert set(again) == set(first)


@pytest.mark.usefixtures("undrawn")
def test_the_page_is_self_contained_and_its_ids_are_unique(made: SearchRequest) -> None:
    files = built(made, two_objectives())
    html = files["index.html"].decode()
    counted = Counter(re.findall(r'\bid="([^"]+)"', html))
    assert max(counted.values()) == 1
    loaded = re.findall(r'(?:src|href)="([^"]*)"|url\(([^)]*)\)|@import', html)
    named = {first or second for first, second in loaded}
    assert {one for one in named if not one.startswith("data:image/png;base64,")} <= {
        *(f"#{name}" for name in counted),
        *files,
    }
    assert "<script" not in html
    assert re.search(r"<(link|iframe|img|object)\b", html) is None


def test_hostile_text_is_text(made: SearchRequest) -> None:
    hostile = "<script>alert(1)</script> $\\frac{$ {{ 7 * 7 }}"
    content = made_search(title=hostile, question=hostile, model=hostile, sampler=hostile, pruner=hostile)
    content["name"] = content["study"] = hostile
    content["parameters"]["rule.name"] = {"choices": [hostile, "'; rm -rf ~ #"]}
    for trial in content["trials"]:
        trial["params"]["rule.name"] = hostile
        trial["reason"] = trial["mlflow_id"] = hostile
        trial["run_ids"] = [hostile]
    log_search(made.uri, content, hostile)
    request = replace(made, study=hostile, command=hostile)
    files = contents(build_report(request).parent)
    html = files["index.html"].decode()
    assert "<script" not in html
    assert html.count("&lt;script&gt;") > 50
    assert "49" not in re.findall(r"<h1>(.*?)</h1>", html)[0]
    for name, data in files.items():
        if name.endswith((".svg", ".md")):
            assert b"<script" not in data


@pytest.mark.usefixtures("undrawn")
def test_a_search_of_one_trial(made: SearchRequest) -> None:
    files = built(made, made_search(trials=1, seeds=(0,), importances={}))
    html = files["index.html"].decode()
    assert set(files) >= pictures("history", "slices", "curves")
    assert "figure_importances.png" not in files
    assert "too few complete trials to tell" in html
    assert "The best of 1 trial is trial 0" in html
    assert "too high on average" not in html
    assert "Every trial ran with one seed (0)" in html


def test_a_search_whose_trials_all_failed(made: SearchRequest) -> None:
    content = made_search(importances={}, best=[])
    for trial in content["trials"]:
        trial |= {"state": "failed", "values": None, "curve": [], "params": {}, "reason": "no GPU"}
    files = built(made, content)
    html = files["index.html"].decode()
    assert not any(name.startswith("figure_") for name in files)
    assert "No trial is complete: there is no best one yet." in html
    assert html.count("no GPU") == 24
    assert "cppo launch" not in html


@pytest.mark.usefixtures("undrawn")
def test_a_search_without_trials(made: SearchRequest) -> None:
    html = built(made, made_search(trials=0, importances={}))["index.html"].decode()
    assert "no trial yet" in html


@pytest.mark.usefixtures("undrawn")
def test_three_objectives(made: SearchRequest) -> None:
    content = made_search(seeds=(0,), objectives=["final_score", "stability", "best_score"], importances={})
    for trial in content["trials"]:
        if trial["values"]:
            value, number = trial["values"][0], trial["number"]
            trial["values"] = [value, 1 - value, 0.9 if number == 0 else 0.3]
    # Along a line every trial is on the front.
    content["best"] = [trial["number"] for trial in content["trials"] if trial["values"]]
    files = built(made, content)
    assert set(files) >= pictures("pareto", "history", "slices", "history_stability", "slices_best_score")
    html = files["index.html"].decode()
    assert "20 of 24 trials are on the Pareto front of final score, stability and best score" in html
    assert "The highest best score is that of trial 0" in html
    assert html.count("cppo launch main") == 20
    assert b"final score" in files["table_trials.md"] and b"best score" in files["table_trials.md"]


@pytest.mark.usefixtures("undrawn")
def test_choices_are_drawn(made: SearchRequest) -> None:
    content = made_search()
    names = ("cppo", None, True)
    content["parameters"] = {
        "rule.delta": {"choices": [0.02, 0.05, 0.15]},
        "rule.name": {"choices": [*names]},
    }
    for trial in content["trials"]:
        number = trial["number"]
        trial["params"] = {"rule.delta": (0.02, 0.05, 0.15)[number % 3], "rule.name": names[number // 3 % 3]}
    assert set(built(made, content)) >= pictures("slices", "sensitivity", "importances")


def panels(name: str, content: dict[str, Any]) -> list[Axes]:
    """The panels of a figure, as it is drawn."""
    [picture] = [each for each in search_figures(parsed(content)) if each.name == f"figure_{name}"]
    figure = picture.draw(picture.info, Figure())
    assert figure is not None
    return [*figure.axes]


def test_a_drawing_is_ours() -> None:
    """Its colours have dark ones; nothing is named twice or written over another."""
    [history] = panels("history", made_search())
    [best] = history.lines
    highest = [max(value for value in column) for column in accumulate_columns(made_search())]
    assert list(best.get_ydata()) == pytest.approx(highest)
    assert best.get_color().lower() in DARK
    assert not history.get_title() + history.get_title(loc="left")
    log, plain, _bar = panels("slices", made_search())
    ticks = [label.get_text() for label in log.get_xticklabels()]
    assert {"0.002", "0.005", "0.01", "0.02", "0.05"} <= set(ticks)
    assert not [label for label in log.get_xticklabels(minor=True) if label.get_text()]
    assert (plain.get_xlabel(), log.get_ylabel()) == ("rule.w_min", "final score (%)")
    [curves] = panels("curves", made_search())
    assert curves.get_legend_handles_labels()[1] == ["complete", "pruned", "best: trial 22"]
    assert max(max(line.get_ydata()) for line in curves.lines[:-1]) == pytest.approx(59.8, abs=0.05)


def accumulate_columns(content: dict[str, Any]) -> list[list[float]]:
    """The values of the complete trials up to each of them, in percent."""
    values = [100 * trial["values"][0] for trial in content["trials"] if trial["values"]]
    return [values[: place + 1] for place in range(len(values))]


def test_many_parameters_are_in_rows() -> None:
    content = made_search()
    for name in ("a", "b", "c"):
        content["parameters"][name] = {"low": 0.0, "high": 1.0, "log": False, "step": None}
        for trial in content["trials"]:
            trial["params"][name] = trial["number"] / 24
    *slices, _bar = panels("slices", content)
    places = [ax.get_subplotspec() for ax in slices]
    assert [(place.rowspan.start, place.colspan.start) for place in places if place] == [
        (0, 0), (0, 1), (0, 2), (1, 0), (1, 1),
    ]  # fmt: skip


def test_importances_are_those_of_the_higher_values() -> None:
    """One parameter decides which values are high, the other one how low the low ones are."""
    content = made_search()
    for trial in content["trials"]:
        if trial["values"]:
            high, delta_b = trial["params"]["rule.w_min"] > 0.84, trial["params"]["rule.delta_b"]
            trial["values"] = [0.9 if high else 0.2 - 3 * delta_b]
    shares = importances(parsed(content))["final_score"]
    assert sum(shares.values()) == pytest.approx(1)
    assert shares["rule.w_min"] > 0.8
    assert importances(parsed(made_search(trials=8))) == {}


@pytest.mark.parametrize("case", ["on a line", "all the same"])
def test_no_surface_where_it_would_be_made_up(case: str) -> None:
    content = made_search()
    for trial in content["trials"]:
        if case == "on a line":
            trial["params"]["rule.w_min"] = 0.7
        elif trial["values"]:
            trial["values"] = [0.5]
    absent = {picture.name: picture.absent for picture in search_figures(parsed(content))}
    assert (
        absent["figure_sensitivity"]
        == "the complete trials do not differ in two parameters and in their values"
    )
    assert not absent["figure_slices"]


@pytest.mark.usefixtures("undrawn")
def test_words_on_ties_and_edges(made: SearchRequest) -> None:
    content = made_search(trials=3, seeds=(4,))
    for trial, value in zip(content["trials"], (0.5, 0.4, 0.5), strict=True):
        trial["values"] = [value]
    content["trials"][0]["params"] = {"rule.delta_b": 0.05, "rule.w_min": 0.7}
    content["best"] = [0]
    result = parsed(content)
    assert finding(result)[0].endswith("final score 50.0\xa0%. Trial 2 reached the same value.")
    assert "Every trial ran with one seed (4)" in " ".join(certainty(result, ()))
    assert "0.05 (at the edge)" in built(made, content)["table_space.csv"].decode()
    assert launch_commands(result) == ("cppo launch main rule.delta_b=0.05 rule.w_min=0.7 seed=5,6",)


def test_a_search_that_found_no_difference_says_so() -> None:
    content = made_search(trials=3, best=[0])
    for trial in content["trials"]:
        trial["values"] = [0.5]
    result = parsed(content)
    assert finding(result)[0].startswith("All 3 complete trials have the same value, final score 50.0\xa0%")
    assert certainty(result, ()) == ()


def test_the_line_to_launch_names_the_core_and_what_was_tuned() -> None:
    result = parsed(made_search())
    (plain,), (chosen,) = (
        launch_commands(result),
        launch_commands(result, ("variant=cppo", "model=mini_base")),
    )
    assert plain.startswith("cppo launch main rule.")
    assert chosen == plain.replace("main ", "main variant=cppo model=mini_base ")
    other = launch_commands(parsed(made_search(core="verl")))
    assert other == (plain.replace("main ", "main core=verl "),)


@pytest.mark.parametrize(
    "value",
    [0.1, 1e-05, 3, True, None, "cppo", "0.5", "true", "a b", "it's", "back\\", "a\\'b", "x,y", "${seed}"],
)
def test_overrides_survive_the_shell_and_hydra(value: Value) -> None:
    parser = pytest.importorskip("hydra.core.override_parser.overrides_parser")
    (word,) = shlex.split(override("rule.x", value))
    (read,) = parser.OverridesParser.create().parse_overrides([word])
    assert read.key_or_group == "rule.x"
    assert read.value() == value
    assert type(read.value()) is type(value)


@pytest.mark.usefixtures("undrawn")
def test_a_refused_build_leaves_the_old_report(made: SearchRequest) -> None:
    before = built(made, made_search())
    log_search(made.uri, made_search(core="own"))
    with pytest.raises(UserError, match="core='own'"):
        build_report(made)
    assert contents(made.out) == before
    other = made.out.parent / "mine"
    other.mkdir()
    (other / "thesis.tex").write_text("mine")
    with pytest.raises(UserError, match="is not a report of ours"):
        build_report(replace(made, out=other))


@pytest.mark.usefixtures("undrawn")
def test_a_search_that_the_main_sweep_cannot_train_has_no_line_to_launch(made: SearchRequest) -> None:
    html = built(replace(made, chosen=None), made_search())["index.html"].decode()
    assert "cppo launch main" not in html
    assert "The main sweep has no variant of this search's rule." in html
