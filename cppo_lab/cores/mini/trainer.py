"""The embedded trainer: group-relative policy optimisation with any rule of the registry.

One training step samples a rollout batch, grades it, and takes one optimiser step per minibatch. The rollout
policy mu is the sampler's log-probability, never a recomputation by the training forward.
"""

import time
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from cppo_lab import schema
from cppo_lab.answers.recording import StepAnswers
from cppo_lab.cores.adamw import AdamW
from cppo_lab.cores.base import MetricSink, Resources
from cppo_lab.cores.checkpoint import same_form
from cppo_lab.cores.diagnostics import Diagnostics
from cppo_lab.cores.loop import run
from cppo_lab.cores.mini.answers import MiniAnswerRecorder
from cppo_lab.cores.mini.model import Transformer
from cppo_lab.cores.mini.objective import Objective
from cppo_lab.cores.mini.sampler import Rollout, RolloutPolicy, sample
from cppo_lab.cores.mini.tasks.base import make_task, sample_training_problems, validation_sets
from cppo_lab.cores.mini.tasks.problems import Problems
from cppo_lab.cores.mini.warm_start import load_warm_start
from cppo_lab.cores.rule_loss import own_permutation
from cppo_lab.errors import NotFinite
from cppo_lab.maths import mismatch
from cppo_lab.maths.aggregation import group_advantages
from cppo_lab.maths.metrics import merge, summarise
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


