"""The status of runs as text, JSON and CSV."""

import csv
import io
import json
from collections import Counter
from collections.abc import Collection, Sequence
from typing import Any

from cppo_lab import schema
from cppo_lab.errors import one_line
from cppo_lab.monitor.status import RunStatus

_RIGHT = frozenset({"seed", "step", "score", "ETA", "hours", "GPU-hours"})
COLUMNS = (
    *("run_id", "variants", "rule", "model", "seed", "state", "step", "t_stop", "score", "eta_seconds"),
    *("hours", "gpu_hours", "job", "reason"),
)


def only(found: Sequence[RunStatus], states: Collection[str]) -> list[RunStatus]:
    """Those in one of `states` (none: all)."""
    return [one for one in found if not states or one.state in states]


def table(found: Sequence[RunStatus], width: int | None = None) -> str:
    """Aligned columns; lines longer than `width` (None: no limit) are cut, which only ever costs part of a reason."""
    on_gpus = any(one.gpu_hours is not None for one in found)
    named = any(one.label.variants for one in found)
    head = ["run id", "variant" if named else "rule", "model", "seed", "state", "step", "score", "ETA"]
    head += ["GPU-hours" if on_gpus else "hours", "job", "reason"]
    rows = [head, *(_cells(one, on_gpus) for one in found)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    widths[-1] = 0  # the last column needs no filling
    right = [name in _RIGHT for name in head]
    lines = (
        "  ".join(
            cell.rjust(size) if to_right else cell.ljust(size)
            for cell, size, to_right in zip(row, widths, right, strict=True)
        ).rstrip()
        for row in rows
    )
    return "\n".join(
        line if width is None or len(line) <= width else line[: max(width - 1, 1)] + "…" for line in lines
    )


def _cells(one: RunStatus, on_gpus: bool) -> list[str]:
    label, hours = one.label, one.gpu_hours if on_gpus else one.hours
    cells = [
        one.run_id,
        label.name,
        label.model,
        "-" if label.seed is None else str(label.seed),
        one.state,
        "-" if one.step is None else f"{one.step}/{'?' if one.t_stop is None else one.t_stop}",
        "-" if one.score is None else f"{100 * one.score:.1f}",
        "-" if one.eta_seconds is None else duration(one.eta_seconds),
        "-" if hours is None else f"{hours:.2f}",
        one.job or "-",
        one.reason,
    ]
    return list(map(one_line, cells))  # they come from files


def duration(seconds: float) -> str:
    """`40 s`, `12 min`, `3.5 h`."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def totals(found: Sequence[RunStatus]) -> str:
    """`6 runs: 4 done, 2 running; 1.20 GPU-hours used; the running ones need 12 min`."""
    counts = Counter(one.state for one in found)
    states = ", ".join(f"{counts[state]} {state}" for state in schema.STATES if counts[state])
    parts = [f"{len(found)} run{'' if len(found) == 1 else 's'}" + (f": {states}" if states else "")]
    gpu_hours, hours = ([getattr(one, name) or 0.0 for one in found] for name in ("gpu_hours", "hours"))
    if any(gpu_hours):
        parts.append(f"{sum(gpu_hours):.2f} GPU-hours used")
    elif any(hours):
        parts.append(f"{sum(hours):.2f} hours used")
    left = [one.eta_seconds for one in found if one.eta_seconds is not None]
    if left:
        parts.append(f"the last of the running ones ends in about {duration(max(left))}")
    return "; ".join(parts)


def values(one: RunStatus) -> dict[str, Any]:
    """One run under the names of COLUMNS."""
    label = one.label
    named = {"variants": dict(label.variants), "rule": label.rule, "model": label.model, "seed": label.seed}
    return {name: _rounded(named[name] if name in named else getattr(one, name)) for name in COLUMNS}


def _rounded(value: Any) -> Any:
    return round(value, 6) if isinstance(value, float) else value


def to_json(found: Sequence[RunStatus], everything: Sequence[RunStatus]) -> str:
    """One JSON object: the runs shown, and the number of runs in each state among all."""
    counts = Counter(one.state for one in everything)
    states = {state: counts[state] for state in schema.STATES if counts[state]}
    return json.dumps({"runs": [values(one) for one in found], "states": states}, indent=1)


def to_csv(found: Sequence[RunStatus]) -> str:
    """One line per run under a line of names; `variants` as `sweep=variant`, separated by `;`."""
    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS, lineterminator="\n")
    writer.writeheader()
    for one in found:
        variants = ";".join(f"{sweep}={variant}" for sweep, variant in one.label.variants.items())
        writer.writerow(values(one) | {"variants": variants})
    return text.getvalue()


def all_ended(found: Sequence[RunStatus]) -> bool:
    """Whether nothing runs and nothing waits."""
    return not any(one.state in schema.ALIVE for one in found)
