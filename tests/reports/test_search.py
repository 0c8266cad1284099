"""The report of a search: its page, its figures' infos, its tables, and searches of every shape."""

import csv
import itertools
import re
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from cppo_lab.analysis.search import Value
from cppo_lab.reports.build import build_report
from cppo_lab.reports.figures.drawing import DARK, Picture
from cppo_lab.reports.saved import MARKER
from cppo_lab.reports.search import (
    SearchRequest,
    certainty,
    finding,
    importances,
    launch_commands,
    override,
    search_figures,
)
from tests.analysis.made_search import log_search, log_training, made_search, made_trial, parsed
from tests.reports.conftest import svg_alone
from tests.reports.test_build import contents, named

STUDY = "tune_made-mini_base"
SHIPPED: dict[str, Value] = {"rule.delta_b": 0.02, "rule.w_min": 0.8, "rule.delta": 0.15}


def request_of(folder: Path) -> SearchRequest:
    """A request for a store of its own, without any search yet."""
    return SearchRequest(
        uri=f"sqlite:///{folder / 'mlflow.db'}",
        experiment="cppo-mini",
        study=STUDY,
        out=folder / "report",
        command="cppo report tune_made",
        tune="cppo tune tune_made",
        shipped=SHIPPED,
    )


@pytest.fixture
def made(tmp_path: Path) -> SearchRequest:
    return request_of(tmp_path)


def built(request: SearchRequest, content: dict[str, Any]) -> dict[str, bytes]:
    """The files of the report of `content`."""
    log_search(request.uri, content)
    return contents(build_report(request).parent)


@pytest.fixture(scope="module")
def reported(shared_path: Path) -> dict[str, bytes]:
    """The report of the made search, its training runs included."""
    request, content = request_of(shared_path), made_search()
    log_search(request.uri, content)
    log_training(request.uri, content)
    with svg_alone():
        return contents(build_report(request).parent)


def drawn(content: dict[str, Any]) -> dict[str, Picture]:
    """The figures that are not absent, by name."""
    pictures = search_figures(parsed(content))
    return {picture.name.removeprefix("figure_"): picture for picture in pictures if not picture.absent}


def table(files: dict[str, bytes], name: str) -> list[dict[str, str]]:
    """The rows of a CSV file."""
    return list(csv.DictReader(files[f"{name}.csv"].decode().splitlines()))


def test_the_report_of_a_search(reported: dict[str, bytes]) -> None:
    figures = named((f"figure_{name}" for name in drawn(made_search())), "png svg pdf csv")
    tables = named(("table_trials", "table_space"), "md tex csv")
    assert {*reported} == figures | tables | {
        "index.html",
        "report.json",
        "tables.tex",
        "overleaf.zip",
        MARKER,
    }
    html = reported["index.html"].decode()
    exact = made_trial(22, (0, 1))["params"]["rule.delta_b"]
    for line in (
        "The best of 24 trials is trial 22: rule.delta_b=0.008106, rule.w_min=0.7: final score 59.8\xa0%.",
        "24 trials: 20 complete, 3 pruned, 1 failed",
        "core=mini: a miniature model on a synthetic task, not comparable",
        "the best of 20, and so too high on average (selection bias)",
        "Over 2 seeds one trial scatters by 0.6 points (standard deviation, pooled over 20 trials)",
        "trial 22 leads by 0.3 points, and trials 12, 19 and 9 are within two standard errors",
        "59.8 ± 0.6",
        "pruned at step 20 of seed 0",
        "out of memory",
        f"cppo launch main rule.delta_b={exact!r} rule.w_min=0.7 seed=2,3",
        "cppo tune tune_made --trials 48",
    ):
        assert line in html
    assert html.count("<svg") == 5
    for name in figures:
        if name.endswith("svg"):
            assert b"cppo report tune_made" in reported[name] and b"run-22-1" in reported[name]


def test_the_numbers_of_the_figures(reported: dict[str, bytes]) -> None:
    def columns(figure: str, name: str) -> dict[str, float]:
        rows = table(reported, f"figure_{figure}")
        return {row["at"]: float(row["value"]) for row in rows if row["name"] == name}

    complete = [row for row in table(reported, "table_trials") if row["state"] == "complete"]
    for figure in ("history", "slices", "sensitivity"):
        for name in ("final score", "rule.delta_b"):
            values = {row["trial"]: float(row[name.replace(" ", "_")]) for row in complete}
            assert columns(figure, name) == pytest.approx(values, abs=1e-4)
    best = itertools.accumulate(columns("history", "final score").values(), max)
    assert [*columns("history", "best so far").values()] == [*best]
    curve = {str(at): 100 * score for at, score in made_trial(22, (0, 1))["curve"]}
    assert columns("curves", "trial 22") == pytest.approx(curve)
    assert sum(columns("importances", "final score").values()) == pytest.approx(1)


