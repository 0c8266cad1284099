"""Errors at equal movement: known ratios are found, whatever the two rules' movements; plain loops are the oracle."""

import csv
import dataclasses
import math
from collections import defaultdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from scipy import stats

from cppo_lab.analysis.statistics import verdicts
from cppo_lab.analysis.statistics.claims import Claim, Kind, log_size
from cppo_lab.analysis.statistics.exact_study import (
    BIN,
    LEAST,
    RETURN_BIN,
    Condition,
    Curves,
    EqualIn,
    controls,
    mean_estimate,
    of_seeds,
    paired,
    pairs_of,
    slope_estimate,
    summarise,
)
from cppo_lab.analysis.statistics.values import Quantity
from cppo_lab.analysis.statistics.verdicts import Verdict, outcome_of, reason

SEEDS, STEPS = 30, 40
HORIZONS = (16, 64, 256)


def curves(seed: int, law: float, middle: float, seeds: int = SEEDS) -> Curves:
    """|Delta| = law * movement^2 with noise of both signs; movement log-normal around `middle`; seeds differ, too."""
    generator = np.random.default_rng(seed)
    movement = middle * np.exp(0.5 * generator.standard_normal((seeds, STEPS)))
    sign = generator.choice([-1, 1], (seeds, STEPS))
    own = np.exp(0.1 * generator.standard_normal((seeds, 1)))
    error = sign * law * movement**2 * own * np.exp(0.3 * generator.standard_normal((seeds, STEPS)))
    returns = np.cumsum(np.full((seeds, STEPS), 0.01), axis=1)
    spread = movement[:, :, None] * np.arange(1, 9) / 4.5
    bounds = 50 * abs(error), 5 * abs(error)
    return Curves(tuple(range(seeds)), error, movement, movement / 10, returns, returns, *bounds, spread)


def log_ratio(one: Curves, other: Curves, seeds: list[int], equal: EqualIn = EqualIn.MOVEMENT) -> float:
    """The estimator as docs/evidence/exact.md describes it, step by step."""
    found: list[dict[tuple[int, int], list[float]]] = []
    for side in (one, other):
        bins = defaultdict(list)
        for seed in seeds:
            row = side.seeds.index(seed)
            for movement, error, level in zip(
                side.movement[row], side.error[row], side.rollout_returns[row], strict=True
            ):
                if math.isfinite(movement) and movement > 0:
                    key = 0 if equal is EqualIn.NOTHING else math.floor(math.log(movement) / BIN)
                    again = math.floor(level / RETURN_BIN) if equal is EqualIn.RETURN else 0
                    bins[key, again].append(abs(error))
        found.append(bins)
    total, weight = 0.0, 0
    for key, errors in found[0].items():
        fewest = min(len(errors), len(found[1].get(key, [])))
        if fewest >= LEAST:
            ratio = (sum(errors) / len(errors)) / (sum(found[1][key]) / len(found[1][key]))
            total += fewest * math.log(ratio)
            weight += fewest
    return total / weight


@pytest.mark.parametrize("equal", EqualIn)
def test_ratio_and_error_are_those_of_plain_loops(equal: EqualIn) -> None:
    """The ratio, and the jackknife over seeds: each left out once."""
    one, other = curves(0, 0.8, 0.012, 12), curves(1, 1.0, 0.01, 12)
    found = mean_estimate([{16: paired(one, other, equal)}])
    assert found is not None and found.error is not None and found.n == 12 and found.degrees == 11
    seeds = list(range(12))
    assert found.value == pytest.approx(log_ratio(one, other, seeds, equal), abs=1e-12)
    without = [log_ratio(one, other, [s for s in seeds if s != left], equal) for left in seeds]
    middle = sum(without) / 12
    assert found.error == pytest.approx(math.sqrt(11 / 12 * sum((w - middle) ** 2 for w in without)))
    assert found.high == pytest.approx(found.value + stats.t.ppf(0.975, 11) * found.error)


def test_only_common_seeds_are_compared() -> None:
    (one,), (other,) = (
        of_seeds({Condition("early", "cppo", 16): curves(seed, law, 0.01)}, seeds).values()
        for seed, law, seeds in ((0, 0.5, range(20)), (1, 1.0, range(10, 30)))
    )
    pair = paired(one, other)
    assert pair.seeds == tuple(range(10, 20))
    found = mean_estimate([{16: pair}])
    assert found is not None and found.n == 10
    assert found.value == pytest.approx(log_ratio(one, other, list(range(10, 20))), abs=1e-12)


@pytest.mark.parametrize(("law", "middle"), [(1.0, 0.01), (0.5, 0.01), (0.5, 0.02), (2.0, 0.006)])
def test_movement_is_taken_out(law: float, middle: float) -> None:
    """The ratio of the laws comes out, though one rule moves more or less than the other."""
    one, other = curves(0, law, middle), curves(1, 1.0, 0.01)
    found = mean_estimate([{16: paired(one, other)}])
    assert found is not None and found.low is not None and found.high is not None
    assert found.low < math.log(law) < found.high and found.high - found.low < 0.4
    plain = np.abs(one.error).mean() / np.abs(other.error).mean()
    if middle != 0.01:
        assert abs(math.log(plain / law)) > 0.4


