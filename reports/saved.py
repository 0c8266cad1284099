"""The folder of a report, which is replaced only if it is ours; what its `report.json` says, and how two of them
differ.

The content of `report.json` is not trusted: every field is validated, and errors name the invalid field.
"""

import shlex
from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import takewhile
from os.path import normpath
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, FiniteFloat, NonNegativeInt, ValidationError

from cppo_lab.errors import UserError, counted, first_fault, printable
from cppo_lab.files import read_plain

MARKER = ".cppo-report"  # marks a folder that we may replace
PAGE = "index.html"


def require_ours(out: Path) -> None:
    """Raise UserError if `out` exists and is no report of ours."""
    if not out.exists() and not out.is_symlink():
        return
    if out.is_dir() and not out.is_symlink() and ((out / MARKER).is_file() or not any(out.iterdir())):
        return
    raise UserError(
        f"{out} exists and is not a report of ours (it has no {MARKER}): choose another folder with --out, "
        "or remove it yourself"
    )


def words_of(command: str) -> list[str]:
    """The words of a command before its options; none if it is no valid shell command."""
    try:
        return [*takewhile(lambda word: not word.startswith("-"), shlex.split(command))]
    except ValueError:
        return []


RECORD = "report.json"
FORMAT = "cppo-report-1"

_LARGEST = 64 * 2**20  # 64 MiB; a report of 1,000 runs has 1 MiB
_REMEDY = "make the report again with `cppo report`"

Values = dict[str, Any]  # of a cell, a run or a verdict, by the keys of the record
_Named = dict[tuple[str, ...], Values]


class _Stat(BaseModel, strict=True):  # of a score, a fraction
    mean: FiniteFloat | None = None
    n: NonNegativeInt


class _Cell(BaseModel, strict=True):
    model: str
    variant: str
    state: str
    provisional: bool
    expected: NonNegativeInt
    score: _Stat | None = None
    components: dict[str, _Stat | None]


class _Run(BaseModel, strict=True):
    key: str
    run_id: str | None = None
    state: str
    step: NonNegativeInt | None = None
    score: FiniteFloat | None = None
    version: str


class _Sweep(BaseModel, strict=True):
    name: str
    cells: list[_Cell]
    runs: list[_Run]


class _Verdict(BaseModel, strict=True):
    sweep: str
    claim: str
    text: str
    outcome: str
    reason: str
    provisional: bool
    exploratory: bool = False
    estimate: FiniteFloat | None = None
    low: FiniteFloat | None = None
    high: FiniteFloat | None = None
    unit: str = "points"


class SavedReport(BaseModel, strict=True):
    """A report's record. `cells` and `runs` are keyed by sweep and their names in it, `claims` by sweep and claim;
    `figures` and `files` have names and digests. Scores, estimates and `components` are fractions; the `runs` of a cell
    are those with a score.
    """

    format: Literal["cppo-report-1"]
    kind: str
    name: str
    title: str
    experiment: str
    core: str
    command: str
    sweeps: list[_Sweep]
    verdicts: list[_Verdict]
    figures: dict[str, str]
    files: dict[str, str]

    @property
    def subject(self) -> tuple[str, ...]:
        """What it is a report of: the experiment, and what its command names."""
        return (self.experiment, *map(normpath, words_of(self.command)))

    @property
    def cells(self) -> _Named:
        """(sweep, model, variant) -> the cell."""
        cells = ((sweep.name, cell) for sweep in self.sweeps for cell in sweep.cells)
        return {
            (sweep, cell.model, cell.variant): {
                "state": cell.state,
                "provisional": cell.provisional,
                "runs": cell.score.n if cell.score and cell.score.mean is not None else 0,
                "score": cell.score and cell.score.mean,
                "components": {
                    name: stat.mean
                    for name, stat in cell.components.items()
                    if stat and stat.mean is not None
                },
            }
            for sweep, cell in cells
        }

    @property
    def runs(self) -> _Named:
        """(sweep; variant, model and seed in words) -> the run."""
        return {
            (sweep.name, run.key): run.model_dump(exclude={"key"})
            for sweep in self.sweeps
            for run in sweep.runs
        }

    @property
    def claims(self) -> _Named:
        """(sweep, claim as the sweep's own report names it) -> the verdict."""
        return {
            (sweep, verdict.claim.replace(f"hypothesis {sweep} ", "hypothesis ", 1)): verdict.model_dump()
            for verdict in self.verdicts
            for sweep in [verdict.sweep]
        }


