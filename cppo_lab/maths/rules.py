"""The registry of trust-region rules: one literal dict, name -> function.

Every rule is `fn(logp, rollout_logp, advantages, valid, divergence=None, *, <constants>) -> RuleOutput`, with
all tensors [B, T]; the constants are plain keyword scalars.
"""

from collections.abc import Callable

from cppo_lab.maths.importance import cispo, minpro
from cppo_lab.maths.masks import (
    cppo,
    cppo_no_position_weight,
    cppo_no_prefix_budget,
    cppo_no_prefix_budget_shuffled,
    dppo,
)
from cppo_lab.maths.output import RuleOutput
from cppo_lab.maths.sequence_masks import trm_avg, trm_max, trm_max_avg
from cppo_lab.maths.sequence_ratio import geo_mean, gspo
from cppo_lab.maths.soft import cppo_soft
from cppo_lab.maths.soft_clip import sapo
from cppo_lab.maths.surrogates import dr_grpo, grpo, ppo

__all__ = ["RULES", "RuleOutput", "get_rule"]

RULES: dict[str, Callable[..., RuleOutput]] = {
    "grpo": grpo,
    "ppo": ppo,
    "dr_grpo": dr_grpo,
    "dppo": dppo,
    "cppo": cppo,
    "cppo_no_position_weight": cppo_no_position_weight,
    "cppo_no_prefix_budget": cppo_no_prefix_budget,
    "cppo_no_prefix_budget_shuffled": cppo_no_prefix_budget_shuffled,
    "cppo_soft": cppo_soft,
    "trm_max": trm_max,
    "trm_avg": trm_avg,
    "trm_max_avg": trm_max_avg,
    "cispo": cispo,
    "minpro": minpro,
    "gspo": gspo,
    "geo_mean": geo_mean,
    "sapo": sapo,
}


def get_rule(name: str) -> Callable[..., RuleOutput]:
    """The rule called `name`.

    Raises:
        ValueError: no such rule; the message lists the valid names.
    """
    if name not in RULES:
        raise ValueError(f"rule={name!r} is unknown: choose one of {sorted(RULES)}")
    return RULES[name]
