"""Log-probability and Top-20 TV from logits of Qwen3's vocabulary, as a ratio to one read of the same logits.

One read is the fastest of three reductions that read every logit once. Nothing can be faster than that without reading
less; the target is 1.5 times it.
"""

import statistics
import time
from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import Tensor

from benchmarks.gpu_kit.record import Record
from cppo_lab.maths.from_logits import logp_and_divergence, token_logp

K = 20
AT_MOST = 1.5  # reads of the logits

Step = Callable[[], object]
Given = tuple[Tensor, Tensor, Tensor, Tensor, Tensor]


def measure(device: str, record: Record) -> None:
    """The product's own functions, forward, and forward with backward."""
    for name, given in _inputs(device, record):
        logits, tokens = given[:2]
        leaf = logits.detach().requires_grad_()

        def backward(given: Given = given, leaf: Tensor = leaf) -> None:
            logp_and_divergence(leaf, *given[1:], measure="tv").logp.sum().backward()
            leaf.grad = None

        one_read = read(logits, name, device, record)
        ways: dict[str, Step] = {
            "token_logp": partial(token_logp, logits, tokens),
            "topk_tv": partial(logp_and_divergence, *given, measure="tv"),
            "topk_tv_with_backward": backward,
        }
        for way, step in ways.items():
            taken = milliseconds(step, device)
            record.figure(f"{name}_{way}", taken, "ms")
            # A tiny shape on a CPU says nothing of a target for GPUs.
            limit = AT_MOST if way == "topk_tv" and device == "cuda" else None
            record.figure(f"{name}_{way}_over_one_read", taken / one_read, "x", at_most=limit)
            peak = peak_bytes(step) / logits.nbytes if device == "cuda" else None
            absent = "" if peak is not None else "only a GPU's allocator says"
            record.figure(f"{name}_{way}_peak_over_logits", peak, "x the logits' bytes", absent=absent)
        record.note(f"{name}: logits [{len(logits)}, {logits.shape[1]}], {logits.nbytes / 1e9:.2f} GB")


def peak_bytes(step: Step) -> int:
    """Bytes that a call takes on the GPU at its highest beyond what was there."""
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    step()
    torch.cuda.synchronize()
    return int(torch.cuda.max_memory_allocated() - before)


def read(logits: Tensor, name: str, device: str, record: Record) -> float:
    """Milliseconds of one read of the logits, with its rate."""
    ways: dict[str, Step] = {
        "sum": logits.sum,
        "sum of each row": partial(logits.sum, -1),
        "largest of each row": partial(logits.amax, -1),
    }
    times = {way: milliseconds(step, device) for way, step in ways.items()}
    quickest = min(times, key=times.__getitem__)
    record.note(f"{name}: one read is the {quickest}")
    record.figure(f"{name}_one_read", times[quickest], "ms")
    record.figure(f"{name}_read_rate", logits.nbytes / times[quickest] / 1e6, "GB/s")
    return times[quickest]


def milliseconds(step: Step, device: str) -> float:
    """Median time of one call. On a GPU between two events of its own clock, with nothing else in its queue."""
    for _ in range(3):
        step()
    times: list[float] = []
    for _ in range(20 if device == "cuda" else 3):
        if device == "cuda":
            first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            torch.cuda.synchronize()
            first.record()
            step()
            last.record()
            torch.cuda.synchronize()
            times.append(first.elapsed_time(last))
        else:
            started = time.perf_counter()
            step()
            times.append((time.perf_counter() - started) * 1e3)
    return statistics.median(times)


def _inputs(device: str, record: Record) -> Iterator[tuple[str, Given]]:
    """bfloat16 and float32 logits with what mu recorded, as many rows as a quarter of the free memory holds."""
    rows, vocabulary = (8192, 151936) if device == "cuda" else (64, 4096)
    # 8 bytes: both dtypes' logits, and a copy of one.
    while device == "cuda" and rows > 512 and rows * vocabulary * 8 * 4 > torch.cuda.mem_get_info()[0]:
        rows //= 2
        record.note(f"{rows} rows only, by the memory that is free")
    generator = torch.Generator(device).manual_seed(0)
    logits = 2 * torch.randn(rows, vocabulary, generator=generator, device=device)
    tokens = torch.randint(vocabulary, (rows,), generator=generator, device=device)
    top, normaliser = logits.topk(K), logits.logsumexp(-1, keepdim=True)
    sampled = (logits.gather(-1, tokens[:, None]) - normaliser)[:, 0] + 0.1
    recorded = tokens, top.indices, top.values - normaliser + 0.01, sampled
    yield "bfloat16", (logits.to(torch.bfloat16), *recorded)
    yield "float32", (logits, *recorded)
