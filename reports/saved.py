"""The folder of a report, which is replaced atomically, and only if it is one of ours; and what its `report.json` says.

The content of `report.json` is not trusted: every field is validated, and errors name the invalid field.
"""

import shutil
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cppo_lab.analysis.fields import Fields, boolean, count, text
from cppo_lab.errors import UserError
from cppo_lab.files import read_plain

MARKER = ".cppo-report"  # marks a folder that we may replace
PAGE = "index.html"


def require_ours(out: Path) -> None:
    """Raise UserError if `out` exists and is not one of our reports."""
    if not out.exists() and not out.is_symlink():
        return
    if out.is_dir() and not out.is_symlink() and ((out / MARKER).is_file() or not any(out.iterdir())):
        return
    raise UserError(
        f"{out} exists and is not a report of ours (it has no {MARKER}): choose another folder with --out, "
        "or remove it yourself"
    )


def swap_in(out: Path, files: Mapping[str, bytes], about: str) -> None:
    """Write into a new folder beside `out` and rename it into place; a failure leaves the old report unchanged.
    `about`: one line on the report for its marker.
    """
    mark = uuid.uuid4().hex[:8]
    new, old = (out.with_name(f".{out.name}.{kind}-{mark}") for kind in ("new", "old"))
    try:
        new.mkdir(parents=True)
        for name, data in {**files, MARKER: f"{about}\n".encode()}.items():
            (new / name).write_bytes(data)
        replaced = out.exists()
        if replaced:
            out.rename(old)
        try:
            new.rename(out)
        except OSError:
            if replaced:
                old.rename(out)
            raise
    finally:
        shutil.rmtree(new, ignore_errors=True)
    shutil.rmtree(old, ignore_errors=True)


RECORD = "report.json"
FORMAT = "cppo-report-1"

LARGEST = 64 * 2**20  # bytes; a report of 1,000 runs has one
REMEDY = "make the report again with `cppo report`"


@dataclass(frozen=True)
class SavedCell:
    """One (model, variant); `score` and `components` are fractions."""

    state: str
    provisional: bool
    expected: int
    runs: int
    score: float | None
    components: Mapping[str, float]


@dataclass(frozen=True)
class SavedRun:
    """One expected run; `run_id` is empty if only the name is known, `version` if there is none."""

    run_id: str
    state: str
    step: int | None
    score: float | None
    version: str


@dataclass(frozen=True)
class SavedVerdict:
    """A claim with its outcome; `estimate`, `low` and `high` are fractions."""

    claim: str
    text: str
    outcome: str
    reason: str
    provisional: bool
    estimate: float | None
    low: float | None
    high: float | None


@dataclass(frozen=True)
class SavedReport:
    """The content of a report's record. Cells and runs are keyed by sweep and their names in it; figures and files by
    name.
    """

    kind: str
    name: str
    title: str
    experiment: str
    core: str
    command: str
    cells: Mapping[tuple[str, str, str], SavedCell]  # sweep, model, variant
    runs: Mapping[tuple[str, str], SavedRun]  # sweep; variant, model and seed in words
    verdicts: Mapping[tuple[str, str], SavedVerdict]  # sweep, claim
    figures: Mapping[str, str]
    files: Mapping[str, str]


def read_record(folder: Path) -> SavedReport:
    """The record in a report's folder. Raises UserError if there is none, or if it is malformed."""
    path = folder / RECORD
    try:
        data = read_plain(path, LARGEST)
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror}): {REMEDY}") from None
    if data is None and path.is_file():
        raise UserError(f"{path} has more than the {LARGEST} bytes allowed: {REMEDY}")
    if data is None:
        raise UserError(f"{folder} is not a report, it has no {RECORD}: {REMEDY}")
    fields = Fields.parse(data.decode("utf-8", errors="replace"), str(path), REMEDY)
    if fields.values.get("format") != FORMAT:
        raise fields.bad(f"has format {fields.values.get('format')!r:.40}, not {FORMAT!r}")
    cells: dict[tuple[str, str, str], SavedCell] = {}
    runs: dict[tuple[str, str], SavedRun] = {}
    for sweep in _inner(fields, "sweeps"):
        name = sweep.one("name", text, "text")
        for cell in _inner(sweep, "cells"):
            cells[name, cell.one("model", text, "text"), cell.one("variant", text, "text")] = _cell(cell)
        for run in _inner(sweep, "runs"):
            runs[name, run.one("key", text, "text")] = _run(run)
    verdicts = {
        (one.one("sweep", text, "text"), one.one("claim", text, "text")): _verdict(one)
        for one in _inner(fields, "verdicts")
    }
    figures, files = (_texts(fields.inner(key)) for key in ("figures", "files"))
    return SavedReport(
        kind=fields.one("kind", text, "text"),
        name=fields.one("name", text, "text"),
        title=fields.one("title", text, "text"),
        experiment=fields.one("experiment", text, "text"),
        core=fields.one("core", text, "text"),
        command=fields.one("command", text, "text"),
        cells=cells,
        runs=runs,
        verdicts=verdicts,
        figures=figures,
        files=files,
    )


def _inner(fields: Fields, key: str) -> list[Fields]:
    """The JSON objects in a list."""
    items = fields.listed(key, lambda value: value if isinstance(value, dict) else None, "JSON object")
    return [Fields(item, f"{fields.what}, {key}[{index}],", REMEDY) for index, item in enumerate(items)]


def _texts(fields: Fields) -> dict[str, str]:
    return {name: fields.one(name, text, "text") for name in fields.values}


def _cell(fields: Fields) -> SavedCell:
    score = _stat(fields, "score")
    components = fields.inner("components")
    means = {name: _stat(components, name) for name in components.values}
    return SavedCell(
        state=fields.one("state", text, "text"),
        provisional=fields.one("provisional", boolean, "true or false"),
        expected=fields.one("expected", count, "count"),
        runs=0 if score is None else score[1],
        score=None if score is None else score[0],
        components={name: found[0] for name, found in means.items() if found is not None},
    )


def _stat(fields: Fields, key: str) -> tuple[float, int] | None:
    """Mean and number of runs; None if there is no score."""
    if fields.values.get(key) is None:
        return None
    stat = fields.inner(key)
    mean = stat.optional("mean")
    return None if mean is None else (mean, stat.one("n", count, "count"))


def _run(fields: Fields) -> SavedRun:
    known = fields.values.get("run_id") is not None
    return SavedRun(
        run_id=fields.one("run_id", text, "text") if known else "",
        state=fields.one("state", text, "text"),
        step=None if fields.values.get("step") is None else fields.one("step", count, "count"),
        score=fields.optional("score"),
        version=fields.one("version", text, "text"),
    )


def _verdict(fields: Fields) -> SavedVerdict:
    words: dict[str, Any] = {
        key: fields.one(key, text, "text") for key in ("claim", "text", "outcome", "reason")
    }
    numbers: dict[str, Any] = {key: fields.optional(key) for key in ("estimate", "low", "high")}
    return SavedVerdict(**words, **numbers, provisional=fields.one("provisional", boolean, "true or false"))
