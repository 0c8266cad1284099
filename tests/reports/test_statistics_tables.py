"""The tables of statistics of single runs: their numbers against plain ones, and which there are."""

from cppo_lab.analysis.scoring import Scoreboard
from cppo_lab.reports.sections import Scored
from cppo_lab.reports.statistics_tables import statistics_tables
from cppo_lab.reports.tables import TextTable, main_table


def cell(table: TextTable, pair: tuple[str, str] | None, heading: int) -> str:
    return next(row.cells[heading] for row in table.rows if row.pair == pair)


def test_the_papers_single_runs_have_scores_and_order_alone(paper_board: Scoreboard) -> None:
    tables = statistics_tables(Scored("made", "main", paper_board, ""))
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
