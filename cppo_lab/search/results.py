"""What a search has found: as lines for people, and as the file that the report reads.

An objective is a number from the validation curve of one run, averaged over the seeds. A curve has (training step,
score) for each validation, including the one before training; scores are fractions. A collapsed run is a result: its
missing validations are filled in with its last score, so that an early collapse is no advantage.
"""

import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from itertools import accumulate
from statistics import fmean
from typing import Any

import optuna
from optuna.importance import PedAnovaImportanceEvaluator
from optuna.trial import FrozenTrial, TrialState

from cppo_lab.errors import one_line
from cppo_lab.estimate import UNCERTAINTY, estimate
from cppo_lab.search.space import Tuning, describe, tidy
from cppo_lab.search.study import MLFLOW_ID, REASON, RUN_IDS
from cppo_lab.sweep.columns import aligned

FORMAT = 1
ENOUGH = 8  # complete trials needed for importances
BEST_SHARE = 0.25  # share of the best trials for importances; Optuna's 0.1 would be two or three of 24 trials
EVERY_SECONDS = 2.0  # between periodic updates
LAST = 3  # validations in the final score
_NAMES = {
    TrialState.COMPLETE: "complete",
    TrialState.PRUNED: "pruned",
    TrialState.FAIL: "failed",
    TrialState.RUNNING: "running",
}
_WORDS = {**_NAMES, TrialState.COMPLETE: "done", TrialState.FAIL: "FAILED", TrialState.WAITING: "left"}
_ORDER = ("done", "pruned", "FAILED", "running", "left")

Curve = Sequence[tuple[int, float]]


def _stability(scores: Sequence[float]) -> float:
    """1 minus the largest drop of the score below its best so far."""
    drops = [best - score for best, score in zip(accumulate(scores, max), scores, strict=True)]
    return 1.0 - max(drops)


OBJECTIVES: dict[str, Callable[[Sequence[float]], float]] = {
    "final_score": lambda scores: fmean(scores[-LAST:]),
    "best_score": max,
    "mean_score": fmean,  # the area under the curve per step
    "stability": _stability,
}


def whole_scores(curve: Curve, t_stop: int, every: int) -> list[float]:
    """The scores of a curve up to `t_stop`, validated every `every` steps; the last score fills in for missing ones.

    Raises ValueError for a curve without a point.
    """
    if not curve:
        raise ValueError("a run without a validation has no score")
    missing = (t_stop - curve[-1][0]) // every
    return [score for _, score in curve] + [curve[-1][1]] * missing


def values_of(objectives: Sequence[str], curves: Sequence[Curve], t_stop: int, every: int) -> list[float]:
    """Each objective, averaged over the runs whose curves are given."""
    scores = [whole_scores(curve, t_stop, every) for curve in curves]
    return [fmean(map(OBJECTIVES[name], scores)) for name in objectives]


