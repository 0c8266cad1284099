"""Statistics by problem: against plain loops, SciPy, enumeration of all outcomes, and simulated answers."""

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from cppo_lab.analysis.reader import RunAnswers
from cppo_lab.analysis.scoring import Scoreboard
from cppo_lab.analysis.statistics.paired import difference_of
from cppo_lab.analysis.statistics.problems import (
    cell_problems,
    clustered_mean,
    difference_variance,
    draw_correlation,
    evaluation_variance,
    kept_draws,
    least_correlation,
    majority_score,
    mean_variance,
    paired_problems,
    pass_at_k,
    problem_difference,
    separations,
    solved_by_one,
)
from cppo_lab.analysis.statistics.summary import run_sampling_error, sweep_statistics
from cppo_lab.analysis.statistics.values import Score, run_values
from cppo_lab.answers.outcomes import Outcomes
from cppo_lab.answers.texts import Texts
from cppo_lab.reports.sections import Scored
from cppo_lab.reports.statistics_tables import statistics_tables
from cppo_lab.reports.tables import main_table, markdown
from tests.analysis.made_sweeps import scored_outcomes
from tests.answers import made

RIGHT, SAMPLES = np.array([0, 3, 4, 1, 2, 4, 0]), 4
BENCHMARK_OF = np.array([0, 0, 0, 0, 1, 1, 1])


def flat(problems: int) -> np.ndarray:
    """All problems are of one benchmark."""
    return np.zeros(problems, dtype=int)


def test_errors_of_an_evaluation_against_plain_loops() -> None:
    """Miller's formula for the clustered error, answer by answer; per benchmark, then their mean."""
    clustered, answers = 0.0, 0.0
    for counts in (RIGHT[:4], RIGHT[4:]):
        graded = [[1.0] * count + [0.0] * (SAMPLES - count) for count in counts]
        n, mean = len(counts), np.mean(graded)
        pairs = sum((a - mean) * (b - mean) for grades in graded for a in grades for b in grades)
        clustered += pairs / (n * SAMPLES) ** 2 * n / (n - 1) / 4
        answers += sum(np.var(grades, ddof=1) for grades in graded) / SAMPLES / n**2 / 4
    assert evaluation_variance(RIGHT, SAMPLES, BENCHMARK_OF)[0] == pytest.approx(answers)
    whole = clustered_mean(RIGHT / SAMPLES, BENCHMARK_OF)
    assert (whole.value, whole.error) == pytest.approx(((8 / 16 + 6 / 12) / 2, math.sqrt(clustered)))


def test_rho_of_a_beta_distribution_and_what_is_unknown() -> None:
    """rho = 1 / (a + b + 1)."""
    rng = np.random.default_rng(0)
    right = rng.binomial(16, rng.beta(0.6, 1.4, 40_000))
    assert evaluation_variance(right, 16, flat(40_000))[1] == pytest.approx(1 / 3, rel=0.02)
    assert evaluation_variance(np.array([0, 1, 1]), 1, flat(3)) == (None, None)
    assert evaluation_variance(np.array([4, 4]), 4, flat(2)) == (0, None)
    assert clustered_mean(np.ones(2), flat(2)).error is None


@pytest.mark.parametrize("runs, paired", [(1, True), (4, True), (4, False)])
def test_a_difference_over_problems_and_seeds_against_the_two_way_table(runs: int, paired: bool) -> None:
    """Mean squares by plain loops, of a crossed design without replication. Of single runs it is the paired t test."""
    rng = np.random.default_rng(3)
    ours, theirs = (np.clip(rng.normal(mean, 0.2, (runs, 12)), 0, 1) for mean in (0.6, 0.5))
    seeds, by_seed = difference_of(
        dict(enumerate(ours.mean(axis=1))), dict(enumerate(theirs.mean(axis=1), 0 if paired else 100))
    )
    assert by_seed == paired
    problems, both, correlation = problem_difference(ours, theirs, flat(12), seeds, paired)
    mine, other = ours.mean(axis=0), theirs.mean(axis=0)
    assert problems.p_value() == pytest.approx(stats.ttest_rel(mine, other).pvalue)
    assert correlation == pytest.approx(stats.pearsonr(mine, other)[0])
    assert problem_difference(ours, 0 * theirs, flat(12), seeds, paired)[2] is None
    if runs == 1:
        assert both.low is None and both.unknown
        return
    interaction = 0.0
    for table in [ours - theirs] if paired else [ours, -theirs]:
        apart = table - table.mean(axis=1, keepdims=True) - table.mean(axis=0) + table.mean()
        interaction += (apart**2).sum() / (3 * 11) / (4 * 12)
    square = np.var(mine - other, ddof=1) / 12
    total = max(seeds.error**2 + square - interaction, seeds.error**2, square)
    assert (both.error, both.value) == pytest.approx((math.sqrt(total), seeds.value))


