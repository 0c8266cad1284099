"""The metrics between sampler and trainer against plain loops in float64, and what must not change them."""

import math
import random
from collections.abc import Sequence
from itertools import pairwise

import pytest
import torch
from torch import Tensor

from cppo_lab import schema
from cppo_lab.maths.mismatch import MismatchSums, log_ratios, merge, metrics, mismatch_sums, of_step

Rows = list[list[tuple[float, float]]]  # of each response: (log pi, log mu) of its tokens
EXACT = ("k1", "k3", "chi_square", "effective_sample_size", "abs_log_ratio_max", "token_mult_prob_error")
BIN = 2 ** (1 / 8) - 1  # the documented error of the percentile


def made(lengths: Sequence[int], seed: int = 0, scale: float = 0.3) -> Rows:
    """Responses whose ratios have heavy tails."""
    draw = random.Random(seed)
    rows = [[-draw.expovariate(1.0) for _ in range(length)] for length in lengths]
    return [[(mu + scale * draw.gauss(0, 1) ** 3, mu) for mu in row] for row in rows]


def tensors(rows: Rows, width: int, filler: float = math.nan) -> tuple[Tensor, Tensor, Tensor]:
    """[B, T] each: log pi, log mu, valid. Padding holds `filler`."""
    logp, rollout = (torch.full((len(rows), width), filler, dtype=torch.float64) for _ in range(2))
    valid = torch.zeros(len(rows), width, dtype=torch.bool)
    for b, row in enumerate(rows):
        for t, (pi, mu) in enumerate(row):
            logp[b, t], rollout[b, t], valid[b, t] = pi, mu, True
    return logp, rollout, valid


def sums_of(logp: Tensor, rollout_logp: Tensor, valid: Tensor) -> MismatchSums:
    return mismatch_sums(log_ratios(logp, rollout_logp, valid))


def of(rows: Rows, width: int = 0) -> dict[str, float]:
    return metrics([sums_of(*tensors(rows, width or max(map(len, rows), default=0)))])


def third_of(place: int, length: int) -> str:
    """By comparing fractions of the response, without division: place is 0-based."""
    if 3 * place < length:
        return "early"
    return "middle" if 3 * place < 2 * length else "late"


