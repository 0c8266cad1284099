"""Bad arguments: each is refused with a message that names the value and what to do."""

import math
import re

import pytest
import torch

from cppo_lab.errors import NotFinite
from cppo_lab.maths import divergence as divergences
from cppo_lab.maths.aggregation import aggregate, group_advantages
from cppo_lab.maths.masks import sapo
from cppo_lab.maths.metrics import merge
from cppo_lab.maths.rules import RULES, get_rule
from cppo_lab.maths.weights import effective_delta_b, position_weights, prefix_excess, shuffled_weights
from cppo_lab.rules import PERMUTATION
from cppo_lab.rules import RULES as RECORDS
from tests.maths.maths_batches import CONSTANTS, WITHOUT_DIVERGENCE, apply, random_batch
from tests.maths.maths_cases import check_all

NAN, INF = math.nan, math.inf

CONSTANT_ERRORS = [
    ("cppo", {"w_min": 0.0}, r"w_min=0.0 must lie in \(0, 1\]"),
    ("cppo", {"w_min": 1.5}, r"w_min=1.5 must lie in \(0, 1\]"),
    ("cppo", {"w_min": NAN}, r"w_min=nan must lie in \(0, 1\]"),
    ("cppo", {"delta": 0.0}, r"delta=0.0 must be a positive number"),
    ("cppo", {"delta": -0.1}, r"delta=-0.1 must be a positive number"),
    ("cppo", {"delta": NAN}, r"delta=nan must be a positive number"),
    ("cppo", {"delta_b": 0.0}, r"delta_b=0.0 must be a positive number \(math.inf switches it off\)"),
    ("cppo", {"delta_b": NAN}, r"delta_b=nan must be"),
    ("cppo", {"delta_b_mode": "auto"}, r"mode='auto' is unknown: choose one of \['fixed', 'adaptive'\]"),
    ("cppo", {"span": 3}, r"span=3 is shorter than T=12"),
    ("cppo_no_position_weight", {"delta_b": -1.0}, r"delta_b=-1.0 must be a positive number"),
    ("cppo_no_prefix_budget", {"delta": INF}, r"delta=inf must be a positive number"),
    (
        "cppo_soft",
        {"gate": "sapo"},
        r"gate='sapo' is unknown: choose one of \['inverse', 'sapo_admissible'\]",
    ),
    ("cppo_soft", {"gate": sapo}, r"gate='sapo' is not admissible: g\(1.00"),
    ("cppo_soft", {"gate": lambda x: -1 / (1 + x)}, r"not admissible: g\(0\) = -1"),
    ("cppo_soft", {"gate": lambda x: x * NAN}, r"not admissible: g\(0\) = nan"),
    ("dppo", {"delta": 0}, r"delta=0 must be a positive number"),
    ("grpo", {"clip_low": 1.1}, r"clip_low=1.1 must lie in \[0, 1\]"),
    ("grpo", {"clip_high": -0.1}, r"clip_high=-0.1 must be a finite number >= 0"),
    ("grpo", {"dual_clip": 1.0}, r"dual_clip=1.0 must be above 1"),
    ("ppo", {"clip_low": NAN}, r"clip_low=nan must lie in \[0, 1\]"),
    ("cispo", {"clip_high": INF}, r"clip_high=inf must be a finite number >= 0"),
    ("cispo", {"clip_low": -0.5}, r"clip_low=-0.5 must lie in \[0, 1\], or be None"),
    ("minpro", {"clip_low": NAN}, r"clip_low=nan must lie in"),
    ("dr_grpo", {"clip_low": 1.1}, r"clip_low=1.1 must lie in \[0, 1\]"),
    ("gspo", {"clip_low": 1.1}, r"clip_low=1.1 must lie in \[0, 1\]"),
    ("gspo", {"clip_high": NAN}, r"clip_high=nan must be a finite number >= 0"),
    ("geo_mean", {"log_clip_low": -0.4}, r"log_clip_low=-0.4 must be a finite number >= 0"),
    ("geo_mean", {"log_clip_high": INF}, r"log_clip_high=inf must be a finite number >= 0"),
    ("sapo", {"tau_positive": 0.0}, r"tau_positive=0.0 must be a positive number"),
    ("sapo", {"tau_negative": NAN}, r"tau_negative=nan must be a positive number"),
    ("trm_max", {"delta_max": 0.0}, r"delta_max=0.0 must be a positive number"),
    ("trm_avg", {"delta_avg": NAN}, r"delta_avg=nan must be a positive number"),
    ("trm_max_avg", {"delta_avg": -1.0}, r"delta_avg=-1.0 must be a positive number"),
    ("icepop", {"ratio_low": 1.1}, r"ratio_low=1.1 must lie in \[0, 1\]"),
    ("icepop", {"ratio_high": 0.9}, r"ratio_high=0.9 must be at least 1"),
    ("ipo", {"delta": 0.0}, r"delta=0.0 must be a positive number"),
    ("ipo", {"kl_tau": -0.1}, r"kl_tau=-0.1 must be a finite number >= 0"),
    ("kpop", {"delta": NAN}, r"delta=nan must be a positive number"),
    ("drpo", {"delta": INF}, r"delta=inf must be a positive number"),
    ("m2po", {"m2": 0.0}, r"m2=0.0 must be a positive number"),
    ("seq_tis", {"ratio_high": NAN}, r"ratio_high=nan must be at least 1"),
    ("seq_mis", {"ratio_low": -0.1}, r"ratio_low=-0.1 must lie in \[0, 1\]"),
    ("geo_mask", {"ratio_high": 0.0}, r"ratio_high=0.0 must be at least 1"),
    ("opsm", {"delta": -1.0}, r"delta=-1.0 must be a positive number"),
    ("opsm", {"clip_low": 1.1}, r"clip_low=1.1 must lie in \[0, 1\]"),
    ("vespo", {"k_positive": -1.0}, r"k_positive=-1.0 must be a finite number >= 0"),
    ("vespo", {"lambda_negative": 0.0}, r"lambda_negative=0.0 must be a positive number"),
    ("vaco", {"delta": 0.0}, r"delta=0.0 must be a positive number"),
]


