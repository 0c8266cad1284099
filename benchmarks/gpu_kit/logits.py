"""Log-probability and Top-20 TV from logits of Qwen3's vocabulary, as a ratio to one read of the same logits.

One read is the fastest of three reductions that read every logit once. Nothing can be faster than that without reading
less; the target is 1.5 times it.
"""

from collections.abc import Callable, Mapping
from functools import partial

import torch
from torch import Tensor

from benchmarks.gpu_kit.record import Record
from benchmarks.gpu_kit.timing import Step, milliseconds, peak_bytes
from cppo_lab.maths.divergence import topk_from_logp
from cppo_lab.maths.from_logits import logp_and_divergence, token_logp

K = 20
AT_MOST = 1.5  # reads of the logits
ROWS, VOCABULARY, REPEATS = 8192, 151936, 20
TINY_ROWS, TINY_VOCABULARY, TINY_REPEATS = 64, 4096, 3

Given = tuple[Tensor, Tensor, Tensor, Tensor, Tensor]


def measure(device: str, record: Record) -> None:
    """The product's own functions, forward, and forward with backward."""
    for dtype, name, given in _inputs(device, record):
        logits, tokens = given[:2]
        one_read = reads(logits, name, device, record)
        ways: dict[str, Step] = {
            "token_logp": partial(token_logp, logits, tokens),
            "topk_tv": partial(logp_and_divergence, *given, measure="tv"),
            "plain_topk_tv": partial(plain, *given),
        }
        _ratios(ways, name, given, one_read, device, record)
        leaf = logits.detach().requires_grad_()

        def backward(given: Given = given, leaf: Tensor = leaf) -> None:
            logp_and_divergence(leaf, *given[1:], measure="tv").logp.sum().backward()
            leaf.grad = None

        _ratios({"topk_tv_with_backward": backward}, name, given, one_read, device, record, target=False)
        found, wanted = logp_and_divergence(*given, measure="tv"), plain(*given)
        _agreement(name, "plain", found[:2], wanted, record)
        record.note(
            f"{name}: {dtype} logits [{len(logits)}, {logits.shape[1]}], {logits.nbytes / 1e9:.2f} GB"
        )


def measure_compiled(device: str, record: Record) -> None:
    """`plain` through torch.compile. On a CPU with a backend that needs no C++ compiler, to try the path."""
    backend = "inductor" if device == "cuda" else "aot_eager"
    record.note(f"torch.compile with backend {backend}")
    compiled: Callable[..., tuple[Tensor, Tensor]] = torch.compile(
        plain, backend=backend, dynamic=False, fullgraph=True
    )
    for _, name, given in _inputs(device, record):
        one_read = reads(given[0], name, device, record)
        first = milliseconds(partial(compiled, *given), device, repeats=1, warm_up=0)
        record.figure(f"{name}_compiling", first / 1e3, "s")
        ways: dict[str, Step] = {"compiled_topk_tv": partial(compiled, *given)}
        _ratios(ways, name, given, one_read, device, record)
        _agreement(name, "compiled", compiled(*given), plain(*given), record)


def plain(
    logits: Tensor, tokens: Tensor, ids: Tensor, topk_logp: Tensor, rollout_logp: Tensor
) -> tuple[Tensor, Tensor]:
    """Log pi(token) and the Top-K TV from one log-sum-exp and a gather: what a compiler can fuse into one read."""
    normaliser = logits.float().logsumexp(-1, keepdim=True)
    logp = logits.gather(-1, tokens[:, None]).float() - normaliser
    cells = logits.gather(-1, ids).float() - normaliser
    divergence = topk_from_logp(ids, topk_logp, cells, tokens, rollout_logp, logp[:, 0], measure="tv")
    return logp[:, 0], divergence


def reads(logits: Tensor, name: str, device: str, record: Record) -> float:
    """Milliseconds of one read of the logits; with its rate and a copy's."""
    repeats = REPEATS if device == "cuda" else TINY_REPEATS
    target = torch.empty_like(logits)
    times = {
        "sum": milliseconds(logits.sum, device, repeats),
        "sum of each row": milliseconds(partial(logits.sum, -1), device, repeats),
        "largest of each row": milliseconds(partial(logits.amax, -1), device, repeats),
    }
    copy = milliseconds(partial(target.copy_, logits), device, repeats)
    quickest = min(times, key=times.__getitem__)
    record.note(f"{name}: one read is the {quickest}")
    record.figure(f"{name}_one_read", times[quickest], "ms")
    record.figure(f"{name}_read_rate", logits.nbytes / times[quickest] / 1e6, "GB/s")
    record.figure(f"{name}_copy_rate", 2 * logits.nbytes / copy / 1e6, "GB/s, read and written")
    return times[quickest]


def _inputs(device: str, record: Record) -> list[tuple[torch.dtype, str, Given]]:
    """bfloat16 and float32 logits with what mu recorded, as many rows as a quarter of the free memory holds."""
    rows, vocabulary = (ROWS, VOCABULARY) if device == "cuda" else (TINY_ROWS, TINY_VOCABULARY)
    if device == "cuda":
        free = torch.cuda.mem_get_info()[0]
        while (
            rows > 512 and rows * vocabulary * 8 * 4 > free
        ):  # 8 bytes: both dtypes' logits, and a copy of one
            rows //= 2
    if rows < ROWS and device == "cuda":
        record.note(f"{rows} rows only, by the memory that is free")
    generator = torch.Generator(device).manual_seed(0)
    logits = 2 * torch.randn(rows, vocabulary, generator=generator, device=device)
    tokens = torch.randint(vocabulary, (rows,), generator=generator, device=device)
    top = logits.topk(K)
    normaliser = logits.logsumexp(-1, keepdim=True)
    sampled = (logits.gather(-1, tokens[:, None]) - normaliser)[:, 0] + 0.1
    recorded = tokens, top.indices, top.values - normaliser + 0.01, sampled
    return [
        (dtype, name, (logits.to(dtype), *recorded))
        for dtype, name in ((torch.bfloat16, "bfloat16"), (torch.float32, "float32"))
    ]


def _ratios(
    ways: Mapping[str, Step],
    name: str,
    given: Given,
    one_read: float,
    device: str,
    record: Record,
    target: bool = True,
) -> None:
    """Each way's time over one read, and the memory that it takes beyond the logits."""
    repeats = REPEATS if device == "cuda" else TINY_REPEATS
    for way, step in ways.items():
        taken = milliseconds(step, device, repeats)
        record.figure(f"{name}_{way}", taken, "ms")
        # A tiny shape on a CPU says nothing of a target for GPUs.
        limit = AT_MOST if target and device == "cuda" and way != "token_logp" else None
        record.figure(f"{name}_{way}_over_one_read", taken / one_read, "x", at_most=limit)
        peak = peak_bytes(step, device)
        record.figure(
            f"{name}_{way}_peak_over_logits",
            None if peak is None else peak / given[0].nbytes,
            "x the logits' bytes",
            absent="" if peak is not None else "only a GPU's allocator says",
        )


def _agreement(
    name: str, way: str, found: tuple[Tensor, ...], wanted: tuple[Tensor, ...], record: Record
) -> None:
    for what, one, other in zip(("logp", "divergence"), found, wanted, strict=True):
        record.figure(f"{name}_{way}_{what}_difference", float((one - other).abs().max()), "", at_most=1e-4)
