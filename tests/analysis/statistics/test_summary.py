"""All statistics of a sweep: sampling errors by simulation, the noise of maps, orders, single runs, gaps."""

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from cppo_lab.analysis.scoring import Scoreboard
from cppo_lab.analysis.statistics.estimate import holm
from cppo_lab.analysis.statistics.paired import difference
from cppo_lab.analysis.statistics.problems import edge_share
from cppo_lab.analysis.statistics.summary import (
    baseline_of,
    map_noise,
    rankings,
    run_sampling_error,
    sampling_error,
    sweep_statistics,
)
from cppo_lab.analysis.statistics.values import Score, run_values
from cppo_lab.reports.sections import Scored
from cppo_lab.reports.statistics_tables import statistics_tables
from tests.analysis.made_sweeps import MadeRun, both, scored
from tests.analysis.statistics.made_curves import flat
from tests.answers import made

LEVELS = {"dppo": [0.30, 0.31, 0.29], "cppo": [0.36, 0.355, 0.37], "grpo": [0.2, 0.3, 0.1]}


def test_cells_and_what_is_over_models() -> None:
    statistics = sweep_statistics(scored(flat(LEVELS, "m", "n")))
    assert statistics.baseline.name == "dppo"
    assert list(statistics.cells) == [*itertools.product("mn", LEVELS)]
    dppo, cppo, *_ = statistics.cells.values()
    assert dppo.differences == {}
    level = pytest.approx(sum(LEVELS["cppo"]) / 3)
    assert cppo.scores[Score.FINAL].value == level
    assert cppo.differences[Score.FINAL].estimate.value == pytest.approx(0.0616667, abs=1e-6)
    compared = [pair for pair, cell in statistics.cells.items() if cell.differences]
    assert compared == [*itertools.product("mn", ("cppo", "grpo"))]
    p_values = [statistics.cells[pair].differences[Score.FINAL].estimate.p_value() for pair in compared]
    assert tuple(statistics.adjusted[*pair, Score.FINAL] for pair in compared) == holm(p_values)
    aggregates = statistics.aggregates
    assert {*aggregates} == {*itertools.product(LEVELS, Score, ("mean", "iqm", "median"))}
    mean = aggregates["cppo", Score.FINAL, "mean"]
    assert (mean.value, mean.degrees) == (level, pytest.approx(4))
    overall = statistics.overall
    assert [each.variant for each in overall] == ["cppo", "grpo"]
    assert overall[0].improvement.value == 1.0


def test_incomplete_variants_are_not_averaged_over_models() -> None:
    gaps = [MadeRun("cppo", "m", 1), *(MadeRun("cppo", "n", seed) for seed in range(3))]
    absent = {run.key for run in gaps}
    runs = [run for run in flat(LEVELS, "m", "n") if run.key not in absent]
    statistics = sweep_statistics(scored(runs, gaps=gaps))
    some, none = (statistics.cells[model, "cppo"] for model in "mn")
    assert some.runs == some.differences[Score.FINAL].estimate.n == 2
    assert none.runs == 0 and none.scores == {}
    averaged = [entry.variant for entry in statistics.overall] + [name for name, *_ in statistics.aggregates]
    assert "cppo" not in averaged


def test_order_and_margins() -> None:
    up = both({0: 0.1, 80: 0.30, 90: 0.32, 100: 0.30})
    down = both({0: 0.1, 50: 0.5, 80: 0.20, 90: 0.22, 100: 0.20})
    runs = [MadeRun("calm", "m", 0, up), MadeRun("peak", "m", 0, down), *flat({"low": [0.1], "last": [0.1]})]
    board = scored(runs)
    found = rankings(board, run_values(board))
    best, final = found["m", Score.BEST], found["m", Score.FINAL]
    assert list(best.index) == ["peak", "calm", "low", "last"]
    assert list(final.index) == ["calm", "peak", "low", "last"]
    assert list(best["rank"]) == [1, 2, 3, 3]  # equal scores share a rank
    # Three late evaluations each.
    numbers = *best.loc["peak", ["margin", "noise"]], final.loc["calm", "noise"]
    assert numbers == pytest.approx((0.5 - 0.32, 0.02, 0.02 / math.sqrt(3)))
    assert final.loc["last", ["margin", "noise"]].isna().all()
    # One of five unequal pairs is swapped.
    notes = statistics_tables(Scored("made", "Title", board, ""))["order"].notes
    assert notes[-1].endswith("(Kendall's tau-b; 1 is the same): 0.60.")


def test_one_evaluation_of_one_benchmark() -> None:
    """Its best step cannot be corrected, and its sampling error is known."""
    statistics, ends = (
        sweep_statistics(
            scored([MadeRun("dppo", "m", seed, {"aime24": {10: share}}) for seed, share in enumerate(shares)])
        )
        for shares in ((0.5, 0.1), (0.0, 1.0))
    )
    sampling = statistics.cells["m", "dppo"].sampling
    assert sampling.answers == pytest.approx(math.sqrt((0.25 + 0.09) / 2 / 480))
    for entries in (statistics.rankings, statistics.aggregates):
        assert {score for _, score, *_ in entries} == set(Score) - {Score.CORRECTED}
    assert ends.cells["m", "dppo"].sampling is None  # no limit holds for both


