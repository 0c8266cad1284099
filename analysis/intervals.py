"""95 % intervals over seeds: Student's t on the runs of a cell, and on differences paired by seed.

Two scores per run. `best` is the selected one (`selection.choose`). `final` is the mean over the last part of the
window (`window.LATE_SHARE`), in which a collapsed run counts with the score it ended at, or began with if that is
lower: stopping a broken run early must not flatter it.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from cppo_lab import schema
from cppo_lab.analysis.scoring import Scoreboard
from cppo_lab.analysis.selection import RunScore, State
from cppo_lab.analysis.window import LATE_SHARE, late_curve

# 97.5 % quantiles of Student's t for 1, 2, ... degrees of freedom; beyond, the Cornish-Fisher expansion
# about the normal quantile is within 0.0005.
_T = (
    12.7062, 4.3027, 3.1824, 2.7764, 2.5706, 2.4469, 2.3646, 2.3060, 2.2622, 2.2281,
    2.2010, 2.1788, 2.1604, 2.1448, 2.1314, 2.1199, 2.1098, 2.1009, 2.0930, 2.0860,
)  # fmt: skip
_NORMAL = 1.959964


@dataclass(frozen=True)
class Interval:
    """A mean over `n` runs and its 95 % interval; `half` is None for a single run: nothing can be said."""

    mean: float
    half: float | None
    n: int

    @classmethod
    def of(cls, values: Sequence[float]) -> "Interval | None":
        """None for no values."""
        n = len(values)
        if not n:
            return None
        mean = math.fsum(values) / n
        if n == 1:
            return cls(mean, None, 1)
        variance = math.fsum((value - mean) ** 2 for value in values) / (n - 1)
        return cls(mean, t_quantile(n - 1) * math.sqrt(variance / n), n)


@dataclass(frozen=True)
class CellIntervals:
    """One (model, variant): both scores, their differences from the baseline, and how many runs collapsed."""

    model: str
    variant: str
    best: Interval | None
    final: Interval | None
    best_difference: Interval | None
    final_difference: Interval | None
    collapsed: int
    runs: int


def t_quantile(degrees: int) -> float:
    """The 97.5 % quantile of Student's t with `degrees` >= 1 degrees of freedom."""
    if degrees <= len(_T):
        return _T[degrees - 1]
    z = _NORMAL
    return z + (z**3 + z) / (4 * degrees) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * degrees**2)


def baseline_of(variants: Sequence[str]) -> str:
    """What the others are compared with: DPPO, as in the paper's ablations, or else the first variant."""
    return "dppo" if "dppo" in variants else variants[0]


def intervals(board: Scoreboard) -> tuple[CellIntervals, ...]:
    """The intervals of every cell of the board, models and variants in the order declared."""
    baseline = baseline_of(board.variants)
    scores = {pair: _by_seed(board, pair) for pair in board.cells}
    cells = []
    for (model, variant), runs in scores.items():
        base = scores.get((model, baseline), {})
        paired = [(runs[seed], base[seed]) for seed in runs if seed in base and variant != baseline]
        cells.append(
            CellIntervals(
                model=model,
                variant=variant,
                best=Interval.of([best for best, _ in runs.values()]),
                final=Interval.of([final for _, final in runs.values()]),
                best_difference=Interval.of([ours[0] - theirs[0] for ours, theirs in paired]),
                final_difference=Interval.of([ours[1] - theirs[1] for ours, theirs in paired]),
                collapsed=board.cells[model, variant].collapsed,
                runs=len(runs),
            )
        )
    return tuple(cells)


def _by_seed(board: Scoreboard, pair: tuple[str, str]) -> Mapping[int | None, tuple[float, float]]:
    """(best, final) of each finished run by its seed."""
    found = {}
    for run in board.runs:
        finished = run.state in (State.SCORED, State.COLLAPSE)
        if (run.model, run.variant) == pair and finished and run.choice.score is not None:
            found[run.seed] = (run.choice.score, _final(board, run))
    return found


def _final(board: Scoreboard, run: RunScore) -> float:
    """Mean of the last part of the window on the validation grid of the run; see the module's text."""
    curve = board.curves.of(run.mlflow_id or "")
    scores = curve[schema.MEAN].dropna()
    late = late_curve(curve, run.t_stop)
    if run.state is not State.COLLAPSE or run.t_stop is None or len(scores) < 2:
        return float(late.mean()) if len(late) else float(scores.iloc[-1])
    every = int(scores.index[-1] - scores.index[-2])
    # A run whose gradient broke may have ended between validations, with a high score still: it counts as if back
    # where it began.
    last, ended = min(float(scores.iloc[-1]), float(scores.iloc[0])), int(scores.index[-1])
    begin = (1 - LATE_SHARE) * run.t_stop
    missing = sum(step > begin for step in range(ended + every, run.t_stop + 1, every))
    return (math.fsum(late) + missing * last) / (len(late) + missing) if len(late) + missing else last
