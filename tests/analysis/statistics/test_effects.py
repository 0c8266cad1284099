"""Effects of a factorial sweep: least squares with SciPy's t test, those put in, gaps, and simulated coverage."""

import itertools
from collections.abc import Callable, Mapping

import numpy as np
import pytest
from scipy import stats

from cppo_lab.analysis.inputs import USUAL, AxisPlace, Baseline
from cppo_lab.analysis.statistics.estimate import Estimate
from cppo_lab.analysis.statistics.paired import Effect, effects
from cppo_lab.analysis.statistics.values import FinishedRuns, RunValues, Score
from tests.analysis.statistics.test_coverage import honest

A, B, C = (0, 0, 8), (1, "own", "padded"), (2, None, 20.0)
Scores = Mapping[str, list[float]]


def measured(scores: Scores, places: list[AxisPlace], baseline: Baseline = USUAL) -> dict[Effect, Estimate]:
    """Variant -> the final means of its seeds."""
    runs = (
        RunValues("m", variant, seed, False, score, None, score, score, None, 1, 1)
        for variant, of_seeds in scores.items()
        for seed, score in enumerate(of_seeds)
    )
    return effects(FinishedRuns(runs), "m", places, baseline, Score.FINAL)


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
        0.5 + (size if age == 8 else 0.01) - 0.01 * age + start * (1 + age) + (0.02 if cap == 20.0 else 0.0)
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
    assert value["cppo", "dppo", ()] == pytest.approx(0.1 / 3)
    assert value["cppo", "dppo", (A,)] == pytest.approx(0.1)
    assert value["cppo", "dppo", (cap,)] == value["cppo", "dppo", (A, cap)] == 0
    assert value["dppo", "", (A,)] == pytest.approx(-0.08 + 8 * np.mean(STARTS))
    assert value["cppo", "", (cap,)] == pytest.approx(0.02)
    assert ("cppo", "", ()) not in value and ("dppo", "dppo", ()) not in value
    fixed = measured(ours | theirs, [*at, *at_theirs], Baseline("dppo (0, None)"))
    assert not any(effect.against for effect in fixed)


def test_what_is_missing_confounds_nothing() -> None:
    scores, places = factorial("cppo", lead(0.11), (0, 8), ("own", "padded"))
    full = measured(scores, places)[Effect("m", "cppo", "", (A,))]
    # A seed without one of the runs is left out.
    short = measured({**scores, places[0].variant: scores[places[0].variant][:2]}, places)
    assert short[Effect("m", "cppo", "", (A,))].n == 2 < full.n
    # A cell that is not declared takes its counterpart with it.
    excluded = {name: values for name, values in scores.items() if name != places[0].variant}
    found = measured(excluded, places[1:])
    pair = [a - b for a, b in zip(scores[places[3].variant], scores[places[1].variant], strict=True)]
    assert found[Effect("m", "cppo", "", (A,))].value == pytest.approx(np.mean(pair))
    assert Effect("m", "cppo", "", (A, B)) not in found
    # A declared cell without any result leaves no effect that needs it, rather than half of it.
    assert not measured(excluded, places)


def test_intervals_cover_effects_of_runs_that_share_their_start() -> None:
    """Four seeds; the start, which also changes what staleness does, varies far more than a run."""

    def study(rng: np.random.Generator, changes: tuple[object, ...]) -> Estimate:
        starts, slopes = rng.normal(0.5, 0.06, 4), rng.normal(-0.002, 0.001, 4)
        scores, places = factorial(
            "cppo",
            lambda age, span: list(starts + slopes * age * (1 + (span == "own")) + rng.normal(0, 0.01, 4)),
            (0, 8),
            ("own", "padded"),
        )
        return measured(scores, places)[Effect("m", "cppo", "", changes)]  # type: ignore[arg-type]

    assert honest(-0.002 * 8 * 1.5, lambda rng: study(rng, (A,)), 0)
    assert honest(0.002 * 8, lambda rng: study(rng, (A, B)), 1)
