"""Late means, ranks and noise."""

import pandas as pd
import pytest

from cppo_lab import schema
from cppo_lab.analysis.scoring import (
    ends_early,
    late_curve,
    late_means,
    rank_descending,
    score_sweep,
    step_noise,
)
from tests.analysis.made_sweeps import MadeRun, both, expect, make_data


def frame(curve: dict[int, float]) -> pd.DataFrame:
    return pd.DataFrame({schema.MEAN: curve})


def test_the_late_window_is_the_last_thirty_percent_up_to_t_stop() -> None:
    curve = frame({step: step / 1000 for step in range(10, 131, 10)})
    assert list(late_curve(curve, 100).index) == [80, 90, 100]
    assert list(late_curve(curve, None).index) == [100, 110, 120, 130]


def test_noise_of_an_alternating_curve() -> None:
    # Differences are +-0.02 throughout, so the scatter of one evaluation is 0.02 / sqrt 2.
    assert step_noise(frame({80: 0.3, 90: 0.32, 100: 0.3}), 100) == pytest.approx(0.02 / 2**0.5)
    assert step_noise(frame({90: 0.3, 100: 0.3}), 100) is None


def test_ranks_share_a_place_and_stay_inside_a_model() -> None:
    values = {("a", "x"): 0.3, ("a", "y"): 0.3, ("a", "z"): 0.1, ("b", "x"): 0.05}
    assert rank_descending(values) == {("a", "x"): 1, ("a", "y"): 1, ("a", "z"): 3, ("b", "x"): 1}


def test_a_lucky_peak_does_not_help_the_late_mean() -> None:
    runs = [
        MadeRun("lucky", scores=both({10: 0.9, 80: 0.2, 90: 0.2, 100: 0.2})),
        MadeRun("steady", scores=both({10: 0.1, 80: 0.3, 90: 0.3, 100: 0.3})),
        MadeRun("fallen", scores=both({10: 0.9, 80: 0.9, 90: 0.9, 100: 0.0}), status=schema.COLLAPSED),
        MadeRun("short", scores=both({10: 0.4, 20: 0.4})),
    ]
    board = score_sweep(make_data(runs), expect(runs))
    late = late_means(board)
    assert {variant: entry.rank for (_, variant), entry in late.items()} == {
        "lucky": 2,
        "steady": 1,
        "fallen": None,
        "short": None,
    }
    assert [run.variant for run in board.runs if ends_early(run)] == ["short"]
