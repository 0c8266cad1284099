"""Survival curves and the log-rank test against SciPy, and against all divisions of the runs counted one by one."""

import itertools

import numpy as np
import pytest
from scipy import stats

from cppo_lab.analysis.statistics import collapse as survival
from cppo_lab.analysis.statistics.collapse import RunTime, kaplan_meier, logrank


def times(text: str) -> list[RunTime]:
    """`12 20+`: a collapse at step 12, a run that ended at step 20."""
    return [RunTime(int(word.rstrip("+")), not word.endswith("+")) for word in text.split()]


def censored(runs: list[RunTime]) -> stats.CensoredData:
    return stats.CensoredData(
        uncensored=[run.step for run in runs if run.collapsed],
        right=[run.step for run in runs if not run.collapsed],
    )


# The leukaemia trial of Freireich et al. (1963), the textbooks' example: 6-mercaptopurine and placebo.
TREATED = times("6 6 6 7 10 13 16 22 23 6+ 9+ 10+ 11+ 17+ 19+ 20+ 25+ 32+ 32+ 34+ 35+")
PLACEBO = times("1 1 2 2 3 4 4 5 5 8 8 8 8 11 11 12 12 15 17 22 23")
SMALL = (times("30 40 100+"), times("80 100+ 100+ 100+"))


@pytest.mark.parametrize("runs", [TREATED, PLACEBO, *SMALL], ids=["treated", "placebo", "few", "one"])
def test_the_curve_is_scipys(runs: list[RunTime]) -> None:
    theirs = stats.ecdf(censored(runs)).sf
    limits = theirs.confidence_interval(method="log-log")
    points = kaplan_meier(runs)
    assert [point.step for point in points] == sorted({run.step for run in runs if run.collapsed})
    for point in points:
        place = list(theirs.quantiles).index(point.step)
        assert point.share.value == pytest.approx(theirs.probabilities[place])
        if point.share.value > 0:
            assert point.share.low == pytest.approx(limits.low.probabilities[place])
            assert point.share.high == pytest.approx(limits.high.probabilities[place])
        else:
            assert (point.share.low, point.share.high) == (None, None)


def test_the_published_curve_and_test() -> None:
    published = {6: 0.857, 7: 0.807, 10: 0.753, 13: 0.690, 16: 0.627, 22: 0.538, 23: 0.448}
    found = {point.step: point.share.value for point in kaplan_meier(TREATED)}
    assert found == {step: pytest.approx(share, abs=5e-4) for step, share in published.items()}
    test = logrank([(TREATED, PLACEBO)])
    assert test is not None and not test.exact
    assert (test.observed, test.expected) == (9, pytest.approx(19.25, abs=0.005))  # chi-square 16.79
    assert test.p == pytest.approx(stats.logrank(censored(TREATED), censored(PLACEBO)).pvalue)


def test_without_a_collapse_there_is_nothing() -> None:
    lasting = times("100+ 100+")
    assert kaplan_meier(lasting) == ()
    assert logrank([(lasting, lasting)]) is None
    assert logrank([(times("30"), [])]) is None


def one_by_one(pairs: list[tuple[list[RunTime], list[RunTime]]]) -> float:
    """The share of all divisions, stratum by stratum, whose observed less expected collapses are as far from 0."""

    def difference(both: list[RunTime], ours: tuple[int, ...]) -> float:
        total = 0.0
        for step in {run.step for run in both if run.collapsed}:
            at_risk = [i for i, run in enumerate(both) if run.step >= step]
            events = [i for i in at_risk if both[i].step == step and both[i].collapsed]
            expected = len(events) * sum(i in ours for i in at_risk) / len(at_risk)
            total += sum(i in ours for i in events) - expected
        return total

    strata = []
    for ours, theirs in pairs:
        both = [*ours, *theirs]
        sides = itertools.combinations(range(len(both)), len(ours))
        strata.append([difference(both, side) for side in sides])  # the first is as it was
    seen = abs(sum(one[0] for one in strata))
    sums = [abs(sum(each)) for each in itertools.product(*strata)]
    return float(np.mean([one >= seen - 1e-9 for one in sums]))


@pytest.mark.parametrize(
    "pairs",
    [
        [SMALL],
        [(times("10 10 20"), times("100+ 100+ 100+"))],
        [(times("10 100+"), times("100+ 100+")), (times("30 40 60+"), times("50 60+ 60+"))],
    ],
    ids=["one model", "all of one side", "two models"],
)
def test_with_few_runs_all_divisions_are_counted(
    pairs: list[tuple[list[RunTime], list[RunTime]]],
) -> None:
    test = logrank(pairs)
    assert test is not None and test.exact
    assert test.p == pytest.approx(one_by_one(pairs))


def test_the_normal_distribution_is_near_it(monkeypatch: pytest.MonkeyPatch) -> None:
    pairs = [(times("10 20 30 40 100+ 100+"), times("35 100+ 100+ 100+ 100+ 100+"))] * 2
    exact = logrank(pairs)
    monkeypatch.setattr(survival, "MOST_SUMS", 1)
    normal = logrank(pairs)
    assert exact is not None and normal is not None and exact.exact and not normal.exact
    assert normal.p == pytest.approx(exact.p, abs=0.02)
