"""The rule and constants of each method name in a vectors file.

Constants come from the manifest where it gives them; some names carry their own:

    grpo_dual<c>            dual clip c
    cispo_hi<h>             clip_high h, lower side open; minpro_hi<h> likewise
    minpro_<l>_<h>          clip_low l, clip_high h
    <method>_logp_cap<c>    stopgrad(min(rho, c) M) A log pi with the mask M of <method>, as a release has it

`pg_is` is rho A without a trust region, `cppo_soft_sapo` the mask of SAPO's inadmissible gate.
"""

import re
from collections.abc import Callable
from typing import Any

from torch import Tensor

from cppo_lab.maths.tokens import RuleOutput, common_stats, importance_objective, tokens

Constants = Callable[[str], Any]  # name of a hyper-parameter -> its value
UNMASKED = "unmasked"


def _budget(hp: Constants) -> dict[str, Any]:
    return {"delta": hp("delta"), "delta_b": hp("delta_b_min"), "delta_b_mode": hp("delta_b")}


def _cppo(hp: Constants) -> dict[str, Any]:
    return {**_budget(hp), "w_min": hp("w_min")}


def _cppo_kl(hp: Constants) -> dict[str, Any]:
    return {
        "delta": hp("delta_kl"),
        "delta_b": hp("delta_b_kl"),
        "delta_b_mode": "fixed",
        "w_min": hp("w_min"),
    }


CLIPS = {"clip_low": 0.2, "clip_high": 0.28}  # of GRPO; like PPO's and SAPO's, not in the manifest

# method -> (rule, divergence array, constants from the case's hyper-parameters)
METHODS: dict[str, tuple[str, str, Callable[[Constants], dict[str, Any]]]] = {
    "grpo": ("grpo", "D", lambda hp: CLIPS),
    "ppo": ("ppo", "D", lambda hp: {"clip_low": 0.2, "clip_high": 0.2}),
    "sapo": ("sapo", "D", lambda hp: {"tau_positive": 1.0, "tau_negative": 1.05}),
    "dppo": ("dppo", "D", lambda hp: {"delta": hp("delta")}),
    "cppo": ("cppo", "D", _cppo),
    "cppo_span": ("cppo", "D", lambda hp: {**_cppo(hp), "span": hp("span")}),
    "cppo_kl": ("cppo", "KL", _cppo_kl),
    "cppo_no_weight": ("cppo_no_position_weight", "D", _budget),
    "cppo_no_prefix": (
        "cppo_no_prefix_budget",
        "D",
        lambda hp: {"delta": hp("delta"), "w_min": hp("w_min")},
    ),
    # The file shuffles the weights of full CPPO; `in/perm` is added by the caller.
    "cppo_shuffled": ("cppo", "D", _cppo),
    "cppo_soft_inv": ("cppo_soft", "D", lambda hp: {**_cppo(hp), "gate": "inverse"}),
    "cppo_soft_sapo_adm": ("cppo_soft", "D", lambda hp: {**_cppo(hp), "gate": "sapo_admissible"}),
    "trm_max": ("trm_max", "KL", lambda hp: {"delta_max": hp("trm_max")}),
    "trm_avg": ("trm_avg", "KL", lambda hp: {"delta_avg": hp("trm_avg")}),
    "trm_max_avg": (
        "trm_max_avg",
        "KL",
        lambda hp: {"delta_max": hp("trm_max_loose"), "delta_avg": hp("trm_avg_loose")},
    ),
    "pg_is": (UNMASKED, "D", lambda hp: {}),
}
SHUFFLED = ("cppo_shuffled",)
SOFT = ("cppo_soft_inv", "cppo_soft_sapo", "cppo_soft_sapo_adm")  # weights in [0, 1], not masks of 0 and 1
NUMBER = r"(\d+\.?\d*|\.\d+)"


def find_method(name: str) -> tuple[str, str, Callable[[Constants], dict[str, Any]]] | None:
    """(rule, divergence array, constants) of a method, or None for a name that is not known."""
    found = METHODS.get(name)
    if match := re.fullmatch(rf"grpo_dual{NUMBER}", name):
        dual = float(match[1])
        found = "grpo", "D", lambda hp: {**CLIPS, "dual_clip": dual}
    elif match := re.fullmatch(rf"(cispo|minpro)_(?:{NUMBER}_|hi){NUMBER}", name):
        rule, low, high = match[1], match[2], float(match[3])
        clips = {"clip_high": high} | ({} if low is None else {"clip_low": float(low)})
        found = rule, "D", lambda hp: clips
    return found


def capped(name: str) -> tuple[str, float] | None:
    """(method that masks, cap) of `<method>_logp_cap<cap>`, or None for any other name."""
    match = re.fullmatch(rf"(.+)_logp_cap{NUMBER}", name)
    return (match[1], float(match[2])) if match else None


def unmasked(*arguments: Tensor) -> RuleOutput:
    """rho A without a trust region: the objective that every mask multiplies. Arguments as a rule's."""
    batch = tokens(*arguments)
    keep = batch.valid.to(batch.logp.dtype)
    return RuleOutput(importance_objective(batch, keep), keep, common_stats(batch, keep))


def capped_logp(output: RuleOutput, cap: float, *arguments: Tensor) -> RuleOutput:
    """stopgrad(min(rho, cap) keep) A log pi with the `keep` of a rule's output. Arguments as a rule's."""
    batch = tokens(*arguments)
    coefficient = batch.log_ratio.detach().exp().clamp_max(cap) * output.keep
    return output._replace(objective=coefficient * batch.advantages * batch.logp)
