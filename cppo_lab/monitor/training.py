"""A run's training as lines of text, one per step, for every core."""

from cppo_lab.runs.events import StepEvent
from cppo_lab.runs.following import score_of

_SCORE, _REWARD, _MASKED, _SECONDS = "score", "reward", "masked", "seconds"
_COLUMNS = {  # metric -> its label here, its format, and its unit
    "train/reward": (_REWARD, "{:6.3f}", ""),
    "rule/masked_fraction": (_MASKED, "{:6.2f}", " %"),
    "perf/step_seconds": (_SECONDS, "{:8.2f}", " s"),
}


def training_line(row: StepEvent, t_stop: int | None) -> str:
    """`step   10/50  score  43.2 %  reward  0.412  masked   2.10 %  seconds     1.32 s`.

    `score` is the mean over the benchmarks, present only if the step was validated. Metrics that were not logged are
    omitted.
    """
    last = "?" if t_stop is None else str(t_stop)
    score = score_of(row)
    parts = [
        f"step {row.step:>{len(last)}}/{last}",
        " " * 14 if score is None else f"score {100 * score:5.1f} %",
    ]
    for name, (column, form, unit) in _COLUMNS.items():
        if name in row.metrics:
            value = row.metrics[name] * (100 if unit == " %" else 1)
            parts.append(f"{column} {form.format(value)}{unit}")
    return "  ".join(parts).rstrip()
