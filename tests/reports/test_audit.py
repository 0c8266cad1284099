"""How printed digits relate to exact ones."""

import pytest

from cppo_lab import schema
from cppo_lab.reports.audit import AVERAGE, audit_tables
from cppo_lab.reports.names import percent, round_half_up
from tests.analysis.made_sweeps import MadeRun, both, scored


@pytest.mark.parametrize(
    "fraction, text",
    [
        (0.31875, "31.88"),  # a tie in decimals, below it in binary
        ((0.15625 + 0.120833 + 0.079167) / 3, "11.88"),  # 0.11874999999999998 in binary
        (0.304167, "30.42"),
        (0.0, "0.00"),
        (1.0, "100.00"),
    ],
)
def test_rounding_is_half_up_on_the_decimal_value(fraction: float, text: str) -> None:
    assert str(round_half_up(percent(fraction))) == text


def test_a_lucky_peak_does_not_help_the_late_mean() -> None:
    runs = [
        MadeRun("lucky", scores=both({10: 0.9, 80: 0.2, 90: 0.2, 100: 0.2})),
        MadeRun("steady", scores=both({10: 0.1, 80: 0.3, 90: 0.3, 100: 0.3})),
        MadeRun("fallen", scores=both({10: 0.9, 80: 0.9, 90: 0.9, 100: 0.0}), status=schema.COLLAPSED),
    ]
    board = scored(runs)
    printed = [
        {"model": run.model, "method": run.variant, **dict.fromkeys((*board.benchmarks, AVERAGE), "10.00")}
        for run in board.runs
    ]
    audited = {run.score.variant: run for run in audit_tables(board, printed).runs}
    ranks = {variant: run.late_rank for variant, run in audited.items()}
    assert ranks == {"lucky": 2, "steady": 1, "fallen": None}
    assert [run.late for run in audited.values()] == [pytest.approx(0.2), pytest.approx(0.3), None]
