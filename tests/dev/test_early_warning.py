"""The early warning's judge, by hand and against SciPy."""

import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy.optimize import minimize
from scipy.special import expit

from dev.early_warning import FEATURES, RUN, alarms, eager, plain, read, regression

METRICS = [name for name in FEATURES if name != "share"]
# Of each run (score by step from 0, the step of its end, whether it collapsed): the features are constant.
RUNS = {
    ("fit_a", 0): ([0.5, 0.4, 0.1, 0.1], 15, 1),
    ("fit_a", 1): ([0.5, 0.2, 0.6, 0.6, 0.3], 20, 0),
    ("fit_a", 2): ([0.02, 0.001, 0.03, 0.03, 0.03], 20, 0),
}


@pytest.fixture
def rows(tmp_path: Path) -> pd.DataFrame:
    rows = [
        (variant, seed, 5 * n, score, *[0.5 if n else None] * len(METRICS), end, collapsed)
        for (variant, seed), (scores, end, collapsed) in RUNS.items()
        for n, score in enumerate(scores)
    ]
    columns = [*RUN, "step", "score", *METRICS, "end", "collapsed"]
    pd.DataFrame(rows, columns=columns).to_csv(tmp_path / "made.csv", index=False)
    return read(tmp_path / "made.csv")


def test_shares_outcomes_and_alarms_by_hand(rows: pd.DataFrame) -> None:
    # Neither a start nor a collapse's own.
    assert rows["step"].tolist() == [5, 10, *[5, 10, 15, 20] * 2]
    assert rows["share"].round(3).tolist() == [0.8, 0.2, 0.4, 1.0, 1.0, 0.5, *[1.0] * 4]
    assert rows["soon"].tolist() == [True, True, *[False] * 8]
    low = plain("-share")
    runs = alarms(rows, low(rows), -0.4)
    assert runs["lead"].tolist() == pytest.approx([5, math.nan, math.nan], nan_ok=True)
    assert runs["false"].tolist() == [False, True, False]
    assert runs["watched"].tolist() == [10, 5, 20]
    # The first threshold that catches the second run has a false alarm in 35 steps.
    assert eager(rows, low(rows)) == pytest.approx(-0.2)
    others = rows[rows["collapsed"] == 0]
    assert math.isinf(eager(others, low(others) + np.arange(8)))


def test_the_regression_has_the_largest_penalised_likelihood() -> None:
    """Of two features; all others are unknown."""
    generator = np.random.default_rng(3)
    rows = pd.DataFrame(index=range(80), columns=FEATURES, dtype=float)
    rows["ess"], rows["entropy"] = generator.normal(2, 3, 80), generator.normal(-1, 0.5, 80)
    rows["soon"] = generator.random(80) < expit((rows["ess"] - 2) / 2)
    known = rows[["ess", "entropy"]]
    z = ((known - known.mean()) / known.std()).to_numpy()

    def loss(weights: np.ndarray) -> float:
        at = weights[0] + z @ weights[1:]
        return float(np.sum(np.logaddexp(0, at) - at * rows["soon"]) + 0.5 * np.sum(weights[1:] ** 2))

    intercept, *slopes = minimize(loss, np.zeros(3), tol=1e-10).x
    assert regression(rows)(rows) == pytest.approx(expit(intercept + z @ slopes), abs=1e-4)