def test_the_tables(reported: dict[str, bytes]) -> None:
    rows, trial = table(reported, "table_trials"), made_trial(22, (0, 1))
    best, value = rows[0], 100 * trial["values"][0]
    assert float(best["rule.delta_b"]) == trial["params"]["rule.delta_b"]  # every digit
    scores = [float(score) for score in (best["final_score"], *best["final_score_by_seed"].split())]
    assert scores == pytest.approx([value, value - 0.4, value + 0.4], abs=1e-3)
    assert (best["run_ids"], best["core"]) == ("run-22-0 run-22-1", "mini")
    assert [row["state"] for row in rows] == ["complete"] * 20 + ["pruned"] * 3 + ["failed"]
    values = [-float(row["final_score"]) for row in rows[:20]]
    assert values == sorted(values) and rows[-1]["reason"] == "out of memory"
    for file, line in (
        ("table_trials.md", "| 22 | complete | 0.008106 | 0.7 | 59.8 ± 0.6 | 0.9 |"),
        ("table_trials.tex", r"\rowcolor{black!8} 22 & complete"),
        ("table_space.csv", '"0.002 to 0.05, log scale",0.02,0.008106,mini'),
    ):
        assert line in reported[file].decode()


def test_hostile_text_is_text(made: SearchRequest, undrawn: None) -> None:
    """In drawings: tests/fuzz/test_escaping.py."""
    hostile = "<script>alert(1)</script> $\\frac{$ {{ 7 * 7 }}"
    content = made_search(title=hostile, question=hostile, model=hostile, sampler=hostile, pruner=hostile)
    content["name"] = content["study"] = hostile
    content["parameters"]["rule.name"] = {"choices": [hostile, "'; rm -rf ~ #"]}
    for trial in content["trials"]:
        trial["params"]["rule.name"] = trial["reason"] = trial["mlflow_id"] = hostile
        trial["run_ids"] = [hostile]
    log_search(made.uri, content, hostile)
    files = contents(build_report(replace(made, study=hostile, command=hostile)).parent)
    html = files["index.html"].decode()
    assert html.count("&lt;script&gt;") > 50 and "49" not in re.findall(r"<h1>(.*?)</h1>", html)[0]
    assert not any(b"<script" in data for name, data in files.items() if name.endswith((".md", ".html")))


def test_a_search_of_one_trial(made: SearchRequest, undrawn: None) -> None:
    content = made_search(trials=1, seeds=(0,))
    assert {*drawn(content)} == {"history", "slices", "curves"}
    html = built(made, content)["index.html"].decode()
    assert "too high on average" not in html
    assert "too few complete trials to tell" in html and "The best of 1 trial is trial 0" in html


def test_a_search_without_trials_or_whose_trials_all_failed(made: SearchRequest, undrawn: None) -> None:
    page = built(made, made_search(trials=0))["index.html"].decode()
    assert "no trial yet" in page and "--trials" not in page
    content = made_search(best=[])
    for trial in content["trials"]:
        trial |= {"state": "failed", "values": None, "curve": [], "params": {}, "reason": "no GPU"}
    html = built(made, content)["index.html"].decode()
    assert drawn(content) == {}
    assert "No trial is complete: there is no best one yet." in html
    assert html.count("no GPU") == 24 and "cppo launch" not in html


