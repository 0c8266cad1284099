"""What every rule takes and returns, `Tokens` and `RuleOutput`, with the statistics of rules; and checks of arguments.

Every message names the value, what is valid, and the remedy.

Shapes: B = responses, T = padded response length; tokens are right-padded.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from cppo_lab.errors import NotFinite
from cppo_lab.rules import is_w_min


def positive(name: str, value: float, *, allow_inf: bool = False) -> None:
    """Raise ValueError unless `value` > 0 (and finite, unless `allow_inf`)."""
    if not value > 0 or (math.isinf(value) and not allow_inf):
        extra, finite = (" (math.inf switches it off)", "") if allow_inf else ("", "finite ")
        raise ValueError(f"{name}={value!r} must be a positive number{extra}: pass a {finite}value above 0")


def non_negative(name: str, value: float) -> None:
    """Raise ValueError unless `value` is finite and >= 0."""
    if not (value >= 0 and math.isfinite(value)):
        raise ValueError(f"{name}={value!r} must be a finite number >= 0: pass 0 or more")


def valid_w_min(value: float) -> None:
    """Raise ValueError unless w_min may have this value."""
    if not is_w_min(value):
        raise ValueError(f"w_min={value!r} must lie in (0, 1]: pass 1.0 to switch it off, or a smaller value")


def ratio_bounds(low: float, high: float) -> None:
    """Raise ValueError unless 0 <= low <= 1 <= high; 0 and math.inf leave a side open."""
    if not 0 <= low <= 1:
        raise ValueError(f"ratio_low={low!r} must lie in [0, 1]: pass 0 to leave the lower side open")
    if not high >= 1:
        raise ValueError(
            f"ratio_high={high!r} must be at least 1: pass math.inf to leave the upper side open"
        )


def one_of(name: str, value: str, valid: Iterable[str]) -> None:
    """Raise ValueError unless `value` is in `valid`."""
    choices = list(valid)
    if value not in choices:
        raise ValueError(f"{name}={value!r} is unknown: choose one of {choices}")


def same_shape(shape: tuple[int, ...], **tensors: Tensor) -> None:
    """Raise ValueError unless every tensor has exactly `shape` (no silent broadcasting)."""
    for name, tensor in tensors.items():
        if tensor.shape != shape:
            raise ValueError(
                f"{name} has shape {list(tensor.shape)}, expected {list(shape)}: "
                "nothing is broadcast, use [:, None].expand for a value per response"
            )


def token_mask(valid: Tensor) -> Tensor:
    """`valid` [B, T] (bool or 0/1) as bool, checked to be 0/1 and right-padded.

    Raises:
        ValueError: not two-dimensional, other values than 0 and 1, or a gap before a valid token.
    """
    if valid.ndim != 2:
        raise ValueError(f"valid has shape {list(valid.shape)}, expected [B, T]: pass one 0/1 flag per token")
    mask = valid.bool()
    if valid.dtype != torch.bool and not torch.equal(mask.to(valid.dtype), valid):
        raise ValueError("valid holds values other than 0 and 1: pass a bool or 0/1 tensor")
    if is_whole(mask):
        return mask
    gap = mask[:, 1:] > mask[:, :-1]
    if gap.numel() and bool(gap.view(torch.uint8).amax()):  # on CPU 40 times faster than any()
        raise ValueError("valid has a valid token after a padded one: right-pad the responses")
    return mask


def is_whole(mask: Tensor) -> bool:
    """Whether `mask` [B, T] bool has no padding."""
    return mask.numel() == 0 or bool(mask.view(torch.uint8).amin())


def finite(mask: Tensor, **tensors: Tensor) -> None:
    """Raise ValueError if a tensor is NaN or infinite where `mask` holds."""
    for name, tensor in tensors.items():
        bad = mask & ~torch.isfinite(tensor)
        if bool(bad.any()):
            where = bad.nonzero()[0].tolist()
            raise ValueError(
                f"{name} is NaN or infinite at {int(bad.sum())} valid places, first at {where} "
                f"({tensor[tuple(where)].item()}): values of valid tokens must be finite"
            )


def row_counts(mask: Tensor) -> Tensor:
    """How many are True in each row, [B, T] bool -> [B] int32."""
    # On CPU the default int64 is 40 times slower.
    return mask.sum(1, dtype=torch.int32)


def row_means(values: Tensor, valid: Tensor) -> Tensor:
    """The mean over each response's tokens, [B, T] -> [B, 1]; 0 for an empty response. `values` are 0 at padding."""
    return values.sum(1, keepdim=True) / row_counts(valid)[:, None].clamp_min(1)


