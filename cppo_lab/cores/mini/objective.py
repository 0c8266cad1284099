"""The loss of a minibatch: a forward pass, the divergence from mu, the rule, the aggregation."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from cppo_lab.cores.diagnostics import ObservedTokens
from cppo_lab.cores.mini.model import Rollout, Transformer
from cppo_lab.cores.mini.tasks import Tokenizer
from cppo_lab.cores.rule_loss import (
    Recorded,
    RuleLoss,
    measured_divergence,
    measured_drift,
    recorded_tokens,
)
from cppo_lab.errors import NotFinite
from cppo_lab.maths.mismatch import LogRatios, log_ratios, relative_logprob_error
from cppo_lab.maths.tokens import RuleOutput, Tokens
from cppo_lab.rules import DRIFT
from cppo_lab.spec import MiniRun


@dataclass(frozen=True)
class ObjectiveResult:
    """The results for a minibatch. Only `loss` and the output's objective have a gradient."""

    loss: Tensor  # scalar
    mismatch: tuple[float, float]  # the two sums of the relative log-prob error
    rollout: Rollout
    origin: Rollout  # as if the policy from which D_t measures had sampled it
    logp: Tensor  # [B, T] log pi(y_t)
    divergence: Tensor  # [B, T] D_t
    advantages: Tensor  # [B]
    output: RuleOutput

    def watched(self) -> ObservedTokens:
        """The tokens for the diagnostics."""
        advantages = self.advantages[:, None].expand_as(self.logp)
        valid, tokens = self.rollout.valid(), self.rollout.responses
        return ObservedTokens(
            self.logp, self.rollout.logp, self.divergence, advantages, valid, tokens, self.origin.logp
        )

    def log_ratios(self) -> LogRatios:
        """The log ratios for the mismatch metrics between sampler and trainer."""
        return log_ratios(self.logp, self.rollout.logp, self.divergence, self.rollout.valid())


class Objective:
    """The objective of `spec` on `model`."""

    def __init__(self, spec: MiniRun, model: Transformer, tokenizer: Tokenizer) -> None:
        self.spec, self.model, self.pad = spec, model, tokenizer.pad
        self.loss = RuleLoss(spec)
        self.top_k = recorded_tokens(spec.divergence, tokenizer.vocabulary)

    def _log_policy(self, rollout: Rollout) -> tuple[Tensor, Tensor]:
        """log pi [B, T, V] at every response token, and of the token [B, T]."""
        logits = rollout.logits(self.model, self.pad)
        pi_logp = (logits / self.spec.rollout.temperature).log_softmax(-1)
        return pi_logp, pi_logp.gather(-1, rollout.responses[..., None])[..., 0]

    @torch.no_grad()
    def recorded(self, rollout: Rollout) -> Rollout:
        """`rollout` as if the model, with its present weights, had sampled it; without entropy of its own."""
        pi_logp, logp = self._log_policy(rollout)
        top = pi_logp.topk(self.top_k, -1)
        return replace(rollout, logp=logp, topk_ids=top.indices, topk_logp=top.values)

    def __call__(
        self,
        rollout: Rollout,
        advantages: Tensor,
        permutation: Tensor | None = None,
        old: Rollout | None = None,
    ) -> ObjectiveResult:
        """Loss and statistics of the responses `rollout` with `advantages` [B].

        `permutation` [B, T] is the order of each response's weights, for the rule that shuffles them; `old`: `rollout`
        as pi_old's, None where mu is pi_old. Raises NotFinite if the policy has overflowed.
        """
        valid, old = rollout.valid(), old or rollout
        origin = old if self.spec.divergence.origin else rollout
        pi_logp, logp = self._log_policy(rollout)
        if not bool(torch.where(valid, logp.detach(), 0.0).sum().isfinite()):
            raise NotFinite("log-probabilities are not finite")
        recorded = Recorded(rollout.responses, origin.logp, origin.topk_ids, origin.topk_logp)
        divergence = measured_divergence(self.spec.divergence, pi_logp, logp, recorded)
        drift = None
        if DRIFT in self.loss.needs:
            drift = measured_drift(self.spec.divergence, pi_logp, logp, recorded)
        tokens = Tokens(
            logp,
            old.logp,
            advantages[:, None].expand_as(logp),
            valid,
            divergence,
            permutation=None if permutation is None else permutation[:, : valid.shape[1]],
            topk_ids=rollout.topk_ids,
            topk_logp=rollout.topk_logp,
            topk_pi_logp=pi_logp.gather(-1, rollout.topk_ids) if self.loss.centering else None,
            drift=drift,
            rollout_entropy=rollout.entropy,
            origin_logp=origin.logp,
        )
        loss, output = self.loss(tokens, rollout.logp)
        difference, scale = relative_logprob_error(logp.detach(), rollout.logp, valid)
        mismatch = (float(difference), float(scale))
        return ObjectiveResult(loss, mismatch, rollout, origin, logp.detach(), divergence, advantages, output)
