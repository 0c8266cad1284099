"""The saved view of an experiment. In a browser: tests/browser/test_mlflow_page.py."""

import base64
import json
import zlib
from pathlib import Path

import pytest
from mlflow import MlflowClient

from cppo_lab import schema
from cppo_lab.tracking import page
from cppo_lab.tracking.address import tracking_uri

MEAN = schema.validation_metric(schema.MEAN)


@pytest.fixture
def store(workspace: Path) -> tuple[MlflowClient, str]:
    """A client and an experiment."""
    client = MlflowClient(tracking_uri())
    return client, client.create_experiment("cppo-mini")


def charts(client: MlflowClient, experiment: str) -> list[str]:
    """The metrics that the view has charts of."""
    page.save_view(client, experiment)
    tags = client.get_experiment(experiment).tags
    assert tags["mlflow.experimentKind"] == "custom_model_development"
    assert len(tags[page.TAG_VIEW]) <= 5000  # of an experiment's tag, in every MLflow from 3.1 on
    text = json.loads(tags[page.TAG_VIEW])["state"].removeprefix("deflate;")
    state = json.loads(zlib.decompress(base64.b64decode(text)))
    assert state["orderByKey"] == f"metrics.`{MEAN}`"
    assert [section["name"] for section in state["compareRunSections"]] == ["Validation"]
    return [chart["metricKey"] for chart in state["compareRunCharts"]]


def test_the_view_has_validation_charts_and_is_written_once(store: tuple[MlflowClient, str]) -> None:
    client, experiment = store
    client.set_experiment_tag(experiment, page.TAG_VIEW, "{")  # one that cannot be read is written anew
    assert charts(*store) == [MEAN]
    run = client.create_run(experiment).info.run_id
    for name in (*(f"val/{'long' * 40}_{number}/avg_at_16" for number in range(9)), MEAN, "train/reward"):
        client.log_metric(run, name, 0.5)
    shown = charts(*store)
    assert shown[0] == MEAN
    assert len(shown) == 7
    assert "train/reward" not in shown
    before = client.get_experiment(experiment).tags
    page.save_view(client, experiment)
    assert client.get_experiment(experiment).tags == before
    assert page.page(client.get_experiment(experiment)).endswith(
        "compareRunsMode=CHART&viewStateShareKey=cppo-runs"
    )
