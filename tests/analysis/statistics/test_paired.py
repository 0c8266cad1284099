"""Differences by seed, unpaired and over models, what decides which, and slopes over models: against SciPy."""

import itertools
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
from scipy import stats

from cppo_lab.analysis.inputs import USUAL, AxisPlace, Baseline
from cppo_lab.analysis.statistics.claims import Claim, Kind
from cppo_lab.analysis.statistics.estimate import NO_SPREAD, Estimate, SlopeEstimate, mean_estimate
from cppo_lab.analysis.statistics.paired import (
    TOO_FEW,
    Difference,
    Effect,
    difference,
    difference_of,
    effects,
    mean_difference,
    slope,
    slope_weights,
)
from cppo_lab.analysis.statistics.power import STUDIES as PLANNED
from cppo_lab.analysis.statistics.power import Design, error_with, planned_power, reached_power
from cppo_lab.analysis.statistics.values import FinishedRuns, Score, run_values
from tests.analysis.made_sweeps import scored
from tests.analysis.statistics.made_curves import STUDIES, flat

OURS = {0: 0.31, 1: 0.28, 2: 0.36, 3: 0.33}
THEIRS = {0: 0.30, 1: 0.21, 2: 0.27, 3: 0.25}


def test_shared_seeds_are_paired_whatever_their_order() -> None:
    value, paired = difference_of(OURS, dict(reversed(THEIRS.items())))
    reference = stats.ttest_rel([*OURS.values()], [*THEIRS.values()])
    assert paired and value.n == 4
    expected = *reference.confidence_interval(), reference.pvalue
    assert (value.low, value.high, value.p_value()) == pytest.approx(expected)
    some, paired = difference_of(OURS, {1: 0.21, 3: 0.25, 9: 0.9})  # only the pairs count
    assert paired and (some.n, some.value) == (2, pytest.approx((0.07 + 0.08) / 2))
    level = {0: 0.1, 1: 0.3, 2: 0.7}  # what the seed does to both cancels: no interval of width 0
    same, _ = difference_of({seed: base + 0.05 for seed, base in level.items()}, level)
    assert (same.value, same.unknown) == (pytest.approx(0.05), NO_SPREAD)


@pytest.mark.parametrize("shared", [7, 0])
def test_without_two_shared_seeds_it_is_welchs(shared: int) -> None:
    theirs = {shared: 0.30, 8: 0.21, 9: 0.27}
    value, paired = difference_of(OURS, theirs)
    reference = stats.ttest_ind([*OURS.values()], [*theirs.values()], equal_var=False)
    assert not paired and value.n == 3
    lead = np.mean([*OURS.values()]) - 0.26
    assert (value.value, value.p_value()) == pytest.approx((lead, reference.pvalue))


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
    params = {
        f"{number:032x}": {key: str(run.seed) if value == "own" else value for key, value in logged.items()}
        for number, run in enumerate(runs)
    }
    starts = frozenset(params if drawn else ())
    values = run_values(scored(runs, pairing=pairing, params=params, drawn_starts=starts))
    parts: list[Any] = [difference(values, model, "a", "b", Score.FINAL) for model in "mn"]
    assert [part.paired for part in parts] == [paired, paired]
    mean = mean_difference(parts, values).estimate
    assert mean.value == pytest.approx((0.29 + 0.89) / 6)
    by_seed = [0.2, 0.24, 0.15]  # by hand: the mean of each seed's leads
    assert ((mean.error, mean.degrees) == pytest.approx((stats.sem(by_seed), 2))) is (paired and drawn)
    if paired and not drawn:  # independent models: Satterthwaite's
        assert mean.error == pytest.approx(sum((part.estimate.error / 2) ** 2 for part in parts) ** 0.5)
    if paired and drawn:  # a gap leaves two of the seeds, and the runs of these count
        values = FinishedRuns(run for run in values if (run.model, run.seed) != ("m", 0))
        parts = [difference(values, model, "a", "b", Score.FINAL) for model in "mn"]
        assert mean_difference(parts, values).estimate.n == 4
        values = FinishedRuns(run for run in values if (run.model, run.seed) != ("n", 1))
        assert mean_difference(parts, values).estimate.unknown  # one seed: the models are not independent
    assert difference(values, "m", "a", "grpo", Score.FINAL) is None