def compute_dtype(tensor: Tensor) -> Tensor:
    """`tensor` itself in float32 or float64; anything narrower (bfloat16, float16, integers) as float32."""
    return tensor if tensor.dtype in (torch.float32, torch.float64) else tensor.float()


# What every rule takes and returns: tensors [B, T], whose values at padding are ignored.


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


@dataclass(frozen=True, eq=False)
class Tokens:
    """The sampled tokens of a batch, the only argument of a rule beside its constants. Checked here, once.

    logp: [B, T] log pi(y_t), a rule's only field with a gradient; float64, or else float32 from here on.
    rollout_logp: [B, T] the log-probability in rho's denominator: log mu(y_t), of the policy that sampled the tokens,
    or log pi_old(y_t) in decoupled runs.
    advantages: [B, T].
    valid: [B, T] bool or 0/1: the response tokens; right-padded.
    divergence: [B, T] D_t >= 0 (maths/divergence.py), or None.
    permutation: [B, T] integers, an order of each response's own positions (`weights.own_order`), or None.
    topk_ids, topk_logp: [B, T, K] mu's most likely tokens and log mu of them, as they are, or None.
    topk_pi_logp: [B, T, K] log pi of these, as they are, or None; differentiable if the loss is centred.
    drift: [B, T] the first-order change of D_t if log pi(y_t) is raised (`divergence.drift`), or None.
    rollout_entropy: [B, T] the entropy of mu, or None.
    origin_logp: [B, T] log-probability of y_t under the policy from which D_t measures, or None: rollout_logp.

    From these: log_ratio, log rho_t = log pi(y_t) - log mu(y_t), differentiable in logp; active, the response tokens
    with A != 0; overflows: whether rho of some token, kept or not, overflows its dtype.

    Every tensor but the permutation and the Top-K is 0 (False) at padding, so that padding cannot overflow. Without
    padding they may be the caller's: a rule must not write to them.

    Raises:
        ValueError: shapes that differ from `valid`'s [B, T], padding that is not on the right, values of
            valid tokens that are NaN or infinite, or a negative divergence.
    """

    logp: Tensor
    rollout_logp: Tensor
    advantages: Tensor
    valid: Tensor
    divergence: Tensor | None = None
    permutation: Tensor | None = None
    topk_ids: Tensor | None = None
    topk_logp: Tensor | None = None
    topk_pi_logp: Tensor | None = None
    drift: Tensor | None = None
    rollout_entropy: Tensor | None = None
    origin_logp: Tensor | None = None
    log_ratio: Tensor = field(init=False)
    active: Tensor = field(init=False)
    overflows: bool = field(init=False)

    def __post_init__(self) -> None:
        mask = token_mask(self.valid)
        names = (
            "logp",
            "rollout_logp",
            "advantages",
            "divergence",
            "drift",
            "rollout_entropy",
            "origin_logp",
        )
        given = {name: value for name in names if (value := getattr(self, name)) is not None}
        same_shape(mask.shape, **given)
        logp = compute_dtype(self.logp)
        cleared = {name: value.detach().to(logp.dtype) for name, value in given.items() if name != "logp"}
        if not is_whole(mask):
            logp = torch.where(mask, logp, 0.0)
            cleared = {name: torch.where(mask, value, 0.0) for name, value in cleared.items()}
        log_ratio = logp - cleared["rollout_logp"]
        # A short pass over each tensor: a NaN or an infinity always makes the sum non-finite. Finite values may
        # overflow, too: `finite` then decides.
        detached = log_ratio.detach()
        largest = detached.amax() if detached.numel() else detached.sum()
        covered = ("rollout_logp", "divergence")  # by log_ratio, and below
        suspect = [
            detached.sum(),
            largest.exp(),
            *(part.sum() for name, part in cleared.items() if name not in covered),
        ]
        divergence, overflows = cleared.get("divergence"), False
        if divergence is not None and divergence.numel():
            suspect.append(torch.where(divergence.amin() < 0, torch.nan, divergence.amax()))
        if not bool(torch.stack(suspect).isfinite().all()):
            finite(mask, **given)
            finite(mask, log_ratio=detached)
            if divergence is not None and bool((divergence < 0).any()):
                raise ValueError(
                    f"divergence has negative values, the least {float(divergence.min())}: TV and KL are >= 0, clamp "
                    "at 0"
                )
            overflows = not bool(largest.exp().isfinite())
        values: dict[str, Any] = {"logp": logp, "valid": mask, "log_ratio": log_ratio, "overflows": overflows}
        for name, value in (cleared | values | {"active": cleared["advantages"] != 0}).items():
            object.__setattr__(self, name, value)

    @classmethod
    def packed(cls, cu_lengths: Tensor, **values: Tensor) -> "Tokens":
        """From responses without padding: [N] in place of [B, T], N = T_1 + ... + T_B, differentiable.

        `cu_lengths` [B + 1] holds 0, T_1, T_1 + T_2, ..., N, as flash attention takes it. The result has B times the
        longest length places; `output.keep[tokens.valid]` packs a rule's output again.

        Raises:
            ValueError: `cu_lengths` that do not fit, or as the class does.
        """
        if cu_lengths.ndim != 1 or not len(cu_lengths) or cu_lengths.is_floating_point():
            raise ValueError(
                f"cu_lengths has shape {list(cu_lengths.shape)} and dtype {cu_lengths.dtype}, expected integers "
                "[B + 1]: pass 0 and the running sum of the lengths"
            )
        lengths = cu_lengths.diff()
        first, last, least = (
            int(cu_lengths[0]),
            int(cu_lengths[-1]),
            int(lengths.amin()) if len(lengths) else 0,
        )
        if first != 0 or least < 0:
            raise ValueError(
                f"cu_lengths runs from {first} to {last}, least step {least}; expected steps >= 0 from 0 to N: pass 0 "
                "and the running sum of the lengths"
            )
        for name, value in values.items():
            same_shape((last, *value.shape[1:]), **{name: value})
        width = int(lengths.amax()) if len(lengths) else 0
        valid = torch.arange(width, device=cu_lengths.device) < lengths[:, None]
        padded = {
            name: value.new_zeros((*valid.shape, *value.shape[1:])).index_put(
                valid.nonzero(as_tuple=True), value
            )
            for name, value in values.items()
        }
        return cls(**padded, valid=valid)

    @property
    def moves_away(self) -> Tensor:
        """[B, T] bool: A (rho - 1) > 0, i.e. the update would move pi further from the policy from which D_t
        measures, which is rho's denominator here. False where A = 0.
        """
        log_ratio = self.log_ratio if self.origin_logp is None else self.logp - self.origin_logp
        return self.advantages * log_ratio.detach() > 0

    @property
    def required_divergence(self) -> Tensor:
        """The divergence; raises ValueError if it is None."""
        if self.divergence is None:
            raise ValueError("divergence=None: the rule needs D_t [B, T], see maths/divergence.py")
        return self.divergence


