"""The two readings of the method, recipe=paper and recipe=authors, against loops and against each other."""

import functools
import math
from typing import Any

import pytest
import torch
from torch import Tensor

from cppo_lab.maths.divergence import binary
from cppo_lab.maths.rules import aggregate
from cppo_lab.spec import RunSpec
from cppo_lab.sweep.compose import compose
from tests.maths.maths_batches import apply, constants, differentiated, random_batch
from tests.oracles.authors import AuthorsLoss, authors_loss

WIDTH = 24
WEIGHTS_ALONE = tuple(f"cppo_no_prefix_budget{order}" for order in ("", "_shuffled", "_reversed"))
MASKS = ("dppo", "cppo", "cppo_no_position_weight", *WEIGHTS_ALONE)
CAPPED = (*MASKS, "cppo_soft", "trm_max", "trm_avg", "trm_max_avg")
SPANNED = ("cppo", *WEIGHTS_ALONE, "cppo_soft")
LENGTHS = (WIDTH, 1, 7, 0, 2, 13)


def random_rows(seed: int) -> tuple[list[list[float]], list[list[float]], list[float]]:
    """Responses of LENGTHS with small and large drift."""
    generator = torch.Generator().manual_seed(seed)
    now, then = [], []
    for length in LENGTHS:
        mu = -2 * torch.rand(length, generator=generator, dtype=torch.float64) - 0.02
        drift = (0.05, 0.4, 2.0)[seed % 3] * torch.randn(length, generator=generator, dtype=torch.float64)
        then.append(mu.tolist())
        now.append((mu + drift).clamp(max=-1e-3).tolist())
    return now, then, torch.randn(len(LENGTHS), generator=generator, dtype=torch.float64).tolist()


def row(pairs: list[tuple[float, float]]) -> tuple[list[float], list[float]]:
    """(log pi, log mu) of a response from probabilities (mu, pi)."""
    return [math.log(pi) for _, pi in pairs], [math.log(mu) for mu, _ in pairs]


ADVERSARIAL = {
    "a ratio beyond the cap": row([(0.001, 0.05), (0.5, 0.6), (1e-6, 0.1)]),
    "ratios beyond the clamp, both ways": ([-0.1, -60.0, -0.5], [-60.0, -0.1, -0.5]),
    "a ratio that overflows": ([-0.1, -1.0], [-800.0, -1.2]),
    "no drift at all": row([(0.3, 0.3)] * 5),
    "the first token spends the whole budget": row([(0.1, 0.9), *[(0.5, 0.53)] * 10]),
    "a quiet prefix, one late leap": row([*[(0.5, 0.501)] * 20, (0.2, 0.6)]),
    "the quantile hits its cap": row([(0.3, 0.7)] * WIDTH),
    "a budget between 2 and 5 times its floor": row([(0.3, 0.34)] * WIDTH),
    "a budget that depends on the quantile": row([(0.3, 0.345), *[(0.3, 0.32)] * 3] * 6),
    "a last token that only the padded weight drops": row([*[(0.5, 0.5)] * 6, (0.5, 0.56)]),
    "one token": row([(0.4, 0.7)]),
    "back toward mu, far away": row([(0.9, 0.1)] * 6),
}


def padded(rows: list[list[float]]) -> Tensor:
    values = torch.full((len(rows), WIDTH), 7.0, dtype=torch.float64)  # what pads must never count
    for index, given in enumerate(rows):
        values[index, : len(given)] = torch.tensor(given, dtype=torch.float64)
    return values


@functools.cache
def authors() -> RunSpec:
    return compose(["model=mini_base", "recipe=authors"]).run


def ours(
    now: list[list[float]], then: list[list[float]], advantages: list[float]
) -> tuple[float, Tensor, Tensor]:
    """Loss, gradient and mask of recipe=authors, as the configuration has it."""
    run = authors()
    assert (run.divergence.estimator, run.divergence.measure) == ("binary", "tv")
    valid = torch.arange(WIDTH) < torch.tensor([len(given) for given in now])[:, None]
    logp, rollout_logp = padded(now).requires_grad_(), padded(then)
    spread = torch.tensor(advantages, dtype=torch.float64)[:, None].expand_as(logp)
    d = binary(logp.detach(), rollout_logp, run.divergence.measure)
    output = apply(run.rule.name, logp, rollout_logp, spread, valid, d, **run.rule.arguments(WIDTH))
    loss = -aggregate(output.objective, valid, run.training.aggregation, horizon=WIDTH)
    loss.backward()
    assert logp.grad is not None
    return float(loss.detach()), logp.grad, output.keep


def expected(now: list[list[float]], then: list[list[float]], advantages: list[float]) -> AuthorsLoss:
    """With the constants of the model `mini_base`, and the authors' for the rest."""
    return authors_loss(now, then, advantages, width=WIDTH, delta=0.05, delta_b=0.01, w_min=0.8)


