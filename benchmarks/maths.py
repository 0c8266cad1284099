"""Cost of CPPO's maths, compared with verl's own `vanilla` policy loss and with log-probabilities alone.

    python benchmarks/maths.py [--quick]

cppo_over_vanilla_*        CPPO's loss (adaptive budget), forward and backward, given log-probs and divergences
                           [B, T] float32, over verl's `vanilla` loss on the same tensors: wall time, peak memory.
topk_over_*                sampled log-prob and Top-20 TV from logits [N, 151936] float32, forward and backward,
                           over the log-prob alone: by our own `token_logp`, by log_softmax and gather.

Ratios are medians over runs in turn, on one thread; those of a GPU: docs/gpu_kit.md. The last line is JSON, see
`common.py`.
The figures against verl need verl 0.9.1 in this environment.
"""

import os
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
from common import arguments, result
from torch import Tensor

from cppo_lab.maths.aggregation import aggregate
from cppo_lab.maths.from_logits import logp_and_divergence, token_logp
from cppo_lab.maths.rules import get_rule
from cppo_lab.maths.tokens import Tokens

VOCABULARY, K = 151936, 20
TARGETS = {  # each at most
    "cppo_over_vanilla_time": 1.15,
    "cppo_over_vanilla_peak_memory": 1.25,
    "topk_over_token_logp_time": 1.10,
    "topk_over_log_softmax_time": 1.10,
}
VERL = (
    "no verl: pip install torch==2.13.0, then pip install verl==0.9.1 TransferQueue cachetools torch==2.13.0"
)

Step = Callable[[], object]


def time_ratios(steps: dict[str, Step], repeats: int) -> dict[str, float]:
    """The first step's time over that of each other one in the same round, median over `repeats` rounds."""
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    for repeat in range(repeats + 1):
        for name, step in steps.items():
            started = time.perf_counter()
            step()
            if repeat:  # the first round warms up
                seconds[name].append(time.perf_counter() - started)
    for name, values in seconds.items():
        print(f"{name}: {statistics.median(values) * 1e3:.1f} ms", file=sys.stderr)
    first, *others = steps
    return {
        name: round(statistics.median(a / b for a, b in zip(seconds[first], seconds[name], strict=True)), 3)
        for name in others
    }


def loss_tensors(rows: int, width: int) -> dict[str, Tensor]:
    """Ragged responses near mu; D small at most tokens, beyond the thresholds at some."""
    generator = torch.Generator().manual_seed(0)
    logp = -torch.rand(rows, width, generator=generator)
    lengths = torch.randint(width // 8, width + 1, (rows, 1), generator=generator)
    return {
        "rollout_logp": logp + 0.1 * torch.randn(rows, width, generator=generator),
        "logp": logp.requires_grad_(),
        "advantages": torch.randn(rows, 1, generator=generator).expand(rows, width).contiguous(),
        "divergence": 0.4 * torch.rand(rows, width, generator=generator) ** 6,
        "valid": torch.arange(width) < lengths,
    }


def cppo_step(rows: int, width: int) -> Step:
    """Forward and backward of CPPO's loss."""
    given = loss_tensors(rows, width)
    constants = {"delta": 0.15, "delta_b": 0.015, "w_min": 0.8, "delta_b_mode": "adaptive"}

    def step() -> None:
        objective = get_rule("cppo")(Tokens(**given), **constants).objective
        (-aggregate(objective, given["valid"], "token-mean")).backward()
        given["logp"].grad = None

    return step


def vanilla_step(rows: int, width: int) -> Step:
    """Forward and backward of verl's clipped policy loss on the same tensors.

    Raises:
        ImportError: no verl.
    """
    from verl.trainer.ppo.core_algos import get_policy_loss_fn
    from verl.workers.config import ActorConfig

    given = loss_tensors(rows, width)
    vanilla = get_policy_loss_fn("vanilla")
    config = ActorConfig(strategy="fsdp", rollout_n=1, ppo_micro_batch_size_per_gpu=1)
    mask = given["valid"].float()  # verl also takes integers, and is slower and larger with them

    def step() -> None:
        loss, _ = vanilla(
            old_log_prob=given["rollout_logp"],
            log_prob=given["logp"],
            advantages=given["advantages"],
            response_mask=mask,
            loss_agg_mode="token-mean",
            config=config,
        )
        loss.backward()
        given["logp"].grad = None

    return step


STEPS = {"cppo": cppo_step, "vanilla": vanilla_step}


def peak(name: str, rows: int, width: int) -> int:
    """KiB that one step adds to this process's resident memory at its highest."""
    STEPS[name](2, 8)()  # code that loads on first use is none of the step's memory
    step = STEPS[name](rows, width)
    Path("/proc/self/clear_refs").write_text("5")  # the high-water mark starts again
    before, _ = _resident()
    step()
    return _resident()[1] - before


def _resident() -> tuple[int, int]:
    """KiB of this process in memory, now and at the most."""
    fields = dict(re.findall(r"(VmRSS|VmHWM):\s+(\d+)", Path("/proc/self/status").read_text()))
    return int(fields["VmRSS"]), int(fields["VmHWM"])


def peak_ratio(rows: int, width: int) -> float:
    """Peak memory of CPPO's step over vanilla's.

    Each runs in a separate process, and the kernel counts: unlike a profiler or a dispatch mode it also sees the
    temporaries inside operators. A fixed mmap threshold makes the allocator return every large tensor at once, so
    that no memory kept from before hides a step's own.
    """
    kibibytes = {}
    for name in STEPS:
        command = [sys.executable, __file__, "--peak", name, str(rows), str(width)]
        environment = os.environ | {"MALLOC_MMAP_THRESHOLD_": str(2**17)}
        shown = subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE, text=True).stdout
        kibibytes[name] = int(shown.split()[-1])
        print(f"{name}: peak {kibibytes[name] / 1024:.0f} MiB", file=sys.stderr)
    return round(kibibytes["cppo"] / kibibytes["vanilla"], 3)


