"""The left half of Figure 1 is what the rules say: the shipped file has what the rules do to a made-up response.

The report runs without torch, so it reads `reports/schematic/masking_rules.json`. After a change:

    python -m tests.reports.test_schematic > reports/schematic/masking_rules.json
"""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from cppo_lab.maths.divergence import binary
from cppo_lab.maths.masks import threshold_tests
from cppo_lab.maths.rules import get_rule
from cppo_lab.maths.tokens import Tokens
from cppo_lab.maths.weights import effective_delta_b, position_weights

# (mu, pi) of each sampled token of a response with a positive advantage: those with pi > mu move away from mu.
PROBABILITIES = (
    *((0.90, 0.91), (0.60, 0.64), (0.45, 0.50), (0.010, 0.030), (0.80, 0.79), (0.50, 0.58)),
    *((0.92, 0.93), (0.40, 0.49), (0.70, 0.66), (0.85, 0.86), (0.55, 0.66), (0.95, 0.96)),
    *((0.75, 0.76), (0.88, 0.87), (0.020, 0.050), (0.90, 0.91), (0.55, 0.75), (0.65, 0.71)),
    *((0.90, 0.90), (0.80, 0.82)),
)
CONSTANTS = {"delta": 0.15, "delta_b": 0.03, "w_min": 0.8, "kl_max": 0.05, "clip_high": 0.28}


def masking_rules() -> dict[str, Any]:
    """The response under GRPO, DPPO, TRM-Max and CPPO: per rule the value of each token, the limit it is held
    against, whether it is kept, and what masked it ("", "token", "prefix", "response").
    """
    delta, delta_b, w_min, kl_max, clip_high = CONSTANTS.values()
    rollout_logp, logp = torch.tensor(PROBABILITIES, dtype=torch.float64).log().T[:, None]  # [1, T] each
    valid = torch.ones_like(logp, dtype=torch.bool)
    batch = (logp, rollout_logp, torch.ones_like(logp), valid)
    tv, kl = (binary(logp, rollout_logp, measure) for measure in ("tv", "kl"))
    weights = position_weights(valid, w_min, dtype=torch.float64)
    tests = threshold_tests(tv, weights, valid, delta, effective_delta_b(tv, valid, delta_b))
    budget = {"delta_b": delta_b, "w_min": w_min, "delta_b_mode": "fixed"}
    limit = torch.clamp(delta - tests.excess, max=delta)
    rules = []
    for name, divergence, constants, values, bound in (
        ("grpo", None, {"clip_low": 0.2, "clip_high": clip_high}, (logp - rollout_logp).exp(), 1 + clip_high),
        ("dppo", tv, {"delta": delta}, tv, delta),
        ("trm_max", kl, {"delta_max": kl_max}, kl, kl_max),
        ("cppo", tv, {"delta": delta, **budget}, tests.weighted, limit),
    ):
        whole = "response" if name == "trm_max" else "token"
        by_prefix = tests.prefix_fails & ~tests.token_fails & (name == "cppo")
        keep = get_rule(name)(Tokens(*batch, divergence), **constants).keep[0] > 0
        masked_by = [
            "" if passes else "prefix" if prefix else whole
            for passes, prefix in zip(keep.tolist(), by_prefix[0].tolist(), strict=True)
        ]
        bounds = torch.as_tensor(bound).expand_as(tv)
        rules.append(
            {"rule": name, "values": rounded(values), "limit": rounded(bounds), "masked_by": masked_by}
        )
    return {"constants": CONSTANTS, "moves_away": (logp > rollout_logp)[0].tolist(), "rules": rules}


def rounded(values: Tensor) -> list[float]:
    """[1, T] -> T values, without the digits that differ between machines."""
    return [round(value, 6) for value in values[0].tolist()]


def test_the_shipped_file_is_up_to_date() -> None:
    path = Path(__file__).parents[2] / "reports/schematic/masking_rules.json"
    shipped, now = json.loads(path.read_text(encoding="utf-8")), masking_rules()
    for side in (shipped, now):
        for rule in side["rules"]:
            rule |= (
                {key: pytest.approx(rule[key], abs=2e-6) for key in ("values", "limit")}
                if side is now
                else {}
            )
    assert shipped == now


if __name__ == "__main__":
    print(json.dumps(masking_rules(), indent=1))