def read_record(folder: Path) -> SavedReport:
    """The record in a report's folder. Raises UserError if there is none, or if it is malformed."""
    path = folder / RECORD
    try:
        data = read_plain(path, _LARGEST)
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror}): {_REMEDY}") from None
    if data is None and path.is_file():
        raise UserError(f"{path} has more than the {_LARGEST} bytes allowed: {_REMEDY}")
    if data is None:
        raise UserError(f"{folder} is not a report, it has no {RECORD}: {_REMEDY}")
    try:
        return SavedReport.model_validate_json(data, strict=True)
    except ValidationError as error:
        raise UserError(f"{path} {first_fault(error.errors())}: {_REMEDY}") from None


# The differences between two reports, from their records, and as lines for a terminal.

_POINT = 100.0  # percentage points in a fraction
_SAME = 1e-9  # fractions closer than this differ by rounding alone


def compare(before: SavedReport, after: SavedReport, names: tuple[str, str]) -> dict[str, Any]:
    """The differences between `before` and `after`, as JSON has them; `names` are the names to show for them. `same`:
    nothing differs; titles, commands and files may. `what`: added, removed or changed. States and outcomes are empty
    where a report lacks the run, cell or claim; `sweeps` are those that one of them lacks as a whole. Scores are in
    percent, differences in points, estimates in their unit.
    """
    heads = {
        key: (getattr(before, key), getattr(after, key)) for key in ("kind", "name", "experiment", "core")
    }
    old, new = ([sweep.name for sweep in side.sweeps] for side in (before, after))
    differences = {
        "runs": [*_runs(before, after)],
        "cells": [*_cells(before, after)],
        "verdicts": [*_verdicts(before, after)],
        "figures": {
            name: _what(*pair)
            for name, *pair in sorted(_both(before.figures, after.figures, ""))
            if pair[0] != pair[1]
        },
    }
    return {
        "same": not any(differences.values()),
        "before": names[0],
        "after": names[1],
        "heading": {key: pair for key, pair in heads.items() if pair[0] != pair[1]},
        "sweeps": {
            name: _what(name in old, name in new) for name in [*old, *new] if (name in old) != (name in new)
        },
        **differences,
    }


def _both(before: Mapping[Any, Any], after: Mapping[Any, Any], absent: Any) -> Iterator[tuple[Any, Any, Any]]:
    """Key and values of both: those of the first in its order, then the additional ones of the second."""
    for key in {**before, **after}:
        yield key, before.get(key, absent), after.get(key, absent)


def _what(old: object, new: object) -> str:
    return "added" if not old else "removed" if not new else "changed"


def _runs(before: SavedReport, after: SavedReport) -> Iterator[Values]:
    for (sweep, run), old, new in _both(before.runs, after.runs, {}):
        if old != new:
            yield {
                "sweep": sweep,
                "run": run,
                "run_id": new.get("run_id") or old.get("run_id") or "",
                "what": _what(old, new),
                "before": old.get("state", ""),
                "after": new.get("state", ""),
                "points": _change(old.get("score"), new.get("score")),
            }


def _cells(before: SavedReport, after: SavedReport) -> Iterator[Values]:
    for (sweep, model, variant), old, new in _both(before.cells, after.cells, {}):
        components = [*_both(old.get("components", {}), new.get("components", {}), None)]
        scores = old.get("score"), new.get("score")
        alike = all(old.get(key) == new.get(key) for key in ("state", "provisional", "runs"))
        if alike and all(_close(*pair) for pair in (scores, *(both for _, *both in components))):
            continue
        changes = {name: _change(*both) for name, *both in components}
        yield {
            "sweep": sweep,
            "model": model,
            "variant": variant,
            "before": _state(old, "state"),
            "after": _state(new, "state"),
            "score_before": _change(0.0, scores[0]),
            "score_after": _change(0.0, scores[1]),
            "points": _change(*scores),
            "runs_before": old.get("runs", 0),
            "runs_after": new.get("runs", 0),
            "components": {
                name: change for name, change in changes.items() if change and abs(change) > _POINT * _SAME
            },
        }


