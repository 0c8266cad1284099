"""The score of the best step without selection bias.

The highest of many noisy evaluations is too high: it was picked for its noise too. Here the step is picked on all
benchmarks but one, and scored on the one left out; every benchmark is left out once, and the mean counts. The sampling
errors of different benchmarks are independent (other problems, other answers), so what made a step look best on the
others is no help on the one left out. What is left is a small bias downwards (0.1 to 0.3 points in simulated studies,
docs/statistics.md), because the step is picked with fewer benchmarks and what is good for one alone is lost. The price
is scatter: about twice that of the best step's score.

Picking the step on other seeds instead asks how good a step fixed in advance is, not how good the picked checkpoint
is: where runs wander it lies 0.5 to 1.3 points below that. It also needs several seeds; this needs several benchmarks.
"""

from collections.abc import Sequence

import numpy as np
import pandas as pd

from cppo_lab.analysis.selection import TIE
from cppo_lab.analysis.statistics.aggregates import FloatArray

ONE_BENCHMARK = (
    "the score of the best step cannot be corrected for having been picked: it takes two benchmarks"
)


def held_out_best(scores: FloatArray) -> FloatArray:
    """`[..., steps, benchmarks]` without gaps -> `[...]`. Ties go to the earliest step, as in `selection.choose`.

    Raises ValueError for fewer than two benchmarks.
    """
    count = scores.shape[-1]
    if count < 2:
        raise ValueError(ONE_BENCHMARK)
    total, held_out = scores.sum(axis=-1), []
    for benchmark in range(count):
        left_out = scores[..., benchmark]
        others = (total - left_out) / (count - 1)
        picked = np.argmax(others >= others.max(axis=-1, keepdims=True) - TIE, axis=-1)
        held_out.append(np.take_along_axis(left_out, picked[..., None], axis=-1)[..., 0])
    return np.asarray(np.mean(held_out, axis=0))


def corrected_score(window: pd.DataFrame, benchmarks: Sequence[str]) -> float | None:
    """The corrected score of one run: `window` is indexed by step, with a column per benchmark.

    None where it cannot be done (ONE_BENCHMARK): one benchmark, or the mean alone was logged.
    """
    if len(benchmarks) < 2:
        return None
    scores = np.stack([window[name].to_numpy(dtype=np.float64) for name in benchmarks], axis=-1)
    complete = scores[~np.isnan(scores).any(axis=-1)]
    return float(held_out_best(complete)) if len(complete) else None
