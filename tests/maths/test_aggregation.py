"""Advantages, aggregation and the statistics of minibatches, on numbers small enough to check by hand."""

import math

import pytest
import torch

from cppo_lab.maths.rules import AGGREGATIONS, aggregate, group_advantages
from cppo_lab.maths.tokens import summarise
from tests.maths.maths_batches import apply, random_batch


def test_groups_may_be_interleaved_and_of_any_size() -> None:
    rewards = torch.tensor([0.0, 3.0, 1.0, 3.0, 5.0], dtype=torch.float64, requires_grad=True)
    groups = torch.tensor([9, -4, 9, -4, 100])
    advantages, keep = group_advantages(rewards, groups, normalize_std=False)
    assert advantages.tolist() == [-0.5, 0, 0.5, 0, 0] and not advantages.requires_grad
    assert keep.tolist() == [True, False, True, False, False]


@pytest.mark.parametrize("normalize_std", [True, False])
def test_equal_rewards_are_dropped_despite_rounding(normalize_std: bool) -> None:
    rewards = torch.full((7,), 0.1)  # their float32 mean is not exactly 0.1
    advantages, keep = group_advantages(rewards, torch.zeros(7).long(), normalize_std=normalize_std)
    assert not advantages.any() and not keep.any()


@pytest.mark.parametrize("shape", [(0, 4), (3, 0), (3, 4)])
@pytest.mark.parametrize("mode", AGGREGATIONS)
def test_without_a_token_it_is_0_with_a_gradient_of_0(mode: str, shape: tuple[int, int]) -> None:
    values = torch.full(shape, 7.0, requires_grad=True)
    loss = aggregate(values, torch.zeros(shape), mode)
    assert loss.item() == 0 and not torch.autograd.grad(loss, values)[0].any()


@pytest.mark.parametrize("mode", AGGREGATIONS)
def test_micro_batches_add_up(mode: str) -> None:
    """Whatever stands at padding; the golden vectors have the values."""
    for seed in range(12):
        batch, cut = random_batch(seed), 1 + seed % 4
        lengths, values = batch.valid.sum(1), batch.logp.masked_fill(~batch.valid, math.nan)
        denominator = lengths.sum() if mode == "token-mean" else (lengths > 0).sum()
        whole = aggregate(values, batch.valid, mode)
        parts = [
            aggregate(values[rows], batch.valid[rows], mode, denominator=denominator)
            for rows in (slice(0, cut), slice(cut, None))
        ]
        torch.testing.assert_close(sum(parts), whole, rtol=1e-12, atol=1e-12)
        if mode.endswith("norm"):  # by the width, if no horizon is given
            assert whole == aggregate(values, batch.valid, mode, horizon=12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_mean_ratio_of_a_broken_policy_is_a_number(dtype: torch.dtype) -> None:
    """exp of 1,000 is none in either dtype; a cap keeps the objective finite, so the run goes on and logs it."""
    logp, rollout_logp = (torch.tensor([[-1.0, last]], dtype=dtype) for last in (0.0, -1000.0))
    ones = torch.ones_like(logp)
    result = apply("dppo", logp, rollout_logp, -ones, ones.bool(), 0 * ones, delta=0.1, ratio_cap=20.0)
    assert result.objective.isfinite().all()
    assert summarise(result.stats)["ratio_mean"] == pytest.approx((1 + math.exp(20)) / 2)


def test_a_rejected_response_without_advantage_counts_as_nothing_masked() -> None:
    divergence = torch.tensor([[0.5, 0.0], [0.5, 0.0]])
    advantages = torch.tensor([[1.0, 1.0], [0.0, 0.0]])
    zeros = torch.zeros(2, 2)
    result = apply("trm_max", zeros, zeros, advantages, torch.ones(2, 2), divergence, delta_max=0.1)
    assert summarise(result.stats)["masked_fraction"] == 1.0
    assert float(result.stats["masked"]) == 2.0


def test_the_statistics_of_cppo_by_hand() -> None:
    ratio = torch.tensor([[2.0, 2.0, 0.5, 2.0, 2.0, 7.0], [2.0, 2.0, 3.0, 9.0, 9.0, 9.0]]).double()
    divergence = torch.tensor([[0.25, 0.125, 0.5, 0.0, 0.5, 9.0], [0.5, 0.5, 0.5, 9.0, 9.0, 9.0]]).double()
    advantages = torch.tensor([[1.0], [0.0]]).expand(2, 6)
    valid = torch.tensor([[1, 1, 1, 1, 1, 0], [1, 1, 1, 0, 0, 0]])
    constants = {"delta": 0.25, "delta_b": 0.125, "w_min": 1.0, "delta_b_mode": "fixed"}
    result = apply("cppo", ratio.log(), torch.zeros_like(ratio), advantages, valid, divergence, **constants)
    # excess before each token: 0, .125, .125, .5, .375; so c = .25, .125, .125, -.25, -.125 (two ties keep)
    assert result.keep.tolist() == [[1, 1, 1, 0, 0, 0], [1, 1, 1, 0, 0, 0]]
    assert summarise(result.stats) == pytest.approx(
        {
            "masked_fraction": 2 / 5,
            "prefix_budget_share": 0.5,
            "token_threshold_share": 0.5,
            "divergence_mean": 2.875 / 8,
            "divergence_max": 0.5,
            "delta_b_mean": 0.125,
            "ratio_mean": 15.5 / 8,
        }
    )
