"""IcePop, IPO, KPop, DRPO, M2PO, Seq-TIS, Seq-MIS, Geo-Mask, OPSM, VESPO, VACO: by hand, by loops, as reductions."""

import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from cppo_lab.errors import UserError
from cppo_lab.maths import divergence as divergences
from cppo_lab.sweep.compose import compose
from tests.maths.maths_batches import CONSTANTS, TokenBatch, apply, random_batch
from tests.oracles import rules_2026

LOOPS: dict[str, Callable] = {
    name: getattr(rules_2026, name)
    for name in (
        *("icepop", "ipo", "kpop", "drpo", "m2po"),
        *("seq_tis", "seq_mis", "geo_mask", "opsm", "vespo", "vaco"),
    )
}
INF = math.inf
OPEN = {"ratio_low": 0.0, "ratio_high": INF}


def differentiated(name: str, batch: TokenBatch, parameters: dict):
    logp = batch.logp.clone().requires_grad_()
    output = apply(name, logp, *batch[1:], **parameters)
    return output, torch.autograd.grad(output.objective.sum(), logp)[0]


def hand(ratio: list[list[float]], advantages: list[float], mu: float = 0.1) -> TokenBatch:
    """Ratios to tokens of probability `mu`, one advantage per response, a padded last column."""
    values = torch.tensor(ratio, dtype=torch.float64)
    valid = torch.ones_like(values, dtype=torch.bool)
    valid[:, -1] = False
    rollout = torch.full_like(values, math.log(mu))
    return TokenBatch(
        rollout + values.log(), rollout, torch.tensor(advantages).double()[:, None].expand_as(values), valid,
        torch.zeros_like(values),
    )  # fmt: skip


def extreme_batch(seed: int) -> TokenBatch:
    """Drift from none to e^8, probabilities from 1e-12 to 1, tokens of one response with both signs of A."""
    generator = torch.Generator().manual_seed(seed)

    def uniform(*shape: int) -> Tensor:
        return torch.rand(shape, generator=generator, dtype=torch.float64)

    rows, width = 6, 9
    scale = 10 ** (1.2 - 4 * uniform(rows, 1))
    logp = -28 * uniform(rows, width) ** 4
    rollout_logp = (logp + scale * (uniform(rows, width) - 0.5)).clamp_max(-1e-9)
    advantages = (uniform(rows, width) - 0.5).round(decimals=1)
    lengths = torch.randint(0, width + 1, (rows,), generator=generator)
    valid = torch.arange(width) < lengths[:, None]
    return TokenBatch(logp, rollout_logp, advantages, valid, uniform(rows, width))


@pytest.mark.parametrize("make", [random_batch, extreme_batch])
@pytest.mark.parametrize("name", LOOPS)
@settings(max_examples=100, deadline=None, derandomize=True)
@given(seed=st.integers(0, 2**32 - 1), published=st.booleans())
def test_rule_agrees_with_the_loop(
    name: str, make: Callable[[int], TokenBatch], seed: int, published: bool
) -> None:
    batch = make(seed)
    parameters = PUBLISHED[name] if published else CONSTANTS[name]
    output, gradient = differentiated(name, batch, parameters)
    lengths = batch.valid.sum(1).tolist()
    given = [
        tuple(tensor[row, :length].tolist() for tensor in batch[:3]) for row, length in enumerate(lengths)
    ]
    expected = LOOPS[name](given, **parameters)
    for row, length in enumerate(lengths):
        for place, found in enumerate((output.objective, gradient, output.keep)):
            loop = [token[place] for token in expected[row]]
            assert found[row, :length].tolist() == pytest.approx(loop, rel=1e-9, abs=1e-12)
            assert not found[row, length:].any()


