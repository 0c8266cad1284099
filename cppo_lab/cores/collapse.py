"""When a run counts as collapsed: one rule for every core.

A run has collapsed when its validation score has been below `share` times its best so far, and at least
MARGIN below it, at `patience` validations in a row; or when a gradient is not finite. It ends there.

PAPER: the paper prints `collapse` without a definition. With share 0.4 the rule finds, among the paper's own
curves, CISPO on Qwen3-30B-A3B-Base and nothing else.
"""

from collections.abc import Sequence

MARGIN = 0.05  # a policy that never learned anything has nothing to lose: its scores are noise around 0


class NotFinite(ArithmeticError):
    """A gradient is infinite or NaN: an update would destroy the weights."""


def collapse_reason(scores: Sequence[float], share: float, patience: int) -> str:
    """Why a run with these validation scores (fractions, oldest first) has collapsed; empty if it has not."""
    best = low = 0.0
    below = 0
    for score in scores:
        best, low = max(best, score), score
        below = below + 1 if score < share * best and best - score >= MARGIN else 0
        if below >= patience:
            return (
                f"validation score {100 * low:.1f} % is below {share:g} x its best {100 * best:.1f} % "
                f"at {patience} validations in a row"
            )
    return ""
