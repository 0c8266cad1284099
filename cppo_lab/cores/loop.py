"""How the embedded cores train: what their trainers have in common, and the loop over the steps of runs.

A trainer has an optimiser, the updates of a batch, and its state. The loop takes runs that differ only in the seed,
each from its start or checkpoint to its end.
"""

import inspect
import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, TypeVar

import torch
from torch import Tensor
from torch.optim import AdamW as TorchAdamW
from torch.optim import Optimizer

from cppo_lab import schema
from cppo_lab.answers.records import Recording, StepAnswers
from cppo_lab.core_records import BEST_MODEL, CHECKPOINT, Ended, TogetherRun
from cppo_lab.cores.checkpoint import Row, load_checkpoint, save_checkpoint
from cppo_lab.cores.rule_loss import Diagnostics, ObservedTokens, RuleLoss
from cppo_lab.errors import Interrupted, NotFinite, describe, find_interruption, say
from cppo_lab.maths.mismatch import relative_logprob_error
from cppo_lab.maths.rules import group_advantages
from cppo_lab.maths.tokens import RuleOutput, Tokens, merge, summarise
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


class ObjectiveResult(NamedTuple):
    """The results for a minibatch. Only `loss` and the output's objective have a gradient."""

    loss: Tensor  # scalar
    output: RuleOutput
    seen: ObservedTokens
    mismatch: tuple[Tensor, Tensor]  # the two sums of the relative log-prob error


class SteppedTrainer(ABC):
    """Trains a run step by step. `steps` counts the training steps taken."""

    GENERATORS: ClassVar[tuple[str, ...]]  # the attributes that are random generators
    # Of schema.TAGS_OF_CORES; known only once its trainer exists.
    tags: Mapping[str, str] = MappingProxyType({})

    def __init__(
        self,
        spec: RunSpec,
        device: torch.device,
        parameters: Iterable[Tensor],
        names: Callable[[list[int]], list[str]],
    ) -> None:
        """`names`: the readable text of each of some token ids."""
        self.spec, self.device, self.names, self.steps = spec, device, names, 0
        self.loss = RuleLoss(spec)
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
        settings = self.spec.advantage
        advantages, keep = group_advantages(rewards, groups, normalize_std=settings.normalize_std)
        share = 1 - float(keep.to(advantages.dtype).mean())
        return advantages, keep if settings.drop_zero_variance else torch.ones_like(keep), share

    def result(self, tokens: Tokens, mu_logp: Tensor, ids: Tensor) -> ObjectiveResult:
        """The results for `tokens` with these ids; `mu_logp` is log mu [B, T] of them."""
        loss, output = self.loss(tokens, mu_logp)
        logp, valid = tokens.logp.detach(), tokens.valid
        assert tokens.origin_logp is not None
        seen = ObservedTokens(
            logp, mu_logp, tokens.required_divergence, tokens.advantages, valid, ids, tokens.origin_logp
        )
        return ObjectiveResult(loss, output, seen, relative_logprob_error(logp, mu_logp, valid))

    def updates(
        self, keep: Tensor, objective: Callable[[Tensor], ObjectiveResult], watched: int | None
    ) -> dict[str, float]:
        """One optimiser step per minibatch of the responses that `keep` [B] marks; returns the metrics.

        Groups stay whole, dropped groups leave their minibatch smaller. `watched`: the training step, if it enters the
        diagnostics. Raises NotFinite before an update that would destroy the parameters, and if the last update has.
        """
        size = self.spec.batch.minibatch_prompts * self.spec.batch.responses
        stats, losses, norms, error = [], [], [], [0.0, 0.0]
        for part in torch.arange(len(keep), device=keep.device).split(size):
            # PAPER: the denominators after dropping a group are not stated. Here it is removed from them, too, as if it
            # had not been sampled; the same for every rule.
            rows = part[keep[part]]
            if len(rows) == 0:
                continue
            loss, output, seen, mismatch = objective(rows)
            if watched is not None:
                self.diagnostics.see(watched, seen, self.names)
            norms.append(self._descend(loss))
            stats.append(output.stats)
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
        norm = float(torch.nn.utils.clip_grad_norm_(self.trained, self.spec.optim.clip_grad_norm))
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
    courses = [_course(make, run, partial(ended, i), checkpoint_seconds) for i, run in enumerate(runs)]
    trainers: dict[int, T] = {}  # of the runs that have not ended, by place

    def proceed(place: int, go: Callable[[], T]) -> None:
        """Let a run go on to its next step or its end. An exception ends only that run."""
        try:
            trainers[place] = go()
            return
        except StopIteration:
            trainers.pop(place, None)
            return
        except Interrupted as error:
            if error.number is not None:  # a signal ends all of them
                raise
            failure: BaseException = error
        except Exception as error:  # noqa: BLE001 - the others continue; the caller records it
            if (asked := find_interruption(error)) is not None:  # a signal interrupted `torch.save`
                raise asked from None
            failure = error
        trainers.pop(place, None)
        ended(place, failure)

    for place, course in enumerate(courses):
        proceed(place, partial(next, course))
    new = {place: trainer for place, trainer in trainers.items() if not trainer.steps}
    for place, scores in zip(new, validate([*new.values()]) if new else (), strict=True):
        proceed(place, partial(courses[place].send, scores))
    while trainers:
        number = min(trainer.steps for trainer in trainers.values()) + 1
        behind = {place: trainer for place, trainer in trainers.items() if trainer.steps < number}
        results = dict(zip(behind, step([*behind.values()], number), strict=True))
        taken = {place: metrics for place, metrics in results.items() if not isinstance(metrics, Exception)}
        for place in taken:
            trainers[place].steps = number
        if taken and number % runs[0].spec.validation.every == 0:
            for place, scores in zip(taken, validate([trainers[place] for place in taken]), strict=True):
                results[place] = taken[place] | scores
        for place, metrics in results.items():
            proceed(place, partial(courses[place].send, metrics))


