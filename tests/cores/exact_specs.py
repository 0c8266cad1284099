"""Configurations of the exact core for tests."""

from typing import Any

from cppo_lab.spec import ExactRun
from cppo_lab.spec.parse import parse_run
from cppo_lab.sweep.compose import compose

CPPO = {"name": "cppo", "delta": 0.1, "delta_b": 0.01, "delta_b_mode": "fixed", "w_min": 0.8}
DPPO = {"name": "dppo", "delta": 0.1}
SHUFFLED = {"name": "cppo_no_prefix_budget_shuffled", "delta": 0.05, "w_min": 0.5}
NO_TRUST_REGION = {"name": "dppo", "delta": 1.0}
PLAIN: dict[str, Any] = compose(
    ["core=exact", "model=exact_early", "model.name=small", "model.slips=4", "model.start_noise=0.1",
     "model.mismatch=0", "data.name=early", "data.vocabulary=6", "data.benchmarks=[a,b,c]", "divergence=exact_tv",
     "batch.minibatch_prompts=2", "rollout.max_response_length=16", "validation.every=2", "optim.learning_rate=0.05",
     "training.t_stop=6"]
).run.model_dump(mode="json", exclude_none=True) | {"rule": CPPO}  # fmt: skip


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
    return parse_run(values, "test")
