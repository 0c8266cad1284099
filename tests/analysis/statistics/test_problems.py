"""Statistics by problem of a scored sweep, from outcomes that agree with the logged scores."""

from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from cppo_lab import schema
from cppo_lab.analysis.answers import RunAnswers
from cppo_lab.analysis.grid import ExpectedRun
from cppo_lab.analysis.scoring import Scoreboard, score_sweep
from cppo_lab.analysis.statistics.problems import cell_problems, kept_draws, majority_score, paired_problems
from cppo_lab.analysis.statistics.sampling import run_sampling_error
from cppo_lab.analysis.statistics.summary import sweep_statistics
from cppo_lab.analysis.statistics.values import Score, run_values
from cppo_lab.answers.outcomes import Outcomes, no_outcomes
from cppo_lab.answers.texts import VALIDATION, Sample, Texts
from cppo_lab.reports.statistics_tables import statistics_tables
from cppo_lab.reports.table_texts import markdown
from cppo_lab.reports.tables import main_table
from tests.analysis.made_sweeps import MadeRun, expect, make_data

SAMPLES, PROBLEMS = 4, 6  # three problems of each of two benchmarks
STEPS = (0, 10, 20, 30, 40)


def made_outcomes(seed: int, level: float, steps: tuple[int, ...] = STEPS) -> Outcomes:
    rng = np.random.default_rng(seed)
    found = no_outcomes(
        SAMPLES, ("chain24", "chain25"), [f"p{i}" for i in range(PROBLEMS)], [0, 0, 0, 1, 1, 1]
    )
    for step in steps:
        right = rng.binomial(SAMPLES, level, PROBLEMS)
        found = found.append(step, right, np.zeros(PROBLEMS), np.ones(PROBLEMS))
    return found


def made_run(variant: str, seed: int, outcomes: Outcomes, status: str = schema.DONE) -> MadeRun:
    averages = outcomes.averages()
    scores = {
        name: dict(zip(outcomes.steps.tolist(), averages[:, number].tolist(), strict=True))
        for number, name in enumerate(outcomes.benchmarks)
    }
    return MadeRun(variant, seed=seed, scores=scores, t_stop=40, status=status)


@pytest.fixture(scope="module")
def board() -> Scoreboard:
    """DPPO and CPPO with two seeds each; a third seed of CPPO collapsed at step 20."""
    kept = {("dppo", 0): (1, 0.4), ("dppo", 1): (2, 0.4), ("cppo", 0): (3, 0.8), ("cppo", 1): (4, 0.8)}
    outcomes = {key: made_outcomes(*value) for key, value in kept.items()}
    outcomes["cppo", 2] = made_outcomes(5, 0.5, STEPS[:3])
    runs = [
        made_run(variant, seed, own, schema.COLLAPSED if (variant, seed) == ("cppo", 2) else schema.DONE)
        for (variant, seed), own in outcomes.items()
    ]
    data = make_data(runs)
    ids = data.runs.set_index("run_id")["mlflow_id"]
    known = {ids[run.key]: own for run, own in zip(runs, outcomes.values(), strict=True)}
    return score_sweep(replace(data, outcomes=known), expect(runs))


def test_shares_by_problem_average_to_the_final_score(board: Scoreboard) -> None:
    """Also of a collapsed run, whose missing validations are filled in."""
    cells = {cell.variant: cell for cell in cell_problems(board)}
    assert cells["cppo"].seeds == (0, 1, 2)
    for run in run_values(board):
        cell = cells[run.variant]
        assert cell.final[cell.seeds.index(run.seed)].mean() == pytest.approx(run.final)
    assert cells["cppo"].ever.shape == (5 + 5 + 3, PROBLEMS)
    assert cells["dppo"].over_problems.value == pytest.approx(cells["dppo"].final.mean())
    assert sum(weight for weight, _ in cells["cppo"].evaluations) == pytest.approx(1)
    assert len(cells["dppo"].evaluations) == 2 * 2  # steps 30 and 40 of both runs
    last = [board.data.outcomes[name].right[-1] for name in cells["dppo"].mlflow_ids]
    chance = np.mean([[1 - (4 - c) * (3 - c) / 12 for c in run] for run in last])
    assert cells["dppo"].pass_at(2).value == pytest.approx(chance)
    assert [each.value for each in cells["dppo"].profile] == pytest.approx(
        [np.mean([[c >= need for c in run] for run in last]) for need in (1, 2, 3, 4)]
    )


