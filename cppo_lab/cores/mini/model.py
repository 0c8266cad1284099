"""The small transformer of the embedded core, sampling from it, and the rollout policy that it is sampled as.

The transformer works on a flat batch of N tokens; a layout gives each its position and carries out attention
on the flat queries [N, H, D], keys and values [N, KV, D].
"""

import copy
from collections import deque
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cppo_lab.cores.mini.tasks import Tokenizer
from cppo_lab.spec import Architecture

# The layout of a batch's tokens and their attention. All other operations treat every token alike.


class KVCache:
    """Keys and values of every layer, preallocated: [2, layers, B, kv_heads, capacity, head_dim]."""

    def __init__(self, shape: tuple[int, int, int, int, int], like: Tensor) -> None:
        self.kept, self.length = like.new_empty((2, *shape)), 0

    def rows(self, index: Tensor, capacity: int) -> "KVCache":
        """A cache of the rows at `index` [B'], with room for `capacity` positions."""
        _, layers, _, heads, _, width = self.kept.shape
        chosen = KVCache((layers, len(index), heads, capacity, width), self.kept)
        chosen.length = self.length
        chosen.kept[..., : self.length, :] = self.kept[..., : self.length, :].index_select(2, index)
        return chosen

    def append(self, layer: int, *new: Tensor) -> Tensor:
        """Append the new keys and values [B, KV, S, D] of `layer`; returns all, [2, B, KV, length + S, D]."""
        end = self.length + new[0].shape[2]
        for kept, part in zip(self.kept[:, layer], new, strict=True):
            kept[:, :, self.length : end] = part
        return self.kept[:, layer, :, :, :end]


class Rows:
    """B rows of S tokens, which follow those in a cache; S is 1 if that has any."""

    def __init__(self, tokens: Tensor, cache: KVCache | None = None) -> None:
        self.batch, length = tokens.shape
        self.cache, past = cache, 0 if cache is None else cache.length
        positions = torch.arange(past, past + length, device=tokens.device)
        self.positions = positions if length == 1 else positions.repeat(self.batch)  # one is that of all rows

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Attention of the flat q [N, H, D] over k, v [N, KV, D] and the cache; [N, H * D]."""
        q, k, v = (_heads_first(x, self.batch) for x in (q, k, v))
        if self.cache is not None:
            k, v = self.cache.append(layer, k, v)
        if q.shape[2] > 1:
            return _attention(q, k, v)
        # Decoding, one query per row: the heads of a group are the rows of one product. On a CPU this takes two thirds
        # of the time of `scaled_dot_product_attention`.
        width = q.shape[3]
        scores = q.reshape(self.batch, k.shape[1], -1, width) @ k.transpose(-1, -2) * width**-0.5
        return (scores.softmax(-1) @ v).flatten(1)


class SharedPrompts:
    """G prompts of P tokens, then B responses of T tokens that continue them: each prompt is read once.

    `group` [B] is the prompt of each response.
    """

    def __init__(self, prompts: Tensor, group: Tensor, responses: Tensor) -> None:
        self.group, self.prompts = group, Rows(prompts)
        self.split = [prompts.numel(), responses.numel()]
        past, length = prompts.shape[1], responses.shape[1]
        positions = torch.arange(past, past + length, device=group.device)
        self.positions = torch.cat([self.prompts.positions, positions.repeat(len(group))])
        self.mask = torch.ones(length, past + length, dtype=torch.bool, device=group.device).tril(past)

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Attention of the flat q [N, H, D] over k, v [N, KV, D]; [N, H * D]."""
        (q0, q1), (k0, k1), (v0, v1) = (x.split(self.split) for x in (q, k, v))
        before = self.prompts.attend(layer, q0, k0, v0)
        if not len(q1):  # responses of one token have no inputs
            return before
        count, batch = self.prompts.batch, len(self.group)
        keys, values = (
            torch.cat([_heads_first(x, count)[self.group], _heads_first(y, batch)], dim=2)
            for x, y in ((k0, k1), (v0, v1))
        )
        return torch.cat([before, _attention(_heads_first(q1, batch), keys, values, self.mask)])


def _heads_first(x: Tensor, batch: int) -> Tensor:
    """[batch * S, H, D] -> [batch, H, S, D]."""
    return x.view(batch, -1, *x.shape[1:]).transpose(1, 2)


def _attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
    """Attention of q [B, H, S, D] over k, v [B, KV, L, D]; [B * S, H * D]. Without a mask, it is causal."""
    mixed = F.scaled_dot_product_attention(
        q, k, v, attn_mask=mask, is_causal=mask is None, enable_gqa=q.shape[1] != k.shape[1]
    )
    return mixed.transpose(1, 2).flatten(0, 1).flatten(1)


