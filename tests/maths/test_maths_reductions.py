"""Rules that must coincide when a constant switches the difference off, and long-response numerics."""

import math

import pytest
import torch

from cppo_lab.maths import divergence as divergences
from cppo_lab.maths.metrics import summarise
from cppo_lab.maths.rules import RULES
from cppo_lab.maths.weights import position_weights, prefix_excess, shuffled_weights
from tests.maths.maths_batches import CONSTANTS, apply, distributions, random_batch, random_permutation
from tests.maths.maths_cases import check_all

INF = math.inf
CPPO = {"delta": 0.15, "delta_b": 0.03, "w_min": 0.8, "delta_b_mode": "adaptive"}


def identity(valid: torch.Tensor) -> torch.Tensor:
    return torch.arange(valid.shape[1]).expand(valid.shape)


REDUCTIONS = {
    "w_min=1, delta_b=inf, fixed: dppo": (
        ("cppo", {**CPPO, "w_min": 1.0, "delta_b": INF, "delta_b_mode": "fixed"}),
        ("dppo", {"delta": 0.15}),
    ),
    "w_min=1, delta_b=inf, adaptive: dppo": (
        ("cppo", {**CPPO, "w_min": 1.0, "delta_b": INF}),
        ("dppo", {"delta": 0.15}),
    ),
    "delta_b=inf: no prefix budget": (
        ("cppo", {**CPPO, "delta_b": INF}),
        ("cppo_no_prefix_budget", {"delta": 0.15, "w_min": 0.8}),
    ),
    "w_min=1: no position weight": (
        ("cppo", {**CPPO, "w_min": 1.0}),
        ("cppo_no_position_weight", {"delta": 0.15, "delta_b": 0.03, "delta_b_mode": "adaptive"}),
    ),
    "identity permutation: ordered": (
        ("cppo_no_prefix_budget_shuffled", {"delta": 0.1, "w_min": 0.5, "permutation": identity}),
        ("cppo_no_prefix_budget", {"delta": 0.1, "w_min": 0.5}),
    ),
    "shuffled, delta_b=inf: no prefix budget, shuffled": (
        ("cppo", {**CPPO, "delta_b": INF, "permutation": lambda valid: random_permutation(valid, 3)}),
        (
            "cppo_no_prefix_budget_shuffled",
            {"delta": 0.15, "w_min": 0.8, "permutation": lambda valid: random_permutation(valid, 3)},
        ),
    ),
    "0/1 gate: hard mask": (
        ("cppo_soft", {**CPPO, "gate": lambda score: (score <= 1).to(score.dtype)}),
        ("cppo", CPPO),
    ),
    "large dual clip: none": (
        ("grpo", {"clip_low": 0.2, "clip_high": 0.28, "dual_clip": 1e9}),
        ("grpo", {"clip_low": 0.2, "clip_high": 0.28}),
    ),
    "equal clips: ppo": (
        ("grpo", {"clip_low": 0.2, "clip_high": 0.2}),
        ("ppo", {"clip_low": 0.2, "clip_high": 0.2}),
    ),
    "no limit on the mean: trm_max": (
        ("trm_max_avg", {"delta_max": 0.19, "delta_avg": 9.0}),
        ("trm_max", {"delta_max": 0.19}),
    ),
    "no limit on the maximum: trm_avg": (
        ("trm_max_avg", {"delta_max": 9.0, "delta_avg": 0.1}),
        ("trm_avg", {"delta_avg": 0.1}),
    ),
    "clip_low=1: no lower clip": (
        ("cispo", {"clip_high": 0.5, "clip_low": 1.0}),
        ("cispo", {"clip_high": 0.5}),
    ),
}


@pytest.mark.parametrize("name", REDUCTIONS)
def test_rule_reduces(name: str) -> None:
    check_all(rule_reduces, [(name, seed) for seed in range(4)])


def rule_reduces(name: str, seed: int) -> None:
    batch = random_batch(seed, rows=8, width=20)
    outputs = []
    for rule, parameters in REDUCTIONS[name]:
        values = {k: v(batch.valid) if k == "permutation" else v for k, v in parameters.items()}
        outputs.append(apply(rule, *batch, **values))
    assert torch.equal(outputs[0].keep, outputs[1].keep)
    assert torch.equal(outputs[0].objective, outputs[1].objective)


def test_minpro_on_single_tokens_is_cispo() -> None:
    batch = random_batch(0, width=1)
    parameters = {"clip_high": 0.3, "clip_low": 0.2}
    assert torch.equal(
        apply("minpro", *batch, **parameters).objective, apply("cispo", *batch, **parameters).objective
    )


@pytest.mark.parametrize("name", ["cppo", "cppo_soft"])
def test_an_unlimited_budget_leaves_no_nan(name: str) -> None:
    result = apply(name, *random_batch(0), **{**CPPO, "delta_b": INF})
    summary = summarise(result.stats)
    assert "delta_b_mean" not in summary
    assert all(math.isfinite(value) for value in summary.values())
    assert bool(torch.isfinite(result.objective).all())


