"""The resolved configurations of runs in the tracking store."""

import ast
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mlflow import MlflowClient
from mlflow.entities import Run

from cppo_lab import schema
from cppo_lab.runs.folder import CONFIG, read_config
from cppo_lab.tracking import address
from cppo_lab.tracking.client import STORE_FAULTS, open_client
from cppo_lab.tracking.read import newest_runs


def stored_configs(uri: str, core: str, beginning: str) -> dict[str, dict[str, Any]]:
    """The configurations of all runs of `core` whose id begins with `beginning` (hexadecimal digits), by id.

    A store that does not exist has none.
    """
    if (database := address.sqlite_file(uri)) is not None and not database.is_file():
        return {}
    found: dict[str, dict[str, Any]] = {}
    client = open_client(uri)
    condition = f"tags.`{schema.TAG_RUN_ID}` LIKE '{beginning}%'"
    for run in newest_runs(client, schema.experiment_name(core), condition):
        run_id = run.data.tags[schema.TAG_RUN_ID]
        if run_id not in found:
            found[run_id] = _config(client, run)
    return found


def _config(client: MlflowClient, run: Run) -> dict[str, Any]:
    """The configuration from the artifact, or from the parameters if the artifact is not available."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            path = Path(client.download_artifacts(run.info.run_id, CONFIG, folder))
        except STORE_FAULTS:
            return nested(run.data.params)
        return read_config(path) or nested(run.data.params)


def nested(params: Mapping[str, str]) -> dict[str, Any]:
    """Nested, typed values from parameters, which are logged as text under dotted keys."""
    values: dict[str, Any] = {}
    for key, text in params.items():
        section = values
        *path, last = key.split(".")
        for name in path:
            if not isinstance(section.get(name), dict):
                section[name] = {}
            section = section[name]
        section[last] = _value(text)
    return values


def _value(text: str) -> Any:
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        return text