def importance_objective(tokens: Tokens, keep: Tensor, log_ratio: Tensor | None = None) -> Tensor:
    """keep * rho * A, [B, T]; gradient in log pi(y_t): keep * rho * A. `log_ratio`: in place of each token's own.

    Raises:
        NotFinite: rho of a kept token overflows its dtype, which would make the loss infinite.
    """
    log_ratio = tokens.log_ratio if log_ratio is None else log_ratio
    objective: Tensor = _ImportanceObjective.apply(log_ratio, keep, tokens.advantages)
    if tokens.overflows:
        refuse_overflow(objective, log_ratio)
    return objective


def refuse_overflow(objective: Tensor, log_ratio: Tensor, what: str = "probability ratio") -> None:
    """Raise NotFinite at the first token whose objective is NaN or infinite since `what` overflows; both [B, T]."""
    if bool((bad := ~objective.detach().isfinite()).any()):
        row, column = bad.nonzero()[0].tolist()
        raise NotFinite(
            f"the {what} of kept token [{row}, {column}] overflows (log_ratio "
            f"{log_ratio[row, column].item():g}): see logp and rollout_logp there, or mask such tokens"
        )


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


def common_stats(tokens: Tokens, keep: Tensor) -> dict[str, Tensor]:
    """Sums that every rule reports: tokens, responses, masked, ratio and, where given, divergence."""
    counts = keep.dtype
    valid = tokens.valid.count_nonzero()
    stats = {
        "tokens": valid.to(counts),
        "responses": row_counts(tokens.valid).count_nonzero().to(counts),
        "active_tokens": tokens.active.count_nonzero().to(counts),
        "masked": torch.where(tokens.active, keep, 1.0).neg_().add_(1).sum(),
        # rho - 1 is 0 at padding and loses no digits near rho = 1.
        "ratio": tokens.log_ratio.detach().clamp_max(LARGEST_EXPONENT).expm1_().sum() + valid,
    }
    if tokens.divergence is not None:
        stats["divergence"] = tokens.divergence.sum()
        stats["divergence_max"] = (
            tokens.divergence.amax() if tokens.divergence.numel() else stats["divergence"]
        )
    return stats


