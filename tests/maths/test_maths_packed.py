"""Packed responses give the numbers of padded ones, and cost memory by the token."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cppo_lab.maths import aggregation, packed
from cppo_lab.maths import divergence as divergences
from cppo_lab.maths.aggregation import group_advantages
from cppo_lab.maths.metrics import relative_logprob_error, summarise
from cppo_lab.maths.rules import RULES, get_rule
from cppo_lab.maths.weights import effective_delta_b, position_weights, prefix_excess, prefix_weight
from cppo_lab.rules import PERMUTATION
from cppo_lab.rules import RULES as RECORDS
from tests.maths.maths_batches import CONSTANTS, TokenBatch, constants, distributions, random_batch
from tests.maths.maths_cases import check_all

LENGTHS = st.lists(st.sampled_from([0, 0, 1, 1, 2, 3, 5, 8, 13, 30, 70]), min_size=1, max_size=9)
SEEDS = st.integers(0, 2**32 - 1)
FEW = settings(max_examples=30, deadline=None, derandomize=True)
NUMBERS = {"rtol": 1e-12, "atol": 1e-13}


def batch_of(lengths: list[int], seed: int) -> TokenBatch:
    """Random tokens of these lengths, padded to the longest."""
    batch = random_batch(seed, rows=len(lengths), width=max(lengths))
    return batch._replace(valid=torch.arange(max(lengths)) < torch.tensor(lengths)[:, None])


def cumulative(lengths: list[int]) -> torch.Tensor:
    return torch.tensor([0, *lengths]).cumsum(0).int()


def packed_rule(name: str, batch: TokenBatch, parameters: dict):
    """The rule on the packed batch, and the gradient of its summed objective, both [N]."""
    mask = batch.valid
    cu_lengths = packed.pack(batch.logp, mask)[1]
    logp = batch.logp[mask].clone().requires_grad_()
    own = {key: v[mask] if key == "permutation" else v for key, v in parameters.items()}
    output = packed.rule(
        name,
        logp,
        batch.rollout_logp[mask],
        batch.advantages[mask],
        cu_lengths,
        batch.divergence[mask],
        **own,
    )
    return output, torch.autograd.grad(output.objective.sum(), logp)[0]


@pytest.mark.parametrize("name", RULES)
@FEW
@given(lengths=LENGTHS, seed=SEEDS)
def test_a_rule_gives_the_padded_numbers(name: str, lengths: list[int], seed: int) -> None:
    batch = batch_of(lengths, seed)
    parameters = constants(name, batch)
    logp = batch.logp.clone().requires_grad_()
    expected = get_rule(name)(logp, *batch[1:], **parameters)
    (expected_grad,) = torch.autograd.grad(expected.objective.sum(), logp)
    output, grad = packed_rule(name, batch, parameters)
    torch.testing.assert_close(output.keep, expected.keep[batch.valid], rtol=1e-13, atol=0)
    torch.testing.assert_close(output.objective, expected.objective[batch.valid], **NUMBERS)
    torch.testing.assert_close(grad, expected_grad[batch.valid], **NUMBERS)
    assert summarise(output.stats) == pytest.approx(summarise(expected.stats), rel=1e-12, abs=1e-13)
    assert output.stats.keys() == expected.stats.keys()


@pytest.mark.parametrize("mode", aggregation.MODES)
@FEW
@given(lengths=LENGTHS, seed=SEEDS, own=st.booleans())
def test_aggregation_gives_the_padded_numbers(mode: str, lengths: list[int], seed: int, own: bool) -> None:
    batch = batch_of(lengths, seed)
    cu_lengths = cumulative(lengths)
    options = {}
    if own:
        options = {"denominator": 7.5} | ({"horizon": 99} if mode == "seq-mean-token-sum-norm" else {})
    values = batch.logp.clone().requires_grad_()
    flat = batch.logp[batch.valid].clone().requires_grad_()
    results = [
        aggregation.aggregate(values, batch.valid, mode, **options),
        packed.aggregate(flat, cu_lengths, mode, **options),
    ]
    torch.testing.assert_close(*results, **NUMBERS)
    grads = torch.autograd.grad(results[0], values)[0], torch.autograd.grad(results[1], flat)[0]
    torch.testing.assert_close(grads[0][batch.valid], grads[1], **NUMBERS)


def kinds(seed: int, mask: torch.Tensor) -> dict:
    """Every divergence as a function of the places it is asked for: all of [B, T], or the packed ones."""
    rows, width = mask.shape
    mu, pi, tokens = distributions(seed, rows * width, 12, 2.0)
    top = mu.topk(4)
    arrays = [mu, pi, tokens, top.indices, top.values]
    mu, pi, tokens, ids, values = (array.view(rows, width, *array.shape[1:]) for array in arrays)

    def at(array: torch.Tensor, index) -> torch.Tensor:
        return array if index is None else array[index]

    def sampled(index) -> tuple[torch.Tensor, torch.Tensor]:
        chosen = at(tokens, index)[..., None]
        return at(pi, index).gather(-1, chosen)[..., 0], at(mu, index).gather(-1, chosen)[..., 0]

    def topk(measure: str, convention: str):
        return lambda i: divergences.topk(
            at(ids, i),
            at(values, i),
            at(pi, i),
            at(tokens, i),
            sampled(i)[1],
            measure=measure,
            convention=convention,
        )

    found = {"k2": lambda i: divergences.k2(*sampled(i)), "k3": lambda i: divergences.k3(*sampled(i))}
    for measure in divergences.MEASURES:
        found[f"exact {measure}"] = lambda i, m=measure: divergences.exact(at(mu, i), at(pi, i), m)
        found[f"binary {measure}"] = lambda i, m=measure: divergences.binary(*sampled(i), m)
        for convention in divergences.CONVENTIONS:
            found[f"topk {measure} {convention}"] = topk(measure, convention)
    return found


@settings(max_examples=15, deadline=None, derandomize=True)
@given(lengths=LENGTHS, seed=SEEDS)
def test_every_divergence_and_what_rules_make_of_it(lengths: list[int], seed: int) -> None:
    batch = batch_of(lengths, seed)
    for kind, divergence in kinds(seed, batch.valid).items():
        padded, flat = divergence(None), divergence(batch.valid)
        torch.testing.assert_close(
            flat, padded[batch.valid], **NUMBERS, msg=lambda text, k=kind: f"{k}: {text}"
        )
        batch = batch._replace(divergence=padded)
        for name in ("cppo", "trm_avg"):
            keep = get_rule(name)(*batch, **CONSTANTS[name]).keep
            assert torch.equal(packed_rule(name, batch, CONSTANTS[name])[0].keep, keep[batch.valid]), kind


@FEW
@given(lengths=LENGTHS, seed=SEEDS)
def test_weights_prefix_sums_and_budgets(lengths: list[int], seed: int) -> None:
    batch = batch_of(lengths, seed)
    cu_lengths, divergence = cumulative(lengths), batch.divergence[batch.valid]

    def excess(valid: torch.Tensor, d: torch.Tensor) -> torch.Tensor:
        rate = effective_delta_b(d, valid, 0.08, "adaptive")
        return prefix_excess(position_weights(valid, 0.5, dtype=d.dtype), d, valid, rate)

    def weight(valid: torch.Tensor) -> torch.Tensor:
        return prefix_weight(position_weights(valid, 0.5, span=80, dtype=torch.float64)) * valid

    expected = excess(batch.valid, batch.divergence)[batch.valid]
    assert torch.equal(packed.per_token(excess, cu_lengths, divergence), expected)
    assert torch.equal(packed.per_token(weight, cu_lengths), weight(batch.valid)[batch.valid])
    rates = packed.per_response(
        lambda valid, d: effective_delta_b(d, valid, 0.08, "adaptive"), cu_lengths, divergence
    )
    assert torch.equal(rates, effective_delta_b(batch.divergence, batch.valid, 0.08, "adaptive"))
    padded_error = relative_logprob_error(batch.logp, batch.rollout_logp, batch.valid)
    logp, rollout_logp = batch.logp[batch.valid], batch.rollout_logp[batch.valid]
    error = relative_logprob_error(logp, rollout_logp, torch.ones_like(logp))
    torch.testing.assert_close(error, padded_error, **NUMBERS)


@pytest.mark.parametrize("name", RULES)
@FEW
@given(lengths=LENGTHS, seed=SEEDS)
def test_the_order_of_responses_does_not_matter(name: str, lengths: list[int], seed: int) -> None:
    batch = batch_of(lengths, seed)
    parameters = constants(name, batch)
    order = torch.randperm(len(lengths), generator=torch.Generator().manual_seed(seed))
    moved = TokenBatch(*(tensor[order] for tensor in batch))
    own = {key: v[order] if key == "permutation" else v for key, v in parameters.items()}
    plain, result = packed_rule(name, batch, parameters)[0], packed_rule(name, moved, own)[0]
    token = packed.unpack(torch.arange(sum(lengths)), cumulative(lengths))[0][order][moved.valid]
    torch.testing.assert_close(result.keep, plain.keep[token], rtol=1e-13, atol=0)
    torch.testing.assert_close(result.objective, plain.objective[token], **NUMBERS)
    assert summarise(result.stats) == pytest.approx(summarise(plain.stats), rel=1e-12, abs=1e-13)


@FEW
@given(lengths=LENGTHS, seed=SEEDS)
def test_pack_unpack_and_expand_are_each_others_inverse(lengths: list[int], seed: int) -> None:
    batch = batch_of(lengths, seed)
    flat, cu_lengths = packed.pack(batch.logp, batch.valid)
    assert cu_lengths.dtype == torch.int32 and cu_lengths.tolist() == cumulative(lengths).tolist()
    padded, valid = packed.unpack(flat, cu_lengths)
    assert torch.equal(valid, batch.valid) and torch.equal(padded, batch.logp * valid)
    rewards = torch.rand(len(lengths), generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    advantages = group_advantages(rewards, torch.zeros(len(lengths), dtype=torch.int64))[0]
    expected = advantages[:, None].expand(valid.shape)[valid]
    assert torch.equal(packed.expand(advantages, cu_lengths), expected)


@pytest.mark.parametrize("name", RULES)
def test_a_batch_without_tokens_gives_zeros_and_no_nan(name: str) -> None:
    check_all(batch_without_tokens_gives_zeros_and_no_nan, [(name, []), (name, [0]), (name, [0, 0])])


def batch_without_tokens_gives_zeros_and_no_nan(name: str, lengths: list[int]) -> None:
    empty = torch.zeros(0, dtype=torch.float64)
    parameters = dict(CONSTANTS[name])
    if PERMUTATION in RECORDS[name].needs:
        parameters["permutation"] = empty.long()
    cu_lengths = cumulative(lengths)
    output = packed.rule(name, empty, empty, empty, cu_lengths, empty, **parameters)
    assert output.objective.shape == output.keep.shape == (0,)
    assert all(value == 0 for value in summarise(output.stats).values())
    assert all(float(packed.aggregate(output.objective, cu_lengths, mode)) == 0 for mode in aggregation.MODES)


ONES = torch.ones(4)
REFUSED = [
    (lambda: packed.unpack(ONES, torch.tensor([0, 3])), r"cu_lengths runs from 0 to 3, .* 0 to 4"),
    (lambda: packed.unpack(ONES, torch.tensor([1, 4])), r"cu_lengths runs from 1 to 4"),
    (lambda: packed.unpack(ONES, torch.tensor([0, 5, 4])), r"least step -1"),
    (lambda: packed.buckets(torch.tensor([0.0, 4.0])), r"dtype torch.float32, expected integers"),
    (lambda: packed.buckets(torch.zeros(0, dtype=torch.int32)), r"shape \[0\]"),
    (lambda: packed.expand(ONES, torch.tensor([0, 4])), r"values has shape \[4\], expected \[1\]"),
    (lambda: packed.pack(ONES, torch.ones(2, 2)), r"values has shape \[4\], expected \[2, 2\]"),
    (lambda: packed.aggregate(ONES, torch.tensor([0, 4]), "mean"), r"mode='mean' is unknown"),
    (lambda: packed.rule("cpo", ONES, ONES, ONES, torch.tensor([0, 4])), r"rule='cpo' is unknown"),
    (
        lambda: packed.rule("dppo", ONES, ONES[:3], ONES, torch.tensor([0, 4]), ONES, delta=0.1),
        r"rollout_logp has shape \[3\], expected \[4\]",
    ),
    (
        lambda: packed.rule("dppo", ONES.log() / 0, ONES, ONES, torch.tensor([0, 4]), ONES, delta=0.1),
        r"logp is NaN or infinite at 4 valid places, first at \[0\]",
    ),
    (
        lambda: packed.rule("dppo", ONES, ONES, ONES, torch.tensor([0, 4]), delta=0.1),
        r"divergence=None: rule 'dppo' needs",
    ),
    (
        lambda: packed.rule("dppo", ONES, ONES, ONES, torch.tensor([0, 1, 4]), ONES, delta=0.0),
        r"delta=0.0 must be a positive number",
    ),
    (
        lambda: packed.per_token(lambda valid, a, b: a, torch.tensor([0, 4]), ONES, ONES[:2]),
        r"values\[1\] has shape \[2\], expected \[4\]",
    ),
]


@pytest.mark.parametrize(("call", "message"), REFUSED, ids=[message[:40] for _, message in REFUSED])
def test_call_is_refused(call, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()
