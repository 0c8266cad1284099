"""The loss on a GPU: Triton's kernels against the eager code and one read, their memory, the rules under autocast."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils.benchmark import Timer

from benchmarks.gpu_kit.__main__ import Record
from cppo_lab.maths.divergence import Recorded, logp_and_divergence
from tests.maths.maths_batches import CONSTANTS, TokenBatch, constants, differentiated, random_batch

K, VOCABULARY = 20, 151936  # of Qwen3
LAYOUTS_TOKENS = 20480  # of a micro-batch in the layout one_node


def milliseconds(step: Callable[[], object], device: torch.device, times: int = 10) -> float:
    """Mean time of so many calls on a GPU, whose queue is empty before and behind them; of one call on a CPU."""
    timer = Timer("step()", globals={"step": step})  # it warms up first
    return float(1e3 * timer.timeit(times if device.type == "cuda" else 1).mean)


def recorded(rows: int, vocabulary: int, device: torch.device) -> Recorded:
    """Tokens, and mu's Top-K and log-probabilities."""
    tokens, part = torch.randint(vocabulary, (rows,), device=device), vocabulary // K
    ids = torch.randint(part, (rows, K), device=device, dtype=torch.int32)
    ids += part * torch.arange(K, device=device, dtype=torch.int32)
    logp, topk_logp = torch.full((rows,), -3.0, device=device), torch.full((rows, K), -3.5, device=device)
    return Recorded(tokens, logp, ids, topk_logp)


def triton_runs(device: torch.device) -> bool:
    """Whether it finds what it compiles with."""
    try:
        logits, token = torch.zeros(1, 8, device=device), torch.zeros(1, dtype=torch.long, device=device)
        mu = Recorded(token, logits[:, 0], token[:, None][:, :0], logits[:, :0])
        logp_and_divergence(logits, mu, measure="tv", fused=True)
    except Exception as error:  # noqa: BLE001  each lack has an error of its own
        print(f"the eager code is used: {error}")
        return False
    return True


def kernel(device: torch.device, record: Record) -> None:
    """Forward and backward of both ways, in reads of the logits: at best one, and two with the gradient's write."""
    rows, vocabulary = (8192, VOCABULARY) if device.type == "cuda" else (4, 5003)
    for dtype in (torch.bfloat16, torch.float32):
        logits = torch.randn(rows, vocabulary, device=device).mul_(2).to(dtype)
        given, name = recorded(rows, vocabulary, device), str(dtype).removeprefix("torch.")
        one_read = min(milliseconds(read, device) for read in (logits.sum, partial(logits.amax, -1)))
        record.figure(f"{name} one read", one_read, "ms")
        record.figure(f"{name} one read", logits.nbytes / one_read / 1e6, "GB/s")
        options: dict[str, Any] = {"measure": "tv", "entropy": True}
        forward = partial(logp_and_divergence, logits.requires_grad_(), given, **options)
        results = {}
        # The eager code first: it needs no compiler, and its figures are on disk if Triton fails.
        for way, step in (("eager", forward), ("kernel", partial(forward, fused=True))):
            results[way] = result = step()
            backward = partial(torch.autograd.grad, result.logp.sum(), logits, retain_graph=True)
            for direction, call, reads in (("forward", step, 1), ("backward", backward, 2)):
                taken = milliseconds(call, device)
                at_most = 1.5 * reads if way == "kernel" and device.type == "cuda" else None
                record.figure(f"{name} {way} {direction}", taken, "ms")
                record.figure(f"{name} {way} {direction} over one read", taken / one_read, "x", at_most)
        for field in ("logp", "divergence", "entropy"):
            eager, fused = (getattr(results[way], field).detach() for way in ("eager", "kernel"))
            record.figure(f"{name} {field} of kernel and eager", float((eager - fused).abs().max()), "", 2e-4)


def memory(device: torch.device, record: Record) -> None:
    """A micro-batch's logits, with the gradient in their place: the bytes that the estimate counts for each of them."""
    on_gpu = device.type == "cuda"
    rows, width, vocabulary = (LAYOUTS_TOKENS, 2048, VOCABULARY) if on_gpu else (32, 16, 5003)
    head = (0.02 * torch.randn(vocabulary, width, device=device)).bfloat16().requires_grad_()
    hidden = torch.randn(rows, width, device=device).bfloat16().requires_grad_()
    given = recorded(rows, vocabulary, device)
    options: dict[str, Any] = {"measure": "tv", "entropy": True, "overwrite_logits": True}
    for way in ("eager", "kernel"):
        before = 0
        if on_gpu:
            torch.cuda.reset_peak_memory_stats()
            before = torch.cuda.memory_allocated()
        result = logp_and_divergence(hidden @ head.T, given, fused=way == "kernel", **options)
        gradient, _ = torch.autograd.grad(result.logp.sum(), (hidden, head))
        record.figure(f"{way} gradient is finite", float(gradient.isfinite().all()))
        if on_gpu:
            peak = torch.cuda.max_memory_allocated() - before
            record.figure(f"{way} peak", peak / 1e9, "GB")
            record.figure(f"{way} peak for each logit", peak / rows / vocabulary, "bytes", at_most=2.6)


def rules(device: torch.device, record: Record) -> None:
    """Every rule under autocast, in which verl's engine calls it, against outside, and against float64 on the CPU."""
    wide = random_batch(0, rows=64 if device.type == "cuda" else 8, width=512)
    exact = TokenBatch(*(part.float().double() if part.is_floating_point() else part for part in wide))
    given = TokenBatch(
        *(part.to(device, torch.float32 if part.is_floating_point() else None) for part in exact)
    )
    changed, other = [], {}
    for rule in CONSTANTS:
        settings: dict[str, Any] = constants(rule, exact)
        moved = {
            key: value.to(device) if isinstance(value, Tensor) else value for key, value in settings.items()
        }
        expected, _ = differentiated(rule, exact, **settings)
        outside, slope = differentiated(rule, given, **moved)
        with torch.autocast(device.type, torch.bfloat16):
            inside, gradient = differentiated(rule, given, **moved)
        pairs = (outside.keep, inside.keep), (outside.objective, inside.objective), (slope, gradient)
        if not all(torch.equal(*pair) for pair in pairs):
            changed.append(rule)
        if tokens := int(((outside.keep.cpu() - expected.keep).abs() > 1e-3).sum()):
            other[rule] = tokens
    record.figure("rules", len(CONSTANTS))
    record.figure("rules that autocast changes", len(changed), "", at_most=0)
    # One within rounding of a threshold may differ.
    record.figure("tokens masked otherwise than in float64", sum(other.values()))
    if changed or other:
        record.line(autocast=changed, float64=other)
