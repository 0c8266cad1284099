"""Retraining a finished run: its old result stays until the new one is complete.

From its start, the new attempt's MLflow run names the results that it is to replace (TAG_REPLACES). They are deleted
(as MLflow deletes, so they can be restored) only when it has finished; then the tag becomes TAG_REPLACED. A kill at any
point leaves exactly one valid result, since readers take the newest finished run: the old one until the new one ends.
"""

import re
import shutil
import sys
from pathlib import Path

from mlflow import MlflowClient
from mlflow.exceptions import MlflowException

from cppo_lab import schema
from cppo_lab.runs.state import ASIDE
from cppo_lab.store.client import STORE_FAULTS, fault_line
from cppo_lab.store.records import recorded_status

_STAYS = {ASIDE, "attempts"}  # `attempts` has the launcher's output, which is being written


def set_aside(folder: Path, mlflow_id: str) -> None:
    """Move an earlier result's files in the run's folder aside, so that none of them is resumed from.

    If a kill interrupts it, calling it again moves the rest. The caller holds the lock of the folder.
    """
    target = folder / ASIDE / re.sub(r"[^0-9A-Za-z-]", "_", mlflow_id)
    for path in sorted(folder.iterdir()):
        if path.name in _STAYS or path.name == "lock" or path.suffix == ".lock":
            continue
        target.mkdir(parents=True, exist_ok=True)
        if not (target / path.name).exists():
            path.rename(target / path.name)
        elif path.is_dir():  # created by an attempt that was killed before it was recorded
            shutil.rmtree(path)
        else:
            path.unlink()


def retire(client: MlflowClient, mlflow_id: str) -> None:
    """Delete the results that the run `mlflow_id` names, if it has finished. `mlflow runs restore` brings them back.

    If the store does not answer, a message is printed and the next launch tries again.
    """
    try:
        successor = client.get_run(mlflow_id)
        named = successor.data.tags.get(schema.TAG_REPLACES, "")
        if recorded_status(successor.data.tags) not in schema.FINISHED or not named:
            return
        for old in named.split():
            _delete(client, old, successor.data.tags.get(schema.TAG_RUN_ID, ""))
        client.set_tag(mlflow_id, schema.TAG_REPLACED, named)
        client.delete_tag(mlflow_id, schema.TAG_REPLACES)
    except STORE_FAULTS as error:
        said = f"replaced results are still there, the next launch removes them: {fault_line(error)}"
        print(said, file=sys.stderr)


def _delete(client: MlflowClient, mlflow_id: str, run_id: str) -> None:
    """Delete an attempt at `run_id`; nothing else, whatever its tags are."""
    try:
        old = client.get_run(mlflow_id)
    except MlflowException as error:
        if error.error_code == "RESOURCE_DOES_NOT_EXIST":
            return
        raise
    if old.info.lifecycle_stage == "active" and old.data.tags.get(schema.TAG_RUN_ID) == run_id:
        client.delete_run(mlflow_id)
