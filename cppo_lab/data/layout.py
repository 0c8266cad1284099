"""Rows as verl's trainer reads them, in parquet, and the checksum of their content.

One row: `data_source` (verl keeps validation scores apart by it), `prompt` (messages), `ability`,
`reward_model.ground_truth` (handed to the reward function), `extra_info` (`index`: place in the file; `id`: name of
the problem at its origin).
"""

import hashlib
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet

from cppo_lab.data.problem import Problem

ABILITY = "MATH"
ROW_GROUP = 4096
_TEXT = pyarrow.string()
SCHEMA = pyarrow.schema(
    [
        ("data_source", _TEXT),
        ("prompt", pyarrow.list_(pyarrow.struct([("role", _TEXT), ("content", _TEXT)]))),
        ("ability", _TEXT),
        ("reward_model", pyarrow.struct([("style", _TEXT), ("ground_truth", _TEXT)])),
        ("extra_info", pyarrow.struct([("index", pyarrow.int64()), ("split", _TEXT), ("id", _TEXT)])),
    ]
)


def row_of(problem: Problem, index: int, split: str) -> dict[str, Any]:
    """A problem in verl's layout."""
    return {
        "data_source": problem.data_source,
        "prompt": [{"role": "user", "content": problem.prompt}],
        "ability": ABILITY,
        "reward_model": {"style": "rule", "ground_truth": problem.answer},
        "extra_info": {"index": index, "split": split, "id": problem.id},
    }


def write_rows(path: Path, rows: list[dict[str, Any]]) -> None:
    """Write rows in verl's layout. Equal rows and an equal pyarrow give equal bytes."""
    table = pyarrow.Table.from_pylist(rows, schema=SCHEMA)
    pyarrow.parquet.write_table(table, path, compression="zstd", row_group_size=ROW_GROUP)


def read_rows(path: Path) -> Iterator[dict[str, Any]]:
    """The rows of a file that `write_rows` wrote."""
    with pyarrow.parquet.ParquetFile(path) as file:
        for batch in file.iter_batches(batch_size=ROW_GROUP):
            yield from batch.to_pylist()


def content_sha256(rows: Iterable[dict[str, Any]]) -> str:
    """SHA-256 of the rows as lines of JSON with sorted keys: what the file says, however pyarrow encodes it."""
    digest = hashlib.sha256()
    for row in rows:
        line = json.dumps(row, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
        digest.update(line.encode("utf-8") + b"\n")
    return digest.hexdigest()
