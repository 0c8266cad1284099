"""Divergences: their order, precision, limits, and what is refused. The golden vectors have their values."""

import math
from itertools import product

import pytest
import torch
from torch import Tensor
from torch.nn.functional import pad

from cppo_lab.maths import divergence as divergences
from cppo_lab.maths.rules import get_rule
from cppo_lab.maths.tokens import Tokens
from tests.maths.maths_batches import distributions


def at(logp: Tensor, tokens: Tensor) -> Tensor:
    """The log-probabilities [N] of `tokens` [N] in `logp` [N, V]."""
    return logp.gather(-1, tokens[:, None])[:, 0]


def of_topk(
    mu: Tensor, pi: Tensor, tokens: Tensor, k: int, measure: str, convention: str = "union"
) -> Tensor:
    """Of the K most likely tokens and an empty place."""
    top = mu.topk(k)
    ids, logp = pad(top.indices, (0, 1), value=-1), pad(top.values, (0, 1))
    recorded = divergences.Recorded(tokens, at(mu, tokens), ids, logp)
    return divergences.topk(recorded, pi, measure=measure, convention=convention)


@pytest.mark.parametrize("measure", divergences.MEASURES)
def test_binary_topk_exact_are_ordered(measure: str) -> None:
    """With the whole vocabulary Top-K is exact; replacing the only token gives Binary; logits are normalised."""
    for seed, (vocabulary, k, sharpness) in enumerate(product((2, 7, 30), (1, 3, 30), (0.1, 1.0, 6.0))):
        mu, pi, tokens = distributions(seed, 8, vocabulary, sharpness)
        exact = divergences.exact(mu, pi, measure)
        binary = divergences.binary(at(pi, tokens), at(mu, tokens), measure)
        part, whole = (of_topk(mu, pi, tokens, size, measure) for size in (min(k, vocabulary), vocabulary))
        slack = 1e-9  # the floor of "other"
        for low, high in ((0, binary), (binary, part), (part, whole), (whole, exact)):
            assert (low <= high + slack).all()
        replaced = of_topk(mu, pi, tokens, vocabulary, measure, "replace_kth")
        close = {"rtol": 0, "atol": 1e-9}
        torch.testing.assert_close(whole, exact, **close)
        torch.testing.assert_close(replaced, exact, **close)
        torch.testing.assert_close(of_topk(mu, pi, tokens, 1, measure, "replace_kth"), binary, **close)
        shifted = of_topk(mu, pi + 3.5, tokens, min(k, vocabulary), measure)
        torch.testing.assert_close(shifted, part, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("measure", divergences.MEASURES)
@pytest.mark.parametrize("sharpness", [0.1, 1.0, 6.0, 30.0])
def test_divergences_in_float32_are_finite_and_close(measure: str, sharpness: float) -> None:
    """And carry no gradient, nor do the estimates."""
    results = []
    for seed, dtype in product(range(10), (torch.float32, torch.float64)):
        mu, pi, tokens = distributions(seed, 16, 12, sharpness, dtype)
        sampled = at(pi.requires_grad_(), tokens), at(mu, tokens)
        parts = [divergences.exact(mu, pi, measure), of_topk(mu, pi, tokens, 4, measure)]
        parts.append(divergences.binary(*sampled, measure))
        estimates = [estimate(*sampled) for estimate in divergences.ESTIMATES.values()]
        assert not any(part.requires_grad for part in parts + estimates)
        results.append(torch.stack(parts).double())
    narrow, wide = (torch.stack(results[start::2]) for start in (0, 1))
    assert torch.isfinite(narrow).all()
    torch.testing.assert_close(narrow, wide, rtol=0, atol=1e-4)


def test_binary_kl_of_a_nearly_certain_token_holds_in_float32() -> None:
    logp, rollout_logp = torch.tensor([-1e-5]), torch.tensor([-3e-5])
    narrow = divergences.binary(logp, rollout_logp, "kl").double()
    wide = divergences.binary(logp.double(), rollout_logp.double(), "kl")
    torch.testing.assert_close(narrow, wide, rtol=1e-4, atol=0)


def test_an_estimate_that_overflows_is_rejected_rather_than_refused() -> None:
    logp, rollout_logp = torch.tensor([[-0.1, -0.5, -0.5]]), torch.tensor([[-100.0, -0.5, -0.5]])
    for estimate in divergences.ESTIMATES.values():
        divergence = estimate(logp, rollout_logp)
        tokens = Tokens(logp, rollout_logp, torch.ones(1, 3), torch.ones(1, 3).bool(), divergence)
        assert get_rule("trm_max")(tokens, delta_max=5.0).keep.tolist() == [[0.0] * 3]


def change(mu: list[float], pi: list[float], y: int, measure: str) -> float:
    """Of the divergence, by central differences along the gradient of log pi(y) in the logits."""

    def after(step: float) -> float:
        moved = [math.log(p) + step * ((c == y) - p) for c, p in enumerate(pi)]
        whole = sum(map(math.exp, moved))
        pairs = [(m, math.exp(x) / whole) for m, x in zip(mu, moved, strict=True)]
        if measure == "tv":
            return sum(abs(m - p) for m, p in pairs) / 2
        return sum(m * math.log(m / p) for m, p in pairs if m)

    return (after(1e-6) - after(-1e-6)) / 2e-6


@pytest.mark.parametrize("k", [7, 3, 1])
@pytest.mark.parametrize("measure", divergences.MEASURES)
def test_drift_is_the_change_along_the_sampled_tokens_gradient(measure: str, k: int) -> None:
    """Over the whole vocabulary, or over the partition as if it were one. Not always of the sign of log rho."""
    mu, pi, tokens = distributions(3, 40, 7, 1.0)
    top = mu.topk(k)
    recorded = divergences.Recorded(tokens, at(mu, tokens), top.indices, top.values)
    drift = divergences.drift(recorded, pi.gather(-1, top.indices), at(pi, tokens), measure=measure)
    other = 0
    for row, y in enumerate(tokens.tolist()):
        cells = [*top.indices[row].tolist()]
        cells += [] if y in cells else [y]
        parts = []
        for logp in (mu, pi):
            part = [math.exp(logp[row, v]) for v in cells]
            parts.append([*part, 1 - sum(part)] if len(cells) < 7 else part)
        assert float(drift[row]) == pytest.approx(change(*parts, cells.index(y), measure), abs=1e-8)
        other += float(drift[row]) * float(at(pi, tokens)[row] - at(mu, tokens)[row]) < 0
    assert other
    recorded = divergences.Recorded(tokens, at(mu, tokens), tokens[:, None], at(mu, tokens)[:, None])
    alone = divergences.drift(recorded, at(pi, tokens)[:, None], at(pi, tokens), measure=measure)
    assert torch.equal(alone.sign(), (at(pi, tokens) - at(mu, tokens)).sign())


def test_entropy_of_the_top_k_is_at_most_the_whole() -> None:
    mu, *_ = distributions(4, 30, 9, 2.0)
    whole, last = -(mu.exp() * mu).sum(-1), torch.zeros(30, dtype=torch.float64)
    for k in range(1, 10):
        part = divergences.topk_entropy(mu.topk(k).values)
        assert (part >= last - 1e-9).all()
        last = part
    torch.testing.assert_close(last, whole, rtol=1e-9, atol=1e-9)
