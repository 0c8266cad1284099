"""How the embedded cores train: what their trainers have in common, and the loop over the steps of runs.

A trainer has an optimiser, the updates of a batch, and its state. The loop takes runs that differ only in the seed,
each from its start or checkpoint to its end.
"""

import inspect
import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

import torch
from torch import Tensor
from torch.optim import AdamW as TorchAdamW
from torch.optim import Optimizer

from cppo_lab import schema
from cppo_lab.answers.records import Recording, StepAnswers
from cppo_lab.core_records import BEST_MODEL, CHECKPOINT, Ended, TogetherRun
from cppo_lab.cores.checkpoint import Row, load_checkpoint, save_checkpoint
from cppo_lab.cores.rule_loss import Diagnostics
from cppo_lab.errors import Interrupted, NotFinite, describe, find_interruption, say
from cppo_lab.maths.rules import group_advantages
from cppo_lab.maths.tokens import merge, summarise
from cppo_lab.schema import Outcome
from cppo_lab.spec import RunSpec, canonical


class AdamW(TorchAdamW):
    """`torch.optim.AdamW`: the same numbers, the same state, for code that is not compiled by `torch.compile`.

    torch decorates an optimiser's methods for its compiler, and the decorators import `torch._dynamo` at their first
    call. That costs 1.1 s of CPU time in each process that trains, and a small run takes a few seconds.
    """

    if not TYPE_CHECKING:
        step = torch.no_grad()(inspect.unwrap(TorchAdamW.step))
        # Without torch's entry for its profiler, which takes as long as the step of a small model.
        step.hooked = True
        add_param_group = inspect.unwrap(Optimizer.add_param_group)
        zero_grad = inspect.unwrap(Optimizer.zero_grad)
        state_dict = inspect.unwrap(Optimizer.state_dict)
        load_state_dict = inspect.unwrap(Optimizer.load_state_dict)


# The loss of a minibatch, the rule's sums (maths/tokens.py), and the two sums of the relative log-prob error.
Minibatch = tuple[Tensor, dict[str, Tensor], tuple[Tensor, Tensor]]


class SteppedTrainer(ABC):
    """Trains a run step by step. `steps` counts the training steps taken."""

    GENERATORS: ClassVar[tuple[str, ...]]  # the attributes that are random generators
    # Of schema.TAGS_OF_CORES; known only once its trainer exists.
    tags: Mapping[str, str] = MappingProxyType({})

    def __init__(self, spec: RunSpec, device: torch.device, parameters: Iterable[Tensor]) -> None:
        self.run, self.device, self.steps = spec, device, 0
        self.trained = list(parameters)
        optim = spec.optim
        self.optimizer = AdamW(
            self.trained,
            lr=optim.learning_rate,
            betas=(optim.beta1, optim.beta2),
            weight_decay=optim.weight_decay,
            fused=True,
        )
        self.diagnostics = Diagnostics(spec.rule, spec.rollout.max_response_length)

    def answers(self) -> StepAnswers | None:
        """The responses kept from the last validation and its training step, returned once; None if there are none."""
        return None

    def weights(self) -> dict[str, Tensor]:
        """The policy's parameters, for `cppo export`; empty if they are not kept."""
        return {}

    @abstractmethod
    def policy_state(self) -> dict[str, Any]:
        """The entries of the state that are the policy's: its weights, and older ones for rollouts that are stale."""

    @abstractmethod
    def load_policy(self, state: dict[str, Any]) -> None:
        """Continue with the policy of `state`."""

    def graded(self, rewards: Tensor, groups: Tensor) -> tuple[Tensor, Tensor, float]:
        """Advantages [B], which responses their groups give a learning signal [B], and the share that they do not."""
        settings = self.run.advantage
        advantages, keep = group_advantages(rewards, groups, normalize_std=settings.normalize_std)
        share = 1 - float(keep.to(advantages.dtype).mean())
        return advantages, keep if settings.drop_zero_variance else torch.ones_like(keep), share

    def updates(self, keep: Tensor, objective: Callable[[Tensor], Minibatch]) -> dict[str, float]:
        """One optimiser step per minibatch of the responses that `keep` [B] marks; returns the metrics.

        Groups stay whole, dropped groups leave their minibatch smaller. Raises NotFinite before an update that would
        destroy the parameters, and if the last update has.
        """
        size = self.run.batch.minibatch_prompts * self.run.batch.responses
        stats, losses, norms, error = [], [], [], [0.0, 0.0]
        for part in torch.arange(len(keep), device=keep.device).split(size):
            # PAPER: the denominators after dropping a group are not stated. Here it is removed from them, too, as if it
            # had not been sampled; the same for every rule.
            rows = part[keep[part]]
            if len(rows) == 0:
                continue
            loss, sums, mismatch = objective(rows)
            norms.append(self._descend(loss))
            stats.append(sums)
            losses.append(float(loss.detach()))
            error = [total + float(part) for total, part in zip(error, mismatch, strict=True)]
        self.diagnostics.end_step()
        if not losses:
            return {}  # every group had equal rewards: nothing to learn from this batch
        if not all(bool(part.isfinite().all()) for part in self.trained):
            raise NotFinite("weights are not finite")
        return {f"rule/{name}": value for name, value in summarise(merge(stats)).items()} | {
            "train/loss": sum(losses) / len(losses),
            "train/grad_norm": sum(norms) / len(norms),
            "train/relative_logprob_error": error[0] / error[1] if error[1] else 0.0,
        }

    def _descend(self, loss: Tensor) -> float:
        """One optimiser step; returns the gradient norm before clipping."""
        for part in self.trained:  # `zero_grad` would make an entry for torch's profiler, too
            part.grad = None
        loss.backward()
        norm = float(torch.nn.utils.clip_grad_norm_(self.trained, self.run.optim.clip_grad_norm))
        if not norm < float("inf"):
            raise NotFinite(f"gradient norm is {norm}")
        self.optimizer.step()
        return norm

    def state(self) -> dict[str, Any]:
        """The state that determines the rest of this run."""
        return {
            "steps": self.steps,
            "optimizer": self.optimizer.state_dict(),
            "diagnostics": self.diagnostics.state(),
            **self.policy_state(),
            **{name: getattr(self, name).get_state() for name in self.GENERATORS},
        }

    def load_state(self, state: dict[str, Any]) -> None:
        """Continue from `state`."""
        self.steps = state["steps"]
        self.optimizer.load_state_dict(state["optimizer"])
        self.diagnostics.load_state(state["diagnostics"])
        self.load_policy(state)
        for name in self.GENERATORS:
            getattr(self, name).set_state(state[name].cpu())


