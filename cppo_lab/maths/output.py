"""What every rule takes and returns: the checked token batch and RuleOutput.

Shapes: B = responses, T = padded length; tensors are [B, T], right-padded. Values at padding are ignored.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from cppo_lab.maths.checks import compute_dtype, finite, row_counts, same_shape, token_mask

# Statistics clamp log rho here (verl's SAFETY_BOUND), so that the means of a diverged policy stay finite.
LARGEST_EXPONENT = 20.0


class RuleOutput(NamedTuple):
    """Result of a rule.

    objective: [B, T] per-token objective to maximise; differentiable in logp; 0 at padding.
    keep: [B, T] mask or soft weight in [0, 1]; no gradient; 0 at padding.
    stats: scalar sums (names ending in `_max`: maxima), see `metrics`.
    tests: [B, T] bool by name, in the order in which they count: the tokens that each of the rule's tests dropped,
    clipped or down-weighted; values at padding are ignored. Tests are optional.
    """

    objective: Tensor
    keep: Tensor
    stats: dict[str, Tensor]
    tests: Mapping[str, Tensor] = MappingProxyType({})


class Tokens(NamedTuple):
    """Checked arguments of a rule; every tensor is 0 (False) at padding, so that padding cannot overflow.

    logp, log_ratio: [B, T] log pi(y_t) and log rho_t = log pi(y_t) - log mu(y_t), differentiable in logp.
    advantages, divergence: [B, T] without gradient; divergence is None if the caller passed none.
    valid, active: [B, T] bool: response tokens, and those of them with A != 0.
    overflows: whether rho of some token, kept or not, overflows its dtype.
    """

    logp: Tensor
    log_ratio: Tensor
    advantages: Tensor
    divergence: Tensor | None
    valid: Tensor
    active: Tensor
    overflows: bool

    @property
    def moves_away(self) -> Tensor:
        """[B, T] bool: A (rho - 1) > 0, i.e. the update would move pi further from mu. False where A = 0."""
        return self.advantages * self.log_ratio.detach() > 0

    def required_divergence(self, rule: str) -> Tensor:
        """The divergence; raises ValueError if it is None."""
        if self.divergence is None:
            raise ValueError(f"divergence=None: rule {rule!r} needs D_t [B, T], see maths/divergence.py")
        return self.divergence


def tokens(
    logp: Tensor, rollout_logp: Tensor, advantages: Tensor, valid: Tensor, divergence: Tensor | None = None
) -> Tokens:
    """Check a rule's arguments and zero the padding.

    Raises:
        ValueError: shapes that differ from `valid`'s [B, T], padding that is not on the right, values of
            valid tokens that are NaN or infinite, or a negative divergence.
    """
    mask = token_mask(valid)
    given = {"logp": logp, "rollout_logp": rollout_logp, "advantages": advantages}
    if divergence is not None:
        given["divergence"] = divergence
    same_shape(mask.shape, **given)
    current = torch.where(mask, compute_dtype(logp), 0.0)
    advantage = torch.where(mask, advantages.detach().to(current.dtype), 0.0)
    cleared = None if divergence is None else torch.where(mask, divergence.detach().to(current.dtype), 0.0)
    log_ratio = torch.where(mask, current - rollout_logp.detach().to(current.dtype), 0.0)
    overflows = _check_values(mask, log_ratio.detach(), advantage, cleared, given)
    return Tokens(current, log_ratio, advantage, cleared, mask, advantage != 0, overflows)


def _check_values(
    mask: Tensor, log_ratio: Tensor, advantage: Tensor, cleared: Tensor | None, given: dict[str, Tensor]
) -> bool:
    """Raise ValueError for NaN, infinite or negative values; valid tensors take one short pass each.

    Returns whether the exponential of some log-ratio overflows.
    """
    # A NaN or an infinity always makes the sum non-finite. Finite values may overflow, too: `finite` then decides.
    largest = log_ratio.amax() if log_ratio.numel() else log_ratio.sum()
    suspect = [log_ratio.sum(), advantage.sum(), largest.exp()]
    if cleared is not None and cleared.numel():
        suspect.append(torch.where(cleared.amin() < 0, torch.nan, cleared.amax()))
    if bool(torch.stack(suspect).isfinite().all()):
        return False
    finite(mask, **given)
    finite(mask, log_ratio=log_ratio)
    if cleared is not None and bool((cleared < 0).any()):
        least = float(cleared.min())
        raise ValueError(f"divergence has negative values, the least {least}: TV and KL are >= 0, clamp at 0")
    return not bool(largest.exp().isfinite())


def importance_objective(batch: Tokens, keep: Tensor) -> Tensor:
    """keep * rho * A, [B, T]; gradient in log pi(y_t): keep * rho * A.

    Raises:
        ValueError: rho of a kept token overflows its dtype, which would make the loss infinite.
    """
    objective: Tensor = _ImportanceObjective.apply(batch.log_ratio, keep, batch.advantages)
    if batch.overflows and bool((bad := ~objective.detach().isfinite()).any()):
        row, column = bad.nonzero()[0].tolist()
        raise ValueError(
            f"the probability ratio of kept token [{row}, {column}] overflows (log_ratio "
            f"{batch.log_ratio[row, column].item():g}): see logp and rollout_logp there, or mask such tokens"
        )
    return objective


class _ImportanceObjective(torch.autograd.Function):
    """keep * exp(log_ratio) * A is its own derivative in log_ratio, so the graph stores only the value."""

    @staticmethod
    def forward(ctx: Any, log_ratio: Tensor, keep: Tensor, advantages: Tensor) -> Tensor:
        # rho of a dropped token may overflow: inf * 0 would be NaN, in the value and in the gradient.
        value = torch.where(keep > 0, log_ratio, 0.0).exp_().mul_(keep).mul_(advantages)
        ctx.save_for_backward(value)
        return value

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        (value,) = ctx.saved_tensors
        return grad * value, None, None


def common_stats(batch: Tokens, keep: Tensor) -> dict[str, Tensor]:
    """Sums that every rule reports: tokens, responses, masked, ratio and, where given, divergence."""
    counts = keep.dtype
    lengths = row_counts(batch.valid)
    stats = {
        "tokens": lengths.sum().to(counts),
        "responses": (lengths > 0).sum().to(counts),
        "active_tokens": row_counts(batch.active).sum().to(counts),
        "masked": torch.where(batch.active, keep, 1.0).neg_().add_(1).sum(),
        # rho - 1 is 0 at padding and loses no digits near rho = 1.
        "ratio": batch.log_ratio.detach().clamp_max(LARGEST_EXPONENT).expm1_().sum() + lengths.sum(),
    }
    if batch.divergence is not None:
        stats["divergence"] = batch.divergence.sum()
        stats["divergence_max"] = batch.divergence.amax() if batch.divergence.numel() else stats["divergence"]
    return stats
