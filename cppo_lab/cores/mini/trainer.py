"""The embedded trainer: group-relative policy optimisation with any rule of the registry.

One training step samples a rollout batch, grades it, and takes one optimiser step per minibatch. The rollout
policy mu is the sampler's own log-probability, never a recomputation by the training forward.
"""

import time
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from cppo_lab import schema
from cppo_lab.cores.base import MetricSink, Resources
from cppo_lab.cores.mini.model import Transformer
from cppo_lab.cores.mini.sampler import Rollout, sample
from cppo_lab.cores.mini.tasks.base import make_task, sample_training_problems, validation_sets
from cppo_lab.cores.mini.tasks.problems import Problems
from cppo_lab.cores.mini.warm_start import load_warm_start
from cppo_lab.maths import divergence as divergences
from cppo_lab.maths.advantages import group_advantages
from cppo_lab.maths.aggregation import aggregate
from cppo_lab.maths.metrics import merge, relative_logprob_error, summarise
from cppo_lab.maths.rules import get_rule
from cppo_lab.spec import RunSpec


def train(spec: RunSpec, sink: MetricSink, resources: Resources) -> None:
    """Run `spec` to its last step, logging every step and each validation."""
    torch.set_num_threads(resources.threads)
    trainer = Trainer(spec, resources)
    sink.log(0, trainer.validate())
    for step in range(1, spec.training.t_stop + 1):
        metrics = trainer.step()
        if step % spec.validation.every == 0:
            metrics |= trainer.validate()
        sink.log(step, metrics)


@dataclass(frozen=True)
class Batch:
    """A graded rollout batch; `rows` index the responses whose group has a learning signal."""

    rollout: Rollout
    advantages: Tensor  # [B]
    keep: Tensor  # [B] bool
    reward: float
    zero_variance_share: float


