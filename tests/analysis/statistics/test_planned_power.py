"""The power of a plan: what the verdicts on simulated runs come to, and what is known in closed form."""

import numpy as np
import pytest
from scipy import stats

from cppo_lab.analysis.statistics.claims import MARGIN, Claim, Kind
from cppo_lab.analysis.statistics.power import MOST, STUDIES, Design, planned_power
from cppo_lab.analysis.statistics.values import run_values
from cppo_lab.analysis.statistics.verdicts import VerdictOutcome, judge
from tests.analysis.statistics.made_curves import board_of, flat

ABOVE = Claim("above", "a is above b", "main", Kind.SUPERIORITY, (("a",), ("b",)))
CLAIMS = {
    "each": ABOVE,
    "mean": Claim("mean", "a is above b", "main", Kind.SUPERIORITY, (("a",), ("b",)), over_models=True),
    "best": Claim("best", "a is best", "main", Kind.BEST, (("a",),)),
    "about": Claim("about", "a is about b", "main", Kind.EQUIVALENCE, (("a",), ("b",)), MARGIN),
}
SCORES = {"m": {"a": 0.32, "b": 0.30, "c": 0.29}, "n": {"a": 0.33, "b": 0.31, "c": 0.30}}
ALIKE = {"m": {"a": 0.30, "b": 0.302}, "n": {"a": 0.31, "b": 0.308}}


@pytest.mark.parametrize("name", CLAIMS)
def test_it_is_the_share_of_studies_that_the_verdicts_support(name: str) -> None:
    claim, studies, seeds = CLAIMS[name], 150, 4
    scores, deviation = (ALIKE, 0.007) if name == "about" else (SCORES, 0.01)
    rng, supported = np.random.default_rng(1), 0
    for _ in range(studies):
        runs = [
            run
            for model, of_model in scores.items()
            for run in flat(
                {one: rng.normal(level, deviation, seeds).tolist() for one, level in of_model.items()}, model
            )
        ]
        board = board_of(runs)
        supported += judge(claim, board, run_values(board)).outcome is VerdictOutcome.SUPPORTED
    power = planned_power(claim, scores, deviation, seeds).power
    error = (power * (1 - power) * (1 / studies + 1 / STUDIES)) ** 0.5
    assert 0.1 < power < 0.995
    assert supported / studies == pytest.approx(power, abs=3.5 * error)


@pytest.mark.parametrize(("effect", "seeds"), [(0.01, 3), (0.02, 5), (0.02, 10)])
def test_one_comparison_has_the_power_of_a_paired_t_test(effect: float, seeds: int) -> None:
    deviation = 0.015
    found = planned_power(ABOVE, {"m": {"a": 0.3 + effect, "b": 0.3}}, deviation, seeds).power
    shift = effect * (seeds / 2) ** 0.5 / deviation
    exact = float(stats.nct.sf(stats.t.ppf(0.975, seeds - 1), seeds - 1, shift))
    assert found == pytest.approx(exact, abs=4 * (exact * (1 - exact) / STUDIES) ** 0.5)


def test_over_models_with_common_seeds_it_is_that_of_one_t_test() -> None:
    """The seeds are the units: two models leave as many degrees of freedom as one."""
    seeds, deviation = 4, 0.01
    found = planned_power(CLAIMS["mean"], SCORES, deviation, seeds, Design(common=True)).power
    shift = 0.02 * seeds**0.5 / deviation  # two models: a difference has the deviation of one run
    exact = float(stats.nct.sf(stats.t.ppf(0.975, seeds - 1), seeds - 1, shift))
    assert found == pytest.approx(exact, abs=4 * (exact * (1 - exact) / STUDIES) ** 0.5)


def test_without_an_effect_it_is_the_level() -> None:
    found = planned_power(ABOVE, {"m": {"a": 0.3, "b": 0.3}}, 0.01, 5)
    assert found.power == pytest.approx(0.025, abs=0.01)
    assert found.needed is None


def test_the_seeds_that_it_takes() -> None:
    found = planned_power(CLAIMS["best"], SCORES, 0.01, 3)
    assert found.needed is not None and 3 < found.needed < MOST
    assert planned_power(CLAIMS["best"], SCORES, 0.01, found.needed).power >= 0.8
    assert planned_power(CLAIMS["best"], SCORES, 0.01, found.needed - 1).power < 0.8
    assert found.comparisons == 4
    assert planned_power(CLAIMS["mean"], SCORES, 0.01, 1).power == 0.0  # one seed shows no spread


def test_a_claim_without_one_of_its_methods_cannot_be_decided() -> None:
    found = planned_power(ABOVE, {"m": {"a": 0.5, "c": 0.3}}, 0.01, 5)
    assert (found.power, found.needed) == (0.0, None)


@pytest.mark.parametrize(("scores", "deviation"), [({}, 0.01), (SCORES, 0.0)])
def test_nothing_to_compare(scores: dict[str, dict[str, float]], deviation: float) -> None:
    with pytest.raises(ValueError, match="nothing to compare"):
        planned_power(ABOVE, scores, deviation, 3)
