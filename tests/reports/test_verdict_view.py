"""The first screen and what the page says of claims: of made sweeps whose truth is plain, and of the paper's curves."""

from dataclasses import replace

import pytest

from cppo_lab.analysis.scoring import Scoreboard
from cppo_lab.analysis.statistics.claims import CLAIMS, Claim, Kind, Standing
from cppo_lab.analysis.statistics.summary import CANNOT, sweep_statistics
from cppo_lab.analysis.statistics.values import Score
from cppo_lab.analysis.statistics.verdicts import Word, verdicts
from cppo_lab.reports.verdict_view import VerdictLine, VerdictView, short_answers, verdict_line, verdict_view
from tests.analysis.made_sweeps import MadeRun, scored
from tests.analysis.statistics.made_curves import BASE, flat, moved
from tests.reports.conftest import DEMO_RUNS

NOISY, WIDE = (0.2, -0.1, -0.2, 0.1), (0.012, -0.011, 0.002, 0.011)
ABOVE = Claim("above", "CPPO is above DPPO", "main", Kind.SUPERIORITY, (("cppo",), ("dppo",)))


def short(board: Scoreboard, *own: Claim) -> list[tuple[Word, str]]:
    lines = [verdict_line(verdict, board, None) for verdict in verdicts({"main": board}, own)]
    return short_answers(lines, sweep_statistics(board))


def answers(cells: dict[str, list[float]], *own: Claim) -> list[tuple[Word, str]]:
    return short(scored(flat(cells)), *own)


@pytest.mark.parametrize("own", [(), (ABOVE,)], ids=["against the baseline", "a hypothesis"])
@pytest.mark.parametrize(
    "ours, word, beginning",
    [
        (moved(0.05), Word.BETTER, "CPPO scores higher than DPPO on "),
        (moved(-0.05), Word.BETTER, "DPPO scores higher than CPPO on "),
        (moved(0.0), Word.SAME, "CPPO and DPPO are within 1 point on "),
        (moved(0.05, *NOISY), Word.OPEN, "No difference between CPPO and DPPO on "),
    ],
)
def test_what_a_comparison_shows(
    ours: list[float], word: Word, beginning: str, own: tuple[Claim, ...]
) -> None:
    [(shown, sentence)] = answers({"cppo": ours, "dppo": BASE}, *own)
    assert shown is word and sentence.startswith(beginning)
    assert "4 runs each" in sentence and "Holm" not in sentence
    assert ("Exploratory." in sentence) is (not own and word is not Word.OPEN)
    if beginning.startswith("DPPO") and not own:  # the better one comes first, with a positive difference
        assert ": +5.00 (+4.71 to +5.29) points of the final mean, 4 runs each." in sentence


def test_what_some_models_lack_is_compared_on_the_others() -> None:
    cells = {"cppo": moved(0.05), "grpo": moved(-0.05), "dppo": BASE}
    for lacking, compared in ((), "over the models"), (("grpo",), "on m"), (("dppo",), "on m"):
        there = {name: scores for name, scores in cells.items() if name not in lacking}
        said = [sentence for _, sentence in short(scored([*flat(cells, "m"), *flat(there, "n")]))]
        assert len(said) == 2 and f"DPPO scores higher than GRPO {compared}: " in said[-1]


def test_one_run_each_decides_nothing() -> None:
    [(word, sentence)] = answers({"cppo": [0.9], "dppo": [0.1]})
    assert word is Word.OPEN
    assert sentence.startswith("One run each cannot decide between CPPO and DPPO on ")
    assert "+80.00 points" in sentence and "(" not in sentence


def test_a_claim_about_speed_says_so() -> None:
    [(_, sentence)] = answers({"cppo": moved(0.05), "dppo": BASE}, replace(ABOVE, score=Score.AREA))
    assert "learns faster" in sentence


