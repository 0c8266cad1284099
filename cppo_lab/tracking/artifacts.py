"""Uploads a run's files: those that its record names, and its whole history as one file."""

import contextlib
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from mlflow import MlflowClient

from cppo_lab.runs.events import Artifact, Line, StepEvent
from cppo_lab.store import history
from cppo_lab.tracking import answers_table


@dataclass(frozen=True)
class Artifacts:
    """The artifacts of one MLflow run, from the run's folder. All methods raise what MLflow raises."""

    client: MlflowClient
    mlflow_id: str
    folder: Path
    lines: Callable[[], Sequence[Line]]  # of the record; read only if needed, since there may be many

    def upload(self, name: str) -> None:
        """Upload the newest content of a file: from its last line in the record, otherwise from the run's folder.

        A file that is missing or outside the folder is skipped.
        """
        parent = Path(name).parent.as_posix()
        place = None if parent == "." else parent
        if content := self._carried.get(name):  # a full disk may still have an older file of the name
            self._upload_content(Path(name).name, content, place)
        elif (path := self._own_file(name)) is not None:
            self.client.log_artifact(self.mlflow_id, str(path), place)

    def missing(self) -> list[str]:
        """Files of a record that the store lacks although it accepted them: a gateway may have lost them."""
        named = dict.fromkeys(line.path for line in self.lines() if isinstance(line, Artifact))
        names = [name for name in named if self._own_file(name) is not None or name in self._carried]
        places = {Path(name).parent.as_posix() for name in names}
        there = {
            one.path
            for place in sorted(places)
            for one in self.client.list_artifacts(self.mlflow_id, None if place == "." else place)
        }
        return [name for name in names if name not in there]

    def upload_history(self) -> None:
        """Upload all points in one file, which saves readers a request for each metric."""
        rows = [
            (line.step, line.time_ms, line.metrics) for line in self.lines() if isinstance(line, StepEvent)
        ]
        self._upload_content(history.HISTORY, history.pack(history.from_rows(rows)), None)

    def upload_table(self) -> None:
        """Upload the responses that the run has kept as a table for MLflow's page, if there are any."""
        content = answers_table.table(self.folder)
        if content is not None:
            self._upload_content(answers_table.TABLE, content, None)
            self.client.set_tag(self.mlflow_id, answers_table.TAG, answers_table.TAG_VALUE)

    def _upload_content(self, name: str, content: bytes, place: str | None) -> None:
        with tempfile.TemporaryDirectory(prefix="cppo-") as folder:
            copy = Path(folder) / name
            copy.write_bytes(content)
            self.client.log_artifact(self.mlflow_id, str(copy), place)

    @cached_property
    def _carried(self) -> Mapping[str, bytes]:
        """The content of files that a full disk did not accept, by their names: those whose last line holds it."""
        found = {line.path: line.content() for line in self.lines() if isinstance(line, Artifact)}
        return {name: content for name, content in found.items() if content and self._is_ours(name)}

    def _is_ours(self, name: str) -> bool:
        """Whether a file of that name would be in the run's folder."""
        try:
            return (self.folder / name).resolve().is_relative_to(self.folder.resolve())
        except (OSError, ValueError, RuntimeError):  # a name too long, with a zero byte; links in a ring
            return False

    def _own_file(self, name: str) -> Path | None:
        """The file of that name in the run's folder; None if there is none, or if it lies elsewhere."""
        if not self._is_ours(name):
            return None
        path = (self.folder / name).resolve()
        with contextlib.suppress(OSError):  # a name too long
            return path if path.is_file() else None
        return None
