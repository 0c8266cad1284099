"""Log-probability and divergence from logits against the plain functions on full log-probabilities."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from importlib.util import find_spec
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from cppo_lab.maths import divergence as divergences
from cppo_lab.maths.divergence import Recorded, logp_and_divergence
from tests.conftest import ROOT, python
from tests.requirement import TRITON

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning:triton")  # its interpreter is numpy's
ROWS, VOCABULARY, K = 13, 37, 6
DTYPES = (torch.float64, torch.float32, torch.bfloat16)
# bfloat16 logits are given to both sides: what is left is float32 arithmetic, and a gradient of 8 bits.
TOLERANCE = {torch.float64: 1e-12, torch.float32: 2e-6, torch.bfloat16: 2e-6}
GRADIENT_TOLERANCE = TOLERANCE | {torch.bfloat16: 4e-3}
CUT_OFF = GRADIENT_TOLERANCE | {
    torch.bfloat16: 2**-7
}  # Triton's interpreter does not round to bfloat16, a GPU does
CHUNKS = (None, 1, 5, ROWS)
FUSED = {
    "fused": True
}  # by Triton's kernels, here in its interpreter (tests/conftest.py); they have no float64
WAYS: list[tuple[torch.dtype, dict[str, Any]]] = [
    *product(DTYPES, [{"chunk": chunk} for chunk in CHUNKS]),
    *product(DTYPES[1:], [FUSED]),
]


class Case(NamedTuple):
    logits: Tensor  # [N, V] of pi
    mu: Recorded  # of N tokens


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
    return Case(logits.to(dtype), Recorded(tokens, sampled.to(wide), ids, top.values.to(wide)))


def alone(tokens: Tensor, logp: Tensor) -> Recorded:
    """Without a Top-K."""
    return Recorded(tokens, logp, tokens[:, None][:, :0], logp[:, None][:, :0])


@pytest.fixture(autouse=True)
def _triton(request: pytest.FixtureRequest) -> None:
    """A test of the kernels needs Triton, which CI has."""
    if hasattr(request.node, "callspec") and request.node.callspec.params.get("way") is FUSED:
        TRITON.demand()


def token_logp(logits: Tensor, tokens: Tensor, **named: Any) -> Tensor:
    """Log pi(token) alone."""
    unused = logits.detach().new_zeros(len(tokens))
    return logp_and_divergence(logits, alone(tokens, unused), measure="tv", **named).logp


@pytest.mark.parametrize(
    "measure, convention, temperature",  # each two of them in every combination
    [("tv", "union", 1.0), ("tv", "replace_kth", 0.6), ("kl", "union", 0.6), ("kl", "replace_kth", 1.0)],
)
@pytest.mark.parametrize("dtype, way", WAYS, ids=str)
def test_equals_the_plain_functions(
    dtype: torch.dtype, measure: str, convention: str, temperature: float, way: dict[str, Any]
) -> None:
    """In values, and in the gradient of log pi; in the logits' place, with the Top-K's gradient, too, whose empty place
    is read at id 0. Without a Top-K the divergence is binary.
    """
    c = case(dtype, temperature=temperature)
    options = {
        "measure": measure,
        "convention": convention,
        "temperature": temperature,
        "entropy": True,
        **way,
    }
    tolerance = {"rtol": TOLERANCE[dtype], "atol": 2 * TOLERANCE[dtype]}
    weights, generator = (
        torch.linspace(-1, 2, ROWS, dtype=c.mu.logp.dtype),
        torch.Generator().manual_seed(2),
    )
    weights[3] = 0.0
    topk_weights = torch.randn(ROWS, K, generator=generator, dtype=weights.dtype)
    topk_weights[c.mu.topk_ids < 0] = 0.0
    leaf = c.logits.clone().requires_grad_()
    pi = ((leaf if dtype == torch.float64 else leaf.float()) / temperature).log_softmax(-1)
    logp, topk_logp = (pi.gather(-1, ids.clamp_min(0)) for ids in (c.mu.tokens[:, None], c.mu.topk_ids))
    loss = (logp[:, 0] * weights).sum()
    losses = loss, loss + (topk_logp * topk_weights).sum()
    expected = [torch.autograd.grad(loss, leaf, retain_graph=True)[0] for loss in losses]
    pi, logp = pi.detach(), logp[:, 0]
    relative = CUT_OFF if way is FUSED else GRADIENT_TOLERANCE
    none = c._replace(mu=alone(c.mu.tokens, c.mu.logp))
    binary = divergences.binary(logp.detach(), c.mu.logp, measure)
    top = divergences.topk(c.mu, pi, measure=measure, convention=convention)
    entropy = torch.distributions.Categorical(logits=pi).entropy()
    for given, divergence, topk in ((c, top, False), (c, top, True), (none, binary, False)):
        leaf = given.logits.clone().requires_grad_()
        result = logp_and_divergence(
            leaf * 1, *given[1:], **options, overwrite_logits=topk, topk_gradient=topk
        )
        torch.testing.assert_close(result[:3], (logp, divergence, entropy), **tolerance)
        loss = (result.logp * weights).sum()
        if given is c:
            torch.testing.assert_close(result.topk_logp, topk_logp, **tolerance)
            assert result.topk_logp.requires_grad == topk
        if topk:
            loss = loss + (result.topk_logp * topk_weights).sum()
        (gradient,) = torch.autograd.grad(loss, leaf)
        assert gradient.dtype == dtype
        torch.testing.assert_close(gradient, expected[topk], rtol=relative[dtype], atol=4 * TOLERANCE[dtype])
    assert torch.equal(token_logp(c.logits, c.mu.tokens, temperature=temperature, **way), result.logp)


@pytest.mark.parametrize("way", [{}, {"chunk": 4}, FUSED], ids=str)
def test_no_tokens_give_empty_results_and_an_empty_gradient(way: dict[str, Any]) -> None:
    c = case(torch.float32, rows=0)
    logits = c.logits.requires_grad_()
    result = logp_and_divergence(logits, *c[1:], measure="tv", entropy=True, **way)
    assert [len(value) for value in result] == [0, 0, 0, 0]
    result.logp.sum().backward()
    assert logits.grad.shape == (0, VOCABULARY)


@pytest.mark.parametrize("dtype, way", [WAYS[0], *WAYS[-2:]], ids=str)
def test_impossible_and_padding_tokens_stay_finite_where_they_should(
    dtype: torch.dtype, way: dict[str, Any]
) -> None:
    c = case(dtype)
    impossible = (torch.arange(VOCABULARY) == 7).expand(ROWS, -1).clone()
    impossible[2, :30] = True  # a whole block of the kernels, and more
    logits = c.logits.masked_fill(impossible, -torch.inf).requires_grad_()
    tokens = c.mu.tokens.masked_fill(c.mu.tokens == 7, 8)
    tokens[2], tokens[-1] = 33, -1
    ids = c.mu.topk_ids.clone()
    ids[2] = torch.arange(31, 31 + K)
    with blocks_of(16):
        mu = c.mu._replace(tokens=tokens, topk_ids=ids)
        result = logp_and_divergence(logits, mu, measure="kl", entropy=True, **way)
        assert all(bool(torch.isfinite(value).all()) for value in result[:3])
        assert not result.divergence.requires_grad and not result.entropy.requires_grad
        result.logp[:-1].sum().backward()
    assert bool(torch.isfinite(logits.grad).all()) and not logits.grad[impossible].any()
    assert not logits.grad[-1].any()


def large(work: Callable[[], Any], bytes_: int) -> tuple[Any, int]:
    """A result, and how many tensors of that size were allocated for it."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
        result = work()
    events = seen.profiler.kineto_results.events()
    return result, sum(event.nbytes() >= bytes_ for event in events if event.name() == "[memory]")