def expected(rows: Rows) -> dict[str, float]:
    """Every metric but the percentile, by its definition."""
    found = {}
    for third in ("", "early", "middle", "late"):
        x = [
            pi - mu for row in rows for t, (pi, mu) in enumerate(row) if third in ("", third_of(t, len(row)))
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
        found |= {f"mismatch/{third + '/' if third else ''}{name}": value for name, value in values.items()}
    return found


def percentile(values: Sequence[float]) -> float:
    """The smallest value that 99 % do not exceed."""
    return sorted(values)[math.ceil(0.99 * len(values)) - 1]


def without_percentile(found: dict[str, float]) -> dict[str, float]:
    return {name: value for name, value in found.items() if not name.endswith("_p99")}


@pytest.mark.parametrize(
    "lengths",
    [[1], [2], [3], [4], [5], [6], [7], [1, 2, 3, 4], [1, 1], [2, 0, 2], [40, 3, 0, 17, 1], [300, 211, 96]],
)
def test_against_plain_loops(lengths: list[int]) -> None:
    rows = made(lengths, seed=sum(lengths))
    found = of(rows)
    assert without_percentile(found) == pytest.approx(expected(rows), rel=1e-9, abs=1e-12)
    thirds = {name.split("/")[1] for name in found if name.count("/") == 2}
    wanted = {third_of(t, length) for length in lengths for t in range(length)}
    assert thirds == wanted  # a third without a token has no metrics
    assert all(schema.is_known_metric(name) for name in found)
    for name in found:
        assert name.replace("abs_log_ratio_max", "abs_log_ratio_p99") in found


def test_the_thirds_of_short_responses() -> None:
    """A token of its own size in each place tells where it was counted."""
    sizes = [0.1, 0.2, 0.4, 0.8]
    wanted = {
        1: {"early": 0.1},
        2: {"early": 0.1, "middle": 0.2},
        3: {"early": 0.1, "middle": 0.2, "late": 0.4},
        4: {"early": 0.1 + 0.2, "middle": 0.4, "late": 0.8},
    }
    for length, parts in wanted.items():
        sums = sums_of(*tensors([[(size, 0.0) for size in sizes[:length]]], 6)).sums
        assert sums[:, 1].tolist() == pytest.approx([parts.get(third, 0.0) for third in schema.THIRDS])


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("scale", [1e-4, 0.02, 0.3])
def test_the_percentile_is_within_its_bound(seed: int, scale: float) -> None:
    lengths = [random.Random(seed).randrange(1, 400) for _ in range(5)]
    rows = made(lengths, seed, scale)
    found = of(rows)["mismatch/abs_log_ratio_p99"]
    assert found == pytest.approx(percentile([abs(a - b) for row in rows for a, b in row]), rel=BIN * 1.001)


def test_the_ends_of_the_percentile() -> None:
    assert of([[(1e-5, 0.0)] * 50])["mismatch/abs_log_ratio_p99"] == 0.0
    assert of([[(-17.0, 0.0)] * 50 + [(-40.0, 0.0)]])["mismatch/abs_log_ratio_p99"] == 40.0
    # 100 tokens: the 99th; 101: the 100th.
    assert of([[(0.0, 0.0)] * 99 + [(-1.0, 0.0)]])["mismatch/abs_log_ratio_p99"] == 0.0
    assert of([[(0.0, 0.0)] * 98 + [(-1.0, 0.0)] * 2])["mismatch/abs_log_ratio_p99"] == pytest.approx(
        1, rel=BIN
    )


def test_equal_policies_are_no_mismatch() -> None:
    rows = [[(-0.1 * t, -0.1 * t) for t in range(length)] for length in (7, 30, 2)]
    found = of(rows)
    ideal = dict.fromkeys(EXACT, 0.0) | {"effective_sample_size": 1.0, "token_mult_prob_error": 1.0}
    ideal["abs_log_ratio_p99"] = 0.0
    names = ["", "early/", "middle/", "late/"]
    assert found == {f"mismatch/{third}{name}": value for third in names for name, value in ideal.items()}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_k3_is_never_negative(dtype: torch.dtype) -> None:
    """Where it is smaller than the last digit of rho too."""
    x = torch.logspace(-12, 0.5, 400, dtype=dtype)
    for sign in (1, -1):
        for row in (sign * x)[:, None]:
            sums = sums_of(row[None], torch.zeros(1, 1, dtype=dtype), torch.ones(1, 1)).sums
            assert float(sums[0, 2]) >= 0


def test_the_order_of_responses_and_the_width_change_nothing() -> None:
    rows = made([9, 1, 4, 33, 2, 0, 12])
    found = of(rows)
    assert of(rows[::-1]) == pytest.approx(found, rel=1e-12)
    assert of(rows, width=80) == pytest.approx(found, rel=1e-12)


@pytest.mark.parametrize("filler", [math.nan, math.inf, -math.inf, 1e30])
def test_padding_never_enters(filler: float) -> None:
    rows = made([5, 0, 8])
    assert metrics([sums_of(*tensors(rows, 11, filler))]) == of(rows)


def test_masked_tokens_inside_a_response_do_not_count() -> None:
    """The thirds are those of the tokens that count."""
    logp, rollout, valid = tensors(made([9]), 9)
    keep = torch.tensor([[1, 0, 1, 1, 0, 1, 1, 0, 1]]).bool()
    shown = made([9])[0]
    rest = [token for token, kept in zip(shown, keep[0].tolist(), strict=True) if kept]
    logp[~keep] = math.nan
    assert metrics([sums_of(logp, rollout, valid & keep)]) == pytest.approx(of([rest]))


@pytest.mark.parametrize("cuts", [[1, 2, 3, 4, 5, 6], [3], [2, 5], [6]])
def test_parts_add_up_to_the_whole(cuts: list[int]) -> None:
    """Micro-batches, ranks and minibatches, some of them without a token."""
    rows = made([9, 1, 4, 33, 2, 0, 12])
    edges = [0, *cuts, len(rows)]
    parts = [sums_of(*tensors(rows[a:b], 40)) for a, b in pairwise(edges)]
    found = metrics([*parts, sums_of(*tensors([[], []], 3))])
    assert found == pytest.approx(of(rows), rel=1e-12)


@pytest.mark.parametrize("cuts", [[], [4], [1, 2, 3, 5]])
def test_a_step_is_all_its_updates_and_the_state_before_the_first(cuts: list[int]) -> None:
    rows = made([9, 1, 4, 33, 2, 0, 12])
    edges = [0, *cuts, len(rows)]
    found = of_step([log_ratios(*tensors(rows[a:b], 40)) for a, b in pairwise(edges)])
    first = expected(rows[: edges[1]])
    wanted = expected(rows) | {n.replace("mismatch/", "mismatch/before_update/"): v for n, v in first.items()}
    assert without_percentile(found) == pytest.approx(wanted, rel=1e-9, abs=1e-12)
    assert of_step([]) == {}


def test_a_common_factor_of_sums_and_counts_changes_nothing() -> None:
    """verl divides them by ranks and minibatches."""
    for ranks in (2, 3, 7, 64):
        whole = sums_of(*tensors(made([100, 7, 93]), 100))
        part = MismatchSums(whole.sums / ranks, whole.largest, whole.counts / ranks)
        assert metrics([part]) == pytest.approx(metrics([whole]), rel=1e-12)
    exact = sums_of(*tensors([[(0.0, 0.0)] * 99 + [(-1.0, 0.0)]], 100))  # the 99th of 100
    third = MismatchSums(exact.sums / 3, exact.largest, exact.counts / 3)
    assert metrics([third])["mismatch/abs_log_ratio_p99"] == 0.0


def test_nothing_to_measure() -> None:
    empty = sums_of(*tensors([], 0))
    assert metrics([]) == metrics([empty]) == metrics([merge([empty, empty])]) == {}


def test_the_state_before_the_update_has_names_of_its_own() -> None:
    rows = made([5])
    found = metrics([sums_of(*tensors(rows, 5))], before_update=True)
    names = {name.replace("mismatch/", "mismatch/before_update/") for name in of(rows)}
    assert found.keys() == names and all(map(schema.is_known_metric, names))


@pytest.mark.parametrize("x", [-1000.0, -30.0, 30.0, 1000.0])
def test_ratios_of_a_broken_policy_stay_numbers(x: float) -> None:
    found = of([[(x, 0.0), (0.0, 0.0)]])
    assert all(map(math.isfinite, found.values()))
    assert found["mismatch/k1"] == -x / 2 and found["mismatch/abs_log_ratio_max"] == abs(x)
    assert found["mismatch/k3"] >= 0 and 0 < found["mismatch/effective_sample_size"] <= 1


def test_a_value_that_is_not_finite_shows() -> None:
    found = of([[(math.nan, -1.0), (-1.0, -1.0)]])
    assert math.isnan(found["mismatch/k1"]) and math.isnan(found["mismatch/token_mult_prob_error"])


def test_shapes_are_not_broadcast() -> None:
    with pytest.raises(ValueError, match="rollout_logp has shape"):
        sums_of(torch.zeros(2, 3), torch.zeros(2, 1), torch.ones(2, 3))


def test_low_precision_is_compared_in_full() -> None:
    logp = torch.tensor([[-1.0, -2.0]], dtype=torch.bfloat16)
    rollout = torch.tensor([[-1.001, -2.002]])
    found = metrics([sums_of(logp, rollout, torch.ones(1, 2))])
    assert found["mismatch/k1"] == pytest.approx(-0.0015, rel=1e-4)


@pytest.mark.parametrize(
    "name",
    ["mismatch/k2", "mismatch/first/k1", "mismatch/early", "mismatch/early/late/k1", "mismatch/k1/early"],
)
def test_other_names_are_not_of_the_schema(name: str) -> None:
    assert not schema.is_known_metric(name)
