"""The list of runs that the numbers of a page lead to."""

import pytest

from cppo_lab.analysis.reader import read_sweep
from cppo_lab.analysis.scoring import score_sweep
from cppo_lab.reports.run_list import anchors_of, mlflow_link, run_groups
from cppo_lab.reports.sweep import ReportRequest


def test_every_run_is_in_the_group_of_its_cell(demo_request: ReportRequest) -> None:
    data = read_sweep(demo_request.uri, demo_request.experiment, "demo")
    board = score_sweep(data, demo_request.expected)
    groups = run_groups(board, "0", "https://user:secret@host:5000/mlflow/?x=1")
    assert [[run.run_id for run in group.runs] for group in groups] == [
        ["grpo-0", "grpo-1"],
        ["cppo-0", "cppo-1"],
    ]
    assert anchors_of(board, "0")["mini_base", "cppo"] == groups[1].anchor
    run = groups[1].runs[1]
    assert run.link == (
        f"https://host:5000/mlflow/#/experiments/{data.experiment_id}/runs/{run.mlflow_id}?workflowType=machine_learning"
    )


@pytest.mark.parametrize("uri", ["sqlite:////x/mlflow.db", "postgresql://u:p@host/db", "javascript:alert(1)"])
def test_other_stores_have_no_address(uri: str) -> None:
    assert mlflow_link(uri, "#/abc") == ""
