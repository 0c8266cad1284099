"""The layout of a batch's tokens and their attention. All other operations treat every token alike.

The transformer works on a flat batch of N tokens; a layout gives each its position and carries out attention
on the flat queries [N, H, D], keys and values [N, KV, D].
"""

from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor


class KVCache:
    """Keys and values of every layer, preallocated: [layers, B, kv_heads, capacity, head_dim]."""

    def __init__(self, shape: tuple[int, int, int, int, int], like: Tensor) -> None:
        self.keys, self.values = like.new_empty(shape), like.new_empty(shape)
        self.length = 0

    def rows(self, index: Tensor, capacity: int) -> "KVCache":
        """A cache of the rows at `index` [B'], with room for `capacity` positions."""
        layers, _, heads, _, width = self.keys.shape
        chosen = KVCache((layers, len(index), heads, capacity, width), self.keys)
        chosen.length = self.length
        for new, old in ((chosen.keys, self.keys), (chosen.values, self.values)):
            new[:, :, :, : self.length] = old[:, index, :, : self.length]
        return chosen

    def append(self, layer: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Append the new k, v [B, KV, S, D] of `layer`; returns all, [B, KV, length + S, D]."""
        end = self.length + k.shape[2]
        self.keys[layer, :, :, self.length : end] = k
        self.values[layer, :, :, self.length : end] = v
        return self.keys[layer, :, :, :end], self.values[layer, :, :, :end]


class TokenLayout(Protocol):
    """The interface of a batch for the transformer."""

    positions: Tensor  # [N] of each token in its sequence

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Attention of the flat q [N, H, D] over k, v [N, KV, D] and whatever the layout adds; [N, H * D]."""
        ...


class Rows:
    """B rows of S tokens, which follow those in a cache.

    `present` [B, past + S] is True where a position holds a real token; None where all do. Positions after
    a row's end need no mask, because attention is causal.
    """

    def __init__(
        self, shape: tuple[int, int], present: Tensor | None, cache: KVCache | None, device: torch.device
    ) -> None:
        self.batch, self.length = shape
        self.cache = cache
        past = 0 if cache is None else cache.length
        own = torch.arange(past, past + self.length, device=device)
        self.positions = own.repeat(self.batch)
        if present is None and past and self.length > 1:
            present = torch.ones(1, past + self.length, dtype=torch.bool, device=device)
        self.mask = None if present is None else _visible(present, own)

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        q, k, v = (_heads_first(x, self.batch) for x in (q, k, v))
        if self.cache is not None:
            k, v = self.cache.append(layer, k, v)
        if self.length == 1:
            return _one_query(q, k, v, self.mask).flatten(1)
        mixed = F.scaled_dot_product_attention(
            q, k, v, attn_mask=self.mask, is_causal=self.mask is None, enable_gqa=q.shape[1] != k.shape[1]
        )
        return mixed.transpose(1, 2).flatten(0, 1).flatten(1)


class SharedPrompts:
    """G prompts of P tokens, then B responses of T tokens that continue them: each prompt is read once.

    `group` [B] is the prompt of each response; `present` [G, P] is True at the real tokens of prompts (None:
    all are).
    """

    def __init__(self, prompts: tuple[int, int], group: Tensor, length: int, present: Tensor | None) -> None:
        self.group, (count, self.prompt_length) = group, prompts
        device = group.device
        self.prompts = Rows(prompts, present, None, device)
        self.split = [count * self.prompt_length, len(group) * length]
        own = torch.arange(self.prompt_length, self.prompt_length + length, device=device)
        self.positions = torch.cat([self.prompts.positions, own.repeat(len(group))])
        everything = torch.ones(
            1 if present is None else len(group), self.prompt_length + length, dtype=torch.bool, device=device
        )
        if present is not None:
            everything[:, : self.prompt_length] = present[group]
        self.mask = _visible(everything, own)

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        (q0, q1), (k0, k1), (v0, v1) = (x.split(self.split) for x in (q, k, v))
        before = self.prompts.attend(layer, q0, k0, v0)
        if not len(q1):  # responses of one token have no inputs
            return before
        count, batch = self.prompts.batch, len(self.group)
        q1 = _heads_first(q1, batch)
        keys, values = (
            torch.cat([_heads_first(x, count)[self.group], _heads_first(y, batch)], dim=2)
            for x, y in ((k0, k1), (v0, v1))
        )
        mixed = F.scaled_dot_product_attention(
            q1, keys, values, attn_mask=self.mask, enable_gqa=q.shape[1] != k.shape[1]
        )
        return torch.cat([before, mixed.transpose(1, 2).flatten(0, 1).flatten(1)])


def _heads_first(x: Tensor, batch: int) -> Tensor:
    """[batch * S, H, D] -> [batch, H, S, D]."""
    return x.view(batch, -1, *x.shape[1:]).transpose(1, 2)


def _visible(present: Tensor, query: Tensor) -> Tensor:
    """The attention mask [B, 1, S, L] of queries at positions `query` [S], given `present` [B, L]."""
    key = torch.arange(present.shape[1], device=present.device)
    # A padded query may attend to itself: an empty softmax row would be NaN and poison gradients.
    return ((present[:, None] & (key <= query[:, None])) | (key == query[:, None]))[:, None]


def _one_query(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
    """Attention of one query per row [B, H, 1, D] (decoding): the heads of a group are the rows of one product.

    On a CPU this takes two thirds of the time of `scaled_dot_product_attention`.
    """
    batch, _, _, width = q.shape
    grouped = q.reshape(batch, k.shape[1], -1, width)
    scores = grouped @ k.transpose(-1, -2) * width**-0.5
    if mask is not None:
        scores = scores.masked_fill(~mask, float("-inf"))
    return scores.softmax(-1) @ v
