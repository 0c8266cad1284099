"""Divergences, weights, budgets, scores, advantages and metrics against the golden vectors."""

import pytest
import torch

from cppo_lab.maths import divergence as divergences
from tests.maths.maths_golden import DTYPES, KEYS, VECTORS, golden, keys, ours

# part -> tolerance in float64 and in float32: tighter than `check-vectors`, which takes any seed
STRICT = {
    "in": (1e-10, 2e-6),
    "D": (1e-10, 2e-6),
    "extreme": (1e-9, 2e-5),
    "w": (1e-12, 1e-7),
    "delta_b": (1e-12, 1e-6),
    "score": (1e-9, 2e-5),
    "metric": (1e-9, 2e-5),
}
PART_KEYS = {
    "in": keys("in", of=("advantage_seq", "advantage_seq_nostd", "group_keep", "ratio", "lengths")),
    "extreme": [key for key in KEYS if key.startswith("extreme/D/")],
    **{part: keys(part) for part in ("D", "w", "delta_b", "score", "metric")},
}


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("part", "key"), [(part, key) for part, found in PART_KEYS.items() for key in found])
def test_part(part: str, key: str, dtype: torch.dtype) -> None:
    actual, tolerance = ours(key, dtype), STRICT[part][DTYPES.index(dtype)]
    assert not actual.is_floating_point() or (actual.dtype == dtype and bool(torch.isfinite(actual).all()))
    relative = tolerance if part in ("score", "metric") or key.endswith("ratio") else 0
    expected = golden(key, actual.dtype)
    torch.testing.assert_close(actual, expected, rtol=relative, atol=tolerance)


def test_topk_takes_the_stored_layout_of_k_plus_one_ids_as_it_is() -> None:
    case = "main_topk"
    logp, valid = golden(f"{case}/in/pi").log(), VECTORS.valid(case)
    ids, topk_logp = golden(f"{case}/in/rollout_topk_ids"), golden(f"{case}/in/rollout_topk_logp")
    sampled = golden(f"{case}/in/tokens"), golden(f"{case}/in/rollout_logp")
    actual = divergences.topk(ids, topk_logp, logp, *sampled, measure="tv")
    expected = golden(f"{case}/D/tv_topk")
    torch.testing.assert_close(actual[valid], expected[valid], rtol=0, atol=1e-12)
