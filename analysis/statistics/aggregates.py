"""Aggregates of the scores of several tasks, as `rliable` defines them (Agarwal et al., 2021, arXiv 2108.13264).

A task is a model with its benchmarks. `strata` holds one array `[..., runs]` per task; leading axes are resamples and
are kept. If tasks have different numbers of runs, `iqm` gives every run the same weight, the other aggregates every
task.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtrit

FloatArray: TypeAlias = NDArray[np.float64]
Statistic: TypeAlias = Callable[[Sequence[FloatArray]], FloatArray]
_TRIMMED = 0.25  # share cut off at each end for the interquartile mean


def mean(strata: Sequence[FloatArray]) -> FloatArray:
    """Mean over tasks of the mean over runs."""
    return np.asarray(np.mean(_task_means(strata), axis=-1))


def median(strata: Sequence[FloatArray]) -> FloatArray:
    """Median over tasks of the mean over runs; with one task this is the mean."""
    return np.asarray(np.median(_task_means(strata), axis=-1))


def iqm(strata: Sequence[FloatArray]) -> FloatArray:
    """Interquartile mean: the mean of the middle half of the runs of all tasks together."""
    runs = np.sort(np.concatenate(strata, axis=-1), axis=-1)
    cut = int(_TRIMMED * runs.shape[-1])
    return np.asarray(np.mean(runs[..., cut : runs.shape[-1] - cut], axis=-1))


AGGREGATES: Mapping[str, Statistic] = MappingProxyType({"mean": mean, "iqm": iqm, "median": median})


def _task_means(strata: Sequence[FloatArray]) -> FloatArray:
    return np.stack([runs.mean(axis=-1) for runs in strata], axis=-1)


@dataclass(frozen=True)
class Share:
    """A probability with its 95 % interval; which is None if a task has a single run on one side."""

    value: float
    low: float | None
    high: float | None


def probability_of_improvement(ours: Sequence[FloatArray], theirs: Sequence[FloatArray]) -> Share:
    """P(a run of ours scores higher than a run of theirs), averaged over tasks; a tie counts half.

    Per task it is the Mann-Whitney statistic U / (n m). The interval is Newcombe's (2006, method 5): all theta with
    |theta - estimate| <= t sqrt(V(theta)), where V is the variance of U / (n m) for exponential scores and t is
    Student's quantile with the sum of n + m - 2 degrees of freedom. Unlike a bootstrap interval it does not shrink to a
    point when every run of one side beats every run of the other.
    """
    sizes = [(len(a), len(b)) for a, b in zip(ours, theirs, strict=True)]
    value = float(np.mean([_wins(a, b) for a, b in zip(ours, theirs, strict=True)]))
    if any(min(size) < 2 for size in sizes):
        return Share(value, None, None)
    low = _limit(value, sizes)
    return Share(value, low, 1 - _limit(1 - value, [(m, n) for n, m in sizes]))


def _wins(a: FloatArray, b: FloatArray) -> float:
    difference = a[:, None] - b[None, :]
    return float(np.mean((difference > 0) + 0.5 * (difference == 0)))


def _limit(value: float, sizes: Sequence[tuple[int, int]]) -> float:
    """The smallest theta <= `value` that is at most t standard errors below `value`, by bisection."""
    t = float(stdtrit(sum(n + m - 2 for n, m in sizes), 0.975))
    low, high = 0.0, value
    for _ in range(60):
        theta = (low + high) / 2
        far = value - theta > t * math.sqrt(_newcombe_variance(theta, sizes))
        low, high = (theta, high) if far else (low, theta)
    return (low + high) / 2


def _newcombe_variance(theta: float, sizes: Sequence[tuple[int, int]]) -> float:
    total = 0.0
    for n, m in sizes:
        half = (n + m) / 2
        inner = 1 + (half - 1) * ((1 - theta) / (2 - theta) + theta / (1 + theta))
        total += theta * (1 - theta) * inner / (n * m)
    return total / len(sizes) ** 2