@pytest.mark.parametrize("right", range(6))
@pytest.mark.parametrize("k", range(1, 6))
def test_pass_at_k_is_the_share_of_subsets_with_a_right_answer(right: int, k: int) -> None:
    subsets = itertools.combinations([True] * right + [False] * (5 - right), k)
    assert pass_at_k(np.array([right]), 5, k)[0] == pytest.approx(np.mean([*map(any, subsets)]))


def test_problems_that_separate_two_methods() -> None:
    ours = np.array([[16, 8, 0, 9], [16, 7, 0, 8]])
    theirs = np.array([[2, 8, 0, 7], [0, 9, 0, 7]])
    problems = first, second, third, fourth = (*separations(ours, theirs, 16).itertuples(),)
    tables = [[[a, 32 - a], [b, 32 - b]] for a, b in zip(ours.sum(axis=0), theirs.sum(axis=0), strict=True)]
    expected = [stats.fisher_exact(table).pvalue for table in tables]
    assert [problem.p for problem in problems] == pytest.approx(expected)
    assert first.separates and first.every_run and first.adjusted == pytest.approx(4 * first.p)
    assert (first.ours, first.theirs) == (1.0, 2 / 32)
    assert not second.separates and not second.every_run
    assert third.p == 1 and not third.every_run
    assert fourth.every_run and not fourth.separates  # the order of runs alone is no finding
    ours, theirs = np.array([[8, 7, 16, 16], [0] * 4]), np.array([[0, 0, 1, 0], [0] * 4])
    assert solved_by_one(ours, theirs, 16) == (0, 3) and solved_by_one(theirs, ours, 16) == ()


def answers(rng: np.random.Generator, chances: np.ndarray, steps: int, k: int, shared: float) -> np.ndarray:
    """[steps, P, k]: an answer takes the random number of its draw with chance sqrt(`shared`), else a fresh one."""
    common = rng.random((len(chances), k))
    fresh = rng.random((steps, len(chances), k))
    return np.where(rng.random(fresh.shape) < math.sqrt(shared), common, fresh) < chances[:, None]


@pytest.mark.parametrize("shared", [0.0, 0.3, 1.0])
def test_the_correlation_of_repeated_draws_is_the_one_that_was_put_in(shared: float) -> None:
    rng = np.random.default_rng(1)
    found = draw_correlation(*answers(rng, rng.beta(0.7, 1.3, 3000), 2, 16, shared))
    assert found.value == pytest.approx(shared, abs=4 * found.error + 1e-9)
    assert (found.value > 2 * found.error) == (shared > 0) and abs(found.error) < 0.02
    # Counts alone bound it from below; a policy that moves in between lowers the bound.
    chances = rng.beta(0.7, 1.3, 400)
    right = answers(rng, chances, 6, 16, shared).sum(axis=-1)
    bound = least_correlation(right, 16)
    assert bound.value == pytest.approx(shared, abs=4 * bound.error + 1e-9)
    right[1::2] = answers(rng, np.clip(chances + 0.1, 0, 1), 3, 16, shared).sum(axis=-1)
    assert least_correlation(right, 16).value < bound.value
    # Variances over 4,000 draws of the answers to three problems.
    chances = np.array([0.2, 0.5, 0.9])
    scores = np.stack([answers(rng, chances, 5, 8, shared).mean(axis=(1, 2)) for _ in range(4000)])
    two, three, five = ([math.sqrt((chances * (1 - chances)).sum() / 8) / 3 / n] * n for n in (2, 3, 5))
    apart = scores[:, :2].mean(axis=1) - scores[:, 2:].mean(axis=1)
    formulas = difference_variance(two, three, shared), mean_variance(five, shared)
    assert formulas == pytest.approx((apart.var(), scores.mean(axis=1).var()), rel=0.1, abs=1e-12)


