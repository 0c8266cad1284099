"""The training loop of the embedded cores: runs that differ only in the seed, each from its start or checkpoint to its
end.
"""

import math
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Generic, TypeVar

import torch

from cppo_lab import schema
from cppo_lab.answers.records import Recording
from cppo_lab.cores import collapse_reason
from cppo_lab.cores.base import BEST_MODEL, CHECKPOINT, Ended, TogetherRun
from cppo_lab.cores.checkpoint import (
    Row,
    load_checkpoint,
    save_checkpoint,
)
from cppo_lab.cores.trainer import SteppedTrainer
from cppo_lab.errors import Interrupted, NotFinite, find_interruption
from cppo_lab.schema import Outcome
from cppo_lab.spec import canonical

Metrics = dict[str, float]
T = TypeVar("T", bound=SteppedTrainer)


def train_runs(
    runs: Sequence[TogetherRun[Any]],
    ended: Ended,
    make: Callable[[TogetherRun[Any]], T],
    step: Callable[[Sequence[T], int], Sequence[Metrics | Exception]],
    validate: Callable[[Sequence[T]], Sequence[Metrics]],
    checkpoint_seconds: float = 0.0,
) -> None:
    """Train runs that differ only in the seed, each with the same numbers as alone, see `cores.base.Together`.

    A run with a checkpoint in its folder continues from there; it waits for the run that is furthest behind. Every step
    and each validation is logged.

    Args:
        make: the trainer of a run.
        step: takes a training step, with its number, of each of the trainers: its metrics, or what ended the run
            (NotFinite before an update that would destroy its weights, or an error).
        validate: the validation scores of the trainers' current policies.
        checkpoint_seconds: minimum time between two checkpoints of a run, after the first.

    Raises ValueError for runs that differ otherwise.
    """
    if len({canonical(run.spec.model_copy(update={"seed": 0})) for run in runs}) != 1:
        raise ValueError("runs that are trained together must differ only in the seed")
    torch.set_num_threads(max(run.resources.threads for run in runs))
    courses: dict[int, _Course[T]] = {}  # of the runs that have not ended, by place

    def attempt(place: int, action: Callable[[], bool]) -> None:
        """Call `action` for the run at `place`, which says whether the run is over. An exception ends only that run."""
        try:
            if action():
                ended(place, courses.pop(place).end())
        except Interrupted as error:
            if error.number is not None:  # a signal ends all of them
                raise
            courses.pop(place, None)
            ended(place, error)
        except Exception as error:  # noqa: BLE001 - the others continue; the caller records it
            if (asked := find_interruption(error)) is not None:  # a signal interrupted `torch.save`
                raise asked from None
            courses.pop(place, None)
            ended(place, error)

    def enter(place: int) -> bool:
        courses[place] = _Course(make(runs[place]), runs[place], checkpoint_seconds)
        return False

    for place in range(len(runs)):
        attempt(place, partial(enter, place))
    new = [place for place, course in courses.items() if not course.history]
    first = dict(zip(new, validate([courses[place].trainer for place in new]) if new else (), strict=True))
    for place, course in list(courses.items()):
        attempt(place, partial(course.begin, first.get(place)))
    while courses:
        number = min(course.trainer.steps for course in courses.values()) + 1
        behind = [(place, course) for place, course in courses.items() if course.trainer.steps < number]
        taken: list[tuple[int, Metrics]] = []
        results = step([course.trainer for _, course in behind], number)
        for (place, course), metrics in zip(behind, results, strict=True):
            if isinstance(metrics, Exception):
                attempt(place, partial(course.broke, metrics))
            else:
                course.trainer.steps = number
                taken.append((place, metrics))
        scores: Sequence[Metrics] = [{}] * len(taken)
        if taken and number % runs[0].spec.validation.every == 0:
            scores = validate([courses[place].trainer for place, _ in taken])
        for (place, metrics), score in zip(taken, scores, strict=True):
            attempt(place, partial(courses[place].add, metrics | score))


