"""The statistics that every rule reports, under the same names in every trainer.

Rules return `stats`, scalar sums over one minibatch. `merge` adds up minibatches and `summarise` divides once at the
end, so that minibatches are weighted by their numbers of tokens.

    masked_fraction        masked tokens / tokens with A != 0 (soft weights: removed weight 1 - g, no count)
    prefix_budget_share    of the masked: the token test passes, the prefix test fails
    token_threshold_share  of the masked: w_t D_t > delta
    divergence_mean, _max  D_t over response tokens
    delta_b_mean           effective prefix-budget rate over non-empty responses
    ratio_mean             rho_t over response tokens, each at most e^20
    importance_weight_mean pi_old / mu over response tokens as it weighs them, in decoupled runs
    rejected_fraction      response tokens rejected for their pi_old / mu, in decoupled runs
    clip_fraction          tokens whose clipped ratio entered the objective / response tokens
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from cppo_lab.maths.tokens import compute_dtype, same_shape

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
    """Means and shares from sums; only those the rule reports. A share with an empty denominator is 0.0."""
    summary = {}
    for name, (numerator, denominator) in SHARES.items():
        if numerator in stats:
            below = float(stats[denominator])
            summary[name] = float(stats[numerator]) / below if below > 0 else 0.0
    return summary | {name: float(stats[name]) for name in MAXIMA if name in stats}


@torch.no_grad()
def relative_logprob_error(logp: Tensor, rollout_logp: Tensor, valid: Tensor) -> tuple[Tensor, Tensor]:
    """Numerator and denominator of sum |lp_train - lp_rollout| / sum |lp_rollout| over valid tokens.

    Two sums rather than the ratio, so that minibatches add up. Arguments [B, T]; results are scalar tensors.
    """
    same_shape(logp.shape, rollout_logp=rollout_logp, valid=valid)
    mask = valid.bool()
    train, rollout = compute_dtype(logp), compute_dtype(rollout_logp)
    return torch.where(mask, (train - rollout).abs(), 0.0).sum(), torch.where(mask, rollout.abs(), 0.0).sum()
