"""GSPO, GMPO, SAPO and Dr. GRPO: by hand, against loops, against golden vectors, and as reductions of PPO."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cppo_lab.maths.aggregation import aggregate
from cppo_lab.rules import RULES
from cppo_lab.sweep.compose import compose
from tests.maths.maths_batches import TokenBatch, apply, constants, random_batch
from tests.oracles import comparison

LOOPS = {"gspo": comparison.gspo, "geo_mean": comparison.geo_mean, "sapo": comparison.sapo}
SAPO = {"tau_positive": 1.0, "tau_negative": 1.05}


def hand(ratio: list[list[float]], advantages: list[float]) -> tuple[torch.Tensor, ...]:
    """Arguments of a rule: ratios, one advantage per response, a padded last column."""
    values = torch.tensor(ratio, dtype=torch.float64)
    valid = torch.ones_like(values)
    valid[:, -1] = 0
    return values.log(), torch.zeros_like(values), torch.tensor(advantages)[:, None].expand_as(values), valid


def gradient(name: str, arguments: tuple[torch.Tensor, ...], parameters: dict) -> torch.Tensor:
    logp = arguments[0].clone().requires_grad_()
    result = apply(name, logp, *arguments[1:], **parameters)
    return torch.autograd.grad(result.objective.sum(), logp)[0]


def test_gspo_by_hand() -> None:
    # geometric means: sqrt(4 * 1) = 2; sqrt(1.21 * 1) = 1.1; sqrt(0.25 * 1) = 0.5
    arguments = hand([[4, 1, 9], [1.21, 1, 9], [0.25, 1, 9], [4, 1, 9]], [1.0, 1.0, -1.0, -3.0])
    parameters = {"clip_low": 0.2, "clip_high": 0.2}
    result = apply("gspo", *arguments, **parameters)
    expected = torch.tensor([[1.2, 1.2, 0], [1.1, 1.1, 0], [-0.8, -0.8, 0], [-6, -6, 0]]).double()
    torch.testing.assert_close(result.objective, expected, rtol=1e-7, atol=0)
    assert result.keep.tolist() == [[0, 0, 0], [1, 1, 0], [0, 0, 0], [1, 1, 0]]
    assert int(result.stats["clipped"]) == 4
    torch.testing.assert_close(gradient("gspo", arguments, parameters), expected * result.keep)


def test_geo_mean_by_hand() -> None:
    # clips 1/2 and 2, one-sided: rho = 8 is cut for A > 0 only, rho = 1/8 for A < 0 only
    arguments = hand([[8, 0.5, 9], [8, 0.5, 9], [0.125, 2, 9], [0.125, 2, 9]], [1.0, -1.0, 1.0, -1.0])
    parameters = {"log_clip_low": math.log(2), "log_clip_high": math.log(2)}
    result = apply("geo_mean", *arguments, **parameters)
    expected = torch.tensor([[1, 1, 0], [-2, -2, 0], [0.5, 0.5, 0], [-1, -1, 0]]).double()
    torch.testing.assert_close(result.objective, expected)
    assert result.keep.tolist() == [[0, 1, 0], [1, 1, 0], [1, 1, 0], [0, 1, 0]]
    torch.testing.assert_close(gradient("geo_mean", arguments, parameters), expected * result.keep)


def test_sapo_by_hand() -> None:
    arguments = hand([[1 + math.log(3), 1, 9], [1 + math.log(3), 1, 9], [5, 5, 9]], [1.0, -1.0, 0.0])
    result = apply("sapo", *arguments, tau_positive=1.0, tau_negative=2.0)
    expected = torch.tensor([[3, 2, 0], [-1.8, -1, 0], [0, 0, 0]]).double()  # sigmoid(log 3) = 3/4
    torch.testing.assert_close(result.objective, expected)
    torch.testing.assert_close(
        result.keep, torch.tensor([[0.75, 1, 0], [0.36, 1, 0], [1, 1, 0]]).double(), rtol=1e-7, atol=0
    )
    assert float(result.stats["masked"]) == pytest.approx(0.25 + 0.64)


@pytest.mark.parametrize("name", LOOPS)
@settings(max_examples=100, deadline=None, derandomize=True)
@given(seed=st.integers(0, 2**32 - 1))
def test_rule_agrees_with_the_loop(name: str, seed: int) -> None:
    batch = random_batch(seed)
    parameters = constants(name, batch)
    objective = apply(name, *batch, **parameters).objective
    grad = gradient(name, batch, parameters)
    for row, length in enumerate(batch.valid.sum(1).tolist()):
        if length == 0:
            continue
        log_ratio = (batch.logp - batch.rollout_logp)[row, :length].tolist()
        expected = LOOPS[name](log_ratio, batch.advantages[row, :length].tolist(), **parameters)
        assert objective[row, :length].tolist() == pytest.approx(expected[0], rel=1e-11, abs=1e-13)
        assert grad[row, :length].tolist() == pytest.approx(expected[1], rel=1e-11, abs=1e-13)


def of_the_response(name: str, logp: torch.Tensor, batch: TokenBatch, parameters: dict) -> torch.Tensor:
    """The papers' objective of each response, [B], differentiated as it stands: no stop-gradient."""
    log_ratio, advantages = logp - batch.rollout_logp, batch.advantages
    lengths = batch.valid.sum(1).clamp_min(1)
    if name == "geo_mean":
        above = log_ratio.clamp_max(parameters["log_clip_high"])
        below = log_ratio.clamp_min(-parameters["log_clip_low"])
        log_ratio = torch.where(advantages > 0, above, torch.where(advantages < 0, below, log_ratio))
    mean = ((log_ratio * batch.valid).sum(1) / lengths).exp()
    if name == "geo_mean":
        return mean * advantages[:, 0]
    bounded = mean.clamp(1 - parameters["clip_low"], 1 + parameters["clip_high"])
    return torch.minimum(mean * advantages[:, 0], bounded * advantages[:, 0])


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("name", ["gspo", "geo_mean"])
def test_the_token_form_has_the_value_and_gradient_of_the_response(name: str, seed: int) -> None:
    batch = random_batch(seed)
    parameters = constants(name, batch)
    logp = batch.logp.clone().requires_grad_()
    tokens = aggregate(
        apply(name, logp, *batch[1:], **parameters).objective, batch.valid, "seq-mean-token-mean"
    )
    present = batch.valid.any(1)
    direct = of_the_response(name, logp, batch, parameters)[present].mean()
    torch.testing.assert_close(tokens, direct, rtol=1e-12, atol=1e-14)
    grads = [torch.autograd.grad(value, logp)[0] for value in (tokens, direct)]
    assert float(grads[0].abs().sum()) > 0
    torch.testing.assert_close(*grads, rtol=1e-11, atol=1e-14)


