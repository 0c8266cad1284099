"""Configurations of the exact core for tests."""

from typing import Any

from cppo_lab.spec import ExactRun
from cppo_lab.spec.parse import parse_run

CPPO = {"name": "cppo", "delta": 0.1, "delta_b": 0.01, "delta_b_mode": "fixed", "w_min": 0.8}
DPPO = {"name": "dppo", "delta": 0.1}
NO_TRUST_REGION = {"name": "dppo", "delta": 1.0}
PLAIN: dict[str, Any] = {
    "core": "exact",
    "seed": 0,
    "model": {
        "name": "small",
        "stretches": 8,
        "slips": 4.0,
        "second_mode_slips": 2.0,
        "fork": 0.5,
        "start_noise": 0.1,
        "mismatch": 0.0,
    },
    "data": {
        "name": "early",
        "family": "early_fork",
        "vocabulary": 6,
        "allowed_slips": 2,
        "benchmarks": ("a", "b", "c"),
    },
    "rule": CPPO,
    "divergence": {"estimator": "exact", "measure": "tv"},
    "advantage": {"normalize_std": True, "drop_zero_variance": True},
    "batch": {"prompts": 8, "responses": 8, "minibatch_prompts": 2},
    "rollout": {
        "temperature": 1.0,
        "top_p": 1.0,
        "max_response_length": 16,
        "staleness": 0,
        "precision": "float32",
    },
    "validation": {"every": 2, "samples": 16, "temperature": 1.0, "top_p": 1.0},
    "optim": {
        "learning_rate": 0.05,
        "beta1": 0.9,
        "beta2": 0.999,
        "weight_decay": 0.0,
        "clip_grad_norm": 1.0,
    },
    "training": {
        "t_stop": 6,
        "collapse_share": 0.4,
        "collapse_patience": 2,
        "aggregation": "token-mean",
    },
}


# With policies that differ before the first update, and a divergence over part of the vocabulary.
DISTURBED: dict[str, Any] = {
    "model": {"mismatch": 0.1},
    "rollout": {"staleness": 2, "precision": "bfloat16"},
    "divergence": {"estimator": "topk", "measure": "tv", "k": 3, "convention": "union"},
}


def exact_run(**changes: Any) -> ExactRun:
    """PLAIN with `changes`: a section's keys, a whole rule, divergence or along, or a plain value."""
    values = dict(PLAIN)
    for name, change in changes.items():
        whole = name in ("rule", "divergence", "along") or not isinstance(change, dict)
        values[name] = change if whole else {**values.get(name, {}), **change}
    run = parse_run(values, "test")
    assert isinstance(run, ExactRun)
    return run