@pytest.mark.parametrize(
    ("name", "change", "message"),
    CONSTANT_ERRORS,
    ids=[f"{name}-{message[:40]}" for name, _, message in CONSTANT_ERRORS],
)
def test_constant_is_refused(name: str, change: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        apply(name, *random_batch(0), **{**CONSTANTS[name], **change})


def with_value(tensor: torch.Tensor, value: float) -> torch.Tensor:
    changed = tensor.clone()
    changed[0, 2] = value
    return changed


BATCH = random_batch(0)
GAP = BATCH.valid.clone()
GAP[0, 3] = False
TENSOR_ERRORS = [
    (
        {"logp": with_value(BATCH.logp, NAN)},
        r"logp is NaN or infinite at 1 valid places, first at \[0, 2\] \(nan\)",
    ),
    ({"rollout_logp": with_value(BATCH.logp, -INF)}, r"rollout_logp is NaN or infinite .* \(-inf\)"),
    ({"advantages": with_value(BATCH.advantages, INF)}, r"advantages is NaN or infinite"),
    ({"divergence": with_value(BATCH.divergence, NAN)}, r"divergence is NaN or infinite"),
    ({"divergence": with_value(BATCH.divergence, -0.5)}, r"divergence has negative values, the least -0.5"),
    ({"logp": BATCH.logp[:, :-1]}, r"logp has shape \[5, 11\], expected \[5, 12\]"),
    ({"advantages": BATCH.advantages[:, :1]}, r"advantages has shape \[5, 1\], expected \[5, 12\]"),
    ({"divergence": BATCH.divergence[0]}, r"divergence has shape \[12\], expected \[5, 12\]"),
    ({"valid": BATCH.valid[0]}, r"valid has shape \[12\], expected \[B, T\]"),
    ({"valid": GAP}, r"valid .*right-pad"),
    ({"valid": BATCH.valid * 0.5}, r"valid holds values other than 0 and 1"),
]


@pytest.mark.parametrize("name", RULES)
def test_tensor_is_refused(name: str) -> None:
    parameters = dict(CONSTANTS[name])
    if PERMUTATION in RECORDS[name].needs:
        parameters["permutation"] = torch.arange(12).expand(5, 12)

    def refused(message: str, change: dict) -> None:
        with pytest.raises(ValueError, match=message):
            apply(name, *BATCH._replace(**change), **parameters)

    check_all(refused, [(message, change) for change, message in TENSOR_ERRORS])


@pytest.mark.parametrize("name", RULES)
def test_a_ratio_that_overflows_is_named_or_has_no_part_in_the_objective(name: str) -> None:
    """Finite log-probabilities may be so far apart that their ratio is none: never an infinite loss in silence."""
    parameters = dict(CONSTANTS[name])
    if PERMUTATION in RECORDS[name].needs:
        parameters["permutation"] = torch.arange(12).expand(5, 12)
    far = BATCH._replace(
        logp=BATCH.logp.float(),
        rollout_logp=with_value(BATCH.rollout_logp.float(), -500.0),
        advantages=-torch.ones_like(
            BATCH.advantages
        ),  # towards the rollout policy: most rules keep the token
    )
    try:
        output = apply(name, *far, **parameters)
    except NotFinite as error:
        assert re.fullmatch(
            r"the probability ratio of kept token \[0, \d+\] overflows \(log_ratio \d+.*\): see .*",
            str(error),
        )
    else:
        assert bool(output.objective.isfinite().all())


def test_log_probabilities_whose_difference_overflows() -> None:
    far = {
        "logp": with_value(BATCH.logp.float(), 3e38),
        "rollout_logp": with_value(BATCH.rollout_logp.float(), -3e38),
    }
    with pytest.raises(
        ValueError, match=r"log_ratio is NaN or infinite at 1 valid places, first at \[0, 2\]"
    ):
        apply("grpo", *BATCH._replace(**far), **CONSTANTS["grpo"])


@pytest.mark.parametrize("name", [n for n in RULES if n not in WITHOUT_DIVERGENCE])
def test_a_missing_divergence_is_refused(name: str) -> None:
    parameters = dict(CONSTANTS[name])
    if PERMUTATION in RECORDS[name].needs:
        parameters["permutation"] = torch.arange(12).expand(5, 12)
    with pytest.raises(ValueError, match=rf"divergence=None: rule '{name}' needs"):
        apply(name, *BATCH[:4], **parameters)


ONES = torch.ones(2, 3)
LOGP = torch.full((2, 3), 1 / 3).log()
IDS = torch.zeros(2, 1, dtype=torch.int64)
TOKENS = torch.zeros(2, dtype=torch.int64)
CALLS = [
    (lambda: get_rule("cpo"), r"rule='cpo' is unknown: choose one of \['cispo', 'cppo'"),
    (lambda: divergences.exact(LOGP, LOGP, "js"), r"measure='js' is unknown: choose one of \['tv', 'kl'\]"),
    (lambda: divergences.exact(LOGP, LOGP[:, :2]), r"pi_logp has shape \[2, 2\], expected \[2, 3\]"),
    (lambda: divergences.binary(LOGP, LOGP[0], "tv"), r"rollout_logp has shape \[3\]"),
    (lambda: divergences.k2(LOGP, LOGP[0]), r"rollout_logp has shape \[3\]"),
    (lambda: divergences.k3(LOGP, LOGP[0]), r"rollout_logp has shape \[3\]"),
    (
        lambda: divergences.topk(
            IDS, LOGP[:, :1], LOGP, TOKENS, LOGP[:, 0], measure="tv", convention="replace"
        ),
        r"convention='replace' is unknown: choose one of \['union', 'replace_kth'\]",
    ),
    (
        lambda: divergences.topk(IDS, LOGP, LOGP, TOKENS, LOGP[:, 0], measure="tv"),
        r"rollout_topk_logp has shape \[2, 3\], expected \[2, 1\]",
    ),
    (
        lambda: divergences.topk(IDS, LOGP[:, :1], LOGP, TOKENS[:1], LOGP[:, 0], measure="tv"),
        r"tokens has shape \[1\], expected \[2\]",
    ),
    (
        lambda: divergences.topk(IDS, LOGP[:, :1], LOGP[:1], TOKENS, LOGP[:, 0], measure="tv"),
        r"pi_logits_or_logp has shape \[1, 3\], expected \[2, 3\]",
    ),
    (lambda: effective_delta_b(ONES, ONES, 0.1, "adaptive", cap=0.5), r"cap=0.5 must be at least 1"),
    (lambda: effective_delta_b(ONES, ONES, 0.1, "P90"), r"mode='P90' is unknown"),
    (lambda: effective_delta_b(ONES[:1], ONES, 0.1), r"divergence has shape \[1, 3\]"),
    (lambda: position_weights(ONES, 0.0), r"w_min=0.0 must lie in"),
    (lambda: prefix_excess(ONES, ONES, ONES, torch.ones(3)), r"delta_b has shape \[3\], expected \[2\]"),
    (
        lambda: shuffled_weights(ONES, ONES, torch.zeros(2, 3, dtype=torch.int64)),
        r"permutation of response 0",
    ),
    (lambda: shuffled_weights(ONES, ONES, torch.arange(3)), r"permutation has shape \[3\]"),
    (lambda: aggregate(ONES, ONES, "mean"), r"mode='mean' is unknown: choose one of \['token-mean'"),
    (
        lambda: aggregate(ONES, ONES, "token-mean", horizon=3),
        r"horizon=3 belongs to seq-mean-token-sum-norm, not",
    ),
    (lambda: aggregate(ONES, ONES, "seq-mean-token-sum-norm", horizon=0), r"horizon=0 must be a positive"),
    (lambda: aggregate(ONES, ONES, "token-mean", denominator=0), r"denominator=0.0 must be a positive"),
    (lambda: aggregate(ONES[0], ONES, "token-mean"), r"values has shape \[3\], expected \[2, 3\]"),
    (lambda: group_advantages(ONES, TOKENS), r"rewards has shape \[2, 3\], expected \[N\]"),
    (lambda: group_advantages(ONES[0], TOKENS), r"groups has shape \[2\], expected \[3\]"),
    (lambda: group_advantages(ONES[0], ONES[0]), r"groups has dtype torch.float32, expected integers"),
    (lambda: group_advantages(ONES[0] * NAN, torch.arange(3)), r"rewards is NaN or infinite at 3"),
    (lambda: group_advantages(ONES[0], torch.arange(3), eps=-1.0), r"eps=-1.0 must be a finite number"),
    (lambda: merge([]), r"stats_list is empty"),
    (
        lambda: merge([{"tokens": ONES[0, 0]}, {"masked": ONES[0, 0]}]),
        r"stats_list\[1\] has \['masked'\], stats_list\[0\] has \['tokens'\]",
    ),
]


@pytest.mark.parametrize(("call", "message"), CALLS, ids=[message[:40] for _, message in CALLS])
def test_call_is_refused(call, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()
