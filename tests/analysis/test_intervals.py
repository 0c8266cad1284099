"""Intervals over seeds: Student's t against its definition, pairing, and what a collapsed run counts."""

import math
import statistics

import pandas as pd
import pytest

from cppo_lab import schema
from cppo_lab.analysis.grid import ExpectedRun
from cppo_lab.analysis.intervals import Interval, baseline_of, intervals, t_quantile
from cppo_lab.analysis.points import METRIC_COLUMNS
from cppo_lab.analysis.reader import RUN_COLUMNS, SweepData
from cppo_lab.analysis.scoring import score_sweep


def t_density(x: float, degrees: int) -> float:
    scale = math.exp(math.lgamma((degrees + 1) / 2) - math.lgamma(degrees / 2)) / math.sqrt(degrees * math.pi)
    return scale * (1 + x * x / degrees) ** (-(degrees + 1) / 2)


@pytest.mark.parametrize("degrees", [*range(1, 24), 40, 200])
def test_quantiles_leave_two_and_a_half_percent(degrees: int) -> None:
    """Half of the mass lies below 0; Simpson's rule gives the rest up to the quantile."""
    end, n = t_quantile(degrees), 4000
    points = [
        t_density(end * i / n, degrees) * (1 if i in (0, n) else 4 if i % 2 else 2) for i in range(n + 1)
    ]
    assert 0.5 + math.fsum(points) * end / n / 3 == pytest.approx(0.975, abs=2e-5)


def test_interval_of_a_mean() -> None:
    values = [0.2, 0.5, 0.3, 0.4]
    interval = Interval.of(values)
    assert interval is not None and interval.half is not None
    assert interval.mean == pytest.approx(0.35)
    assert interval.half == pytest.approx(3.1824 * statistics.stdev(values) / 2, rel=1e-4)
    assert Interval.of([0.5]) == Interval(0.5, None, 1)
    assert Interval.of([]) is None


def board(curves: dict[tuple[str, int], dict[int, float]], collapsed: set[tuple[str, int]] = frozenset()):
    """A scored sweep of one model with the given mean curves; T_stop is 20."""
    runs, points, expected = [], [], []
    for (variant, seed), curve in curves.items():
        name = f"{variant}-{seed}"
        status = schema.COLLAPSED if (variant, seed) in collapsed else schema.DONE
        row = dict.fromkeys(RUN_COLUMNS, "") | {
            "mlflow_id": name, "run_id": name, "variant": variant, "rule": variant, "model": "m", "core": "mini",
            "seed": seed, "t_stop": 20, "status": status, "start": pd.Timestamp(0, tz="UTC"),
        }  # fmt: skip
        runs.append(row)
        expected.append(ExpectedRun(name, "m", variant, seed))
        points += [(name, schema.validation_metric("a"), step, value) for step, value in curve.items()]
    frame = pd.DataFrame(runs, columns=list(RUN_COLUMNS)).astype({"seed": "Int64", "t_stop": "Int64"})
    metrics = pd.DataFrame(points, columns=list(METRIC_COLUMNS))
    return score_sweep(SweepData("cppo-mini", "s", frame, metrics, {}), expected)


def test_differences_are_paired_by_seed() -> None:
    level = {0: 0.1, 1: 0.3, 2: 0.7}
    scored = board(
        {("dppo", seed): {0: 0.0, 20: base} for seed, base in level.items()}
        | {("cppo", seed): {0: 0.0, 20: base + 0.05} for seed, base in level.items()}
    )
    dppo, cppo = intervals(scored)
    assert dppo.best_difference is None
    assert cppo.best_difference is not None and cppo.best_difference.half is not None
    assert cppo.best_difference.mean == pytest.approx(0.05)
    assert cppo.best_difference.half == pytest.approx(0, abs=1e-9)  # the seeds' own spread cancels
    assert cppo.best is not None and cppo.best.half is not None and cppo.best.half > 0.1


@pytest.mark.parametrize(
    ("curve", "expected"),
    [
        # T_stop 20: the last 30 % begins after 14, so it holds 16, 18 and 20.
        ({0: 0.2, 6: 0.9, 8: 0.1, 10: 0.1}, 0.1),  # broke before: all three count as it ended
        ({0: 0.2, 6: 0.9, 14: 0.9, 16: 0.3, 18: 0.1}, (0.3 + 0.1 + 0.1) / 3),  # inside: one is missing
        ({0: 0.2, 6: 0.9, 14: 0.9, 16: 0.9, 18: 0.06, 20: 0.09}, (0.9 + 0.06 + 0.09) / 3),  # none is missing
        ({0: 0.2, 2: 0.8, 4: 0.85}, 0.2),  # a gradient broke while the score was high: back where it began
    ],
)
def test_a_collapsed_run_counts_with_the_score_it_ended_at(curve: dict[int, float], expected: float) -> None:
    [cell] = intervals(board({("a", 0): curve}, collapsed={("a", 0)}))
    assert cell.collapsed == 1
    assert cell.best is not None and cell.best.mean == pytest.approx(max(curve.values()))
    assert cell.final is not None and cell.final.mean == pytest.approx(expected)


def test_baseline() -> None:
    assert baseline_of(["cppo", "dppo"]) == "dppo"
    assert baseline_of(["cppo", "grpo"]) == "cppo"
