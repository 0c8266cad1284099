"""One run: its parameters, its optimiser, its random streams, and its updates on a rollout batch.

The trainer does sampling and exact evaluation, for many runs together.
"""

from collections import deque
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from cppo_lab.cores.adamw import AdamW
from cppo_lab.cores.diagnostics import Diagnostics, ObservedTokens
from cppo_lab.cores.exact.process import BRANCH, PolicyTables, Process, starting_parameters, student
from cppo_lab.cores.rule_loss import (
    Recorded,
    RuleLoss,
    measured_divergence,
    own_permutation,
    recorded_tokens,
)
from cppo_lab.errors import NotFinite
from cppo_lab.maths.aggregation import group_advantages
from cppo_lab.maths.metrics import merge, relative_logprob_error, summarise
from cppo_lab.maths.tokens import Tokens
from cppo_lab.spec import ExactRun


@dataclass(frozen=True)
class GradedResponses:
    """A graded rollout batch; `keep` marks the responses whose group has a learning signal."""

    mu: Recorded  # of each token of each table entry: tokens, logp [K * S * V], top-k [K * S, K']
    tokens: Tensor  # [B, T] ids
    places: Tensor  # [B, T] flat indices into a table [K, S, V]
    logp: Tensor  # [B, T] log mu
    advantages: Tensor  # [B]
    keep: Tensor  # [B] bool
    permutation: Tensor | None  # [B, T] of each response's positions, for the rule that shuffles weights


def process_of(spec: ExactRun) -> Process:
    """The process on which `spec` trains, with its policy's stretches."""
    data = spec.data
    horizon = spec.rollout.max_response_length
    return Process(data.family, data.vocabulary, horizon, data.allowed_slips, spec.model.stretches)