def line_of(claim: Claim, cells: dict[str, list[float]]) -> tuple[VerdictView, VerdictLine]:
    view = verdict_view(
        {claim.sweep: scored(flat(cells), claim.sweep)}, "mini", standings={claim: Standing("", True)}
    )
    return view, next(line for line in view.lines if line.verdict.claim == claim)


def test_the_observed_direction_and_the_rule_agree_with_the_outcome() -> None:
    view, line = line_of(ABOVE, {"cppo": moved(0.004), "dppo": BASE})
    assert line.observed == "The observed difference agrees with the claim." and "It holds" in line.sentence
    assert "if each is at most 0.025 without adjustment, and tables show it after Holm's." in view.rule
    assert "Runs of one seed are compared in pairs." in view.method and "share" not in view.method
    assert "equivalent" not in view.rule and "The power is" in view.method
    alike = replace(ABOVE, kind=Kind.EQUIVALENCE, margin=0.02)
    assert (
        "within the margin that the claim names."
        in line_of(alike, {"cppo": moved(0.004), "dppo": BASE})[0].rule
    )


def test_the_smallest_effect_has_the_unit_of_its_claim() -> None:
    trend = replace(ABOVE, sweep="made", kind=Kind.TREND, smallest=0.005)
    view, _ = line_of(trend, {"a": BASE, "b": BASE})
    assert "an advantage below 0.5 points for each doubling of the length counts as none" in view.method


def test_a_slope_is_no_difference_of_scores(paper_board: Scoreboard) -> None:
    [trend] = [claim for claim in CLAIMS if claim.kind is Kind.TREND]
    said = (
        "The lead grows: undecided, +2.59 points for each doubling of the length, no interval (4 runs each)."
    )
    assert short(paper_board, replace(trend, text="The lead grows", after=None)) == [(Word.OPEN, said)]


def test_only_the_runs_of_the_estimate_are_counted() -> None:
    cells = {"cppo": [*moved(0.05), 0.36, 0.35], "dppo": BASE}
    assert ", 4 runs each." in answers(cells)[0][1]
    line = line_of(ABOVE, cells)[1]
    assert line.estimate.endswith("(4 runs each)") and line.comparisons.rows[0].cells[2] == "4 and 4"


def test_no_spread_is_no_missing_difference() -> None:
    said = (
        "3 runs each cannot decide between CPPO and DPPO on m: +5.00 points of the final mean; without any spread "
        "between runs there is no standard error."
    )
    assert answers({"cppo": [0.55, 0.45, 0.35], "dppo": [0.5, 0.4, 0.3]}) == [(Word.OPEN, said)]


@pytest.mark.parametrize("others, word", [(1, Word.BETTER), (8, Word.OPEN)])
def test_many_comparisons_are_corrected(others: int, word: Word) -> None:
    """A just significant difference among many is none."""
    crowd = {f"same_{number}": moved(0.02, *WIDE) for number in range(others)}
    said = [(shown, "Holm's adjustment" in sentence) for shown, sentence in answers({**crowd, "dppo": BASE})]
    assert said == [(word, word is Word.OPEN)] * others


def view_of(*gaps: MadeRun, cppo: str = "cppo") -> VerdictView:
    """Of the demo sweep with more runs that are declared, and CPPO under this name."""
    runs = [replace(run, variant={"cppo": cppo}.get(run.variant, run.variant)) for run in DEMO_RUNS]
    return verdict_view({"demo": scored(runs, gaps=gaps)}, "mini")


