"""The two readings of the method, recipe=paper and recipe=authors, against loops and against each other."""

import functools
import math
from typing import Any

import pytest
import torch
from torch import Tensor

from cppo_lab.maths import weights as budget
from cppo_lab.maths.aggregation import aggregate
from cppo_lab.maths.divergence import binary
from cppo_lab.maths.metrics import summarise
from cppo_lab.maths.weights import effective_delta_b, position_weights
from cppo_lab.spec import RunSpec
from cppo_lab.spec.run import PAPER
from cppo_lab.sweep.compose import compose
from tests.maths.maths_batches import CONSTANTS, apply, constants, random_batch
from tests.oracles.authors import AuthorsLoss, authors_loss, quantile

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
) -> tuple[float, Tensor, Tensor, dict[str, float]]:
    """Loss, gradient, mask and statistics of recipe=authors, as the configuration has it."""
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
    return float(loss.detach()), logp.grad, output.keep, summarise(output.stats)


def expected(now: list[list[float]], then: list[list[float]], advantages: list[float]) -> AuthorsLoss:
    """With the constants of the model `mini_base`, and the authors' for the rest."""
    return authors_loss(now, then, advantages, width=WIDTH, delta=0.05, delta_b=0.01, w_min=0.8)


def assert_equal(now: list[list[float]], then: list[list[float]], advantages: list[float]) -> AuthorsLoss:
    loss, gradient, keep, _ = ours(now, then, advantages)
    wanted = expected(now, then, advantages)
    assert loss == pytest.approx(wanted.loss, rel=1e-10, abs=1e-12)
    for index, given in enumerate(wanted.gradient):
        assert gradient[index, : len(given)].tolist() == pytest.approx(given, rel=1e-10, abs=1e-14)
        assert not gradient[index, len(given) :].any()
        assert keep[index, : len(given)].tolist() == wanted.mask[index]
    return wanted


@pytest.mark.parametrize("seed", range(30))
def test_the_authors_loss_on_random_batches(seed: int) -> None:
    assert_equal(*random_rows(seed))


def test_random_batches_keep_and_drop() -> None:
    masks = [expected(*random_rows(seed)).mask for seed in range(30)]
    kept = [kept for mask in masks for given in mask for kept in given]
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


def test_a_fixed_budget_has_no_cap() -> None:
    """delta_b of Qwen3-1.7B is fixed: the recipe's quantile, scale and cap make no other run of it."""
    run = compose(["core=verl", "model=qwen3_1_7b", "recipe=authors"]).run
    assert run.rule.delta_b_cap is None
    again = compose(["core=verl", "model=qwen3_1_7b", "recipe=authors", "recipe.delta_b_cap=7"]).run
    assert again.run_id == run.run_id


def output_of(name: str, seed: int, **own: Any) -> tuple[Tensor, Tensor, dict[str, float]]:
    """Gradient, mask and statistics of a rule on a random batch."""
    batch = random_batch(seed)
    logp = batch.logp.clone().requires_grad_()
    output = apply(name, logp, *batch[1:], **constants(name, batch), **own)
    output.objective.sum().backward()
    assert logp.grad is not None
    return logp.grad, output.keep, summarise(output.stats)


@pytest.mark.parametrize("name", CAPPED)
def test_infinite_limits_are_no_limits(name: str) -> None:
    for seed in range(5):
        batch = random_batch(seed)
        own = constants(name, batch)
        plain = apply(name, *batch, **own)
        infinite = apply(name, *batch, **own, ratio_cap=math.inf, log_ratio_clamp=math.inf)
        torch.testing.assert_close(infinite.objective, plain.objective, rtol=0, atol=0)
        assert infinite.stats.keys() == plain.stats.keys()