@pytest.mark.parametrize("temperature", [1.0, 0.6])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_only_the_gradient_is_as_large_as_the_logits(dtype: torch.dtype, temperature: float) -> None:
    c = case(dtype, rows=64)
    options = {"measure": "tv", "entropy": True, "temperature": temperature, "chunk": 4}
    for overwrite in (False, True):
        logits = c.logits.clone().requires_grad_() * 1
        forward = partial(logp_and_divergence, logits, *c[1:], **options, overwrite_logits=overwrite)
        result, within_forward = large(forward, logits.nbytes)
        (gradient,), within_backward = large(
            partial(torch.autograd.grad, result.logp.sum(), logits), logits.nbytes
        )
        assert (within_forward, within_backward) == (0, not overwrite)
        assert (gradient.data_ptr() == logits.data_ptr()) == overwrite
    assert large(partial(c.logits.log_softmax, -1), c.logits.nbytes)[1], (
        "the check must see the plain version's"
    )


@pytest.mark.parametrize("way", [{}, FUSED], ids=str)
def test_autograd_refuses_to_read_overwritten_logits(way: dict[str, Any]) -> None:
    c = case(torch.float32)
    logits = c.logits.requires_grad_().exp()  # exp needs its own result in the backward
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        token_logp(logits, c.mu.tokens, overwrite_logits=True, **way).sum().backward()
    logits = c.logits * 1
    logp = token_logp(logits, c.mu.tokens, overwrite_logits=True, **way).sum()
    (gradient,) = torch.autograd.grad(logp, logits, retain_graph=True)
    assert gradient.data_ptr() == logits.data_ptr()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        logp.backward()


