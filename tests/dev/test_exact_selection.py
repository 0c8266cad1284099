"""The thresholds of the exact core's study are the ones that its selection chose, by movement alone.

docs/evidence/exact_selection.csv has a row for every threshold that was tried of a rule, on every process and horizon:
`dev/exact_selection.py` of commit 0f6ac1fe, which trained them, on seeds of no study.
"""

import itertools
import math
from collections.abc import Iterator

import numpy as np
import pandas as pd

from cppo_lab.sweep.file import load_sweep
from tests.conftest import ROOT

SEEDS = range(100, 108)
REFERENCE, FREE = "dppo", "no_trust_region"  # the rule to match; the one without a threshold
NEAR = 0.05  # a mean log ratio of movements within this counts as equal
FAR = 0.1  # beyond this the nearest would have been rejected


def chosen(rows: pd.DataFrame) -> Iterator[tuple[str, float]]:
    """Each rule's threshold, with 3 digits: the nearest tried, or between the nearest on both sides of DPPO's."""
    movements = rows.set_index(["variant", "delta", "model", "horizon"])["movement"].sort_index()
    reference = movements[REFERENCE].droplevel("delta")
    for variant, tries in movements.drop([REFERENCE, FREE]).groupby(level="variant"):
        points = [
            (float(np.log(tried.droplevel(["variant", "delta"]) / reference).mean()), math.log(delta))
            for delta, tried in tries.groupby(level="delta")
        ]
        (near, at), *more = sorted(points, key=lambda point: abs(point[0]))
        beyond = next(((ratio, there) for ratio, there in more if ratio * near < 0), None)
        if abs(near) > NEAR and beyond is not None:
            at -= near * (beyond[1] - at) / (beyond[0] - near)
        else:
            assert abs(near) <= FAR, variant
        yield variant, float(f"{math.exp(at):.3g}")


def test_the_sweep_has_what_was_chosen() -> None:
    rows, sweep = pd.read_csv(ROOT / "docs/evidence/exact_selection.csv"), load_sweep("exact")
    thresholds = {variant: keys["rule.delta"] for variant, keys in sweep.variants.items()}
    assert dict(chosen(rows)) | {REFERENCE: 0.01, FREE: 1.0} == thresholds
    [models] = sweep.models.values()
    horizons = sweep.axes_of("exact")["rollout.max_response_length"]
    assert {*zip(rows["model"], rows["horizon"], strict=True)} == {*itertools.product(models, horizons)}
    assert all({*SEEDS} <= {*hypothesis.selection_seeds} for hypothesis in sweep.hypotheses.values())
