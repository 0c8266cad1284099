"""The tables of statistics: their numbers against plain ones, and which tables there are; and the list of runs."""

import pytest

from cppo_lab.analysis.scoring import Scoreboard
from cppo_lab.reports.sections import anchors_of, mlflow_link, run_groups
from cppo_lab.reports.statistics_tables import statistics_tables
from cppo_lab.reports.tables import TextTable, main_table


def cell(table: TextTable, pair: tuple[str, str] | None, heading: int) -> str:
    return next(row.cells[heading] for row in table.rows if row.pair == pair)


def test_the_papers_single_runs_have_scores_and_order_alone(paper_board: Scoreboard) -> None:
    tables = statistics_tables(paper_board, "main")
    assert list(tables) == ["scores", "order"]
    scores, order = tables.values()
    assert not any("±" in text for row in scores.rows for text in row.cells)
    for row in main_table(paper_board, "").rows:  # the same numbers as Table 1, to the digit
        for entry in row.cells:
            if entry.value is not None:
                assert cell(scores, entry.pair, 1) == str(entry.value)
    # CPPO, CISPO, DPPO: 28.82, 28.19 at the best step; 25.66, 26.05 over the last 30 %.
    places = [
        [cell(order, ("Qwen3-1.7B", name), number) for name in ("cppo", "cispo", "dppo")] for number in (0, 3)
    ]
    assert places == [["1", "2", "3"], ["1", "3", "2"]]
    assert cell(order, ("Qwen3-1.7B", "cppo"), 1) == "3.06"
    assert "Qwen3-1.7B-Base 1.00" in order.notes[-1]
    for table in (scores, order):  # every row leads to runs
        assert {row.pair for row in table.rows} == set(paper_board.cells)


def test_several_seeds(demo_board: Scoreboard) -> None:
    tables = statistics_tables(demo_board, "demo")
    assert list(tables) == ["scores", "differences", "order"]  # one model: nothing over models
    scores, differences, _ = tables.values()
    # Seeds score 50 and 52 on average of the benchmarks at the best step.
    assert cell(scores, ("mini_base", "cppo"), 1) == "51.00 (50.0 to 52.0)"
    assert cell(scores, ("mini_base", "cppo"), 3) == "43.35 (42.5 to 44.2)"
    assert "Of two seeds: the range of both" in scores.notes[-1]
    (row,) = differences.rows
    assert (row.pair, row.cells[0]) == (
        ("mini_base", "cppo"),
        "+17.00",
    )  # no spread: both seeds differ by as much
    assert differences.lead == "minus GRPO"


def test_every_run_is_in_the_group_of_its_cell(demo_board: Scoreboard) -> None:
    first, second = run_groups(demo_board, "0", "https://user:secret@host:5000/mlflow/?x=1")
    assert [run["run_id"] for run in (*first.runs, *second.runs)] == ["grpo-0", "grpo-1", "cppo-0", "cppo-1"]
    assert anchors_of(demo_board, "0")["mini_base", "cppo"] == second.anchor
    place = f"experiments/{demo_board.data.experiment_id}/runs/{second.runs[1]['mlflow_id']}"
    assert second.runs[1]["link"] == f"https://host:5000/mlflow/#/{place}?workflowType=machine_learning"


@pytest.mark.parametrize("uri", ["sqlite:////x/mlflow.db", "postgresql://u:p@host/db", "javascript:alert(1)"])
def test_other_stores_have_no_address(uri: str) -> None:
    assert mlflow_link(uri, "#/abc") == ""
