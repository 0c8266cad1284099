"""The thresholds of `sweeps/exact.yaml` at which every rule moves the policy as far as DPPO, on seeds of no study.

    python -m dev.exact_selection

docs/evidence/exact_selection.csv has every threshold tried on SEEDS, a row for each process and horizon, with means
over seeds and steps: `cppo launch exact core=exact variant=RULE rule.delta=DELTA seed=100,101,...` trains the runs of a
try again. Only `exact/movement` was used, never the error. `chosen` takes the nearest try or interpolates; a test
compares the sweep's thresholds with it.
"""

import math
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd

from cppo_lab.errors import UserError

FILE = Path(__file__).parents[1] / "docs" / "evidence" / "exact_selection.csv"
SEEDS = range(100, 108)
REFERENCE, FREE = "dppo", "no_trust_region"  # the rule to match; the one without a threshold
NEAR = 0.05  # a mean log ratio of movements within this counts as equal
FAR = 0.1  # beyond this the nearest is rejected: where the budget limits a rule, its threshold changes little


class Tried(NamedTuple):
    """How far one rule with one threshold moves the policy on one process."""

    variant: str
    delta: float
    model: str
    horizon: int
    movement: float


def chosen(rows: Sequence[Tried]) -> dict[str, float]:
    """Each rule's threshold, with 3 digits: the nearest tried, or between the nearest on both sides of DPPO's.

    Raises UserError if no try of a rule is near DPPO's movement.
    """
    reference = {row[2:4]: row.movement for row in rows if row.variant == REFERENCE}
    logs: dict[str, dict[float, list[float]]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        if row.variant not in (REFERENCE, FREE):
            logs[row.variant][row.delta].append(math.log(row.movement / reference[row[2:4]]))
    thresholds = {}
    for variant, by_delta in logs.items():
        points = [(float(np.mean(ratios)), math.log(delta)) for delta, ratios in by_delta.items()]
        (near, at), *more = sorted(points, key=lambda point: abs(point[0]))
        beyond = next(((value, where) for value, where in more if value * near < 0), None)
        if abs(near) > NEAR and beyond is not None:
            at -= near * (beyond[1] - at) / (beyond[0] - near)
        elif abs(near) > FAR:
            raise UserError(f"{variant}: the nearest threshold tried moves {math.exp(near):.2f} times as far")
        thresholds[variant] = float(f"{math.exp(at):.3g}")
    return thresholds


def read() -> list[Tried]:
    """The tries of the file."""
    rows = pd.read_csv(FILE)[[*Tried._fields]]
    return [Tried(*row) for row in rows.itertuples(index=False)]


if __name__ == "__main__":
    for variant, delta in chosen(read()).items():
        print(f"{variant}: rule.delta: {delta:g}")
