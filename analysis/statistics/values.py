"""The scores and other values of single runs, from which everything else is computed.

The highest of many noisy evaluations is biased upwards, because it was also selected for its noise. So there is a score
of the best step that is corrected for this selection bias: the step is selected on all benchmarks but one and scored on
the held-out benchmark; each is held out once, and the result is the mean. The sampling errors of different benchmarks
are independent (different problems and answers), so noise that made a step look best on the others does not help it on
the held-out benchmark. A small downward bias remains (0.1 to 0.3 points in simulated studies, docs/statistics.md),
because the step is selected on fewer benchmarks and gains specific to a benchmark are lost. The variance increases: the
scatter is about twice that of the best step's score.

Selecting the step on other seeds would instead measure how good a step fixed in advance is, not how good the selected
checkpoint is; where runs fluctuate, that is 0.5 to 1.3 points lower. It also needs several seeds, while this method
needs several benchmarks.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from statistics import fmean
from weakref import WeakKeyDictionary

import numpy as np
import pandas as pd

from cppo_lab import schema
from cppo_lab.analysis.inputs import SweepData
from cppo_lab.analysis.scoring import (
    TIE,
    RunScore,
    Scoreboard,
    SelectionState,
    by_cell,
    late_curve,
    step_noise,
)
from cppo_lab.analysis.statistics.estimate import FloatArray

ONE_BENCHMARK = "the score of the best step cannot be corrected for selection bias: that takes two benchmarks"


def held_out_best(scores: FloatArray) -> FloatArray:
    """The corrected score of `[..., steps, benchmarks]` without gaps, of two or more benchmarks, as `[...]`. Ties go to
    the earliest step, as in `scoring.choose`.
    """
    count, total, held_out = scores.shape[-1], scores.sum(axis=-1), []
    for benchmark in range(count):
        left_out = scores[..., benchmark]
        others = (total - left_out) / (count - 1)
        picked = np.argmax(others >= others.max(axis=-1, keepdims=True) - TIE, axis=-1)
        held_out.append(np.take_along_axis(left_out, picked[..., None], axis=-1)[..., 0])
    return np.asarray(np.mean(held_out, axis=0))


def corrected_score(window: pd.DataFrame, benchmarks: Sequence[str]) -> float | None:
    """The corrected score of a run: `window` is indexed by step, with a column per benchmark.

    None if it cannot be computed (ONE_BENCHMARK): there is one benchmark, or only the mean was logged.
    """
    if len(benchmarks) < 2:
        return None
    scores = np.stack([window[name].to_numpy(dtype=np.float64) for name in benchmarks], axis=-1)
    complete = scores[~np.isnan(scores).any(axis=-1)]
    return float(held_out_best(complete)) if len(complete) else None


# The four scores of every finished run, on which all statistics are based.
#
# best: the paper's selection rule, which is biased upwards, more so for a noisy run. corrected: the same, corrected for
# selection bias (`held_out_best`). final: mean over the last part of the window (`schema.LATE_SHARE`), without
# selection. area: mean height of the curve over the window (area by the trapezoidal rule, divided by its length), which
# measures how fast the run learned.
#
# For `final` and `area` a collapsed run is extended at its last score, or at its first if that is lower, because
# stopping a broken run early must not flatter it. `best` and `corrected` ignore the collapse.


class Score(StrEnum):
    """A score of a run: of its best step, the same corrected for selection bias, the mean of the last part of the
    window, or the mean height of the curve.
    """

    BEST = "best"
    CORRECTED = "corrected"
    FINAL = "final"
    AREA = "area"


class Quantity(StrEnum):
    """A quantity of a run other than a score that a claim may be about; see `verdicts`."""

    RISE = "rise"
    EARLY_PREFIX = "early prefix masks"
    RETURN = "return"  # mean expected return over the steps
    LOG_ERROR = "log error"  # mean log of the surrogate's |error| over the steps
    ERROR = "error"  # minus the log of a ratio of errors at equal movement (`exact_study`)
    ERROR_SLOPE = "error_slope"  # its change when the horizon is ten times as long


Measure = Score | Quantity  # what is compared


@dataclass(frozen=True)
class RunValues:
    """A finished run; fractions in [0, 1]. `corrected` is None where it cannot be computed, and `best` of a run that
    collapsed before its first validation; its other scores are 0.

    `step_noise`: scatter of an evaluation (`scoring.step_noise`), None for fewer than 3 late ones. `evaluations` in the
    window, `late` of them in its last part. `ended`: step of the last validation of a collapsed run, else the end of
    the window. `paired`: it is compared with the runs of its seed, by design and not by the outcome; `common`: and its
    seed draws the starts of all models alike. `measured`: the quantity of a claim that is not about a score
    (`verdicts.with_quantity`).
    """

    model: str
    variant: str
    seed: int | None
    collapsed: bool
    best: float | None
    corrected: float | None
    final: float
    area: float
    step_noise: float | None
    evaluations: int
    late: int
    ended: int = 0
    paired: bool = True
    common: bool = False
    measured: float | None = None

    def of(self, score: Measure) -> float | None:
        """One of the four scores, or the quantity that was measured."""
        value: float | None = self.measured if isinstance(score, Quantity) else getattr(self, score.value)
        return value


class FinishedRuns(tuple[RunValues, ...]):
    """A tuple of `RunValues` with a lookup by cell."""

    @cached_property
    def cells(self) -> Mapping[tuple[str, str], tuple[RunValues, ...]]:
        """(model, variant) -> its runs, grouped once so that a lookup does not scan all runs."""
        return by_cell(self)


_OF_BOARD: WeakKeyDictionary[Scoreboard, FinishedRuns] = WeakKeyDictionary()


def run_values(board: Scoreboard) -> FinishedRuns:
    """Every run of the board that is a result, in the board's order."""
    if board in _OF_BOARD:  # several parts of a report need them
        return _OF_BOARD[board]
    values = []
    for run in [run for run in board.runs if run.is_result]:
        window, paired = board.window(run), board.pairing
        if paired is None:  # the sweep file does not say
            paired = starts_with_seed(board.data, run.mlflow_id, run.seed)
        means = _to_the_end(window[schema.MEAN].dropna(), run)
        means = means if len(means) else pd.Series([0.0])
        late = late_curve(board.curves.of(run.mlflow_id), run.t_stop)
        collapsed = run.state is SelectionState.COLLAPSE
        steps, scores = means.index.to_numpy(dtype=np.float64), means.to_numpy(dtype=np.float64)
        area = float(scores[0])
        if len(steps) > 1:
            area = float(np.sum(np.diff(steps) * (scores[1:] + scores[:-1]) / 2) / (steps[-1] - steps[0]))
        of_run = RunValues(
            model=run.model,
            variant=run.variant,
            seed=run.seed,
            collapsed=collapsed,
            best=run.choice.score,
            corrected=corrected_score(window, board.benchmarks_of(run.model)),
            final=fmean(_late(means, run.t_stop)),
            area=area,
            step_noise=step_noise(late),
            evaluations=len(window),
            late=len(late),
            ended=(run.choice.last_step or 0) if collapsed or run.t_stop is None else run.t_stop,
            paired=paired,
            common=paired and run.mlflow_id in board.data.drawn_starts,
        )
        values.append(of_run)
    return _OF_BOARD.setdefault(board, FinishedRuns(values))


