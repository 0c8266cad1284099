"""The kept responses of a run as a table for MLflow's page, in the format of its `log_table`, from the run's files.

The newest steps come first; the table is cut at LARGEST bytes, and the files have the rest.
"""

import contextlib
import json
from collections.abc import Iterator, Sequence
from pathlib import Path

from cppo_lab.answers.reading import FolderFiles, read_texts, steps_with
from cppo_lab.answers.texts import Sample
from cppo_lab.errors import UserError

TABLE = "answers.json"  # an artifact of the MLflow run
TAG = "mlflow.loggedArtifacts"  # by which MLflow's page finds a run's tables
TAG_VALUE = json.dumps([{"path": TABLE, "type": "table"}])
LARGEST = 2_000_000  # bytes; the page reads it as a whole
LONGEST = 4_000  # characters of a cell
_COLUMNS = (
    *("step", "problem", "prompt", "response", "answer", "truth", "right", "length", "stop"),
    *("kind", "benchmark", "draw", "reward", "advantage"),
)


def table(folder: Path) -> bytes | None:
    """The table of the texts in a run's folder; None if it has none. Unreadable files are omitted."""
    try:
        files = FolderFiles(folder)
        steps = steps_with(files, "texts")
    except UserError:
        return None
    rows: list[str] = []
    size = 0
    for sample in _newest_first(files, steps):
        row = json.dumps([_cell(sample, name) for name in _COLUMNS])
        size += len(row) + 1
        if size > LARGEST:
            break
        rows.append(row)
    if not rows:
        return None
    return f'{{"columns":{json.dumps(_COLUMNS)},"data":[{",".join(rows)}]}}'.encode()


def _newest_first(files: FolderFiles, steps: Sequence[int]) -> Iterator[Sample]:
    for step in reversed(steps):
        with contextlib.suppress(UserError):
            found = read_texts(files, step)
            yield from found.samples if found else ()


def _cell(sample: Sample, name: str) -> object:
    value = getattr(sample, name)
    if not isinstance(value, str) or len(value) <= LONGEST:
        return value
    half = LONGEST // 2
    return f"{value[:half]} [{len(value) - LONGEST} characters are left out here] {value[-half:]}"
