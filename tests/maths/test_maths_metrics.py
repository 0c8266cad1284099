"""Statistics, advantages and aggregation on numbers small enough to check by hand."""

import math
from itertools import product

import pytest
import torch

from cppo_lab.maths.aggregation import MODES, aggregate, group_advantages
from cppo_lab.maths.metrics import merge, relative_logprob_error, summarise
from cppo_lab.maths.rules import RULES
from tests.maths.maths_batches import STATISTICS, WITHOUT_DIVERGENCE, apply, constants, random_batch
from tests.maths.maths_cases import check_all

EVERY_RULE = {"masked_fraction", "ratio_mean"}
WITH_DIVERGENCE = {"divergence_mean", "divergence_max"}


@pytest.mark.parametrize("name", RULES)
def test_a_rule_reports_the_names_that_apply_to_it(name: str) -> None:
    batch = random_batch(0)
    result = apply(name, *batch, **constants(name, batch))
    assert summarise(result.stats).keys() == EVERY_RULE | WITH_DIVERGENCE | STATISTICS[name]
    assert all(value.ndim == 0 for value in result.stats.values())


@pytest.mark.parametrize("name", WITHOUT_DIVERGENCE)
def test_the_divergence_is_optional_where_it_decides_nothing(name: str) -> None:
    batch = random_batch(0)
    parameters = constants(name, batch)
    with_divergence = apply(name, *batch, **parameters)
    result = apply(name, *batch[:4], **parameters)
    assert torch.equal(result.objective, with_divergence.objective)
    assert summarise(result.stats).keys() == EVERY_RULE | STATISTICS[name]


def test_cppo_by_hand() -> None:
    ratio = torch.tensor(
        [[2.0, 2.0, 0.5, 2.0, 2.0, 7.0], [2.0, 2.0, 3.0, 9.0, 9.0, 9.0]], dtype=torch.float64
    )
    divergence = torch.tensor([[0.25, 0.125, 0.5, 0.0, 0.125, 9.0], [0.5, 0.5, 0.5, 9.0, 9.0, 9.0]])
    advantages = torch.tensor([[1.0], [0.0]]).expand(2, 6)
    valid = torch.tensor([[1, 1, 1, 1, 1, 0], [1, 1, 1, 0, 0, 0]])
    result = apply(
        "cppo",
        ratio.log(),
        torch.zeros_like(ratio),
        advantages,
        valid,
        divergence.double(),
        delta=0.25,
        delta_b=0.125,
        w_min=1.0,
        delta_b_mode="fixed",
    )
    # excess before each token: 0, .125, .125, .5, .375; so c = .25, .125, .125, -.25, -.125 (two ties keep)
    assert result.keep.tolist() == [[1, 1, 1, 0, 0, 0], [1, 1, 1, 0, 0, 0]]
    assert summarise(result.stats) == pytest.approx(
        {
            "masked_fraction": 2 / 5,
            "prefix_budget_share": 1.0,
            "token_threshold_share": 0.0,
            "divergence_mean": 2.5 / 8,
            "divergence_max": 0.5,
            "delta_b_mean": 0.125,
            "ratio_mean": 15.5 / 8,
        }
    )


@pytest.mark.parametrize("name", RULES)
def test_an_empty_batch_gives_zeros_and_no_nan(name: str) -> None:
    check_all(empty_batch_gives_zeros_and_no_nan, product([name], [(0, 4), (3, 0), (3, 4)]))


def empty_batch_gives_zeros_and_no_nan(name: str, shape: tuple[int, int]) -> None:
    batch = random_batch(0, rows=5, width=4)
    batch = batch._replace(
        **{f: torch.zeros(shape, dtype=torch.float64) for f in batch._fields if f != "valid"}
    )
    batch = batch._replace(valid=torch.zeros(shape, dtype=torch.bool))
    logp = batch.logp.requires_grad_()
    result = apply(name, *batch, **constants(name, batch))
    assert all(value == 0 for value in summarise(result.stats).values())
    for mode in MODES:
        loss = aggregate(result.objective, batch.valid, mode)
        assert float(loss.detach()) == 0 and not torch.autograd.grad(loss, logp, retain_graph=True)[0].any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_mean_ratio_of_a_broken_policy_is_a_number(dtype: torch.dtype) -> None:
    """exp of 1,000 is none in either dtype; a cap keeps the objective finite, so the run goes on and logs it."""
    logp = torch.tensor([[-1.0, 0.0]], dtype=dtype)
    rollout_logp = torch.tensor([[-1.0, -1000.0]], dtype=dtype)
    ones = torch.ones_like(logp)
    result = apply("dppo", logp, rollout_logp, -ones, ones.bool(), 0 * ones, delta=0.1, ratio_cap=20.0)
    assert result.objective.isfinite().all()
    assert summarise(result.stats)["ratio_mean"] == pytest.approx((1 + math.exp(20)) / 2)


