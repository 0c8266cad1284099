"""The paper's tables out of its curves, against the printed tables."""

import csv
import io
import math
from decimal import Decimal

import pytest

import cppo_lab
from cppo_lab import schema
from cppo_lab.analysis.inputs import ExpectedRun
from cppo_lab.analysis.reader import read_sweep
from cppo_lab.analysis.scoring import Scoreboard, SelectionState, score_sweep
from cppo_lab.reports import tables
from cppo_lab.reports.audit import (
    AVERAGE,
    CONFIRMED,
    FOUND,
    NOT_SEEN,
    Discrepancy,
    audit_tables,
    discrepancies,
)
from cppo_lab.reports.names import percent, round_half_up
from cppo_lab.reports.sections import Scored
from cppo_lab.reports.statistics_tables import statistics_tables
from cppo_lab.reports.tables import TextTable, ablation_curves, full_table, main_table, printed_table
from tests.analysis.made_sweeps import MadeRun, both, scored

TOLERANCE = Decimal("0.01")  # rounded or cut, both of which the paper does


def audited(board: Scoreboard, printed: list[dict[str, str]]) -> list[Discrepancy]:
    return discrepancies(audit_tables(board, printed), board, ablation_curves())


@pytest.mark.parametrize("name, make", [("table_main", main_table), ("table_full", full_table)])
def test_tables_1_and_4_as_printed(paper_board: Scoreboard, name: str, make: object) -> None:
    text = tables.table_csv(make(paper_board, "Table"))  # type: ignore[operator]
    ours, printed = list(csv.DictReader(io.StringIO(text))), printed_table(name)
    assert [list(row) for row in ours] == [list(row) for row in printed]  # the same columns in the same order
    for mine, theirs in zip(ours, printed, strict=True):
        for column, value in theirs.items():
            if "." in value and column != "model":
                assert abs(Decimal(mine[column]) - Decimal(value)) <= TOLERANCE, (theirs, column)
                assert len(mine[column].split(".")[1]) == 2
            else:  # names, T_stop and `collapse`
                assert mine[column] == value, (theirs, column)


def test_known_discrepancies_have_the_verdict_of_the_curves(paper_board: Scoreboard) -> None:
    said = audited(paper_board, printed_table("table_full"))
    # Truncated digits; DPPO on Qwen3-1.7B and TRM-Avg on Qwen3-1.7B-Base; the others.
    verdicts = [CONFIRMED, *[NOT_SEEN] * 2, *[CONFIRMED] * 5, *[FOUND] * 4]
    assert [entry.verdict for entry in said] == verdicts
    for number, text in (
        (0, "37 are truncated, 30 are rounded, 0 are neither"),
        (0, "CPPO rows 9 of 9"),
        (3, "49.51 at step 145"),
        (3, "step 215, at 0.00"),
        (4, "9 of the 23 margins"),  # between printed numbers, by hand
        (5, "CPPO 28.88 and DPPO 26.05 (rank differs from print for DPPO, CISPO)"),
        (5, "51.57 and DPPO 46.50."),
        (8, "161 of 339"),
        (8, "99 of 204"),
        (9, "steps 150, 160, 310"),
        (10, "step 660 of 680"),
    ):
        assert text in said[number].evidence


def test_verdicts_follow_the_numbers(paper_board: Scoreboard) -> None:
    """Were DPPO printed with the digits that its curve was once noted to disagree with, the audit would say so."""
    printed = printed_table("table_full")
    for row in printed:
        if (row["model"], row["method"]) == ("Qwen3-1.7B", "dppo"):
            row["aime25"] = "28.33"
    first, second, *_ = audited(paper_board, printed)
    assert second.verdict == CONFIRMED and "1 are neither" in first.evidence


def test_markdown_and_latex_carry_the_marks(paper_board: Scoreboard) -> None:
    made = main_table(paper_board, "Table 1"), full_table(paper_board, "Table 4")
    markdown, latex = ("".join(map(write, made)) for write in (tables.markdown, tables.latex))
    for text in (
        "| **CPPO** | **31.88** | **12.78** | **31.11** | **54.79** |",
        "<u>49.24</u>",
        "## Qwen3-8B-Base (T_stop = 490)",
        "| TRM-Avg | 31.46 | 25.00 | 27.50 | 27.99 | 150 |",
        "| CISPO | collapse | collapse | collapse | collapse | 215 |",
    ):
        assert text in markdown
    for text in (
        r"\rowcolor{black!8} CPPO & \textbf{31.88} & \textbf{12.78}",
        r"\underline{49.24}",
        r"\textit{Qwen3-8B-Base} ($T_{\mathrm{stop}} = 490$)",
    ):
        assert text in latex
    assert "not trained here" in markdown and "not trained here" in latex