def test_the_papers_curves_decide_nothing_and_say_what_they_show(paper_board: Scoreboard) -> None:
    view = verdict_view({"main": paper_board}, "paper", whole=True)
    assert len(view.lines) + len(view.not_judged) == len(CLAIMS)
    assert "The binary divergence is about Top-K (sweep binary_vs_topk)" in view.not_judged
    mean, each, best, widens, horizon, collapse, prefix = view.lines
    assert (best.verdict.outcome.value, view.summary) == ("undecided", "7 claims: 7 undecided.")
    assert [row.cells[1] for row in mean.comparisons.rows] == ["mean over models"]
    before = (
        "Exploratory: the claim before it is not supported (CPPO is above DPPO in the mean over the models)."
    )
    assert each.sentence.endswith(before) and best.sentence.endswith(before)
    assert "Exploratory" not in mean.sentence and view.cannot == CANNOT
    assert best.observed == "The observed differences agree with the claim in 24 of 24 comparisons."
    assert "The least clear is CPPO against CISPO on Qwen3-1.7B-Base." in best.sentence
    # From the curves by hand: means of the last and the first 30 %; of the warm-up diagnostics, the share of the prefix
    # budget in the first 30 % of the steps less that in the rest, over the three models that the paper plots.
    # Of a probability (one run in four collapsed) single runs do say something.
    for line, estimate in (
        (best, "+1.05 points, no interval"),  # 11.60 and 10.56, as the findings have them
        (widens, "−0.33 points, "),
        (prefix, "+34.52 % of the masks, "),
        (collapse, "+25.00 % of the runs, 95 % interval −28.08 to +69.94"),
    ):
        assert line.estimate.startswith(estimate)
    assert "points for each doubling of the length" in horizon.estimate
    assert [row.cells[1] for row in horizon.comparisons.rows] == ["over models"]  # a slope is no mean
    assert horizon.sentence.startswith("The least clear is CPPO against DPPO over the models.")
    assert "compared in pairs" not in view.method  # single runs without seeds
    assert prefix.comparisons.rows[0].cells[2] == "3"
    assert mean.power.startswith("power at 2 points: none: a single run does not show")
    table = best.comparisons
    for heading in ("95 % interval", "adjusted p", "P(improvement)"):
        place = table.headings.index(heading)
        assert {row.cells[place] for line in (best, mean, widens) for row in line.comparisons.rows} == {"–"}
    assert {row.cells[-1] for row in table.rows} == {"not decided"}
    assert {row.pair for row in table.rows} == {(model, "cppo") for model in paper_board.models}


def test_a_sweep_without_a_claim_is_asked_whether_cppo_is_best() -> None:
    view = view_of()
    (line,) = view.lines
    assert line.verdict.claim.text == (
        "CPPO is best in every setting of this sweep (the paper says it of its main grid)"
    )
    # Both differences are 0.20 * (0.8 + 0.9) / 2 (the steps after 28), the seeds' scatter cancels in the pairs.
    assert line.estimate.startswith("+17.00 points, ")
    assert (line.outcome, view.cannot) == ("undecided (exploratory)", ())
    assert "core=mini" in view.caution and "no evidence for or against the paper" in view.caution
    without = view_of(cppo="other")
    assert without.lines == ()
    assert without.summary == "The paper makes no claim about the variants of this sweep."


def test_other_claims_about_seeds_that_were_added_until_a_look_decided_say_so() -> None:
    for is_sequential in (True, False):
        claim = replace(ABOVE, sweep="made", sequential=is_sequential, seeds=tuple(range(6)))
        own, best = line_of(claim, {"cppo": moved(0.05), "dppo": BASE, "grpo": BASE})[0].lines
        assert (best.exploratory, own.exploratory) == (True, False)
        assert ("its interval does not allow for" in best.registered) is is_sequential


def test_missing_runs_are_said() -> None:
    (line,) = view_of(MadeRun("dppo", "mini_base")).lines
    assert "no finished run" in line.sentence and "may change" in line.sentence
    place = line.comparisons.headings.index("difference")
    assert [row.cells[place] for row in line.comparisons.rows] == ["+17.00", "–"]
    said = "CPPO against DPPO on m is not known: one side has no finished run."
    board = scored(flat({"dppo": BASE}), gaps=[MadeRun("cppo", "m")])
    assert short(board, ABOVE) == [(Word.OPEN, said)]
