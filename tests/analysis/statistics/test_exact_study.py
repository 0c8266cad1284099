"""Errors at equal movement: known ratios are found, whatever the two rules' movements; plain loops are the oracle."""

import csv
import dataclasses
import math
import warnings
from collections import defaultdict
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from scipy import stats

from cppo_lab import schema
from cppo_lab.analysis.statistics import verdicts
from cppo_lab.analysis.statistics.claims import Claim, Kind, log_size
from cppo_lab.analysis.statistics.estimate import Estimate
from cppo_lab.analysis.statistics.exact_study import (
    BIN,
    FEWEST_STEPS,
    METRICS,
    RETURN_BIN,
    Condition,
    Curves,
    EqualIn,
    controls,
    log_ratio_slope,
    mean_log_ratio,
    of_seeds,
    paired,
    pairs_of,
    read_curves,
    summarise,
)
from cppo_lab.analysis.statistics.values import Quantity
from cppo_lab.analysis.statistics.verdicts import Verdict, outcome_of
from cppo_lab.reports.verdict_view import reason
from tests.analysis.made_sweeps import MadeRun, both, scored
from tests.conftest import ROOT

SEEDS, STEPS = 30, 40
HORIZONS = (16, 64, 256)


def curves(seed: int, law: float, middle: float, seeds: int = SEEDS) -> Curves:
    """|Delta| = law * movement^2 with noise of both signs; movement log-normal around `middle`; seeds differ, too."""
    generator = np.random.default_rng(seed)
    movement = middle * np.exp(0.5 * generator.standard_normal((seeds, STEPS)))
    sign = generator.choice([-1, 1], (seeds, STEPS))
    of_seed = np.exp(0.1 * generator.standard_normal((seeds, 1)))
    error = sign * law * movement**2 * of_seed * np.exp(0.3 * generator.standard_normal((seeds, STEPS)))
    returns = np.cumsum(np.full((seeds, STEPS), 0.01), axis=1)
    spread = movement[:, :, None] * np.arange(1, 9) / 4.5
    bounds = {"bound": 50 * abs(error), "product_bound": 5 * abs(error), "theorem_bound": 100 * abs(error)}
    shares = dict.fromkeys(("visits", "positions", "prefixes"), error * np.nan)
    return Curves(
        tuple(range(seeds)),
        error=error,
        movement=movement,
        matched=movement,
        before=movement / 10,
        returns=returns,
        rollout_returns=returns,
        movement_by_position=spread,
        error_by_position=error[:, :, None] * np.arange(8, 0, -1) / 36,
        **bounds,
        **shares,
    )


def compared(ours: Curves, theirs: Curves, equal: EqualIn = EqualIn.MOVEMENT) -> Estimate | None:
    return mean_log_ratio([{16: paired(ours, theirs, equal)}])


def log_ratio(ours: Curves, theirs: Curves, seeds: list[int], equal: EqualIn = EqualIn.MOVEMENT) -> float:
    """The estimator as docs/evidence/exact.md describes it, step by step."""
    bins: Any = defaultdict(lambda: ([], []))  # the errors of both sides
    for number, side in enumerate((ours, theirs)):
        for row in map(side.seeds.index, seeds):
            steps = zip(side.movement[row], side.error[row], side.rollout_returns[row], strict=True)
            for movement, error, level in steps:
                if math.isfinite(movement) and movement > 0:
                    key = 0 if equal is EqualIn.NOTHING else math.floor(math.log(movement) / BIN)
                    again = math.floor(level / RETURN_BIN) if equal is EqualIn.RETURN else 0
                    bins[key, again][number].append(abs(error))
    total, weight = 0.0, 0
    for errors in bins.values():
        fewest = min(map(len, errors))
        if fewest >= FEWEST_STEPS:
            total += fewest * math.log(np.mean(errors[0]) / np.mean(errors[1]))
            weight += fewest
    return total / weight


@pytest.mark.parametrize("equal", EqualIn)
def test_ratio_and_error_are_those_of_plain_loops(equal: EqualIn) -> None:
    """The ratio over the common seeds, and the jackknife over them: each left out once."""
    ours, theirs = curves(0, 0.8, 0.012, 20), curves(1, 1.0, 0.01, 20)
    (ours,) = of_seeds({Condition("early", "cppo", 16): ours}, range(16)).values()
    (theirs,) = of_seeds({Condition("early", "dppo", 16): theirs}, range(4, 20)).values()
    found, seeds = compared(ours, theirs, equal), list(range(4, 16))
    assert (found.n, found.degrees) == (12, 11)
    assert found.value == pytest.approx(log_ratio(ours, theirs, seeds, equal), abs=1e-12)
    without = [log_ratio(ours, theirs, [s for s in seeds if s != left], equal) for left in seeds]
    assert found.error == pytest.approx(math.sqrt(11 / 12 * np.square(without - np.mean(without)).sum()))
    assert found.high == pytest.approx(found.value + stats.t.ppf(0.975, 11) * found.error)
    single = compared(curves(0, 1.0, 0.01, 1), curves(0, 1.0, 0.01, 1))
    assert (single.value, single.error, single.n) == (0, None, 1)