@pytest.mark.parametrize("measure", divergences.MEASURES)
@pytest.mark.parametrize("convention", divergences.CONVENTIONS)
def test_topk_with_the_whole_vocabulary_is_exact(measure: str, convention: str) -> None:
    mu, pi, tokens = distributions(0, 30, 9, 2.0)
    sampled = mu.gather(-1, tokens[:, None])[:, 0]
    order = mu.argsort(-1, descending=True)
    actual = divergences.topk(
        order, mu.gather(-1, order), pi, tokens, sampled, measure=measure, convention=convention
    )
    torch.testing.assert_close(actual, divergences.exact(mu, pi, measure), rtol=0, atol=1e-9)


@pytest.mark.parametrize("measure", divergences.MEASURES)
def test_replacing_the_only_token_gives_binary(measure: str) -> None:
    mu, pi, tokens = distributions(1, 30, 9, 2.0)
    sampled, current = (d.gather(-1, tokens[:, None])[:, 0] for d in (mu, pi))
    top = mu.topk(1)
    actual = divergences.topk(
        top.indices, top.values, pi, tokens, sampled, measure=measure, convention="replace_kth"
    )
    torch.testing.assert_close(actual, divergences.binary(current, sampled, measure), rtol=0, atol=1e-9)


def test_topk_normalises_logits() -> None:
    mu, pi, tokens = distributions(2, 30, 9, 2.0)
    sampled = mu.gather(-1, tokens[:, None])[:, 0]
    top = mu.topk(4)
    arguments = (tokens, sampled)
    shifted = divergences.topk(top.indices, top.values, pi + 3.5, *arguments, measure="kl")
    plain = divergences.topk(top.indices, top.values, pi, *arguments, measure="kl")
    torch.testing.assert_close(shifted, plain, rtol=0, atol=1e-12)


def test_a_zero_of_pi_gives_a_large_finite_kl() -> None:
    mu, pi = torch.tensor([[0.5, 0.5]]).log(), torch.tensor([[1.0, 0.0]]).log()
    value = divergences.exact(mu, pi, "kl")
    assert math.isfinite(float(value)) and float(value) > 10


@pytest.mark.parametrize("name", [name for name in RULES if "shuffled" not in name])
def test_bfloat16_is_computed_in_float32(name: str) -> None:
    narrow = random_batch(1, dtype=torch.bfloat16)
    wide = narrow._replace(**{f: getattr(narrow, f).float() for f in narrow._fields if f != "valid"})
    first, second = (apply(name, *batch, **CONSTANTS[name]) for batch in (narrow, wide))
    assert torch.equal(first.objective, second.objective) and torch.equal(first.keep, second.keep)


def test_a_shuffle_keeps_the_multiset_of_weights() -> None:
    valid = random_batch(3).valid
    weights = position_weights(valid, 0.5)
    shuffled = shuffled_weights(weights, valid, random_permutation(valid, 1))
    assert not torch.equal(shuffled, weights)
    assert torch.equal(shuffled.sort(1).values, weights.sort(1).values)


def test_reversed_weights_are_the_weights_from_the_end() -> None:
    """As a permutation gives them: the two ablations of the order differ in the order alone."""
    valid = random_batch(3).valid
    lengths = valid.sum(1, keepdim=True)
    backwards = torch.where(valid, lengths - 1 - torch.arange(valid.shape[1]), 0)
    for span in (None, valid.shape[1]):
        weights = position_weights(valid, 0.5, span)
        turned = position_weights(valid, 0.5, span, reverse=True)
        assert torch.equal(turned, shuffled_weights(weights, valid, backwards))
        assert not torch.equal(turned, weights)


def test_prefix_excess_of_16k_tokens_holds_in_float32() -> None:
    generator = torch.Generator().manual_seed(0)
    divergence = 0.04 * torch.rand(2, 16384, generator=generator, dtype=torch.float64)
    valid = torch.ones_like(divergence, dtype=torch.bool)
    results = []
    for dtype in (torch.float32, torch.float64):
        weights = position_weights(valid, 0.8, dtype=dtype)
        rate = torch.full((2,), 0.02, dtype=dtype)
        results.append(prefix_excess(weights, divergence.to(dtype), valid, rate).double())
    assert float(results[1].abs().max()) > 0.5  # the sum wanders far from its start
    assert float((results[0] - results[1]).abs().max()) < 2e-5


def test_binary_kl_of_a_nearly_certain_token_holds_in_float32() -> None:
    logp, rollout_logp = torch.tensor([-1e-5]), torch.tensor([-3e-5])
    narrow = divergences.binary(logp, rollout_logp, "kl").double()
    wide = divergences.binary(logp.double(), rollout_logp.double(), "kl")
    torch.testing.assert_close(narrow, wide, rtol=1e-4, atol=0)
