"""The resolved configurations of runs in the tracking store."""

import ast
import tempfile
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from cppo_lab import schema
from cppo_lab.runs.folder import CONFIG, read_config
from cppo_lab.store import address
from cppo_lab.store.read_only import open_reader
from cppo_lab.store.reader import StoredRun


def stored_configs(
    uri: str, core: str, beginning: str, without: Collection[str] = ()
) -> dict[str, dict[str, Any]]:
    """The configurations of all runs of `core` whose id begins with `beginning` (hexadecimal digits), by id.

    Runs in `without` are skipped. A store that does not exist has none.
    """
    found: dict[str, dict[str, Any]] = {}
    with open_reader(uri) as reader:
        if reader is None:
            return found
        name = schema.experiment_name(core)
        for run in reader.runs(name, schema.TAG_RUN_ID, beginning=beginning, params=True):
            run_id = run.tags[schema.TAG_RUN_ID]
            if run_id not in found and run_id not in without:
                found[run_id] = _config(uri, run)
    return found


def _config(uri: str, run: StoredRun) -> dict[str, Any]:
    """The configuration from the artifact, or from the parameters if the artifact is not available."""
    if (local := address.artifact_folder(run.artifact_uri)) is not None:
        return read_config(local / CONFIG) or nested(run.params)
    if not run.artifact_uri:
        return nested(run.params)
    from mlflow.exceptions import MlflowException
    from sqlalchemy.exc import SQLAlchemyError

    from cppo_lab.store.client import open_client

    with tempfile.TemporaryDirectory() as folder:
        try:
            path = Path(open_client(uri).download_artifacts(run.mlflow_id, CONFIG, folder))
        except (MlflowException, SQLAlchemyError, OSError):
            return nested(run.params)
        return read_config(path) or nested(run.params)


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
