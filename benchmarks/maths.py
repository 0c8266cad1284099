"""Cost of CPPO's maths, compared with verl's own `vanilla` policy loss and with log-probabilities alone.

    python benchmarks/maths.py [--quick]

cppo_over_vanilla_*        CPPO's loss (adaptive budget), forward and backward, given log-probs and divergences
                           [B, T] float32, over verl's `vanilla` loss on the same tensors: wall time, peak memory.
topk_over_*                sampled log-prob and Top-20 TV from logits [N, 151936] float32, forward and backward,
                           over our own code without Top-K (log-prob and Binary TV), and over the log-prob alone
                           by log_softmax and gather.

Ratios are medians over runs in turn, on one thread; those of a GPU: docs/gpu_kit.md. The last line is JSON, see
`common.py`. Needs verl 0.9.1 in this environment.
"""

import ctypes
import os
from collections.abc import Callable
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import torch
from common import arguments, finish, in_turn
from torch import Tensor
from verl.trainer.ppo.core_algos import get_policy_loss_fn
from verl.workers.config import ActorConfig

from cppo_lab.maths.divergence import Recorded, logp_and_divergence
from cppo_lab.maths.rules import aggregate, get_rule
from cppo_lab.maths.tokens import Tokens

VOCABULARY, K = 151936, 20
TARGETS = {  # each at most
    "cppo_over_vanilla_time": 1.15,
    "cppo_over_vanilla_peak_memory": 1.25,
    "topk_over_token_logp_time": 1.10,
    "topk_over_log_softmax_time": 1.10,
}
CPPO = {"delta": 0.15, "delta_b": 0.015, "w_min": 0.8, "delta_b_mode": "adaptive"}
M_MMAP_THRESHOLD = -3  # malloc.h


def backward(of: Tensor, loss: Callable[[], Tensor]) -> Callable[[], None]:
    """A step: forward, and backward to one tensor."""

    def step() -> None:
        loss().backward()
        of.grad = None

    return step


def loss_steps(rows: int, width: int) -> dict[str, Callable[[], None]]:
    """CPPO's loss and verl's on ragged responses near mu; D small at most tokens, beyond the thresholds at some."""
    generator = torch.Generator().manual_seed(0)
    recorded = -torch.rand(rows, width, generator=generator)
    lengths = torch.randint(width // 8, width + 1, (rows, 1), generator=generator)
    given = {
        "rollout_logp": recorded + 0.1 * torch.randn(rows, width, generator=generator),
        "logp": recorded.requires_grad_(),
        "advantages": torch.randn(rows, 1, generator=generator).expand(rows, width).contiguous(),
        "divergence": 0.4 * torch.rand(rows, width, generator=generator) ** 6,
        "valid": torch.arange(width) < lengths,
    }
    mask = given["valid"].float()  # verl also takes integers, and is slower and larger with them
    config = ActorConfig(strategy="fsdp", rollout_n=1, ppo_micro_batch_size_per_gpu=1)

    def cppo() -> Tensor:
        objective = get_rule("cppo")(Tokens(**given), **CPPO).objective
        return -aggregate(objective, given["valid"], "token-mean")

    def vanilla() -> Tensor:
        update = (given["rollout_logp"], given["logp"], given["advantages"], mask, "token-mean", config)
        loss: Tensor = get_policy_loss_fn("vanilla")(*update)[0]
        return loss

    return {"cppo": backward(given["logp"], cppo), "vanilla": backward(given["logp"], vanilla)}


def logits_steps(count: int) -> dict[str, Callable[[], None]]:
    """From logits [count, V]: with mu's Top-K ids and log-probs and log mu(token), and the log-prob alone."""
    generator = torch.Generator().manual_seed(0)
    logits = 2 * torch.randn(count, VOCABULARY, generator=generator)
    tokens = torch.randint(VOCABULARY, (count,), generator=generator)
    top = logits.topk(K)
    normaliser = logits.logsumexp(-1, keepdim=True)
    sampled = (logits.gather(-1, tokens[:, None]) - normaliser)[:, 0] + 0.1
    mu = Recorded(tokens, sampled, top.indices, top.values - normaliser + 0.01)
    alone = Recorded(tokens, sampled, top.indices[:, :0], top.values[:, :0])
    logits.requires_grad_()
    ways = {
        "topk": lambda: logp_and_divergence(logits, mu, measure="tv").logp,
        "token_logp": lambda: logp_and_divergence(logits, alone, measure="tv").logp,
        "log_softmax": lambda: logits.log_softmax(-1, dtype=torch.float32).gather(-1, tokens[:, None]),
    }
    return {name: backward(logits, lambda way=way: way().sum()) for name, way in ways.items()}  # type: ignore[misc]


def peak(step: Callable[[], None]) -> int:
    """KiB that one step adds to this process's resident memory at its highest.

    The kernel counts: unlike a profiler or a dispatch mode it also sees the temporaries inside operators.
    """
    Path("/proc/self/clear_refs").write_text("5")  # the high-water mark starts again
    before = _highest()
    step()
    return _highest() - before


def _highest() -> int:
    """KiB of this process in memory at the most."""
    return int(Path("/proc/self/status").read_text().partition("VmHWM:")[2].split()[0])


def main() -> None:
    """Measures and prints."""
    quick = arguments(__doc__, "small tensors, three repeats").quick
    torch.set_num_threads(1)
    rows, width, count, repeats = (128, 1024, 4, 3) if quick else (512, 8192, 512, 15)
    figures = {}
    for steps in (loss_steps(rows, width), logits_steps(count)):
        first, *others = taken = in_turn(steps, repeats)
        for name in others:
            figures[f"{first}_over_{name}_time"] = float(np.median(taken[first][0] / taken[name][0]))
    # The allocator returns every large tensor at once: no memory kept from before hides a step's own.
    ctypes.CDLL(None).mallopt(M_MMAP_THRESHOLD, 2**17)
    ours, theirs = map(peak, loss_steps(rows, width).values())
    figures["cppo_over_vanilla_peak_memory"] = ours / max(theirs, 1)
    finish(figures, {"*": "x"}, at_most=TARGETS, quick=quick)


if __name__ == "__main__":
    main()
