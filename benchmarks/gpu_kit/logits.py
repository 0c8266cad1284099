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
from cppo_lab.maths.divergence import topk_from_logp
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
        ratio = partial(_ratio, name, logits, one_read, device, record)
        ratio("token_logp", partial(token_logp, logits, tokens), target=False)
        ratio("topk_tv", partial(logp_and_divergence, *given, measure="tv"))
        ratio("plain_topk_tv", partial(plain, *given))
        ratio("topk_tv_with_backward", backward, target=False)
        _agreement(f"{name}_plain", logp_and_divergence(*given, measure="tv")[:2], plain(*given), record)
        record.note(f"{name}: logits [{len(logits)}, {logits.shape[1]}], {logits.nbytes / 1e9:.2f} GB")


def measure_compiled(device: str, record: Record) -> None:
    """`plain` through torch.compile. On a CPU with a backend that needs no C++ compiler, to try the path."""
    backend = "inductor" if device == "cuda" else "aot_eager"
    record.note(f"torch.compile with backend {backend}")
    compiled: Callable[..., tuple[Tensor, Tensor]] = torch.compile(
        plain, backend=backend, dynamic=False, fullgraph=True
    )
    for name, given in _inputs(device, record):
        one_read = read(given[0], name, device, record)
        first = milliseconds(partial(compiled, *given), device, repeats=1, warm_up=0)
        record.figure(f"{name}_compiling", first / 1e3, "s")
        _ratio(name, given[0], one_read, device, record, "compiled_topk_tv", partial(compiled, *given))
        _agreement(f"{name}_compiled", compiled(*given), plain(*given), record)


def plain(
    logits: Tensor, tokens: Tensor, ids: Tensor, topk_logp: Tensor, rollout_logp: Tensor
) -> tuple[Tensor, Tensor]:
    """Log pi(token) and the Top-K TV from one log-sum-exp and a gather: what a compiler can fuse into one read."""
    normaliser = logits.float().logsumexp(-1, keepdim=True)
    logp = logits.gather(-1, tokens[:, None]).float() - normaliser
    cells = logits.gather(-1, ids).float() - normaliser
    divergence = topk_from_logp(ids, topk_logp, cells, tokens, rollout_logp, logp[:, 0], measure="tv")
    return logp[:, 0], divergence


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


def milliseconds(step: Step, device: str, repeats: int = 0, warm_up: int = 3) -> float:
    """Median time of one call. On a GPU between two events of its own clock, with nothing else in its queue."""
    for _ in range(warm_up):
        step()
    times: list[float] = []
    for _ in range(repeats or (20 if device == "cuda" else 3)):
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


def _ratio(
    name: str,
    logits: Tensor,
    one_read: float,
    device: str,
    record: Record,
    way: str,
    step: Step,
    target: bool = True,
) -> None:
    """A way's time over one read, and the memory that it takes beyond the logits."""
    taken = milliseconds(step, device)
    record.figure(f"{name}_{way}", taken, "ms")
    # A tiny shape on a CPU says nothing of a target for GPUs.
    limit = AT_MOST if target and device == "cuda" else None
    record.figure(f"{name}_{way}_over_one_read", taken / one_read, "x", at_most=limit)
    peak = None
    if device == "cuda":
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        step()
        torch.cuda.synchronize()
        peak = (torch.cuda.max_memory_allocated() - before) / logits.nbytes
    key, unit = f"{name}_{way}_peak_over_logits", "x the logits' bytes"
    record.figure(key, peak, unit, absent="" if peak is not None else "only a GPU's allocator says")


def _agreement(name: str, ours: tuple[Tensor, ...], plain: tuple[Tensor, ...], record: Record) -> None:
    for what, mine, other in zip(("logp", "divergence"), ours, plain, strict=True):
        record.figure(f"{name}_{what}_difference", float((mine - other).abs().max()), "", at_most=1e-4)
