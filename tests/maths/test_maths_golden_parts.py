"""Divergences, weights, budgets, scores, advantages and metrics against the golden vectors."""

import pytest
import torch

from cppo_lab.maths import divergence as divergences
from cppo_lab.maths.advantages import group_advantages
from cppo_lab.maths.budget import effective_delta_b
from cppo_lab.maths.masks import threshold_tests
from cppo_lab.maths.metrics import relative_logprob_error
from cppo_lab.maths.rules import get_rule
from cppo_lab.maths.soft import sapo, violation_score
from cppo_lab.maths.weights import position_weights
from tests.maths.maths_golden import CASES, DTYPES, TOLERANCE, golden, keys, output, valid

DIVERGENCE_KEYS = keys("D")
EXTREME_KEYS = [
    f"extreme/D/{name}"
    for name in ("tv", "kl", "tv_binary", "kl_binary", "tv_topk2", "kl_topk2", "tv_topk2_replace")
]
WEIGHT_KEYS = keys("w")
BUDGET_KEYS = keys("delta_b")
SCORE_KEYS = keys("score")
SAPO_KEYS = keys("mask", of=("cppo_soft_sapo",))
METRIC_KEYS = keys("metric")
ADVANTAGE_KEYS = keys("in", of=("advantage_seq", "advantage_seq_nostd", "group_keep"))

K = 20


def divergence(kind: str, case: str, dtype: torch.dtype) -> torch.Tensor:
    logp, rollout_logp = golden(f"{case}/in/logp", dtype), golden(f"{case}/in/rollout_logp", dtype)
    if kind in ("k2", "k3"):
        return getattr(divergences, kind)(logp, rollout_logp)
    measure, _, estimator = kind.partition("_")
    if estimator == "binary":
        return divergences.binary(logp, rollout_logp, measure)
    pi_logp = golden(f"{case}/in/pi", dtype).log()
    if not estimator:
        return divergences.exact(golden(f"{case}/in/mu", dtype).log(), pi_logp, measure)
    return divergences.topk(
        golden(f"{case}/in/rollout_topk_ids")[..., :K],
        golden(f"{case}/in/rollout_topk_logp", dtype)[..., :K],
        pi_logp,
        golden(f"{case}/in/tokens"),
        rollout_logp,
        measure=measure,
        convention="replace_kth" if estimator == "topk_replace" else "union",
    )


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("key", DIVERGENCE_KEYS)
def test_divergence(key: str, dtype: torch.dtype) -> None:
    case, _, kind = key.split("/")
    actual = divergence(kind, case, dtype)
    assert actual.dtype == dtype and bool(torch.isfinite(actual[valid(case)]).all())
    expected = golden(key, dtype)[valid(case)]
    torch.testing.assert_close(actual[valid(case)], expected, rtol=0, atol=TOLERANCE[dtype] / 10)


def test_topk_takes_the_stored_layout_of_k_plus_one_ids_as_it_is() -> None:
    case = "main_topk"
    logp = golden(f"{case}/in/pi").log()
    ids, topk_logp = golden(f"{case}/in/rollout_topk_ids"), golden(f"{case}/in/rollout_topk_logp")
    sampled = golden(f"{case}/in/tokens"), golden(f"{case}/in/rollout_logp")
    actual = divergences.topk(ids, topk_logp, logp, *sampled, measure="tv")
    expected = golden(f"{case}/D/tv_topk")
    torch.testing.assert_close(actual[valid(case)], expected[valid(case)], rtol=0, atol=1e-12)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("key", EXTREME_KEYS)
