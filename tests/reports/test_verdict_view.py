"""What the page says of the paper's claims."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from cppo_lab.analysis.grid import ExpectedRun
from cppo_lab.analysis.reader import read_sweep
from cppo_lab.analysis.scoring import Scoreboard, score_sweep
from cppo_lab.analysis.statistics.claims import CLAIMS
from cppo_lab.analysis.statistics.summary import CANNOT
from cppo_lab.reports.sweep import ReportRequest
from cppo_lab.reports.verdict_view import verdict_view


@pytest.fixture
def demo_board(demo_request: ReportRequest) -> Callable[..., Scoreboard]:
    def scored(**names: str) -> Scoreboard:
        expected = tuple(
            replace(entry, variant=names.get(entry.variant, entry.variant)) for entry in demo_request.expected
        )
        return score_sweep(read_sweep(demo_request.uri, demo_request.experiment, "demo"), expected)

    return scored


def test_the_papers_curves_decide_nothing_and_say_what_they_show(paper_board: Scoreboard) -> None:
    view = verdict_view({"main": paper_board}, "paper")
    mean, each, line, widens, horizon, collapse, prefix = view.lines
    assert (line.verdict.outcome.value, view.summary) == ("undecided", "7 claims: 7 undecided.")
    assert [row.cells[1] for row in mean.comparisons.rows] == ["mean over models"]
    assert "CPPO against DPPO in the mean over the models" in mean.sentence
    assert "Exploratory" not in mean.sentence
    before = (
        "Exploratory: the claim before it is not supported (CPPO is above DPPO in the mean over the models)."
    )
    assert each.sentence.endswith(before) and line.sentence.endswith(before)
    assert view.cannot == CANNOT
    assert line.observed == "The observed differences agree with the claim in 24 of 24 comparisons."
    assert "The least clear is CPPO against CISPO on Qwen3-1.7B-Base." in line.sentence
    # From the curves by hand: means of the last and the first 30 %; of the warm-up diagnostics, the share of the prefix
    # budget in the first 30 % of the steps less that in the rest, over the three models that the paper plots.
    assert widens.estimate.startswith("−0.33 points, ")
    assert "points for each doubling of the length" in horizon.estimate
    assert (
        prefix.estimate.startswith("+34.52 % of the masks, ") and prefix.comparisons.rows[0].cells[2] == "3"
    )
    # One run in four: of a probability single runs do say something.
    assert collapse.estimate.startswith("+25.00 % of the runs, 95 % interval −28.08 to +69.94")
    assert mean.power.startswith("power at 2 points: none: a single run does not show")
    assert line.estimate.startswith("+1.05 points, no interval")  # 11.60 and 10.56, as the findings have them
    for heading in ("95 % interval", "adjusted p", "P(improvement)"):
        place = line.comparisons.headings.index(heading)
        assert {row.cells[place] for row in line.comparisons.rows} == {"none"}
    assert {row.cells[-1] for row in line.comparisons.rows} == {"not decided"}
    assert {row.pair for row in line.comparisons.rows} == {(model, "cppo") for model in paper_board.models}


def test_a_sweep_without_a_claim_is_asked_whether_cppo_is_best(
    demo_board: Callable[..., Scoreboard],
) -> None:
    view = verdict_view({"demo": demo_board()}, "mini")
    (line,) = view.lines
    assert (
        line.verdict.claim.text
        == "CPPO is best in every setting of this sweep (the paper says it of its main grid)"
    )
    # Both differences are 0.20 * (0.8 + 0.9) / 2 (the steps after 28), the seeds' scatter cancels in the pairs.
    assert line.estimate.startswith("+17.00 points, ")
    assert line.outcome == "undecided"
    assert "core=mini" in view.caution
    assert "no evidence for or against the paper" in view.caution
    assert view.cannot == ()


def test_a_sweep_without_cppo_has_no_claim(demo_board: Callable[..., Scoreboard]) -> None:
    view = verdict_view({"demo": demo_board(cppo="other")}, "mini")
    assert view.lines == ()
    assert view.summary == "The paper makes no claim about the variants of this sweep."


def test_a_study_names_the_claims_that_it_cannot_judge(paper_board: Scoreboard) -> None:
    view = verdict_view({"main": paper_board}, "paper", whole=True)
    assert len(view.lines) + len(view.not_judged) == len(CLAIMS)
    assert "The binary divergence is about Top-K (sweep binary_vs_topk)" in view.not_judged


def test_missing_runs_are_said(demo_request: ReportRequest) -> None:
    more = (*demo_request.expected, ExpectedRun("gone", "mini_base", "dppo", 0))
    data = read_sweep(demo_request.uri, demo_request.experiment, "demo")
    view = verdict_view({"demo": score_sweep(data, more, partial=True)}, "mini")
    assert "no finished run" in view.lines[0].sentence
    assert "may change" in view.lines[0].sentence
    place = view.lines[0].comparisons.headings.index("difference")
    assert [row.cells[place] for row in view.lines[0].comparisons.rows] == ["+17.00", "–"]