def test_steps_behind_a_collapse_do_not_count() -> None:
    whole, other = curves(0, 0.5, 0.01), curves(1, 1.0, 0.01)
    ended = {
        name: np.where(np.arange(STEPS) < 30, value, np.nan)
        for name, value in vars(whole).items()
        if name != "seeds" and not name.endswith("by_position")
    }
    broken = dataclasses.replace(whole, **ended)
    expected = log_ratio(broken, other, list(range(SEEDS)))
    assert compared(broken, other).value == pytest.approx(expected, abs=1e-12)
    assert math.isfinite(summarise(broken).area)


@pytest.mark.parametrize("horizon, horizons", [("16", [16]), ("0", []), ("9" * 5000, [])])
def test_a_run_whose_horizon_is_no_number_of_tokens_has_no_curves(horizon: str, horizons: list[int]) -> None:
    run = MadeRun("cppo", scores=both({1: 0.5}), logged={METRICS["error"]: {1: 0.1, 10**9: 0.1}})
    found = read_curves(scored([run], params={f"{0:032x}": {schema.HORIZON: horizon}}))
    assert [condition.horizon for condition in found] == horizons
    assert {curves.error.shape for curves in found.values()} <= {(1, 2)}  # whatever the steps are


def study(laws: dict[str, dict[int, float]]) -> dict[Condition, Curves]:
    """Variants with an error law for each horizon on one process."""
    return {
        Condition("early", name, horizon): curves(1000 * i + horizon, law, 0.01)
        for i, (name, by_horizon) in enumerate(laws.items())
        for horizon, law in by_horizon.items()
    }


def test_the_slope_is_what_ten_times_the_horizon_changes() -> None:
    """Ratios T^-0.2 change by -0.2 log 10; equal laws by nothing."""
    falling, level = {h: (h / 16) ** -0.2 for h in HORIZONS}, dict.fromkeys(HORIZONS, 1.0)
    found = study({"same": level, "dppo": level, "cppo": falling})
    for variant, slope in (("same", 0.0), ("cppo", -0.2 * math.log(10))):
        pairs = pairs_of(found, "early", variant, "dppo")
        estimate = log_ratio_slope([pairs])
        assert estimate.error < 0.06 and estimate.value == pytest.approx(slope, abs=0.12)
    assert log_ratio_slope([{16: pairs[16]}]) is None
    assert compared(curves(0, 1.0, 1e-6), curves(1, 1.0, 1.0)) is None  # they never move as far


def test_steps_along_another_training_are_compared_at_the_movement_of_the_update() -> None:
    """A stale mu: measured from there the two rules never move alike."""
    sides = ours, theirs = [
        dataclasses.replace(curves(seed, 1.0, 0.01), movement=np.full((SEEDS, STEPS), 0.3 + 0.3 * seed))
        for seed in (0, 1)
    ]
    assert compared(ours, theirs).value == pytest.approx(0, abs=0.1)
    assert compared(*(dataclasses.replace(side, matched=side.movement) for side in sides)) is None


@pytest.mark.parametrize("exponent", [1.0, 0.3])
def test_how_errors_fall_along_the_response(exponent: float) -> None:
    generator, left = np.random.default_rng(0), 8.5 - np.arange(1, 9)
    movement = generator.uniform(0.5, 2, (SEEDS, STEPS, 8))
    of_seed = np.exp(generator.standard_normal((SEEDS, 1, 1)))
    error = -movement * of_seed * left ** (exponent + 0.1 * generator.standard_normal((SEEDS, 1, 1)))
    whole = dataclasses.replace(curves(0, 1.0, 0.01), movement_by_position=movement, error_by_position=error)
    found = summarise(whole)
    assert found.position_exponent.low < exponent < found.position_exponent.high
    assert found.position_exponent.n == SEEDS
    assert found.error_by_position == pytest.approx(abs(error).mean((0, 1)) / movement.mean((0, 1)))
    without = dataclasses.replace(whole, error_by_position=error * (left > 1))
    assert summarise(without).position_exponent is None
    for part in (error, movement):  # a response of four tokens has none in every second eighth
        part[:, :, ::2] = np.nan
    with warnings.catch_warnings(action="error"):
        short = summarise(whole)
    assert short.position_exponent is None
    assert short.by_position == pytest.approx(movement.mean((0, 1)), nan_ok=True)


