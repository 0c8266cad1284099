"""The status of runs as text, JSON and CSV."""

import csv
import io
from collections import Counter
from collections.abc import Collection, Sequence
from typing import Any

from cppo_lab import schema
from cppo_lab.errors import one_line
from cppo_lab.monitor.status import RunStatus
from cppo_lab.sweep.columns import RUN_ID, aligned

_RIGHT = frozenset({"seed", "step", "last", "best", "ETA", "hours", "GPU-hours"})
COLUMNS = (
    *("run_id", "variants", "rule", "model", "seed", "state", "step", "t_stop", "score", "eta_seconds"),
    *("hours", "gpu_hours", "job", "reason", "last", "best", "best_step", "final_mean"),
)
SORTED = ("last", "best", "final_mean")  # scores that `cppo status --sort` orders runs by


def ordered(found: Sequence[RunStatus], score: str | None) -> list[RunStatus]:
    """By one of the scores SORTED, the highest first, runs without one last; None: as they are."""
    if score is None:
        return list(found)

    def value(one: RunStatus) -> float:
        found: float | None = one.score if score == "last" else getattr(one, score)
        return -float("inf") if found is None else found

    return sorted(found, key=value, reverse=True)


def only(found: Sequence[RunStatus], states: Collection[str]) -> list[RunStatus]:
    """Those in one of `states` (none: all)."""
    return [one for one in found if not states or one.state in states]


def table(found: Sequence[RunStatus], width: int | None = None, coloured: bool = False) -> str:
    """Aligned columns. If lines are longer than `width` (None: no limit), the least important columns are dropped and
    reasons are cut.
    """
    on_gpus = any(one.gpu_hours is not None for one in found)
    named = any(one.label.variants for one in found)
    hours = "GPU-hours" if on_gpus else "hours"
    head = ["run id", "variant" if named else "rule", "model", "seed", "state", "step", "last", "best", "ETA"]
    head += [hours, "job", "reason"]
    rows = [_cells(one, on_gpus) for one in found]
    alike = ("model",) if len({one.label.model for one in found}) == 1 else ()
    spare = ("job", hours, *alike, "ETA", RUN_ID, "best", "last")
    return aligned(head, rows, right=_RIGHT, width=width, spare=spare, coloured=coloured)


def _cells(one: RunStatus, on_gpus: bool) -> list[str]:
    label, hours = one.label, one.gpu_hours if on_gpus else one.hours
    cells = [
        one.run_id,
        label.name,
        label.model,
        "-" if label.seed is None else str(label.seed),
        one.state,
        "-" if one.step is None else f"{one.step}/{'?' if one.t_stop is None else one.t_stop}",
        *("-" if score is None else f"{100 * score:.1f}" for score in (one.score, one.best)),
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
    """The values of one run, by the names of COLUMNS."""
    label = one.label
    named: dict[str, Any] = {
        "variants": dict(label.variants),
        "rule": label.rule,
        "model": label.model,
        "seed": label.seed,
    }
    named["last"] = one.score
    return {name: _rounded(named[name] if name in named else getattr(one, name)) for name in COLUMNS}


def _rounded(value: Any) -> Any:
    return round(value, 6) if isinstance(value, float) else value


def as_values(found: Sequence[RunStatus], everything: Sequence[RunStatus]) -> dict[str, Any]:
    """For JSON: the runs shown, and the number of runs in each state among all."""
    counts = Counter(one.state for one in everything)
    states = {state: counts[state] for state in schema.STATES if counts[state]}
    return {"runs": [values(one) for one in found], "states": states}


def to_csv(found: Sequence[RunStatus]) -> str:
    """One line per run below a header; `variants` as `sweep=variant`, separated by `;`."""
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
