"""The mismatch between the sampler's and the trainer's log-probabilities, over all tokens and by thirds of a response.

With x = log rho = log pi(y_t) - log mu(y_t) of a response token and n tokens, all sampled from mu:

    k1                     1/n sum -x                        of KL(mu, pi), without bias
    k3                     1/n sum (exp x - 1 - x)           of KL(mu, pi), without bias and never negative
    chi_square             1/n sum exp(2x) - 1               of chi^2(pi, mu)
    effective_sample_size  (sum exp x)^2 / (n sum exp(2x))   a share of the tokens
    abs_log_ratio_p99      99th percentile of abs(x)         from a histogram: see `_percentile`
    abs_log_ratio_max      largest abs(x)
    token_mult_prob_error  1/n sum exp abs(x)

Before a step's first update also the mean and the 90th percentile of D_t, the divergence that the rule sees: what the
engines' noise and stale rollouts spend of a rule's thresholds before anything is trained.

k1 and k3: John Schulman, "Approximating KL Divergence" (2020). chi_square and the effective sample size: those of
verl 0.9.1 (`rollout_corr/chi2_token`, `rollout_corr/rollout_is_eff_sample_size` without truncation; its `kl` and
`k3_kl` are k1 and k3), with its bound on x in the exponentials. token_mult_prob_error: NeMo-RL
(docs/guides/grpo.md).

Token t of a response with T tokens, t from 1, is in third floor(3 (t - 1) / T): early, middle, late. A response of one
token has only an early third, a response of two tokens no late third.

The functions before `values` return sums and counts instead of means, so that minibatches, micro-batches and ranks add
up (`merge`).
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from cppo_lab.maths.tokens import LARGEST_EXPONENT, compute_dtype, is_whole, same_shape

FIELDS = ("tokens", "log_ratio", "k3", "ratio", "square", "error")
THIRDS = 3
# The histogram of abs(x): below 2^-16, four equal parts of each octave up to 16, and above.
_LOWEST, _HIGHEST, _PER_OCTAVE = -16, 4, 4
BINS = (_HIGHEST - _LOWEST) * _PER_OCTAVE + 2
_ROUNDING = 1e-9  # verl's reductions divide the counts


class MismatchSums(NamedTuple):
    """Additive statistics of batches, float64: `sums` [3, 6] in the order of FIELDS, `largest` abs(x) [3], `counts` [3,
    BINS], whose first dimension is the third of the response; `divergence` [1 + BINS]: the sum of D_t and its counts.
    """

    sums: Tensor
    largest: Tensor
    counts: Tensor
    divergence: Tensor


class LogRatios(NamedTuple):
    """The response tokens of a batch, concatenated: `x` and D_t [N] float64, and `third` [N] in 0..2."""

    x: Tensor
    divergence: Tensor
    third: Tensor


@torch.no_grad()
def log_ratios(logp: Tensor, rollout_logp: Tensor, divergence: Tensor, valid: Tensor) -> LogRatios:
    """The response tokens of a batch.

    Args:
        logp, rollout_logp, divergence: [B, T] log pi(y_t), log mu(y_t) and D_t.
        valid: [B, T] response tokens. T of a response is its number of tokens; values at padding are ignored.
    """
    same_shape(valid.shape, logp=logp, rollout_logp=rollout_logp, divergence=divergence)
    mask = valid.bool()
    count = mask.cumsum(1, dtype=torch.int32)
    length = mask.sum(1, keepdim=True, dtype=torch.int32).clamp_(min=1)
    third = (3 * (count - 1)).div_(length, rounding_mode="floor")
    row, column = mask.nonzero(as_tuple=True)
    x = logp.detach()[row, column].double() - rollout_logp[row, column].double()
    return LogRatios(x, divergence.detach()[row, column].double(), third[row, column].long())


@torch.no_grad()
def mismatch_sums(*batches: LogRatios) -> MismatchSums:
    """The sums of a batch or of several. A NaN makes the sums NaN."""
    x, divergence, third = (torch.cat(part) for part in zip(*batches, strict=True))
    size, bounded = x.abs(), x.clamp(-LARGEST_EXPONENT, LARGEST_EXPONENT)
    excess = bounded.expm1()
    ratio = excess + 1
    terms = (
        torch.ones_like(x),
        x,
        (excess - x).clamp_(min=0),  # rounding may make it slightly negative
        ratio,
        ratio * ratio,
        torch.maximum(ratio, 1 / ratio),
    )
    member = third == torch.arange(THIRDS, device=x.device)[:, None]
    largest = torch.where(member, size, 0.0).amax(1) if len(x) else x.new_zeros(THIRDS)
    counts = torch.bincount(third * BINS + _bin(size), minlength=THIRDS * BINS)
    sums = member.double() @ torch.stack(terms, 1)
    apart = torch.bincount(_bin(divergence.clamp(min=0)), minlength=BINS).double()
    return MismatchSums(
        sums, largest, counts.view(THIRDS, BINS).double(), torch.cat([divergence.sum()[None], apart])
    )


def _bin(size: Tensor) -> Tensor:
    """The bin of each abs(x); NaN goes into the last."""
    place = (size.log2() - (_LOWEST - 1 / _PER_OCTAVE)) * _PER_OCTAVE
    return place.nan_to_num_(nan=BINS).clamp_(0, BINS - 1).long()


def merge(parts: Sequence[MismatchSums]) -> MismatchSums:
    """The sums of the union of several batches."""
    sums, largest, counts, divergence = (torch.stack(part) for part in zip(*parts, strict=True))
    return MismatchSums(sums.sum(0), largest.amax(0), counts.sum(0), divergence.sum(0))


def values(batch: MismatchSums) -> list[dict[str, float]]:
    """The values above by name: of all tokens, then of each third. Empty without tokens."""
    sums, largest, counts = (part.cpu() for part in batch[:3])
    rows = [(sums.sum(0), largest.amax(0), counts.sum(0)), *zip(sums, largest, counts, strict=True)]
    tables: list[dict[str, float]] = []
    for row, most, histogram in rows:
        n, log_ratio, k3, ratio, square, error = row.tolist()
        tables.append({})
        if n:
            tables[-1] |= {
                "k1": 0.0 - log_ratio / n,  # no -0.0: a database returns it as 0.0
                "k3": k3 / n,
                "chi_square": square / n - 1,
                "effective_sample_size": ratio**2 / (n * square),
                "abs_log_ratio_p99": _percentile(histogram, float(most)),
                "abs_log_ratio_max": float(most),
                "token_mult_prob_error": error / n,
            }
    return tables


def divergence_values(batch: MismatchSums) -> tuple[float, float]:
    """The mean and the 90th percentile of D_t over the tokens, of which there is one at least."""
    divergence = batch.divergence.cpu()
    mean = float(divergence[0] / divergence[1:].sum())
    return mean, _percentile(divergence[1:], 2.0**_HIGHEST, 0.9)


def _percentile(counts: Tensor, largest: float, share: float = 0.99) -> float:
    """The smallest value that at least `share` of the tokens do not exceed, as the geometric middle of its bin.

    The error is at most 2^(1/8) - 1 = 9.1 %; below 2^-16 = 1.5e-5 the result is 0, and above 16 the maximum.
    """
    below = counts.cumsum(0)
    wanted = share * float(below[-1]) * (1 - _ROUNDING)
    place = int((below < wanted).sum())
    if place == 0:
        return 0.0
    if place == BINS - 1:
        return largest
    return min(2 ** (_LOWEST + (place - 0.5) / _PER_OCTAVE), largest)


@torch.no_grad()
def relative_logprob_error(logp: Tensor, rollout_logp: Tensor, valid: Tensor) -> tuple[Tensor, Tensor]:
    """Numerator and denominator of sum |lp_train - lp_rollout| / sum |lp_rollout| over valid tokens.

    Two sums rather than the ratio, so that minibatches add up. Arguments [B, T]; results are scalar tensors.
    """
    same_shape(logp.shape, rollout_logp=rollout_logp, valid=valid)
    mask, rollout = valid.bool(), compute_dtype(rollout_logp)
    difference, size = (compute_dtype(logp) - rollout).abs(), rollout.abs()
    if not is_whole(mask):
        difference, size = torch.where(mask, difference, 0.0), torch.where(mask, size, 0.0)
    return difference.sum(), size.sum()
