"""The band around a mean curve: the pointwise uncertainty of the mean over runs."""

import math
from dataclasses import dataclass

import numpy as np
import pandas as pd
from scipy.special import stdtrit

from cppo_lab.analysis.statistics.estimate import LEVEL

INTERVAL = "interval"  # the 95 % interval of the mean (Student's t)
RANGE = "range"  # from the lower to the higher of two runs
FEWEST = 3  # runs for an interval; with two it extends 12.7 standard errors to each side and shows nothing


@dataclass(frozen=True)
class Band:
    """The mean over the runs at each step, and the band from `low` to `high` around it.

    `kind`: INTERVAL, RANGE, or empty for a single run. The band has zero width for a single run, and at steps with too
    few runs for its kind.
    """

    kind: str
    mean: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]


def band(table: pd.DataFrame, least: float = -math.inf, most: float = math.inf) -> Band:
    """The band of a table with one row per step and one column per run; NaN where a run has no value.

    The interval is clipped to [`least`, `most`], the range of possible scores.
    """
    # Sorted, so that the result does not depend on the order of the runs in the store, not even in the last digit.
    values = np.sort(table.to_numpy(dtype=np.float64), axis=1)
    runs = int(table.notna().any(axis=0).sum())
    mean = np.nanmean(values, axis=1)
    count = (~np.isnan(values)).sum(axis=1)
    low, high, kind = mean, mean, ""
    if runs == 2:
        low, high, kind = np.nanmin(values, axis=1), np.nanmax(values, axis=1), RANGE
    elif runs >= FEWEST:
        kind = INTERVAL
        times = np.where(count >= FEWEST, stdtrit(np.maximum(count - 1, 1), (1 + LEVEL) / 2), 0.0)
        squares = np.nansum((values - mean[:, None]) ** 2, axis=1)
        half = times * np.sqrt(squares / np.maximum(count - 1, 1) / count)
        low = np.minimum(mean, np.maximum(mean - half, least))
        high = np.maximum(mean, np.minimum(mean + half, most))
    return Band(kind, *(tuple(map(float, part)) for part in (mean, low, high)))
