"""What the masking rules do to one made-up response, for the report's Figure 1: computed by the rules themselves.

The report runs without torch, so it reads the result from `reports/schematic/masking_rules.json`; a test holds
that file against this module. After a change:

    python -m tests.reports.made_schematic > reports/schematic/masking_rules.json
"""

import json
from typing import Any

import torch
from torch import Tensor

from cppo_lab.maths.divergence import binary
from cppo_lab.maths.masks import threshold_tests
from cppo_lab.maths.rules import RULES
from cppo_lab.maths.tokens import Tokens
from cppo_lab.maths.weights import effective_delta_b, position_weights

# (mu, pi) of each sampled token of a response with a positive advantage: those with pi > mu move away from mu.
PROBABILITIES = (
    *((0.90, 0.91), (0.60, 0.64), (0.45, 0.50), (0.010, 0.030), (0.80, 0.79), (0.50, 0.58)),
    *((0.92, 0.93), (0.40, 0.49), (0.70, 0.66), (0.85, 0.86), (0.55, 0.66), (0.95, 0.96)),
    *((0.75, 0.76), (0.88, 0.87), (0.020, 0.050), (0.90, 0.91), (0.55, 0.75), (0.65, 0.71)),
    *((0.90, 0.90), (0.80, 0.82)),
)
DELTA, DELTA_B, W_MIN, KL_MAX, CLIP_LOW, CLIP_HIGH = 0.15, 0.03, 0.8, 0.05, 0.2, 0.28


def masking_rules() -> dict[str, Any]:
    """The response under GRPO, DPPO, TRM-Max and CPPO: per rule the value of each token, the limit it is held
    against, whether it is kept, and what masked it ("", "token", "prefix", "response").
    """
    pairs = torch.tensor(PROBABILITIES, dtype=torch.float64)
    rollout_logp, logp = pairs.log().T[:, None]  # [1, T] each
    valid = torch.ones_like(logp, dtype=torch.bool)
    batch = (logp, rollout_logp, torch.ones_like(logp), valid)
    tv, kl = (binary(logp, rollout_logp, measure) for measure in ("tv", "kl"))
    budget = {"delta": DELTA, "delta_b": DELTA_B, "w_min": W_MIN, "delta_b_mode": "fixed"}
    keep = {
        "grpo": RULES["grpo"](Tokens(*batch), clip_low=CLIP_LOW, clip_high=CLIP_HIGH).keep,
        "dppo": RULES["dppo"](Tokens(*batch, tv), delta=DELTA).keep,
        "trm_max": RULES["trm_max"](Tokens(*batch, kl), delta_max=KL_MAX).keep,
        "cppo": RULES["cppo"](Tokens(*batch, tv), **budget).keep,
    }
    weights = position_weights(valid, W_MIN, dtype=torch.float64)
    tests = threshold_tests(tv, weights, valid, DELTA, effective_delta_b(tv, valid, DELTA_B))
    limit = torch.minimum(torch.full_like(tv, DELTA), DELTA - tests.excess)
    values = {"grpo": (logp - rollout_logp).exp(), "dppo": tv, "trm_max": kl, "cppo": tests.weighted}
    limits = {"grpo": 1 + CLIP_HIGH, "dppo": DELTA, "trm_max": KL_MAX, "cppo": limit}
    by_prefix = tests.prefix_fails & ~tests.token_fails
    rules = []
    for name, kept in keep.items():
        whole = "response" if name == "trm_max" else "token"
        masked_by = [
            "" if passes else ("prefix" if name == "cppo" and prefix else whole)
            for passes, prefix in zip((kept > 0)[0].tolist(), by_prefix[0].tolist(), strict=True)
        ]
        rules.append(
            {
                "rule": name,
                "values": _rounded(values[name]),
                "limit": _rounded(torch.as_tensor(limits[name]).expand_as(tv)),
                "masked_by": masked_by,
            }
        )
    constants = {"delta": DELTA, "delta_b": DELTA_B, "w_min": W_MIN, "kl_max": KL_MAX, "clip_high": CLIP_HIGH}
    return {"constants": constants, "moves_away": (logp > rollout_logp)[0].tolist(), "rules": rules}


def _rounded(values: Tensor) -> list[float]:
    """[1, T] -> T values, without the digits that differ between machines."""
    return [round(value, 6) for value in values[0].tolist()]


if __name__ == "__main__":
    print(json.dumps(masking_rules(), indent=1))
