"""A rule on kept tokens is the rule on the same tensors; what cannot be replayed is refused."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from cppo_lab.answers.replay import FROM_SAMPLED, replay, why_not
from cppo_lab.answers.tokens import RecordedTokens, read, write
from cppo_lab.errors import UserError
from cppo_lab.maths.tokens import Tokens
from cppo_lab.rules import KL, MINIBATCH, PERMUTATION, RULES
from tests.answers import made
from tests.maths.maths_batches import CONSTANTS

LENGTHS = (40, 3, 0, 64, 17)
REPLAYED = [name for name, rule in RULES.items() if not rule.needs & {MINIBATCH, PERMUTATION}]


def padded(values: np.ndarray) -> torch.Tensor:
    """[N] -> [B, T] by a loop."""
    found = torch.zeros(len(LENGTHS), max(LENGTHS), dtype=torch.from_numpy(values[:0].copy()).dtype)
    start = 0
    for row, length in enumerate(LENGTHS):
        for column in range(length):
            found[row, column] = values[start + column].item()
        start += length
    return found


def on_tensors(
    name: str, recorded: RecordedTokens, divergence: torch.Tensor, **drawn: torch.Tensor
) -> torch.Tensor:
    """What the rule keeps of the padded tensors, [N]."""
    valid = padded(np.ones(sum(LENGTHS))).bool()
    advantages = torch.from_numpy(recorded.advantage.copy())[:, None].expand(valid.shape)
    tokens = Tokens(
        padded(recorded.logp), padded(recorded.rollout_logp), advantages, valid, divergence, **drawn
    )
    output = RULES[name].load(tokens, **CONSTANTS[name])
    return output.keep[valid]


@pytest.mark.parametrize("name", REPLAYED)
def test_every_rule_is_the_rule_on_the_same_tensors(name: str) -> None:
    """Through a file; the rules that need a KL get the one between sampled tokens and all others."""
    dropped = 0.0
    for seed in range(5):
        recorded = read(write(made.tokens(LENGTHS, seed)), "the file")
        found = replay(recorded, name, CONSTANTS[name])
        divergence = padded(recorded.divergence)
        if KL in RULES[name].needs:
            mu, pi = padded(recorded.rollout_logp).double().exp(), padded(recorded.logp).double().exp()
            terms = (
                mu * (mu / pi).log()
                + (1 - mu) * ((1 - mu).clamp_min(1e-12) / (1 - pi).clamp_min(1e-12)).log()
            )
            torch.testing.assert_close(
                padded(found.measured).double(), terms.clamp_min(0), rtol=1e-3, atol=1e-6
            )
            divergence = padded(found.measured)
        expected = on_tensors(name, recorded, divergence)
        np.testing.assert_array_equal(found.keep, expected.numpy())
        assert np.all((found.reason > 0) == (found.keep < 1)) or name in (
            "cispo",
            "minpro",
            "seq_tis",
            "cppo_soft",
        )
        dropped += float((1 - found.keep).sum()) + float((found.reason > 0).sum())
    assert dropped > 0


def test_shuffled_weights_are_replayed_with_the_order_that_training_drew() -> None:
    name = "cppo_no_prefix_budget_shuffled"
    plain = made.tokens(LENGTHS)
    assert "drew none" in str(why_not(RULES[name], plain))
    generator = np.random.default_rng(1)
    order = np.concatenate([generator.permutation(length) for length in LENGTHS]).astype(np.int32)
    recorded = read(write(replace(plain, order=order)), "the file")
    found = replay(recorded, name, CONSTANTS[name])
    expected = on_tensors(
        name, recorded, padded(recorded.divergence), permutation=padded(order.astype(np.int64))
    )
    np.testing.assert_array_equal(found.keep, expected.numpy())
    assert 0 < found.keep.mean() < 1
    with pytest.raises(UserError, match="cannot be replayed"):
        replay(replace(plain, order=np.zeros(len(order), np.int32)), name, CONSTANTS[name])


def test_the_terms_of_cppo_explain_what_it_drops() -> None:
    """By loops in float64: w_t, S_{t-1}, c_t, the mask and the reason."""
    recorded = made.tokens(LENGTHS)
    constants = {"delta": 0.15, "delta_b": 0.02, "w_min": 0.8, "delta_b_mode": "fixed"}
    found = replay(recorded, "cppo", constants)
    assert found.weight is not None and found.prefix_sum is not None and found.limit is not None
    start, reasons = 0, set()
    for length, advantage in zip(LENGTHS, recorded.advantage, strict=True):
        spent = weights = 0.0
        for t in range(length):
            at = start + t
            weight = 1 - 0.2 * t / max(length - 1, 1)
            limit = min(0.15, 0.15 + 0.02 * weights - spent)
            assert found.weight[at] == pytest.approx(weight, rel=1e-6)
            assert found.prefix_sum[at] == pytest.approx(spent, rel=1e-5, abs=1e-6)
            assert found.limit[at] == pytest.approx(limit, rel=1e-5, abs=1e-6)
            divergence = float(recorded.divergence[at])
            away = float(advantage) * (float(recorded.logp[at]) - float(recorded.rollout_logp[at])) > 0
            reason = (
                "threshold" if weight * divergence > 0.15 else "budget" if weight * divergence > limit else ""
            )
            assert ("", *found.tests)[found.reason[at]] == (reason if away else "")
            assert found.keep[at] == (not (away and reason))
            reasons.add(reason)
            spent, weights = spent + weight * divergence, weights + weight
        start += length
    assert reasons == {"", "threshold", "budget"}
    assert replay(recorded, "dppo", {"delta": 0.1}).weight is None


def test_the_runs_own_rule_is_the_default() -> None:
    recorded = made.tokens(LENGTHS)
    found = replay(recorded)
    assert (found.rule, found.constants, found.divergence) == ("cppo", recorded.rule.constants, "binary_tv")
    np.testing.assert_array_equal(found.keep, replay(recorded, "cppo", recorded.rule.constants).keep)


def test_divergences_of_sampled_tokens_follow_from_any_file() -> None:
    recorded = made.tokens(LENGTHS)
    held = replace(recorded, rule=replace(recorded.rule, estimator="topk", k=20, convention="union"))
    mu, pi = np.exp(recorded.rollout_logp.astype(float)), np.exp(recorded.logp.astype(float))
    ratio = recorded.logp.astype(float) - recorded.rollout_logp.astype(float)
    expected = {
        "binary_tv": np.abs(mu - pi),
        "sample_k2": ratio**2 / 2,
        "sample_k3": np.expm1(ratio) - ratio,
        "topk_tv": recorded.divergence,
    }
    for name in (*FROM_SAMPLED, "topk_tv"):
        found = replay(held, "dppo", {"delta": 0.1}, divergence=name)
        assert found.divergence == name
        if name in expected:
            np.testing.assert_allclose(found.measured, expected[name], rtol=1e-3, atol=1e-6)
    for name in ("topk_kl", "exact_tv", "nonsense", ""):
        if name:
            with pytest.raises(UserError, match=f"unknown divergence of kept tokens '{name}'"):
                replay(held, "dppo", {"delta": 0.1}, divergence=name)


@pytest.mark.parametrize(
    ("rule", "constants", "said"),
    [
        ("m2po", {"m2": 0.04}, "decides over a whole minibatch"),
        ("nobody's", {}, "unknown rule"),
        ("verl_gspo", {}, "unknown rule"),
        ("dppo", {}, "lacks the constants delta"),
        ("dppo", {"delta": 0.1, "w_min": 1.0}, "w_min"),
        ("dppo", {"delta": -1.0}, "cannot be replayed"),
    ],
)
def test_what_cannot_be_replayed_is_refused(rule: str, constants: dict[str, float], said: str) -> None:
    with pytest.raises(UserError, match=said):
        replay(made.tokens(LENGTHS), rule, constants)


def test_no_response_at_all_is_no_error() -> None:
    assert len(replay(made.tokens(()), "cppo").keep) == 0