def test_ablation_sweeps_of_the_paper_score_without_components(reference_uri: str) -> None:
    names = ("cppo", "cppo_no_position_weight", "cppo_no_prefix_budget", "dppo")
    expected = [ExpectedRun(None, "Qwen3-1.7B", name, None) for name in names]
    board = score_sweep(read_sweep(reference_uri, "paper", "single_mechanism"), expected)
    assert tables.table_csv(full_table(board, "single mechanism")) == (
        "model,t_stop,method,aime24,aime25,aime26,avg\n"
        "Qwen3-1.7B,1120,dppo,31.04,28.23,25.31,28.19\n"
        "Qwen3-1.7B,1120,cppo,34.79,30.63,30.21,31.88\n"
        "Qwen3-1.7B,1120,cppo_no_position_weight,not logged,not logged,not logged,29.44\n"
        "Qwen3-1.7B,1120,cppo_no_prefix_budget,not logged,not logged,not logged,30.28\n"
    )


def test_load_scores_the_papers_curves_as_its_report_does(paper_board: Scoreboard) -> None:
    runs = cppo_lab.load("main", source="paper").runs
    loaded = {
        (row.model, row.variant, row.best, row.best_step, row.state == schema.COLLAPSED)
        for row in runs.itertuples()
    }
    assert loaded == {
        (run.model, run.variant, run.choice.score, run.choice.step, run.state is SelectionState.COLLAPSE)
        for run in paper_board.runs
    }
    assert sum(collapsed for *_, collapsed in loaded) == 1
    assert runs["seed"].isna().all()


@pytest.mark.parametrize(
    "fraction, text",
    [
        (0.31875, "31.88"),  # a tie in decimals, below it in binary
        ((0.15625 + 0.120833 + 0.079167) / 3, "11.88"),  # 0.11874999999999998 in binary
        (0.304167, "30.42"),
        (0.0, "0.00"),
        (1.0, "100.00"),
    ],
)
def test_rounding_is_half_up_on_the_decimal_value(fraction: float, text: str) -> None:
    assert str(round_half_up(percent(fraction))) == text


def test_a_collapsed_run_has_no_late_mean() -> None:
    fallen = MadeRun("fallen", scores=both({10: 0.9, 90: 0.9, 100: 0.0}), status=schema.COLLAPSED)
    board = scored([fallen, MadeRun("steady", scores=both({10: 0.1, 90: 0.3, 100: 0.3}))])
    numbers = dict.fromkeys((*board.benchmarks, AVERAGE), "10.00")
    printed = [{"model": run.model, "method": run.variant, **numbers} for run in board.runs]
    late = audit_tables(board, printed).runs["late"]["chain"]
    assert math.isnan(late["fallen"]) and late["steady"] == pytest.approx(0.3)


def cell(table: TextTable, pair: tuple[str, str] | None, heading: int) -> str:
    return next(row.cells[heading] for row in table.rows if row.pair == pair)


def test_the_papers_single_runs_have_scores_and_order_alone(paper_board: Scoreboard) -> None:
    made = statistics_tables(Scored("made", "main", paper_board, ""))
    assert list(made) == ["scores", "order"]
    scores, order = made.values()
    assert "±" not in tables.markdown(scores)
    for row in main_table(paper_board, "").rows:  # the same numbers as Table 1, to the digit
        for entry in row.cells:
            if entry.value is not None:
                assert cell(scores, entry.pair, 1) == str(entry.value)
    # CPPO, CISPO, DPPO: 28.82, 28.19 at the best step; 25.66, 26.05 over the last 30 %.
    names = ("cppo", "cispo", "dppo")
    places = [cell(order, ("Qwen3-1.7B", name), number) for number in (0, 3) for name in names]
    assert places == ["1", "2", "3", "1", "3", "2"]
    assert cell(order, ("Qwen3-1.7B", "cppo"), 1) == "3.06"
    assert "Qwen3-1.7B-Base 1.00" in order.notes[-1]
    for table in (scores, order):  # every row leads to runs
        assert {row.pair for row in table.rows} == set(paper_board.cells)
