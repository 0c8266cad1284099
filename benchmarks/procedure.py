"""Type I error and power of the whole procedure in simulated studies: tables of docs/evidence/coverage.md.

pairing       comparisons by Welch and seed by seed, for results of one seed that correlate; with equal methods (how
              often an advantage is claimed) and with a lead of 1.5 standard deviations.
collapses     N(73, 5) with one collapse in eight, to 20: coverage of the mean by Student's t, by the interval that
              allows for collapses, and of the mean of the runs that last; how often an advantage is claimed.
chain         the claims of `main` in their order, for four models and equal methods: how often any is confirmed.
unequal       how often an advantage in the mean over four models is claimed without one, if one of the models has a
              larger deviation than the others.
trends        how often a lead is said to grow with the length if it does not, and leads differ between four models:
              by the spread over seeds alone, and by the wider interval that verdicts use.
shares        how often a claim of more collapses is supported: for equal shares, and for 0.2 and 0.5 more.

    python benchmarks/procedure.py [--quick]

The last line is JSON, see `common.py`.
"""

from collections.abc import Callable, Mapping

import numpy as np
from common import Rows, arguments, result, show

from cppo_lab.analysis.statistics.collapse import mean_with_collapses, share_difference
from cppo_lab.analysis.statistics.estimate import Estimate, SlopeEstimate, combine, mean_estimate
from cppo_lab.analysis.statistics.paired import Difference, difference_of, slope
from cppo_lab.analysis.statistics.power import ALPHA
from cppo_lab.analysis.statistics.values import FinishedRuns, Score

SEEDS = (3, 5, 8)
LEVEL, DEVIATION, BROKEN, OFTEN = 0.73, 0.05, 0.20, 1 / 8
Pair = Callable[[np.random.Generator, int], tuple[np.ndarray, np.ndarray]]


def compared(ours: np.ndarray, theirs: np.ndarray, by_pairs: bool) -> Estimate:
    """The difference of two cells as the verdicts take it."""
    sides: list[Mapping[int | None, float]] = [dict(enumerate(side.tolist())) for side in (ours, theirs)]
    found = difference_of(sides[0], sides[1], by_pairs)
    assert found is not None, "both sides have runs"
    return found[0]


def claimed(found: Estimate | None) -> bool:
    """Whether it is above 0 at the level of the verdicts."""
    p = None if found is None else found.p_above(0.0)
    return p is not None and p <= ALPHA


def share(studies: int, n: int, by_pairs: bool, draw: Pair) -> float:
    """How often an advantage is claimed."""
    rng = np.random.default_rng(n)
    return float(np.mean([claimed(compared(*draw(rng, n), by_pairs)) for _ in range(studies)]))


def correlated(rho: float, lead: float) -> Pair:
    """Two methods whose runs of one seed share `rho` of their variance; ours leads by so many standard deviations."""

    def draw(rng: np.random.Generator, n: int) -> tuple[np.ndarray, np.ndarray]:
        seed = np.sqrt(rho) * rng.standard_normal(n)
        ours, theirs = (seed + np.sqrt(1 - rho) * rng.standard_normal(n) for _ in range(2))
        return ours + lead, theirs

    return draw


def pairing(studies: int) -> Rows:
    """Error and power of both ways, in shares of studies."""
    for rho in (0.0, 0.3, 0.6, 0.9):
        for n in SEEDS:
            columns = {}
            for lead, what in ((0.0, "error"), (1.5, "power")):
                for by_pairs, how in ((False, "Welch"), (True, "paired")):
                    columns[f"{what}, {how}"] = share(studies, n, by_pairs, correlated(rho, lead))
            yield f"correlation {rho:g}, {n} seeds", columns


def scores(rng: np.random.Generator, n: int, often: float = OFTEN) -> tuple[np.ndarray, np.ndarray]:
    """Scores of n runs, and which of them collapsed."""
    broken = rng.random(n) < often
    return np.where(broken, BROKEN, rng.normal(LEVEL, DEVIATION, n)), broken


def holds(low: float | None, high: float | None, truth: float) -> bool:
    """Whether an interval has the truth; one that does not exist excludes nothing."""
    return low is None or high is None or low <= truth <= high


def collapses(studies: int) -> Rows:
    """Coverage with rare collapses, and the errors of comparisons."""
    mean = LEVEL - OFTEN * (LEVEL - BROKEN)

    def same(rng: np.random.Generator, n: int) -> tuple[np.ndarray, np.ndarray]:
        return scores(rng, n)[0], scores(rng, n)[0]

    def steady(rng: np.random.Generator, n: int) -> tuple[np.ndarray, np.ndarray]:
        return scores(rng, n)[0], rng.normal(mean, DEVIATION, n)

    for n in SEEDS:
        rng, inside = np.random.default_rng(n), np.zeros(3)
        for _ in range(studies):
            values, broken = scores(rng, n)
            kept = values[~broken].tolist()
            plain, lasting = mean_estimate(values.tolist()), mean_estimate(kept)
            allowed = mean_with_collapses(kept, values[broken].tolist())
            assert plain is not None and allowed is not None
            inside += (
                holds(plain.low, plain.high, mean),
                holds(allowed.low, allowed.high, mean),
                lasting is None or holds(lasting.low, lasting.high, LEVEL),
            )
        t, ours, last = inside / studies
        yield (
            f"{n} seeds",
            {
                "mean, Student's t": t,
                "mean, with collapses (ours)": ours,
                "mean of those that last": last,
                "claimed, same method twice": share(studies, n, False, same),
                "claimed, over a steady method of equal mean": share(studies, n, False, steady),
            },
        )


