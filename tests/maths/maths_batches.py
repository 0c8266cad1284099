"""Random token batches for the maths tests, every one from a seeded generator."""

from typing import Any

import torch
from torch import Tensor

from cppo_lab.maths.divergence import topk_entropy
from cppo_lab.maths.tokens import RuleOutput, Tokens
from cppo_lab.rules import DIVERGENCE, DRIFT, ENTROPY, PERMUTATION, RULES, rule_of
from cppo_lab.testing import TokenBatch, random_batch, random_permutation

__all__ = ["TokenBatch", "random_batch", "random_permutation"]

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
    "cppo_no_prefix_budget_reversed": {"delta": 0.1, "w_min": 0.5},
    "cppo_random_mask": {"delta": 0.15, "delta_b": 0.02, "w_min": 0.8, "delta_b_mode": "adaptive"},
    "cppo_soft": {"delta": 0.1, "delta_b": 0.02, "w_min": 0.8, "delta_b_mode": "fixed"},
    "trm_max": {"delta_max": 0.19},
    "trm_avg": {"delta_avg": 0.1},
    "trm_max_avg": {"delta_max": 0.195, "delta_avg": 0.11},
    "cispo": {"clip_high": 0.5},
    "minpro": {"clip_high": 0.5, "clip_low": 0.5},
    "gspo": {"clip_low": 0.05, "clip_high": 0.08},
    "geo_mean": {"log_clip_low": 0.3, "log_clip_high": 0.4},
    "sapo": {"tau_positive": 1.0, "tau_negative": 1.5},
    "icepop": {"ratio_low": 0.6, "ratio_high": 1.7},
    "ipo": {"delta": 0.1, "kl_tau": 0.05},
    "kpop": {"delta": 0.1},
    "drpo": {"delta": 0.3},
    "m2po": {"m2": 0.15},
    "seq_tis": {"ratio_high": 1.3},
    "seq_mis": {"ratio_low": 0.3, "ratio_high": 3.0},
    "geo_mask": {"ratio_low": 0.9, "ratio_high": 1.15},
    "opsm": {"delta": 0.05, "clip_low": 0.2, "clip_high": 0.28},
    "vespo": {"k_positive": 2.0, "lambda_positive": 3.0, "k_negative": 3.0, "lambda_negative": 2.0},
    "vaco": {"delta": 0.3},
    "pdm": {"delta": 0.1},
    "estr": {"tau": 0.3, "clip_low": 0.2, "clip_high": 0.28},
    "pspo": {"smoothing": 0.25},
    "cfpo": {"delta": 0.3},
    "topr": {"ratio_high": 1.0},
    "luspo": {"clip_low": 0.05, "clip_high": 0.08},
}

# Rules that decide without a divergence; one that is given enters their statistics.
WITHOUT_DIVERGENCE = tuple(name for name, rule in RULES.items() if DIVERGENCE not in rule.needs)
# Rules with a term whose gradient does not vanish where a token is dropped.
PULL_BACK = ("ipo", "drpo", "cfpo")


def apply(name: str, *tensors: Tensor, path: str | None = None, **constants: Any) -> RuleOutput:
    """A rule on log pi, log mu, advantages, valid and, if given, D; `constants` may hold other fields of the tokens."""
    fields = {key: constants.pop(key) for key in (PERMUTATION, DRIFT, ENTROPY) if key in constants}
    return rule_of(name, path).apply(Tokens(*tensors, **fields), **constants)


def constants(name: str, batch: TokenBatch) -> dict:
    """CONSTANTS of a rule, with the other fields of the tokens that it needs."""
    return CONSTANTS[name] | fields(name, batch)


def head(batch: TokenBatch) -> Tensor:
    """Log mu of a Top-K that holds the sampled token alone, [B, T, 1]."""
    return batch.rollout_logp.clamp_max(-0.02)[..., None]


def fields(name: str, batch: TokenBatch) -> dict[str, Tensor]:
    """The fields of the tokens that a rule needs besides those of `batch`: for PDM the direction that DPPO has."""
    given = {
        PERMUTATION: random_permutation(batch.valid, 0),
        DRIFT: (batch.logp - batch.rollout_logp).detach(),
        ENTROPY: topk_entropy(head(batch)),
    }
    return {key: value for key, value in given.items() if key in RULES[name].needs}


def differentiated(name: str, batch: TokenBatch, **parameters) -> tuple[RuleOutput, Tensor]:
    """A rule's output on a batch, with `constants` unless others are given, and d sum(objective) / d logp."""
    logp = batch.logp.clone().requires_grad_()
    output = apply(name, logp, *batch[1:], **(parameters or constants(name, batch)))
    return output, torch.autograd.grad(output.objective.sum(), logp)[0]


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