def train_alone(run: TogetherRun[Any], train: Callable[[Sequence[TogetherRun[Any]], Ended], None]) -> Outcome:
    """Train `run` by `train`, which trains several; raises what ended it."""
    ends: list[Outcome | BaseException] = []
    train([run], lambda _, how: ends.append(how))
    if isinstance(ends[-1], BaseException):
        raise ends[-1]
    return ends[-1]


def _course(
    make: Callable[[TogetherRun[Any]], T],
    run: TogetherRun[Any],
    ended: Callable[[Outcome], None],
    checkpoint_seconds: float,
) -> Generator[T, Metrics | Exception, None]:
    """The course of a run from its start or checkpoint to its end: logging, checkpoints and early stopping.

    Yields the trainer where it is to be validated before training, and where it is to take its next step; takes the
    scores, and the step's metrics, with the scores of its validation if that was due, or what ended the run.
    """
    spec, sink, folder, training = run.spec, run.sink, run.resources.folder, run.spec.training
    trainer = make(run)
    maker = f"torch {torch.__version__} on {trainer.device.type}"
    validated = schema.validation_metric(schema.MEAN, spec.validation.samples)
    history: list[Row] = []
    checkpoint = load_checkpoint(folder / CHECKPOINT, spec.run_id, maker)
    if checkpoint is not None:
        try:
            trainer.load_state(checkpoint["trainer"])
            history = [(step, dict(row)) for step, row in checkpoint["history"]]
            if [step for step, _ in history] != list(range(trainer.steps + 1)):
                raise ValueError("its rows are not those of its steps")
        except (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
            say(f"checkpoint {folder / CHECKPOINT} is ignored, training starts over: {describe(error)}")
            trainer, history = make(run), []
    recording = Recording(
        run.resources.answers,
        folder,
        1 + training.t_stop // spec.validation.every,
        lambda name, content: sink.file(name, content),
    )
    begun = history[-1][0] if history else None
    sink.begin(begun)
    recording.begin(begun)
    for name, value in trainer.tags.items():
        sink.tag(name, value)
    for row in history:
        sink.log(*row)

    def collapse() -> str:
        """Why the run has collapsed, or "", by the scores up to the last row.

        Saves the weights for `cppo export` if the last row has the highest score after step 0 (on a tie, the later).
        """
        scores = [(step, row[validated]) for step, row in history if validated in row]
        step, last = scores[-1]
        is_best = step == history[-1][0] > 0 and last == max(score for number, score in scores if number)
        if is_best and (weights := trainer.weights()):
            save_checkpoint(folder / BEST_MODEL, spec.run_id, maker, history[-1:], {"model": weights})
        return schema.collapse_reason(
            [score for _, score in scores], training.collapse_share, training.collapse_patience
        )

    # A run that is resumed may have been killed between writing its checkpoint and its best weights.
    reason, saved = collapse() if history else "", -math.inf
    while not reason and (not history or trainer.steps < training.t_stop):
        metrics = yield trainer
        if isinstance(metrics, NotFinite):
            reason = f"{metrics} at step {trainer.steps + 1}"
            break
        if isinstance(metrics, Exception):
            raise metrics
        history.append((trainer.steps, metrics))
        is_recorded = validated in metrics and recording.add(trainer.answers())
        sink.log(trainer.steps, metrics)
        # Otherwise a run that resumes from the checkpoint would lack these responses.
        if is_recorded and trainer.steps and time.monotonic() - saved >= checkpoint_seconds:
            save_checkpoint(folder / CHECKPOINT, spec.run_id, maker, history, trainer.state())
            saved = time.monotonic()
        if validated in metrics:
            reason = collapse()
    for name, table in trainer.diagnostics.tables().items():
        sink.artifact(f"diagnostics/{name}.json", table)
    ended(Outcome(schema.COLLAPSED if reason else schema.DONE, history[-1][0], reason))