def test_merge_adds_sums_and_keeps_the_largest_maximum() -> None:
    first = {
        "tokens": torch.tensor(2.0),
        "divergence": torch.tensor(1.0),
        "divergence_max": torch.tensor(0.9),
    }
    second = {
        "tokens": torch.tensor(6.0),
        "divergence": torch.tensor(1.0),
        "divergence_max": torch.tensor(0.2),
    }
    summary = summarise(merge([first, second]))
    assert summary == pytest.approx({"divergence_mean": 0.25, "divergence_max": 0.9})


def test_relative_logprob_error_by_hand() -> None:
    logp = torch.tensor([[-1.0, -2.0, 50.0]])
    rollout_logp = torch.tensor([[-1.5, -2.5, 0.0]])
    difference, scale = relative_logprob_error(logp, rollout_logp, torch.tensor([[1, 1, 0]]))
    assert float(difference) == 1.0 and float(scale) == 4.0


def test_groups_may_be_interleaved_and_of_any_size() -> None:
    rewards = torch.tensor([0.0, 3.0, 1.0, 3.0, 5.0], dtype=torch.float64)
    groups = torch.tensor([9, -4, 9, -4, 100])
    advantages, keep = group_advantages(rewards, groups, normalize_std=False)
    assert advantages.tolist() == [-0.5, 0, 0.5, 0, 0]
    assert keep.tolist() == [True, False, True, False, False]


@pytest.mark.parametrize("normalize_std", [True, False])
def test_equal_rewards_are_dropped_despite_rounding(normalize_std: bool) -> None:
    rewards = torch.full((7,), 0.1)  # their float32 mean is not exactly 0.1
    advantages, keep = group_advantages(
        rewards, torch.zeros(7, dtype=torch.int64), normalize_std=normalize_std
    )
    assert not advantages.any() and not keep.any()


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        ("token-mean", 15 / 5),
        ("seq-mean-token-sum", 15 / 2),
        ("seq-mean-token-mean", (2 + 9 / 2) / 2),
        ("seq-mean-token-sum-norm", 15 / 3 / 2),
    ],
)
def test_aggregation_by_hand(mode: str, expected: float) -> None:
    values = torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, float("inf")], [99.0, 99.0, 99.0]])
    valid = torch.tensor([[1, 1, 1], [1, 1, 0], [0, 0, 0]])
    assert float(aggregate(values, valid, mode)) == pytest.approx(expected)


def test_grpo_by_hand() -> None:
    ratio = torch.tensor([[20.0, 1.2, 0.1], [20.0, 4.0, 0.1]], dtype=torch.float64)
    advantages = torch.tensor([[1.0], [-1.0]], dtype=torch.float64).expand(2, 3)
    arguments = ratio.log(), torch.zeros_like(ratio), advantages, torch.ones(2, 3)
    result = apply("grpo", *arguments, clip_low=0.2, clip_high=0.28, dual_clip=10.0)
    expected = torch.tensor([[1.28, 1.2, 0.1], [-10.0, -4.0, -0.8]], dtype=torch.float64)
    torch.testing.assert_close(result.objective, expected, rtol=1e-12, atol=0)
    assert result.keep.tolist() == [[0, 1, 1], [0, 1, 0]]
    assert summarise(result.stats)["clip_fraction"] == pytest.approx(3 / 6)


@pytest.mark.parametrize("advantage", [1.0, -1.0])
def test_grpo_keeps_a_tie_with_its_whole_gradient(advantage: float) -> None:
    logp = torch.zeros(1, 1, requires_grad=True)
    arguments = torch.zeros(1, 1), torch.full((1, 1), advantage), torch.ones(1, 1)
    result = apply("grpo", logp, *arguments, clip_low=0.0, clip_high=0.0)
    (grad,) = torch.autograd.grad(result.objective.sum(), logp)
    assert float(result.keep) == 1 and float(grad) == advantage


def test_a_rejected_response_without_advantage_counts_as_nothing_masked() -> None:
    divergence = torch.tensor([[0.5, 0.0], [0.5, 0.0]])
    advantages = torch.tensor([[1.0, 1.0], [0.0, 0.0]])
    zeros = torch.zeros(2, 2)
    result = apply("trm_max", zeros, zeros, advantages, torch.ones(2, 2), divergence, delta_max=0.1)
    assert summarise(result.stats)["masked_fraction"] == 1.0
    assert float(result.stats["masked"]) == 2.0
