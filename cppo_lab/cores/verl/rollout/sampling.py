"""One decoding step on logits: log mu, mu's Top-K, and a draw by inversion of the cumulative distribution."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from cppo_lab.errors import UserError

# verl always sends these; at their neutral value they change nothing, and no other value is implemented here.
_NEUTRAL = {"repetition_penalty": 1.0, "min_p": 0.0, "presence_penalty": 0.0, "frequency_penalty": 0.0}


@dataclass(frozen=True)
class SamplingRule:
    """How tokens are drawn; requests with the same rule are decoded together."""

    temperature: float = 1.0  # 0: the most likely token
    top_p: float = 1.0
    top_k: int = -1  # -1 or 0: all tokens

    @classmethod
    def take(cls, parameters: dict[str, Any]) -> "SamplingRule":
        """Removes the sampling keys from verl's `sampling_params` and checks them.

        Raises UserError for a value outside its range or a processor of logits that this server does not have.
        """
        rule = cls(
            float(parameters.pop("temperature", 1.0)),
            float(parameters.pop("top_p", 1.0)),
            int(parameters.pop("top_k", -1)),
        )
        if rule.temperature < 0 or not 0 < rule.top_p <= 1 or rule.top_k < -1:
            raise UserError(
                f"{rule} cannot be sampled: temperature >= 0, 0 < top_p <= 1, top_k >= 1 (or -1 for all)"
            )
        for name, neutral in _NEUTRAL.items():
            value = parameters.pop(name, neutral)
            if value != neutral:
                raise UserError(
                    f"{name}={value} is not implemented by the CPU rollout server: leave it at {neutral}"
                )
        return rule


def log_policy(logits: Tensor, rule: SamplingRule) -> Tensor:
    """log mu of every token, float32 [B, V]: log-softmax of the logits [B, V] at the sampling temperature.

    mu is the *untruncated* softmax: under top_p < 1 or top_k >= 1 a drawn token's probability under the truncated
    distribution is higher by the mass cut off. Training samples untruncated, so there the two are the same; with
    truncation (validation) the number is the model's probability, not the frequency of draws. With
    temperature 0 it is the softmax at temperature 1. vLLM's `processed_logprobs` differ under truncation only.
    """
    return torch.log_softmax(logits.float() / (rule.temperature or 1.0), -1)


def truncate(probabilities: Tensor, rule: SamplingRule) -> Tensor:
    """`probabilities` [B, V] with 0 outside the top_k most likely tokens and the smallest set of mass >= top_p.

    The most likely token always stays. Not renormalised. Ties at the edge are cut by token id.
    """
    vocabulary = probabilities.shape[-1]
    if rule.top_p == 1 and not 0 < rule.top_k < vocabulary:
        return probabilities
    ordered, order = probabilities.sort(dim=-1, descending=True, stable=True)
    if 0 < rule.top_k < vocabulary:
        ordered[:, rule.top_k :] = 0
    before = ordered.cumsum(-1) - ordered
    ordered = ordered.masked_fill(before >= rule.top_p * ordered.sum(-1, keepdim=True), 0)
    return torch.zeros_like(probabilities).scatter(-1, order, ordered)


def draw(log_mu: Tensor, rule: SamplingRule, uniforms: Tensor) -> Tensor:
    """One token per row [B] for `uniforms` [B] in [0, 1), by inversion of the cumulative distribution, in float64.

    A row's token depends on that row alone, so a request's sample does not depend on its batch (up to rounding of
    the logits). Tokens of probability 0 are never drawn.
    """
    if rule.temperature == 0:
        return log_mu.argmax(-1)
    cumulative = truncate(log_mu.double().exp(), rule).cumsum(-1)
    total = cumulative[:, -1:]
    # uniform * total < total, so the first entry above it exists and belongs to a token of positive probability.
    return torch.searchsorted(cumulative, uniforms.double()[:, None] * total, right=True).squeeze(-1)


def unused(parameters: Mapping[str, Any]) -> None:
    """Raises UserError if `parameters` has unused keys: ignoring them would sample from another distribution."""
    if parameters:
        names = ", ".join(f"{name}={value!r}" for name, value in parameters.items())
        raise UserError(
            f"sampling parameters {names} are not implemented by the CPU rollout server: leave them out"
        )
