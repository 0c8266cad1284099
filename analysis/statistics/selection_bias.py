"""The score of the best step, corrected for selection bias.

The highest of many noisy evaluations is biased upwards, because it was also selected for its noise. Here the step is
selected on all benchmarks but one and scored on the held-out one; each benchmark is held out once, and the result is
the mean. The sampling errors of different benchmarks are independent (different problems and answers), so noise that
made a step look best on the others does not help it on the held-out one. A small downward bias remains (0.1 to 0.3
points in simulated studies, docs/statistics.md), because the step is selected on fewer benchmarks and gains specific to
one benchmark are lost. The variance increases: the scatter is about twice that of the best step's score.

Selecting the step on other seeds would instead measure how good a step fixed in advance is, not how good the selected
checkpoint is; where runs fluctuate, that is 0.5 to 1.3 points lower. It also needs several seeds, while this method
needs several benchmarks.
"""

from collections.abc import Sequence

import numpy as np
import pandas as pd

from cppo_lab.analysis.selection import TIE
from cppo_lab.analysis.statistics.aggregates import FloatArray

ONE_BENCHMARK = "the score of the best step cannot be corrected for selection bias: that takes two benchmarks"


def held_out_best(scores: FloatArray) -> FloatArray:
    """The corrected score of `[..., steps, benchmarks]` without gaps, as `[...]`. Ties go to the earliest step, as in
    `selection.choose`.

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

    None if it cannot be computed (ONE_BENCHMARK): there is one benchmark, or only the mean was logged.
    """
    if len(benchmarks) < 2:
        return None
    scores = np.stack([window[name].to_numpy(dtype=np.float64) for name in benchmarks], axis=-1)
    complete = scores[~np.isnan(scores).any(axis=-1)]
    return float(held_out_best(complete)) if len(complete) else None