def test_pairs_are_those_of_the_statistics_over_seeds(board: Scoreboard) -> None:
    found = sweep_statistics(board)
    difference = next(cell for cell in found.cells if cell.variant == "cppo").differences[Score.FINAL]
    (pair,) = paired_problems(cell_problems(board), [difference])
    assert difference.paired and pair.difference.problems.value == pytest.approx(difference.estimate.value)
    assert pair.difference.both.half is not None and difference.estimate.half is not None
    assert len(pair.separated) == PROBLEMS


def test_the_error_of_one_evaluation_is_known(board: Scoreboard) -> None:
    run = board.runs[0]
    outcomes = board.data.outcomes[run.mlflow_id or ""]
    counts = outcomes.right[list(outcomes.steps).index(run.choice.step)].astype(int).tolist()
    variance = sum(c / 4 * (1 - c / 4) / 3 for c in counts) / PROBLEMS**2
    found = run_sampling_error(board, run)
    assert found is not None and found.known
    assert found.answers == pytest.approx(variance**0.5)
    entry = main_table(board, "Main").rows[0].cells[0]
    assert entry.evaluation is not None and f"[{entry.evaluation}]" in statistics_text(board)


@pytest.mark.parametrize(
    ("right", "text"),
    [(0, "to {high:.2f}"), (4, "from {low:.2f}"), (1, "")],  # of four answers to each of six problems
)
def test_no_right_or_no_wrong_answer_has_wilsons_limit(right: int, text: str) -> None:
    found = no_outcomes(
        SAMPLES, ("chain24", "chain25"), [f"p{i}" for i in range(PROBLEMS)], [0, 0, 0, 1, 1, 1]
    )
    for step in STEPS:
        found = found.append(step, np.full(PROBLEMS, right), np.zeros(PROBLEMS), np.ones(PROBLEMS))
    runs = [made_run("dppo", seed, found) for seed in (0, 1)] + [made_run("cppo", 0, made_outcomes(3, 0.5))]
    data = make_data(runs)
    outcomes = [found, found, made_outcomes(3, 0.5)]
    known = dict(zip(data.runs["mlflow_id"], outcomes, strict=True))
    board = score_sweep(replace(data, outcomes=known), expect(runs))
    limits = stats.binomtest(SAMPLES * PROBLEMS * right // 4, SAMPLES * PROBLEMS).proportion_ci(
        method="wilson"
    )
    expected = text.format(low=100 * limits.low, high=100 * limits.high)
    tables = statistics_tables(board, "Title")
    cells = [row.cells for row in tables["problems"].rows if row.pair == ("chain", "dppo")]
    scores = [row.cells for row in tables["scores"].rows if row.pair == ("chain", "dppo")]
    if not text:
        assert "to " not in cells[0][2] and "Wilson" not in statistics_text(board)
        assert not any("Wilson" in note for table in tables.values() for note in table.notes)
        return
    assert f"± 0.00 [{expected}]" in statistics_text(board)
    assert "limit in place of an error of 0" in statistics_text(board)
    assert (cells[0][2], cells[0][3], scores[0][6]) == (expected,) * 3
    assert all(any("Wilson" in note for note in tables[name].notes) for name in ("problems", "scores"))


def statistics_text(board: Scoreboard) -> str:
    return markdown(main_table(board, "Main")).replace("\\", "")


def test_tables_and_what_is_not_there(board: Scoreboard) -> None:
    tables = statistics_tables(board, "made")
    assert {"problems", "problem_differences"} <= tables.keys()
    assert "maj@k is not available" in " ".join(tables["problems"].notes)
    assert all(len(row.cells) == len(tables["problems"].headings) for row in tables["problems"].rows)
    first = next(iter(board.data.outcomes))
    without = {name: own for name, own in board.data.outcomes.items() if name != first}
    old = score_sweep(replace(board.data, outcomes=without), _expected(board))
    assert cell_problems(old) == ()
    assert "problems" not in statistics_tables(old, "made")
    other = replace(board.data.outcomes[first], problems=tuple("abcdef"))
    mixed = score_sweep(replace(board.data, outcomes={**without, first: other}), _expected(board))
    assert cell_problems(mixed) == ()


