"""Times and peak memory of a step on a device."""

import statistics
import time
from collections.abc import Callable

import torch

Step = Callable[[], object]


def milliseconds(step: Step, device: str, repeats: int, warm_up: int = 3) -> float:
    """Median time of one call. On a GPU between two events of its own clock, with nothing else in its queue."""
    for _ in range(warm_up):
        step()
    if device != "cuda":
        return statistics.median(_wall(step) for _ in range(repeats))
    times: list[float] = []
    for _ in range(repeats):
        first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize()
        first.record()
        step()
        last.record()
        torch.cuda.synchronize()
        times.append(first.elapsed_time(last))
    return statistics.median(times)


def peak_bytes(step: Step, device: str) -> int | None:
    """Bytes that a call takes at its highest beyond what was there; None where the device does not say."""
    if device != "cuda":
        return None
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    step()
    torch.cuda.synchronize()
    return int(torch.cuda.max_memory_allocated() - before)


def synchronise(device: str) -> None:
    """Wait until the device has done all that it was given."""
    if device == "cuda":
        torch.cuda.synchronize()


def _wall(step: Step) -> float:
    started = time.perf_counter()
    step()
    return (time.perf_counter() - started) * 1e3