def test_no_interval_passes_what_two_scores_can_differ_by() -> None:
    """Those of two seeds are wide, over models and of effects, too: a lead changes by 200 points at most."""
    scores, places = factorial("a", lambda axis: [0.9 - axis, 0.3 + axis], (0.0, 0.5))
    wide = scores | {"b": [0.1, 0.3]}
    values = run_values(scored([*flat(wide, "m", "n")]))
    parts: list[Any] = [difference(values, model, "a (0.0,)", "b", Score.FINAL) for model in "mn"]
    on_one, mean = parts[0].estimate, mean_difference(parts, values).estimate
    assert (on_one.low, on_one.high, mean.high) == (-1, 1, 1) and mean.value + mean.half > 1.5
    [effect] = measured(scores, places).values()
    assert (effect.low, effect.high) == (-1, 1)
    against = Baseline("b", {place.variant: "b" for place in places})
    of_lead = measured(wide, places, against)[Effect("m", "a", "b", ((0, 0.0, 0.5),))]
    assert (of_lead.low, of_lead.high) == (-2, 2)


LENGTHS = {"small": 3000.0, "base": 6000.0, "large": 8000.0, "long": 10_000.0}  # tokens
TREND = Claim("t", "grows", "main", Kind.TREND, (("a",), ("b",)), smallest=0.005)


def slope_of(leads: dict[str, np.ndarray]) -> SlopeEstimate:
    """The slope of leads by seed (model -> one for each pair of runs)."""
    parts = [
        Difference(model, "a", "b", Score.FINAL, mean_estimate(values.tolist()), True, 1, 1, None)
        for model, values in leads.items()
    ]
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
        squares = weights**2 * np.var([*leads.values()], axis=1, ddof=1) / 4
        degrees = squares.sum() ** 2 / (squares**2 / 3).sum()
        halves = stats.t.ppf(0.975, [2, degrees]) * (line.stderr, squares.sum() ** 0.5)
        assert (found.value, found.half) == pytest.approx((line.slope, max(halves)))
        widest.add(np.argmax(halves))
    assert widest == {0, 1}


def test_the_slope_of_two_models_has_no_interval_and_no_power() -> None:
    wiggle = np.array([0.0, 0.001, 0.002])
    found = slope_of({"small": 0.01 + wiggle, "long": 0.05 + wiggle})
    assert (found.error, found.unknown) == (None, TOO_FEW)
    assert reached_power(TREND, [found], 3).unknown == TOO_FEW
    scores = {"small": {"a": 0.3, "b": 0.3}, "long": {"a": 0.5, "b": 0.3}}
    assert planned_power(TREND, scores, 0.001, 5, Design(lengths=LENGTHS)).power == 0.0


@pytest.mark.parametrize("scatter", [0.0, 0.005])
def test_the_planned_power_of_a_trend_is_the_share_of_studies_above_0(scatter: float) -> None:
    rng, seeds, deviation = np.random.default_rng(2), 5, 0.01
    x = np.log2(list(LENGTHS.values()))
    lead = dict(zip(LENGTHS, 0.025 * x + scatter * np.array([1, -1, 0, 0]), strict=True))
    scores = {model: {"a": lead[model], "b": 0.0} for model in LENGTHS}
    power = planned_power(TREND, scores, deviation, seeds, Design(lengths=LENGTHS)).power
    supported = sum(
        slope_of({model: rng.normal(lead[model], 2**0.5 * deviation, seeds) for model in LENGTHS}).low > 0
        for _ in range(STUDIES)
    )
    assert 0.05 < power < 0.95
    error = (power * (1 - power) * (1 / STUDIES + 1 / PLANNED)) ** 0.5
    assert supported / STUDIES == pytest.approx(power, abs=3.5 * error)


def test_more_seeds_narrow_the_one_interval_alone() -> None:
    rng = np.random.default_rng(1)
    steep = {"small": 0.0, "base": 0.02, "large": 0.01, "long": 0.04}
    found = slope_of({model: lead + rng.normal(0, 0.001, 4) for model, lead in steep.items()})
    assert error_with(found, 4, 4) == error_with(found, 4, 400) == (found.models.error, 2)
    power = reached_power(TREND, [found], 4)
    assert (power.needed, power.unknown) == (None, "")
    wiggle = np.array([0.01, -0.01, 0.02, -0.02])  # the models are on the line but for 0.0001
    alike = {"small": 0.0, "base": 0.0101, "large": 0.0142, "long": 0.0173}
    found = slope_of({model: lead + wiggle for model, lead in alike.items()})
    errors = [error_with(found, 4, n)[0] for n in (4, 16)]
    assert errors == pytest.approx([found.seeds.error, found.seeds.error / 2])


A, B, C = (0, 0, 8), (1, "own", "padded"), (2, None, 20.0)
Scores = Mapping[str, list[float]]


def measured(scores: Scores, places: list[AxisPlace], baseline: Baseline = USUAL) -> dict[Effect, Estimate]:
    """Variant -> the final means of its seeds."""
    return effects(run_values(scored(flat(scores))), "m", places, baseline, Score.FINAL)