def by_seed(runs: FinishedRuns, model: str, variant: str, score: Measure) -> dict[int | None, float]:
    """Seed -> score of the runs of a cell that have it."""
    of_cell = cell_runs(runs, model, variant)
    return {run.seed: value for run in of_cell if (value := run.of(score)) is not None}


def cell_runs(runs: FinishedRuns, model: str, variant: str) -> tuple[RunValues, ...]:
    """The runs of a cell in their order."""
    return runs.cells.get((model, variant), ())


def late_weights(board: Scoreboard, run: RunScore) -> dict[int, float]:
    """Validated step -> its weight in the score `final`. A collapsed run's missing validations add to the weight of the
    validation whose score fills them in. Empty for a run without a score.
    """
    seen = board.window(run)[schema.MEAN].dropna()
    if seen.empty:
        return {}
    late = _late(_to_the_end(seen, run), run.t_stop)
    filled = seen.index[-1] if seen.iloc[-1] <= seen.iloc[0] else seen.index[0]
    shares = defaultdict[int, float](float)
    for step in late.index:
        shares[int(step if step <= seen.index[-1] else filled)] += 1 / len(late)
    return dict(shares)


_START = "model.warm_start."  # prefix of the logged configuration keys


def starts_with_seed(data: SweepData, mlflow_id: str, seed: int | None) -> bool:
    """Whether the start of a run depends on its seed, and runs with the same seed share it.

    A warm start in the logged configuration says so, as on the embedded core, where the start causes most of the
    variation between seeds; otherwise the record of the run's core does. If all runs start from the same weights, the
    seed determines only the order of the prompts, and pairing would cost half the degrees of freedom. Without a logged
    configuration the start counts as dependent on the seed.
    """
    logged = data.params.get(mlflow_id, {})
    if any(key.startswith(_START) for key in logged):
        return logged.get(f"{_START}seed", str(seed)) in (str(seed), "None")
    return not logged or mlflow_id in data.drawn_starts


def rise(board: Scoreboard, run: RunScore) -> float | None:
    """Mean score in the last part of the window minus that in the first part of the same length, extended like `final`;
    None if either has no evaluation. The score before training is excluded.
    """
    means = _to_the_end(board.window(run)[schema.MEAN].dropna(), run)
    if not len(means):
        return None
    steps, scores = means.index.to_numpy(), means.to_numpy(dtype=np.float64)
    end = _end(means, run.t_stop)
    early = scores[(steps > 0) & (steps <= schema.early_until(end))]
    late = scores[steps > schema.late_after(end)]
    return float(late.mean() - early.mean()) if len(early) and len(late) else None


def _to_the_end(means: pd.Series, run: RunScore) -> pd.Series:
    """The mean scores up to T_stop, with the missing ones of a collapsed run filled in."""
    if run.state is not SelectionState.COLLAPSE or run.t_stop is None or len(means) < 2:
        return means
    every = int(means.index[-1] - means.index[-2])
    missing = range(int(means.index[-1]) + every, run.t_stop + 1, every)
    # A run whose gradient diverged may have ended between validations while its last score was still high.
    ended = min(float(means.iloc[-1]), float(means.iloc[0]))
    filled = pd.Series(ended, index=pd.Index(missing, dtype=means.index.dtype), dtype=means.dtype)
    return pd.concat([means, filled]) if len(filled) else means


def _late(means: pd.Series, t_stop: int | None) -> pd.Series:
    """The scores in the last part of the window; the last score if nothing was evaluated there."""
    late = means[means.index > schema.late_after(_end(means, t_stop))]
    return late if len(late) else means.iloc[-1:]


def _end(means: pd.Series, t_stop: int | None) -> int:
    return int(means.index[-1]) if t_stop is None else t_stop