def chain(studies: int) -> Rows:
    """Equal methods on four models: the claims in their order, each tested if the one before it is supported.

    `any` is confirmed with the order, against all tested at once. The three are the lead in the mean, its widening
    (an independent quantity here), and the lead on every model.
    """
    for n in SEEDS:
        rng, counts = np.random.default_rng(n), np.zeros(3)
        for _ in range(studies):
            cells = rng.standard_normal((2, 2, 4, n))  # quantity, method, model, seed
            parts = [
                [compared(cells[quantity, 0, model], cells[quantity, 1, model], False) for model in range(4)]
                for quantity in range(2)
            ]
            first, widens = (claimed(combine(own, [0.25] * 4)) for own in parts)
            each = all(claimed(one) for one in parts[0])
            counts += (first, first or (first and widens) or (first and each), first or widens or each)
        names = ("first claim", "any, in order (ours)", "any, all at once")
        yield f"{n} seeds", dict(zip(names, counts / studies, strict=True))


def unequal(studies: int) -> Rows:
    """Few seeds, compared in pairs on four models; the last one's deviation is so many times the others'."""
    for n in (2, 3, 5):
        columns = {}
        for times in (1.0, 6.0, 20.0):
            rng, counts = np.random.default_rng(n), 0
            for _ in range(studies):
                pairs = rng.standard_normal((4, n)) * np.array([1.0, 1.0, 1.0, times])[:, None]
                found = [one for row in pairs if (one := mean_estimate(row.tolist())) is not None]
                counts += claimed(combine(found, [0.25] * 4))
            columns[f"1 : 1 : 1 : {times:g}"] = counts / studies
        yield f"{n} seeds", columns


LENGTHS = {"a": 3000.0, "b": 6000.0, "c": 8000.0, "d": 10_000.0}


def trends(studies: int) -> Rows:
    """Leads on four models; those of pairs of runs have a deviation of 1.5 points on a model."""
    for n in (3, 5):
        for scatter in (0.0, 1.0, 2.0):
            rng, counts = np.random.default_rng(n), np.zeros(2)
            for _ in range(studies):
                parts = []
                for model in LENGTHS:
                    lead = mean_estimate((rng.normal(0, scatter) + 1.5 * rng.standard_normal(n)).tolist())
                    assert lead is not None
                    parts.append(Difference(model, "ours", "theirs", Score.FINAL, lead, True, n, n, None))
                found = slope(parts, LENGTHS, FinishedRuns())
                assert found is not None and isinstance(found.estimate, SlopeEstimate)
                counts += (claimed(found.estimate.seeds), claimed(found.estimate))
            names = ("by the spread over seeds alone", "by the wider interval (ours)")
            yield (
                f"{n} seeds, models differ by {scatter:g} points",
                dict(zip(names, counts / studies, strict=True)),
            )


def shares(studies: int) -> Rows:
    """More collapses on four models, at the level of the verdicts."""
    for n in SEEDS:
        columns = {}
        for ours, theirs in ((0.125, 0.125), (0.5, 0.5), (0.325, 0.125), (0.625, 0.125)):
            rng = np.random.default_rng(n)
            drawn = rng.binomial(n, np.array([ours, theirs])[:, None], (studies, 2, 4))
            found = [share_difference([(int(k), n) for k in a], [(int(k), n) for k in b]) for a, b in drawn]
            columns[f"{ours:g} against {theirs:g}"] = float(np.mean([one.low > 0 for one in found]))
        yield f"{n} seeds on 4 models", columns


def main() -> None:
    """Prints the tables, then the JSON line."""
    quick = arguments(__doc__, "100 studies instead of 4,000").quick
    studies = 100 if quick else 4000
    by_pairs = show("advantage claimed, %", pairing(studies), 100, 1)
    rare = show("one collapse in eight, %", collapses(studies), 100, 1)
    order = show("equal methods, %", chain(studies), 100, 1)
    few = show("advantage claimed in the mean over models, %", unequal(studies), 100, 1)
    longer = show("growth with the length claimed, %", trends(studies), 100, 1)
    more = show("more collapses claimed, %", shares(studies), 100, 1)
    figures = {
        "error_most": max(row[f"error, {how}"] for row in by_pairs.values() for how in ("Welch", "paired")),
        "coverage_with_collapses_least": min(row["mean, with collapses (ours)"] for row in rare.values()),
        "coverage_t_least": min(row["mean, Student's t"] for row in rare.values()),
        "error_same_most": max(row["claimed, same method twice"] for row in rare.values()),
        "chain_error_most": max(row["any, in order (ours)"] for row in order.values()),
        "unequal_error_most": max(max(row.values()) for row in few.values()),
        "trend_error_most": max(row["by the wider interval (ours)"] for row in longer.values()),
        "share_error_most": max(
            max(row["0.125 against 0.125"], row["0.5 against 0.5"]) for row in more.values()
        ),
    }
    most = dict.fromkeys(("error_most", "error_same_most", "chain_error_most", "trend_error_most"), 3.5)
    most["unequal_error_most"] = 5.0  # Satterthwaite's approximation with one or two degrees of freedom
    most["share_error_most"] = 5.0  # few outcomes: no interval meets its level at every share
    least = {"coverage_with_collapses_least": 94.0}
    print(result("procedure", figures, {"*": "%"}, at_most=most, at_least=least, quick=quick).line())


if __name__ == "__main__":
    main()
