"""The three scores of a run: `last`, `best` and `final mean`.

A score is the mean of the run's benchmarks at one validation, a fraction. Report tables select by `best`, and show
`final mean` beside it, which involves no selection of a step (cppo_lab/analysis/selection.py, window.py).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import fmean

from cppo_lab.schema import BEST, BEST_STEP, FINAL_MEAN, late_after


@dataclass(frozen=True)
class Scores:
    """`last`: of the newest validation. `best`: the highest one, first reached at `best_step`. `final_mean`: the mean
    over the validations in the last LATE_SHARE of [0, T_stop]; None before the first of them.
    """

    last: float
    best: float
    best_step: int
    final_mean: float | None

    @property
    def metrics(self) -> dict[str, float]:
        """As metrics of the validation's step (schema.py)."""
        late = {} if self.final_mean is None else {FINAL_MEAN: self.final_mean}
        return {BEST: self.best, BEST_STEP: float(self.best_step), **late}


def summarise(scores: Mapping[int, float], t_stop: int) -> Scores | None:
    """The scores of a run from those of its validations, by training step; None without a validation."""
    if not scores:
        return None
    best = max(scores.values())
    late = [score for step, score in scores.items() if late_after(t_stop) < step <= t_stop]
    return Scores(
        last=scores[max(scores)],
        best=best,
        best_step=min(step for step, score in scores.items() if score == best),
        final_mean=fmean(late) if late else None,
    )


def score_text(
    last: float | None, best: float | None = None, step: int | None = None, final_mean: float | None = None
) -> str:
    """`last 43.2 %, best 44.1 % (step 8), final mean 43.5 %`, without what is None."""
    parts = [] if last is None else [f"last {100 * last:.1f} %"]
    if best is not None:
        parts.append(f"best {100 * best:.1f} %" + ("" if step is None else f" (step {step})"))
    if final_mean is not None:
        parts.append(f"final mean {100 * final_mean:.1f} %")
    return ", ".join(parts)
