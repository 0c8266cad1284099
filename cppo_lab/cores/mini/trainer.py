"""The embedded trainer: group-relative policy optimisation with any rule of the registry.

A training step samples a rollout batch, grades it, and takes an optimiser step per minibatch. The rollout
policy mu is the sampler's log-probability, never a recomputation by the training forward. Recording responses draws
from no generator and changes no number of the run.
"""

import itertools
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from cppo_lab import schema
from cppo_lab.answers.outcomes import Outcomes, chosen_problems, no_outcomes, problem_ids
from cppo_lab.answers.records import StepAnswers
from cppo_lab.answers.texts import TRAINING, VALIDATION, Sample
from cppo_lab.answers.tokens import chosen_groups
from cppo_lab.core_records import BEST_MODEL, Ended, MetricSink, Resources, TogetherRun
from cppo_lab.cores.base import require_same_task
from cppo_lab.cores.checkpoint import read_checkpoint, same_form
from cppo_lab.cores.loop import Minibatch, SteppedTrainer, train_alone, train_runs, validation_scores
from cppo_lab.cores.mini.model import Rollout, RolloutPolicy, Transformer, sample
from cppo_lab.cores.mini.tasks import (
    Problems,
    Task,
    Tokenizer,
    identities,
    make_task,
    sample_training_problems,
    validation_sets,
)
from cppo_lab.cores.mini.warm_start import load_warm_start
from cppo_lab.cores.rule_loss import (
    KeptResponse,
    ObservedTokens,
    Recorded,
    RuleLoss,
    kept_responses,
    measured_divergence,
    measured_drift,
    mismatch_of_step,
    own_permutation,
    recorded_tokens,
    token_table,
)
from cppo_lab.errors import NotFinite, UserError
from cppo_lab.files import open_below
from cppo_lab.maths.mismatch import log_ratios, relative_logprob_error
from cppo_lab.maths.tokens import RuleOutput, Tokens
from cppo_lab.rules import DRIFT
from cppo_lab.schema import Outcome
from cppo_lab.spec import AnswersSpec, MiniRun


@dataclass(frozen=True)
class ObjectiveResult:
    """The results for a minibatch. Only `loss` and the output's objective have a gradient."""

    loss: Tensor  # scalar
    mismatch: tuple[Tensor, Tensor]  # the two sums of the relative log-prob error
    seen: ObservedTokens
    output: RuleOutput


