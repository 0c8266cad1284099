"""The metrics between sampler and trainer against plain loops in float64, and what must not change them."""

import math
import random
from collections.abc import Sequence
from itertools import pairwise

import pytest
import torch
from torch import Tensor

from cppo_lab import schema
from cppo_lab.cores.rule_loss import mismatch_metrics, mismatch_of_step
from cppo_lab.maths.mismatch import LogRatios, MismatchSums, log_ratios, mismatch_sums

Rows = list[list[tuple[float, float]]]  # of each response: (log pi, log mu) of its tokens
BIN = 2 ** (1 / 8) - 1  # the documented error of the percentile
LENGTHS = [9, 1, 4, 33, 2, 0, 12]


def made(lengths: Sequence[int], seed: int = 0, scale: float = 0.3) -> Rows:
    """Responses whose ratios have heavy tails."""
    draw = random.Random(seed)
    rows = [[-draw.expovariate(1.0) for _ in range(length)] for length in lengths]
    return [[(mu + scale * draw.gauss(0, 1) ** 3, mu) for mu in row] for row in rows]


def tensors(rows: Rows, width: int, filler: float = math.nan) -> tuple[Tensor, Tensor, Tensor]:
    """[B, T] each: log pi, log mu, valid. Padding holds `filler`."""
    valid = torch.arange(width) < torch.tensor([len(row) for row in rows])[:, None]
    values = torch.full((2, *valid.shape), filler, dtype=torch.float64)
    values[:, valid] = torch.tensor([pair for row in rows for pair in row], dtype=torch.float64).view(-1, 2).T
    return *values, valid


def ratios_of(logp: Tensor, rollout_logp: Tensor, valid: Tensor) -> LogRatios:
    """With the Binary TV in the place of D_t."""
    return log_ratios(logp, rollout_logp, (logp.exp() - rollout_logp.exp()).abs(), valid)


def sums_of(*tensors: Tensor) -> MismatchSums:
    return mismatch_sums(ratios_of(*tensors))


def of(rows: Rows, filler: float = math.nan) -> dict[str, float]:
    return mismatch_metrics([sums_of(*tensors(rows, 400, filler))])