def test_baseline() -> None:
    assert baseline_of(["cppo", "dppo"]).name == "dppo"
    assert baseline_of(["cppo", "grpo"]).name == "cppo"


@pytest.mark.parametrize("shares", [(0.0,), (1.0, 1.0), (0.0, 1.0), ()])
def test_a_share_at_the_edge_has_wilsons_limits(shares: tuple[float, ...]) -> None:
    edge = edge_share(shares, [30 * 16] * len(shares))
    if len(set(shares)) != 1:
        assert edge is None
        return
    answers = 30 * 16 * len(shares)
    limits = stats.binomtest(int(shares[0]) * answers, answers).proportion_ci(method="wilson")
    assert (edge.low, edge.high) == pytest.approx(tuple(limits), abs=1e-12)
    assert sampling_error(shares, 30, 16).edge == edge


def test_the_number_of_problems_is_that_of_the_run() -> None:
    curve = {10: 0.5, 20: 0.4}
    runs = [
        MadeRun("a", model="aime", scores={"aime24": curve, "aime25": curve}),
        MadeRun("a", model="made", scores=both(curve)),
        MadeRun("a", model="other", scores={"x": curve}),
    ]
    logged = {f"{n:032x}": {"data.validation_problems": text} for n, text in ((1, "4"), (2, "9" * 5000))}
    board = scored(runs, params=logged)
    aime, four, unknown = (run_sampling_error(board, run) for run in board.runs)
    assert aime.answers == pytest.approx(0.5 / math.sqrt(2 * 480))
    assert four.answers == pytest.approx(0.5 / math.sqrt(2 * 64))
    assert unknown is None


NAMES = "abcd"


def map_board(seeds: int, pairing: bool | None = None) -> Scoreboard:
    """Four cells with a spread of 1 point; runs of one seed share a start."""
    rng = np.random.default_rng(3)
    starts = rng.normal(0.5, 0.05, seeds)
    runs = [
        MadeRun(name, seed=seed, scores=both({100: start + rng.normal(0, 0.01)}))
        for name in NAMES
        for seed, start in enumerate(starts)
    ]
    return scored(runs, pairing=pairing)


@pytest.mark.parametrize("paired", [True, False])
@pytest.mark.parametrize("seeds", [2, 6])
def test_the_noise_of_a_map_is_that_of_its_differences(seeds: int, paired: bool) -> None:
    """The error is the root mean square of those of all pairs; the reach is no shorter than Tukey's."""
    board = map_board(seeds, paired)
    noise, runs = map_noise(board, "chain", NAMES), run_values(board)
    errors = [
        difference(runs, "chain", *pair, Score.FINAL).estimate.error
        for pair in itertools.combinations(NAMES, 2)
    ]
    assert noise.seeds and noise.error == pytest.approx(np.sqrt(np.mean(np.square(errors))))
    degrees = (3 if paired else 4) * (seeds - 1)
    assert noise.reach == pytest.approx(noise.error * stats.t.isf(0.025 / 6, degrees))
    assert noise.reach > noise.error * stats.studentized_range.ppf(0.95, 4, degrees) / math.sqrt(2)


PLACES = [place for place in itertools.product("abcd", range(3)) if place != ("d", 2)]


def test_seeds_that_no_cells_share_are_not_paired() -> None:
    runs = [
        MadeRun("ab"[seed // 2], seed=seed, scores=both({100: 0.5 + 0.02 * (seed % 2)})) for seed in range(4)
    ]
    assert map_noise(scored(runs), "chain", "ab").error == pytest.approx(math.sqrt(2 * 0.02**2 / 2 / 2))
    alike = map_noise(scored([replace(run, scores=both({100: 0.5})) for run in runs]), "chain", "ab")
    assert (alike.error, alike.reach) == (0, 0)
    # Nor those of which a cell lacks one; and its own difference is the noisiest.
    gap = [
        replace(runs[0], variant=name, seed=seed, scores=both({100: 0.5 + 0.1 * seed}))
        for name, seed in PLACES
    ]
    expected = math.sqrt((3 * 0.02 + 0.005) / 7 * (1 / 2 + 1 / 3))
    assert map_noise(scored(gap), "chain", "abcd").error == pytest.approx(expected)


def test_a_map_of_single_runs_has_the_noise_of_its_answers() -> None:
    """Three of four answers to each of six problems; without outcomes nothing shows the noise."""
    board = map_board(1)
    assert map_noise(board, "chain", NAMES) is map_noise(board, "chain", "a") is None
    outcomes = replace(made.outcomes(6, 1, 4), steps=np.array([100]), right=np.full((1, 6), 3))
    data = replace(board.data, outcomes={run.mlflow_id: outcomes for run in board.runs})
    noise = map_noise(replace(board, data=data), "chain", NAMES)
    assert not noise.seeds
    assert noise.error == pytest.approx(math.sqrt(2 * (3 / 16) / 3 / 6))
    assert noise.reach == pytest.approx(noise.error * stats.norm.isf(0.025 / 6))