def test_the_correlation_of_draws_by_hand() -> None:
    ours = np.array([[True, True, False, False], [True, False, False, False]])
    theirs = np.array([[True, False, False, False], [True, True, True, True]])
    # First problem: covariance sum 0.5, sums of squares 1 and 0.75. Second: 0; 0.75 and 0.
    assert draw_correlation(ours, theirs).value == pytest.approx(0.5 / ((1 + 0.75) / 2 + 0.75 / 2))
    single = draw_correlation(ours[:1], ours[:1])
    assert (single.value, single.error) == (pytest.approx(1), None)
    assert draw_correlation(ours[:, :1] | True, theirs[:, :1] | True) is None
    assert least_correlation(np.array([[0, 1]]), 16) is least_correlation(np.array([[0], [1]]), 1) is None


# A scored sweep, from outcomes that agree with the logged scores: three problems of each of two benchmarks.

PROBLEMS = 6


def made_outcomes(seed: int, validations: int = 5) -> Outcomes:
    """Of steps 0, 10, 20, ..."""
    return made.outcomes(PROBLEMS, validations, SAMPLES, seed)


@pytest.fixture(scope="module")
def board() -> Scoreboard:
    """DPPO and CPPO with two seeds each; a third seed of CPPO collapsed at step 20."""
    runs = [*itertools.product(("dppo", "cppo"), (0, 1)), ("cppo", 2)]
    return scored_outcomes(
        {run: made_outcomes(number, 5 - number // 4 * 2) for number, run in enumerate(runs)}
    )


def test_shares_by_problem_average_to_the_final_score(board: Scoreboard) -> None:
    """Also of a collapsed run, whose missing validations are filled in."""
    cells = {cell.variant: cell for cell in cell_problems(board).values()}
    dppo, cppo = cells.values()
    assert cppo.seeds == (0, 1, 2) and cppo.ever.shape == (5 + 5 + 3, PROBLEMS)
    for run in run_values(board):
        cell = cells[run.variant]
        assert cell.final[cell.seeds.index(run.seed)].mean() == pytest.approx(run.final)
    assert dppo.over_problems.value == pytest.approx(dppo.final.mean())
    assert len(dppo.spreads) == 2 * 2  # steps 30 and 40 of both runs
    last = np.array([board.data.outcomes[name].right[-1] for name in dppo.mlflow_ids], float)
    assert dppo.pass_at(2).value == pytest.approx(np.mean(1 - (4 - last) * (3 - last) / 12))
    profile = [np.mean(last >= need) for need in (1, 2, 3, 4)]
    assert [share.value for share in dppo.profile] == pytest.approx(profile)


def test_pairs_are_those_of_the_statistics_over_seeds(board: Scoreboard) -> None:
    difference = sweep_statistics(board).cells["chain", "cppo"].differences[Score.FINAL]
    (pair,) = paired_problems(cell_problems(board), [difference])
    assert difference.paired and pair.problems.value == pytest.approx(difference.estimate.value)
    assert pair.both.half is not None and len(pair.separated) == PROBLEMS


def test_the_error_of_one_evaluation_is_known(board: Scoreboard) -> None:
    run = board.runs[0]
    outcomes = board.data.outcomes[run.mlflow_id]
    shares = outcomes.right[list(outcomes.steps).index(run.choice.step)] / SAMPLES
    found = run_sampling_error(board, run)
    assert found.known
    assert found.answers == pytest.approx(math.sqrt((shares * (1 - shares) / 3).sum()) / PROBLEMS)
    assert (
        f"[{main_table(board, 'Main', sweep_statistics(board, 10)).rows[0].cells[0].evaluation}]"
        in main_text(board)
    )


def main_text(board: Scoreboard) -> str:
    return markdown(main_table(board, "Main", sweep_statistics(board, 10))).replace("\\", "")


@pytest.mark.parametrize("right, text", [(0, "to {high:.2f}"), (4, "from {low:.2f}"), (1, "")])
def test_no_right_or_no_wrong_answer_has_wilsons_limit(right: int, text: str) -> None:
    """`right` of four answers to each of six problems."""
    alike = replace(made_outcomes(0), right=np.full((5, PROBLEMS), right))
    board = scored_outcomes({("dppo", 0): alike, ("dppo", 1): alike, ("cppo", 0): made_outcomes(3)})
    answers = SAMPLES * PROBLEMS
    limits = stats.binomtest(answers * right // 4, answers).proportion_ci(method="wilson")
    expected = text.format(low=100 * limits.low, high=100 * limits.high)
    tables = statistics_tables(Scored("made", "Title", board, ""))
    problems, scores = (
        next(row.cells for row in tables[name].rows if row.pair == ("chain", "dppo"))
        for name in ("problems", "scores")
    )
    noted = ["Wilson" in " ".join(tables[name].notes) for name in ("problems", "scores")]
    assert [*noted, "limit in place of an error of 0" in main_text(board)] == [bool(text)] * 3
    if text:
        assert f"± 0.00 [{expected}]" in main_text(board)
        assert (problems[2], problems[3], scores[6]) == (expected,) * 3
    else:
        assert "to " not in problems[2]


def test_tables_and_what_is_not_there(board: Scoreboard) -> None:
    tables = statistics_tables(Scored("made", "made", board, ""))
    assert {"problems", "problem_differences"} <= tables.keys()
    problems, whole = tables["problems"], board.data.outcomes
    assert "maj@k is not available" in " ".join(problems.notes)
    assert {len(row.cells) for row in problems.rows} == {len(problems.headings)}
    first, *others = whole
    other = replace(whole[first], problems=tuple("abcdef"))
    for outcomes in ({name: whole[name] for name in others}, {**whole, first: other}):
        incomplete = replace(board, data=replace(board.data, outcomes=outcomes))
        assert cell_problems(incomplete) == {}
        assert "problems" not in statistics_tables(Scored("made", "made", incomplete, ""))


@pytest.mark.parametrize(
    "votes, share",
    [
        # 7 7 3 3: a tie. 7 - - -: answers that were not found vote for nothing. The others: 3 3 3 7.
        ({0: list("7733"), 1: ["7", None, None, None], -1: list("3337")}, (0.5 + 0.25) / PROBLEMS),
        *(  # votes for equal answers count together, whatever their spelling
            ({-1: ["7", *wrong]}, share)
            for wrong, share in (
                (("0.5", "\\frac12", "so we get 1/2"), 0.0),
                (("3", "4", "5"), 0.25),
                ((None, None, None), 0.25),
            )
        ),
    ],
)
def test_the_majority_of_the_answers_to_all_problems(
    board: Scoreboard, votes: dict[int, list[str | None]], share: float
) -> None:
    cell, _ = cell_problems(board).values()
    samples = tuple(
        made.sample(step=40, problem=problem, draw=draw, answer=answer, right=answer == "7")
        for place, problem in enumerate(cell.problems)
        for draw, answer in enumerate(votes.get(place, votes[-1]))
    )
    whole, less = (
        {name: RunAnswers((Texts(40, kept),), ()) for name in cell.mlflow_ids}
        for kept in (samples, samples[1:])
    )
    assert majority_score(board, cell, whole).value == pytest.approx(share)
    assert majority_score(board, cell, less) is majority_score(board, cell, {}) is None


def test_grades_of_single_answers_show_repeated_draws() -> None:
    """Three validations; of the second problem one answer is missing at the last, of the third all but one always."""
    grades = {0: {"a": "1100", "b": "1000"}, 10: {"a": "1000", "b": "0111"}, 20: {"a": "1010", "b": "011"}}
    texts = tuple(
        Texts(
            step,
            tuple(
                made.sample(step=step, problem=problem, draw=draw, right=right == "1")
                for problem, answers in {**by_problem, "c": "1"}.items()
                for draw, right in enumerate(answers)
            ),
        )
        for step, by_problem in grades.items()
    )
    ours, theirs = (
        np.array([[int(grade) for grade in graded] for graded in side], dtype=bool)
        for side in (("1100", "1000", "1000"), ("1000", "0111", "1010"))
    )
    assert kept_draws(RunAnswers(texts, ()), SAMPLES) == draw_correlation(ours, theirs)
    assert kept_draws(RunAnswers(texts[:1], ()), SAMPLES) is None