def test_divergence_with_exact_zeros(key: str, dtype: torch.dtype) -> None:
    mu, pi, tokens = (
        golden("extreme/in/mu", dtype),
        golden("extreme/in/pi", dtype),
        golden("extreme/in/tokens"),
    )
    mu_logp, pi_logp = mu.log(), pi.log()
    measure, _, estimator = key.split("/")[-1].partition("_")
    rollout_logp = mu_logp.gather(-1, tokens[:, None])[:, 0]
    logp = pi_logp.gather(-1, tokens[:, None])[:, 0]
    if not estimator:
        actual = divergences.exact(mu_logp, pi_logp, measure)
    elif estimator == "binary":
        actual = divergences.binary(logp, rollout_logp, measure)
    else:
        top = mu_logp.sort(dim=-1, descending=True, stable=True)  # among equals the lowest id, as the file
        convention = "replace_kth" if estimator.endswith("replace") else "union"
        actual = divergences.topk(
            top.indices[:, :2],
            top.values[:, :2],
            pi_logp,
            tokens,
            rollout_logp,
            measure=measure,
            convention=convention,
        )
    torch.testing.assert_close(actual, golden(key, dtype), rtol=0, atol=TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("key", WEIGHT_KEYS)
def test_position_weights(key: str, dtype: torch.dtype) -> None:
    case, _, kind = key.split("/")
    hp = CASES[case]["hp"]
    span = hp["span"] if kind == "span" else None
    actual = position_weights(golden(f"{case}/in/valid"), hp["w_min"], span, dtype=dtype)
    torch.testing.assert_close(actual, golden(key, dtype), rtol=0, atol=1e-12 if dtype == DTYPES[0] else 1e-7)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("key", BUDGET_KEYS)
def test_effective_delta_b(key: str, dtype: torch.dtype) -> None:
    case, _, kind = key.split("/")
    hp = CASES[case]["hp"]
    mode = hp["delta_b"] if kind == "used" else "adaptive"
    cap = 5.0 if kind == "adaptive_x5" else 2.0
    actual = effective_delta_b(
        golden(f"{case}/in/D", dtype), golden(f"{case}/in/valid"), hp["delta_b_min"], mode, cap
    )
    torch.testing.assert_close(actual, golden(key, dtype), rtol=0, atol=1e-12 if dtype == DTYPES[0] else 1e-6)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("key", SCORE_KEYS)
def test_score_and_threshold(key: str, dtype: torch.dtype) -> None:
    case, _, kind = key.split("/")
    hp, mask = CASES[case]["hp"], valid(case)
    weights = golden(f"{case}/w/linear", dtype)
    arguments = (
        golden(f"{case}/in/D", dtype),
        weights,
        mask,
        hp["delta"],
        golden(f"{case}/delta_b/used", dtype),
    )
    if kind == "cppo":
        actual = violation_score(*arguments)
    else:
        actual = (hp["delta"] - threshold_tests(*arguments).excess).clamp_max(hp["delta"]) * mask
    torch.testing.assert_close(actual, golden(key, dtype), rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("key", SAPO_KEYS)
def test_sapo_gate(key: str, dtype: torch.dtype) -> None:
    case = key.split("/")[0]
    away = golden(f"{case}/in/advantage") * (golden(f"{case}/in/ratio") - 1) > 0
    actual = torch.where(away, sapo(golden(f"{case}/score/cppo", dtype)), 1.0) * valid(case)
    torch.testing.assert_close(actual, golden(key, dtype), rtol=0, atol=TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("key", ADVANTAGE_KEYS)
def test_group_advantages(key: str, dtype: torch.dtype) -> None:
    case, _, kind = key.split("/")
    advantages, keep = group_advantages(
        golden(f"{case}/in/rewards", dtype),
        golden(f"{case}/in/groups"),
        normalize_std=kind != "advantage_seq_nostd",
    )
    actual = keep.to(dtype) if kind == "group_keep" else advantages
    torch.testing.assert_close(actual, golden(key, dtype), rtol=0, atol=TOLERANCE[dtype] / 10)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("key", METRIC_KEYS)
def test_metrics(key: str, dtype: torch.dtype) -> None:
    case, _, kind = key.split("/")
    inputs = [
        golden(f"{case}/in/{name}", dtype) for name in ("logp", "rollout_logp", "advantage", "valid", "D")
    ]
    if kind == "rel_logp_err":
        difference, scale = relative_logprob_error(inputs[0], inputs[1], inputs[3])
        torch.testing.assert_close(difference / scale, golden(key, dtype), rtol=TOLERANCE[dtype], atol=0)
        return
    # [B, 3]: masked, of them rejected by the prefix test alone, of them failing the prefix test at all
    hp = CASES[case]["hp"]
    tests = threshold_tests(
        inputs[4],
        golden(f"{case}/w/linear", dtype),
        valid(case),
        hp["delta"],
        golden(f"{case}/delta_b/used", dtype),
    )
    dropped = valid(case) & (output(case, "cppo", dtype)[0].keep == 0)
    actual = []
    for row in range(len(inputs[0])):
        stats = get_rule("cppo")(
            *(tensor[row : row + 1] for tensor in inputs),
            delta=hp["delta"],
            w_min=hp["w_min"],
            delta_b=hp["delta_b_min"],
            delta_b_mode=hp["delta_b"],
        ).stats
        failing = int((dropped & tests.prefix_fails)[row].sum())
        actual.append([int(stats["masked"]), int(stats["masked_by_prefix"]), failing])
    assert actual == golden(key).tolist()