def running_mean(earlier: Sequence[Curve], step: int, score: float, t_stop: int, every: int) -> float:
    """The mean over the seeds so far at `step`: `score` of the seed in training, and those of the `earlier` curves."""
    return fmean([*(whole_scores(curve, t_stop, every)[step // every] for curve in earlier), score])


def is_over(tuning: Tuning, trials: Sequence[FrozenTrial]) -> bool:
    """Whether every trial of the budget has ended."""
    return sum(trial.state.is_finished() for trial in trials) >= tuning.trials


def numbers_of(trials: Sequence[FrozenTrial], state: TrialState) -> str:
    """The numbers of the trials in `state`, for a message."""
    return ", ".join(str(trial.number) for trial in trials if trial.state is state)


def best_numbers(trials: Sequence[FrozenTrial]) -> list[int]:
    """The best trial, the earliest on ties; for several objectives the Pareto front. All objectives are maximised."""
    done = [trial for trial in trials if trial.state is TrialState.COMPLETE]
    if not done:
        return []
    if len(done[0].values) == 1:
        return [max(done, key=lambda trial: (trial.values[0], -trial.number)).number]
    return [
        trial.number for trial in done if not any(_dominates(other.values, trial.values) for other in done)
    ]


def _dominates(values: Sequence[float], others: Sequence[float]) -> bool:
    return values != others and all(a >= b for a, b in zip(values, others, strict=True))


def summarise(tuning: Tuning, study: optuna.Study, trials: Sequence[FrozenTrial]) -> dict[str, Any]:
    """The whole search as plain values."""
    search = tuning.search
    return {
        "format": FORMAT,
        "name": search.name,
        "study": tuning.study,
        "title": search.title,
        "question": search.question,
        "core": tuning.core,
        "model": tuning.model,
        "seeds": list(tuning.seeds),
        "sampler": search.search.sampler.name,
        "pruner": search.search.pruner.name,
        "objectives": list(search.search.objectives),
        "parameters": tuning.parameters(),
        "t_stop": tuning.t_stop,
        "trials": [_trial(trial) for trial in trials if trial.state in _NAMES],
        "importances": _importances(tuning, study, trials),
        "best": best_numbers(trials),
    }


def _trial(trial: FrozenTrial) -> dict[str, Any]:
    seconds = trial.duration.total_seconds() if trial.duration else None
    return {
        "number": trial.number,
        "state": _NAMES[trial.state],
        "params": {key: tidy(value) for key, value in trial.params.items()},
        "values": list(trial.values) if trial.state is TrialState.COMPLETE else None,
        "curve": [[step, score] for step, score in sorted(trial.intermediate_values.items())],
        "run_ids": trial.user_attrs.get(RUN_IDS, []),
        "mlflow_id": trial.user_attrs.get(MLFLOW_ID),
        "reason": trial.user_attrs.get(REASON, ""),
        "seconds": None if seconds is None else round(seconds, 1),
    }


def _importances(
    tuning: Tuning, study: optuna.Study, trials: Sequence[FrozenTrial]
) -> dict[str, dict[str, float]]:
    """Each parameter's importance for distinguishing the best trials (PED-ANOVA), per objective.

    None while too few trials are complete, or where they do not differ.
    """
    if sum(trial.state is TrialState.COMPLETE for trial in trials) < ENOUGH:
        return {}
    evaluator = PedAnovaImportanceEvaluator(target_quantile=BEST_SHARE)
    importances: dict[str, dict[str, float]] = {}
    for place, objective in enumerate(tuning.search.search.objectives):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # that the target is minimised, hence the sign
            shares = evaluator.evaluate(study, target=partial(_loss, place))
        total = sum(shares.values())
        if total > 0:
            importances[objective] = {key: value / total for key, value in shares.items()}
    return importances


def _loss(place: int, trial: FrozenTrial) -> float:
    return -float(trial.values[place])


def note(tuning: Tuning, trials: Sequence[FrozenTrial]) -> str:
    """The description that MLflow shows."""
    done = sum(trial.state.is_finished() for trial in trials)
    return "\n".join(
        [
            f"# {tuning.search.title}\n",
            f"{tuning.search.question}\n",
            "| parameter | values |\n| --- | --- |",
            *(f"| {key} | {describe(parameter)} |" for key, parameter in tuning.space.items()),
            f"\nStudy `{tuning.study}`: {done} of {tuning.trials} trials done.",
            *(f"Best so far: {_line(trials[number], tuning)}" for number in best_numbers(trials)),
        ]
    )


def _line(trial: FrozenTrial, tuning: Tuning) -> str:
    """An ended trial in a line: number and values with the point, or the reason why it has none."""
    if trial.state is not TrialState.COMPLETE:
        return f"trial {trial.number}: {_WORDS[trial.state]}: {_reason(trial)}"
    pairs = zip(tuning.search.search.objectives, trial.values, strict=True)
    values = ", ".join(f"{name} {value:.4f}" for name, value in pairs)
    point = (
        f"{key}={value:.4g}" if isinstance(value, float) else f"{key}={value}"
        for key, value in trial.params.items()
    )
    return f"trial {trial.number}: {values} at {' '.join(point)}"


def _reason(trial: FrozenTrial) -> str:
    return one_line(str(trial.user_attrs.get(REASON, "")))


def counts(tuning: Tuning, trials: Sequence[FrozenTrial]) -> dict[str, int]:
    """The number of trials by state; trials that are not created yet count as left."""
    numbers = Counter(_WORDS[trial.state] for trial in trials)
    numbers["left"] += tuning.trials - len(trials)
    return {word: numbers[word] for word in _ORDER if numbers[word]}


def counted(tuning: Tuning, trials: Sequence[FrozenTrial]) -> str:
    """The number of trials by state, as text."""
    parts = ", ".join(f"{number} {word}" for word, number in counts(tuning, trials).items())
    return f"{tuning.trials} trials ({parts})"


def summary_text(tuning: Tuning, trials: Sequence[FrozenTrial]) -> str:
    """The plan of a search as text; `trials` are those of its study."""
    search, spec = tuning.search, tuning.search.search
    width = max(len(key) for key in tuning.space)
    cost = ""
    if (estimated := estimate(tuning.base.run, tuning.base.layout)) is not None:
        hours = estimated.time.gpu_hours * len(tuning.seeds)
        cost = (
            f", about {hours:.0f} GPU-hours of an H100 80 GB ({hours * tuning.trials:.0f} for all trials without "
            f"pruning), good to a factor of {UNCERTAINTY:g} either way"
        )
    return "\n".join(
        [
            f"{search.name}: {search.title}. {search.question}".rstrip(),
            "",
            *(f"{key.ljust(width)}  {describe(parameter)}" for key, parameter in tuning.space.items()),
            "",
            f"maximises {', '.join(spec.objectives)} on {tuning.model}, averaged over the seeds "
            f"{', '.join(map(str, tuning.seeds))}; sampler {spec.sampler.name}, pruner {spec.pruner.name}",
            f"study {tuning.study}: {counted(tuning, trials)}",
            f"one trial: {len(tuning.seeds)} x {tuning.t_stop} training steps{cost}",
        ]
    )


def result_text(tuning: Tuning, trials: Sequence[FrozenTrial]) -> str:
    """What has become of a search: the best trials with their points, and the failures."""
    objectives, best = tuning.search.search.objectives, best_numbers(trials)
    lines = [f"{tuning.study}: {counted(tuning, trials)}"]
    if best:
        title = "best trial" if len(objectives) == 1 else "Pareto front"
        rows = [
            [str(number), *(f"{value:.4f}" for value in trials[number].values)]
            + [str(tidy(trials[number].params[key])) for key in tuning.space]
            for number in best
        ]
        lines += ["", f"{title}:", aligned(["trial", *objectives, *tuning.space], rows)]
    for trial in trials:
        if trial.state is TrialState.FAIL:
            lines.append(f"trial {trial.number} FAILED: {_reason(trial)}")
    return "\n".join(lines)


class Watch:
    """Prints a line for each trial that begins or ends, with the progress of the search, on standard error."""

    def __init__(self, tuning: Tuning, trials: Callable[[], list[FrozenTrial]]) -> None:
        self.tuning, self._trials, self._looked = tuning, trials, 0.0
        self._states = {trial.number: trial.state for trial in trials()}
        say(f"{tuning.study}: {counted(tuning, trials())}")

    def glance(self) -> None:
        """Update if the last update was some seconds ago."""
        if time.monotonic() - self._looked >= EVERY_SECONDS:
            self.look()

    def look(self) -> None:
        """Print what has changed since the last update."""
        trials = self._trials()
        for trial in trials:
            before = self._states.get(trial.number, TrialState.WAITING)
            self._states[trial.number] = trial.state
            if trial.state is before:
                continue
            if trial.state is TrialState.RUNNING:
                say(f"trial {trial.number}: started")
            elif trial.state.is_finished():
                say(f"{_line(trial, self.tuning)}  {self._overview(trials)}")
        self._looked = time.monotonic()

    def _overview(self, trials: Sequence[FrozenTrial]) -> str:
        """The number of ended trials, the best so far, and the estimated remaining time."""
        done = sum(trial.state.is_finished() for trial in trials)
        best, text = best_numbers(trials), f"[{done}/{self.tuning.trials}"
        if best and len(self.tuning.search.search.objectives) == 1:
            text += f", best {trials[best[0]].values[0]:.4f} of trial {best[0]}"
        elif best:
            text += f", {len(best)} on the Pareto front"
        times = [trial.duration.total_seconds() for trial in trials if trial.duration]
        if times:  # from the mean time of those that have ended, and how many run at once
            workers = max(1, sum(trial.state is TrialState.RUNNING for trial in trials))
            minutes = fmean(times) * (self.tuning.trials - len(times)) / workers / 60
            text += f", about {minutes:.0f} min left" if minutes >= 1 else ""
        return text + "]"


def say(line: str) -> None:
    """Print a line of progress."""
    print(line, file=sys.stderr, flush=True)
