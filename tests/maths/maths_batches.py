"""Random token batches for the maths tests, every one from a seeded generator."""

from typing import NamedTuple

import torch
from torch import Tensor


class TokenBatch(NamedTuple):
    """The arguments of a rule, in its order; every tensor [B, T]."""

    logp: Tensor
    rollout_logp: Tensor
    advantages: Tensor
    valid: Tensor
    divergence: Tensor


# Constants with which each rule drops, clips or weakens some tokens of `random_batch`.
CONSTANTS = {
    "grpo": {"clip_low": 0.2, "clip_high": 0.28, "dual_clip": 3.0},
    "ppo": {"clip_low": 0.2, "clip_high": 0.2},
    "dr_grpo": {"clip_low": 0.2, "clip_high": 0.2},
    "dppo": {"delta": 0.1},
    "cppo": {"delta": 0.15, "delta_b": 0.02, "w_min": 0.8, "delta_b_mode": "adaptive"},
    "cppo_no_position_weight": {"delta": 0.15, "delta_b": 0.03, "delta_b_mode": "fixed"},
    "cppo_no_prefix_budget": {"delta": 0.1, "w_min": 0.5},
    "cppo_no_prefix_budget_shuffled": {"delta": 0.1, "w_min": 0.5},
    "cppo_soft": {"delta": 0.1, "delta_b": 0.02, "w_min": 0.8, "delta_b_mode": "fixed"},
    "trm_max": {"delta_max": 0.19},
    "trm_avg": {"delta_avg": 0.1},
    "trm_max_avg": {"delta_max": 0.195, "delta_avg": 0.11},
    "cispo": {"clip_high": 0.5},
    "minpro": {"clip_high": 0.5, "clip_low": 0.5},
    "gspo": {"clip_low": 0.05, "clip_high": 0.08},
    "geo_mean": {"log_clip_low": 0.3, "log_clip_high": 0.4},
    "sapo": {"tau_positive": 1.0, "tau_negative": 1.5},
}

# Rules that decide without a divergence; one that is given enters their statistics.
WITHOUT_DIVERGENCE = ("grpo", "ppo", "dr_grpo", "cispo", "minpro", "gspo", "geo_mean", "sapo")


# What each rule reports besides what all of them do (maths/metrics.py).
STATISTICS: dict[str, set[str]] = {
    "grpo": {"clip_fraction"},
    "ppo": {"clip_fraction"},
    "dr_grpo": {"clip_fraction"},
    "cispo": {"clip_fraction"},
    "gspo": {"clip_fraction"},
    "geo_mean": {"clip_fraction"},
    "sapo": set(),
    "minpro": {"clip_fraction"},
    "dppo": {"token_threshold_share"},
    "cppo": {"token_threshold_share", "prefix_budget_share", "delta_b_mean"},
    "cppo_no_position_weight": {"token_threshold_share", "prefix_budget_share", "delta_b_mean"},
    "cppo_no_prefix_budget": {"token_threshold_share"},
    "cppo_no_prefix_budget_shuffled": {"token_threshold_share"},
    "cppo_soft": {"token_threshold_share", "prefix_budget_share", "delta_b_mean"},
    "trm_max": set(),
    "trm_avg": set(),
    "trm_max_avg": set(),
}


def random_batch(seed: int, rows: int = 5, width: int = 12, dtype: torch.dtype = torch.float64) -> TokenBatch:
    """Off-policy tokens, ragged lengths (0 and the full width included), some rows with A = 0."""
    generator = torch.Generator().manual_seed(seed)
    logp = -3 * torch.rand(rows, width, generator=generator, dtype=torch.float64) - 0.1
    rollout_logp = logp - 0.6 * torch.randn(rows, width, generator=generator, dtype=torch.float64)
    advantages = torch.randn(rows, 1, generator=generator, dtype=torch.float64).expand(rows, width).clone()
    advantages[-1] = 0.0
    lengths = torch.randint(0, width + 1, (rows,), generator=generator)
    lengths[0] = width
    divergence = 0.2 * torch.rand(rows, width, generator=generator, dtype=torch.float64)
    valid = torch.arange(width) < lengths[:, None]
    return TokenBatch(
        logp.to(dtype), rollout_logp.to(dtype), advantages.to(dtype), valid, divergence.to(dtype)
    )


def random_permutation(valid: Tensor, seed: int) -> Tensor:
    """[B, T]: a fresh permutation of each response's own positions; padding stays in place."""
    generator = torch.Generator().manual_seed(seed)
    permutation = torch.arange(valid.shape[1]).repeat(len(valid), 1)
    for row, length in enumerate(valid.sum(1).tolist()):
        permutation[row, :length] = torch.randperm(length, generator=generator)
    return permutation


def constants(name: str, batch: TokenBatch) -> dict:
    """CONSTANTS of a rule, with a permutation where it needs one."""
    if name == "cppo_no_prefix_budget_shuffled":
        return CONSTANTS[name] | {"permutation": random_permutation(batch.valid, 0)}
    return CONSTANTS[name]


def distributions(
    seed: int, places: int, vocabulary: int, sharpness: float, dtype: torch.dtype = torch.float64
) -> tuple[Tensor, Tensor, Tensor]:
    """Log-probs of mu and of a pi near it, [places, V], and a token sampled from mu, [places]."""
    generator = torch.Generator().manual_seed(seed)
    logits = sharpness * torch.randn(places, vocabulary, generator=generator, dtype=torch.float64)
    noise = torch.randn(places, vocabulary, generator=generator, dtype=torch.float64)
    mu = logits.log_softmax(-1)
    tokens = torch.multinomial(mu.exp(), 1, generator=generator)[:, 0]
    return mu.to(dtype), (logits + noise).log_softmax(-1).to(dtype), tokens
