"""`cppo launch` and `cppo report` of a sweep with hypotheses about the exact core's error."""

import csv
import json
import math
import re
from pathlib import Path

import pytest

from cppo_lab.cli import main
from cppo_lab.errors import UserError
from cppo_lab.sweep.file import Sweep, load_sweep
from cppo_lab.sweep.plan import make_plan

SWEEP = """
title: Tiny
question: Does it show?
models: {exact: [exact_early]}
variants:
  loose: {rule: dppo, rule.delta: 0.012, training.t_stop: 40}
  dppo: {rule: dppo, rule.delta: 0.01, training.t_stop: 40}
axes: {rollout.max_response_length: [8, 16], seed: [0, 1, 2, 100]}
hypotheses:
  smaller:
    claim: DPPO makes smaller errors
    better: [dppo]
    than: [loose]
    outcome: error
    only: [exact_early]
    smallest: 10.0
    test_seeds: [0, 1, 2]
    selection_seeds: [100]
  longer:
    claim: The longer the response, the more so
    better: [dppo]
    than: [loose]
    outcome: error_slope
    models: mean
    smallest: 5.0
    after: smaller
    test_seeds: [0, 1, 2]
"""


def loaded(text: str) -> Sweep:
    Path("tiny.yaml").write_text(text)
    found = load_sweep("tiny.yaml")
    assert isinstance(found, Sweep)
    return found


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("models: {exact: [exact_early]}", "models: [exact_early]", "computed by core=exact alone"),
        ("only: [exact_early]", "only: [exact_late]", r"model 'exact_late' is not in models \(valid: exact_early\)"),
        ("outcome: error\n", "outcome: final\n", "it is for error and error_slope"),
        ("smallest: 10.0", "smallest: 100.0", "percent of an error"),
        ("    outcome: error_slope\n", "", "an error and a score do not wait for each other"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named(workspace: Path, old: str, new: str, message: str) -> None:
    assert SWEEP.count(old) == 1
    with pytest.raises(UserError, match=message):
        loaded(SWEEP.replace(old, new))


def test_the_shipped_sweep_states_what_its_seeds_can_test() -> None:
    sweep = load_sweep("exact")
    assert isinstance(sweep, Sweep)
    seeds = set(sweep.axes_of("exact")["seed"])
    assert sweep.hypotheses
    for one in sweep.hypotheses.values():
        assert set(one.test_seeds) == seeds and len(seeds) >= 40
        assert set(one.selection_seeds) == set(range(100, 108))


def test_from_the_file_to_the_page(workspace: Path) -> None:
    digest = loaded(SWEEP).statement()[1]
    assert main(["launch", "tiny.yaml", "launcher=inline"]) == 0
    assert main(["report", "tiny.yaml"]) == 0
    folder = workspace / "reports" / "build" / "tiny"
    record = json.loads((folder / "report.json").read_text())
    first, second = record["verdicts"]
    assert (first["claim"], first["score"], second["score"]) == ("hypothesis smaller", "error", "error_slope")
    assert first["pairs"] == second["pairs"] == 3  # not four: seed 100 chose the settings
    assert 0 < first["low"] < first["estimate"] < first["high"]
    page = (folder / "index.html").read_text()
    section = re.search(r'<section id="exact">(.*?)</section>', page, re.DOTALL)
    assert section is not None
    answer = re.search(r'<ul class="short" aria-label="Answer">(.*?)</ul>', page, re.DOTALL)
    assert answer is not None  # about the hypotheses, not about scores against a baseline
    assert re.findall(r"</strong> ([^:]*):", answer[1]) == [
        "DPPO makes smaller errors", "The longer the response, the more so"
    ]  # fmt: skip
    assert f"({digest}), before any of the 12 runs that test it; unchanged." in section[1]
    assert section[1].count("<svg") == 1
    assert "3 seeds, 0 to 2" in section[1]
    assert 'id="verdicts"' not in page  # no claim of the paper is about these variants
    with (folder / "exact_conditions.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert {(row["rule"], row["T"]) for row in rows} == {
        (v, t) for v in ("loose", "DPPO") for t in ("8", "16")
    }
    assert {row["runs"] for row in rows} == {"3"}
    errors = {(row["rule"], row["T"]): float(row["mean |Δ|"]) for row in rows}
    plain = math.prod((errors["DPPO", t] / errors["loose", t]) ** 0.5 for t in ("8", "16"))
    with (folder / "exact_ratios.csv").open() as file:
        shown = {row["at equal"]: row["mean over T"] for row in csv.DictReader(file)}
    assert set(shown) == {"movement", "movement and return", "nothing"}
    assert float(shown["nothing"].split(" ")[0]) == pytest.approx(plain, rel=0.02)
    assert (first["exploratory"], second["exploratory"]) == (False, False)
    assert first["power"]["runs"] == 3 and "Power at a ratio of " in section[1]
    with (folder / "figure_exact.csv").open() as file:
        points = list(csv.DictReader(file))
    drawn = [row for row in points if row["series"] == "panels.lines"]
    assert {row["metric"] for row in drawn} == {"error", "ratio", "position", "bound"}
    # Half of the registered runs confirm nothing.
    assert main(["report", "tiny.yaml", "rollout.max_response_length=8"]) == 0
    part = (folder / "index.html").read_text()
    assert "Of the 12 runs that test it, 6 have no result in this report: exploratory." in part
    assert all(one["exploratory"] for one in json.loads((folder / "report.json").read_text())["verdicts"])


def test_a_slope_needs_several_horizons(workspace: Path) -> None:
    text = SWEEP.replace("[8, 16]", "[8]")
    assert text != SWEEP
    with pytest.raises(UserError, match=r"outcome=error_slope needs two horizons or more: give axes\."):
        make_plan(loaded(text), [])


def test_one_seed_of_few_steps_makes_a_page(workspace: Path) -> None:
    loaded(SWEEP.replace("t_stop: 40", "t_stop: 5"))
    chosen = ["tiny.yaml", "seed=0", "rollout.max_response_length=8"]
    assert main(["launch", *chosen, "launcher=inline"]) == 0
    assert main(["report", *chosen]) == 0
    assert "too few steps to compare" in (workspace / "reports" / "build" / "tiny" / "index.html").read_text()


def test_a_sweep_of_the_cores_own_models_needs_no_core(workspace: Path) -> None:
    assert make_plan(loaded(SWEEP), ["seed=0"]).core == "exact"
    with pytest.raises(UserError, match="has no models for core=mini"):
        make_plan(loaded(SWEEP), ["core=mini"])
