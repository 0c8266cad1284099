"""One run: its parameters, its optimiser, its random streams, and its updates on a rollout batch.

The trainer does sampling and exact evaluation, for many runs together.
"""

from collections import deque
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from cppo_lab.cores.diagnostics import ObservedTokens
from cppo_lab.cores.exact.process import BRANCH, PolicyTables, Process, starting_parameters, student
from cppo_lab.cores.rule_loss import (
    Recorded,
    RuleLoss,
    measured_divergence,
    own_permutation,
    recorded_tokens,
)
from cppo_lab.cores.trainer import Minibatch, SteppedTrainer
from cppo_lab.errors import NotFinite
from cppo_lab.maths.metrics import relative_logprob_error
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


class Learner(SteppedTrainer):
    """Parameters and random generators of a run. Samples are not text: it keeps no answers and no weights."""

    GENERATORS = ("problems", "sampling", "shuffling", "engine")

    def __init__(self, spec: ExactRun) -> None:
        self.spec, self.process = spec, process_of(spec)
        self.tables = PolicyTables(self.process)
        self.start, self.problems, self.sampling, self.shuffling, self.engine = (
            torch.Generator().manual_seed(spec.seed * 1000 + stream) for stream in range(5)
        )
        self.parameters = starting_parameters(self.process, spec.model, self.start).requires_grad_()
        super().__init__(spec, torch.device("cpu"), [self.parameters])
        self.past: deque[Tensor] = deque()
        self.loss = RuleLoss(spec)

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
        advantages, keep, share = self.graded(rewards, group)
        permutation = None
        if self.loss.shuffles:
            permutation = own_permutation(torch.ones_like(tokens, dtype=torch.bool), self.shuffling)
        return GradedResponses(mu, tokens, places, mu.logp[places], advantages, keep, permutation), share

    def update(self, rollout: GradedResponses, watched: int | None = None) -> dict[str, float]:
        """The updates of a batch. `watched`: the training step, if it enters the diagnostics."""
        return self.updates(rollout.keep, lambda rows: self.objective(rollout, rows, watched))

    def objective(self, rollout: GradedResponses, rows: Tensor, watched: int | None = None) -> Minibatch:
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

    def policy_state(self) -> dict[str, Any]:
        return {"parameters": self.parameters.detach(), "past": list(self.past)}

    def load_policy(self, state: dict[str, Any]) -> None:
        with torch.no_grad():
            self.parameters.copy_(state["parameters"])
        self.past = deque(state["past"])


def token_names(ids: list[int]) -> list[str]:
    """Readable text of tokens: the branch token, and ordinary symbols by number."""
    return ["fork" if token == BRANCH else str(token) for token in ids]