def _expected(board: Scoreboard) -> tuple[ExpectedRun, ...]:
    return tuple(ExpectedRun(run.run_id, run.model, run.variant, run.seed) for run in board.runs)


def text(problem: str, draw: int, answer: str | None, right: bool, step: int = 40) -> Sample:
    return Sample(
        kind=VALIDATION,
        step=step,
        benchmark="chain24",
        problem=problem,
        draw=draw,
        prompt="?",
        response="",
        truth="7",
        answer=answer,
        right=right,
        length=1,
        cut_off=False,
        stop="end",
    )


def test_majority_takes_the_answers_to_all_problems(board: Scoreboard) -> None:
    cell = next(cell for cell in cell_problems(board) if cell.variant == "dppo")
    # 7 7 3 3: a tie. 7 - - -: answers that were not found vote for nothing. The others: 3 3 3 7.
    votes = {"p0": "7733", "p1": "7---"}
    samples = tuple(
        text(name, draw, None if one == "-" else one, one == "7")
        for name in cell.problems
        for draw, one in enumerate(votes.get(name, "3337"))
    )
    whole = {name: RunAnswers((Texts(40, samples),), ()) for name in cell.mlflow_ids}
    found = majority_score(board, cell, whole)
    assert found is not None
    assert found.value == pytest.approx((0.5 + 0.25) / PROBLEMS)
    less = {name: RunAnswers((Texts(40, samples[1:]),), ()) for name in cell.mlflow_ids}
    assert majority_score(board, cell, less) is None
    assert majority_score(board, cell, {}) is None


@pytest.mark.parametrize(
    ("wrong", "share"),
    [
        (("3", "$3$", "\\boxed{3}"), 0.0),
        (("3", "03", "It is 3."), 0.0),
        (("0.5", "\\frac12", "so we get 1/2"), 0.0),
        (("1,000", "1000", "\\$1{,}000"), 0.0),
        (("3", "4", "5"), 0.25),
        (("3 4", "34", "3, 4"), 0.25),
        (("12 or 13", "12", "13"), 0.25),
        ((None, None, None), 0.25),
    ],
)
def test_votes_for_equal_answers_count_together(
    board: Scoreboard, wrong: tuple[str | None, ...], share: float
) -> None:
    cell = next(cell for cell in cell_problems(board) if cell.variant == "dppo")
    samples = tuple(
        text(name, draw, answer, draw == 0)
        for name in cell.problems
        for draw, answer in enumerate(("7", *wrong))
    )
    answers = {name: RunAnswers((Texts(40, samples),), ()) for name in cell.mlflow_ids}
    found = majority_score(board, cell, answers)
    assert found is not None and found.value == pytest.approx(share)


def test_grades_of_single_answers_show_repeated_draws() -> None:
    """Three validations; of the second problem one answer is missing at the last, of the third all but one always."""
    grades = {0: {"a": "1100", "b": "1000"}, 10: {"a": "1000", "b": "0111"}, 20: {"a": "1010", "b": "011"}}
    kept = tuple(
        Texts(
            step,
            tuple(
                text(problem, draw, None, right == "1", step)
                for problem, answers in {**by_problem, "c": "1"}.items()
                for draw, right in enumerate(answers)
            ),
        )
        for step, by_problem in grades.items()
    )
    found = kept_draws(RunAnswers(kept, ()), SAMPLES)
    pairs = [("1100", "1000"), ("1000", "0111"), ("1000", "1010")]
    together = apart = 0.0
    for one, other in pairs:
        a, b = ([int(sign) - sum(map(int, side)) / 4 for sign in side] for side in (one, other))
        together += sum(x * y for x, y in zip(a, b, strict=True))
        apart += sum(x * x for x in a) / 2 + sum(y * y for y in b) / 2
    assert found is not None and found.value == pytest.approx(together / apart)
    assert kept_draws(RunAnswers(kept[:1], ()), SAMPLES) is None
