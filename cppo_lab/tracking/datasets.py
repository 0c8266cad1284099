"""The datasets of a run as MLflow's inputs."""

import json
from collections.abc import Sequence

from mlflow import MlflowClient
from mlflow.entities import Dataset as MlflowDataset
from mlflow.entities import DatasetInput, InputTag

from cppo_lab.redaction import redacted
from cppo_lab.schema import CODE, Dataset

CONTEXT = "mlflow.data.context"
SOURCE_NAME = "mlflow.source.name"


def as_inputs(datasets: Sequence[Dataset]) -> list[DatasetInput]:
    """The datasets as MLflow has them; its page reads source and profile as JSON."""
    return [DatasetInput(_as_mlflow(one), [InputTag(CONTEXT, one.context)]) for one in datasets]


def log_datasets(client: MlflowClient, mlflow_id: str, datasets: Sequence[Dataset]) -> None:
    """Log the data that a run reads. Idempotent: MLflow identifies a dataset by its name and digest."""
    if datasets:
        client.log_inputs(mlflow_id, datasets=as_inputs(datasets))


def _as_mlflow(dataset: Dataset) -> MlflowDataset:
    name = redacted(dataset.source)
    source = {"tags": {SOURCE_NAME: name}} if dataset.source_type == CODE else {"uri": name}
    return MlflowDataset(
        name=dataset.name,
        digest=dataset.digest,
        source_type=dataset.source_type,
        source=json.dumps(source),
        profile=redacted(json.dumps(dict(dataset.profile))),
    )
