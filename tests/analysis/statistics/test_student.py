"""Student's t against SciPy."""

import pytest
from scipy import stats

from cppo_lab.analysis.statistics.student import t_cdf, t_quantile

DEGREES = (0.7, 1, 1.5, 2, 3.7, 9, 40, 1e3, 1e6, 1e9)


@pytest.mark.parametrize("degrees", DEGREES)
@pytest.mark.parametrize("t", [-40.0, -2.5, -0.1, 0.0, 1e-9, 0.7, 3.0, 25.0])
def test_distribution(t: float, degrees: float) -> None:
    assert t_cdf(t, degrees) == pytest.approx(stats.t.cdf(t, degrees), rel=1e-7, abs=1e-14)


@pytest.mark.parametrize("degrees", DEGREES)
@pytest.mark.parametrize("probability", [0.001, 0.2, 0.5, 0.8, 0.975, 0.9999])
def test_quantile(probability: float, degrees: float) -> None:
    assert t_quantile(probability, degrees) == pytest.approx(
        stats.t.ppf(probability, degrees), rel=1e-6, abs=1e-9
    )


def test_what_makes_no_sense_is_refused() -> None:
    with pytest.raises(ValueError, match="degrees"):
        t_cdf(1.0, 0)
    with pytest.raises(ValueError, match="probability"):
        t_quantile(1.0, 3)
