"""A rule on kept tokens is the rule on the same tensors; what cannot be replayed is refused."""

import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.utils.rnn import pad_sequence

from cppo_lab.analysis.replay import FROM_SAMPLED, Replayed, as_lines, comparison, replay, why_not
from cppo_lab.answers.tokens import RecordedTokens, read, write
from cppo_lab.maths.tokens import Tokens
from cppo_lab.rules import DRIFT, ENTROPY, KL, MINIBATCH, PERMUTATION, RULES
from tests.answers import made
from tests.conftest import user_error
from tests.maths.maths_batches import CONSTANTS

LENGTHS = (40, 3, 0, 64, 17)
REPLAYED = [name for name, rule in RULES.items() if not rule.needs & {MINIBATCH, PERMUTATION, DRIFT, ENTROPY}]
SHUFFLED = "cppo_no_prefix_budget_shuffled"


def padded(values: np.ndarray) -> torch.Tensor:
    """[N] -> [B, T]."""
    rows = map(torch.from_numpy, np.split(values, np.cumsum(LENGTHS)[:-1]))
    return pad_sequence([*rows], batch_first=True)


def assert_as_on_tensors(replayed: Replayed, tokens: RecordedTokens, divergence: np.ndarray) -> None:
    """It keeps what the rule keeps of the padded tensors."""
    valid = padded(np.ones(sum(LENGTHS))).bool()
    advantages = torch.from_numpy(tokens.advantage.copy())[:, None].expand(valid.shape)
    logps = padded(tokens.logp), padded(tokens.rollout_logp)
    drawn = {"permutation": padded(tokens.order.astype(np.int64))} if len(tokens.order) else {}
    batch = Tokens(*logps, advantages, valid, padded(divergence), **drawn)
    output = RULES[replayed.rule].apply(batch, **CONSTANTS[replayed.rule])
    np.testing.assert_array_equal(replayed.keep, output.keep[valid].numpy())


@pytest.mark.parametrize("name", REPLAYED)
def test_every_rule_is_the_rule_on_the_same_tensors(name: str) -> None:
    """Through a file; the rules that need a KL get the one between sampled tokens and all others."""
    dropped = 0.0
    for seed in range(5):
        tokens = read(write(made.tokens(LENGTHS, seed)), "the file")
        replayed = replay(tokens, name, CONSTANTS[name])
        divergence = tokens.divergence
        if KL in RULES[name].needs:
            mu, pi = np.exp(tokens.rollout_logp.astype(float)), np.exp(tokens.logp.astype(float))
            others = np.maximum(1 - mu, 1e-12) / np.maximum(1 - pi, 1e-12)
            terms = mu * np.log(mu / pi) + (1 - mu) * np.log(others)
            divergence = replayed.measured
            np.testing.assert_allclose(divergence, np.maximum(terms, 0), rtol=1e-3, atol=1e-6)
        assert_as_on_tensors(replayed, tokens, divergence)
        weighs = name in ("cispo", "minpro", "seq_tis", "cppo_soft")
        assert weighs or np.all((replayed.reason > 0) == (replayed.keep < 1))
        dropped += float((1 - replayed.keep).sum()) + float((replayed.reason > 0).sum())
    assert dropped > 0


def test_shuffled_weights_are_replayed_with_the_order_that_training_drew() -> None:
    plain, generator = made.tokens(LENGTHS), np.random.default_rng(1)
    assert "drew none" in str(why_not(RULES[SHUFFLED], plain))
    order = np.concatenate([generator.permutation(length) for length in LENGTHS]).astype(np.int32)
    tokens = read(write(replace(plain, order=order)), "the file")
    replayed = replay(tokens, SHUFFLED, CONSTANTS[SHUFFLED])
    assert_as_on_tensors(replayed, tokens, tokens.divergence)
    assert 0 < replayed.keep.mean() < 1
    random, plain_cppo = (replay(tokens, name, CONSTANTS["cppo"]) for name in ("cppo_random_mask", "cppo"))
    assert (random.weight == plain_cppo.weight).all()  # that order is of its mask
    with user_error("cannot be replayed"):
        replay(replace(plain, order=np.zeros(len(order), np.int32)), SHUFFLED, CONSTANTS[SHUFFLED])


