"""Values that are allowed by their type and would cost hours, give one run two ids, or mislead a reader."""

import math
import signal

import pytest
import torch
from pydantic import ValidationError

from cppo_lab.maths.clips import grpo
from cppo_lab.maths.tokens import Tokens
from cppo_lab.spec.run import BatchSpec, RuleSpec
from cppo_lab.sweep.compose import compose
from tests.conftest import TINY
from tests.fuzz.mangling import within


def test_a_large_count_lists_its_divisors_at_once() -> None:
    """By trial up to its root: the loop up to the number itself took minutes."""
    with (
        within(5, signal.ITIMER_VIRTUAL),
        pytest.raises(ValidationError, match=r"minibatch_prompts=7 must divide .*\[1, 999999937\]"),
    ):
        BatchSpec(prompts=999_999_937, responses=2, minibatch_prompts=7)


@pytest.mark.parametrize(
    "key", ["optim.weight_decay", "optim.beta1", "optim.beta2", "training.collapse_share"]
)
def test_zero_has_one_sign(key: str) -> None:
    ids = {compose([*TINY, f"{key}={zero}"]).run.run_id for zero in ("0", "0.0", "-0.0")}
    assert len(ids) == 1


@pytest.mark.parametrize("value", [math.inf, math.nan, 1.0])
def test_a_dual_clip_has_a_value(value: float) -> None:
    with pytest.raises(ValidationError, match=r"dual_clip\n *Input should be"):
        RuleSpec(name="grpo", dual_clip=value)
    tokens = Tokens(*[torch.zeros(1, 2)] * 3, torch.ones(1, 2, dtype=torch.bool))
    with pytest.raises(ValueError, match="dual_clip"):
        grpo(tokens, clip_low=0.2, clip_high=0.2, dual_clip=value)