class Objective:
    """The objective of `spec` on `model`."""

    def __init__(self, spec: MiniRun, model: Transformer, tokenizer: Tokenizer) -> None:
        self.spec, self.model = spec, model
        self.loss = RuleLoss(spec)
        self.top_k = recorded_tokens(spec.divergence, tokenizer.vocabulary)

    def _log_policy(self, rollout: Rollout) -> tuple[Tensor, Tensor]:
        """log pi [B, T, V] at every response token, and of the token [B, T]."""
        logits = rollout.logits(self.model)
        pi_logp = (logits / self.spec.rollout.temperature).log_softmax(-1)
        return pi_logp, pi_logp.gather(-1, rollout.responses[..., None])[..., 0]

    @torch.no_grad()
    def recorded(self, rollout: Rollout) -> Rollout:
        """`rollout` as if the model, with its present weights, had sampled it; without entropy of its own."""
        pi_logp, logp = self._log_policy(rollout)
        top = pi_logp.topk(self.top_k, -1)
        return replace(rollout, logp=logp, topk_ids=top.indices, topk_logp=top.values)

    def __call__(
        self,
        rollout: Rollout,
        advantages: Tensor,
        permutation: Tensor | None = None,
        old: Rollout | None = None,
    ) -> ObjectiveResult:
        """Loss and statistics of the responses `rollout` with `advantages` [B].

        `permutation` [B, T] is the order of each response's weights, for the rule that shuffles them; `old`: `rollout`
        as pi_old's, None where mu is pi_old. Raises NotFinite if the policy has overflowed.
        """
        valid, old = rollout.valid(), old or rollout
        origin = old if self.spec.divergence.origin else rollout
        pi_logp, logp = self._log_policy(rollout)
        if not bool(torch.where(valid, logp.detach(), 0.0).sum().isfinite()):
            raise NotFinite("log-probabilities are not finite")
        worth = advantages[:, None].expand_as(logp)
        recorded = Recorded(rollout.responses, origin.logp, origin.topk_ids, origin.topk_logp)
        divergence = measured_divergence(self.spec.divergence, pi_logp, logp, recorded)
        drift = None
        if DRIFT in self.loss.needs:
            drift = measured_drift(self.spec.divergence, pi_logp, logp, recorded)
        tokens = Tokens(
            logp,
            old.logp,
            worth,
            valid,
            divergence,
            permutation=None if permutation is None else permutation[:, : valid.shape[1]],
            topk_ids=rollout.topk_ids,
            topk_logp=rollout.topk_logp,
            topk_pi_logp=pi_logp.gather(-1, rollout.topk_ids) if self.loss.centering else None,
            drift=drift,
            rollout_entropy=rollout.entropy,
            origin_logp=origin.logp,
        )
        loss, output = self.loss(tokens, rollout.logp)
        seen = ObservedTokens(
            logp.detach(), rollout.logp, divergence, worth, valid, rollout.responses, origin.logp
        )
        return ObjectiveResult(loss, relative_logprob_error(seen.logp, rollout.logp, valid), seen, output)


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
        # Independent streams: no two runs share any.
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
        """Sample and grade a rollout batch; on validated steps some responses are kept.

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
            seen = result.seen
            if watched:
                self.diagnostics.see(self.steps + 1, seen, self.tokenizer.names)
            # The record has one policy beside pi, and a replay would take it for both mu and pi_old.
            if watched and self._record is not None and not decoupled:
                self._record.update(rows, result, permutation)
            if self.mismatch:
                gaps.append(log_ratios(seen.logp, seen.rollout_logp, seen.divergence, seen.valid))
            return result.loss, result.output.stats, result.mismatch

        return self.updates(batch.keep, objective) | mismatch_of_step(gaps)

    def validate(self) -> dict[str, float]:
        """Avg@k on every benchmark and their unweighted mean, on sampling seeds that never change."""
        self.doing("validation")
        sets = self.validation_sets
        problems, rollout, rewards = _validated(self.spec, self.task, self.model, sets, self.device)
        if self._record is not None:
            self._record.validation(self.steps, problems, rollout, rewards)
        return validation_scores(self.spec, rewards.view(len(sets), -1).mean(1).tolist())

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
            if not checkpoint["history"]:
                raise ValueError("it does not say of which step it is")
        except ValueError as error:
            raise UserError(f"{runs / spec.run_id / BEST_MODEL} is not exported: {error}") from None
    model.load_state_dict(weights)
    return checkpoint["history"][-1][0], model


def evaluate(spec: MiniRun, other: MiniRun, resources: Resources) -> tuple[int, Mapping[str, float]]:
    """As `core_records.Evaluator`: tasks in the symbols that the model knows."""
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


class MiniAnswerRecorder:
    """Collects the answers of a validated step; `take` returns them."""

    def __init__(self, spec: MiniRun, task: Task, sets: dict[str, Problems], settings: AnswersSpec) -> None:
        self.spec, self.task, self.settings = spec, task, settings
        tokenizer, symbols = task.tokenizer, np.arange(task.tokenizer.vocabulary)
        self._pieces = np.array(tokenizer.names(symbols.tolist()), dtype=object)
        # In texts, which are read, every spelling of a number looks like the first; tokens keep their names.
        self._words = self._pieces[
            np.where(symbols < tokenizer.operator, symbols % tokenizer.modulus, symbols)
        ]
        names = [name for name, problems in sets.items() for _ in range(len(problems))]
        places = [place for place, problems in enumerate(sets.values()) for _ in range(len(problems))]
        contents = [str(values) for problems in sets.values() for values in problems.identities()]
        ids = problem_ids(names, contents)
        self._benchmarks, self._ids = names, ids
        self._none = no_outcomes(spec.validation.samples, list(sets), ids, places)
        self._chosen = chosen_problems(places, settings.wanted_problems)
        self._outcomes: Outcomes | None = None
        self._samples: list[Sample] = []
        self._kept: dict[tuple[int, int], KeptResponse] = {}  # by group and draw
        self._trained_groups: list[int] = []

    def take(self) -> StepAnswers | None:
        """What was collected since the last call; None if there was no validation."""
        answers = None
        if self._outcomes is not None:
            step, piece = int(self._outcomes.steps[-1]), self._pieces.item
            tokens = token_table(step, self.spec, self._kept, self._samples, piece)
            answers = StepAnswers(self._outcomes, tuple(self._samples), tokens)
        self._outcomes, self._samples, self._kept, self._trained_groups = None, [], {}, []
        return answers

    def validation(self, step: int, problems: Problems, rollout: Rollout, rewards: Tensor) -> None:
        """Add the responses of a validation: `samples` consecutive ones for each of `problems`, with rewards [N]."""
        k = self.spec.validation.samples
        right, ends = rewards.view(-1, k) == 1, self._ended(rollout).view(-1, k)
        lengths = rollout.lengths.view(-1, k)
        self._outcomes = self._none.append(
            step,
            right.sum(1).cpu().numpy(),
            (~ends).sum(1).cpu().numpy(),
            lengths.double().mean(1).cpu().numpy(),
        )
        for row, answer in self._responses(
            VALIDATION, step, self._chosen, k, problems, rollout, rewards, self._ids
        ):
            self._samples.append(replace(answer, benchmark=self._benchmarks[row // k]))

    def batch(
        self,
        step: int,
        problems: Problems,
        rollout: Rollout,
        rewards: Tensor,
        advantages: Tensor,
        keep: Tensor,
    ) -> None:
        """Add responses of some groups of a training batch; rewards, advantages, `keep` (as in GradedRollout): [B]."""
        n = self.spec.batch.responses
        trained = keep.view(-1, n)[:, 0].nonzero()[:, 0].tolist()
        self._trained_groups = chosen_groups(trained, self.settings.groups)
        ids = problem_ids([TRAINING] * len(problems), [str(values) for values in problems.identities()])
        groups = self._trained_groups
        for row, answer in self._responses(TRAINING, step, groups, n, problems, rollout, rewards, ids):
            reward, advantage = float(rewards[row]), float(advantages[row])
            self._samples.append(replace(answer, group=row // n, reward=reward, advantage=advantage))

    def update(self, rows: Tensor, result: ObjectiveResult, order: Tensor | None) -> None:
        """Add the tokens of a minibatch, whose responses are the batch's `rows` [B], before its optimiser step."""
        n = self.spec.batch.responses
        chosen = torch.isin(rows // n, torch.tensor(self._trained_groups, device=rows.device))
        places = (divmod(row, n) for row in rows[chosen].tolist())
        responses = kept_responses(result.seen, result.output, order, chosen)
        self._kept |= zip(places, responses, strict=True)

    def _responses(
        self,
        kind: Literal["validation", "training"],
        step: int,
        places: Sequence[int],
        size: int,
        problems: Problems,
        rollout: Rollout,
        rewards: Tensor,
        ids: Sequence[str],
    ) -> Iterator[tuple[int, Sample]]:
        """The row and the sample of each of the `size` consecutive responses to the problems at `places`."""
        ended, responses = self._ended(rollout).cpu(), rollout.responses.cpu().numpy()
        for place, draw in itertools.product(places, range(size)):
            row = place * size + draw
            end, length = bool(ended[row]), int(rollout.lengths[row])
            response = responses[row, :length]
            yield (
                row,
                Sample(
                    kind=kind,
                    step=step,
                    benchmark="",
                    problem=ids[place],
                    draw=draw,
                    prompt=" ".join(self._words[problems.prompts[place].numpy()]),
                    response=" ".join(self._words[response]),
                    truth=" ".join(map(str, problems.answers[place].tolist())),  # as `Task.answer` writes it
                    answer=self.task.answer(response.tolist()),
                    right=float(rewards[row]) == 1,
                    length=length,
                    cut_off=not end,
                    stop="end" if end else "length",
                ),
            )

    def _ended(self, rollout: Rollout) -> Tensor:
        """Whether each response has its end token [B]."""
        last = rollout.responses.gather(1, (rollout.lengths[:, None] - 1).clamp(min=0))[:, 0]
        return (rollout.lengths > 0) & (last == self.task.tokenizer.eos)
