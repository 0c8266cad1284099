"""Rows of a .jsonl or .parquet file, one at a time; an unreadable row is one error with its place."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NoReturn

import pyarrow
import pyarrow.parquet

from cppo_lab.errors import UserError

MAX_LINE = 1 << 20  # bytes; a DAPO row has about a thousand
BATCH = 4096  # rows of parquet in memory at a time
# Only these columns of a parquet file are read, so that others can do no harm.
COLUMNS = ("data_source", "prompt", "reward_model", "extra_info", "id", "problem", "answer")


def rows_of(path: Path) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield (its place, row) for every row of the file.

    Raises:
        UserError: the file's suffix is unknown, or a row cannot be read.
    """
    if path.suffix == ".jsonl":
        return _jsonl_rows(path)
    if path.suffix == ".parquet":
        return _parquet_rows(path)
    raise UserError(f"{path} is neither .jsonl nor .parquet: convert it to one of them, or correct its name")


def _jsonl_rows(path: Path) -> Iterator[tuple[str, Mapping[str, Any]]]:
    with path.open("rb") as lines:
        number = 0
        # One byte more than allowed is asked for, so that a line of gigabytes is never read whole.
        while line := lines.readline(MAX_LINE + 1):
            number += 1
            where = f"{path}, line {number}"
            if len(line) > MAX_LINE:
                raise UserError(
                    f"{where} is longer than {MAX_LINE} bytes: write one row per line; fix or drop it"
                )
            if line.strip():
                yield where, _json_row(line, where)


def _json_row(line: bytes, where: str) -> Mapping[str, Any]:
    try:
        row = json.loads(line.decode("utf-8"), parse_constant=_refuse_constant)
    except UnicodeDecodeError as error:
        raise UserError(
            f"{where} is not UTF-8 (byte 0x{line[error.start]:02x} at {error.start}): save the file as UTF-8"
        ) from None
    except RecursionError:
        raise UserError(f"{where} is nested too deeply to be a row: fix or drop it") from None
    except ValueError as error:  # broken JSON, NaN, an integer of more digits than Python reads
        raise UserError(f"{where} is not a row in JSON ({error}): fix or drop it") from None
    if not isinstance(row, dict):
        raise UserError(f"{where} is {type(row).__name__}, not an object: write one {{...}} per line")
    return row


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"the value {name} is not a JSON number")


def _parquet_rows(path: Path) -> Iterator[tuple[str, Mapping[str, Any]]]:
    number = 0
    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            known = [name for name in file.schema_arrow.names if name in COLUMNS]
            if not known:
                raise UserError(
                    f"{path} has the columns {file.schema_arrow.names}: each row needs `problem` and `answer`, "
                    "or verl's `prompt` and `reward_model`"
                )
            for batch in file.iter_batches(batch_size=BATCH, columns=known):
                for row in batch.to_pylist():
                    number += 1
                    yield f"{path}, row {number}", row
    except (pyarrow.ArrowException, OSError, UnicodeDecodeError) as error:
        reason = " ".join(str(error).split())
        raise UserError(
            f"{path} cannot be read as parquet after row {number} ({reason[:200]}): fetch or write it again"
        ) from error
