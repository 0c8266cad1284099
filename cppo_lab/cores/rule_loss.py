"""Applies a rule to tokens, for every core; and the embedded cores' loss from log-probabilities: divergence, rule and
aggregation.
"""

from collections.abc import Mapping
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from cppo_lab.answers.tokens import RuleUsed
from cppo_lab.errors import UserError
from cppo_lab.maths import divergence as divergences
from cppo_lab.maths.rules import aggregate, centred, corrected
from cppo_lab.maths.tokens import RuleOutput, Tokens
from cppo_lab.rules import PERMUTATION, Rule, rule_of
from cppo_lab.spec import DivergenceSpec, RuleSpec, RunSpec


class Recorded(NamedTuple):
    """What the rollout policy recorded for the sampled tokens. [...] are any leading dimensions."""

    tokens: Tensor  # [...] ids
    logp: Tensor  # [...] log mu(y)
    topk_ids: Tensor  # [..., K] of its most likely tokens
    topk_logp: Tensor  # [..., K]


def rule_used(spec: RunSpec) -> RuleUsed:
    """The rule and the divergence of a run, for the record of its tokens."""
    rule, kind = spec.rule, spec.divergence
    constants = rule.arguments(spec.rollout.max_response_length)
    return RuleUsed(rule.name, rule.path, constants, kind.estimator, kind.measure, kind.k, kind.convention)


def recorded_tokens(kind: DivergenceSpec, vocabulary: int) -> int:
    """K: how many of mu's most likely tokens the divergence needs."""
    return vocabulary if kind.estimator == "exact" else kind.k or 1


def measured_divergence(kind: DivergenceSpec, pi_logp: Tensor, logp: Tensor, mu: Recorded) -> Tensor:
    """D [...] between mu and the policy with log-probabilities `pi_logp` [..., V]; `logp` [...] is log pi(y)."""
    if kind.estimator == "binary":
        return divergences.binary(logp, mu.logp, kind.measure)
    if kind.estimator == "sample":
        return divergences.ESTIMATES[kind.measure](logp, mu.logp)
    if kind.estimator == "exact":
        mu_logp = torch.empty_like(pi_logp).scatter_(-1, mu.topk_ids, mu.topk_logp)
        return divergences.exact(mu_logp, pi_logp, kind.measure)
    assert kind.convention is not None  # the specification has checked it
    return divergences.topk(
        mu.topk_ids,
        mu.topk_logp,
        pi_logp,
        mu.tokens,
        mu.logp,
        measure=kind.measure,
        convention=kind.convention,
    )


@torch.no_grad()
def measured_drift(kind: DivergenceSpec, pi_logp: Tensor, logp: Tensor, mu: Recorded) -> Tensor:
    """The change of `measured_divergence` with these arguments (divergence.drift), [...], or a number of its sign."""
    if kind.estimator in ("binary", "sample"):
        return logp - mu.logp
    return divergences.drift(
        mu.topk_ids,
        mu.topk_logp,
        pi_logp.gather(-1, mu.topk_ids),
        mu.tokens,
        mu.logp,
        logp,
        measure=kind.measure,
        convention=kind.convention or "union",
    )


def applied(
    rule: Rule,
    tokens: Tokens,
    constants: Mapping[str, Any],
    mu_logp: Tensor,
    *,
    centering: bool,
    weights: Mapping[str, Any] | None,
) -> RuleOutput:
    """What a rule returns for tokens, with score centering and the correction for the rollout policy if they are set.

    `mu_logp` is log mu [B, T]; `weights` are the arguments of `corrected`. Every core calls this.

    Raises UserError if the rule's `keep` is no weight, or its objective has no gradient.
    """
    function = partial(centred, rule.apply) if centering else rule.apply
    output: RuleOutput = function(tokens, **constants)
    if not torch.equal(output.keep.clamp(0, 1), output.keep):  # NaN is not equal to itself
        raise UserError(
            f"rule {rule.name!r} returns a keep with a value that is NaN or outside [0, 1]: return a weight in "
            "[0, 1] for each token, as docs/rules.md says"
        )
    if tokens.log_ratio.requires_grad and not output.objective.requires_grad:
        raise UserError(
            f"rule {rule.name!r} returns an objective without a gradient: compute it from tokens.logp or "
            "tokens.log_ratio, and detach only its weights"
        )
    return output if weights is None else corrected(output, tokens, mu_logp, **weights)


class RuleLoss:
    """The loss that `spec` defines on the tokens of a minibatch, with its rule or with `other`."""

    def __init__(self, spec: RunSpec, other: RuleSpec | None = None) -> None:
        settings = other or spec.rule
        rule = rule_of(settings.name, settings.path)
        self.mode, self.horizon = spec.training.aggregation, spec.rollout.max_response_length
        self.rule, self.constants = rule, settings.arguments(self.horizon)
        self.needs, self.shuffles = rule.needs, PERMUTATION in rule.needs
        self.centering, self.weights = spec.objective is not None, spec.rollout.weights
        if self.centering and rule.centering_fault:
            raise UserError(rule.centering_fault)

    def __call__(self, tokens: Tokens, mu_logp: Tensor) -> tuple[Tensor, RuleOutput]:
        """The loss, a scalar differentiable in `tokens.logp`, and the rule's output; `mu_logp` is log mu [B, T].

        With `centering`, the tokens have log pi at mu's Top-K, in which the loss is differentiable as well.

        Raises UserError as `applied`.
        """
        output = applied(
            self.rule, tokens, self.constants, mu_logp, centering=self.centering, weights=self.weights
        )
        # The horizon of the run, not the longest response of the batch: the scale must not depend on padding.
        horizon = self.horizon if self.mode == "seq-mean-token-sum-norm" else None
        return -aggregate(output.objective, tokens.valid, self.mode, horizon=horizon), output


def own_permutation(valid: Tensor, generator: torch.Generator) -> Tensor:
    """A random order of each response's positions, [B, T] like `valid`; draw it once per rollout."""
    draws = torch.rand(valid.shape, generator=generator).to(valid.device)
    # Padding sorts behind every draw, so the first len_b entries of row b are its positions.
    return torch.where(valid, draws, 2.0).argsort(1)
