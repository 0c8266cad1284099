"""Log-probability and divergence from logits against the plain functions on full log-probabilities."""

from collections.abc import Callable
from itertools import product
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from cppo_lab.maths import divergence as divergences
from cppo_lab.maths.from_logits import logp_and_divergence, token_logp

ROWS, VOCABULARY, K = 13, 37, 6
DTYPES = (torch.float64, torch.float32, torch.bfloat16)
# bfloat16 logits are given to both sides: what is left is float32 arithmetic, and a gradient of 8 bits.
TOLERANCE = {torch.float64: 1e-12, torch.float32: 2e-6, torch.bfloat16: 2e-6}
GRADIENT_TOLERANCE = TOLERANCE | {torch.bfloat16: 4e-3}
CHUNKS = (None, 1, 5, ROWS, 1000)
TEMPERATURES = (1.0, 0.6)


class Case(NamedTuple):
    """logits [N, V] of pi, tokens [N], mu's Top-K ids and log-probs [N, K], log mu(token) [N]."""

    logits: Tensor
    tokens: Tensor
    ids: Tensor
    topk_logp: Tensor
    rollout_logp: Tensor


def case(dtype: torch.dtype = torch.float64, rows: int = ROWS, k: int = K, temperature: float = 1.0) -> Case:
    """Some tokens among the Top-K and some not; one empty place."""
    generator = torch.Generator().manual_seed(rows + k)
    rollout = 2 * torch.randn(rows, VOCABULARY, generator=generator, dtype=torch.float64)
    logits = rollout + torch.randn(rows, VOCABULARY, generator=generator, dtype=torch.float64)
    mu = (rollout / temperature).log_softmax(-1)
    tokens = torch.randint(VOCABULARY, (rows,), generator=generator)
    top = mu.topk(k)
    ids = top.indices.clone()
    if rows and k < VOCABULARY:
        ids[0, -1] = -1
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    sampled = mu.gather(-1, tokens[:, None])[:, 0]
    return Case(logits.to(dtype), tokens, ids, top.values.to(wide), sampled.to(wide))


def plain_logp(logits: Tensor, tokens: Tensor, temperature: float = 1.0) -> Tensor:
    """The definition, with every log-probability in memory."""
    wide = logits if logits.dtype == torch.float64 else logits.float()
    return (wide / temperature).log_softmax(-1).gather(-1, tokens[:, None])[:, 0]


@pytest.mark.parametrize("convention", divergences.CONVENTIONS)
@pytest.mark.parametrize("measure", divergences.MEASURES)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("temperature", "chunk"), list(product(TEMPERATURES, CHUNKS)))
def test_equals_the_plain_functions(
    dtype: torch.dtype, measure: str, convention: str, temperature: float, chunk: int | None
) -> None:
    c = case(dtype, temperature=temperature)
    result = logp_and_divergence(
        *c, measure=measure, convention=convention, temperature=temperature, entropy=True, chunk=chunk
    )
    wide = (c.logits if dtype == torch.float64 else c.logits.float()) / temperature
    expected = divergences.topk(
        c.ids,
        c.topk_logp,
        wide.log_softmax(-1),
        c.tokens,
        c.rollout_logp,
        measure=measure,
        convention=convention,
    )
    tolerance = {"rtol": TOLERANCE[dtype], "atol": TOLERANCE[dtype]}
    torch.testing.assert_close(result.logp, plain_logp(c.logits, c.tokens, temperature), **tolerance)
    torch.testing.assert_close(result.divergence, expected, **tolerance)
    entropy = torch.distributions.Categorical(logits=wide).entropy()
    torch.testing.assert_close(result.entropy, entropy, **tolerance)
    alone = token_logp(c.logits, c.tokens, temperature=temperature, chunk=chunk)
    assert torch.equal(alone, result.logp)


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("temperature", "chunk"), list(product(TEMPERATURES, CHUNKS)))
def test_gradient_is_that_of_the_plain_version(
    dtype: torch.dtype, temperature: float, chunk: int | None, overwrite: bool
) -> None:
    c = case(dtype)
    weights = torch.linspace(-1, 2, ROWS, dtype=c.rollout_logp.dtype)
    weights[3] = 0.0

    def gradient(function: Callable[..., Tensor], **options: Any) -> Tensor:
        leaf = c.logits.clone().requires_grad_()
        (function(leaf * 1, c.tokens, temperature=temperature, **options) * weights).sum().backward()
        return leaf.grad

    actual = gradient(token_logp, chunk=chunk, overwrite_logits=overwrite)
    tolerance = {"rtol": GRADIENT_TOLERANCE[dtype], "atol": TOLERANCE[dtype]}
    assert actual.dtype == dtype
    torch.testing.assert_close(actual, gradient(plain_logp), **tolerance)


