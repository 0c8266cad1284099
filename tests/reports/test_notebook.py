"""`cppo_lab.load` scores the paper's curves as the report does, which reads them from a store."""

import cppo_lab
from cppo_lab import schema
from cppo_lab.analysis.scoring import Scoreboard
from cppo_lab.analysis.selection import SelectionState


def test_the_paper_s_curves_score_as_in_its_report(paper_board: Scoreboard) -> None:
    runs = cppo_lab.load("main", source="paper").runs
    found = {
        (row.model, row.variant): (row.best, row.best_step, row.state == schema.COLLAPSED)
        for row in runs.itertuples()
    }
    assert found == {
        (run.model, run.variant): (run.choice.score, run.choice.step, run.state is SelectionState.COLLAPSE)
        for run in paper_board.runs
    }
    assert sum(collapsed for *_, collapsed in found.values()) == 1
    assert runs["seed"].isna().all()
