"""Which names a wrong one may have meant."""

import pytest

from cppo_lab.errors import nearest
from cppo_lab.sweep.groups import shipped

KEYS = (
    "optim.learning_rate",
    "model.warm_start.learning_rate",
    "rollout.top_p",
    "validation.top_p",
    "rule.w_min",
    "rule.delta_b",
    "resources.memory_gb",
    "resources.partition",
    "data",
    "seed",
)


@pytest.mark.parametrize(
    ("wrong", "near"),
    {
        "optim.lr": ["optim.learning_rate", "model.warm_start.learning_rate"],
        "optim.learnin_rate": ["optim.learning_rate"],
        "wmin": ["rule.w_min"],
        "top_p": ["rollout.top_p", "validation.top_p"],
        "resources.mem": ["resources.memory_gb"],
        "memory": ["resources.memory_gb"],
        "partitoin": ["resources.partition"],
        "SEED": ["seed"],
        "": [],
        "x" * 100_000: [],
        "Qwen3-8B": ["qwen3_8b_base"],
        "qwen3_1.7b": ["qwen3_1_7b"],
        "30b": ["qwen3_30b_a3b_base"],
        "exact_erly": ["exact_early"],
        "u\u0308": ["\u00fc"],
    }.items(),
)
def test_keys_and_models(wrong: str, near: list[str]) -> None:
    assert nearest(wrong, (*KEYS, *shipped()["model"], "\u00fc")) == near
