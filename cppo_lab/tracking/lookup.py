"""The resolved configuration of a run that the tracking store knows."""

import ast
import tempfile
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from mlflow import MlflowClient
from mlflow.entities import Run
from mlflow.exceptions import MlflowException
from sqlalchemy.exc import SQLAlchemyError

from cppo_lab import schema
from cppo_lab.runs.folder import CONFIG, read_config
from cppo_lab.store import address
from cppo_lab.store.client import open_client
from cppo_lab.store.listing import newest_runs


def stored_configs(
    uri: str, core: str, beginning: str, without: Collection[str] = ()
) -> dict[str, dict[str, Any]]:
    """The configurations of all runs of `core` whose id begins with `beginning` (hexadecimal digits), by id.

    Those that are among `without` are known already. A store that does not exist has none.
    """
    database = address.sqlite_file(uri)
    if database is not None and not database.is_file():
        return {}
    client, found = open_client(uri), {}
    condition = f"tags.`{schema.TAG_RUN_ID}` LIKE '{beginning}%'"
    for run in newest_runs(client, schema.experiment_name(core), condition):
        run_id = run.data.tags[schema.TAG_RUN_ID]
        if run_id not in found and run_id not in without:
            found[run_id] = _config(client, run)
    return found


def _config(client: MlflowClient, run: Run) -> dict[str, Any]:
    """By the artifact; by the parameters where it cannot be had."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            path = Path(client.download_artifacts(run.info.run_id, CONFIG, folder))
        except (MlflowException, SQLAlchemyError, OSError):
            return nested(run.data.params)
        return read_config(path) or nested(run.data.params)


def nested(params: Mapping[str, str]) -> dict[str, Any]:
    """Parameters under dotted keys as they were before they were logged as text."""
    values: dict[str, Any] = {}
    for key, text in params.items():
        section = values
        *path, last = key.split(".")
        for name in path:
            section = section.setdefault(name, {})
        section[last] = _value(text)
    return values


def _value(text: str) -> Any:
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        return text