def loss_figures(rows: int, width: int, repeats: int) -> dict[str, float | None]:
    """CPPO's loss over verl's."""
    try:
        steps = {name: make(rows, width) for name, make in STEPS.items()}
    except ImportError as error:
        print(f"{VERL}  ({error})", file=sys.stderr)
        return dict.fromkeys(("cppo_over_vanilla_time", "cppo_over_vanilla_peak_memory"))
    ratio = time_ratios(steps, repeats)["vanilla"]
    return {"cppo_over_vanilla_time": ratio, "cppo_over_vanilla_peak_memory": peak_ratio(rows, width)}


def logits_tensors(count: int) -> tuple[Tensor, ...]:
    """logits [count, V] with gradient, tokens, mu's Top-K ids and log-probs, log mu(token)."""
    generator = torch.Generator().manual_seed(0)
    logits = 2 * torch.randn(count, VOCABULARY, generator=generator)
    tokens = torch.randint(VOCABULARY, (count,), generator=generator)
    top = logits.topk(K)
    normaliser = logits.logsumexp(-1, keepdim=True)
    sampled = (logits.gather(-1, tokens[:, None]) - normaliser)[:, 0] + 0.1
    return logits.requires_grad_(), tokens, top.indices, top.values - normaliser + 0.01, sampled


def logits_figures(count: int, repeats: int) -> dict[str, float]:
    """Log-prob and Top-K divergence over the log-prob alone, forward and backward."""
    given = logits_tensors(count)
    logits, tokens = given[:2]

    def backward(function: Callable[[], Tensor]) -> Step:
        def step() -> None:
            function().sum().backward()
            logits.grad = None

        return step

    steps = {
        "topk": backward(lambda: logp_and_divergence(*given, measure="tv").logp),
        "token_logp": backward(lambda: token_logp(logits, tokens)),
        "log_softmax": backward(
            lambda: logits.log_softmax(-1, dtype=torch.float32).gather(-1, tokens[:, None])
        ),
    }
    return {f"topk_over_{name}_time": ratio for name, ratio in time_ratios(steps, repeats).items()}


def main() -> None:
    """Measures and prints."""
    options = arguments(
        __doc__, "small tensors, three repeats", peak={"nargs": 3, "help": "one step's memory"}
    )
    torch.set_num_threads(1)
    if options.peak:
        print(peak(options.peak[0], int(options.peak[1]), int(options.peak[2])))
        return
    rows, width, count, repeats = (16, 1024, 4, 3) if options.quick else (512, 8192, 512, 15)
    figures = loss_figures(rows, width, repeats)
    figures |= logits_figures(count, repeats)
    absent = {"cppo_over_vanilla_*": "no verl"}
    print(result("maths", figures, {"*": "x"}, at_most=TARGETS, absent=absent, quick=options.quick).line())


if __name__ == "__main__":
    main()