@contextmanager
def blocks_of(symbols: int) -> Iterator[None]:
    """Small blocks, so that a small vocabulary takes several and ends within one."""
    with pytest.MonkeyPatch.context() as patch:
        if find_spec("triton") is not None:
            patch.setattr("cppo_lab.maths.logits_kernel.LARGEST_BLOCK", symbols)
        yield


def assert_both_ways_agree(logits: Tensor, tokens: Tensor, ids: Tensor, temperature: float = 1.0) -> None:
    """The kernels give log pi, divergence, entropy and gradient of the eager code in float64."""
    TRITON.demand()
    rows, options = len(logits), {"measure": "tv", "entropy": True, "temperature": temperature}
    top = torch.linspace(-6, -4, ids.numel()).view(ids.shape)
    mu = Recorded(tokens, torch.full((rows,), -3.0), ids, top)
    weights, answers = torch.linspace(-1, 2, rows), []
    for given, way in ((logits.double(), {}), (logits, FUSED)):
        leaf = given.detach().requires_grad_()
        view = leaf.as_strided(given.shape, given.stride())
        result = logp_and_divergence(view, mu, **options, **way)
        (gradient,) = torch.autograd.grad((result.logp * weights).sum(), view)
        answers.append([*(value.detach().float() for value in result[:3]), gradient.float()])
    (*expected, gradient), (*actual, of_kernel) = answers
    torch.testing.assert_close(actual, expected, rtol=2e-6, atol=2e-6)
    torch.testing.assert_close(of_kernel, gradient, rtol=CUT_OFF[logits.dtype], atol=2e-6)


@pytest.mark.parametrize("dtype", DTYPES[1:], ids=str)
@pytest.mark.parametrize(
    "vocabulary, k, block",
    [(151_936, 20, 8192), (5003, 3, 1024), (4096, 0, 4096), (257, 256, 128), (3, 1, 8192), (1, 0, 8192)],
)
def test_the_kernels_are_the_eager_code_in_double_precision(
    vocabulary: int, k: int, block: int, dtype: torch.dtype
) -> None:
    """Vocabularies that a block divides and does not, of Qwen3's size too."""
    generator = torch.Generator().manual_seed(vocabulary)
    logits = (20 + 4 * torch.randn(4, vocabulary, generator=generator)).to(dtype)
    tokens = torch.randint(vocabulary, (4,), generator=generator)
    tokens[0] = -1
    drawn = [torch.randperm(vocabulary, generator=generator)[:k].int() for _ in range(4)]
    with blocks_of(block):
        assert_both_ways_agree(logits, tokens, torch.stack(drawn), temperature=0.8)


def test_the_kernels_take_any_strides() -> None:
    """Rows of a wider tensor, every second symbol, columns first; the gradient lies in the same places."""
    c = case(torch.float32)
    wide = torch.randn(2 * ROWS, 2 * VOCABULARY, generator=torch.Generator().manual_seed(0))
    for logits in (wide[::2, :VOCABULARY], wide[:ROWS, ::2], wide[:VOCABULARY].T[:ROWS, : ROWS * 2]):
        tokens = c.mu.tokens % logits.shape[1]
        assert_both_ways_agree(logits, tokens, c.mu.topk_ids[:, 1:3] % logits.shape[1])
        layer = (wide * 1).requires_grad_() * 1
        view = layer.as_strided(logits.shape, logits.stride())
        before = layer.detach().clone()
        token_logp(view, tokens, overwrite_logits=True, **FUSED).sum().backward()
        inside = torch.zeros_like(before, dtype=torch.bool)
        inside.as_strided(logits.shape, logits.stride()).fill_(True)
        assert torch.equal(layer.detach()[~inside], before[~inside])
        assert not torch.equal(layer.detach()[inside], before[inside])