def rule_output(
    tokens: Tokens,
    keep: Tensor,
    tests: Mapping[str, Tensor],
    objective: Tensor | None = None,
    *,
    clipped: Tensor | None = None,
) -> RuleOutput:
    """A rule's output for `keep` [B, T] of `tests`, bool or a weight; the objective is keep * rho * A unless given.

    `clipped` [B, T] bool: the tokens whose bound entered the objective, for the statistics.
    """
    keep = weight_of(tokens, keep)
    stats = common_stats(tokens, keep)
    if clipped is not None:
        stats["clipped"] = clipped.count_nonzero().to(keep.dtype)
    return RuleOutput(
        importance_objective(tokens, keep) if objective is None else objective, keep, stats, tests
    )


def weight_of(tokens: Tokens, keep: Tensor) -> Tensor:
    """A bool mask as a 0/1 weight that is 0 at padding; a weight as it is."""
    return (keep & tokens.valid).to(tokens.logp.dtype) if keep.dtype == torch.bool else keep


# The statistics that every rule reports, under the same names in every trainer.
#
# Rules return `stats`, scalar sums over a minibatch. `merge` adds up minibatches and `summarise` divides once at the
# end, so that minibatches are weighted by their numbers of tokens.
#
#     masked_fraction        masked tokens / tokens with A != 0 (soft weights: removed weight 1 - g, no count)
#     prefix_budget_share    of the masked: the token test passes, the prefix test fails
#     token_threshold_share  of the masked: w_t D_t > delta
#     divergence_mean, _max  D_t over response tokens
#     delta_b_mean           effective prefix-budget rate over non-empty responses
#     ratio_mean             rho_t over response tokens, each at most e^20
#     importance_weight_mean pi_old / mu over response tokens as it weighs them, in decoupled runs
#     rejected_fraction      response tokens rejected for their pi_old / mu, in decoupled runs
#     clip_fraction          tokens whose clipped ratio entered the objective / response tokens

# summary name -> (numerator, denominator) among the sums
SHARES: dict[str, tuple[str, str]] = {
    "masked_fraction": ("masked", "active_tokens"),
    "prefix_budget_share": ("masked_by_prefix", "masked"),
    "token_threshold_share": ("masked_by_token", "masked"),
    "divergence_mean": ("divergence", "tokens"),
    "delta_b_mean": ("delta_b", "responses"),
    "ratio_mean": ("ratio", "tokens"),
    "clip_fraction": ("clipped", "tokens"),
    "importance_weight_mean": ("importance_weight", "tokens"),
    "rejected_fraction": ("rejected", "tokens"),
}
MAXIMA = ("divergence_max",)


def merge(stats_list: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """The statistics of the union of several minibatches: sums add up, `*_max` take the maximum.

    Raises:
        ValueError: nothing to merge, or minibatches with different statistics (different rules).
    """
    if not stats_list:
        raise ValueError("stats_list is empty: merge at least one minibatch's statistics")
    names = set(stats_list[0])
    for position, stats in enumerate(stats_list):
        if set(stats) != names:
            raise ValueError(
                f"stats_list[{position}] has {sorted(stats)}, stats_list[0] has {sorted(names)}: "
                "merge statistics of one rule only"
            )
    merged = {}
    for name in stats_list[0]:
        values = torch.stack([stats[name] for stats in stats_list])
        merged[name] = values.amax(0) if name.endswith("_max") else values.sum(0)
    return merged


def summarise(stats: Mapping[str, Tensor]) -> dict[str, float]:
    """Means and shares from sums; only those the rule reports. A share with an empty denominator is 0.0.

    Raises:
        ValueError: a share's numerator without its denominator.
    """
    summary = {}
    for name, (numerator, denominator) in SHARES.items():
        if numerator in stats:
            if denominator not in stats:
                raise ValueError(
                    f"the rule's statistics have {numerator!r} without {denominator!r}, of which it is a share: return "
                    "both, or neither"
                )
            below = float(stats[denominator])
            summary[name] = float(stats[numerator]) / below if below > 0 else 0.0
    return summary | {name: float(stats[name]) for name in MAXIMA if name in stats}
