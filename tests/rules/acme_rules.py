"""What another package brings: DPPO on punished responses alone (docs/extending.md). Shapes: [B, T]."""

from cppo_lab.maths.masks import masked
from cppo_lab.maths.tokens import positive


def one_sided(tokens, *, delta, slack=0.0):
    """DPPO where A < 0 alone."""
    positive("delta", delta)
    too_far = tokens.required_divergence > delta + slack
    return masked(tokens, token_fails=too_far & tokens.moves_away & (tokens.advantages < 0))
