"""A small decoder-only transformer of Qwen3's make: RMSNorm, RoPE, grouped-query attention with QK-norm, SwiGLU."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cppo_lab.spec import Architecture


class RMSNorm(nn.Module):
    """x / rms(x) * g over the last axis."""

    def __init__(self, width: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, (x.shape[-1],), self.gain, self.eps)


def rope_tables(length: int, head_dim: int, theta: float) -> tuple[Tensor, Tensor]:
    """Cosine and sine [length, head_dim] of rotary position embedding in the half-split layout."""
    frequency = theta ** (-torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim)
    angle = torch.arange(length, dtype=torch.float32)[:, None] * frequency[None, :]
    angle = torch.cat([angle, angle], dim=-1)
    return angle.cos(), angle.sin()


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Apply rotary embedding to x [B, H, S, head_dim] with tables [S, head_dim]."""
    half = x.shape[-1] // 2
    turned = torch.cat([-x[..., half:], x[..., :half]], dim=-1)
    return x * cos + turned * sin


class KVCache:
    """Keys and values of every layer, preallocated: [layers, B, kv_heads, capacity, head_dim]."""

    def __init__(self, arch: Architecture, batch: int, capacity: int, device: torch.device) -> None:
        shape = (arch.layers, batch, arch.kv_heads, capacity, arch.head_dim)
        self.keys = torch.empty(shape, device=device)
        self.values = torch.empty(shape, device=device)
        self.length = 0


class Attention(nn.Module):
    """Causal grouped-query attention; queries and keys are RMS-normalised per head before rotation."""

    def __init__(self, arch: Architecture) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.head_dim = arch.heads, arch.kv_heads, arch.head_dim
        self.qkv = nn.Linear(arch.width, (arch.heads + 2 * arch.kv_heads) * arch.head_dim, bias=False)
        self.out = nn.Linear(arch.heads * arch.head_dim, arch.width, bias=False)
        self.q_norm, self.k_norm = RMSNorm(arch.head_dim), RMSNorm(arch.head_dim)

    def forward(
        self, x: Tensor, cos: Tensor, sin: Tensor, mask: Tensor, cache: KVCache | None, layer: int
    ) -> Tensor:
        batch, length, _ = x.shape
        q, k, v = (
            self.qkv(x)
            .view(batch, length, self.heads + 2 * self.kv_heads, self.head_dim)
            .transpose(1, 2)
            .split([self.heads, self.kv_heads, self.kv_heads], dim=1)
        )
        q, k = rotate(self.q_norm(q), cos, sin), rotate(self.k_norm(k), cos, sin)
        if cache is not None:
            end = cache.length + length
            cache.keys[layer, :, :, cache.length : end] = k
            cache.values[layer, :, :, cache.length : end] = v
            k, v = cache.keys[layer, :, :, :end], cache.values[layer, :, :, :end]
        mixed = F.scaled_dot_product_attention(
            q, k, v, attn_mask=mask, enable_gqa=self.heads != self.kv_heads
        )
        return self.out(mixed.transpose(1, 2).reshape(batch, length, -1))


class Block(nn.Module):
    """Pre-norm transformer block: attention, then SwiGLU."""

    def __init__(self, arch: Architecture) -> None:
        super().__init__()
        self.attention_norm, self.mlp_norm = RMSNorm(arch.width), RMSNorm(arch.width)
        self.attention = Attention(arch)
        self.gate_up = nn.Linear(arch.width, 2 * arch.mlp_width, bias=False)
        self.down = nn.Linear(arch.mlp_width, arch.width, bias=False)

    def forward(
        self, x: Tensor, cos: Tensor, sin: Tensor, mask: Tensor, cache: KVCache | None, layer: int
    ) -> Tensor:
        x = x + self.attention(self.attention_norm(x), cos, sin, mask, cache, layer)
        gate, up = self.gate_up(self.mlp_norm(x)).chunk(2, dim=-1)
        return x + self.down(F.silu(gate) * up)


class Transformer(nn.Module):
    """Token ids [B, S] to logits [B, S, V]; input and output embeddings are tied, as in the small Qwen3 models.

    Prompts are left-padded. RoPE sees only distances, so a row's own offset needs no correction; padded
    positions are kept out of attention by `present`.
    """

    def __init__(self, arch: Architecture, vocabulary: int, context: int) -> None:
        super().__init__()
        self.arch, self.context = arch, context
        self.embedding = nn.Embedding(vocabulary, arch.width)
        self.blocks = nn.ModuleList(Block(arch) for _ in range(arch.layers))
        self.norm = RMSNorm(arch.width)
        cos, sin = rope_tables(context, arch.head_dim, arch.rope_theta)
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)
        self.apply(self._initialise)

    @staticmethod
    def _initialise(module: nn.Module) -> None:
        if isinstance(module, nn.Linear | nn.Embedding):
            nn.init.normal_(module.weight, std=0.05)

    def forward(self, tokens: Tensor, present: Tensor, cache: KVCache | None = None) -> Tensor:
        """Logits [B, S, V] for tokens [B, S].

        `present` [B, past + S] is True where a position (cached ones first) holds a real token. With a cache
        the new keys and values are appended to it.
        Raises ValueError if the sequence is longer than the context.
        """
        past = cache.length if cache is not None else 0
        length = tokens.shape[1]
        if past + length > self.context:
            raise ValueError(f"sequence of {past + length} tokens exceeds the context of {self.context}")
        mask = present[:, None, None, :]
        if length > 1:
            query = torch.arange(past, past + length, device=tokens.device)
            key = torch.arange(past + length, device=tokens.device)
            # A padded query may attend to itself: an empty softmax row would be NaN and poison gradients.
            mask = (mask & (key <= query[:, None])) | (key == query[:, None])
        cos, sin = self.cos[past : past + length], self.sin[past : past + length]
        x = self.embedding(tokens)
        for layer, block in enumerate(self.blocks):
            x = block(x, cos, sin, mask, cache, layer)
        if cache is not None:
            cache.length += length
        return F.linear(self.norm(x), self.embedding.weight)