class Trainer:
    """Model, optimiser and random generators of one run."""

    def __init__(self, spec: RunSpec, resources: Resources) -> None:
        self.spec = spec
        self.device = _device(resources.device)
        self.task = make_task(spec.data)
        self.tokenizer = self.task.tokenizer
        torch.manual_seed(
            spec.model.warm_start.seed
        )  # decides the initial weights of a first warm start only
        self.model = Transformer(
            spec.model.architecture,
            self.tokenizer.vocabulary,
            spec.data.prompt_length + spec.rollout.max_response_length,
        ).to(self.device)
        load_warm_start(spec, self.model, resources.shared / "warm_starts")
        optim = spec.optim
        self.optimizer = torch.optim.AdamW(
            self.model.parameters(),
            lr=optim.learning_rate,
            betas=(optim.beta1, optim.beta2),
            weight_decay=optim.weight_decay,
            fused=True,
        )
        self.validation_sets = validation_sets(self.task)
        self.held_out = {key for problems in self.validation_sets.values() for key in problems.identities()}
        self.problems = torch.Generator().manual_seed(_stream(spec.seed, 1))
        self.sampling = torch.Generator(self.device).manual_seed(_stream(spec.seed, 2))
        self.top_k = min(self._mu_tokens(), self.tokenizer.vocabulary)
        self.rule, self.rule_parameters = get_rule(spec.rule.name), spec.rule.parameters()

    def _mu_tokens(self) -> int:
        """How many of mu's most likely tokens the divergence needs."""
        kind = self.spec.divergence
        if kind.estimator == "exact":
            return self.tokenizer.vocabulary
        return kind.k if kind.k is not None else 1

    def step(self) -> dict[str, float]:
        """One training step: rollout, grading, minibatch updates. Returns its metrics."""
        started = time.perf_counter()
        batch = self.collect()
        sampled = time.perf_counter()
        metrics = self.update(batch)
        ended = time.perf_counter()
        tokens = float(batch.rollout.lengths.sum())
        trained = float(batch.rollout.lengths[batch.keep].sum())
        lengths = batch.rollout.lengths.float()
        entropy = batch.rollout.entropy
        assert entropy is not None
        return metrics | {
            "train/reward": batch.reward,
            "train/response_length": float(lengths.mean()),
            "train/zero_variance_group_share": batch.zero_variance_share,
            "train/entropy": float((entropy * batch.rollout.valid()).sum() / lengths.sum()),
            "perf/step_seconds": ended - started,
            "perf/rollout_seconds": sampled - started,
            "perf/update_seconds": ended - sampled,
            "perf/sampled_tokens_per_second": tokens / (sampled - started),
            "perf/trained_tokens_per_second": trained / (ended - sampled),
        }

    def collect(self) -> Batch:
        """Sample and grade one rollout batch."""
        spec = self.spec
        n = spec.batch.responses
        problems = sample_training_problems(self.task, spec.batch.prompts, self.problems, self.held_out)
        problems = problems.repeat(n).to(self.device)
        rollout = sample(
            self.model,
            problems.prompts,
            self.tokenizer,
            max_response_length=spec.rollout.max_response_length,
            temperature=spec.rollout.temperature,
            top_p=spec.rollout.top_p,
            generator=self.sampling,
            top_k=self.top_k,
        )
        rewards = self.task.rewards(rollout.responses, rollout.lengths, problems)
        groups = torch.arange(spec.batch.prompts, device=self.device).repeat_interleave(n)
        advantages, keep = group_advantages(rewards, groups, normalize_std=spec.advantage.normalize_std)
        share = 1 - float(keep.float().mean())
        if not spec.advantage.drop_zero_variance:
            keep = torch.ones_like(keep)
        return Batch(rollout, advantages, keep, float(rewards.mean()), share)

    def update(self, batch: Batch) -> dict[str, float]:
        """One optimiser step per minibatch; groups stay whole, dropped groups leave their minibatch smaller."""
        rows_per_update = self.spec.batch.minibatch_prompts * self.spec.batch.responses
        stats, losses, norms, error = [], [], [], [0.0, 0.0]
        for start in range(0, len(batch.keep), rows_per_update):
            rows = torch.arange(start, start + rows_per_update, device=self.device)
            # PAPER: what a dropped group leaves behind is not stated. Here it leaves the denominators too, as if it
            # had not been sampled; the same for every rule.
            rows = rows[batch.keep[rows]]
            if len(rows) == 0:
                continue
            loss, rule_stats, mismatch = self.loss(batch.rollout.select(rows), batch.advantages[rows])
            self.optimizer.zero_grad(set_to_none=True)
            loss.backward()
            norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.spec.optim.clip_grad_norm)
            self.optimizer.step()
            stats.append(rule_stats)
            losses.append(float(loss.detach()))
            norms.append(float(norm))
            error = [a + b for a, b in zip(error, mismatch, strict=True)]
        if not losses:
            return {}  # every group had equal rewards: nothing to learn from this batch
        metrics = {f"rule/{name}": value for name, value in summarise(merge(stats)).items()}
        return metrics | {
            "train/loss": sum(losses) / len(losses),
            "train/grad_norm": sum(norms) / len(norms),
            "train/relative_logprob_error": error[0] / error[1],
        }

    def loss(self, rollout: Rollout, advantages: Tensor) -> tuple[Tensor, dict[str, Tensor], list[float]]:
        """Loss of one minibatch, the rule's statistics, and the two sums of the relative log-prob error."""
        valid = rollout.valid()
        width = int(rollout.lengths.max())
        rollout = replace(rollout, **{name: getattr(rollout, name)[:, :width] for name in _PER_TOKEN})
        valid = valid[:, :width]
        logits = self.model(*rollout.sequences(self.tokenizer.pad))[:, rollout.prompts.shape[1] - 1 :]
        pi_logp = (logits / self.spec.rollout.temperature).log_softmax(-1)
        logp = pi_logp.gather(-1, rollout.responses[..., None])[..., 0]
        assert rollout.logp is not None
        output = self.rule(
            logp,
            rollout.logp,
            advantages[:, None].expand_as(logp),
            valid,
            self.divergence(pi_logp, logp, rollout),
            **self.rule_parameters,
        )
        mode = self.spec.training.aggregation
        # The horizon is the run's, not the batch's longest response: the scale must not follow the padding.
        horizon = self.spec.rollout.max_response_length if mode == "seq-mean-token-sum-norm" else None
        loss = -aggregate(output.objective, valid, mode, horizon=horizon)
        difference, scale = relative_logprob_error(logp.detach(), rollout.logp, valid)
        return loss, output.stats, [float(difference), float(scale)]

    @torch.no_grad()
    def divergence(self, pi_logp: Tensor, logp: Tensor, rollout: Rollout) -> Tensor:
        """D_t [B, T] between the rollout policy and the current one, as the config's estimator defines it."""
        kind = self.spec.divergence
        assert rollout.logp is not None and rollout.topk_ids is not None and rollout.topk_logp is not None
        if kind.estimator == "binary":
            return divergences.binary(logp, rollout.logp, kind.measure)
        if kind.estimator == "exact":
            mu_logp = torch.empty_like(pi_logp).scatter_(-1, rollout.topk_ids, rollout.topk_logp)
            return divergences.exact(mu_logp, pi_logp, kind.measure)
        return divergences.topk(
            rollout.topk_ids,
            rollout.topk_logp,
            pi_logp,
            rollout.responses,
            rollout.logp,
            measure=kind.measure,
            convention=kind.convention,
        )

    def validate(self) -> dict[str, float]:
        """Avg@k on every benchmark and their unweighted mean, on sampling seeds that never change."""
        settings, n = self.spec.validation, self.spec.validation.samples
        sets = self.validation_sets
        problems = Problems.cat(sets.values()).repeat(n).to(self.device)
        rollout = sample(
            self.model,
            problems.prompts,
            self.tokenizer,
            max_response_length=self.spec.rollout.max_response_length,
            temperature=settings.temperature,
            top_p=settings.top_p,
            generator=torch.Generator(self.device).manual_seed(self.spec.data.validation_seed),
        )
        rewards = self.task.rewards(rollout.responses, rollout.lengths, problems)
        means = rewards.view(len(sets), -1).mean(1).tolist()
        metrics = {schema.validation_metric(name, n): mean for name, mean in zip(sets, means, strict=True)}
        return metrics | {schema.validation_metric(schema.MEAN, n): sum(means) / len(means)}


_PER_TOKEN = ("responses", "logp", "topk_ids", "topk_logp", "entropy")


def _device(name: str) -> torch.device:
    """`auto` is CUDA when there is one."""
    return torch.device(("cuda" if torch.cuda.is_available() else "cpu") if name == "auto" else name)


def _stream(seed: int, stream: int) -> int:
    """Seeds of independent streams of one run: two runs share no stream."""
    return seed * 1000 + stream
