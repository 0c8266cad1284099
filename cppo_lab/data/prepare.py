"""Training and validation sets in verl's layout, written once and the same every time, and the check of that.

A folder has parquet files, as verl's trainer reads them, and `manifest.json`, which says what the folder has and that
it is unchanged.

One row: `data_source` (verl keeps validation scores apart by it), `prompt` (messages), `ability`,
`reward_model.ground_truth` (handed to the reward function), `extra_info` (`index`: place in the file; `id`: name of
the problem at its origin).
"""

import codecs
import contextlib
import hashlib
import json
import shlex
import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import pyarrow
import pyarrow.parquet

from cppo_lab import __version__
from cppo_lab.data.answers import canonical
from cppo_lab.data.sources import (
    BENCHMARKS,
    SPLITS,
    Problem,
    local,
    problem_of,
    sha256_of,
    sources_of,
)
from cppo_lab.errors import UserError, counted, printable
from cppo_lab.files import appearing

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


def write_rows(path: Path, rows: list[dict[str, Any]]) -> None:
    """Write rows in verl's layout. Equal rows and an equal pyarrow give equal bytes."""
    table = pyarrow.Table.from_pylist(rows, schema=SCHEMA)
    with path.open("wb") as file:  # pyarrow takes some paths for addresses
        pyarrow.parquet.write_table(table, file, compression="zstd", row_group_size=ROW_GROUP)