@pytest.mark.parametrize("seed", range(4))
def test_gspo_on_single_tokens_is_ppo(seed: int) -> None:
    batch = random_batch(seed, rows=40, width=1)
    parameters = {"clip_low": 0.2, "clip_high": 0.3}
    mine, ppo = apply("gspo", *batch, **parameters), apply("ppo", *batch, **parameters)
    assert torch.equal(mine.keep, ppo.keep) and torch.equal(mine.objective, ppo.objective)
    assert torch.equal(gradient("gspo", batch, parameters), gradient("ppo", batch, parameters))


@pytest.mark.parametrize("seed", range(4))
def test_geo_mean_on_single_tokens_is_ppo(seed: int) -> None:
    batch = random_batch(seed, rows=40, width=1)
    logs = {"log_clip_low": 0.4, "log_clip_high": 0.4}
    clips = {"clip_low": 1 - math.exp(-0.4), "clip_high": math.exp(0.4) - 1}
    mine, ppo = apply("geo_mean", *batch, **logs), apply("ppo", *batch, **clips)
    assert torch.equal(mine.keep, ppo.keep)
    torch.testing.assert_close(mine.objective, ppo.objective, rtol=1e-14, atol=0)
    torch.testing.assert_close(gradient("geo_mean", batch, logs), gradient("ppo", batch, clips))


@pytest.mark.parametrize("advantage", [1.0, -1.0])
@pytest.mark.parametrize("name", ["gspo", "geo_mean"])
def test_a_tie_keeps_the_response_with_its_whole_gradient(name: str, advantage: float) -> None:
    zeros = torch.zeros(1, 3)
    arguments = zeros, zeros, torch.full((1, 3), advantage), torch.ones(1, 3)
    names = ("clip_low", "clip_high") if name == "gspo" else ("log_clip_low", "log_clip_high")
    parameters = dict.fromkeys(names, 0.0)
    assert apply(name, *arguments, **parameters).keep.tolist() == [[1, 1, 1]]
    assert gradient(name, arguments, parameters).tolist() == [[advantage] * 3]


def test_sapo_with_a_ratio_that_overflows_has_no_gradient_and_no_nan() -> None:
    logp = torch.tensor([[200.0, -200.0, 0.0], [200.0, -200.0, 0.0]])
    arguments = logp, torch.zeros(2, 3), torch.tensor([[1.0], [-1.0]]).expand(2, 3), torch.ones(2, 3)
    result = apply("sapo", *arguments, **SAPO)
    grad = gradient("sapo", arguments, SAPO)
    assert bool(torch.isfinite(result.objective).all())
    assert grad[0].tolist() == [0, 0, 1] and grad[1].tolist() == [0, 0, -1]


def test_dr_grpo_brings_its_companion_settings_and_they_can_be_overridden() -> None:
    run = compose(["rule=dr_grpo"]).run
    assert not run.advantage.normalize_std and run.training.aggregation == "seq-mean-token-sum-norm"
    assert (
        compose(["rule=dr_grpo", "training.aggregation=token-mean"]).run.training.aggregation == "token-mean"
    )
    assert RULES["dr_grpo"].function == RULES["ppo"].function
    assert run.rule.parameters() == compose(["rule=ppo"]).run.rule.parameters()


def test_the_files_hold_the_papers_constants() -> None:
    shipped = {name: compose([f"rule={name}"]).run.rule.parameters() for name in LOOPS}
    assert shipped == {
        "gspo": {"clip_low": 3e-4, "clip_high": 4e-4},
        "geo_mean": {"log_clip_low": 0.4, "log_clip_high": 0.4},
        "sapo": SAPO,
    }