def test_three_objectives_and_choices(made: SearchRequest, undrawn: None) -> None:
    content = made_search(seeds=(0,), objectives=["final_score", "stability", "best_score"], best=[])
    deltas, rules = [0.02, 0.05, 0.15], ["cppo", None, True]
    content["parameters"] = {"rule.delta": {"choices": deltas}, "rule.name": {"choices": rules}}
    for number, trial in enumerate(content["trials"]):
        trial["params"] = {"rule.delta": deltas[number % 3], "rule.name": rules[number // 3 % 3]}
        if trial["values"]:
            [value] = trial["values"]
            trial["values"] = [value, 1 - value, 0.9 if number == 0 else 0.3]
            content["best"].append(number)  # along a line every trial is on the front
    of_each = {
        f"{kind}{name}" for kind in ("history", "slices") for name in ("", "_stability", "_best_score")
    }
    assert {*drawn(content)} == {"pareto", "sensitivity", "importances", "curves"} | of_each
    files = built(made, content)
    html = files["index.html"].decode()
    assert "20 of 24 trials are on the Pareto front of final score, stability and best score" in html
    assert "The highest best score is that of trial 0" in html and html.count("cppo launch main") == 20
    assert re.search(b"final score.*best score", files["table_trials.md"])


def panels(name: str, content: dict[str, Any]) -> list[Axes]:
    """The panels of a figure, as it is drawn."""
    picture = drawn(content)[name]
    figure = picture.draw(picture.info, Figure())
    return [*figure.axes]


def test_a_drawing_is_ours() -> None:
    """Its colours have dark ones; nothing is named twice or written over another; many parameters are in rows."""
    content = made_search()
    [history] = panels("history", content)
    [best] = history.lines
    values = [100 * trial["values"][0] for trial in content["trials"] if trial["values"]]
    assert list(best.get_ydata()) == pytest.approx(list(itertools.accumulate(values, max)))
    assert best.get_color().lower() in DARK
    assert not history.get_title() + history.get_title(loc="left")
    [curves] = panels("curves", content)
    assert curves.get_legend_handles_labels()[1] == ["complete", "pruned", "best: trial 22"]
    assert max(max(line.get_ydata()) for line in curves.lines[:-1]) == pytest.approx(59.8, abs=0.05)
    for name in "abc":
        content["parameters"][name] = {"low": 0.0, "high": 1.0, "log": False, "step": None}
        for trial in content["trials"]:
            trial["params"][name] = trial["number"] / 24
    *slices, _bar = panels("slices", content)
    log = {panel.get_xlabel(): panel for panel in slices}["rule.delta_b"]
    major, minor = ({label.get_text() for label in log.get_xticklabels(minor)} for minor in (False, True))
    assert {"0.002", "0.005", "0.01", "0.02", "0.05"} <= major and not any(minor)
    assert {panel.get_ylabel() for panel in slices} == {"final score (%)"}
    places = [panel.get_subplotspec() for panel in slices]
    assert [[place.rowspan.start, place.colspan.start] for place in places] == [
        [*divmod(number, 3)] for number in range(5)
    ]


def test_importances_are_those_of_the_higher_values() -> None:
    """One parameter decides which values are high, the other one how low the low ones are."""
    content = made_search()
    for trial in content["trials"]:
        if trial["values"]:
            delta_b, w_min = trial["params"].values()
            trial["values"] = [0.9 if w_min > 0.84 else 0.2 - 3 * delta_b]
    shares = importances(parsed(content))["final_score"]
    assert sum(shares.values()) == pytest.approx(1) and shares["rule.w_min"] > 0.8
    assert importances(parsed(made_search(trials=8))) == {}


def test_equal_importances_are_in_the_order_of_their_names() -> None:
    """Whatever the order of Optuna's sets: the same runs give the same bytes."""
    content = made_search()
    content["parameters"] = {f"rule.{name}": {"choices": [1, 2]} for name in "fbdace"}
    for trial in content["trials"]:
        trial["params"] = dict.fromkeys(content["parameters"], 1)
    shares = importances(parsed(content))["final_score"]
    assert [*shares] == [f"rule.{name}" for name in "abcdef"] and len({*shares.values()}) == 1


@pytest.mark.parametrize("on_a_line", [True, False])
def test_no_surface_where_it_would_be_made_up(on_a_line: bool) -> None:
    """Or where all values are the same."""
    content = made_search()
    for trial in content["trials"]:
        if on_a_line:
            trial["params"]["rule.w_min"] = 0.7
        elif trial["values"]:
            trial["values"] = [0.5]
    sensitivity, slices, *_ = search_figures(parsed(content))
    assert sensitivity.absent == "the complete trials do not differ in two parameters and in their values"
    assert not slices.absent


def test_words_on_ties_and_edges(made: SearchRequest, undrawn: None) -> None:
    content = made_search(trials=3, seeds=(4,), best=[0])
    first, second, third = content["trials"]
    first |= {"values": [0.5], "params": {"rule.delta_b": 0.05, "rule.w_min": 0.7}}
    second["values"], third["values"] = [0.4], [0.5]
    result = parsed(content)
    assert next(finding(result)).endswith("final score 50.0\xa0%. Trial 2 reached the same value.")
    assert "Every trial ran with one seed (4)" in " ".join(certainty(result, ()))
    files = built(replace(made, chosen=None), content)
    assert "0.05 (at the edge)" in files["table_space.csv"].decode()
    html = files["index.html"].decode()
    assert "pruner median, seed 4." in html and "is within 2 % of an end of the interval" in html
    assert "cppo launch main" not in html
    assert "The main sweep has no variant of this search's rule." in html
    line = "cppo launch main rule.delta_b=0.05 rule.w_min=0.7 seed=5,6"
    for core, chosen, added in (
        ("mini", (), ""),
        ("mini", ("variant=cppo", "model=mini_base"), "variant=cppo model=mini_base "),
        ("verl", (), "core=verl "),
    ):
        commands = launch_commands(parsed({**content, "core": core}), chosen)
        assert commands == (line.replace("rule.delta_b", f"{added}rule.delta_b"),)
    second["values"] = [0.5]
    equal = next(finding(parsed(content)))
    assert equal.startswith("All 3 complete trials have the same value, final score 50.0\xa0%")
    assert [*certainty(parsed({**content, "seeds": [0, 1]}), ())] == []


@pytest.mark.parametrize(
    "value",
    [0.1, 1e-05, 3, True, None, "cppo", "0.5", "true", "a b", "it's", "back\\", "a\\'b", "x,y", "${seed}"],
)
def test_overrides_survive_the_shell_and_hydra(value: Value) -> None:
    parser = pytest.importorskip("hydra.core.override_parser.overrides_parser")
    (word,) = shlex.split(override("rule.x", value))
    (read,) = parser.OverridesParser.create().parse_overrides([word])
    assert read.key_or_group == "rule.x" and repr(read.value()) == repr(value)
