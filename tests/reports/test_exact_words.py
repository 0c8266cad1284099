"""What the section on the exact core's error says of each outcome, and of its registration."""

import re
from types import SimpleNamespace
from typing import Any

import pytest

from cppo_lab.analysis.exact_claims import ErrorClaim
from cppo_lab.reports import exact_view
from cppo_lab.reports.figures.palette import PAPER
from cppo_lab.reports.registration import NONE_STATED, Hypotheses
from tests.analysis.test_exact_study import HORIZONS, claim, study

NOT_REGISTERED = "Not registered: `cppo launch` registers hypotheses before their runs. Exploratory."


def view(
    monkeypatch: pytest.MonkeyPatch,
    law: float,
    *claims: ErrorClaim,
    control: float | None = None,
    **stated: Any,
) -> exact_view.ExactView:
    """The section on errors of CPPO that are `law` times those of DPPO, in a store without registrations; `control`
    times in DPPO without a trust region, if that has runs.
    """
    laws = {"cppo": dict.fromkeys(HORIZONS, law), "dppo": dict.fromkeys(HORIZONS, 1.0)}
    if control is not None:
        laws["no_trust_region"] = dict.fromkeys(HORIZONS, control)
    monkeypatch.setattr(exact_view, "read_curves", lambda _board: study(laws))
    kinds = {} if control is None else {"no_trust_region": "control"}
    monkeypatch.setattr(exact_view, "controls", lambda _board: kinds)
    board: Any = SimpleNamespace(runs=(), results=frozenset())
    hypotheses = Hypotheses(errors=claims, **stated) if claims else NONE_STATED
    found = exact_view.exact_view(board, hypotheses, "Tiny", PAPER)
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("law", "of_claim", "meaning"),
    [
        (0.7, {}, "The advantage is above 0."),
        (0.85, {"smallest": 0.4}, "The advantage is above 0 and below 40 %, the smallest that counts."),
        (1.5, {}, "The opposite holds: the second rule's error is smaller."),
        (
            1.02,
            {},
            "An advantage of 10 % or more is excluded: any effect in the claimed direction is smaller.",
        ),
        (1.0, {"within": 0.15}, "The two are equivalent within 15 %."),
        (1.6, {"within": 0.1}, "The two are not equivalent within 10 %."),
    ],
)
def test_an_outcome_is_said_in_words(
    monkeypatch: pytest.MonkeyPatch, law: float, of_claim: dict[str, Any], meaning: str
) -> None:
    [line] = view(monkeypatch, law, claim(**of_claim)).lines
    assert line.sentence.startswith("CPPO against DPPO on early: ratio of errors at equal movement ")
    assert meaning in line.sentence
    power = "Power if there is no difference" if "within" in of_claim else "Power at a ratio of "
    assert power in line.sentence


NEITHER = "speaks neither for nor against the rule's mechanism"


@pytest.mark.parametrize(("control", "as_much"), [(0.5, True), (1.0, False), (1.5, False)])
def test_a_control_that_does_as_much_as_the_rule_is_named_with_the_verdict(
    monkeypatch: pytest.MonkeyPatch, control: float, as_much: bool
) -> None:
    found = view(monkeypatch, 0.7, claim(), control=control)
    [line] = found.lines
    ratio = re.search(
        r"The same ratio of the controls: no trust region \(control\) ([0-9.]+) \[", line.sentence
    )
    assert ratio is not None and float(ratio[1]) == pytest.approx(control, rel=0.1)
    assert (NEITHER in line.sentence) is as_much
    assert (NEITHER in found.judged[0]["reason"]) is as_much
    assert found.notes[0].startswith(
        "Controls against DPPO on early, mean over T: no trust region (control) "
    )
    assert ("speaks neither for nor against" in found.notes[0]) is as_much
    rows = {row.label for row in found.tables["ratios"].rows}
    assert rows == {"CPPO / DPPO", "no trust region / DPPO (control)"}


def test_a_sweep_without_a_control_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    assert view(monkeypatch, 0.7, claim()).notes[0].startswith("There is no control among these runs")


def test_without_hypotheses_the_tables_remain(monkeypatch: pytest.MonkeyPatch) -> None:
    found = view(monkeypatch, 0.7)
    assert found.summary == "The sweep file states no hypothesis about the error."
    assert found.registered == ""
    assert set(found.files) == {"ratios", "conditions"}
    assert {row.label for row in found.tables["ratios"].rows}  # CPPO with DPPO, without being asked


def test_a_registration_that_all_hypotheses_share_is_said_once(monkeypatch: pytest.MonkeyPatch) -> None:
    found = view(monkeypatch, 0.7, claim(), claim(key="b", text="B"))
    assert found.registered == NOT_REGISTERED
    assert set(found.files) == {"ratios", "conditions", "hypotheses"}
    assert [row.label for row in found.files["hypotheses"].rows] == ["A", "B"]
