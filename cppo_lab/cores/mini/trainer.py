"""The embedded trainer: group-relative policy optimisation with any rule of the registry.

A training step samples a rollout batch, grades it, and takes an optimiser step per minibatch. The rollout
policy mu is the sampler's log-probability, never a recomputation by the training forward. Recording responses draws
from no generator and changes no number of the run.
"""

import itertools
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

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
from cppo_lab.cores.loop import ObjectiveResult, SteppedTrainer, train_alone, train_runs, validation_scores
from cppo_lab.cores.mini.model import Rollout, RolloutPolicy, Transformer, sample
from cppo_lab.cores.mini.tasks import (
    Problems,
    Task,
    answer_text,
    identities,
    make_task,
    sample_training_problems,
    validation_sets,
)
from cppo_lab.cores.mini.warm_start import load_warm_start
from cppo_lab.cores.rule_loss import (
    KeptResponse,
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
from cppo_lab.maths.divergence import Recorded
from cppo_lab.maths.mismatch import log_ratios
from cppo_lab.maths.tokens import Tokens
from cppo_lab.rules import DRIFT
from cppo_lab.schema import Outcome
from cppo_lab.spec import AnswersSpec, MiniRun


@dataclass(frozen=True)
class GradedRollout:
    """A graded rollout batch; `keep` marks the responses whose group has a learning signal."""

    rollout: Rollout
    rewards: Tensor  # [B]
    advantages: Tensor  # [B]
    keep: Tensor  # [B] bool
    permutation: Tensor | None  # [B, T] of each response's positions, for the rule that shuffles weights
    zero_variance_share: float


class Trainer(SteppedTrainer):
    """Model and random generators of a run."""

    GENERATORS = ("problems", "sampling", "shuffling")
    spec: MiniRun

    def __init__(self, spec: MiniRun, resources: Resources) -> None:
        self.mismatch, self.doing = resources.mismatch, resources.doing
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
        super().__init__(spec, device, self.model.parameters(), self.tokenizer.names)
        self.policy = RolloutPolicy(self.model, spec.rollout.staleness, spec.rollout.precision)
        self.top_k = recorded_tokens(spec.divergence, self.tokenizer.vocabulary)
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
        lengths, longest = batch.rollout.lengths, self.spec.rollout.max_response_length
        tokens, trained = float(lengths.sum()), float(lengths[batch.keep].sum())
        return metrics | {
            "train/reward": float(batch.rewards.mean()),
            "train/response_length": float(lengths.float().mean()),
            "train/truncated_share": float((lengths == longest).float().mean()),
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
        rollout, rewards = _answered(
            self.policy.current(),
            self.task,
            problems,
            copies=spec.batch.responses,
            max_response_length=spec.rollout.max_response_length,
            temperature=spec.rollout.temperature,
            top_p=spec.rollout.top_p,
            generator=self.sampling,
            top_k=self.top_k,
        )
        # Equal rewards would hide it, since nothing is then learned.
        if not bool(rollout.logp.sum().isfinite()):
            raise NotFinite("log-probabilities are not finite")
        advantages, keep, share = self.graded(rewards, rollout.group)
        permutation = own_permutation(rollout.valid(), self.shuffling) if self.loss.shuffles else None
        batch = GradedRollout(rollout, rewards, advantages, keep, permutation, share)
        if self._record is not None and self._validates(self.steps + 1):
            self._record.batch(self.steps + 1, problems, batch)
        return batch

    def update(self, batch: GradedRollout, watched: bool = False) -> dict[str, float]:
        """The updates of a batch. `watched` steps enter the diagnostics; some of their tokens are kept."""
        gaps, decoupled = [], self.spec.rollout.correction is not None
        old = self.recorded(batch.rollout) if decoupled and not self.policy.is_pi_old else None

        def objective(rows: Tensor) -> ObjectiveResult:
            permutation = None if batch.permutation is None else batch.permutation[rows]
            result = self.objective(
                batch.rollout.select(rows), batch.advantages[rows], permutation, old and old.select(rows)
            )
            seen = result.seen
            # The record has one policy beside pi, and a replay would take it for both mu and pi_old.
            if watched and self._record is not None and not decoupled:
                self._record.update(rows, result, permutation)
            if self.mismatch:
                gaps.append(log_ratios(seen.logp, seen.rollout_logp, seen.divergence, seen.valid))
            return result

        return self.updates(batch.keep, objective, self.steps + 1 if watched else None) | mismatch_of_step(
            gaps
        )

    def _log_policy(self, rollout: Rollout) -> tuple[Tensor, Tensor]:
        """log pi [B, T, V] at every response token, and of the token [B, T]."""
        pi_logp = (rollout.logits(self.model) / self.spec.rollout.temperature).log_softmax(-1)
        return pi_logp, pi_logp.gather(-1, rollout.responses[..., None])[..., 0]

    @torch.no_grad()
    def recorded(self, rollout: Rollout) -> Rollout:
        """`rollout` as if the model, with its present weights, had sampled it; without entropy of its own."""
        pi_logp, logp = self._log_policy(rollout)
        top = pi_logp.topk(self.top_k, -1)
        return replace(rollout, logp=logp, topk_ids=top.indices, topk_logp=top.values)

    def objective(
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
        kind, valid, old = self.spec.divergence, rollout.valid(), old or rollout
        origin = old if kind.origin else rollout
        pi_logp, logp = self._log_policy(rollout)
        if not bool(torch.where(valid, logp.detach(), 0.0).sum().isfinite()):
            raise NotFinite("log-probabilities are not finite")
        recorded = Recorded(rollout.responses, origin.logp, origin.topk_ids, origin.topk_logp)
        tokens = Tokens(
            logp,
            old.logp,
            advantages[:, None].expand_as(logp),
            valid,
            measured_divergence(kind, pi_logp, logp, recorded),
            permutation=None if permutation is None else permutation[:, : valid.shape[1]],
            topk_ids=rollout.topk_ids,
            topk_logp=rollout.topk_logp,
            topk_pi_logp=pi_logp.gather(-1, rollout.topk_ids) if self.loss.centering else None,
            drift=measured_drift(kind, pi_logp, logp, recorded) if DRIFT in self.loss.needs else None,
            rollout_entropy=rollout.entropy,
            origin_logp=origin.logp,
        )
        return self.result(tokens, rollout.logp, rollout.responses)

    def validate(self) -> dict[str, float]:
        """Avg@k on every benchmark and their unweighted mean, on sampling seeds that never change."""
        self.doing("validation")
        sets = self.validation_sets
        problems, rollout, rewards = _validated(self.spec, self.task, self.model, sets)
        if self._record is not None:
            self._record.validation(self.steps, problems, rollout, rewards)
        return validation_scores(self.spec, rewards.view(len(sets), -1).mean(1).tolist())

    def answers(self) -> StepAnswers | None:
        """The responses kept from the last validation and its training step, returned once; None if there are none."""
        return None if self._record is None else self._record.take()


def _answered(
    model: Transformer, task: Task, problems: Problems, *, copies: int, **settings: Any
) -> tuple[Rollout, Tensor]:
    """`copies` responses to each of the problems, and their rewards [B]; `settings`: further arguments of `sample`."""
    device = model.cos.device
    rollout = sample(model, problems.prompts.to(device), task.tokenizer, copies=copies, **settings)
    answers = problems.answers.to(device).repeat_interleave(copies, 0)
    return rollout, task.rewards(rollout.responses, rollout.lengths, answers)


def _validated(
    spec: MiniRun, task: Task, model: Transformer, sets: Mapping[str, Problems]
) -> tuple[Problems, Rollout, Tensor]:
    """The problems of validation sets, the responses to them, and their rewards [problems x samples]."""
    problems = Problems.cat(sets.values())
    rollout, rewards = _answered(
        model,
        task,
        problems,
        copies=spec.validation.samples,
        max_response_length=spec.rollout.max_response_length,
        temperature=spec.validation.temperature,
        top_p=spec.validation.top_p,
        generator=torch.Generator(model.cos.device).manual_seed(spec.data.validation_seed),
    )
    return problems, rollout, rewards


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
    _, _, rewards = _validated(evaluated, task, model, sets)
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
        self._add(step, self._chosen, self._ids, problems, rollout, rewards)

    def batch(self, step: int, problems: Problems, batch: GradedRollout) -> None:
        """Add responses of some groups of a training batch."""
        trained = batch.keep.view(len(problems), -1)[:, 0].nonzero()[:, 0].tolist()
        self._trained_groups = chosen_groups(trained, self.settings.groups)
        ids = problem_ids([TRAINING] * len(problems), [str(values) for values in problems.identities()])
        self._add(step, self._trained_groups, ids, problems, batch.rollout, batch.rewards, batch.advantages)

    def update(self, rows: Tensor, result: ObjectiveResult, order: Tensor | None) -> None:
        """Add the tokens of a minibatch, whose responses are the batch's `rows` [B], before its optimiser step."""
        n = self.spec.batch.responses
        chosen = torch.isin(rows // n, torch.tensor(self._trained_groups, device=rows.device))
        places = (divmod(row, n) for row in rows[chosen].tolist())
        responses = kept_responses(result.seen, result.output, order, chosen)
        self._kept |= zip(places, responses, strict=True)

    def _add(
        self,
        step: int,
        places: Sequence[int],
        ids: Sequence[str],
        problems: Problems,
        rollout: Rollout,
        rewards: Tensor,
        advantages: Tensor | None = None,
    ) -> None:
        """Add a sample of each response to the problems at `places`; `advantages`: in training."""
        ended, responses = self._ended(rollout).cpu(), rollout.responses.cpu().numpy()
        answers = self.task.answers(rollout.responses, rollout.lengths).cpu()
        size = len(rewards) // len(problems)
        for place, draw in itertools.product(places, range(size)):
            row = place * size + draw
            end, length, graded = bool(ended[row]), int(rollout.lengths[row]), dict[str, Any]()
            if advantages is not None:
                graded = {"group": place, "reward": float(rewards[row]), "advantage": float(advantages[row])}
            sample = Sample(
                kind=TRAINING if graded else VALIDATION,
                benchmark="" if graded else self._benchmarks[place],
                step=step,
                problem=ids[place],
                draw=draw,
                prompt=" ".join(self._words[problems.prompts[place].numpy()]),
                response=" ".join(self._words[responses[row, :length]]),
                truth=answer_text(problems.answers[place]),
                answer=answer_text(answers[row]),
                right=float(rewards[row]) == 1,
                length=length,
                cut_off=not end,
                stop="end" if end else "length",
                **graded,
            )
            self._samples.append(sample)

    def _ended(self, rollout: Rollout) -> Tensor:
        """Whether each response has its end token [B]."""
        return rollout.responses.gather(1, rollout.lengths[:, None] - 1)[:, 0] == self.task.tokenizer.eos
