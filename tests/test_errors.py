"""Which names a wrong one may have meant."""

import pytest

from cppo_lab.errors import nearest, unknown
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
    [
        ("optim.lr", ["optim.learning_rate", "model.warm_start.learning_rate"]),
        ("optim.learnin_rate", ["optim.learning_rate"]),
        ("wmin", ["rule.w_min"]),
        ("top_p", ["rollout.top_p", "validation.top_p"]),
        ("resources.mem", ["resources.memory_gb"]),
        ("memory", ["resources.memory_gb"]),
        ("partitoin", ["resources.partition"]),
        ("SEED", ["seed"]),
        ("", []),
        ("x" * 100_000, []),
        ("Qwen3-8B", ["qwen3_8b_base"]),
        ("qwen3_1.7b", ["qwen3_1_7b"]),
        ("30b", ["qwen3_30b_a3b_base"]),
        ("exact_erly", ["exact_early"]),
        ("u\u0308", ["\u00fc"]),
    ],
)
def test_keys_and_models(wrong: str, near: list[str]) -> None:
    assert nearest(wrong, (*KEYS, *shipped()["model"], "\u00fc")) == near


def test_a_valid_name_is_offered_before_another_that_is_as_near() -> None:
    others = {"mine": "mine.yaml", "data": "data.yaml"}
    assert "did you mean 'main'? valid: main" in str(unknown("sweep", "maine", ["main"], others))
    assert "did you mean 'mine.yaml'? valid: main" in str(unknown("sweep", "mine", ["main"], others))