def _verdicts(before: SavedReport, after: SavedReport) -> Iterator[Values]:
    for (sweep, _), old, new in _both(before.claims, after.claims, {}):
        if any(old.get(key) != new.get(key) for key in ("outcome", "provisional", "exploratory")):
            yield {
                "sweep": sweep,
                "claim": (new or old)["claim"],
                "text": (new or old)["text"],
                "before": _state(old, "outcome"),
                "after": _state(new, "outcome"),
                "estimate_before": _in_unit(old),
                "estimate_after": _in_unit(new),
                "unit": (new or old)["unit"],
                "reason": (new or old)["reason"],
            }


def _in_unit(verdict: Values) -> float | None:
    """As it is if it is a ratio of errors or a factor."""
    estimate = verdict.get("estimate")
    return estimate if estimate is None or _of_errors(verdict["unit"]) else _POINT * estimate


def _of_errors(unit: str) -> bool:
    return unit.startswith(("ratio", "factor"))


def _close(old: float | None, new: float | None) -> bool:
    return old == new if old is None or new is None else abs(old - new) <= _SAME


def _change(old: float | None, new: float | None) -> float | None:
    return None if old is None or new is None else _POINT * (new - old)


def _state(side: Values, key: str) -> str:
    doubts = ("provisional", "exploratory")
    return side[key] + "".join(f" ({doubt})" for doubt in doubts if side.get(doubt)) if side else ""


_SHOWN = 40  # lines of a kind; the others are counted


def compare_lines(differences: Mapping[str, Any]) -> list[str]:
    """The differences by kind; a single line if there are none. Control characters in names are escaped."""
    if differences["same"]:
        return [printable(f"{differences['before']} and {differences['after']} say the same.")]
    lines = [f"From {differences['before']} to {differences['after']}:"]
    lines += [f"  {key}: {old} -> {new}" for key, (old, new) in differences["heading"].items()]
    runs, cells, verdicts = (
        [change for change in differences[kind] if change["sweep"] not in differences["sweeps"]]
        for kind in ("runs", "cells", "verdicts")
    )
    whole = Counter(change["sweep"] for change in differences["runs"])
    for title, rows in (
        (
            "Sweeps",
            [
                f"{what}: {name}, {counted(whole[name], 'run')}"
                for name, what in differences["sweeps"].items()
            ],
        ),
        ("Runs", [*map(_run_line, runs)]),
        ("Cells (percent)", [*map(_cell_line, cells)]),
        ("Verdicts", [*map(_verdict_line, verdicts)]),
        ("Figures", [f"{what}: {name}" for name, what in differences["figures"].items()]),
    ):
        if rows:
            more = [f"  and {len(rows) - _SHOWN} more; --json has all"] if len(rows) > _SHOWN else []
            lines += ["", f"{title}: {len(rows)}", *(f"  {row}" for row in rows[:_SHOWN]), *more]
    return [printable(line) for line in lines]


def _run_line(change: Values) -> str:
    states = change["after"] or change["before"]
    if change["what"] == "changed" and change["before"] != change["after"]:
        states = f"{change['before']} -> {change['after']}"
    moved = f", {change['points']:+.2f} points" if change["points"] else ""
    return f"{change['what']}: {change['run']} in {change['sweep']} ({states}{moved})"


def _cell_line(change: Values) -> str:
    sides = []
    for when in ("before", "after"):
        score, state = change[f"score_{when}"], change[when]
        words = [] if score is None else [f"{score:.2f}"]
        sides.append(" ".join([*words, *([state] if state != "scored" or score is None else [])]) or "none")
    moved = "" if change["points"] is None else f" ({change['points']:+.2f})"
    if (runs := (change["runs_before"], change["runs_after"]))[0] != runs[1]:
        moved += f", {runs[0]} -> {runs[1]} runs"
    moved += "".join(f", {name} {value:+.2f}" for name, value in change["components"].items())
    return f"{change['sweep']}: {change['variant']} on {change['model']}: {' -> '.join(sides)}{moved}"


def _verdict_line(change: Values) -> str:
    estimates = (change["estimate_before"], change["estimate_after"])
    form = ".3f" if _of_errors(change["unit"]) else "+.2f"
    numbers = " -> ".join("-" if value is None else f"{value:{form}}" for value in estimates)
    shown = "" if estimates == (None, None) else f" ({numbers} {change['unit']})"
    return f"{change['text']}: {change['before'] or 'not judged'} -> {change['after'] or 'not judged'}{shown}"
