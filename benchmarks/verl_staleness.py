"""Cost of `rollout.staleness` in verl's worker: a copy of the policy in host memory, and its way into the engine.

    python benchmarks/verl_staleness.py [--quick]

bytes_per_parameter     of a copy
keep_per_gigabyte       copying the policy to host memory, once per training step
use_per_gigabyte        making a copy the engine's policy: twice per transfer to the rollout servers, there and back
save_per_gigabyte       writing the copies of a checkpoint

A Qwen3 of 29M weights on one CPU rank, medians over rounds. On a GPU the copies go over PCIe. The last line is JSON,
see `common.py`. Needs verl 0.9.1.
"""

import importlib.util
import statistics
import sys
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from common import arguments, result


def costs(staleness: int, rounds: int) -> dict[str, float]:
    """The figures."""
    from verl_loss import save_model

    from cppo_lab.cores.verl.worker import TrustRegionWorker
    from tests.cores.verl.cpu_engine import join, make_worker

    worker: Any = TrustRegionWorker.__new__(TrustRegionWorker)
    worker._policies = {}
    seconds: dict[str, list[float]] = {name: [] for name in ("keep", "use", "save")}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        save_model(folder)
        join(0, 1, folder / "store")
        worker.actor = SimpleNamespace(
            engine=make_worker(folder, micro_batch=1, total_training_steps=9).engine
        )
        ways = {
            "keep": lambda step: worker.keep_policy(step, staleness),
            "use": lambda step: worker.use_policy(step),
            "save": lambda step: torch.save(worker._policies[step], folder / "copy.pt"),
        }
        for step in range(staleness + 1 + rounds):
            for way, work in ways.items():
                began = time.perf_counter()
                work(step)
                seconds[way].append(time.perf_counter() - began)
        torch.distributed.destroy_process_group()
    sizes = [sum(shard.nbytes for shard in policy.values()) for policy in worker._policies.values()]
    assert len(sizes) == staleness + 1 and len(set(sizes)) == 1
    parameters = sum(shard.numel() for shard in worker._policies[step].values())
    for way, values in seconds.items():
        print(f"{way}: {statistics.median(values):.4f} s for {sizes[0] / 1e6:.0f} MB", file=sys.stderr)
    figures = {
        f"{way}_per_gigabyte": statistics.median(values) / sizes[0] * 1e9 for way, values in seconds.items()
    }
    return {"bytes_per_parameter": sizes[0] / parameters, **figures}


def main() -> None:
    """Measures and prints."""
    quick = arguments(__doc__, "three rounds").quick
    torch.set_num_threads(1)
    figures: dict[str, float] = {}
    if importlib.util.find_spec("verl") is None:
        print("no verl: pip install '.[verl]'", file=sys.stderr)
    else:
        figures |= costs(2, 3 if quick else 20)
    units = {"bytes_per_parameter": "", "*": "s"}
    print(result("verl_staleness", figures, units, absent={"*": "no verl"}, quick=quick).line())


if __name__ == "__main__":
    main()