def test_the_terms_of_cppo_explain_what_it_drops() -> None:
    """By loops in float64: w_t, S_{t-1}, c_t, the mask and the reason."""
    tokens = made.tokens(LENGTHS)
    constants = {"delta": 0.15, "delta_b": 0.02, "w_min": 0.8, "delta_b_mode": "fixed"}
    found = replay(tokens, "cppo", constants)
    at, reasons = 0, set()
    ratios = tokens.logp.astype(float) - tokens.rollout_logp
    for length, advantage in zip(LENGTHS, tokens.advantage, strict=True):
        spent = weights = 0.0
        for t in range(length):
            weight = 1 - 0.2 * t / max(length - 1, 1)
            limit = min(0.15, 0.15 + 0.02 * weights - spent)
            terms = found.weight[at], found.prefix_sum[at], found.limit[at]
            assert terms == pytest.approx((weight, spent, limit), rel=1e-5, abs=1e-6)
            measure = weight * float(tokens.divergence[at])
            reason = "threshold" if measure > 0.15 else "budget" if measure > limit else ""
            if advantage * ratios[at] <= 0:
                reason = ""  # it does not move away
            assert (("", *found.tests)[found.reason[at]], found.keep[at]) == (reason, not reason)
            reasons.add(reason)
            spent, weights, at = spent + measure, weights + weight, at + 1
    assert reasons == {"", "threshold", "budget"}
    assert replay(tokens, "dppo", {"delta": 0.1}).weight is None
    assert len(replay(made.tokens(())).keep) == 0


def test_divergences_of_sampled_tokens_follow_from_any_file() -> None:
    tokens = made.tokens(LENGTHS)
    tokens = replace(tokens, rule=replace(tokens.rule, estimator="topk", k=20, convention="union"))
    logp, rollout_logp = tokens.logp.astype(float), tokens.rollout_logp.astype(float)
    ratio = logp - rollout_logp
    expected = {
        "binary_tv": np.abs(np.exp(rollout_logp) - np.exp(logp)),
        "sample_k2": ratio**2 / 2,
        "sample_k3": np.expm1(ratio) - ratio,
        "topk_tv": tokens.divergence,
    }
    for name in {*FROM_SAMPLED, *expected}:
        found = replay(tokens, "dppo", {"delta": 0.1}, divergence=name)
        assert found.divergence == name
        if name in expected:
            np.testing.assert_allclose(found.measured, expected[name], rtol=1e-3, atol=1e-6)


def test_a_token_is_named_by_its_position_also_if_responses_have_the_same_number() -> None:
    tokens = made.tokens(LENGTHS)
    tokens = replace(tokens, draw=np.zeros_like(tokens.draw))
    compared = comparison(tokens, replay(tokens, "dppo", {"delta": 0.1}))
    positions = [token["position"] for response in compared["responses"] for token in response["differ"]]
    said = [int(at) for at in re.findall(r" token (\d+) ", "\n".join(as_lines(compared)))]
    assert len(positions) > 20 and said == positions[:20] and max(positions) < max(LENGTHS)


@pytest.mark.parametrize(
    "rule, constants, said",
    [
        ("pdm", {"delta": 0.1}, "needs the probabilities of tokens that were not sampled"),
        ("dppo", {}, "lacks the constants delta"),
        ("dppo", {"delta": True}, "delta=True: rule 'dppo' takes a number"),
        ("dppo", {"delta": np.inf}, "pass a finite value above 0"),
        ("cppo", {**CONSTANTS["cppo"], "reverse": "no"}, "reverse='no': rule 'cppo' takes true or false"),
    ],
)
def test_what_cannot_be_replayed_is_refused(rule: str, constants: dict[str, Any], said: str) -> None:
    with user_error(said):
        replay(made.tokens(LENGTHS), rule, constants)
