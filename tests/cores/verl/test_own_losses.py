"""The files conf/rule/verl_*.yaml against verl: its losses exist, and each option is one that the loss reads."""

import dataclasses
from typing import Any

import pytest
import torch

from cppo_lab.sweep.compose import compose
from cppo_lab.sweep.groups import groups

pytestmark = pytest.mark.verl
pytest.importorskip("verl")

RULES = [name for name in groups()["rule"] if name.startswith("verl_")]


def loss_of(rule: str, changes: dict[str, float]) -> float:
    """verl's loss on fixed tensors far off policy, with the options of the rule's file and `changes`."""
    from verl.trainer.ppo.core_algos import get_policy_loss_fn
    from verl.workers.config import FSDPActorConfig
    from verl.workers.config.actor import PolicyLossConfig

    spec = compose(["core=verl", "model=tiny_qwen3", f"rule={rule}"]).run.rule
    assert spec.options is not None
    options = spec.options | changes
    of_loss = {field.name for field in dataclasses.fields(PolicyLossConfig)}
    policy_loss = PolicyLossConfig(
        loss_mode=spec.verl_loss, **{key: value for key, value in options.items() if key in of_loss}
    )
    settings: dict[str, Any] = {key: value for key, value in options.items() if key not in of_loss}
    config = FSDPActorConfig(
        ppo_micro_batch_size_per_gpu=1, rollout_n=4, policy_loss=policy_loss, **settings
    )  # a name that verl does not have raises here
    draw = torch.Generator().manual_seed(0)
    old = -torch.rand(16, 64, generator=draw) * 3
    new = old + 0.5 * torch.randn(16, 64, generator=draw)
    advantages = torch.randn(16, 1, generator=draw).expand(16, 64) + 0.3 * torch.randn(16, 64, generator=draw)
    torch.manual_seed(0)  # clip_cov draws the tokens that it clips
    loss, _ = get_policy_loss_fn(spec.verl_loss)(
        old_log_prob=old,
        log_prob=new,
        advantages=advantages,
        response_mask=torch.ones(16, 64),
        loss_agg_mode="token-mean",
        config=config,
    )
    return float(loss)


@pytest.mark.parametrize("rule", RULES)
def test_every_option_is_read_by_the_loss(rule: str) -> None:
    options = compose(["core=verl", "model=tiny_qwen3", f"rule={rule}"]).run.rule.options
    assert options is not None
    plain = loss_of(rule, {})
    for name, value in options.items():
        # Shares of tokens are too small for 1,024 of them; the covariance bounds decide where the share is large.
        other = 0.2 if name.endswith("cov_ratio") else value / 4
        base = {"clip_cov_ratio": 0.2} if name in ("clip_cov_lb", "clip_cov_ub") else {}
        before = loss_of(rule, base) if base else plain
        assert loss_of(rule, base | {name: other}) != before, name