class Trainer:
    """Model, optimiser and random generators of a run. `steps` counts the training steps taken."""

    def __init__(self, spec: MiniRun, resources: Resources) -> None:
        self.spec, self.steps, self.mismatch, self.doing = spec, 0, resources.mismatch, resources.doing
        self.device = _device(resources.device)
        self.task = make_task(spec.data)
        self.tokenizer = self.task.tokenizer
        seeded = spec.model.for_seed(spec.seed)
        torch.manual_seed(seeded.start_seed)  # decides the initial weights of a first warm start only
        context = spec.data.prompt_length + spec.rollout.max_response_length
        self.model = Transformer(spec.model.architecture, self.tokenizer.vocabulary, context).to(self.device)
        start = load_warm_start(seeded, spec.data, self.model, resources.shared / "warm_starts", self.doing)
        self.tags = {schema.TAG_WARM_START: start}
        optim = spec.optim
        self.optimizer = AdamW(
            self.model.parameters(),
            lr=optim.learning_rate,
            betas=(optim.beta1, optim.beta2),
            weight_decay=optim.weight_decay,
            fused=True,
        )
        self.policy = RolloutPolicy(self.model, spec.rollout.staleness, spec.rollout.precision)
        self.objective = Objective(spec, self.model, self.tokenizer)
        self.diagnostics = Diagnostics(spec.rule, spec.rollout.max_response_length)
        self.validation_sets = validation_sets(self.task)
        self.held_out = {key for problems in self.validation_sets.values() for key in problems.identities()}
        settings = resources.answers
        self._record = (
            MiniAnswerRecorder(spec, self.task, self.validation_sets, settings)
            if settings and settings.keep
            else None
        )
        self.problems = torch.Generator().manual_seed(_stream(spec.seed, 1))
        self.sampling = torch.Generator(self.device).manual_seed(_stream(spec.seed, 2))
        self.shuffling = torch.Generator().manual_seed(_stream(spec.seed, 3))

    def weights(self) -> dict[str, Tensor]:
        """The policy's parameters, by name."""
        return self.model.state_dict()

    def state(self) -> dict[str, Any]:
        """The state that determines the rest of this run."""
        generators = {name: getattr(self, name).get_state() for name in _GENERATORS}
        return {
            "steps": self.steps,
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "policy": self.policy.state(),
            "diagnostics": self.diagnostics.state(),
            **generators,
        }

    def load_state(self, state: dict[str, Any], step: int) -> None:
        """Continue from `state`, which was taken after `step`.

        Raises ValueError if it is not the state of such a trainer; then nothing has changed.
        """
        if not self._fits(state) or state["steps"] != step:
            raise ValueError("it contains another model, or another run's state")
        self.steps = state["steps"]
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.policy.load_state(state["policy"])
        self.diagnostics.load_state(state["diagnostics"])
        for name in _GENERATORS:
            getattr(self, name).set_state(state[name].cpu())

    def _fits(self, state: object) -> bool:
        """Whether `state` has the structure of this trainer's state."""
        form = self.state()
        if not isinstance(state, dict) or state.keys() != form.keys():
            return False
        plain = ("steps", "model", *_GENERATORS)
        past, watched, optimizer = state["policy"], state["diagnostics"], state["optimizer"]
        if not all(same_form(state[name], form[name]) for name in plain) or not isinstance(past, list):
            return False
        if len(past) > self.spec.rollout.staleness or not all(
            same_form(weights, form["model"]) for weights in past
        ):
            return False
        if not isinstance(watched, dict) or not isinstance(watched.get("window"), dict | None):
            return False
        return same_form({**watched, "window": None}, {**form["diagnostics"], "window": None}) and same_form(
            optimizer, self._optimizer_form(optimizer)
        )

    def _optimizer_form(self, state: object) -> dict[str, Any]:
        """The structure of the optimiser's state after a step, or before the first, whichever `state` matches."""
        form = self.optimizer.state_dict()
        before = isinstance(state, dict) and state.get("state") == {}
        moments = {
            number: {"step": torch.tensor(0.0), "exp_avg": parameter, "exp_avg_sq": parameter}
            for number, parameter in enumerate(self.model.parameters())
        }
        return {**form, "state": {} if before else moments}

    def step(self) -> dict[str, float]:
        """One training step: rollout, grading, minibatch updates. Returns its metrics.

        Raises NotFinite before an update that would destroy the weights.
        """
        started = time.perf_counter()
        self.doing("sampling")
        batch = self.collect()
        sampled = time.perf_counter()
        self.doing("update")
        metrics = self.update(batch, watched=self._is_watched)
        ended = time.perf_counter()
        self.steps += 1
        tokens = float(batch.rollout.lengths.sum())
        trained = float(batch.rollout.lengths[batch.keep].sum())
        entropy = batch.rollout.entropy
        assert entropy is not None
        return metrics | {
            "train/reward": batch.reward,
            "train/response_length": float(batch.rollout.lengths.float().mean()),
            "train/truncated_share": float(
                (batch.rollout.lengths == self.spec.rollout.max_response_length).float().mean()
            ),
            "train/zero_variance_group_share": batch.zero_variance_share,
            "train/entropy": float((entropy * batch.rollout.valid()).sum() / tokens),
            "perf/step_seconds": ended - started,
            "perf/rollout_seconds": sampled - started,
            "perf/update_seconds": ended - sampled,
            "perf/sampled_tokens_per_second": tokens / (sampled - started),
            "perf/trained_tokens_per_second": trained / (ended - sampled),
        }

    @property
    def _is_watched(self) -> bool:
        """Whether the next step is validated."""
        return (self.steps + 1) % self.spec.validation.every == 0

    def collect(self) -> GradedRollout:
        """Sample and grade one rollout batch; on validated steps some responses are kept."""
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
        rewards = self.task.rewards(rollout.responses, rollout.lengths, problems.repeat(n).to(self.device))
        advantages, keep = group_advantages(
            rewards, rollout.group, normalize_std=spec.advantage.normalize_std
        )
        share = 1 - float(keep.float().mean())
        if not spec.advantage.drop_zero_variance:
            keep = torch.ones_like(keep)
        if self._is_watched and self._record is not None:
            self._record.batch(self.steps + 1, problems, rollout, rewards, advantages, keep)
        permutation = (
            own_permutation(rollout.valid(), self.shuffling) if self.objective.rule.shuffles else None
        )
        return GradedRollout(rollout, advantages, keep, permutation, float(rewards.mean()), share)

    def update(self, batch: GradedRollout, watched: bool = False) -> dict[str, float]:
        """One optimiser step per minibatch; groups stay whole, dropped groups leave their minibatch smaller.

        `watched` steps enter the diagnostics; some of their tokens are kept.
        """
        rows_per_update = self.spec.batch.minibatch_prompts * self.spec.batch.responses
        stats, losses, norms, error, gaps = [], [], [], [0.0, 0.0], []
        for start in range(0, len(batch.keep), rows_per_update):
            rows = torch.arange(start, start + rows_per_update, device=self.device)
            # PAPER: the denominators after dropping a group are not stated. Here it is removed from them, too, as if it
            # had not been sampled; the same for every rule.
            rows = rows[batch.keep[rows]]
            if len(rows) == 0:
                continue
            permutation = None if batch.permutation is None else batch.permutation[rows]
            result = self.objective(batch.rollout.select(rows), batch.advantages[rows], permutation)
            if watched:
                self.diagnostics.see(self.steps + 1, result.watched(), self.tokenizer.names)
            if watched and self._record is not None:
                self._record.update(rows, result, permutation)
            norms.append(self._descend(result.loss))
            stats.append(result.stats)
            losses.append(float(result.loss.detach()))
            error = [a + b for a, b in zip(error, result.mismatch, strict=True)]
            if self.mismatch:
                gaps.append(result.log_ratios())
        self.diagnostics.end_step()
        if not losses:
            return {}  # every group had equal rewards: nothing to learn from this batch
        metrics = {f"rule/{name}": value for name, value in summarise(merge(stats)).items()}
        return metrics | {
            "train/loss": sum(losses) / len(losses),
            "train/grad_norm": sum(norms) / len(norms),
            "train/relative_logprob_error": error[0] / error[1] if error[1] else 0.0,
            **mismatch.of_step(gaps),
        }

    def _descend(self, loss: Tensor) -> float:
        """One optimiser step; returns the gradient norm before clipping."""
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        norm = float(torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.spec.optim.clip_grad_norm))
        if not norm < float("inf"):
            raise NotFinite(f"gradient norm is {norm}")
        self.optimizer.step()
        return norm

    def validate(self) -> dict[str, float]:
        """Avg@k on every benchmark and their unweighted mean, on sampling seeds that never change."""
        self.doing("validation")
        settings, n = self.spec.validation, self.spec.validation.samples
        sets = self.validation_sets
        problems = Problems.cat(sets.values())
        rollout = sample(
            self.model,
            problems.prompts.to(self.device),
            self.tokenizer,
            copies=n,
            max_response_length=self.spec.rollout.max_response_length,
            temperature=settings.temperature,
            top_p=settings.top_p,
            generator=torch.Generator(self.device).manual_seed(self.spec.data.validation_seed),
        )
        rewards = self.task.rewards(rollout.responses, rollout.lengths, problems.repeat(n).to(self.device))
        if self._record is not None:
            self._record.validation(self.steps, problems, rollout, rewards)
        means = rewards.view(len(sets), -1).mean(1).tolist()
        metrics = {schema.validation_metric(name, n): mean for name, mean in zip(sets, means, strict=True)}
        return metrics | {schema.validation_metric(schema.MEAN, n): sum(means) / len(means)}

    def answers(self) -> StepAnswers | None:
        """The responses kept from the last validation and its training step, returned once; None if there are none."""
        return None if self._record is None else self._record.take()


_GENERATORS = ("problems", "sampling", "shuffling")


def _device(name: str) -> torch.device:
    """`auto` is CUDA if available."""
    return torch.device(("cuda" if torch.cuda.is_available() else "cpu") if name == "auto" else name)


def _stream(seed: int, stream: int) -> int:
    """The seed of one of a run's independent random streams; no two runs share a stream."""
    return seed * 1000 + stream


# A run of the embedded trainer.


def train(spec: MiniRun, sink: MetricSink, resources: Resources) -> Outcome:
    """Train `spec` to its last step or to its collapse, see `cores.loop.run`."""
    torch.set_num_threads(resources.threads)
    return run(Trainer(spec, resources), spec, sink, resources)