@pytest.mark.parametrize("measure", divergences.MEASURES)
def test_without_top_k_the_divergence_is_binary(measure: str) -> None:
    c = case()
    result = logp_and_divergence(c.logits, c.tokens, None, None, c.rollout_logp, measure=measure)
    expected = divergences.binary(plain_logp(c.logits, c.tokens), c.rollout_logp, measure)
    torch.testing.assert_close(result.divergence, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("chunk", [None, 4])
def test_no_tokens_give_empty_results_and_an_empty_gradient(chunk: int | None) -> None:
    c = case(rows=0)
    logits = c.logits.requires_grad_()
    result = logp_and_divergence(logits, *c[1:], measure="tv", entropy=True, chunk=chunk)
    assert [len(value) for value in result] == [0, 0, 0]
    result.logp.sum().backward()
    assert logits.grad.shape == (0, VOCABULARY)


def test_impossible_and_padding_tokens_stay_finite_where_they_should() -> None:
    c = case()
    logits = c.logits.masked_fill(torch.arange(VOCABULARY) == 7, -torch.inf).requires_grad_()
    tokens = c.tokens.masked_fill(c.tokens == 7, 8)
    tokens[-1] = -1
    result = logp_and_divergence(logits, tokens, *c[2:], measure="kl", entropy=True)
    assert all(bool(torch.isfinite(value).all()) for value in result)
    assert not result.divergence.requires_grad and not result.entropy.requires_grad
    result.logp[:-1].sum().backward()
    assert bool(torch.isfinite(logits.grad).all()) and not logits.grad[:, 7].any()
    assert not logits.grad[-1].any()


class LargeAllocations(TorchDispatchMode):
    """Operators whose result lies in new memory of at least `limit` bytes."""

    def __init__(self, limit: int) -> None:
        super().__init__()
        self.limit, self.found = limit, []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        given = {
            t.untyped_storage().data_ptr() for t in [*args, *(kwargs or {}).values()] if isinstance(t, Tensor)
        }
        for tensor in result if isinstance(result, (tuple, list)) else [result]:
            if isinstance(tensor, Tensor):
                storage = tensor.untyped_storage()
                if storage.nbytes() >= self.limit and storage.data_ptr() not in given:
                    self.found.append(str(function))
        return result


@pytest.mark.parametrize("temperature", TEMPERATURES)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_only_the_gradient_is_as_large_as_the_logits(dtype: torch.dtype, temperature: float) -> None:
    c = case(dtype, rows=64)
    options = {"measure": "tv", "entropy": True, "temperature": temperature, "chunk": 4}
    for overwrite, allowed in ((False, ["aten.empty_like.default"]), (True, [])):
        logits = c.logits.clone().requires_grad_() * 1
        limit = logits.numel() * logits.element_size()
        with LargeAllocations(limit) as forward:
            logp = logp_and_divergence(logits, *c[1:], **options, overwrite_logits=overwrite).logp
        with LargeAllocations(limit) as backward:
            (gradient,) = torch.autograd.grad(logp.sum(), logits)
        assert (forward.found, backward.found) == ([], allowed)
        assert (gradient.data_ptr() == logits.data_ptr()) == overwrite
    with LargeAllocations(limit) as plain:
        plain_logp(c.logits, c.tokens)
    assert plain.found, "the check must see the plain version's log-probabilities"


def test_autograd_refuses_to_read_overwritten_logits() -> None:
    c = case()
    logits = c.logits.requires_grad_().exp()  # exp needs its own result in the backward
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        token_logp(logits, c.tokens, overwrite_logits=True).sum().backward()
    logits = c.logits * 1
    logp = token_logp(logits, c.tokens, overwrite_logits=True).sum()
    logp.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        logp.backward()


C = case()
LEAF = torch.zeros(ROWS, VOCABULARY, requires_grad=True)
REFUSED = [
    ({"measure": "js"}, r"measure='js' is unknown"),
    ({"convention": "replace"}, r"convention='replace' is unknown"),
    ({"temperature": 0.0}, r"temperature=0.0 must be a positive number"),
    ({"chunk": 0}, r"chunk=0 must be at least 1 row"),
    ({"logits": C.logits[0]}, r"logits has shape \[37\] .*expected floating \[N, V\]"),
    ({"logits": C.logits.long()}, r"logits has .* dtype torch.int64"),
    ({"tokens": C.tokens[1:]}, r"tokens has shape \[12\], expected \[13\]"),
    ({"rollout_logp": C.rollout_logp[1:]}, r"rollout_logp has shape \[12\]"),
    ({"rollout_topk_ids": C.ids[1:]}, r"rollout_topk_ids has shape \[12, 6\], expected \[13, 6\]"),
    ({"rollout_topk_logp": C.topk_logp[:, 1:]}, r"rollout_topk_logp has shape \[13, 5\], expected \[13, 6\]"),
    ({"rollout_topk_logp": None}, r"only one of rollout_topk_ids and rollout_topk_logp is None"),
    ({"logits": LEAF, "overwrite_logits": True}, r"overwrite_logits=True with logits that are a leaf"),
]


@pytest.mark.parametrize(("change", "message"), REFUSED, ids=[message[:30] for _, message in REFUSED])
def test_call_is_refused(change: dict, message: str) -> None:
    names = ("logits", "tokens", "rollout_topk_ids", "rollout_topk_logp", "rollout_logp")
    arguments = dict(zip(names, C, strict=True)) | {"measure": "tv"}
    with pytest.raises(ValueError, match=message):
        logp_and_divergence(**arguments | change)
