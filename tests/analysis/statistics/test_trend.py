"""The slope of a lead over the response length, in simulated studies in which length does nothing, and in others."""

import numpy as np
import pytest
from scipy import stats

from cppo_lab.analysis.statistics.claims import Claim, Kind
from cppo_lab.analysis.statistics.estimate import SlopeEstimate, mean_estimate
from cppo_lab.analysis.statistics.paired import TOO_FEW, Difference, slope
from cppo_lab.analysis.statistics.power import STUDIES as PLANNED
from cppo_lab.analysis.statistics.power import Design, planned_power, reached_power, spread_of
from cppo_lab.analysis.statistics.values import Score
from tests.analysis.statistics.test_coverage import STUDIES, margin

LENGTHS = {"small": 3000.0, "base": 6000.0, "large": 8000.0, "long": 10_000.0}  # tokens
TREND = Claim("t", "grows", "main", Kind.TREND, (("a",), ("b",)), smallest=0.005)


def slope_of(leads: dict[str, np.ndarray], lengths: dict[str, float] = LENGTHS) -> SlopeEstimate:
    """The slope of leads by seed (model -> one for each pair of runs)."""
    parts = []
    for model, values in leads.items():
        found = mean_estimate(values.tolist())
        assert found is not None
        parts.append(Difference(model, "a", "b", Score.FINAL, found, True, len(values), len(values), None))
    whole = slope(parts, lengths, ())
    assert whole is not None and isinstance(whole.estimate, SlopeEstimate)
    return whole.estimate


@pytest.mark.parametrize("seeds", [3, 5])
@pytest.mark.parametrize(
    ("scatter", "spread"),
    [(0.0, (1.5,) * 4), (1.0, (1.5,) * 4), (2.0, (1.5,) * 4), (1.0, (1.0, 1.0, 1.0, 6.0))],
    ids=["models alike", "scatter 1", "scatter 2", "one noisy model"],
)
def test_length_that_does_nothing(scatter: float, spread: tuple[float, ...], seeds: int) -> None:
    """Leads differ between models by `scatter` points and between the seeds of a model by `spread`."""
    rng, claimed = np.random.default_rng(seeds), 0
    for _ in range(STUDIES):
        leads = {
            model: 0.03 + 0.01 * (rng.normal(0, scatter) + rng.normal(0, of_model, seeds))
            for model, of_model in zip(LENGTHS, spread, strict=True)
        }
        low = slope_of(leads).low
        assert low is not None
        claimed += low > 0
    assert claimed / STUDIES <= 0.025 + margin(0.025) / 2


def test_the_wider_of_two_intervals() -> None:
    rng, x = np.random.default_rng(0), np.log2(list(LENGTHS.values()))
    weights = (x - x.mean()) / ((x - x.mean()) ** 2).sum()
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
        assert found.value == pytest.approx(line.slope) and found.half == pytest.approx(max(halves))
        widest.add(np.argmax(halves))
    assert widest == {0, 1}


def test_two_models_have_no_interval() -> None:
    leads = {"small": np.array([0.01, 0.011, 0.012]), "long": np.array([0.05, 0.051, 0.052])}
    found = slope_of(leads)
    assert (found.error, found.unknown) == (None, TOO_FEW)
    power = reached_power(TREND, [found], 3)
    assert power is not None and power.unknown == TOO_FEW
    scores = {"small": {"a": 0.3, "b": 0.3}, "long": {"a": 0.5, "b": 0.3}}
    assert planned_power(TREND, scores, 0.001, 5, Design(lengths=LENGTHS)).power == 0.0


def test_a_scatter_of_the_models_takes_no_number_of_seeds() -> None:
    """More seeds narrow the one interval alone."""
    rng = np.random.default_rng(1)
    steep = {"small": 0.0, "base": 0.02, "large": 0.01, "long": 0.04}
    found = slope_of({model: lead + rng.normal(0, 0.001, 4) for model, lead in steep.items()})
    spread = spread_of(found, 4)
    assert found.models is not None and spread is not None
    assert spread.at(4) == spread.at(400) == (found.models.error, 2)
    power = reached_power(TREND, [found], 4)
    assert power is not None and (power.needed, power.unknown) == (None, "")
    wiggle = np.array([0.01, -0.01, 0.02, -0.02])  # the models are on the line but for 0.0001
    alike = {"small": 0.0, "base": 0.0101, "large": 0.0142, "long": 0.0173}
    found = slope_of({model: lead + wiggle for model, lead in alike.items()})
    spread = spread_of(found, 4)
    assert found.seeds is not None and found.seeds.error is not None and spread is not None
    assert spread.at(4)[0] == found.seeds.error and spread.at(16)[0] == pytest.approx(found.seeds.error / 2)


@pytest.mark.parametrize("scatter", [0.0, 0.005])
def test_the_planned_power_is_the_share_of_studies_with_an_interval_above_0(scatter: float) -> None:
    rng, seeds, deviation = np.random.default_rng(2), 5, 0.01
    x = np.log2(list(LENGTHS.values()))
    lead = dict(zip(LENGTHS, 0.025 * x + scatter * np.array([1, -1, 0, 0]), strict=True))
    power = planned_power(
        TREND,
        {model: {"a": lead[model], "b": 0.0} for model in LENGTHS},
        deviation,
        seeds,
        Design(lengths=LENGTHS),
    ).power
    supported = 0
    for _ in range(STUDIES):
        low = slope_of({model: rng.normal(lead[model], 2**0.5 * deviation, seeds) for model in LENGTHS}).low
        supported += low is not None and low > 0
    assert 0.05 < power < 0.95
    error = (power * (1 - power) * (1 / STUDIES + 1 / PLANNED)) ** 0.5
    assert supported / STUDIES == pytest.approx(power, abs=3.5 * error)