def factorial(
    group: str, score: Callable[..., list[float]], *levels: tuple[object, ...]
) -> tuple[dict[str, list[float]], list[AxisPlace]]:
    """Every combination of the levels of the axes, with its scores."""
    cells = {f"{group} {values}": values for values in itertools.product(*levels)}
    scores = {name: score(*values) for name, values in cells.items()}
    return scores, [AxisPlace(name, group, values) for name, values in cells.items()]  # type: ignore[arg-type]


def test_effects_are_least_squares_coefficients_of_each_seed() -> None:
    """Dummies of -1/2 and 1/2 with all products: SciPy's t test of the coefficients, one for each seed."""
    drawn = np.random.default_rng(1).normal(0.5, 0.1, (8, 5))
    table = iter(drawn)
    scores, places = factorial("cppo", lambda *_: list(next(table)), (0, 8), ("own", "padded"), (None, 20.0))
    codes = np.array(list(itertools.product((-0.5, 0.5), repeat=3)))
    design = np.stack(
        [np.prod(codes[:, list(c)], axis=1) for n in range(4) for c in itertools.combinations(range(3), n)]
    )
    coefficients = np.linalg.lstsq(design.T, drawn, rcond=None)[0]
    found = measured(scores, places)
    expected = [(A,), (B,), (C,), (A, B), (A, C), (B, C)]
    assert list(found) == [Effect("m", "cppo", "", changes) for changes in expected]
    for estimate, by_seed in zip(found.values(), coefficients[1:7], strict=True):
        reference = stats.ttest_1samp(by_seed, 0.0)
        assert estimate.value == pytest.approx(by_seed.mean())
        assert (estimate.low, estimate.high) == pytest.approx(tuple(reference.confidence_interval()))
        assert (estimate.p_value(), estimate.n) == (pytest.approx(reference.pvalue), 5)


STARTS = (0.01, -0.02, 0.03)


def lead(size: float) -> Callable[..., list[float]]:
    """A lead of `size` at staleness 8, a fall with it, and a start of each seed which is not additive."""
    return lambda age, cap: [
        0.5 + (size if age == 8 else 0.01) - 0.01 * age + start * (1 + age) + 0.02 * (cap == 20.0)
        for start in STARTS
    ]


def test_leads_are_over_the_baseline_at_the_same_values_and_the_middle_is_averaged_over() -> None:
    ours, at = factorial("cppo", lead(0.11), (0, 2, 8), (None, 20.0))
    theirs, at_theirs = factorial("dppo", lead(0.01), (0, 2, 8), (None, 20.0))
    baseline = Baseline("dppo", {name: name.replace("cppo", "dppo") for name in (*ours, *theirs)})
    found = measured(ours | theirs, [*at, *at_theirs], baseline)
    value = {(e.group, e.against, e.changes): round(of.value, 9) for e, of in found.items()}
    cap = (1, None, 20.0)
    # The lead is 0, 0 and 0.1, the cap adds 0.02 to both; the seeds' starts cancel in the lead alone.
    leads = [value["cppo", "dppo", changes] for changes in ((), (A,), (cap,), (A, cap))]
    assert leads == pytest.approx([0.1 / 3, 0.1, 0, 0])
    assert value["dppo", "", (A,)] == pytest.approx(-0.08 + 8 * np.mean(STARTS))
    assert value["cppo", "", (cap,)] == pytest.approx(0.02)
    assert ("cppo", "", ()) not in value and ("dppo", "dppo", ()) not in value
    fixed = measured(ours | theirs, [*at, *at_theirs], Baseline("dppo (0, None)"))
    assert not any(effect.against for effect in fixed)


def test_what_is_missing_confounds_nothing() -> None:
    scores, places = factorial("cppo", lead(0.11), (0, 8), ("own", "padded"))
    full = measured(scores, places)[Effect("m", "cppo", "", (A,))]
    first, second, _, fourth = (place.variant for place in places)
    # A seed without one of the runs is left out.
    short = measured(scores | {first: scores[first][:2]}, places)
    assert short[Effect("m", "cppo", "", (A,))].n == 2 < full.n
    # A cell that is not declared takes its counterpart with it.
    excluded = {name: values for name, values in scores.items() if name != first}
    found = measured(excluded, places[1:])
    apart = np.mean(scores[fourth]) - np.mean(scores[second])
    assert found[Effect("m", "cppo", "", (A,))].value == pytest.approx(apart)
    assert Effect("m", "cppo", "", (A, B)) not in found
    # A declared cell without any result leaves no effect that needs it, rather than half of it.
    assert not measured(excluded, places)