def assert_equal(now: list[list[float]], then: list[list[float]], advantages: list[float]) -> AuthorsLoss:
    loss, gradient, keep = ours(now, then, advantages)
    wanted = expected(now, then, advantages)
    assert loss == pytest.approx(wanted.loss, rel=1e-10, abs=1e-12)
    for index, given in enumerate(wanted.gradient):
        assert gradient[index, : len(given)].tolist() == pytest.approx(given, rel=1e-10, abs=1e-14)
        assert not gradient[index, len(given) :].any()
        assert keep[index, : len(given)].tolist() == wanted.mask[index]
    return wanted


def test_the_authors_loss_on_random_batches() -> None:
    masks = [assert_equal(*random_rows(seed)).mask for seed in range(30)]
    kept = [token for mask in masks for response in mask for token in response]
    assert 0.2 < sum(kept) / len(kept) < 0.95


@pytest.mark.parametrize("advantage", [1.0, -1.0, 0.0, 1e-9, 40.0])
@pytest.mark.parametrize("name", ADVERSARIAL)
def test_the_authors_loss_on_adversarial_responses(name: str, advantage: float) -> None:
    now, then = ADVERSARIAL[name]
    other_now, other_then, others = random_rows(1)
    assert_equal([now, *other_now], [then, *other_then], [advantage, *others])
    assert_equal([now], [then], [advantage])


def test_all_adversarial_responses_in_one_batch() -> None:
    """The cap, the clamp and the cap of the budget bind somewhere, or they would not be tested."""
    now, then = ([pair[i] for pair in ADVERSARIAL.values()] for i in (0, 1))
    advantages = [1.0 if i != 1 else -1.0 for i in range(len(now))]
    settings: dict[str, Any] = {"width": WIDTH, "delta": 0.05, "delta_b": 0.01, "w_min": 0.8}
    wanted = assert_equal(now, then, advantages)
    for other in (
        {"ratio_cap": math.inf},
        {"clamp": 2.0},
        {"cap": 2.0},
        {"q": 0.5},
        {"scale": 0.5},
    ):
        assert authors_loss(now, then, advantages, **settings | other).loss != wanted.loss, other


@pytest.mark.parametrize("name", CAPPED)
def test_a_cap_and_a_clamp_bound_the_gradient_and_change_no_mask(name: str) -> None:
    """Infinite limits are none, and far off neither changes the gradient."""
    for seed in range(5):
        batch = random_batch(seed)
        log_ratio, own = batch.logp - batch.rollout_logp, constants(name, batch)
        plain, gradient = differentiated(name, batch)
        for cap, clamp in ((math.inf, math.inf), (1e6, 30.0), (1.2, math.inf), (math.inf, 0.3)):
            output, limited = differentiated(name, batch, **own, ratio_cap=cap, log_ratio_clamp=clamp)
            assert torch.equal(output.keep, plain.keep)
            held = log_ratio.clamp(-clamp, min(clamp, math.log(cap)))
            torch.testing.assert_close(limited, gradient * (held - log_ratio).exp(), rtol=1e-12, atol=1e-14)
            if math.isinf(cap) and math.isinf(clamp):
                assert (
                    torch.equal(output.objective, plain.objective)
                    and output.stats.keys() == plain.stats.keys()
                )
            else:
                beyond = (held != log_ratio) & (plain.keep > 0) & batch.valid & (batch.advantages != 0)
                assert int(output.stats["clipped"]) == int(beyond.sum())


def test_a_ratio_that_overflows_behind_a_wide_clamp() -> None:
    logp, rollout_logp = torch.tensor([[-1.0]]), torch.tensor([[-900.0]])
    batch = (logp, rollout_logp, torch.ones(1, 1), torch.ones(1, 1, dtype=torch.bool), torch.zeros(1, 1))
    with pytest.raises(ValueError, match=r"overflows: lower log_ratio_clamp=500"):
        apply("dppo", *batch, delta=0.1, log_ratio_clamp=500.0)
    assert float(apply("dppo", *batch, delta=0.1, log_ratio_clamp=500.0, ratio_cap=20.0).objective) == -20.0


@pytest.mark.parametrize("name", SPANNED)
def test_the_padded_span_is_the_own_length_of_full_responses(name: str) -> None:
    batch = random_batch(4)._replace(valid=torch.ones(5, 12, dtype=torch.bool))
    own = {**constants(name, batch), "w_min": 0.2}
    plain, wide = apply(name, *batch, **own), apply(name, *batch, **own, span=12)
    torch.testing.assert_close(wide.objective, plain.objective, rtol=0, atol=0)
    assert wide.stats == plain.stats
    others = [random_batch(seed)._replace(valid=batch.valid) for seed in range(8)]
    assert any((apply(name, *o, **own, span=99).keep != apply(name, *o, **own).keep).any() for o in others)
