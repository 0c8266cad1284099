"""Divergences, weights, budgets, scores, advantages and metrics against the golden vectors.

One test for each golden case and part; a failure lists every array that differs.
"""

from itertools import product

import pytest
import torch

from cppo_lab.maths import divergence as divergences
from tests.maths.maths_cases import check_all
from tests.maths.maths_golden import DTYPES, KEYS, VECTORS, by_case, golden, keys, ours

# part -> tolerance in float64 and in float32: tighter than `cppo_lab.testing.vectors`, which takes any seed
STRICT = {
    "in": (1e-10, 2e-6),
    "D": (1e-10, 2e-6),
    "extreme": (1e-9, 2e-5),
    "w": (1e-12, 1e-7),
    "delta_b": (1e-12, 1e-6),
    "score": (1e-9, 2e-5),
    "metric": (1e-9, 2e-5),
}
PARTS = {
    "in": by_case(keys("in", of=("advantage_seq", "advantage_seq_nostd", "group_keep", "ratio", "lengths"))),
    "extreme": by_case(key for key in KEYS if key.startswith("extreme/D/")),
    **{part: by_case(keys(part)) for part in ("D", "w", "delta_b", "score", "metric")},
}


@pytest.mark.parametrize(("part", "case"), [(part, case) for part, cases in PARTS.items() for case in cases])
def test_part(part: str, case: str) -> None:
    def compare(key: str, dtype: torch.dtype) -> None:
        actual, tolerance = ours(key, dtype), STRICT[part][DTYPES.index(dtype)]
        assert not actual.is_floating_point() or (
            actual.dtype == dtype and bool(torch.isfinite(actual).all())
        )
        relative = tolerance if part in ("score", "metric") or key.endswith("ratio") else 0
        expected = golden(key, actual.dtype)
        torch.testing.assert_close(actual, expected, rtol=relative, atol=tolerance)

    check_all(compare, product(PARTS[part][case], DTYPES))


def test_topk_takes_the_stored_layout_of_k_plus_one_ids_as_it_is() -> None:
    case = "main_topk"
    logp, valid = golden(f"{case}/in/pi").log(), VECTORS.valid(case)
    ids, topk_logp = golden(f"{case}/in/rollout_topk_ids"), golden(f"{case}/in/rollout_topk_logp")
    sampled = golden(f"{case}/in/tokens"), golden(f"{case}/in/rollout_logp")
    actual = divergences.topk(ids, topk_logp, logp, *sampled, measure="tv")
    expected = golden(f"{case}/D/tv_topk")
    torch.testing.assert_close(actual[valid], expected[valid], rtol=0, atol=1e-12)
