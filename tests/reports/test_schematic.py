"""The left half of Figure 1 is what the rules say: the shipped file has what the rules do to a made-up response.

The report runs without torch, so it reads `reports/schematic/masking_rules.json`. After a change:

    python -m tests.reports.test_schematic > reports/schematic/masking_rules.json
"""

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from cppo_lab.analysis.replay import replay
from tests.answers import made
from tests.conftest import ROOT

# (mu, pi) of each sampled token of a response with a positive advantage: those with pi > mu move away from mu.
PROBABILITIES = """
0.90 0.91  0.60 0.64  0.45 0.50  0.01 0.03  0.80 0.79  0.50 0.58  0.92 0.93  0.40 0.49  0.70 0.66  0.85 0.86
0.55 0.66  0.95 0.96  0.75 0.76  0.88 0.87  0.02 0.05  0.90 0.91  0.55 0.75  0.65 0.71  0.90 0.90  0.80 0.82
"""
CONSTANTS = {"delta": 0.15, "delta_b": 0.03, "w_min": 0.8, "kl_max": 0.05, "clip_high": 0.28}


def masking_rules() -> dict[str, Any]:
    """The response under GRPO, DPPO, TRM-Max and CPPO: per rule the value of each token, the limit it is held
    against, whether it is kept, and what masked it ("", "token", "prefix", "response").
    """
    delta, delta_b, w_min, kl_max, clip_high = CONSTANTS.values()
    rollout_logp, logp = np.log(np.fromstring(PROBABILITIES, sep=" ")).reshape(-1, 2).T
    ratio, tv = np.exp(logp - rollout_logp), np.abs(np.exp(logp) - np.exp(rollout_logp))
    tokens = replace(
        made.tokens(logp.shape), logp=logp, rollout_logp=rollout_logp, divergence=tv, advantage=np.ones(1)
    )
    budget = {"delta_b": delta_b, "w_min": w_min, "delta_b_mode": "fixed"}
    rules = []
    for name, constants, bound in (
        ("grpo", {"clip_low": 0.2, "clip_high": clip_high}, 1 + clip_high),
        ("dppo", {"delta": delta}, delta),
        ("trm_max", {"delta_max": kl_max}, kl_max),
        ("cppo", {"delta": delta, **budget}, None),
    ):
        rule = replay(tokens, name, constants)
        values = ratio if name == "grpo" else rule.measured * (1 if rule.weight is None else rule.weight)
        limit = np.full_like(tv, bound) if rule.limit is None else rule.limit
        reasons = ("", "response" if name == "trm_max" else "token", "prefix")
        masked_by = [reasons[reason] for reason in rule.reason]
        rules.append(
            {"rule": name, "values": rounded(values), "limit": rounded(limit), "masked_by": masked_by}
        )
    return {"constants": CONSTANTS, "moves_away": (logp > rollout_logp).tolist(), "rules": rules}


def rounded(values: np.ndarray) -> list[float]:
    """Without the digits that differ between machines."""
    return [round(float(value), 6) for value in values]


def test_the_shipped_file_is_up_to_date() -> None:
    path = ROOT / "reports/schematic/masking_rules.json"
    shipped, now = json.loads(path.read_text()), masking_rules()
    for rule in now["rules"]:
        rule |= {key: pytest.approx(rule[key], abs=2e-6) for key in ("values", "limit")}
    assert shipped == now


if __name__ == "__main__":
    print(json.dumps(masking_rules(), indent=1))