def test_a_rule_that_learns_slowly_is_compared_at_its_own_returns() -> None:
    """Errors that fall with the return: the slower rule's are larger at equal movement, and not at an equal return."""

    def learner(seed: int, speed: float) -> Curves:
        base = curves(seed, 1.0, 0.01)
        returns = np.broadcast_to(1 - np.exp(-speed * np.arange(STEPS)), base.error.shape)
        return dataclasses.replace(base, rollout_returns=returns, error=base.error * (1 - returns))

    slow, fast = learner(0, 0.05), learner(1, 0.1)
    plain, matched = (
        mean_estimate([{16: paired(slow, fast, equal)}]) for equal in (EqualIn.MOVEMENT, EqualIn.RETURN)
    )
    assert plain is not None and matched is not None
    assert math.exp(plain.value) > 1.4
    assert math.exp(matched.value) == pytest.approx(1, abs=0.12)


def test_rules_that_never_move_as_far_cannot_be_compared() -> None:
    assert mean_estimate([{16: paired(curves(0, 1.0, 1e-6), curves(1, 1.0, 1.0))}]) is None


def test_steps_behind_a_collapse_do_not_count() -> None:
    whole, other = curves(0, 0.5, 0.01), curves(1, 1.0, 0.01)
    ended = {
        name: np.where(np.arange(STEPS) < 30, value, np.nan)
        for name, value in vars(whole).items()
        if name not in ("seeds", "by_position")
    }
    broken = dataclasses.replace(whole, **ended)
    short = dataclasses.replace(whole, **{name: value[:, :30] for name, value in ended.items()})
    seeds = list(range(SEEDS))
    found = mean_estimate([{16: paired(broken, other)}])
    assert found is not None and found.value == pytest.approx(log_ratio(short, other, seeds), abs=1e-12)
    assert math.isfinite(summarise(broken).area)


def study(laws: dict[str, dict[int, float]]) -> dict[Condition, Curves]:
    """Variants with an error law for each horizon on one process."""
    return {
        Condition("early", name, horizon): curves(1000 * i + horizon, law, 0.01)
        for i, (name, by_horizon) in enumerate(laws.items())
        for horizon, law in by_horizon.items()
    }


def test_the_slope_is_what_ten_times_the_horizon_changes() -> None:
    """Ratios T^-0.2 change by -0.2 log 10; equal laws by nothing."""
    falling = {h: (h / 16) ** -0.2 for h in HORIZONS}
    found = study(
        {"cppo": falling, "dppo": dict.fromkeys(HORIZONS, 1.0), "same": dict.fromkeys(HORIZONS, 1.0)}
    )
    for one, slope in (("cppo", -0.2 * math.log(10)), ("same", 0.0)):
        estimate = slope_estimate([pairs_of(found, "early", one, "dppo")])
        assert estimate is not None and estimate.error is not None and estimate.error < 0.06
        assert estimate.value == pytest.approx(slope, abs=0.12)
    assert slope_estimate([{16: pairs_of(found, "early", "cppo", "dppo")[16]}]) is None


def claim(**values: object) -> Claim:
    plain = Claim(
        "a",
        "A",
        "s",
        Kind.SUPERIORITY,
        (("cppo",), ("dppo",)),
        smallest=log_size(0.1),
        score=Quantity.ERROR,
        seeds=tuple(range(SEEDS)),
        models=("early",),
    )
    return dataclasses.replace(plain, **values)  # type: ignore[arg-type]


def judged(
    monkeypatch: pytest.MonkeyPatch, found: dict[Condition, Curves], *claims: Claim
) -> tuple[Verdict, ...]:
    """The verdicts on these curves, in a report that has every run."""
    monkeypatch.setattr(verdicts, "read_curves", lambda _board: found)
    monkeypatch.setattr(verdicts, "run_values", lambda _board: ())
    board: Any = SimpleNamespace(runs=(), gaps=(), results=frozenset())
    return verdicts.verdicts({"s": board}, claims)


@pytest.mark.parametrize(
    ("law", "within", "outcome"),
    [
        (0.7, None, "supported"),
        (1.02, None, "not supported"),
        (1.5, None, "not supported"),
        (1.0, 0.15, "supported"),
        (0.6, 0.1, "not supported"),
        (1.6, 0.1, "not supported"),
    ],
)
def test_outcomes(monkeypatch: pytest.MonkeyPatch, law: float, within: float | None, outcome: str) -> None:
    laws = {"cppo": dict.fromkeys(HORIZONS, law), "dppo": dict.fromkeys(HORIZONS, 1.0)}
    margin = None if within is None else log_size(within)
    (found,) = judged(monkeypatch, study(laws), claim(margin=margin))
    assert found.outcome.value == outcome
    assert found.deciding is not None and found.deciding.difference is not None
    assert found.deciding.difference.estimate.value == pytest.approx(-math.log(law), abs=0.12)


