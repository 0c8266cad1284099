"""Datasets in a real store: they are a run's inputs, once, however often they are said."""

import json
from pathlib import Path

from mlflow.data import dataset_source_registry

from cppo_lab import schema
from cppo_lab.schema import Dataset
from cppo_lab.store.address import tracking_uri
from cppo_lab.store.client import ensure_experiment, open_client
from cppo_lab.tracking.datasets import log_datasets

TRAIN = Dataset("chain", "0123456789ab", "cppo_lab.x", schema.CODE, schema.TRAINING, {"problems": 7})
HELD = Dataset("aime24", "a" * 12, "/data/aime24.parquet", schema.LOCAL, schema.VALIDATION, {"origin": "hub"})


def test_they_are_inputs_once(workspace: Path) -> None:
    uri = tracking_uri()
    client = open_client(uri)
    experiment = ensure_experiment(client, uri, "test")
    runs = [client.create_run(experiment).info.run_id for _ in range(2)]
    for mlflow_id in runs:
        log_datasets(client, mlflow_id, [TRAIN, HELD])
        log_datasets(client, mlflow_id, [TRAIN, HELD])
        log_datasets(client, mlflow_id, [])
    for mlflow_id in runs:
        found = {one.dataset.name: one for one in open_client(uri).get_run(mlflow_id).inputs.dataset_inputs}
        assert len(open_client(uri).get_run(mlflow_id).inputs.dataset_inputs) == 2
        for ours in (TRAIN, HELD):
            theirs = found[ours.name]
            assert theirs.dataset.digest == ours.digest
            assert json.loads(theirs.dataset.profile) == ours.profile
            assert [(tag.key, tag.value) for tag in theirs.tags] == [("mlflow.data.context", ours.context)]
            # MLflow itself reads the source as one of its kinds.
            source = dataset_source_registry.get_dataset_source_from_json(
                theirs.dataset.source, theirs.dataset.source_type
            )
            assert ours.source in source.to_json()
    log_datasets(client, runs[0], [Dataset(**{**vars(TRAIN), "digest": "b" * 12})])
    assert len(client.get_run(runs[0]).inputs.dataset_inputs) == 3  # other problems are another dataset


def test_no_password_is_told(workspace: Path) -> None:
    uri = tracking_uri()
    client = open_client(uri)
    mlflow_id = client.create_run(ensure_experiment(client, uri, "test")).info.run_id
    secret = "https://ada:s3cret@host/a.parquet"
    log_datasets(client, mlflow_id, [Dataset("a", "b", secret, schema.LOCAL, "training", {"origin": secret})])
    [told] = client.get_run(mlflow_id).inputs.dataset_inputs
    assert "s3cret" not in told.dataset.source + told.dataset.profile
    assert json.loads(told.dataset.profile)["origin"] == "https://ada:***@host/a.parquet"
