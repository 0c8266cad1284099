"""The embedded trainer: group-relative policy optimisation with any rule of the registry.

One training step samples a rollout batch, grades it, and takes one optimiser step per minibatch. The rollout
policy mu is the sampler's log-probability, never a recomputation by the training forward.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from cppo_lab import schema
from cppo_lab.answers.records import StepAnswers
from cppo_lab.cores.base import BEST_MODEL, Ended, MetricSink, Resources, TogetherRun, require_same_task
from cppo_lab.cores.checkpoint import read_checkpoint, same_form
from cppo_lab.cores.diagnostics import mismatch_of_step
from cppo_lab.cores.loop import Minibatch, SteppedTrainer, train_alone, train_runs
from cppo_lab.cores.mini.answers import MiniAnswerRecorder
from cppo_lab.cores.mini.model import Rollout, RolloutPolicy, Transformer, sample
from cppo_lab.cores.mini.objective import Objective
from cppo_lab.cores.mini.tasks import (
    Problems,
    Task,
    identities,
    make_task,
    sample_training_problems,
    validation_sets,
)
from cppo_lab.cores.mini.warm_start import load_warm_start
from cppo_lab.cores.rule_loss import own_permutation
from cppo_lab.errors import NotFinite, UserError
from cppo_lab.files import open_below
from cppo_lab.schema import Outcome
from cppo_lab.spec import MiniRun


@dataclass(frozen=True)
class GradedRollout:
    """A graded rollout batch; `keep` marks the responses whose group has a learning signal."""

    rollout: Rollout
    advantages: Tensor  # [B]
    keep: Tensor  # [B] bool
    permutation: Tensor | None  # [B, T] of each response's positions, for the rule that shuffles weights
    reward: float
    zero_variance_share: float


class Trainer(SteppedTrainer):
    """Model and random generators of a run."""

    GENERATORS = ("problems", "sampling", "shuffling")

    def __init__(self, spec: MiniRun, resources: Resources) -> None:
        self.spec, self.mismatch, self.doing = spec, resources.mismatch, resources.doing
        self.task = make_task(spec.data)
        self.tokenizer = self.task.tokenizer
        seeded = spec.model.for_seed(spec.seed)
        torch.manual_seed(seeded.start_seed)  # decides the initial weights of a first warm start only
        context = spec.data.prompt_length + spec.rollout.max_response_length
        kind = "cuda" if torch.cuda.is_available() else "cpu"
        device = torch.device(kind if resources.device == "auto" else resources.device)
        self.model = Transformer(spec.model.architecture, self.tokenizer.vocabulary, context).to(device)
        start = load_warm_start(seeded, spec.data, self.model, resources.shared / "warm_starts", self.doing)
        self.tags = {schema.TAG_WARM_START: start}
        super().__init__(spec, device, self.model.parameters())
        self.policy = RolloutPolicy(self.model, spec.rollout.staleness, spec.rollout.precision)
        self.objective = Objective(spec, self.model, self.tokenizer)
        self.validation_sets = validation_sets(self.task)
        self.held_out = identities(self.validation_sets)
        settings = resources.answers
        self._record = (
            MiniAnswerRecorder(spec, self.task, self.validation_sets, settings)
            if settings and settings.keep
            else None
        )
        # Independent streams: no two runs share one.
        self.problems, self.sampling, self.shuffling = (
            torch.Generator(kind).manual_seed(spec.seed * 1000 + stream)
            for stream, kind in enumerate((torch.device("cpu"), device, torch.device("cpu")), start=1)
        )

    def weights(self) -> dict[str, Tensor]:
        """The policy's parameters, by name."""
        return self.model.state_dict()

    def policy_state(self) -> dict[str, Any]:
        return {"model": self.model.state_dict(), "policy": self.policy.state()}

    def load_policy(self, state: dict[str, Any]) -> None:
        self.model.load_state_dict(state["model"])
        self.policy.load_state(state["policy"])

    def step(self) -> dict[str, float]:
        """One training step: rollout, grading, minibatch updates. Returns its metrics.

        Raises NotFinite before an update that would destroy the weights.
        """
        started = time.perf_counter()
        self.doing("sampling")
        batch = self.collect()
        sampled = time.perf_counter()
        self.doing("update")
        metrics = self.update(batch, watched=self._validates(self.steps + 1))
        ended = time.perf_counter()
        self.steps += 1
        tokens = float(batch.rollout.lengths.sum())
        trained = float(batch.rollout.lengths[batch.keep].sum())
        return metrics | {
            "train/reward": batch.reward,
            "train/response_length": float(batch.rollout.lengths.float().mean()),
            "train/truncated_share": float(
                (batch.rollout.lengths == self.spec.rollout.max_response_length).float().mean()
            ),
            "train/zero_variance_group_share": batch.zero_variance_share,
            "train/entropy": float((batch.rollout.entropy * batch.rollout.valid()).sum() / tokens),
            "perf/step_seconds": ended - started,
            "perf/rollout_seconds": sampled - started,
            "perf/update_seconds": ended - sampled,
            "perf/sampled_tokens_per_second": tokens / (sampled - started),
            "perf/trained_tokens_per_second": trained / (ended - sampled),
        }

    def _validates(self, step: int) -> bool:
        """Whether the policy is validated after a step."""
        return step % self.spec.validation.every == 0

    def collect(self) -> GradedRollout:
        """Sample and grade one rollout batch; on validated steps some responses are kept.

        Raises NotFinite if the sampler's policy has overflowed.
        """
        spec = self.spec
        problems = sample_training_problems(self.task, spec.batch.prompts, self.problems, self.held_out)
        n = spec.batch.responses
        rollout = sample(
            self.policy.current(),
            problems.prompts.to(self.device),
            self.tokenizer,
            copies=n,
            max_response_length=spec.rollout.max_response_length,
            temperature=spec.rollout.temperature,
            top_p=spec.rollout.top_p,
            generator=self.sampling,
            top_k=self.objective.top_k,
        )
        # Equal rewards would hide it, since nothing is then learned.
        if not bool(rollout.logp.sum().isfinite()):
            raise NotFinite("log-probabilities are not finite")
        rewards = self.task.rewards(rollout.responses, rollout.lengths, problems.repeat(n).to(self.device))
        advantages, keep, share = self.graded(rewards, rollout.group)
        if self._record is not None and self._validates(self.steps + 1):
            self._record.batch(self.steps + 1, problems, rollout, rewards, advantages, keep)
        permutation = (
            own_permutation(rollout.valid(), self.shuffling) if self.objective.loss.shuffles else None
        )
        return GradedRollout(rollout, advantages, keep, permutation, float(rewards.mean()), share)

    def update(self, batch: GradedRollout, watched: bool = False) -> dict[str, float]:
        """The updates of a batch. `watched` steps enter the diagnostics; some of their tokens are kept."""
        gaps, decoupled = [], self.spec.rollout.correction is not None
        old = self.objective.recorded(batch.rollout) if decoupled and not self.policy.is_pi_old else None

        def objective(rows: Tensor) -> Minibatch:
            permutation = None if batch.permutation is None else batch.permutation[rows]
            result = self.objective(
                batch.rollout.select(rows), batch.advantages[rows], permutation, old and old.select(rows)
            )
            if watched:
                self.diagnostics.see(self.steps + 1, result.watched(), self.tokenizer.names)
            # The record has one policy beside pi, and a replay would take it for both mu and pi_old.
            if watched and self._record is not None and not decoupled:
                self._record.update(rows, result, permutation)
            if self.mismatch:
                gaps.append(result.log_ratios())
            return result.loss, result.output.stats, result.mismatch

        return self.updates(batch.keep, objective) | mismatch_of_step(gaps)

    def validate(self) -> dict[str, float]:
        """Avg@k on every benchmark and their unweighted mean, on sampling seeds that never change."""
        self.doing("validation")
        n, sets = self.spec.validation.samples, self.validation_sets
        problems, rollout, rewards = _validated(self.spec, self.task, self.model, sets, self.device)
        if self._record is not None:
            self._record.validation(self.steps, problems, rollout, rewards)
        means = rewards.view(len(sets), -1).mean(1).tolist()
        metrics = {schema.validation_metric(name, n): mean for name, mean in zip(sets, means, strict=True)}
        return metrics | {schema.validation_metric(schema.MEAN, n): sum(means) / len(means)}

    def answers(self) -> StepAnswers | None:
        """The responses kept from the last validation and its training step, returned once; None if there are none."""
        return None if self._record is None else self._record.take()