def claim(**values: object) -> Claim:
    plain = Claim("a", "A", "s", Kind.SUPERIORITY, (("cppo",), ("dppo",)), smallest=log_size(0.1))
    about = {"score": Quantity.ERROR, "seeds": tuple(range(SEEDS)), "models": ("early",)}
    return dataclasses.replace(plain, **about | values)  # type: ignore[arg-type]


def judged(monkeypatch: pytest.MonkeyPatch, found: dict[Condition, Curves], stated: Claim) -> Verdict:
    """The verdict on these curves, in a report that has every run."""
    monkeypatch.setattr("cppo_lab.analysis.statistics.verdicts.read_curves", lambda _board: found)
    monkeypatch.setattr("cppo_lab.analysis.statistics.verdicts.run_values", lambda _board: ())
    board: Any = SimpleNamespace(runs=(), gaps=(), results=frozenset())
    (verdict,) = verdicts.verdicts({"s": board}, [stated])
    return verdict


def test_runs_of_other_seeds_do_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """The selection seeds say the opposite of the test seeds."""
    found = study({"cppo": dict.fromkeys(HORIZONS, 0.7), "dppo": dict.fromkeys(HORIZONS, 1.0)})
    for condition, of_condition in found.items():
        if condition.variant == "cppo":
            of_condition.error[15:] *= 4
    for seeds, outcome in ((range(15), "supported"), (range(15, 30), "not supported"), ([77], "undecided")):
        tests = frozenset([("early", "cppo", 77)] if outcome == "undecided" else [])
        verdict = judged(monkeypatch, found, claim(seeds=tuple(seeds), tests=tests))
        assert (verdict.outcome.value, verdict.provisional) == (outcome, bool(tests))
        assert ("where one side has no finished run" in reason(verdict)) is bool(tests)


@pytest.mark.parametrize(
    "score, horizons, far", [(Quantity.ERROR_SLOPE, (16,), 0.01), (Quantity.ERROR, HORIZONS, 1.0)]
)
def test_runs_that_are_there_and_cannot_be_compared_are_not_called_missing(
    monkeypatch: pytest.MonkeyPatch, score: Quantity, horizons: tuple[int, ...], far: float
) -> None:
    """A single horizon has no slope; and two rules that never move alike no ratio."""
    found = {
        Condition("early", name, horizon): curves(horizon, 1.0, middle)
        for name, middle in (("cppo", 0.01), ("dppo", far))
        for horizon in horizons
    }
    verdict = judged(monkeypatch, found, claim(score=score))
    assert "where its runs have too few seeds, horizons or movements in common." in reason(verdict)


def test_what_no_mechanism_of_a_rule_makes_better_is_a_control() -> None:
    """DPPO without a threshold, and DPPO at another learning rate; every other rule and threshold is none."""
    dppo = {"rule.name": "dppo", "rule.delta": "0.01", "optim.learning_rate": "0.02"}
    openly = {"rule.delta": "1.0"}
    params = {
        "dppo": dppo,
        "slower": dppo | {"optim.learning_rate": "0.014"},
        "open": dppo | openly,
        "looser": dppo | {"rule.delta": "0.012"},
        "strangers": dppo | {"rule.delta": "none"},
        "nameless": openly,
        "cppo": dppo | openly | {"rule.name": "cppo", "rule.w_min": "0.8"},
    }
    logged = {f"{name} max_response_length={h}": values for name, values in params.items() for h in HORIZONS}
    board: Any = SimpleNamespace(
        cells=[("early", variant) for variant in logged],
        params_of=lambda run: logged[run.mlflow_id],
        runs_of=lambda _model, variant: [SimpleNamespace(mlflow_id=variant)],
    )
    assert controls(board) == {"slower": "placebo", "open": "control"}
    board.cells = [cell for cell in board.cells if not cell[1].startswith("dppo")]
    assert controls(board) == {}


@pytest.mark.parametrize("study", ["exact", "exact_paper_dose", "exact_order"])
def test_documented_outcomes_follow_from_their_p_values(study: str) -> None:
    """The tables are kept longer than the words for an outcome. Each of these hypotheses has one comparison."""
    path = ROOT / "docs" / "evidence" / f"{study}_hypotheses.csv"
    rows = list(csv.DictReader(path.read_text().splitlines()))
    assert rows
    for row in rows:
        p_for, p_against = (float(row[column].replace("< ", "")) for column in ("p for", "p against"))
        assert row["outcome"] == row["comparison"] == outcome_of(p_for, p_against).value