def expected(rows: Rows) -> dict[str, float]:
    """Every metric but the percentile, by its definition."""
    result, thirds = {}, ("early", "middle", "late")
    for third in ("", *thirds):
        x = [
            pi - mu
            for row in rows
            for t, (pi, mu) in enumerate(row)
            if third in ("", thirds[3 * t // len(row)])
        ]
        if not x:
            continue
        n = len(x)
        ratios = [math.exp(each) for each in x]
        values = {
            "k1": math.fsum(-each for each in x) / n,
            "k3": math.fsum(math.exp(each) - 1 - each for each in x) / n,
            "chi_square": math.fsum(ratio**2 for ratio in ratios) / n - 1,
            "effective_sample_size": math.fsum(ratios) ** 2 / (n * math.fsum(r**2 for r in ratios)),
            "abs_log_ratio_max": max(map(abs, x)),
            "token_mult_prob_error": math.fsum(math.exp(abs(each)) for each in x) / n,
        }
        result |= {f"mismatch/{third + '/' if third else ''}{name}": value for name, value in values.items()}
    return result


@pytest.mark.parametrize("scale, filler", [(0.0, -math.inf), (0.3, 1e30), (0.3, math.nan)])
@pytest.mark.parametrize(
    "lengths", [[], [1], [2], [3], [4], [5], [7], [1, 2, 3, 4], [2, 0, 2], [40, 3, 0, 17, 1], [300, 211, 96]]
)
def test_against_plain_loops(lengths: list[int], scale: float, filler: float) -> None:
    """Of responses padded to any width, with whatever."""
    rows = made(lengths, sum(lengths), scale)
    values = of(rows, filler)
    assert {name.replace("_max", "_p99") for name in values} <= values.keys()
    of_means = {name: value for name, value in values.items() if not name.endswith("_p99")}
    assert of_means == pytest.approx(expected(rows), rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("scale", [1e-4, 0.02, 0.3])
def test_the_percentile_is_within_its_bound(seed: int, scale: float) -> None:
    """The smallest value that 99 % do not exceed."""
    rows = made([random.Random(seed).randrange(1, 400) for _ in range(5)], seed, scale)
    sizes = sorted(abs(a - b) for row in rows for a, b in row)
    wanted = sizes[math.ceil(0.99 * len(sizes)) - 1]
    assert of(rows)["mismatch/abs_log_ratio_p99"] == pytest.approx(wanted, rel=BIN * 1.001)


@pytest.mark.parametrize(
    "x, percentile",
    [
        ([1e-5] * 50, 0.0),
        ([-17.0] * 50 + [-40.0], 40.0),
        ([0.0] * 99 + [-1.0], 0.0),  # 100 tokens: the 99th
        ([0.0] * 98 + [-1.0] * 2, pytest.approx(1, rel=BIN)),
    ],
)
def test_the_ends_of_the_percentile(x: list[float], percentile: float) -> None:
    assert of([[(each, 0.0) for each in x]])["mismatch/abs_log_ratio_p99"] == percentile


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_k3_is_never_negative(dtype: torch.dtype) -> None:
    """Where it is smaller than the last digit of rho too."""
    x = torch.logspace(-12, 0.5, 400, dtype=dtype)
    for each in torch.cat([x, -x])[:, None, None]:
        assert float(sums_of(each, torch.zeros_like(each), torch.ones(1, 1)).sums[0, 2]) >= 0


def test_masked_tokens_inside_a_response_do_not_count() -> None:
    """The thirds are those of the tokens that count."""
    rows = made([9])
    logp, rollout, valid = tensors(rows, 9)
    keep = torch.tensor([[1, 0, 1, 1, 0, 1, 1, 0, 1]]).bool()
    shown = [token for token, is_kept in zip(rows[0], keep[0].tolist(), strict=True) if is_kept]
    logp[~keep] = math.nan
    assert mismatch_metrics([sums_of(logp, rollout, valid & keep)]) == pytest.approx(of([shown]))


@pytest.mark.parametrize("cuts", [[], [4], [1, 2, 3, 4, 5, 6], [2, 5], [6]])
def test_a_step_is_the_union_of_its_updates_and_the_state_before_the_first(cuts: list[int]) -> None:
    """Micro-batches, ranks and minibatches, some of them without a token."""
    rows = made(LENGTHS)
    updates = [ratios_of(*tensors(rows[a:b], 40)) for a, b in pairwise([0, *cuts, len(rows)])]
    empty = sums_of(*tensors([[], []], 3))
    whole = mismatch_metrics([*map(mismatch_sums, updates), empty])
    assert whole == pytest.approx(of(rows), rel=1e-12)
    first = rows[: [*cuts, len(rows)][0]]
    before = {name.replace("/", "/before_update/", 1): value for name, value in of(first).items()}
    step = mismatch_of_step(updates)
    distances = sorted(abs(math.exp(pi) - math.exp(mu)) for row in first for pi, mu in row)
    assert step.pop(schema.DIVERGENCE_BEFORE) == pytest.approx(math.fsum(distances) / len(distances))
    wanted = distances[math.ceil(0.9 * len(distances)) - 1]
    assert step.pop(schema.DIVERGENCE_BEFORE_P90) == pytest.approx(wanted, rel=BIN * 1.001)
    assert step == pytest.approx(whole | before, rel=1e-9, abs=1e-12)
    assert all(map(schema.is_known_metric, step))
    assert mismatch_of_step([]) == mismatch_metrics([]) == mismatch_metrics([empty, empty]) == {}


def test_a_common_factor_of_sums_and_counts_changes_nothing() -> None:
    """verl divides them by ranks and minibatches."""
    for rows in (
        made([100, 7, 93]),
        [[(0.0, 0.0)] * 99 + [(-1.0, 0.0)]],
    ):  # of the second the 99th of 100 counts
        whole = sums_of(*tensors(rows, 100))
        for ranks in (2, 3, 7, 64):
            part = MismatchSums(
                whole.sums / ranks, whole.largest, whole.counts / ranks, whole.divergence / ranks
            )
            metrics, of_part = (mismatch_metrics([sums], before_update=True) for sums in (whole, part))
            assert of_part == pytest.approx(metrics, rel=1e-12)


@pytest.mark.parametrize("x", [-1000.0, -30.0, 30.0, 1000.0])
def test_ratios_of_a_broken_policy_stay_numbers(x: float) -> None:
    values = of([[(x, 0.0), (0.0, 0.0)]])
    assert all(map(math.isfinite, values.values()))
    assert values["mismatch/k1"] == -x / 2 and values["mismatch/abs_log_ratio_max"] == abs(x)
    assert values["mismatch/k3"] >= 0 and 0 < values["mismatch/effective_sample_size"] <= 1


def test_what_is_not_finite_shows_and_low_precision_is_compared_in_full() -> None:
    values = of([[(math.nan, -1.0), (-1.0, -1.0)]])
    assert math.isnan(values["mismatch/k1"]) and math.isnan(values["mismatch/token_mult_prob_error"])
    logp = torch.tensor([[-1.0, -2.0]], dtype=torch.bfloat16)
    values = mismatch_metrics([sums_of(logp, torch.tensor([[-1.001, -2.002]]), torch.ones(1, 2))])
    assert values["mismatch/k1"] == pytest.approx(-0.0015, rel=1e-4)
    with pytest.raises(ValueError, match="rollout_logp has shape"):
        sums_of(torch.zeros(2, 3), torch.zeros(2, 1), torch.ones(2, 3))


@pytest.mark.parametrize("name", ["k2", "first/k1", "early", "early/late/k1", "k1/early"])
def test_other_names_are_not_of_the_schema(name: str) -> None:
    assert not schema.is_known_metric(f"mismatch/{name}")
