"""The policy of the embedded core, and sampling from it.

Sampling with a preallocated key-value cache; every token comes with the policy's log-probabilities.
"""

import copy
from collections import deque
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from cppo_lab.cores.mini.model import Transformer
from cppo_lab.cores.mini.tasks import Tokenizer

COMPACT_BELOW = 0.75  # share of rows still running below which the finished ones are dropped from the batch


@dataclass(frozen=True)
class Rollout:
    """B responses of at most T tokens, right-padded; `topk_*` hold the policy's K most likely tokens."""

    prompts: Tensor  # [G, P] token ids
    group: Tensor  # [B] the prompt of each response
    responses: Tensor  # [B, T] token ids
    lengths: Tensor  # [B] tokens, the end token included
    logp: Tensor  # [B, T] log mu(y_t), of the untruncated softmax at the sampling temperature; 0 if K = 0, like entropy
    topk_ids: Tensor  # [B, T, K]
    topk_logp: Tensor  # [B, T, K]
    entropy: Tensor  # [B, T] nats

    def valid(self) -> Tensor:
        """True at real response tokens [B, T]."""
        position = torch.arange(self.responses.shape[1], device=self.responses.device)
        return position < self.lengths[:, None]

    def logits(self, model: Transformer, pad: int) -> Tensor:
        """The logits of `model` at every response token [B, T, V].

        Only prompts are padded on the left. What follows a response's end is not masked: no real token sees it,
        and a sampled token is real whatever its id (an unskilled policy may well sample the padding symbol).
        """
        real = self.prompts != pad
        return model.continuations(self.prompts, self.group, self.responses, None if real.all() else real)

    def select(self, index: Tensor) -> "Rollout":
        """The responses at `index`, with their prompts, cut to the longest of them."""
        used, group = self.group[index].unique(return_inverse=True)
        width = int(self.lengths[index].max())
        per_token = self.responses, self.logp, self.topk_ids, self.topk_logp, self.entropy
        responses, *recorded = (part[index, :width] for part in per_token)
        return Rollout(self.prompts[used], group, responses, self.lengths[index], *recorded)


def draw(probabilities: Tensor, generator: torch.Generator) -> Tensor:
    """One token per row of `probabilities` [B, V] -> [B], by inversion of the cumulative distribution.

    Many times faster than `multinomial` or exponential races on a CPU. Tokens of probability 0 are never drawn;
    those under 1e-7 may be drawn less often than that, because the running sum is float32.
    """
    cumulative = probabilities.cumsum(-1)
    point = torch.rand(len(probabilities), 1, generator=generator, device=probabilities.device)
    place = torch.searchsorted(cumulative, point * cumulative[:, -1:], right=True)
    return place[:, 0].clamp_(max=probabilities.shape[1] - 1)


def draw_nucleus(probabilities: Tensor, top_p: float, generator: torch.Generator) -> Tensor:
    """One token per row [B] from the smallest set of most likely tokens whose mass reaches `top_p`.

    By rejection: a token is in the set iff the tokens more likely than it have less mass than `top_p`. At most
    1 - top_p of the draws are repeated, and nothing is sorted. Tokens of equal probability are kept or left together.
    """
    tokens = draw(probabilities, generator)
    rows = torch.arange(len(tokens), device=tokens.device)
    while len(rows):
        candidates = probabilities[rows]
        drawn = candidates.gather(-1, tokens[rows, None])
        before = torch.where(candidates > drawn, candidates, 0.0).sum(-1)
        rows = rows[before >= top_p]
        tokens[rows] = draw(probabilities[rows], generator)
    return tokens


