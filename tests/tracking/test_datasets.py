"""Datasets in a real store: they are a run's inputs, once, however often they are said."""

import json
from pathlib import Path
from typing import Any

import pytest
from mlflow import MlflowClient
from mlflow.data import dataset_source_registry
from mlflow.exceptions import MlflowException
from mlflow.protos.databricks_pb2 import BAD_REQUEST

from cppo_lab import schema
from cppo_lab.runs.recorder import Recorder
from cppo_lab.runs.spool import FOLDER
from cppo_lab.schema import Dataset
from cppo_lab.spec import RunSpec
from tests.recorded import mlflow_run

TRAIN = Dataset("chain", "0123456789ab", "cppo_lab.x", schema.CODE, schema.TRAINING, {"problems": 7})
HELD = Dataset("aime24", "a" * 12, "/data/aime24.parquet", schema.LOCAL, schema.VALIDATION, {"origin": "hub"})
ADDRESS = "https://ada:s3cret@host/a.parquet"
SECRET = Dataset("a", "b", ADDRESS, schema.LOCAL, schema.TRAINING, {"origin": ADDRESS})


def test_they_are_inputs_once_and_tell_no_password(workspace: Path, tiny_spec: RunSpec) -> None:
    folder = workspace / "runs" / tiny_spec.run_id
    folder.mkdir(parents=True)
    Recorder(tiny_spec, {}, folder, datasets=[TRAIN, HELD, SECRET])
    mlflow_run(folder)
    (folder / FOLDER / "shipped.json").unlink()
    inputs = {one.dataset.name: one for one in mlflow_run(folder).inputs.dataset_inputs}
    assert len(mlflow_run(folder).inputs.dataset_inputs) == 3
    for ours in (TRAIN, HELD):
        theirs = inputs[ours.name]
        assert theirs.dataset.digest == ours.digest
        assert json.loads(theirs.dataset.profile) == ours.profile
        assert [(tag.key, tag.value) for tag in theirs.tags] == [("mlflow.data.context", ours.context)]
        # MLflow itself reads the source as one of its kinds.
        source = dataset_source_registry.get_dataset_source_from_json(
            theirs.dataset.source, theirs.dataset.source_type
        )
        assert ours.source in source.to_json()
    told = inputs["a"].dataset
    assert "s3cret" not in told.source + told.profile
    assert json.loads(told.profile)["origin"] == "https://ada:***@host/a.parquet"
    Recorder(tiny_spec, {}, folder, datasets=[Dataset(**{**vars(TRAIN), "digest": "b" * 12})])
    assert len(mlflow_run(folder).inputs.dataset_inputs) == 4  # other problems are another dataset


def test_a_dataset_that_another_run_adds_at_the_same_moment(
    workspace: Path, tiny_spec: RunSpec, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """MLflow finds none, and a dataset of that name and digest when it adds it: the second run is refused."""
    folder = workspace / "runs" / tiny_spec.run_id
    folder.mkdir(parents=True)
    Recorder(tiny_spec, {}, folder, datasets=[TRAIN])
    real, refused = MlflowClient.log_inputs, []

    def log_inputs(client: MlflowClient, *arguments: Any, **named: Any) -> None:
        if not refused:
            refused.append(named)
            message = (
                "(sqlite3.IntegrityError) UNIQUE constraint failed: datasets.experiment_id, datasets.name"
            )
            raise MlflowException(message, error_code=BAD_REQUEST)
        real(client, *arguments, **named)

    monkeypatch.setattr(MlflowClient, "log_inputs", log_inputs)
    assert len(mlflow_run(folder).inputs.dataset_inputs) == 1 and refused
    assert "tracking store" not in capsys.readouterr().err
