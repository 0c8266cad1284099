"""Trainer cores: functions from a `RunSpec` to metrics.

Guarantees of this package:

- A core knows no sweep, launcher or store: it takes a specification, a sink and resources (`base.py`: `Core`).
- A run that was killed continues from its last checkpoint with the numbers of an unbroken run.
- Loss and collapse are the same for every core: a rule of `cppo_lab.maths`, and `collapse_reason`.
- What the rest of the product knows of a core is in its record (`cppo_lab.core_records`), which imports no trainer.

Begin with `base.py`. `mini/` trains small transformers in this process, `exact/` computes expected returns, `verl/`
runs verl's trainer. `loop.py` is of the embedded ones, `mini` and `exact`; `rule_loss.py`, `diagnostics.py` and
`datasets.py` are of all three. `cppo_lab.testing.CoreTests` checks a core; docs/extending.md says how to add one.
"""

from collections.abc import Sequence

# A run has collapsed when its validation score has been below `share` times its best so far, and at least MARGIN below
# it, at `patience` validations in a row; or when a log-probability, gradient or weight is not finite. It then ends.
#
# PAPER: `collapse` is a run that diverged (Table 4), without a threshold. Share 0.4 separates its curves as its table
# does: CISPO on Qwen3-30B-A3B-Base falls below, and no other run. That curve ends at its first such point, so only
# patience 1 finds it. Our runs continue, and patience 2 tells a collapse from a single bad validation.

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