Metrics = dict[str, float]


def validation_scores(spec: RunSpec, means: Sequence[float]) -> Metrics:
    """The metrics of a validation: the mean score of each benchmark, and their unweighted mean."""
    names, scores = (*spec.data.benchmarks, schema.MEAN), (*means, sum(means) / len(means))
    samples = spec.validation.samples
    return {schema.validation_metric(name, samples): score for name, score in zip(names, scores, strict=True)}


T = TypeVar("T", bound=SteppedTrainer)


def train_runs(
    runs: Sequence[TogetherRun[Any]],
    ended: Ended,
    make: Callable[[TogetherRun[Any]], T],
    step: Callable[[Sequence[T], int], Sequence[Metrics | Exception]],
    validate: Callable[[Sequence[T]], Sequence[Metrics]],
    checkpoint_seconds: float = 0.0,
) -> None:
    """Train runs that differ only in the seed, each with the same numbers as alone, see `core_records.Together`.

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
        courses[place] = _Course(make, runs[place], checkpoint_seconds)
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
    """Train `run` by `train`, which trains several; raises what ended it."""
    ends: list[Outcome | BaseException] = []
    train([run], lambda _, how: ends.append(how))
    if isinstance(ends[-1], BaseException):
        raise ends[-1]
    return ends[-1]


class _Course(Generic[T]):
    """The course of a run from its start or checkpoint to its end: logging, checkpoints and early stopping.

    Call `begin`, then `add` after each step of the trainer until a call says that the run is over, then `end`.
    """

    def __init__(
        self, make: Callable[[TogetherRun[Any]], T], run: TogetherRun[Any], checkpoint_seconds: float
    ) -> None:
        self.trainer, self.spec, self.sink = make(run), run.spec, run.sink
        self.history: list[Row] = []
        self.reason = ""  # why it ended early
        self._score = schema.validation_metric(schema.MEAN, self.spec.validation.samples)
        self._pause, self._saved = checkpoint_seconds, -math.inf
        folder = run.resources.folder
        self._path, self._best = folder / CHECKPOINT, folder / BEST_MODEL
        self._maker = f"torch {torch.__version__} on {self.trainer.device.type}"
        validations = 1 + self.spec.training.t_stop // self.spec.validation.every
        self._recording = Recording(
            run.resources.answers, folder, validations, lambda name, content: run.sink.file(name, content)
        )
        checkpoint = load_checkpoint(self._path, self.spec.run_id, self._maker)
        if checkpoint is None:
            return
        try:
            self.trainer.load_state(checkpoint["trainer"])
            self.history = [(step, dict(row)) for step, row in checkpoint["history"]]
            if [step for step, _ in self.history] != list(range(self.trainer.steps + 1)):
                raise ValueError("its rows are not those of its steps")
        except (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
            say(f"checkpoint {self._path} is ignored, training starts over: {describe(error)}")
            self.trainer, self.history = make(run), []

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
        self.reason = schema.collapse_reason(
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