def _validated(
    spec: MiniRun, task: Task, model: Transformer, sets: Mapping[str, Problems], device: torch.device
) -> tuple[Problems, Rollout, Tensor]:
    """The problems of validation sets, the responses to them, and their rewards [problems x samples]."""
    settings, n = spec.validation, spec.validation.samples
    problems = Problems.cat(sets.values())
    rollout = sample(
        model,
        problems.prompts.to(device),
        task.tokenizer,
        copies=n,
        max_response_length=spec.rollout.max_response_length,
        temperature=settings.temperature,
        top_p=settings.top_p,
        generator=torch.Generator(device).manual_seed(spec.data.validation_seed),
    )
    return problems, rollout, task.rewards(rollout.responses, rollout.lengths, problems.repeat(n).to(device))


def load_best(spec: MiniRun, runs: Path, context: int) -> tuple[int, Transformer]:
    """The best model of a run, for sequences of `context` tokens, and the step after which it was best.

    Raises UserError if the run has kept none, or the file cannot be read.
    """
    file = open_below(runs, spec.run_id, BEST_MODEL)
    if file is None:
        raise UserError(
            f"run {spec.run_id} has kept no checkpoint: there is no {BEST_MODEL} in {runs / spec.run_id}. It is "
            "written at the first validation after step 0, by this version; `cppo launch SWEEP --replace` trains runs "
            "of an older one again"
        )
    model = Transformer(spec.model.architecture, spec.data.vocabulary, context)
    with file:
        try:
            checkpoint = read_checkpoint(file, spec.run_id)
            state = checkpoint["trainer"]
            weights: Any = state.get("model") if isinstance(state, dict) else None
            if not same_form(weights, model.state_dict()):
                raise ValueError("it contains the weights of another model")
        except ValueError as error:
            raise UserError(f"{runs / spec.run_id / BEST_MODEL} is not exported: {error}") from None
    model.load_state_dict(weights)
    return checkpoint["history"][-1][0], model