@torch.no_grad()
def sample(
    model: Transformer,
    prompts: Tensor,
    tokenizer: Tokenizer,
    *,
    copies: int = 1,
    max_response_length: int,
    temperature: float,
    top_p: float,
    generator: torch.Generator,
    top_k: int = 0,
) -> Rollout:
    """Sample `copies` responses for each of the prompts [N, P]; the copies of a prompt are neighbours.

    `top_k` > 0 records log-probabilities, entropies and the K most likely tokens of the policy, all of the
    untruncated softmax at `temperature`; 0 records nothing but tokens (validation).
    """
    device = prompts.device
    group = torch.arange(len(prompts), device=device).repeat_interleave(copies)
    out = _Output(len(group), max_response_length, top_k, tokenizer.pad, device)
    real = prompts != tokenizer.pad
    present = None if real.all() else real
    # Copies share the prompt: it is read once.
    cache = model.new_cache(*prompts.shape)
    logits = model.next_token(prompts, present, cache)[group]
    capacity = prompts.shape[1] + max_response_length
    cache, present = cache.rows(group, capacity), None if present is None else present[group]
    rows = torch.arange(len(group), device=device)  # of the output, for the rows of the batch
    running = torch.ones(len(group), dtype=torch.bool, device=device)
    for position in range(max_response_length):
        logp = (logits.float() / temperature).log_softmax(-1)
        mass = logp.exp()
        tokens = draw(mass, generator) if top_p == 1 else draw_nucleus(mass, top_p, generator)
        out.write(position, rows[running], logp[running], tokens[running])
        running &= tokens != tokenizer.eos
        still = int(running.sum())
        if still == 0 or position == max_response_length - 1:
            break
        if still < COMPACT_BELOW * len(running):
            unfinished = running.nonzero()[:, 0]
            rows, tokens, cache = rows[unfinished], tokens[unfinished], cache.rows(unfinished, capacity)
            present, running = None if present is None else present[unfinished], running[unfinished]
        if present is not None:
            present = torch.cat([present, torch.ones_like(present[:, :1])], dim=1)
        logits = model.next_token(tokens[:, None], present, cache)
    return out.rollout(prompts, group)


class _Output:
    """Buffers for the tokens and the sampling policy's log-probabilities of each."""

    def __init__(self, batch: int, horizon: int, top_k: int, pad: int, device: torch.device) -> None:
        self.top_k = top_k
        self.responses = torch.full((batch, horizon), pad, device=device)
        self.lengths = torch.zeros(batch, dtype=torch.long, device=device)
        self.logp = torch.zeros(batch, horizon, device=device)
        self.entropy = torch.zeros(batch, horizon, device=device)
        self.topk_ids = torch.zeros(batch, horizon, top_k, dtype=torch.long, device=device)
        self.topk_logp = torch.full((batch, horizon, top_k), float("-inf"), device=device)

    def write(self, position: int, rows: Tensor, logp: Tensor, tokens: Tensor) -> None:
        """Write the tokens [R] of output `rows` [R] at `position`, with the policy's log-probabilities [R, V]."""
        self.responses[rows, position] = tokens
        self.lengths[rows] += 1
        if not self.top_k:
            return
        self.logp[rows, position] = logp.gather(-1, tokens[:, None])[:, 0]
        self.entropy[rows, position] = -(logp.exp() * logp).sum(-1)
        self.topk_logp[rows, position], self.topk_ids[rows, position] = logp.topk(self.top_k, dim=-1)

    def rollout(self, prompts: Tensor, group: Tensor) -> Rollout:
        """The rollout of everything that was written."""
        recorded = self.logp, self.topk_ids, self.topk_logp, self.entropy
        return Rollout(prompts, group, self.responses, self.lengths, *recorded)


# The rollout policy mu: the policy in training, or a policy that differs from it as rollout engines' policies do.
#
# `staleness` makes mu older by that many rollout batches (asynchronous training); `precision` bfloat16 rounds
# its weights and arithmetic, as inference engines do. Both make mu differ from pi before the first update.


class RolloutPolicy:
    """Gives the model to sample from, once per rollout batch."""

    def __init__(self, model: Transformer, staleness: int, precision: str) -> None:
        self.model, self.staleness = model, staleness
        # Whether mu is the policy before a batch's updates, in its own arithmetic.
        self.is_trained = staleness == 0 and precision == "float32"
        self._copy = None if self.is_trained else copy.deepcopy(model).to(getattr(torch, precision))
        self._past: deque[dict[str, torch.Tensor]] = deque()

    def current(self) -> Transformer:
        """mu of the next rollout batch: the weights of `staleness` batches ago."""
        if self._copy is None:
            return self.model
        self._past.append({name: tensor.clone() for name, tensor in self.model.state_dict().items()})
        self._copy.load_state_dict(self._past[0])
        if len(self._past) > self.staleness:
            self._past.popleft()
        return self._copy

    def state(self) -> list[dict[str, Any]]:
        """The state for a checkpoint."""
        return list(self._past)

    def load_state(self, state: list[dict[str, Any]]) -> None:
        """Continue from `state`."""
        self._past = deque(state)