# A small decoder-only transformer like Qwen3: RMSNorm, RoPE, grouped-query attention with QK-norm, SwiGLU.


class RMSNorm(nn.Module):
    """x / rms(x) * g over the last axis."""

    def __init__(self, width: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, (x.shape[-1],), self.gain, self.eps)


class Attention(nn.Module):
    """Causal grouped-query attention; queries and keys are RMS-normalised per head before rotation."""

    def __init__(self, arch: Architecture) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.head_dim = arch.heads, arch.kv_heads, arch.head_dim
        self.qkv = nn.Linear(arch.width, (arch.heads + 2 * arch.kv_heads) * arch.head_dim, bias=False)
        self.out = nn.Linear(arch.heads * arch.head_dim, arch.width, bias=False)
        self.q_norm, self.k_norm = RMSNorm(arch.head_dim), RMSNorm(arch.head_dim)

    def forward(
        self, x: Tensor, rope: tuple[Tensor, Tensor], layout: Rows | SharedPrompts, layer: int
    ) -> Tensor:
        qkv = self.qkv(x).view(len(x), -1, self.head_dim)
        qk, v = qkv.split([self.heads + self.kv_heads, self.kv_heads], dim=1)
        # Queries and keys are processed together, with different gains: half as many calls.
        gain = torch.cat(
            [self.q_norm.gain.expand(self.heads, -1), self.k_norm.gain.expand(self.kv_heads, -1)]
        )
        qk = F.rms_norm(qk, (self.head_dim,), eps=self.q_norm.eps) * gain
        cos, sin = rope
        q, k = (qk * cos + qk.roll(self.head_dim // 2, -1) * sin).split([self.heads, self.kv_heads], dim=1)
        return self.out(layout.attend(layer, q, k, v))


class Block(nn.Module):
    """Pre-norm transformer block: attention, then SwiGLU."""

    def __init__(self, arch: Architecture) -> None:
        super().__init__()
        self.attention_norm, self.mlp_norm = RMSNorm(arch.width), RMSNorm(arch.width)
        self.attention = Attention(arch)
        self.gate_up = nn.Linear(arch.width, 2 * arch.mlp_width, bias=False)
        self.down = nn.Linear(arch.mlp_width, arch.width, bias=False)

    def forward(
        self, x: Tensor, rope: tuple[Tensor, Tensor], layout: Rows | SharedPrompts, layer: int
    ) -> Tensor:
        x = x + self.attention(self.attention_norm(x), rope, layout, layer)
        gate, up = self.gate_up(self.mlp_norm(x)).chunk(2, dim=-1)
        return x + self.down(F.silu(gate) * up)


class Transformer(nn.Module):
    """Token ids to logits; input and output embeddings are tied, as in the small Qwen3 models.

    No row is padded on the left; no real token sees what follows a row's end, because attention is causal.
    """

    cos: Tensor  # [context, 1, head_dim], as `sin`
    sin: Tensor

    def __init__(self, arch: Architecture, vocabulary: int, context: int) -> None:
        super().__init__()
        self.arch, self.context = arch, context
        self.embedding = nn.Embedding(vocabulary, arch.width)
        self.blocks = nn.ModuleList(Block(arch) for _ in range(arch.layers))
        self.norm = RMSNorm(arch.width)
        # Rotary position embedding in the half-split layout, x * cos + x.roll(head_dim // 2, -1) * sin: the first
        # half of the sine is negative.
        powers = -torch.arange(0, arch.head_dim, 2, dtype=torch.float32) / arch.head_dim
        angle = torch.arange(context, dtype=torch.float32)[:, None, None] * arch.rope_theta**powers
        cos, sin = angle.cos(), angle.sin()
        self.register_buffer("cos", torch.cat([cos, cos], dim=-1), persistent=False)
        self.register_buffer("sin", torch.cat([-sin, sin], dim=-1), persistent=False)
        self.apply(self._initialise)

    @staticmethod
    def _initialise(module: nn.Module) -> None:
        if isinstance(module, nn.Linear | nn.Embedding):
            nn.init.normal_(module.weight, std=0.05)

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits [B, S, V] for tokens [B, S], S at most the context."""
        return F.linear(self._states(tokens, Rows(tokens)).view(*tokens.shape, -1), self.embedding.weight)

    def next_token(self, tokens: Tensor, cache: KVCache) -> Tensor:
        """Logits [B, V] of the token after tokens [B, S], which are a prompt or one token behind what is in the cache.

        Their keys and values are appended to it.
        """
        states = self._states(tokens, Rows(tokens, cache)).view(*tokens.shape, -1)
        cache.length += tokens.shape[1]
        return F.linear(states[:, -1], self.embedding.weight)

    def continuations(self, prompts: Tensor, group: Tensor, responses: Tensor) -> Tensor:
        """Logits [B, T, V] for each token of `responses` [B, T], which continue `prompts` [G, P].

        `group` [B] is the prompt of each response. Equal to `forward` on the joined sequences, but a prompt is read
        once for all its responses.
        """
        inputs = responses[:, :-1]
        layout = SharedPrompts(prompts, group, inputs)
        x = self._states(torch.cat([prompts.flatten(), inputs.flatten()]), layout)
        before, after = x.split(layout.split)
        first = before.view(*prompts.shape, -1)[:, -1][group]
        states = torch.cat([first[:, None], after.view(*inputs.shape, first.shape[-1])], dim=1)
        return F.linear(states, self.embedding.weight)

    def _states(self, tokens: Tensor, layout: Rows | SharedPrompts) -> Tensor:
        """Last hidden states [N, width] of N tokens."""
        rope = (self.cos[layout.positions], self.sin[layout.positions])
        x = self.embedding(tokens.flatten())
        for layer, block in enumerate(self.blocks):
            x = block(x, rope, layout, layer)
        return self.norm(x)


# Sampling with a preallocated key-value cache; every token comes with the policy's log-probabilities.

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

    def logits(self, model: Transformer) -> Tensor:
        """The logits of `model` at every response token [B, T, V]."""
        return model.continuations(self.prompts, self.group, self.responses)

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
        rows = rows[(before > 0) & (before >= top_p)]  # a `top_p` that float32 rounds to 0 would keep none
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
    group = torch.arange(len(prompts), device=prompts.device).repeat_interleave(copies)
    shape = len(group), max_response_length
    zeros = partial(torch.zeros, device=prompts.device)
    rollout = Rollout(
        prompts,
        group,
        responses=torch.full(shape, tokenizer.pad, device=prompts.device),
        lengths=zeros(len(group), dtype=torch.long),
        logp=zeros(shape),
        topk_ids=zeros((*shape, top_k), dtype=torch.long),
        topk_logp=torch.full((*shape, top_k), float("-inf"), device=prompts.device),
        entropy=zeros(shape),
    )
    # Copies share the prompt: it is read once.
    arch, weight = model.arch, model.embedding.weight
    cache = KVCache((arch.layers, len(prompts), arch.kv_heads, prompts.shape[1], arch.head_dim), weight)
    logits = model.next_token(prompts, cache)[group]
    capacity = prompts.shape[1] + max_response_length
    cache = cache.rows(group, capacity)
    rows = torch.arange(len(group), device=prompts.device)  # of the output, for the rows of the batch
    running = torch.arange(len(group), device=prompts.device)  # rows of the batch that have not ended
    for position in range(max_response_length):
        logp = (logits.float() / temperature).log_softmax(-1)
        mass = logp.exp()
        tokens = draw(mass, generator) if top_p == 1 else draw_nucleus(mass, top_p, generator)
        at, sampled = (rows[running], position), tokens[running]
        rollout.responses[at] = sampled
        rollout.lengths[at[0]] += 1
        if top_k:
            logp = logp[running]
            rollout.logp[at] = logp.gather(-1, sampled[:, None])[:, 0]
            rollout.entropy[at] = -(logp.exp() * logp).sum(-1)
            rollout.topk_logp[at], rollout.topk_ids[at] = logp.topk(top_k, dim=-1)
        running = running[sampled != tokenizer.eos]
        if not len(running) or position == max_response_length - 1:
            break
        if len(running) < COMPACT_BELOW * len(rows):
            rows, tokens, cache = rows[running], tokens[running], cache.rows(running, capacity)
            running = torch.arange(len(rows), device=prompts.device)
        logits = model.next_token(tokens[:, None], cache)
    return rollout


# The rollout policy mu: the policy in training, or a policy that differs from it as rollout engines' policies do.
#
# `staleness` makes mu older by that many rollout batches (asynchronous training); `precision` bfloat16 rounds
# its weights and arithmetic, as inference engines do. Both make mu differ from pi before the first update.


class RolloutPolicy:
    """Gives the model to sample from, once per rollout batch."""

    def __init__(self, model: Transformer, staleness: int, precision: str) -> None:
        self.model, self.staleness = model, staleness
        # Whether mu is the policy before a batch's updates, in its own arithmetic.
        self.is_pi_old = staleness == 0 and precision == "float32"
        self._copy = None if self.is_pi_old else copy.deepcopy(model).to(getattr(torch, precision))
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
