"""The tables of statistics: their numbers against plain ones, and which tables there are."""

import pytest

from cppo_lab.analysis.reader import read_sweep
from cppo_lab.analysis.scoring import Scoreboard, score_sweep
from cppo_lab.reports.statistics_tables import statistics_tables
from cppo_lab.reports.sweep import ReportRequest
from cppo_lab.reports.tables import TextTable, main_table


def cell(table: TextTable, pair: tuple[str, str], heading: int) -> str:
    return next(row.cells[heading] for row in table.rows if row.pair == pair)


def test_one_run_per_method_has_scores_and_order_alone(paper_board: Scoreboard) -> None:
    tables = statistics_tables(paper_board, "main")
    assert list(tables) == ["scores", "order"]
    assert not any("±" in text for row in tables["scores"].rows for text in row.cells)
    # The same numbers as Table 1, to the digit.
    main = main_table(paper_board, "")
    for row in main.rows:
        for entry in row.cells:
            if entry.value is not None:
                assert cell(tables["scores"], entry.pair, 1) == str(entry.value)


def test_order_of_the_papers_methods(paper_board: Scoreboard) -> None:
    order = statistics_tables(paper_board, "main")["order"]
    # 28.82, 28.19 at the best step; 25.66, 26.05 over the last 30 %.
    assert [cell(order, ("Qwen3-1.7B", name), 0) for name in ("cppo", "cispo", "dppo")] == ["1", "2", "3"]
    assert [cell(order, ("Qwen3-1.7B", name), 3) for name in ("cppo", "cispo", "dppo")] == ["1", "3", "2"]
    assert cell(order, ("Qwen3-1.7B", "cppo"), 1) == "3.06"
    assert "Qwen3-1.7B-Base 1.00" in order.notes[-1]


def test_several_seeds(demo_request: ReportRequest) -> None:
    data = read_sweep(demo_request.uri, demo_request.experiment, "demo")
    tables = statistics_tables(score_sweep(data, demo_request.expected), "demo")
    assert list(tables) == ["scores", "differences", "order"]  # one model: nothing over models
    scores, pair = tables["scores"], ("mini_base", "cppo")
    # Seeds score 50 and 52 on average of the benchmarks at the best step.
    assert cell(scores, pair, 1) == "51.00 (50.0 to 52.0)"
    assert cell(scores, pair, 3) == "43.35 (42.5 to 44.2)"
    assert "Of two seeds: the range of both" in scores.notes[-1]
    differences = tables["differences"]
    assert [row.pair for row in differences.rows] == [pair]
    assert cell(differences, pair, 0) == "+17.00"  # without spread: both seeds differ by as much
    assert differences.lead == "minus GRPO"


@pytest.mark.parametrize("kind", ["scores", "order"])
def test_every_row_leads_to_runs(paper_board: Scoreboard, kind: str) -> None:
    rows = statistics_tables(paper_board, "main")[kind].rows
    assert {row.pair for row in rows} == set(paper_board.cells)