@pytest.mark.parametrize("name", CAPPED)
def test_a_cap_bounds_the_gradient_and_changes_no_mask(name: str) -> None:
    for seed in range(5):
        batch = random_batch(seed)
        gradient, keep, _ = output_of(name, seed)
        capped, same_keep, stats = output_of(name, seed, ratio_cap=1.2)
        torch.testing.assert_close(same_keep, keep, rtol=0, atol=0)
        ratio = (batch.logp - batch.rollout_logp).exp()
        torch.testing.assert_close(capped, gradient * ratio.clamp(max=1.2) / ratio, rtol=1e-12, atol=1e-14)
        kept = (keep > 0) & batch.valid & (batch.advantages != 0)
        assert stats["clip_fraction"] == pytest.approx(
            float(((ratio > 1.2) & kept).sum() / batch.valid.sum())
        )
        # Far off, neither a cap nor a clamp changes the gradient.
        far, _, stats = output_of(name, seed, ratio_cap=1e6, log_ratio_clamp=30.0)
        torch.testing.assert_close(far, gradient, rtol=1e-12, atol=1e-14)
        assert stats["clip_fraction"] == 0


@pytest.mark.parametrize("name", CAPPED)
def test_a_clamp_bounds_the_ratio_on_both_sides(name: str) -> None:
    batch = random_batch(2)
    gradient, _, _ = output_of(name, 2)
    clamped, _, _ = output_of(name, 2, log_ratio_clamp=0.3)
    log_ratio = batch.logp - batch.rollout_logp
    factor = (log_ratio.clamp(-0.3, 0.3) - log_ratio).exp()
    torch.testing.assert_close(clamped, gradient * factor, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize(
    ("own", "message"),
    [
        ({"ratio_cap": 0.5}, "ratio_cap=0.5 must be at least 1"),
        ({"ratio_cap": math.nan}, "ratio_cap=nan must be at least 1"),
        ({"log_ratio_clamp": 0.0}, "log_ratio_clamp=0.0 must be a positive number"),
    ],
)
def test_limits_out_of_range(own: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        apply("dppo", *random_batch(0), **CONSTANTS["dppo"], **own)


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


def test_the_padded_weights_of_a_quarter_of_the_width() -> None:
    """from 1 to 0.95 alone, where the response's own length gives 1 to 0.8."""
    valid = torch.ones(1, 25, dtype=torch.bool)
    assert float(position_weights(valid, 0.8, 97)[0, -1]) == pytest.approx(0.95)
    assert float(position_weights(valid, 0.8)[0, -1]) == pytest.approx(0.8)


@pytest.mark.parametrize("q", [0.0, 0.25, 0.5, 0.9, 0.95, 1.0])
@pytest.mark.parametrize("cap", [1.0, 2.0, 5.0, math.inf])
@pytest.mark.parametrize("scale", [0.0, 0.5, 1.0, 3.0])
def test_the_adaptive_budget(q: float, cap: float, scale: float) -> None:
    batch = random_batch(6, rows=9)
    rates = effective_delta_b(batch.divergence, batch.valid, 0.02, "adaptive", cap, q, scale)
    for index, rate in enumerate(rates.tolist()):
        values = batch.divergence[index][batch.valid[index]].tolist()
        wanted = min(max(scale * quantile(values, q), 0.02), cap * 0.02) if values else 0.02
        assert rate == pytest.approx(wanted, rel=1e-12)


@pytest.mark.parametrize(
    ("own", "message"),
    [({"quantile": 1.1}, r"quantile=1.1 must lie in \[0, 1\]"), ({"scale": -1.0}, "scale=-1.0")],
)
def test_a_budget_out_of_range(own: dict[str, float], message: str) -> None:
    batch = random_batch(0)
    with pytest.raises(ValueError, match=message):
        effective_delta_b(batch.divergence, batch.valid, 0.02, "adaptive", **own)


def test_the_papers_constants_are_the_same_in_both_places() -> None:
    found = (PAPER["delta_b_cap"], PAPER["delta_b_quantile"], PAPER["delta_b_scale"])
    assert found == (budget.CAP, budget.QUANTILE, budget.SCALE)
