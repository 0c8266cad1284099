"""recipe=authors in the verl core: from the configuration to the loss of a minibatch in parts, against the loop."""

from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("verl")

from verl.utils.config import omega_conf_to_dataclass

from cppo_lab.cores.verl.config import verl_config
from cppo_lab.cores.verl.files import planned_files
from cppo_lab.cores.verl.loss import rule_metrics, trust_region_loss
from cppo_lab.maths.divergence import binary
from cppo_lab.maths.metrics import summarise
from cppo_lab.maths.rules import RULES
from cppo_lab.maths.tokens import Tokens
from cppo_lab.spec import VerlRun
from cppo_lab.sweep.compose import compose
from tests.cores.verl.recorded import micro_batch, packed_output, plain_actor, reduced
from tests.oracles.authors import authors_loss

pytestmark = [pytest.mark.verl, pytest.mark.filterwarnings("ignore:Disabled critic")]
WIDTH = 40  # what responses are padded to; the longest has 12 tokens
LENGTHS = [12, 3, 7, 1, 12, 5, 0]
CUTS = [[[5, 0, 1], [2]], [[4, 6], [3]]]  # [rank][micro-batch] -> rows
MODEL = ("core=verl", "model=qwen3_1_7b_base", f"rollout.max_response_length={WIDTH}")


def actor(*overrides: str) -> tuple[VerlRun, Any]:
    """A run, and verl's configuration of its actor's loss."""
    found = compose([*MODEL, *overrides])
    assert isinstance(found.run, VerlRun)
    shared = Path("/somewhere/runs")
    files = planned_files(found.run, found.paths, shared, shared / found.run.run_id, None)
    section = verl_config(found.run, found.layout, files).actor_rollout_ref.actor
    policy = omega_conf_to_dataclass(section.policy_loss)
    return found.run, plain_actor(policy, loss_agg_mode=section.loss_agg_mode)


def test_a_minibatch_in_parts_has_the_authors_loss() -> None:
    run, config = actor("recipe=authors")
    generator = torch.Generator().manual_seed(5)
    then = -2 * torch.rand(7, 12, generator=generator, dtype=torch.float64) - 0.02
    now = (then + torch.randn(7, 12, generator=generator, dtype=torch.float64)).clamp(max=-1e-3)
    then[0, 0], now[0, 0] = -6.0, -0.5  # a ratio beyond the cap, kept where A < 0
    advantages = torch.tensor([-1.0, 1.0, -0.3, 0.7, 1.5, 0.0, 0.0], dtype=torch.float64)
    valid = torch.arange(12) < torch.tensor(LENGTHS)[:, None]
    logp = now.clone().requires_grad_()
    total, metrics = 0.0, []
    for cut in CUTS:
        metrics.append([])
        for index in cut:
            prompts = [2 + i % 3 for i in index]
            columns = {"old_log_probs": then[index], "advantages": advantages[index, None].expand(-1, 12)}
            data, lengths = micro_batch(
                columns,
                valid[index],
                prompts,
                dp_size=2,
                batch_num_tokens=int(valid.sum()),
                global_batch_size=7,
            )
            data["minibatch_responses"] = torch.where(valid.any(1), 6.0, 0.0)[index, None]
            output = {"log_probs": packed_output(logp[index], lengths, prompts)}
            loss, reported = trust_region_loss(config, output, data)
            (loss / 2).backward()  # FSDP averages gradients over the ranks
            total += float(loss.detach()) / 2
            metrics[-1].append(reported)
    rows = [row[mask].tolist() for row, mask in zip(now, valid, strict=True)]
    before = [row[mask].tolist() for row, mask in zip(then, valid, strict=True)]
    rule = run.rule
    wanted = authors_loss(rows, before, advantages.tolist(), width=WIDTH, delta=0.15, delta_b=0.02, w_min=0.8)
    assert (rule.delta, rule.delta_b, rule.w_min) == (0.15, 0.02, 0.8)
    assert total == pytest.approx(wanted.loss, rel=1e-10)
    assert logp.grad is not None
    for index, row in enumerate(wanted.gradient):
        assert logp.grad[index, : len(row)].tolist() == pytest.approx(row, rel=1e-10, abs=1e-14)
    assert 0 < sum(map(sum, wanted.mask)) < int(valid.sum())
    d = binary(now, then, "tv")
    tokens = Tokens(now, then, advantages[:, None].expand(-1, 12), valid, d)
    own = RULES["cppo"](tokens, **rule.arguments(WIDTH))
    found = rule_metrics(reduced([metrics]))
    for name, value in summarise(own.stats).items():
        assert found[f"rule/{name}"] == pytest.approx(value), name


def test_what_verl_is_given() -> None:
    run, config = actor("recipe=authors")
    assert config.loss_agg_mode == "seq-mean-token-sum-norm"
    policy = config.policy_loss
    assert (policy.horizon, policy.estimator, policy.k) == (WIDTH, "binary", None)
    constants = {
        **{"delta": 0.15, "delta_b": 0.02, "delta_b_mode": "adaptive", "w_min": 0.8, "span": WIDTH},
        **{"ratio_cap": 20.0, "log_ratio_clamp": 20.0, "delta_b_cap": 5.0},
    }
    assert dict(policy.constants) == constants
    found = compose([*MODEL, "recipe=authors"])
    shared = Path("/somewhere/runs")
    assert isinstance(found.run, VerlRun)
    files = planned_files(found.run, found.paths, shared, shared / "x", None)
    tree = verl_config(found.run, found.layout, files)
    assert tree.algorithm.norm_adv_by_std_in_grpo is False
    assert tree.data.max_prompt_length == 1024
    assert tree.actor_rollout_ref.actor.loss_scale_factor == WIDTH
    assert tree.actor_rollout_ref.actor.optim.weight_decay == 0.01
    assert run.run_id == found.run.run_id


def test_a_cap_without_end_reaches_verl() -> None:
    """OmegaConf carries infinity."""
    _, config = actor("rule.delta_b_cap=inf")
    assert config.policy_loss.constants["delta_b_cap"] == float("inf")