class Learner:
    """Parameters, optimiser and random generators of a run."""

    def __init__(self, spec: ExactRun) -> None:
        self.spec, self.process = spec, process_of(spec)
        self.tables = PolicyTables(self.process)
        self.start, self.problems, self.sampling, self.shuffling, self.engine = (
            torch.Generator().manual_seed(spec.seed * 1000 + stream) for stream in range(5)
        )
        self.parameters = starting_parameters(self.process, spec.model, self.start).requires_grad_()
        optim = spec.optim
        self.optimizer = AdamW(
            [self.parameters],
            lr=optim.learning_rate,
            betas=(optim.beta1, optim.beta2),
            weight_decay=optim.weight_decay,
            fused=True,
        )
        self.past: deque[Tensor] = deque()
        self.loss = RuleLoss(spec)
        self.diagnostics = Diagnostics(spec.rule, self.process.horizon)

    def log_policy(self, temperature: float) -> Tensor:
        """log pi [K, S, V] at `temperature`, differentiable in the parameters."""
        return (self.tables.logits(self.parameters) / temperature).log_softmax(-1)

    @torch.no_grad()
    def log_rollout_policy(self) -> Tensor:
        """log mu [K, S, V] of the next rollout batch: stale, rounded and disturbed as the config says."""
        spec = self.spec
        self.past.append(self.parameters.detach().clone())
        parameters = self.past[0]
        if len(self.past) > spec.rollout.staleness:
            self.past.popleft()
        if spec.rollout.precision == "bfloat16":
            parameters = parameters.bfloat16().double()
        logits = self.tables.logits(parameters)
        if spec.model.mismatch:
            logits = logits + spec.model.mismatch * student(tuple(logits.shape), self.engine)
        return (logits / spec.rollout.temperature).log_softmax(-1)

    def draw(self) -> tuple[Tensor, Tensor]:
        """The starting states [B] of a rollout batch, groups together, and the draws [B, T] that decide its tokens."""
        batch, process = self.spec.batch, self.process
        starts = torch.from_numpy(process.starts)
        chosen = torch.randint(len(starts), (batch.prompts,), generator=self.problems)
        rows = batch.prompts * batch.responses
        uniforms = torch.rand((rows, process.horizon), generator=self.sampling, dtype=torch.float64)
        return starts[chosen].repeat_interleave(batch.responses), uniforms

    def rollout(
        self, log_mu: Tensor, tokens: Tensor, places: Tensor, rewards: Tensor
    ) -> tuple[GradedResponses, float]:
        """The graded batch of `tokens` and `places` [B, T] with `rewards` [B]; the share of groups without variance."""
        spec, symbols = self.spec, self.process.vocabulary
        rows = log_mu.view(-1, symbols)
        top = rows.topk(recorded_tokens(spec.divergence, symbols), -1)
        ids = torch.arange(symbols).repeat(len(rows))
        mu = Recorded(ids, rows.flatten(), top.indices, top.values)
        group = torch.arange(spec.batch.prompts).repeat_interleave(spec.batch.responses)
        advantages, keep = group_advantages(rewards, group, normalize_std=spec.advantage.normalize_std)
        share = 1 - float(keep.double().mean())
        if not spec.advantage.drop_zero_variance:
            keep = torch.ones_like(keep)
        permutation = None
        if self.loss.shuffles:
            permutation = own_permutation(torch.ones_like(tokens, dtype=torch.bool), self.shuffling)
        return GradedResponses(mu, tokens, places, mu.logp[places], advantages, keep, permutation), share

    def update(self, rollout: GradedResponses, watched: int | None = None) -> dict[str, float]:
        """One optimiser step per minibatch; groups stay whole, dropped groups leave their minibatch smaller.

        `watched`: the training step, if it enters the diagnostics. Raises NotFinite before an update that would destroy
        the parameters.
        """
        size = self.spec.batch.minibatch_prompts * self.spec.batch.responses
        stats, losses, norms, error = [], [], [], [0.0, 0.0]
        for start in range(0, len(rollout.keep), size):
            rows = torch.arange(start, start + size)
            rows = rows[rollout.keep[rows]]
            if len(rows) == 0:
                continue
            loss, rule_stats, mismatch = self.objective(rollout, rows, watched)
            norms.append(self._descend(loss))
            stats.append(rule_stats)
            losses.append(float(loss.detach()))
            error = [a + b for a, b in zip(error, mismatch, strict=True)]
        self.diagnostics.end_step()
        if not losses:
            return {}  # every group had equal rewards: nothing to learn from this batch
        metrics = {f"rule/{name}": value for name, value in summarise(merge(stats)).items()}
        return metrics | {
            "train/loss": sum(losses) / len(losses),
            "train/grad_norm": sum(norms) / len(norms),
            "train/relative_logprob_error": error[0] / error[1] if error[1] else 0.0,
        }

    def objective(
        self, rollout: GradedResponses, rows: Tensor, watched: int | None = None
    ) -> tuple[Tensor, dict[str, Tensor], tuple[float, float]]:
        """Loss, statistics of the rule and the two sums of the relative log-prob error on the responses `rows`."""
        places, rollout_logp = rollout.places[rows], rollout.logp[rows]
        log_pi = self.log_policy(self.spec.rollout.temperature)
        logp = log_pi.flatten().gather(0, places.flatten()).view(places.shape)
        seen = logp.detach()
        if not bool(seen.sum().isfinite()):
            raise NotFinite("log-probabilities are not finite")
        divergence = self._divergence(log_pi.detach(), rollout.mu, places)
        valid = torch.ones_like(places, dtype=torch.bool)
        permutation = None if rollout.permutation is None else rollout.permutation[rows]
        spread = rollout.advantages[rows][:, None].expand_as(seen)
        loss, output = self.loss(Tokens(logp, rollout_logp, spread, valid, divergence, permutation))
        if watched is not None:
            view = ObservedTokens(seen, rollout_logp, divergence, spread, valid, rollout.tokens[rows])
            self.diagnostics.see(watched, view, token_names)
        difference, scale = relative_logprob_error(seen, rollout_logp, valid)
        return loss, output.stats, (float(difference), float(scale))

    def _divergence(self, log_pi: Tensor, mu: Recorded, places: Tensor) -> Tensor:
        """D [B, T] at `places`, measured once for each table entry [K * S * V] that some response visited."""
        symbols = self.process.vocabulary
        count = log_pi.numel()
        visited = torch.zeros(count, dtype=torch.bool)
        visited[places.flatten()] = True
        entries = visited.nonzero()[:, 0]
        states = entries // symbols
        recorded = Recorded(mu.tokens[entries], mu.logp[entries], mu.topk_ids[states], mu.topk_logp[states])
        rows, logp = log_pi.view(-1, symbols)[states], log_pi.flatten()[entries]
        table = log_pi.new_zeros(count)
        table[entries] = measured_divergence(self.spec.divergence, rows, logp, recorded)
        return table[places]

    def _descend(self, loss: Tensor) -> float:
        """One optimiser step; returns the gradient norm before clipping."""
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        norm = float(torch.nn.utils.clip_grad_norm_([self.parameters], self.spec.optim.clip_grad_norm))
        if not norm < float("inf"):
            raise NotFinite(f"gradient norm is {norm}")
        self.optimizer.step()
        return norm

    def state(self) -> dict[str, Any]:
        """The state that determines the rest of this run."""
        return {
            "parameters": self.parameters.detach(),
            "optimizer": self.optimizer.state_dict(),
            "past": list(self.past),
            "diagnostics": self.diagnostics.state(),
            **{name: getattr(self, name).get_state() for name in GENERATORS},
        }

    def load_state(self, state: dict[str, Any]) -> None:
        """Continue from `state`, which has the structure of this learner's state."""
        with torch.no_grad():
            self.parameters.copy_(state["parameters"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.past = deque(state["past"])
        self.diagnostics.load_state(state["diagnostics"])
        for name in GENERATORS:
            getattr(self, name).set_state(state[name])


GENERATORS = ("problems", "sampling", "shuffling", "engine")


def token_names(ids: list[int]) -> list[str]:
    """Readable text of tokens: the branch token, and ordinary symbols by number."""
    return ["fork" if token == BRANCH else str(token) for token in ids]
