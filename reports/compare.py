"""The differences between two reports, from their records, and as lines for a terminal."""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, TypeVar

from cppo_lab.errors import printable
from cppo_lab.reports.saved import SavedCell, SavedReport, SavedRun, SavedVerdict

POINT = 100.0  # percentage points in a fraction
_SAME = 1e-9  # fractions closer than this differ by rounding alone

K = TypeVar("K")


@dataclass(frozen=True)
class RunChange:
    """A run that is in only one report, or in both with a different state or result. The state is empty where the run
    is missing.

    `what`: added, removed or changed.
    """

    sweep: str
    run: str
    run_id: str
    what: str
    before: str
    after: str
    points: float | None  # change of its score in percentage points


@dataclass(frozen=True)
class CellChange:
    """A cell of a table with a different score or state; scores in percent. `components`: changes of the benchmark
    scores, in points.
    """

    sweep: str
    model: str
    variant: str
    before: str
    after: str
    score_before: float | None
    score_after: float | None
    points: float | None
    runs_before: int
    runs_after: int
    components: Mapping[str, float]


@dataclass(frozen=True)
class VerdictChange:
    """A claim with a different outcome, which is empty where a report does not judge the claim. Estimates in points."""

    sweep: str
    claim: str
    text: str
    before: str
    after: str
    estimate_before: float | None
    estimate_after: float | None
    reason: str


@dataclass(frozen=True)
class RunComparison:
    """The comparison of two reports, `before` and `after`. `figures`: the differing figures by name, as added, removed
    or changed.

    `heading`: the differing report-level fields, each with both values.
    """

    before: str
    after: str
    heading: Mapping[str, tuple[str, str]]
    runs: tuple[RunChange, ...]
    cells: tuple[CellChange, ...]
    verdicts: tuple[VerdictChange, ...]
    figures: Mapping[str, str]

    @property
    def same(self) -> bool:
        """Whether the reports have equal content. Titles, commands and files may differ."""
        return not (self.runs or self.cells or self.verdicts or self.figures)

    def plain(self) -> dict[str, Any]:
        """For JSON."""
        return {"same": self.same, **asdict(self)}


def compare(before: SavedReport, after: SavedReport, names: tuple[str, str]) -> RunComparison:
    """The differences between `before` and `after`; `names` are the names to show for them."""
    heads = {
        key: (str(getattr(before, key)), str(getattr(after, key)))
        for key in ("kind", "name", "experiment", "core")
    }
    return RunComparison(
        *names,
        heading={key: pair for key, pair in heads.items() if pair[0] != pair[1]},
        runs=tuple(_runs(before, after)),
        cells=tuple(_cells(before, after)),
        verdicts=tuple(_verdicts(before, after)),
        figures=_names(before.figures, after.figures),
    )


def _either(before: Mapping[K, object], after: Mapping[K, object]) -> list[K]:
    """The keys of both: those of the first in its order, then the additional ones of the second."""
    return [*before, *(key for key in after if key not in before)]


def _runs(before: SavedReport, after: SavedReport) -> Iterable[RunChange]:
    for key in _either(before.runs, after.runs):
        old, new = before.runs.get(key), after.runs.get(key)
        if old == new:
            continue
        what = "removed" if new is None else "added" if old is None else "changed"
        yield RunChange(
            sweep=key[0],
            run=key[1],
            run_id=_run_id(new) or _run_id(old),
            what=what,
            before="" if old is None else old.state,
            after="" if new is None else new.state,
            points=_points(_score(old), _score(new)),
        )


def _run_id(run: SavedRun | None) -> str:
    return "" if run is None else run.run_id


def _score(side: SavedRun | SavedCell | None) -> float | None:
    return None if side is None else side.score


def _points(old: float | None, new: float | None) -> float | None:
    return None if old is None or new is None else POINT * (new - old)


def _cells(before: SavedReport, after: SavedReport) -> Iterable[CellChange]:
    for key in _either(before.cells, after.cells):
        old, new = before.cells.get(key), after.cells.get(key)
        if old is not None and new is not None and _equal(old, new):
            continue
        yield CellChange(
            *key,
            before=_state(old),
            after=_state(new),
            score_before=_percent(old),
            score_after=_percent(new),
            points=_points(_score(old), _score(new)),
            runs_before=0 if old is None else old.runs,
            runs_after=0 if new is None else new.runs,
            components=_components(old, new),
        )


def _equal(old: SavedCell, new: SavedCell) -> bool:
    if (old.state, old.provisional, old.runs) != (new.state, new.provisional, new.runs):
        return False
    values = [(old.score, new.score)]
    values += [
        (old.components.get(name), new.components.get(name))
        for name in _either(old.components, new.components)
    ]
    return all(_close(*pair) for pair in values)


