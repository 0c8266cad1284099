"""The exact core's error: from a sweep with hypotheses about it to the page, and what its section says."""

import csv
import itertools
import json
import math
import re
import warnings
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from matplotlib.figure import Figure

from cppo_lab.analysis.statistics import verdicts
from cppo_lab.analysis.statistics.claims import Claim, Hypotheses, log_size
from cppo_lab.analysis.statistics.exact_study import Condition, Curves
from cppo_lab.reports import exact_view
from cppo_lab.reports.sections import Scored, Section
from cppo_lab.sweep.file import Sweep, load_sweep
from cppo_lab.sweep.plan import make_plan
from tests.analysis.statistics.test_exact_study import HORIZONS, claim, study
from tests.conftest import Command, user_error

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
    return load_sweep("tiny.yaml")


def test_what_is_wrong_is_named(workspace: Path) -> None:
    for old, new, message in (
        ("models: {exact: [exact_early]}", "models: [exact_early]", "computed by core=exact alone"),
        (
            "only: [exact_early]",
            "only: [exact_late]",
            r"model 'exact_late' is not in models \(valid: exact_early\)",
        ),
        ("outcome: error\n", "outcome: final\n", "it is for error and error_slope"),
        ("smallest: 10.0", "smallest: 100.0", "percent of an error"),
        ("    outcome: error_slope\n", "", "an error and a score do not wait for each other"),
        (
            "[8, 16]",
            "[8]",
            r"outcome=error_slope needs two horizons or more: give axes\.",
        ),  # when it is planned
    ):
        assert SWEEP.count(old) == 1
        with user_error(message):
            make_plan(loaded(SWEEP.replace(old, new)), [])


def test_a_sweep_of_the_cores_own_models_needs_no_core(workspace: Path) -> None:
    assert make_plan(loaded(SWEEP), ["seed=0"]).core == "exact"
    Path("study.yaml").write_text("title: t\nsweeps: [./tiny.yaml]\n")
    assert make_plan(load_sweep("study.yaml"), ["seed=0"]).core == "exact"


def test_from_the_file_to_the_page(workspace: Path, cppo: Command) -> None:
    digest, folder = loaded(SWEEP).statement()[1], workspace / "reports" / "build" / "tiny"

    def rows(name: str) -> list[dict[str, str]]:
        with (folder / name).open() as file:
            return list(csv.DictReader(file))

    cppo("launch tiny.yaml launcher=inline")
    cppo("report tiny.yaml")
    verdicts = first, _ = json.loads((folder / "report.json").read_text())["verdicts"]
    assert first["claim"] == "hypothesis smaller" and 0 < first["low"] < first["estimate"] < first["high"]
    # Not of four pairs: seed 100 chose the settings.
    stated = [(verdict["score"], verdict["pairs"], verdict["exploratory"]) for verdict in verdicts]
    assert stated == [("error", 3, False), ("error_slope", 3, False)] and first["power"]["runs"] == 3
    page = (folder / "index.html").read_text()
    assert 'id="verdicts"' not in page  # no claim of the paper is about these variants
    (answer,) = re.findall(r'<ul class="short" aria-label="Answer">(.*?)</ul>', page, re.DOTALL)
    assert re.findall(r"</strong> ([^:]*):", answer) == [  # not about scores against a baseline
        "DPPO makes smaller errors", "The longer the response, the more so"
    ]  # fmt: skip
    (section,) = re.findall(r'<section id="exact">(.*?)</section>', page, re.DOTALL)
    assert section.count("<svg") == 1
    assert section.count('<span class="verdict">core=exact</span>') == 2  # each verdict says of what
    for text in (
        f"({digest}), before any of the 12 runs that test it; unchanged.",
        "3 seeds (0 to 2)",
        "Power at a ratio of ",
    ):
        assert text in section
    conditions = rows("exact_conditions.csv")
    errors = {(row["rule"], row["T"], row["runs"]): float(row["mean |Δ|"]) for row in conditions}
    assert {*errors} == {(name, t, "3") for name in ("loose", "DPPO") for t in ("8", "16")}
    plain = math.prod((errors["DPPO", t, "3"] / errors["loose", t, "3"]) ** 0.5 for t in ("8", "16"))
    ratios = {row["at equal"]: row["mean over T"] for row in rows("exact_ratios.csv")}
    assert {*ratios} == {"movement", "movement and return", "nothing"}
    assert float(ratios["nothing"].split(" ")[0]) == pytest.approx(plain, rel=0.02)
    drawn = {row["metric"] for row in rows("figure_exact.csv") if row["series"] == "panels.lines"}
    assert drawn == {"error", "ratio", "position", "weight", "bound"}
    for row in conditions:
        visits, positions = (
            float(row[f"{name} beyond the token limit"].split(" ")[0]) for name in ("visits", "positions")
        )
        assert 0 <= visits <= positions <= 100
        assert row["prefixes beyond the budget"] == "–"  # DPPO has none
        assert (row["exponent of T - t"] == "–") is (row["T"] == "8")  # the last token has no error
        assert float(row["Theorem 1 / |Δ|"]) >= float(row["bound / |Δ|"]) > 1


