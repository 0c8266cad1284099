"""Runs of the exact core: one alone, or several that differ only in the seed."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch

from cppo_lab.cores.base import Ended, MetricSink, Resources, TogetherRun
from cppo_lab.cores.collapse import NotFinite
from cppo_lab.cores.exact.trainer import (
    ExactTrainer,
    Metrics,
    require_alike,
    step_together,
    validate_together,
)
from cppo_lab.cores.loop import Course, run
from cppo_lab.schema import Outcome
from cppo_lab.signals import Interrupted, find_interruption
from cppo_lab.spec import ExactRun

# Of joint training. Writing a checkpoint at each validation would take longer than a run's share of training.
CHECKPOINT_SECONDS = 10.0


def train(spec: ExactRun, sink: MetricSink, resources: Resources) -> Outcome:
    """Train `spec` on the CPU to its last step or to its collapse, see `cores.loop.run`."""
    torch.set_num_threads(resources.threads)
    return run(ExactTrainer(spec), spec, sink, resources)


@dataclass
class _Member:
    """One of the runs, with its index in the given order."""

    place: int
    trainer: ExactTrainer
    course: Course


def train_together(runs: Sequence[TogetherRun[ExactRun]], ended: Ended) -> None:
    """Train runs that differ only in the seed, each with the same numbers as alone, see `cores.base.Together`.

    Runs that resume from checkpoints of different steps wait for the one that is furthest behind.
    Raises ValueError for runs that differ otherwise.
    """
    require_alike([one.spec for one in runs])
    torch.set_num_threads(max(one.resources.threads for one in runs))
    going = _Going(ended)
    for place, one in enumerate(runs):
        going.attempt(place, partial(_enter, going, place, one))
    new = [member for member in going.members if not member.course.history]
    scores = validate_together([member.trainer.learner for member in new]) if new else []
    first = {member.place: found for member, found in zip(new, scores, strict=True)}
    for member in list(going.members):
        going.of(member, partial(member.course.begin, partial(dict, first.get(member.place, {}))))
    while going.members:
        _advance(going)


class _Going:
    """The runs that have not ended. An exception of one of them ends only that run."""

    def __init__(self, ended: Ended) -> None:
        self.members: list[_Member] = []
        self._ended = ended

    def attempt(self, place: int, action: Callable[[], None]) -> bool:
        """Call `action` for the run at `place`; False if it ended by an error or was cancelled."""
        try:
            action()
        except Interrupted as error:
            if error.number is not None:  # a signal ends all of them
                raise
            self._end(place, error)
        except Exception as error:  # noqa: BLE001 - the others continue; the caller records it
            if (asked := find_interruption(error)) is not None:  # a signal interrupted `torch.save`
                raise asked from None
            self._end(place, error)
        else:
            return True
        return False

    def of(self, member: _Member, action: Callable[[], None]) -> None:
        """The same for a run that has begun; ends it if it is over."""
        if self.attempt(member.place, action) and member.course.over:
            self.attempt(member.place, lambda: self._end(member.place, member.course.end()))

    def _end(self, place: int, how: Outcome | BaseException) -> None:
        self.members = [member for member in self.members if member.place != place]
        self._ended(place, how)


def _enter(going: _Going, place: int, one: TogetherRun[ExactRun]) -> None:
    trainer = ExactTrainer(one.spec)
    course = Course(trainer, one.spec, one.sink, one.resources, CHECKPOINT_SECONDS)
    going.members.append(_Member(place, trainer, course))


def _advance(going: _Going) -> None:
    """One training step of those that are furthest behind."""
    step = min(member.trainer.steps for member in going.members) + 1
    behind = [member for member in going.members if member.trainer.steps == step - 1]
    found = step_together([member.trainer.learner for member in behind], step)
    taken: list[tuple[_Member, Metrics]] = []
    for member, metrics in zip(behind, found, strict=True):
        if isinstance(metrics, NotFinite):
            going.of(member, partial(member.course.broke, metrics))
        elif isinstance(metrics, Exception):
            going.attempt(member.place, partial(_raise, metrics))
        else:
            member.trainer.steps = step
            taken.append((member, metrics))
    validated = bool(taken) and step % taken[0][0].course.spec.validation.every == 0
    learners = [member.trainer.learner for member, _ in taken]
    scores = validate_together(learners) if validated else [{} for _ in taken]
    for (member, metrics), score in zip(taken, scores, strict=True):
        going.of(member, partial(member.course.add, metrics, partial(dict, score)))


def _raise(error: Exception) -> None:
    raise error
