"""What functions of the maths refuse, and what they say. Constants of rules: test_rules.py; tokens: test_tokens.py."""

import math
from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor

from cppo_lab.maths import bounds
from cppo_lab.maths import divergence as divergences
from cppo_lab.maths.rules import aggregate, group_advantages
from cppo_lab.maths.tokens import merge, summarise
from cppo_lab.maths.weights import effective_delta_b, position_weights, prefix_excess

ONES, THREE = torch.ones(2, 3), torch.arange(3)
LOGP = torch.full((2, 3), 1 / 3).log()
IDS = torch.zeros(2, 1, dtype=torch.int64)
MU = divergences.Recorded(IDS[:, 0], LOGP[:, 0], IDS, LOGP[:, :1])


def topk(pi: Tensor = LOGP, convention: str = "union", **changes: Tensor) -> Callable[[], object]:
    return partial(divergences.topk, MU._replace(**changes), pi, measure="tv", convention=convention)


REFUSED: list[tuple[Callable[[], object], str]] = [
    (lambda: aggregate(ONES, ONES, "mean"), r"mode='mean' is unknown: choose one of \['token-mean'"),
    (
        lambda: aggregate(ONES, ONES, "token-mean", horizon=3),
        r"horizon=3 belongs to seq-mean-token-sum-norm, not",
    ),
    (lambda: aggregate(ONES, ONES, "seq-mean-token-sum-norm", horizon=0), r"horizon=0 must be a positive"),
    (lambda: aggregate(ONES, ONES, "token-mean", denominator=0), r"denominator=0.0 must be a positive"),
    (lambda: aggregate(ONES[0], ONES, "token-mean"), r"values has shape \[3\], expected \[2, 3\]"),
    (lambda: group_advantages(ONES, THREE), r"rewards has shape \[2, 3\], expected \[N\]"),
    (lambda: group_advantages(ONES[0], THREE[:2]), r"groups has shape \[2\], expected \[3\]"),
    (lambda: group_advantages(ONES[0], ONES[0]), r"groups has dtype torch.float32, expected integers"),
    (lambda: group_advantages(ONES[0] * math.nan, THREE), r"rewards is NaN or infinite at 3"),
    (lambda: merge([]), r"stats_list is empty"),
    (lambda: summarise({"masked": ONES[0, 0]}), r"have 'masked' without 'active_tokens', of which it"),
    (
        lambda: merge([{"tokens": ONES[0, 0]}, {"masked": ONES[0, 0]}]),
        r"stats_list\[1\] has \['masked'\], stats_list\[0\] has \['tokens'\]",
    ),
    (lambda: effective_delta_b(ONES, ONES, 0.1, "adaptive", cap=0.5), r"cap=0.5 must be at least 1"),
    (
        lambda: effective_delta_b(ONES, ONES, 0.1, "adaptive", quantile=1.1),
        r"quantile=1.1 must lie in \[0, 1\]",
    ),
    (lambda: effective_delta_b(ONES, ONES, 0.1, "adaptive", scale=-1.0), "scale=-1.0"),
    (lambda: effective_delta_b(ONES[:1], ONES, 0.1), r"divergence has shape \[1, 3\]"),
    (lambda: prefix_excess(ONES, ONES, ONES, torch.ones(3)), r"delta_b has shape \[3\], expected \[2\]"),
    (lambda: position_weights(ONES, 0.6, permutation=torch.zeros(2, 3).long()), r"permutation of response 0"),
    (lambda: position_weights(ONES, 0.6, permutation=torch.arange(3)), r"permutation has shape \[3\]"),
    (lambda: divergences.exact(LOGP, LOGP, "js"), r"measure='js' is unknown: choose one of \['tv', 'kl'\]"),
    (lambda: divergences.exact(LOGP, LOGP[:, :2]), r"pi_logp has shape \[2, 2\], expected \[2, 3\]"),
    (lambda: divergences.binary(LOGP, LOGP[0], "tv"), r"rollout_logp has shape \[3\]"),
    (lambda: divergences.k2(LOGP, LOGP[0]), r"rollout_logp has shape \[3\]"),
    (
        topk(convention="replace"),
        r"convention='replace' is unknown: choose one of \['union', 'replace_kth'\]",
    ),
    (topk(topk_logp=LOGP), r"topk_logp has shape \[2, 3\], expected \[2, 1\]"),
    (topk(tokens=MU.tokens[:1]), r"tokens has shape \[1\], expected \[2\]"),
    (topk(LOGP[:1]), r"pi_logits_or_logp has shape \[1, 3\], expected \[2, 3\]"),
    (
        topk(convention="replace_kth", topk_ids=IDS[:, :0], topk_logp=LOGP[:, :0]),
        r"holds no token \(K = 0\), and convention='replace_kth'",
    ),
    (lambda: bounds.dppo_constant(True, 0.1), r"horizon=True must be an integer"),
    (lambda: bounds.dppo_constant(4, 0.0), r"delta=0.0 must lie in \(0, 1\]: a total variation never"),
    (lambda: bounds.cppo_constant(4, 0.1, math.inf), r"largest=inf must lie in \(0, inf\)"),
    (lambda: bounds.weighted_constant(4, 0.1, 0.1, 0), r"w_min=0 must lie in \(0, 1\]: w_min=1 means no pos"),
    (lambda: bounds.slack_term(4, 0.1, -1), r"eta=-1 must be a finite number >= 0: pass 0 for no slack"),
    (lambda: bounds.terminal_ratio(0), r"horizon=0 must"),
    (lambda: bounds.product_bound(4, 0.1, 1.2), r"largest=1.2 must lie in \(0, 1\]"),
]


@pytest.mark.parametrize("call, message", REFUSED)
def test_call_is_refused(call: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()