Made = dict[Condition, Curves]


def with_laws(**laws: float) -> Made:
    """Variants whose errors are so many times as large at every horizon."""
    return study({name: dict.fromkeys(HORIZONS, law) for name, law in laws.items()})


def section(monkeypatch: pytest.MonkeyPatch, curves: Made, *claims: Claim, along: bool = False) -> Section:
    """The section on these errors, in a store without registrations; a variant `no_trust_region` is a control. `along`:
    of single updates.
    """
    monkeypatch.setattr(verdicts, "run_values", lambda _board: ())
    for module in (verdicts, exact_view):
        monkeypatch.setattr(module, "read_curves", lambda _board: curves)
    monkeypatch.setattr("cppo_lab.reports.exact_view.controls", lambda _board: {"no_trust_region": "control"})
    data = SimpleNamespace(params={"run": {"along.match": "scale"} if along else {}})
    board: Any = SimpleNamespace(
        runs=(), core="paper", gaps=(), results=frozenset(), cells={}, models=("early",), data=data
    )
    return exact_view.exact_section(Scored("s", "Tiny", board, "", stated=Hypotheses(claims)))


@pytest.mark.parametrize(
    "law, of_claim, meaning",
    [
        (0.7, {}, "It holds: .*an advantage below 10 % counts as none"),
        (0.7, {"over_models": True}, "It holds: "),  # of a single process, it is named
        (0.85, {"smallest": log_size(0.4)}, "It holds, but the effect is below the smallest.*below 40 %"),
        (1.0, {"margin": log_size(0.15)}, "It holds: .*margin 15 %"),
    ],
)
def test_an_outcome_is_said_in_words(
    monkeypatch: pytest.MonkeyPatch, law: float, of_claim: dict[str, Any], meaning: str
) -> None:
    result = section(monkeypatch, with_laws(cppo=law, dppo=1.0), claim(**of_claim))
    no_control, _, measured, *_ = result.view["notes"]
    assert no_control.startswith("There is no control among these runs")
    assert re.match(r"By mismatch and staleness, mu is \d+ % as far ", measured)  # in each alike
    [line] = result.lines
    assert re.match(meaning, line.sentence)
    assert "CPPO against DPPO on early, ratio of errors " in line.sentence and "30 seeds" in line.sentence
    power = "power if there is no difference" if "margin" in of_claim else "power at a ratio of "
    assert line.power.startswith(power)


@pytest.mark.parametrize("control, as_much", [(0.5, True), (1.0, False), (1.5, False)])
def test_a_control_that_does_as_much_as_the_rule_is_named_with_the_verdict(
    monkeypatch: pytest.MonkeyPatch, control: float, as_much: bool
) -> None:
    result = section(monkeypatch, with_laws(cppo=0.7, dppo=1.0, no_trust_region=control), claim())
    [line], note = result.lines, result.view["notes"][0]
    (ratio,) = re.findall(
        r"The same ratio of the controls: no trust region \(control\) ([0-9.]+) \(", line.sentence
    )
    assert float(ratio) == pytest.approx(control, rel=0.1)
    assert note.startswith("Controls against DPPO on early, mean over T: no trust region (control) ")
    for text in (line.sentence, line.beside, note):
        assert ("speaks neither for nor against" in text) is as_much
    rows = {row.label for row in result.tables["exact_ratios"].rows}
    assert rows == {"CPPO / DPPO", "no trust region / DPPO (control)"}