def test_a_sure_advantage_below_the_smallest_that_counts_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    laws = {"cppo": dict.fromkeys(HORIZONS, 0.85), "dppo": dict.fromkeys(HORIZONS, 1.0)}
    claims = [claim(smallest=log_size(0.4)), claim(key="next", after="a")]
    first, second = judged(monkeypatch, study(laws), *claims)
    assert first.outcome.value == "supported, below the smallest relevant effect"
    assert first.deciding is not None and first.deciding.outcome is first.outcome
    assert second.after is None


def test_runs_of_other_seeds_do_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """The selection seeds say the opposite of the test seeds."""
    laws = {"cppo": dict.fromkeys(HORIZONS, 0.7), "dppo": dict.fromkeys(HORIZONS, 1.0)}
    found = study(laws)
    for condition, one in found.items():
        if condition.variant == "cppo":
            one.error[15:] *= 4
    (first,) = judged(monkeypatch, found, claim(seeds=tuple(range(15))))
    (second,) = judged(monkeypatch, found, claim(seeds=tuple(range(15, 30))))
    (none,) = judged(monkeypatch, found, claim(seeds=(77,), tests=frozenset([("early", "cppo", 77)])))
    assert (first.outcome.value, second.outcome.value) == ("supported", "not supported")
    assert none.outcome.value == "undecided" and none.provisional
    assert all(one.difference is None for one in none.comparisons)
    assert "where one side has no finished run" in reason(none)


def test_a_claim_behind_an_unsupported_one_is_exploratory(monkeypatch: pytest.MonkeyPatch) -> None:
    laws = {name: dict.fromkeys(HORIZONS, law) for name, law in (("cppo", 1.3), ("dppo", 1.0), ("best", 0.5))}
    claims = [
        claim(key="third", tiers=(("best",), ("dppo",)), after="second"),
        claim(key="second", tiers=(("best",), ("dppo",)), after="first"),
        claim(key="first"),
    ]
    found = judged(monkeypatch, study(laws), *claims)
    assert [one.outcome.value for one in found] == ["supported", "supported", "not supported"]
    assert [one.after and one.after.key for one in found] == ["first", "first", None]


def test_what_no_mechanism_of_a_rule_makes_better_is_a_control() -> None:
    """DPPO without a threshold, and DPPO at another learning rate; every other rule and threshold is none."""
    dppo = {"rule.name": "dppo", "rule.delta": "0.01", "optim.learning_rate": "0.02"}
    params = {
        "dppo": dppo,
        "slower": dppo | {"optim.learning_rate": "0.014"},
        "open": dppo | {"rule.delta": "1.0"},
        "looser": dppo | {"rule.delta": "0.012"},
        "cppo": dppo | {"rule.name": "cppo", "rule.w_min": "0.8", "rule.delta": "1.0"},
    }
    logged = {f"{name} {h}": values for name, values in params.items() for h in HORIZONS}
    cells = {
        ("early", f"{name} max_response_length={h}"): [f"{name} {h}"] for name in params for h in HORIZONS
    }
    board: Any = SimpleNamespace(
        cells=cells,
        data=SimpleNamespace(params=logged),
        runs_of=lambda model, variant: [SimpleNamespace(mlflow_id=run) for run in cells[model, variant]],
    )
    assert controls(board) == {"slower": "placebo", "open": "control"}
    without = {cell: runs for cell, runs in cells.items() if not cell[1].startswith("dppo")}
    board.cells = without
    assert controls(board) == {}


@pytest.mark.parametrize("study", ["exact", "exact_paper_dose", "exact_order"])
def test_documented_outcomes_follow_from_their_p_values(study: str) -> None:
    """The tables are kept longer than the words for an outcome. Each of these hypotheses has one comparison."""
    with (Path(__file__).parents[3] / "docs" / "evidence" / f"{study}_hypotheses.csv").open(
        encoding="utf-8"
    ) as file:
        rows = list(csv.DictReader(file))
    assert rows
    for row in rows:
        p_for, p_against = (float(row[column].replace("< ", "")) for column in ("p for", "p against"))
        assert row["outcome"] == row["comparison"] == outcome_of(p_for, p_against).value


def test_percent_of_an_error_as_an_advantage() -> None:
    assert math.exp(-log_size(0.1)) == pytest.approx(0.9)


def test_two_arms_of_one_rule_differ_in_five_percent() -> None:
    """Both arms from one law: the 95 % interval leaves out 1 in 1 to 9 % of 200 draws."""
    generator = np.random.default_rng(3)
    base = curves(7, 1.0, 0.01, 600)
    outside = []
    for _ in range(200):
        rows = generator.permutation(600)[:48]
        arms = [
            Curves(tuple(range(24)), *(value[part] for name, value in vars(base).items() if name != "seeds"))
            for part in (rows[:24], rows[24:])
        ]
        found = mean_estimate([{16: paired(*arms)}])
        assert found is not None and found.low is not None and found.high is not None
        outside.append((found.low > 0, found.high < 0))
    above, below = np.mean(outside, axis=0)
    assert 0.01 < above + below < 0.095
