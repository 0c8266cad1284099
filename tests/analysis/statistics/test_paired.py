"""Differences by seed, unpaired and over models, what decides which, and slopes over models: against SciPy."""

from typing import Any

import numpy as np
import pytest
from scipy import stats

from cppo_lab.analysis.statistics.claims import Claim, Kind
from cppo_lab.analysis.statistics.estimate import NO_SPREAD, SlopeEstimate, mean_estimate
from cppo_lab.analysis.statistics.paired import (
    TOO_FEW,
    Difference,
    difference,
    difference_of,
    mean_difference,
    slope,
    slope_weights,
)
from cppo_lab.analysis.statistics.power import Design, planned_power, reached_power, spread_of
from cppo_lab.analysis.statistics.values import FinishedRuns, Score, run_values
from tests.analysis.made_sweeps import scored
from tests.analysis.statistics.made_curves import flat

OURS = {0: 0.31, 1: 0.28, 2: 0.36, 3: 0.33}
THEIRS = {0: 0.30, 1: 0.21, 2: 0.27, 3: 0.25}


def test_shared_seeds_are_paired_whatever_their_order() -> None:
    value, paired = difference_of(OURS, dict(reversed(THEIRS.items())))
    reference = stats.ttest_rel(list(OURS.values()), list(THEIRS.values()))
    assert paired and value.n == 4
    assert (value.low, value.high) == pytest.approx(tuple(reference.confidence_interval()))
    assert value.p_value() == pytest.approx(reference.pvalue)
    some, paired = difference_of(OURS, {1: 0.21, 3: 0.25, 9: 0.9})  # only the pairs count
    assert paired and (some.n, some.value) == (2, pytest.approx((0.07 + 0.08) / 2))
    level = {0: 0.1, 1: 0.3, 2: 0.7}  # what the seed does to both cancels: no interval of width 0
    same, _ = difference_of({seed: base + 0.05 for seed, base in level.items()}, level)
    assert (same.value, same.unknown) == (pytest.approx(0.05), NO_SPREAD)


@pytest.mark.parametrize("theirs", [{7: 0.30, 8: 0.21, 9: 0.27}, {0: 0.30, 8: 0.21, 9: 0.27}])
def test_without_two_shared_seeds_it_is_welchs(theirs: dict[int, float]) -> None:
    value, paired = difference_of(OURS, theirs)
    reference = stats.ttest_ind(list(OURS.values()), list(theirs.values()), equal_var=False)
    assert not paired
    assert (value.value, value.n) == (pytest.approx(np.mean([*OURS.values()]) - 0.26), 3)
    assert value.p_value() == pytest.approx(reference.pvalue)


OWN = {"model.warm_start.steps": "100"}
LARGE = {"model.name": "qwen3_8b_base"}
NOISE = {"model.start_noise": "0.3"}


@pytest.mark.parametrize(
    "logged, drawn, pairing, paired",
    [
        ({}, False, None, True),
        ({**OWN, "model.warm_start.seed": "own"}, False, None, True),
        ({**OWN, "model.warm_start.seed": "0"}, False, None, False),  # one start for all
        (LARGE, False, None, False),  # one model
        (LARGE, False, True, True),  # the file says so
        (OWN, False, False, False),
        (NOISE, True, None, True),  # by the core
        (NOISE, True, False, False),
        ({**OWN, "model.warm_start.seed": "0"}, True, None, False),
    ],
)
def test_methods_are_paired_by_what_their_runs_share_or_by_the_file(
    logged: dict[str, str], drawn: bool, pairing: bool | None, paired: bool
) -> None:
    """Where the core's seed draws the starts of all models (`drawn`), seeds are the units over models, too."""
    runs = [
        *flat({"a": [0.3, 0.4, 0.5], "b": [0.2, 0.31, 0.4]}),
        *flat({"a": [0.5, 0.7, 0.6], "b": [0.2, 0.31, 0.4]}, "n"),
    ]
    ids = [f"{number:032x}" for number in range(len(runs))]
    params = {
        mlflow_id: {key: str(run.seed) if value == "own" else value for key, value in logged.items()}
        for mlflow_id, run in zip(ids, runs, strict=True)
    }
    starts = frozenset(ids if drawn else ())
    values = run_values(scored(runs, pairing=pairing, params=params, drawn_starts=starts))
    parts: list[Any] = [difference(values, model, "a", "b", Score.FINAL) for model in "mn"]
    assert [part.paired for part in parts] == [paired, paired]
    mean = mean_difference(parts, values).estimate
    assert mean.value == pytest.approx((0.29 + 0.89) / 6)
    by_seed = [(0.1 + 0.3) / 2, (0.09 + 0.39) / 2, (0.1 + 0.2) / 2]  # by hand: the mean of each seed
    assert ((mean.error, mean.degrees) == pytest.approx((stats.sem(by_seed), 2))) is (paired and drawn)
    if paired and not drawn:  # independent models: Satterthwaite's
        assert mean.error == pytest.approx(sum((part.estimate.error / 2) ** 2 for part in parts) ** 0.5)
    assert difference(values, "m", "a", "grpo", Score.FINAL) is None


