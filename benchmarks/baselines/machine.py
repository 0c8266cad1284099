"""The machine's peak and the share that a training step uses: matrix products only."""

import time

import torch

from cppo_lab.cores.mini.trainer import GradedRollout, Trainer


def gemm_flops_per_second() -> float:
    """The float32 rate of torch.mm of [4096, 1024] by [1024, 1024]: best of several."""
    a, b = torch.randn(4096, 1024), torch.randn(1024, 1024)
    seconds = []
    for _ in range(8):
        started = time.perf_counter()
        torch.mm(a, b)
        seconds.append(time.perf_counter() - started)
    return 2 * 4096 * 1024 * 1024 / min(seconds)


def useful_flops(trainer: Trainer, batch: GradedRollout) -> float:
    """Matrix products, forward and backward, for the responses of `batch` whose group has a signal.

    A prompt counts once per group, not once per response: the responses of a group share it, and our trainer reads
    it once. 6 per weight of the linear layers and real position that is read; 6 per output weight and response token;
    12 x attention width per pair of positions that causal attention relates. Padding does not count.
    """
    arch, rollout = trainer.spec.model.architecture, batch.rollout
    attention_width = arch.heads * arch.head_dim
    projections = arch.width * (2 * attention_width + 2 * arch.kv_heads * arch.head_dim + 3 * arch.mlp_width)
    prompts = (rollout.prompts != trainer.tokenizer.pad).sum(1).double()  # [G] real tokens
    group, tokens = rollout.group[batch.keep], rollout.lengths[batch.keep].double()
    shared, own = prompts[group.unique()], tokens - 1  # a response's last token is never read
    positions = shared.sum() + own.sum()
    pairs = (shared * (shared + 1) / 2).sum() + (own * prompts[group] + own * (own + 1) / 2).sum()
    body = arch.layers * (6 * projections * positions + 12 * attention_width * pairs)
    return float(body + 6 * arch.width * trainer.tokenizer.vocabulary * tokens.sum())
