"""Reports the trials on standard error while any worker runs them, and their results at the end."""

import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence

from optuna.trial import FrozenTrial, TrialState

from cppo_lab.errors import one_line
from cppo_lab.sweep.columns import aligned
from cppo_lab.sweep.search.space import Tuning, tidy
from cppo_lab.sweep.search.state import best_numbers, trial_line
from cppo_lab.sweep.search.study import REASON

EVERY_SECONDS = 2.0  # between periodic updates
WORDS = {
    TrialState.COMPLETE: "done",
    TrialState.PRUNED: "pruned",
    TrialState.FAIL: "FAILED",
    TrialState.RUNNING: "running",
    TrialState.WAITING: "left",
}


class Watch:
    """Prints a line for each trial that begins or ends, with the progress of the search."""

    def __init__(self, tuning: Tuning, trials: Callable[[], list[FrozenTrial]]) -> None:
        self.tuning, self._trials = tuning, trials
        self._states = {trial.number: trial.state for trial in trials()}
        self._looked = 0.0
        self._say(f"{tuning.study}: {counted(tuning, trials())}")

    def glance(self) -> None:
        """Update if the last update was some seconds ago."""
        if time.monotonic() - self._looked >= EVERY_SECONDS:
            self.look()

    def look(self) -> None:
        """Print what has changed since the last update."""
        trials = self._trials()
        for trial in trials:
            before = self._states.get(trial.number, TrialState.WAITING)
            if trial.state is before:
                continue
            self._states[trial.number] = trial.state
            if trial.state is TrialState.RUNNING:
                self._say(f"trial {trial.number}: started")
            elif trial.state.is_finished():
                self._say(f"{_ended(trial, self.tuning)}  {self._overview(trials)}")
        self._looked = time.monotonic()

    def _overview(self, trials: Sequence[FrozenTrial]) -> str:
        """The number of ended trials, the best so far, and the estimated remaining time."""
        done = sum(trial.state.is_finished() for trial in trials)
        best = best_numbers(trials)
        text = f"[{done}/{self.tuning.trials}"
        if best and len(self.tuning.search.search.objectives) == 1:
            text += f", best {trials[best[0]].values[0]:.4f} of trial {best[0]}"
        elif best:
            text += f", {len(best)} on the Pareto front"
        left = _minutes_left(self.tuning, trials)
        return text + (f", about {left:.0f} min left]" if left >= 1 else "]")

    def _say(self, text: str) -> None:
        print(text, file=sys.stderr, flush=True)


def _ended(trial: FrozenTrial, tuning: Tuning) -> str:
    if trial.state is TrialState.COMPLETE:
        return trial_line(trial, tuning)
    return f"trial {trial.number}: {WORDS[trial.state]}: {one_line(str(trial.user_attrs.get(REASON, '')))}"


def _minutes_left(tuning: Tuning, trials: Sequence[FrozenTrial]) -> float:
    """From the mean time of the trials that have ended and the number that run at once; 0 if unknown."""
    times = [
        (trial.datetime_complete - trial.datetime_start).total_seconds()
        for trial in trials
        if trial.datetime_complete and trial.datetime_start
    ]
    if not times:
        return 0.0
    workers = max(1, sum(trial.state is TrialState.RUNNING for trial in trials))
    return sum(times) / len(times) * (tuning.trials - len(times)) / workers / 60


def counts(tuning: Tuning, trials: Sequence[FrozenTrial]) -> dict[str, int]:
    """The number of trials by state; trials that are not created yet count as left."""
    found = Counter(WORDS[trial.state] for trial in trials)
    found["left"] += tuning.trials - len(trials)
    return {word: found[word] for word in dict.fromkeys(WORDS.values()) if found[word]}


def counted(tuning: Tuning, trials: Sequence[FrozenTrial]) -> str:
    """The number of trials by state, as text."""
    parts = ", ".join(f"{number} {word}" for word, number in counts(tuning, trials).items())
    return f"{tuning.trials} trials ({parts})"


def table(tuning: Tuning, trials: Sequence[FrozenTrial], numbers: Sequence[int]) -> str:
    """Trials as aligned text, with their values and points."""
    names = list(tuning.search.search.objectives)
    head = ["trial", *names, *tuning.space]
    rows = []
    for trial in trials:
        if trial.number in numbers:
            values = [f"{value:.4f}" for value in trial.values]
            rows.append([str(trial.number), *values, *(str(tidy(trial.params[key])) for key in tuning.space)])
    return aligned(head, rows)
