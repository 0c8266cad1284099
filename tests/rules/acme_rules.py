"""What another package brings: DPPO on punished responses alone (docs/extending.md). Shapes: [B, T]."""

from cppo_lab.maths.masks import masked
from cppo_lab.maths.tokens import positive, tokens


def one_sided(logp, rollout_logp, advantages, valid, divergence=None, *, delta, slack=0.0):
    """DPPO where A < 0 alone."""
    positive("delta", delta)
    batch = tokens(logp, rollout_logp, advantages, valid, divergence)
    too_far = batch.required_divergence("one_sided") > delta + slack
    return masked(batch, token_fails=too_far & batch.moves_away & (batch.advantages < 0))
