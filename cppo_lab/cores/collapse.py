"""The definition of a collapsed run, the same for every core.

A run has collapsed when its validation score has been below `share` times its best so far, and at least
MARGIN below it, at `patience` validations in a row; or when a log-probability or gradient is not finite. It then ends.

PAPER: `collapse` is a run that diverged (Table 4), without a threshold. Share 0.4 separates its curves as its table
does: CISPO on Qwen3-30B-A3B-Base falls below, and no other run. That curve ends at its first such point, so only
patience 1 finds it. Our runs continue, and patience 2 tells a collapse from a single bad validation.
"""

from collections.abc import Sequence

MARGIN = 0.05  # a policy that never learned cannot collapse, since its scores are noise around 0


def collapse_reason(scores: Sequence[float], share: float, patience: int) -> str:
    """Why a run with these validation scores (fractions, oldest first) has collapsed; empty if it has not."""
    best, below = 0.0, 0
    for score in scores:
        best = max(best, score)
        below = below + 1 if score < share * best and best - score >= MARGIN else 0
        if below >= patience:
            return (
                f"validation score {100 * score:.1f} % is below {share:g} x its best {100 * best:.1f} % "
                f"at {patience} validations in a row"
            )
    return ""