def _close(old: float | None, new: float | None) -> bool:
    return old == new if old is None or new is None else abs(old - new) <= _SAME


def _state(cell: SavedCell | None) -> str:
    return "" if cell is None else cell.state + (" (provisional)" if cell.provisional else "")


def _percent(cell: SavedCell | None) -> float | None:
    return None if cell is None or cell.score is None else POINT * cell.score


def _components(old: SavedCell | None, new: SavedCell | None) -> dict[str, float]:
    if old is None or new is None:
        return {}
    both = [name for name in old.components if name in new.components]
    changes = {name: POINT * (new.components[name] - old.components[name]) for name in both}
    return {name: change for name, change in changes.items() if abs(change) > POINT * _SAME}


def _verdicts(before: SavedReport, after: SavedReport) -> Iterable[VerdictChange]:
    for key in _either(before.verdicts, after.verdicts):
        old, new = before.verdicts.get(key), after.verdicts.get(key)
        if (
            old is not None
            and new is not None
            and (old.outcome, old.provisional) == (new.outcome, new.provisional)
        ):
            continue
        known = new or old
        if known is not None:
            yield VerdictChange(
                *key,
                text=known.text,
                before=_outcome(old),
                after=_outcome(new),
                estimate_before=_estimate(old),
                estimate_after=_estimate(new),
                reason=known.reason,
            )


def _outcome(verdict: SavedVerdict | None) -> str:
    return "" if verdict is None else verdict.outcome + (" (provisional)" if verdict.provisional else "")


def _estimate(verdict: SavedVerdict | None) -> float | None:
    return None if verdict is None or verdict.estimate is None else POINT * verdict.estimate


def _names(before: Mapping[str, str], after: Mapping[str, str]) -> dict[str, str]:
    found = {}
    for name in sorted(_either(before, after)):
        if before.get(name) != after.get(name):
            found[name] = "added" if name not in before else "removed" if name not in after else "changed"
    return found


SHOWN = 40  # lines of one kind; the others are counted


def compare_lines(found: RunComparison) -> list[str]:
    """The differences by kind; a single line if there are none. Control characters in names are escaped."""
    if found.same:
        return [printable(f"{found.before} and {found.after} say the same.")]
    lines = [f"From {found.before} to {found.after}:"]
    lines += [f"  {key}: {old} -> {new}" for key, (old, new) in found.heading.items()]
    for title, rows in (
        ("Runs", [_run(one) for one in found.runs]),
        ("Cells (percent)", [_cell(one) for one in found.cells]),
        ("Verdicts", [_verdict(one) for one in found.verdicts]),
        ("Figures", [f"{what}: {name}" for name, what in found.figures.items()]),
    ):
        lines += _section(title, rows)
    return [printable(line) for line in lines]


def _section(title: str, rows: list[str]) -> Iterable[str]:
    if not rows:
        return []
    more = [f"  and {len(rows) - SHOWN} more; --json has all"] if len(rows) > SHOWN else []
    return ["", f"{title}: {len(rows)}", *(f"  {row}" for row in rows[:SHOWN]), *more]


def _run(change: RunChange) -> str:
    states = change.after or change.before
    if change.what == "changed" and change.before != change.after:
        states = f"{change.before} -> {change.after}"
    moved = f", {change.points:+.2f} points" if change.points else ""
    return f"{change.what}: {change.run} in {change.sweep} ({states}{moved})"


def _cell(change: CellChange) -> str:
    old, new = (
        _shown_score(change.score_before, change.before),
        _shown_score(change.score_after, change.after),
    )
    moved = "" if change.points is None else f" ({change.points:+.2f})"
    counts = (
        ""
        if change.runs_before == change.runs_after
        else f", {change.runs_before} -> {change.runs_after} runs"
    )
    parts = "".join(f", {name} {value:+.2f}" for name, value in change.components.items())
    return f"{change.sweep}: {change.variant} on {change.model}: {old} -> {new}{moved}{counts}{parts}"


def _shown_score(value: float | None, state: str) -> str:
    if value is None:
        return state or "none"
    return f"{value:.2f}" if state == "scored" else f"{value:.2f} {state}"


def _verdict(change: VerdictChange) -> str:
    numbers = [_shown_points(change.estimate_before), _shown_points(change.estimate_after)]
    shown = f" ({numbers[0]} -> {numbers[1]} points)" if any(number != "-" for number in numbers) else ""
    return f"{change.text}: {change.before or 'not judged'} -> {change.after or 'not judged'}{shown}"


def _shown_points(value: float | None) -> str:
    return "-" if value is None else f"{value:+.2f}"
