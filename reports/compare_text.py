"""A comparison of two reports as lines for a terminal."""

from collections.abc import Iterable

from cppo_lab.errors import printable
from cppo_lab.reports.compare import CellChange, RunChange, RunComparison, VerdictChange

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
    old, new = _score(change.score_before, change.before), _score(change.score_after, change.after)
    moved = "" if change.points is None else f" ({change.points:+.2f})"
    counts = (
        ""
        if change.runs_before == change.runs_after
        else f", {change.runs_before} -> {change.runs_after} runs"
    )
    parts = "".join(f", {name} {value:+.2f}" for name, value in change.components.items())
    return f"{change.sweep}: {change.variant} on {change.model}: {old} -> {new}{moved}{counts}{parts}"


def _score(value: float | None, state: str) -> str:
    if value is None:
        return state or "none"
    return f"{value:.2f}" if state == "scored" else f"{value:.2f} {state}"


def _verdict(change: VerdictChange) -> str:
    numbers = [_points(change.estimate_before), _points(change.estimate_after)]
    shown = f" ({numbers[0]} -> {numbers[1]} points)" if any(number != "-" for number in numbers) else ""
    return f"{change.text}: {change.before or 'not judged'} -> {change.after or 'not judged'}{shown}"


def _points(value: float | None) -> str:
    return "-" if value is None else f"{value:+.2f}"