PUBLISHED = {
    "icepop": {"ratio_low": 0.5, "ratio_high": 5.0},
    "ipo": {"delta": 0.1, "kl_tau": 0.001},
    "kpop": {"delta": 0.1},
    "drpo": {"delta": 12.5},
    "m2po": {"m2": 0.04},
    "seq_tis": {"ratio_high": 2.0},
    "seq_mis": {"ratio_low": 0.5, "ratio_high": 2.0},
    "geo_mask": {"ratio_low": 0.999, "ratio_high": 1.001},
    "opsm": {"delta": 1e-4, "clip_low": 0.2, "clip_high": 0.28},
    "vespo": {"k_positive": 2.0, "lambda_positive": 3.0, "k_negative": 3.0, "lambda_negative": 2.0},
    "vaco": {"delta": 0.2},  # ours: none is published
}


def test_the_files_hold_the_published_constants() -> None:
    assert {name: compose([f"rule={name}"]).run.rule.parameters() for name in LOOPS} == PUBLISHED
    newer = compose(["rule=ipo_wide"]).run.rule  # prime-rl's since its pull request 3586
    assert (newer.name, newer.parameters()) == ("ipo", {"delta": 0.3, "kl_tau": 0.0})


@pytest.mark.parametrize("name", LOOPS)
def test_float32_takes_the_decisions_of_float64(name: str) -> None:
    """But for tokens whose decision hangs on the rounding of their own log-probabilities."""
    for seed in range(20):
        narrow = random_batch(seed, dtype=torch.float32)
        wide = TokenBatch(*(t if t.dtype == torch.bool else t.double() for t in narrow))
        (small, gradient), (large, exact) = (
            differentiated(name, batch, CONSTANTS[name]) for batch in (narrow, wide)
        )
        torch.testing.assert_close(small.keep, large.keep.float(), rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(small.objective, large.objective.float(), rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(gradient, exact.float(), rtol=1e-4, atol=1e-5)


def test_icepop_by_hand() -> None:
    batch = hand([[0.5, 5.0, 0.25, 8.0, 1.0, 9.0]] * 2, [1.0, -2.0])
    output, gradient = differentiated("icepop", batch, {"ratio_low": 0.5 - 1e-12, "ratio_high": 5.0 + 1e-12})
    assert output.keep.tolist() == [[1, 1, 0, 0, 1, 0]] * 2
    expected = torch.tensor([[0.5, 5, 0, 0, 1, 0], [-1, -10, 0, 0, -2, 0]]).double()
    torch.testing.assert_close(output.objective, expected)
    torch.testing.assert_close(gradient, expected)


def test_a_tie_keeps() -> None:
    """With log-ratios that float64 holds exactly."""
    batch = hand([[1.0, 1.0, 1.0]], [1.0])
    for name in ("icepop", "seq_mis", "geo_mask"):
        bounds = {"ratio_low": 1.0, "ratio_high": 1.0}
        assert apply(name, *batch, **bounds).keep.tolist() == [[1, 1, 0]], name
    far = batch._replace(
        logp=torch.full_like(batch.logp, -2.0), rollout_logp=torch.full_like(batch.logp, -1.5)
    )
    drift = {"delta": 0.5, "clip_low": 1.0, "clip_high": 0.0}
    assert apply("opsm", *far._replace(advantages=-far.advantages), **drift).keep.tolist() == [[1, 1, 0]]
    near = far._replace(advantages=-far.advantages)
    assert apply("m2po", *near, m2=0.25).keep.tolist() == [[1, 1, 0]]
    assert apply("m2po", *near, m2=0.2499).keep.tolist() == [[0, 0, 0]]
    half = batch._replace(
        rollout_logp=torch.full_like(batch.logp, math.log(0.5)), logp=torch.zeros_like(batch.logp)
    )
    assert apply("ipo", *half, delta=0.5, kl_tau=0.0).keep.tolist() == [[1, 1, 0]]


def test_ipo_pulls_masked_tokens_and_tokens_without_advantage_back() -> None:
    batch = hand([[4.0, 0.5, 9.0], [4.0, 0.5, 9.0]], [1.0, 0.0])
    output, gradient = differentiated("ipo", batch, {"delta": 0.1, "kl_tau": 0.01})
    assert output.keep.tolist() == [[0, 1, 0], [0, 1, 0]]
    back = [-0.02 * math.log(4), 0.02 * math.log(2)]
    expected = torch.tensor([[back[0], 0.5 + back[1], 0], [*back, 0]]).double()
    torch.testing.assert_close(gradient, expected)


def test_drpo_turns_around_beyond_delta() -> None:
    batch = hand([[2.0, 1.5, 3.0, 0.5, 9.0], [2.0, 1.5, 3.0, 0.5, 9.0]], [1.0, -1.0])
    output, gradient = differentiated("drpo", batch, {"delta": 0.1})  # shifts: 0.1, 0.05, 0.2, -0.05
    weights = torch.tensor([[0, 0.5, -1, 1.5], [2, 1.5, 3, 0.5]]).double()
    ratio = torch.tensor([2, 1.5, 3, 0.5]).double()
    torch.testing.assert_close(gradient[:, :-1], weights * ratio * batch.advantages[:, :-1])
    torch.testing.assert_close(output.keep[:, :-1], weights.clamp(0, 1))


def test_m2po_by_hand() -> None:
    """Moving away: log-ratios 1, 2 (first response), -0.5 (second); squares 1, 4, 0.25 with mean 1.75."""
    batch = hand([[math.e, math.e**2, math.e**-3, 9], [math.e**3, math.e**-0.5, 1.0, 9]], [1.0, -1.0])
    keeps = {
        INF: [1, 1, 1],
        1.76: [1, 1, 1],
        1.74: [1, 0, 1],
        0.626: [1, 0, 1],
        0.624: [0, 0, 1],
        0.24: [0, 0, 0],
    }
    for m2, (first, second, third) in keeps.items():
        output = apply("m2po", *batch, m2=m2)
        assert output.keep.tolist() == [[first, second, 1, 0], [1, third, 1, 0]], m2


@pytest.mark.parametrize("seed", range(10))
def test_what_m2po_leaves_is_within_the_limit_and_nothing_more_could_stay(seed: int) -> None:
    batch = random_batch(seed)
    keep = apply("m2po", *batch, m2=0.1).keep.bool()
    log_ratio = batch.logp - batch.rollout_logp
    away = batch.valid & (batch.advantages * log_ratio > 0)
    assert bool(keep[batch.valid & ~away].all())
    left, gone = log_ratio[away & keep].square(), log_ratio[away & ~keep].square()
    assert len(left) and float(left.mean()) <= 0.1
    if len(gone):
        assert float(gone.min()) >= float(left.max())
        assert float(left.sum() + gone.min()) / (len(left) + 1) > 0.1


def test_m2po_depends_on_the_whole_minibatch_and_says_so() -> None:
    batch = random_batch(3)
    whole = apply("m2po", *batch, m2=0.1).keep
    parts = [apply("m2po", *(t[row : row + 1] for t in batch), m2=0.1).keep for row in range(5)]
    assert not torch.equal(torch.cat(parts), whole)


def test_m2po_is_refused_where_a_minibatch_is_never_whole() -> None:
    with pytest.raises(UserError, match=r"rule=m2po decides over a whole minibatch, .*choose core=mini"):
        compose(["core=verl", "model=tiny_qwen3", "rule=m2po"])


def test_sequence_weights_by_hand() -> None:
    # products 4, 0.25, 1.5; geometric means 2, 0.5, sqrt(1.5)
    batch = hand([[2.0, 2.0, 9.0], [0.5, 0.5, 9.0], [1.5, 1.0, 9.0]], [1.0, 1.0, -1.0])
    scale = batch.advantages * batch.valid
    cases = {
        "seq_tis": ({"ratio_high": 2.0}, [2.0, 0.25, 1.5], [1, 1, 1]),
        "seq_mis": ({"ratio_low": 0.5, "ratio_high": 2.0}, [0.0, 0.0, 1.5], [0, 0, 1]),
        "geo_mask": ({"ratio_low": 0.6, "ratio_high": 1.5}, [0.0, 0.0, 1.0], [0, 0, 1]),
    }
    for name, (parameters, weights, kept) in cases.items():
        output, gradient = differentiated(name, batch, parameters)
        expected = torch.tensor(weights).double()[:, None] * scale
        torch.testing.assert_close(gradient, expected)
        torch.testing.assert_close(output.objective, expected * batch.logp)
        assert torch.equal(output.keep, torch.tensor(kept)[:, None] * batch.valid.double())
    assert int(apply("seq_tis", *batch, ratio_high=2.0).stats["clipped"]) == 2


@pytest.mark.parametrize("seed", range(5))
class TestReductions:
    """Each rule with a constant at its limit is another one, or the plain importance-weighted policy gradient."""

    def test_open_bounds_are_the_plain_importance_weighted_gradient(self, seed: int) -> None:
        batch = random_batch(seed)
        ratio = (batch.logp - batch.rollout_logp).exp()
        plain = torch.where(batch.valid, ratio * batch.advantages, 0.0)
        open_ones = {
            "icepop": OPEN,
            "ipo": {"delta": 1e9, "kl_tau": 0.0},
            "kpop": {"delta": 1e9},
            "drpo": {"delta": 1e12},
            "m2po": {"m2": INF},
        }
        for name, parameters in open_ones.items():
            output, gradient = differentiated(name, batch, parameters)
            torch.testing.assert_close(output.objective, plain, rtol=1e-9, atol=1e-10)
            torch.testing.assert_close(gradient, plain, rtol=1e-9, atol=1e-10)

    def test_open_sequence_bounds_are_sequence_importance_sampling(self, seed: int) -> None:
        batch = random_batch(seed)
        mis, tis = (
            differentiated("seq_mis", batch, OPEN),
            differentiated("seq_tis", batch, {"ratio_high": INF}),
        )
        weight = ((batch.logp - batch.rollout_logp) * batch.valid).sum(1, keepdim=True).exp()
        expected = torch.where(batch.valid, weight * batch.advantages, 0.0)
        for output, gradient in (mis, tis):
            torch.testing.assert_close(gradient, expected, rtol=1e-12, atol=1e-12)
            assert torch.equal(output.keep, batch.valid.double())
        _, gradient = differentiated("geo_mask", batch, OPEN)
        torch.testing.assert_close(gradient, batch.advantages * batch.valid)

    def test_seq_tis_and_seq_mis_agree_below_the_cap(self, seed: int) -> None:
        batch = random_batch(seed)
        mis, tis = (
            differentiated("seq_mis", batch, {"ratio_low": 0.0, "ratio_high": 1.5}),
            differentiated("seq_tis", batch, {"ratio_high": 1.5}),
        )
        kept = mis[0].keep > 0
        torch.testing.assert_close(mis[1][kept], tis[1][kept], rtol=0, atol=0)

    def test_on_single_tokens_seq_mis_and_seq_tis_are_icepop_and_cispo(self, seed: int) -> None:
        batch = random_batch(seed, rows=40, width=1)
        bounds = {"ratio_low": 0.7, "ratio_high": 1.4}
        mis, ice = differentiated("seq_mis", batch, bounds), differentiated("icepop", batch, bounds)
        assert torch.equal(mis[0].keep, ice[0].keep)
        torch.testing.assert_close(mis[1], ice[1])
        tis, cispo = (
            differentiated("seq_tis", batch, {"ratio_high": 1.4}),
            differentiated("cispo", batch, {"clip_high": 0.4}),
        )
        torch.testing.assert_close(tis[0].objective, cispo[0].objective)
        torch.testing.assert_close(tis[1], cispo[1])

    def test_opsm_without_a_threshold_is_grpo(self, seed: int) -> None:
        batch = random_batch(seed)
        clips = {"clip_low": 0.2, "clip_high": 0.28}
        mine, grpo = (
            differentiated("opsm", batch, {"delta": INF, **clips}),
            differentiated("grpo", batch, clips),
        )
        assert torch.equal(mine[0].keep, grpo[0].keep) and torch.equal(mine[1], grpo[1])
        assert torch.equal(mine[0].objective, grpo[0].objective)
        assert torch.equal(mine[0].stats["clipped"], grpo[0].stats["clipped"])

    def test_vaco_is_trm_avg_in_dppos_direction(self, seed: int) -> None:
        """On abs(rho - 1) as the divergence: beyond the threshold it drops what DPPO would, and nothing else."""
        batch = random_batch(seed)
        shift = (batch.logp - batch.rollout_logp).expm1().abs()
        mine = apply("vaco", *batch, delta=0.3).keep
        response = apply("trm_avg", *batch[:4], shift, delta_avg=0.3).keep
        direction = apply("dppo", *batch[:4], shift, delta=1e-12).keep
        assert torch.equal(mine, torch.maximum(response, direction))

    def test_vaco_on_single_tokens_is_dppo(self, seed: int) -> None:
        batch = random_batch(seed, rows=40, width=1)
        shift = (batch.logp - batch.rollout_logp).expm1().abs()
        mine, dppo = apply("vaco", *batch, delta=0.3), apply("dppo", *batch[:4], shift, delta=0.3)
        assert torch.equal(mine.keep, dppo.keep) and torch.equal(mine.objective, dppo.objective)

    def test_ipo_and_kpop_are_dppo_where_a_token_moves_away(self, seed: int) -> None:
        """On Binary TV; KPop on the larger of the two binary KL. They drop tokens that move back besides."""
        batch = random_batch(seed)
        log_ratio = batch.logp - batch.rollout_logp
        away = batch.valid & (batch.advantages * log_ratio > 0)
        tv = divergences.binary(batch.logp, batch.rollout_logp, "tv")
        kl = torch.maximum(
            divergences.binary(batch.logp, batch.rollout_logp, "kl"),
            divergences.binary(batch.rollout_logp.clamp_max(-1e-5), batch.logp, "kl"),
        )
        for name, d, parameters in (
            ("ipo", tv, {"delta": 0.1, "kl_tau": 0.0}),
            ("kpop", kl, {"delta": 0.05}),
        ):
            mine = apply(name, *batch, **parameters)
            dppo = apply("dppo", *batch[:4], d, delta=parameters["delta"])
            certain = away & (batch.rollout_logp < -1e-4)
            assert torch.equal(mine.keep[certain], dppo.keep[certain]), name
            assert bool((mine.keep <= dppo.keep).all())

    def test_vespo_is_one_on_policy_and_falls_far_from_it(self, seed: int) -> None:
        batch = random_batch(seed)
        same = batch._replace(rollout_logp=batch.logp)
        _, gradient = differentiated("vespo", same, PUBLISHED["vespo"])
        torch.testing.assert_close(gradient, batch.advantages * batch.valid)
        for off in (-5.0, 5.0):
            far = batch._replace(rollout_logp=batch.logp - off)
            _, gradient = differentiated("vespo", far, PUBLISHED["vespo"])
            assert float(gradient.abs().max()) < 1e-2 * float(batch.advantages.abs().max())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", LOOPS)
def test_ratios_that_overflow_are_named_or_bounded(name: str, dtype: torch.dtype) -> None:
    """Never NaN, never an infinite loss in silence."""
    for far in (-2000.0, 2000.0):
        for sign in (1.0, -1.0):
            batch = random_batch(0, dtype=dtype)
            rollout_logp = batch.rollout_logp.clone()
            rollout_logp[0, 2] = far
            batch = batch._replace(rollout_logp=rollout_logp, advantages=torch.full_like(rollout_logp, sign))
            try:
                output, gradient = differentiated(name, batch, PUBLISHED[name])
            except ValueError as error:
                assert "overflows" in str(error)
            else:
                assert bool(output.objective.isfinite().all() and gradient.isfinite().all())
                assert bool(output.keep.isfinite().all())


@pytest.mark.parametrize("name", ["seq_mis", "seq_tis"])
def test_an_open_bound_with_a_weight_that_overflows_is_an_error(name: str) -> None:
    batch = random_batch(0, dtype=torch.float32)
    batch.rollout_logp[0, 2] = -200.0
    batch.advantages[0] = 1.0
    bounds = OPEN if name == "seq_mis" else {"ratio_high": INF}
    with pytest.raises(
        ValueError, match=r"the weight of response 0 overflows \(its log-ratios add up to \d+"
    ):
        apply(name, *batch, **bounds)
    batch.advantages[0] = 0.0
    assert bool(apply(name, *batch, **bounds).objective.isfinite().all())