def content_sha256(rows: Iterable[dict[str, Any]]) -> str:
    """SHA-256 of the rows as lines of JSON with sorted keys: what the file says, however pyarrow encodes it."""
    digest = hashlib.sha256()
    for row in rows:
        line = json.dumps(row, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
        digest.update(line.encode("utf-8") + b"\n")
    return digest.hexdigest()


# `manifest.json`: the contents of a folder of prepared data, and the check that they are unchanged.

MANIFEST = "manifest.json"
FORMAT = 1


@dataclass(frozen=True)
class FileRecord:
    """One prepared file: its counts, its checksums and where its rows came from."""

    rows: int
    rows_read: int
    duplicates_dropped: int
    conflicting_rows_dropped: int
    conflicts: list[dict[str, Any]]  # id and answers of every prompt that was left out for having several
    origin: str
    origin_sha256: str
    sha256: str  # of the file
    content_sha256: str  # of its rows, see `content_sha256`
    rows_skipped: int | None = None  # that could not be used; None: each would have been an error


def check_folder(folder: Path) -> dict[str, FileRecord]:
    """Compare every file of a prepared folder with its manifest, byte by byte through their checksums.

    Returns:
        The records, by file name.

    Raises:
        UserError: names every file that is missing, changed or foreign.
    """
    records = read_manifest(folder)
    faults = []
    for name, record in records.items():
        path = folder / name
        if not path.is_file():
            faults.append(f"{name} is missing")
        elif (digest := sha256_of(path)) != record.sha256:
            faults.append(f"{name} is changed (sha256 {digest[:12]}, recorded {record.sha256[:12]})")
    foreign = sorted(path.name for path in folder.iterdir() if path.name not in {*records, MANIFEST})
    if foreign:
        faults.append(f"not part of the prepared data: {', '.join(foreign)}")
    if faults:
        raise UserError(f"{folder}: {'; '.join(faults)}: prepare it again with `cppo data prepare`")
    return records


def summary(records: dict[str, FileRecord]) -> str:
    """One line per file: its rows, what was left out, where it came from."""
    lines = []
    for name, record in records.items():
        left_out = [f"{record.rows_read} read"]
        if record.rows_skipped:
            left_out.append(f"{record.rows_skipped} damaged ones skipped")
        if record.duplicates_dropped:
            left_out.append(f"{record.duplicates_dropped} repeats dropped")
        if record.conflicts:
            rows, prompts = record.conflicting_rows_dropped, len(record.conflicts)
            where = counted(prompts, "prompt")
            left_out.append(f"{counted(rows, 'row')} of {where} with several answers dropped")
        size = counted(record.rows, "row").rjust(11)
        lines.append(f"{name:15} {size} ({', '.join(left_out)}) from {printable(record.origin)}")
    return "\n".join(lines)


def read_manifest(folder: Path) -> dict[str, FileRecord]:
    """The records of a prepared folder.

    Raises:
        UserError: there is no manifest, or its bytes are not those that were written.
    """
    path = folder / MANIFEST
    if not path.is_file():
        command = f"cppo data prepare --out {shlex.quote(str(folder))}"
        raise UserError(f"{folder} holds no {MANIFEST}: prepare data with `{command}`")
    try:
        text = path.read_text(encoding="utf-8")
        body = json.loads(text)
        del body["sha256"]
        records = {name: FileRecord(**record) for name, record in body["files"].items()}
        whole = text == _signed(body)
    except (ValueError, TypeError, AttributeError, KeyError, RecursionError):
        whole = False
    if not whole:
        raise UserError(f"{path} is changed: it does not match its own checksum; prepare the data again")
    return records


def _signed(body: dict[str, Any]) -> str:
    """The text of a manifest with its own checksum."""
    checksum = hashlib.sha256(_dumped(body).encode()).hexdigest()
    return _dumped(body | {"sha256": checksum})


def _dumped(body: dict[str, Any]) -> str:
    return json.dumps(body, indent=1, ensure_ascii=False) + "\n"


# Reading the rows of a file, and preparing them.

MAX_LINE = 1 << 20  # bytes; a DAPO row has about a thousand
BATCH = 4096  # rows of parquet in memory at a time
# Only these columns of a parquet file are read, so that others can do no harm.
COLUMNS = ("data_source", "prompt", "reward_model", "extra_info", "id", "problem", "messages", "answer")


def rows_of(path: Path, damaged: Callable[[UserError], None]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield (its place, row) for every row of the file; `damaged` takes the error of a line that cannot be read.

    Raises:
        UserError: the file's suffix is unknown, or it cannot be read.
    """
    if path.suffix == ".jsonl":
        with path.open("rb") as lines:
            # One byte more than allowed is asked for, so that a line of gigabytes is never read whole.
            for number, line in enumerate(iter(partial(lines.readline, MAX_LINE + 1), b""), 1):
                where = f"{path}, line {number}"
                line = line.removeprefix(codecs.BOM_UTF8)  # also of a file that was appended to another
                if len(line) > MAX_LINE:
                    damaged(
                        UserError(
                            f"{where} is longer than {MAX_LINE} bytes: write one row per line; fix or drop it"
                        )
                    )
                    while line and not line.endswith(b"\n"):
                        line = lines.readline(MAX_LINE)
                elif line.strip():
                    try:
                        row = _json_row(line, where)
                    except UserError as error:
                        damaged(error)
                    else:
                        yield where, row
    elif path.suffix == ".parquet":
        number = 0
        try:
            with path.open("rb") as data, pyarrow.parquet.ParquetFile(data) as file:
                known = [name for name in file.schema_arrow.names if name in COLUMNS]
                if not known:
                    raise UserError(
                        f"{path} has the columns {file.schema_arrow.names}: each row needs `problem` and `answer`, "
                        "or verl's `prompt` and `reward_model`"
                    )
                if len({*known}) < len(known):
                    raise UserError(
                        f"{path}: column {max(known, key=known.count)!r} appears twice: remove one"
                    )
                for batch in file.iter_batches(batch_size=BATCH, columns=known):
                    for row in batch.to_pylist():
                        number += 1
                        yield f"{path}, row {number}", row
        # ValueError: text that is not UTF-8; OverflowError: a time that Python does not have
        except (pyarrow.ArrowException, OSError, ValueError, OverflowError) as error:
            reason = " ".join(str(error).split())
            raise UserError(
                f"{path} cannot be read as parquet after row {number} ({reason[:200]}): fetch or write it again"
            ) from error
    else:
        raise UserError(
            f"{path} is neither .jsonl nor .parquet: convert it to one of them, or correct its name"
        )


def _json_row(line: bytes, where: str) -> Mapping[str, Any]:
    try:
        row = json.loads(
            line.decode("utf-8"), parse_constant=_refuse_constant, object_pairs_hook=_refuse_repeated
        )
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


def _refuse_repeated(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    row = dict(pairs)
    if len(row) < len(pairs):
        keys = [key for key, _ in pairs]
        raise ValueError(f"{max(keys, key=keys.count)!r} appears twice")
    return row


REPORT_EVERY = 250_000  # rows
MOST_SAID = 5  # rows that were skipped
Messages = tuple[tuple[str, str], ...]


def _distinct_problems(
    path: Path, benchmark: str | None, say: Callable[[str], None], skip: bool = False
) -> tuple[list[Problem], dict[str, Any]]:
    """Read a file and keep one row per prompt: problems in the order of their first rows, and what `FileRecord` says
    of the rows that were left out.

    DAPO-Math-17k holds every prompt a hundred times, and AIME-2024 32 times. A few of DAPO's prompts come with two
    different answers (seven, by a count on the hub). Which is right is unknown, and the wrong answer would
    reward wrong responses: such a prompt is dropped from the training set and listed. In a benchmark it is an
    error, since the set of problems is fixed. With `skip`, rows that cannot be used are counted, and the first said.

    Raises:
        UserError: a row cannot be used, or a benchmark has a prompt with two answers.
    """
    first: dict[Messages, Problem] = {}
    rows: Counter[Messages] = Counter()
    answers: dict[Messages, list[str]] = {}
    skipped = 0

    def damaged(error: UserError) -> None:
        nonlocal skipped
        if not skip:
            raise error
        skipped += 1
        if skipped <= MOST_SAID:
            say(f"skipped: {error}")

    for read, (where, row) in enumerate(rows_of(path, damaged), start=1):
        try:
            problem = problem_of(row, where, benchmark, len(first))
        except UserError as error:
            damaged(error)
            continue
        rows[problem.messages] += 1
        if read % REPORT_EVERY == 0:
            say(f"{path.name}: {read} rows read, {len(first)} prompts")
        earlier = first.setdefault(problem.messages, problem)
        if canonical(earlier.answer) == canonical(problem.answer):
            continue
        if benchmark:
            raise UserError(
                f"{where}: a prompt of {benchmark} has the answers {earlier.answer!r} and {problem.answer!r}: "
                "keep the right one"
            )
        seen = answers.setdefault(problem.messages, [earlier.answer])
        if canonical(problem.answer) not in map(canonical, seen):
            seen.append(problem.answer)
    problems = [problem for prompt, problem in first.items() if prompt not in answers]
    conflicting = sum(rows[prompt] for prompt in answers)
    return problems, {
        "rows_read": rows.total(),
        "duplicates_dropped": rows.total() - len(problems) - conflicting,
        "conflicting_rows_dropped": conflicting,
        "conflicts": [{"id": first[prompt].id, "answers": given} for prompt, given in answers.items()],
        "rows_skipped": skipped if skip else None,
    }


PROBLEMS_OF_AIME = 30  # AIME I and II of a year


def prepare(
    source: str,
    out: Path,
    say: Callable[[str], None] = lambda _: None,
    validation: Mapping[str, Path] | None = None,
    skip: bool = False,
) -> dict[str, FileRecord]:
    """Write `train.parquet`, `aime24.parquet`, `aime25.parquet`, `aime26.parquet` and `manifest.json`.

    The folder appears whole or not at all. Prepared data that is already there is replaced if it would differ,
    and left alone, to the byte, if it would not.

    Args:
        source: `sample`, `hub` or a path, see `sources.sources_of`.
        out: folder to write; must be empty, absent, or hold prepared data and nothing else.
        say: takes a line of progress.
        validation: files of validation sets by name, in place of those of AIME.
        skip: leave out rows that cannot be used, and count them.

    Returns:
        What the manifest says of each file, by file name.

    Raises:
        UserError: the source or any of its rows cannot be used, or `out` holds something else.
    """
    sources = sources_of(source, say)
    if validation:
        sources = {"train": sources["train"]} | {
            name: local(path, "local") for name, path in validation.items()
        }
    place = _ours_or_free(out, sources)
    with appearing(place, replace=True) as made:
        records = {}
        for split, file in sources.items():
            benchmark = None if split == "train" else split
            problems, left_out = _distinct_problems(file.path, benchmark, say, skip)
            if benchmark in BENCHMARKS and len(problems) != PROBLEMS_OF_AIME:
                raise UserError(
                    f"{file.path} has {len(problems)} problems, {benchmark} has {PROBLEMS_OF_AIME} (both papers "
                    "of the year): complete the file, or remove it to use the shipped problems"
                )
            if not problems:
                what = "validate" if benchmark else "train"
                reasons = [f"{left_out['rows_read']} rows read"]
                reasons += (
                    [f"{left_out['rows_skipped']} damaged ones skipped"] if left_out["rows_skipped"] else []
                )
                reasons += [
                    f"answers that contradict each other: {given['answers']}"
                    for given in left_out["conflicts"][:1]
                ]
                raise UserError(
                    f"{file.path} holds no row to {what} on ({', '.join(reasons)}): mend it, or pass another file"
                )
            rows = [
                {
                    "data_source": problem.data_source,
                    "prompt": [{"role": role, "content": text} for role, text in problem.messages],
                    "ability": ABILITY,
                    "reward_model": {"style": "rule", "ground_truth": problem.answer},
                    "extra_info": {"index": index, "split": split, "id": problem.id},
                }
                for index, problem in enumerate(problems)
            ]
            path = made / f"{split}.parquet"
            write_rows(path, rows)
            records[path.name] = FileRecord(
                rows=len(rows),
                **left_out,
                origin=file.origin,
                origin_sha256=file.sha256,
                sha256=sha256_of(path),
                content_sha256=content_sha256(rows),
            )
        # No dates and no paths, so that equal data has an equal manifest.
        body = {
            "format": FORMAT,
            "tool": f"cppo-lab {__version__}",
            "pyarrow": pyarrow.__version__,
            "files": {
                name: {key: value for key, value in asdict(record).items() if value is not None}
                for name, record in records.items()
            },
        }
        (made / MANIFEST).write_text(text := _signed(body), encoding="utf-8")
        with contextlib.suppress(UserError):  # of data that is changed, or not there
            if check_folder(place) and (place / MANIFEST).read_text(encoding="utf-8") == text:
                shutil.rmtree(made)
                say(f"{out}: unchanged")
    return records


def _ours_or_free(out: Path, splits: Iterable[str]) -> Path:
    """The resolved path of a folder that may be written; refuses a folder that holds anything but prepared data."""
    try:
        place = out.resolve()  # what a link points to is replaced, not the link
    except (OSError, RuntimeError):  # RuntimeError: raised by pathlib for circular links before Python 3.13
        raise UserError(f"--out {out} is a circular link: name another folder") from None
    if place.exists() and not place.is_dir():
        raise UserError(f"--out {out} is a file: name a folder")
    if not place.exists() or not any(place.iterdir()):
        return place
    ours = {MANIFEST, *(f"{split}.parquet" for split in (*SPLITS, *splits))}
    with contextlib.suppress(UserError):  # of a damaged manifest, which is replaced, too
        ours |= read_manifest(place).keys()  # also the validation sets that were named then
    foreign = sorted(path.name for path in place.iterdir() if path.name not in ours)
    if foreign or not (place / MANIFEST).is_file():
        what = ", ".join(foreign[:5]) or f"data without {MANIFEST}"
        raise UserError(f"--out {out} is in use ({what}): name a new folder, or move that away")
    return place
