"""What the section on the exact core's error says of each outcome, and of its registration."""

import re
from types import SimpleNamespace
from typing import Any

import pytest

from cppo_lab.analysis.statistics import verdicts
from cppo_lab.analysis.statistics.claims import Claim, log_size
from cppo_lab.reports import exact_view
from cppo_lab.reports.registration import Hypotheses
from cppo_lab.reports.sections import Scored, Section
from tests.analysis.statistics.test_exact_study import HORIZONS, claim, study

NOT_REGISTERED = "Not registered: `cppo launch` registers hypotheses before their runs. Exploratory."


def view(
    monkeypatch: pytest.MonkeyPatch,
    law: float,
    *claims: Claim,
    control: float | None = None,
) -> Section:
    """The section on errors of CPPO that are `law` times those of DPPO, in a store without registrations; `control`
    times in DPPO without a trust region, if that has runs.
    """
    laws = {"cppo": dict.fromkeys(HORIZONS, law), "dppo": dict.fromkeys(HORIZONS, 1.0)}
    if control is not None:
        laws["no_trust_region"] = dict.fromkeys(HORIZONS, control)
    monkeypatch.setattr(verdicts, "run_values", lambda _board: ())
    for module in (verdicts, exact_view):
        monkeypatch.setattr(module, "read_curves", lambda _board: study(laws))
    kinds = {} if control is None else {"no_trust_region": "control"}
    monkeypatch.setattr(exact_view, "controls", lambda _board: kinds)
    board: Any = SimpleNamespace(runs=(), gaps=(), results=frozenset())
    board.cells = {}
    found = exact_view.exact_section(Scored("s", "Tiny", board, "", stated=Hypotheses(claims)))
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("law", "of_claim", "meaning"),
    [
        (0.7, {}, ("It holds: ", "an advantage below 10 % counts as none")),
        (0.85, {"smallest": log_size(0.4)}, ("It holds, but the effect is below the smallest", "below 40 %")),
        (1.5, {}, ("1 of 1 comparisons contradict it; the strongest: ", "10 %")),
        (1.02, {}, ("1 of 1 comparisons show no relevant advantage; the clearest: ", "10 %")),
        (1.0, {"margin": log_size(0.15)}, ("It holds: ", "margin 15 %")),
        (1.6, {"margin": log_size(0.1)}, ("1 of 1 comparisons contradict it; the strongest: ", "margin 10 %")),
    ],
)  # fmt: skip
def test_an_outcome_is_said_in_words(
    monkeypatch: pytest.MonkeyPatch, law: float, of_claim: dict[str, Any], meaning: tuple[str, str]
) -> None:
    [line] = view(monkeypatch, law, claim(**of_claim)).lines
    assert line.sentence.startswith(meaning[0]) and meaning[1] in line.sentence
    assert "CPPO against DPPO on early, ratio of errors " in line.sentence and "30 seeds" in line.sentence
    power = "power if there is no difference" if "margin" in of_claim else "power at a ratio of "
    assert line.power.startswith(power)


NEITHER = "speaks neither for nor against the rule's mechanism"


@pytest.mark.parametrize(("control", "as_much"), [(0.5, True), (1.0, False), (1.5, False)])
def test_a_control_that_does_as_much_as_the_rule_is_named_with_the_verdict(
    monkeypatch: pytest.MonkeyPatch, control: float, as_much: bool
) -> None:
    found = view(monkeypatch, 0.7, claim(), control=control)
    [line] = found.lines
    ratio = re.search(
        r"The same ratio of the controls: no trust region \(control\) ([0-9.]+) \(", line.sentence
    )
    assert ratio is not None and float(ratio[1]) == pytest.approx(control, rel=0.1)
    assert (NEITHER in line.sentence) is as_much
    assert (NEITHER in line.beside) is as_much
    assert found.view["notes"][0].startswith(
        "Controls against DPPO on early, mean over T: no trust region (control) "
    )
    assert ("speaks neither for nor against" in found.view["notes"][0]) is as_much
    rows = {row.label for row in found.tables["exact_ratios"].rows}
    assert rows == {"CPPO / DPPO", "no trust region / DPPO (control)"}


def test_a_sweep_without_a_control_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    assert view(monkeypatch, 0.7, claim()).view["notes"][0].startswith("There is no control among these runs")


def test_without_hypotheses_the_tables_remain(monkeypatch: pytest.MonkeyPatch) -> None:
    found = view(monkeypatch, 0.7)
    assert found.view["summary"] == "The sweep file states no hypothesis about the error."
    assert found.view["registered"] == ""
    assert found.tables["exact_hypotheses"] is None
    assert {row.label for row in found.tables["exact_ratios"].rows}  # CPPO with DPPO, without being asked


def test_a_registration_that_all_hypotheses_share_is_said_once(monkeypatch: pytest.MonkeyPatch) -> None:
    found = view(monkeypatch, 0.7, claim(), claim(key="b", text="B"))
    assert found.view["registered"] == NOT_REGISTERED
    assert found.tables["exact_hypotheses"] is not None
    assert [row.label for row in found.tables["exact_hypotheses"].rows] == ["A", "B"]