def evaluate(spec: MiniRun, other: MiniRun, resources: Resources) -> tuple[int, Mapping[str, float]]:
    """As `cores.base.Evaluator`: tasks in the symbols that the model knows."""
    data = other.data
    require_same_task(spec, other)
    evaluated = spec.model_copy(update={"data": data, "rollout": other.rollout})
    step, model = load_best(spec, resources.shared, data.prompt_length + other.rollout.max_response_length)
    task = make_task(data)
    sets = validation_sets(task)
    _, _, rewards = _validated(evaluated, task, model, sets, torch.device("cpu"))
    return step, dict(zip(sets, rewards.view(len(sets), -1).mean(1).tolist(), strict=True))


def train(spec: MiniRun, sink: MetricSink, resources: Resources) -> Outcome:
    """Train `spec` to its last step or to its collapse, see `cores.loop.train_runs`."""
    return train_alone(TogetherRun(spec, sink, resources), _train)


def _train(runs: Sequence[TogetherRun[MiniRun]], ended: Ended) -> None:
    def step(trainers: Sequence[Trainer], number: int) -> list[dict[str, float] | Exception]:
        try:
            return [trainer.step() for trainer in trainers]
        except NotFinite as error:
            return [error]

    train_runs(
        runs,
        ended,
        lambda run: Trainer(run.spec, run.resources),
        step,
        lambda trainers: [trainer.validate() for trainer in trainers],
    )
