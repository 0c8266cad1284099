"""Log-probabilities and entropy from logits whose vocabulary is sharded over the ranks of a process group.

Rank r of p holds the logits of ids r V/p ... (r + 1) V/p - 1, as in Megatron's output layer. With m the largest
logit and s = sum_v exp(x_v - m) over all ranks:

    log pi(v) = x_v - m - log s,      H(pi) = log s - sum_v exp(x_v - m) (x_v - m) / s

Two collectives whatever the number of rows: the maximum, and one sum of s, of the entropy's numerator and of the
wanted logits, each of which exactly one rank holds.
"""

import torch
import torch.distributed as dist
from torch import Tensor

_ELEMENTS = 2**24  # of a chunk's float32 copy


@torch.no_grad()
def logp_and_entropy(logits: Tensor, ids: Tensor, group: dist.ProcessGroup) -> tuple[Tensor, Tensor]:
    """Log pi at `ids` [N, M] and the entropy of pi [N], in float32, the same on every rank.

    Args:
        logits: [N, V / p], this rank's part, already divided by the temperature.
        ids: [N, M] ids of the whole vocabulary; a negative id gives a meaningless finite value.
        group: the p ranks that share the vocabulary, in the order of their parts.
    """
    width = logits.shape[1]
    highest = logits.amax(1).float()
    dist.all_reduce(highest, op=dist.ReduceOp.MAX, group=group)
    local = ids.long() - dist.get_rank(group) * width
    own = (local >= 0) & (local < width)
    local = local.clamp(0, width - 1)
    # Columns: s, the entropy's numerator, the wanted logits.
    sums = logits.new_zeros(len(logits), 2 + ids.shape[1], dtype=torch.float32)
    step = max(1, _ELEMENTS // width)
    for start in range(0, len(logits), step):
        rows = slice(start, start + step)
        shifted = logits[rows].float() - highest[rows, None]
        mass = shifted.exp()
        sums[rows, 0] = mass.sum(1)
        sums[rows, 1] = torch.where(mass > 0, mass * shifted, 0.0).sum(1)  # 0 log 0 = 0
        sums[rows, 2:] = torch.where(own[rows], shifted.gather(1, local[rows]), 0.0)
    dist.all_reduce(sums, group=group)
    log_sum = sums[:, 0].log()
    return sums[:, 2:] - log_sum[:, None], log_sum - sums[:, 1] / sums[:, 0]
