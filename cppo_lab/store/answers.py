"""A run's answer files in the tracking store, listed with one request and fetched on demand."""

import tempfile
from functools import cached_property
from pathlib import Path

from mlflow import MlflowClient

from cppo_lab.answers import ANSWERS
from cppo_lab.errors import StoreAway, UserError
from cppo_lab.redaction import redacted
from cppo_lab.store.client import REMEDY, STORE_FAULTS, fault_line, known_attempts, open_client


class StoredFiles:
    """Implements `answers.reading.AnswerFiles` for the MLflow run `mlflow_id`."""

    def __init__(self, client: MlflowClient, mlflow_id: str) -> None:
        self.client, self.mlflow_id = client, mlflow_id

    @cached_property
    def _sizes(self) -> dict[str, int]:
        """Bytes of each file, by its path."""
        try:
            entries = self.client.list_artifacts(self.mlflow_id, ANSWERS)
        except STORE_FAULTS as error:
            raise self._unreadable(error) from None
        return {one.path: one.file_size or 0 for one in entries if not one.is_dir}

    def names(self) -> list[str]:
        return sorted(path.removeprefix(f"{ANSWERS}/") for path in self._sizes)

    def content(self, name: str, largest: int) -> bytes | None:
        if name not in self._sizes:
            return None
        if self._sizes[name] > largest:  # an oversized file is not downloaded at all
            raise UserError(
                f"{self.what(name)} has {self._sizes[name]} bytes, more than the {largest} allowed: delete that "
                "artifact"
            )
        try:
            with tempfile.TemporaryDirectory(prefix="cppo-") as target:
                local = Path(self.client.download_artifacts(self.mlflow_id, name, target))
                with local.open("rb") as file:
                    return file.read(largest + 1)
        except STORE_FAULTS as error:
            raise self._unreadable(error) from None

    def what(self, name: str) -> str:
        return f"{name} of MLflow run {self.mlflow_id}"

    def _unreadable(self, error: Exception) -> StoreAway:
        return StoreAway(
            f"the artifacts of MLflow run {self.mlflow_id} cannot be read: {fault_line(error)}: {REMEDY}"
        )


def stored_files(uri: str, experiment: str, run_id: str) -> StoredFiles | None:
    """The files of the newest finished attempt at a run, or else of the newest attempt; None if the store has no
    attempt.

    Raises UserError if the store does not answer.
    """
    past = known_attempts(uri, experiment, run_id)
    if past is None:
        raise StoreAway(f"tracking store {redacted(uri)} does not answer: {REMEDY}")
    chosen = [one for one in past if one.is_result] or past
    return StoredFiles(open_client(uri), chosen[0].mlflow_id) if chosen else None