LENGTHS = {"small": 3000.0, "base": 6000.0, "large": 8000.0, "long": 10_000.0}  # tokens
TREND = Claim("t", "grows", "main", Kind.TREND, (("a",), ("b",)), smallest=0.005)


def slope_of(leads: dict[str, np.ndarray]) -> SlopeEstimate:
    """The slope of leads by seed (model -> one for each pair of runs)."""
    parts = []
    for model, values in leads.items():
        mean, n = mean_estimate(values.tolist()), len(values)
        parts.append(Difference(model, "a", "b", Score.FINAL, mean, True, n, n, None))
    return slope(parts, LENGTHS, FinishedRuns()).estimate


def test_a_slope_has_the_wider_of_two_intervals() -> None:
    rng, x = np.random.default_rng(0), np.log2(list(LENGTHS.values()))
    weights = (x - x.mean()) / ((x - x.mean()) ** 2).sum()
    assert slope_weights(list(LENGTHS.values())) == pytest.approx(weights)
    assert slope_weights([64.0, 64.0]) is slope_weights([64.0]) is slope_weights([]) is None
    widest = set()
    for scatter in [0.0, 0.02] * 20:
        leads = {model: rng.normal(rng.normal(0, scatter), 0.02, 4) for model in LENGTHS}
        found = slope_of(leads)
        line = stats.linregress(x, [values.mean() for values in leads.values()])
        squares = weights**2 * np.array([values.var(ddof=1) / 4 for values in leads.values()])
        degrees = squares.sum() ** 2 / (squares**2 / 3).sum()
        halves = (
            stats.t.ppf(0.975, 2) * line.stderr,
            stats.t.ppf(0.975, degrees) * squares.sum() ** 0.5,
        )
        assert (found.value, found.half) == pytest.approx((line.slope, max(halves)))
        widest.add(np.argmax(halves))
    assert widest == {0, 1}


def test_the_slope_of_two_models_has_no_interval_and_no_power() -> None:
    found = slope_of({"small": np.array([0.01, 0.011, 0.012]), "long": np.array([0.05, 0.051, 0.052])})
    assert (found.error, found.unknown) == (None, TOO_FEW)
    assert reached_power(TREND, [found], 3).unknown == TOO_FEW
    scores = {"small": {"a": 0.3, "b": 0.3}, "long": {"a": 0.5, "b": 0.3}}
    assert planned_power(TREND, scores, 0.001, 5, Design(lengths=LENGTHS)).power == 0.0


def test_more_seeds_narrow_the_one_interval_alone() -> None:
    rng = np.random.default_rng(1)
    steep = {"small": 0.0, "base": 0.02, "large": 0.01, "long": 0.04}
    found = slope_of({model: lead + rng.normal(0, 0.001, 4) for model, lead in steep.items()})
    spread = spread_of(found, 4)
    assert spread.at(4) == spread.at(400) == (found.models.error, 2)
    power = reached_power(TREND, [found], 4)
    assert (power.needed, power.unknown) == (None, "")
    wiggle = np.array([0.01, -0.01, 0.02, -0.02])  # the models are on the line but for 0.0001
    alike = {"small": 0.0, "base": 0.0101, "large": 0.0142, "long": 0.0173}
    found = slope_of({model: lead + wiggle for model, lead in alike.items()})
    spread = spread_of(found, 4)
    assert spread.at(4)[0] == found.seeds.error and spread.at(16)[0] == pytest.approx(found.seeds.error / 2)
