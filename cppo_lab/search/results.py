"""What a search has found: as lines for people, and as the file that the report reads.

An objective is a number from the validation curve of one run, averaged over the seeds. A curve has (training step,
score) for each validation, including the one before training; scores are fractions.
"""

import time
from collections import Counter
from collections.abc import Callable, Sequence
from statistics import fmean
from typing import Any

from optuna.trial import FrozenTrial, TrialState

from cppo_lab.errors import one_line, say
from cppo_lab.search.space import Tuning, describe, tidy
from cppo_lab.search.study import MLFLOW_ID, REASON, RUN_IDS
from cppo_lab.spec.job import estimate
from cppo_lab.sweep.columns import aligned
from cppo_lab.sweep.cost import ESTIMATE
from cppo_lab.sweep.table import interval
from cppo_lab.tracking.search_record import OBJECTIVES, filled

FORMAT = 1
EVERY_SECONDS = 2.0  # between periodic updates
_NAMES = {
    TrialState.COMPLETE: "complete",
    TrialState.PRUNED: "pruned",
    TrialState.FAIL: "failed",
    TrialState.RUNNING: "running",
}
# In the order in which they are listed.
_WORDS = {
    TrialState.COMPLETE: "done",
    TrialState.PRUNED: "pruned",
    TrialState.FAIL: "FAILED",
    TrialState.RUNNING: "running",
    TrialState.WAITING: "left",
}


def values_of(
    objectives: Sequence[str], curves: Sequence[Sequence[tuple[Any, ...]]], t_stop: int, every: int
) -> list[float]:
    """Each objective, averaged over the runs whose curves are given."""
    scores = [filled(curve, t_stop, every) for curve in curves]
    return [fmean(map(OBJECTIVES[name], scores)) for name in objectives]


def ended(trials: Sequence[FrozenTrial]) -> int:
    """How many of the trials have ended."""
    return sum(trial.state.is_finished() for trial in trials)


def is_over(tuning: Tuning, trials: Sequence[FrozenTrial]) -> bool:
    """Whether every trial of the budget has ended."""
    return ended(trials) >= tuning.trials


def numbers_of(trials: Sequence[FrozenTrial], state: TrialState) -> str:
    """The numbers of the trials in `state`, for a message."""
    return ", ".join(str(trial.number) for trial in trials if trial.state is state)


def best_numbers(trials: Sequence[FrozenTrial]) -> list[int]:
    """The best trial, the earliest on ties; for several objectives the Pareto front. All objectives are maximised."""
    values = {trial.number: trial.values for trial in trials if trial.state is TrialState.COMPLETE}
    front = [
        number
        for number, score in values.items()
        if not any(other != score and all(map(float.__ge__, other, score)) for other in values.values())
    ]
    return front if front and len(values[front[0]]) > 1 else front[:1]


def summarise(tuning: Tuning, trials: Sequence[FrozenTrial]) -> dict[str, Any]:
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
        "trials": [
            {
                "number": trial.number,
                "state": _NAMES[trial.state],
                "params": {key: tidy(value) for key, value in trial.params.items()},
                "values": trial.values if trial.state is TrialState.COMPLETE else None,
                "curve": sorted(trial.intermediate_values.items()),
                "run_ids": trial.user_attrs.get(RUN_IDS, []),
                "mlflow_id": trial.user_attrs.get(MLFLOW_ID),
                "reason": trial.user_attrs.get(REASON, ""),
                "seconds": round(trial.duration.total_seconds(), 1) if trial.duration else None,
            }
            for trial in trials
            if trial.state in _NAMES
        ],
        "best": best_numbers(trials),
    }


def note(tuning: Tuning, trials: Sequence[FrozenTrial]) -> str:
    """The description that MLflow shows."""
    return "\n".join(
        [
            f"# {tuning.search.title}\n",
            f"{tuning.search.question}\n",
            "| parameter | values |\n| --- | --- |",
            *(f"| {key} | {describe(parameter)} |" for key, parameter in tuning.space.items()),
            f"\nStudy `{tuning.study}`: {ended(trials)} of {tuning.trials} trials done.",
            *(f"Best so far: {_line(trials[number], tuning)}" for number in best_numbers(trials)),
        ]
    )


def _line(trial: FrozenTrial, tuning: Tuning) -> str:
    """An ended trial in a line: number and values with the point, or the reason why it has none."""
    if trial.state is not TrialState.COMPLETE:
        return f"trial {trial.number}: {_WORDS[trial.state]}: {_reason(trial)}"
    pairs = zip(tuning.search.search.objectives, trial.values, strict=True)
    values = ", ".join(f"{name} {value:.4f}" for name, value in pairs)
    point = " ".join(
        f"{key}={value:.4g}" if isinstance(value, float) else f"{key}={value}"
        for key, value in trial.params.items()
    )
    return f"trial {trial.number}: {values} at {point}"


def _reason(trial: FrozenTrial) -> str:
    return one_line(str(trial.user_attrs.get(REASON, "")))


def counts(tuning: Tuning, trials: Sequence[FrozenTrial]) -> dict[str, int]:
    """The number of trials by state; trials that are not created yet count as left."""
    numbers = Counter(_WORDS[trial.state] for trial in trials)
    numbers["left"] += tuning.trials - len(trials)
    return {word: numbers[word] for word in _WORDS.values() if numbers[word]}


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
        trial, study = (interval([(total, ESTIMATE)]) for total in (hours, hours * tuning.trials))
        cost = f", {trial} GPU-hours ({study} for all trials without pruning)"
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
            if trial.state is self._states.get(trial.number, TrialState.WAITING):
                continue
            if trial.state is TrialState.RUNNING:
                say(f"trial {trial.number}: started")
            elif trial.state.is_finished():
                say(f"{_line(trial, self.tuning)}  {self._overview(trials)}")
        self._states = {trial.number: trial.state for trial in trials}
        self._looked = time.monotonic()

    def _overview(self, trials: Sequence[FrozenTrial]) -> str:
        """The number of ended trials, and the best so far."""
        best, text = best_numbers(trials), f"[{ended(trials)}/{self.tuning.trials}"
        if len(self.tuning.search.search.objectives) > 1:
            text += f", {len(best)} on the Pareto front" if best else ""
        elif best:
            text += f", best {trials[best[0]].values[0]:.4f} of trial {best[0]}"
        return text + "]"