@pytest.mark.parametrize(
    "rules, compared",
    [
        (("grpo t=9", "dppo delta=0.1 t=9"), {"grpo t=9 / dppo delta=0.1 t=9"}),  # an axis of one value
        (("cppo a=1 b=1", "cppo a=2 b=1", "dppo a=1", "dppo a=2", "grpo"),
         {"cppo a=1 b=1 / dppo a=1", "cppo a=2 b=1 / dppo a=2"}),
        (("cppo", "dppo_loose"), set()),
    ],
)  # fmt: skip
def test_a_rule_is_compared_with_dppo_at_the_same_values(
    monkeypatch: pytest.MonkeyPatch, rules: tuple[str, ...], compared: set[str]
) -> None:
    tables = section(monkeypatch, with_laws(**dict.fromkeys(rules, 1.0))).tables
    ratios = tables["exact_ratios"].rows if "exact_ratios" in tables else ()
    assert {row.label for row in ratios} == compared
    over = {row.label: row.cells[5] for row in tables["exact_conditions"].rows}
    assert {rule for rule in over if over[rule] != "–"} == {
        rule for pair in compared for rule in pair.split(" / ")
    }


def changed(change: Callable[[Any], Any]) -> Made:
    """With another value of each column."""
    made = {}
    for condition, curves in study({"cppo": {16: 0.7}, "dppo": {16: 1.0}}).items():
        seeds, *columns = vars(curves).values()
        columns = [*map(change, columns)]
        made[condition] = Curves(seeds[: len(columns[0])], *columns)
    return made


def test_a_policy_that_never_moves_has_a_section(monkeypatch: pytest.MonkeyPatch) -> None:
    """And the notes say nothing of its movement. What has no value is a dash."""
    with warnings.catch_warnings(action="error"):
        result = section(monkeypatch, changed(lambda value: 0 * value), claim())
        [picture] = result.pictures
        picture.draw(picture.info, Figure())
    assert "movement" not in " ".join(result.view["notes"][1:])
    for row in result.tables["exact_conditions"].rows:
        assert row.cells[6] == row.cells[10] == "–" and "nan" not in row.cells


def test_one_seed_of_few_steps_is_drawn_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    [picture] = section(monkeypatch, changed(lambda value: value[:1, :5]), claim()).pictures
    picture.draw(picture.info, figure := Figure())
    assert "too few steps to compare" in {text.get_text() for ax in figure.axes for text in ax.texts}


def test_what_the_section_says_of_hypotheses(monkeypatch: pytest.MonkeyPatch) -> None:
    both = with_laws(cppo=0.7, dppo=1.0)
    bare = section(monkeypatch, both)
    assert bare.view["summary"] == "The sweep file states no hypothesis about the error."
    assert bare.hint == ""  # folded
    assert bare.view["registered"] == "" and bare.tables["exact_hypotheses"] is None
    assert bare.tables["exact_ratios"].rows  # CPPO with DPPO, without being asked
    alone = section(monkeypatch, with_laws(cppo=0.7))  # there is nothing to compare with
    assert [*alone.tables] == ["exact_conditions", "exact_hypotheses"] and "ratio" not in alone.view["method"]
    alone.pictures[0].draw(alone.pictures[0].info, figure := Figure())
    figure.draw_without_rendering()
    shown = [
        label.get_window_extent()
        for label in figure.axes[0].get_xticklabels(which="both")
        if label.get_text()
    ]
    assert len(shown) > 1 and not any(a.overlaps(b) for a, b in itertools.combinations(shown, 2))
    few, all_of_them = (
        [panel.metric for panel in made.pictures[0].info.panels if panel.metric != "ratio"]
        for made in (alone, bare)
    )
    assert few == all_of_them
    stated = section(monkeypatch, both, claim(), claim(key="b", text="B"))
    assert stated.hint is None
    assert stated.view["registered"] == (  # said once
        "Not registered: `cppo launch` registers hypotheses before their runs. Exploratory."
    )
    assert [row.label for row in stated.tables["exact_hypotheses"].rows] == ["A", "B"]
    assert "does not isolate what a rule does" in stated.how
    updates = section(monkeypatch, both, claim(), along=True)
    assert "measures one update of a rule" in updates.how and "isolate" not in updates.how