def test_rows_lie_beyond_two_to_the_31_elements(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows 2^30 elements apart, of memory of which nothing else is touched."""
    TRITON.demand()
    # The interpreter copies a tensor's whole memory back to its device, which here is the same memory.
    monkeypatch.setattr("triton.runtime.interpreter.GridExecutor._restore_args_dev", lambda *_: None)
    c = case(torch.bfloat16, rows=3)
    far = torch.empty(2**31 + VOCABULARY, dtype=torch.bfloat16).as_strided((3, VOCABULARY), (2**30, 1))
    far.copy_(c.logits)
    expected = token_logp(c.logits, c.mu.tokens, **FUSED)
    near = c.logits.clone().requires_grad_() * 1
    far.requires_grad_()
    layer = far.as_strided(far.shape, far.stride())
    logp = token_logp(layer, c.mu.tokens, overwrite_logits=True, **FUSED)
    assert torch.equal(logp, expected)
    (gradient,) = torch.autograd.grad(logp.sum(), layer)
    (wanted,) = torch.autograd.grad(token_logp(near, c.mu.tokens, **FUSED).sum(), near)
    assert torch.equal(gradient, wanted)


def test_the_kernels_give_nan_for_what_is_not_finite_or_beyond_the_vocabulary() -> None:
    """As the eager code does for NaN; it refuses an id beyond, which on a GPU ends the process."""
    TRITON.demand()
    c = case(torch.float32)
    logits = c.logits.clone()
    logits[0, 3], logits[1, 5], logits[2] = torch.nan, torch.inf, -torch.inf
    tokens = c.mu.tokens.clone()
    tokens[3] = VOCABULARY
    finite = token_logp(logits, tokens, **FUSED).isfinite()
    assert finite.tolist() == [False] * 4 + [True] * (ROWS - 4)
    assert not token_logp(logits[:3], tokens[:3]).isfinite().any()


COMPILED = """
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from cppo_lab.maths import logits_kernel as kernels

constants = {"VOCABULARY": 151936, "BLOCK": kernels.LARGEST_BLOCK, "IDS": 21, "ID_BLOCK": 32, "symbol_stride": 1}
for kernel in (kernels._read, kernels._write_gradient):
    for dtype in ("bf16", "fp32"):
        types = {"logits": f"*{dtype}", "gradient": f"*{dtype}", "ids": "*i64", "scale": "fp32", "row_stride": "i32"}
        types |= {"gradient_row_stride": "i32", "gradient_symbol_stride": "i32"} | dict.fromkeys(constants, "constexpr")
        signature = {name: types.get(name, "*fp32") for name in kernel.arg_names}
        fixed = {(kernel.arg_names.index(name),): value for name, value in constants.items() if name in signature}
        source = ASTSource(kernel, signature, fixed)
        made = triton.compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": 8})
        print(kernel.__name__, dtype, len(made.asm["cubin"]) > 1000)
"""


def test_the_kernels_compile_for_an_h100(tmp_path: Path) -> None:
    """By Triton's own compiler, which needs no GPU: the interpreter permits what it does not."""
    TRITON.demand()
    made = [f"{kernel} {dtype} True" for kernel in ("_read", "_write_gradient") for dtype in ("bf16", "fp32")]
    variables = {"PYTHONPATH": str(ROOT), "TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": str(tmp_path)}
    assert python("-c", COMPILED, env=os.environ | variables).stdout.splitlines() == made


C = case()
LEAF = torch.zeros(ROWS, VOCABULARY, requires_grad=True)
REFUSED = [
    ({"measure": "js"}, r"measure='js' is unknown"),
    ({"convention": "replace"}, r"convention='replace' is unknown"),
    ({"temperature": 0.0}, r"temperature=0.0 must be a positive number"),
    ({"chunk": 0}, r"chunk=0 must be at least 1 row"),
    ({"logits": C.logits[0]}, r"logits has shape \[37\] .*expected floating \[N, V\]"),
    ({"logits": C.logits.long()}, r"logits has .* dtype torch.int64"),
    ({"mu": C.mu._replace(tokens=C.mu.tokens[1:])}, r"tokens has shape \[12\], expected \[13\]"),
    ({"mu": C.mu._replace(logp=C.mu.logp[1:])}, r"logp has shape \[12\]"),
    (
        {"mu": C.mu._replace(topk_ids=C.mu.topk_ids[1:])},
        r"topk_ids has shape \[12, 6\], expected \[13, 6\]",
    ),
    (
        {"mu": C.mu._replace(topk_logp=C.mu.topk_logp[:, 1:])},
        r"topk_logp has shape \[13, 5\], expected \[13, 6\]",
    ),
    ({"logits": LEAF, "overwrite_logits": True}, r"overwrite_logits=True with logits that are a leaf"),
    ({"fused": True}, r"fused=True with float64 logits"),
]


@pytest.mark.parametrize("change, message", REFUSED)
def test_call_is_refused(change: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        logp_and_divergence(**C._asdict() | {"measure": "tv"} | change)