def train_alone(run: TogetherRun[Any], train: Callable[[Sequence[TogetherRun[Any]], Ended], None]) -> Outcome:
    """Train one run by `train`, which trains several; raises what ended it."""
    ends: list[Outcome | BaseException] = []
    train([run], lambda _, how: ends.append(how))
    if isinstance(ends[-1], BaseException):
        raise ends[-1]
    return ends[-1]


class _Course(Generic[T]):
    """The course of one run from its start or checkpoint to its end: logging, checkpoints and early stopping.

    Call `begin`, then `add` after each step of the trainer until one of them says that the run is over, then `end`.
    """

    def __init__(self, trainer: T, run: TogetherRun[Any], checkpoint_seconds: float) -> None:
        self.trainer, self.spec, self.sink = trainer, run.spec, run.sink
        self.history: list[Row] = []
        self.reason = ""  # why it ended early
        self._score = schema.validation_metric(schema.MEAN, self.spec.validation.samples)
        self._pause, self._saved = checkpoint_seconds, -math.inf
        folder = run.resources.folder
        self._path, self._best = folder / CHECKPOINT, folder / BEST_MODEL
        self._maker = f"torch {torch.__version__} on {trainer.device.type}"
        validations = 1 + self.spec.training.t_stop // self.spec.validation.every
        self._recording = Recording(
            run.resources.answers, folder, validations, lambda name, content: run.sink.file(name, content)
        )
        checkpoint = load_checkpoint(self._path, self.spec.run_id, self._maker)
        if checkpoint is not None:
            trainer.load_state(checkpoint["trainer"])
            self.history = checkpoint["history"]

    def begin(self, scores: Metrics | None) -> bool:
        """Log the rows of the checkpoint or, if there is none, the scores before training. Whether it is over."""
        step = self.history[-1][0] if self.history else None
        self.sink.begin(step)
        self._recording.begin(step)
        if scores is not None:
            self.history = [(0, scores)]
            self._recording.add(self.trainer.answers())
        for name, value in self.trainer.tags.items():
            self.sink.tag(name, value)
        for row in self.history:
            self.sink.log(*row)
        return self._is_over()  # and if it was killed between writing its checkpoint and its best weights

    def add(self, metrics: Metrics) -> bool:
        """Log a step, with the scores of its validation if that was due, and write a checkpoint. Whether it is over."""
        self.history.append((self.trainer.steps, metrics))
        is_recorded = self._score not in metrics or self._recording.add(self.trainer.answers())
        self.sink.log(self.trainer.steps, metrics)
        if self._score not in metrics:
            return self.trainer.steps >= self.spec.training.t_stop
        # Otherwise a run that resumes from the checkpoint would lack these responses.
        if is_recorded and time.monotonic() - self._saved >= self._pause:
            self._save(self._path, self.history, self.trainer.state())
            self._saved = time.monotonic()
        return self._is_over()

    def _save(self, path: Path, history: list[Row], state: dict[str, Any]) -> None:
        save_checkpoint(path, self.spec.run_id, self._maker, history, state)

    def _is_over(self) -> bool:
        """Whether the run has reached its last step or has collapsed.

        Saves the weights for `cppo export` if the last row has the highest score after step 0 (on a tie, the later).
        """
        scores = [(step, row[self._score]) for step, row in self.history if self._score in row]
        step, last = scores[-1]
        is_best = step == self.history[-1][0] > 0 and last == max(score for number, score in scores if number)
        if is_best and (weights := self.trainer.weights()):
            self._save(self._best, self.history[-1:], {"model": weights})
        training = self.spec.training
        self.reason = collapse_reason(
            [score for _, score in scores], training.collapse_share, training.collapse_patience
        )
        return bool(self.reason) or self.trainer.steps >= training.t_stop

    def broke(self, error: Exception) -> bool:
        """The trainer could not take its next step: the run has collapsed, or the error is raised."""
        if not isinstance(error, NotFinite):
            raise error
        self.reason = f"{error} at step {self.trainer.steps + 1}"
        return True

    def end(self) -> Outcome:
        """Write the diagnostics; returns the outcome of the run."""
        for name, table in self.trainer.diagnostics.tables().items():
            self.sink.artifact(f"diagnostics/{name}.json", table)
        return Outcome(schema.COLLAPSED if self.reason else schema.DONE, self.history[-1][0], self.reason)
