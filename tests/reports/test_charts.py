"""The curves that the page's script gets, and the list of runs that its numbers lead to."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from cppo_lab import schema
from cppo_lab.analysis.reader import read_sweep
from cppo_lab.analysis.scoring import Scoreboard, score_sweep
from cppo_lab.reports import charts
from cppo_lab.reports.charts import charts_json, charts_of
from cppo_lab.reports.figures.curves import curves_info
from cppo_lab.reports.figures.diagnostics import diagnostics_info
from cppo_lab.reports.run_list import anchors_of, mlflow_link, run_groups
from cppo_lab.reports.sweep import ReportRequest
from tests.reports.made_pair import request_for_pair, write_pair


def test_the_papers_curve_lies_beside_ours(empty_uri: str, tmp_path: Path, paper_board: Scoreboard) -> None:
    write_pair(empty_uri)
    request = request_for_pair(empty_uri, tmp_path / "out")
    board = score_sweep(read_sweep(empty_uri, request.experiment, "main"), request.expected)
    found = charts_of(board, "x", anchors_of(board, "0"), curves_info(board, ""))
    assert [view.name for view in found.views] == ["Mean of the benchmarks", "AIME24", "AIME25", "AIME26"]
    ours = found.views[0].series[3]
    assert (ours.kind, ours.name, ours.runs) == ("run", "seed 0, cppo-0", "runs-0-1")
    assert ours.steps == tuple(range(0, 201, 10))
    assert ours.best == (200, 35.0)
    theirs = found.views[0].series[-1]
    assert [series.kind for series in found.views[0].series].count("paper") == 2
    assert (theirs.kind, theirs.name, theirs.runs) == ("paper", "the paper's", "")
    (run,) = [one for one in paper_board.runs if (one.model, one.variant) == ("Qwen3-8B-Base", "cppo")]
    curve = paper_board.curves.of(run.mlflow_id or "")[schema.MEAN]
    assert theirs.steps == tuple(curve.index)
    assert theirs.values == pytest.approx([100 * value for value in curve], rel=1e-5)


def test_the_paper_is_not_laid_over_itself_nor_over_other_models(
    paper_board: Scoreboard, demo_request: ReportRequest
) -> None:
    data = read_sweep(demo_request.uri, demo_request.experiment, "demo")
    for board in (paper_board, score_sweep(data, demo_request.expected)):
        found = charts_of(board, "x", anchors_of(board, "0"), curves_info(board, ""))
        assert "paper" not in {series.kind for view in found.views for series in view.series}


def test_seeds_their_mean_and_the_diagnostics(demo_request: ReportRequest) -> None:
    data = read_sweep(demo_request.uri, demo_request.experiment, "demo")
    board = score_sweep(data, demo_request.expected)
    found = charts_of(board, "x", anchors_of(board, "0"), curves_info(board, ""), diagnostics_info(board, ""))
    assert found.methods == (("GRPO", "#59A14F"), ("CPPO", "#0052D9"))
    mean = found.views[0]
    assert [(series.method, series.name) for series in mean.series] == [
        *((0, "seed 0, grpo-0"), (0, "seed 1, grpo-1"), (0, "mean of 2 runs")),
        *((1, "seed 0, cppo-0"), (1, "seed 1, cppo-1"), (1, "mean of 2 runs")),
    ]
    assert mean.series[-1].values == (5.1, 25.5, 51.0, 40.8, 45.9)
    assert found.views[-1].name == "Reward (fraction)"
    assert found.views[-1].series[0].steps[:2] == (1.0, 2.0)


def test_of_very_many_runs_there_are_the_means_alone(
    demo_request: ReportRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(charts, "MANY", 3)
    data = read_sweep(demo_request.uri, demo_request.experiment, "demo")
    board = score_sweep(data, demo_request.expected)
    views = charts_of(board, "x", anchors_of(board, "0"), curves_info(board, "")).views
    assert {series.kind for view in views for series in view.series} == {"mean"}


def test_no_name_can_end_the_data(demo_request: ReportRequest) -> None:
    hostile = "</script><script>alert(1)</script>&<!--\u2028"
    data = read_sweep(demo_request.uri, demo_request.experiment, "demo")
    expected = [
        replace(entry, model=hostile, variant=entry.variant + hostile) for entry in demo_request.expected
    ]
    board = score_sweep(data, expected)
    text = charts_json(charts_of(board, "x", anchors_of(board, "0"), curves_info(board, "")))
    assert not set("<>&\u2028") & set(text)
    assert json.loads(text)["panels"] == [hostile]


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
