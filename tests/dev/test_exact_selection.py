"""The thresholds of the exact core's study are the ones that its selection chose, by movement alone."""

import itertools
import math
import sys

import pandas as pd
import pytest

from cppo_lab.sweep.file import load_sweep
from dev import exact_checks
from dev.exact_selection import FILE, FREE, REFERENCE, SEEDS, chosen
from tests.conftest import user_error


def tried(*tries: tuple[str, float, float, float]) -> pd.DataFrame:
    """Rules, their thresholds, and their movements on two horizons."""
    rows = [
        (rule, delta, *at)
        for rule, delta, *movements in tries
        for at in zip((16, 64), movements, strict=True)
    ]
    return pd.DataFrame(rows, columns=["variant", "delta", "horizon", "movement"]).assign(model="early")


def test_the_sweep_has_what_was_chosen() -> None:
    rows, sweep = pd.read_csv(FILE), load_sweep("exact")
    thresholds = {variant: keys["rule.delta"] for variant, keys in sweep.variants.items()}
    assert chosen(rows) | {REFERENCE: 0.01, FREE: 1.0} == thresholds
    [models] = sweep.models.values()
    horizons = sweep.axes_of("exact")["rollout.max_response_length"]
    assert {*zip(rows["model"], rows["horizon"], strict=True)} == {*itertools.product(models, horizons)}
    assert all({*SEEDS} <= {*hypothesis.selection_seeds} for hypothesis in sweep.hypotheses.values())


def test_between_the_two_that_enclose_it() -> None:
    """Movements 0.8 and 1.25 times DPPO's in the mean of logs: halfway between the logs of the thresholds."""
    rows = tried(
        (REFERENCE, 0.01, 1.0, 2.0),
        (FREE, 1.0, 9.0, 9.0),
        ("rule", 0.01, 0.8, 1.6),
        ("rule", 0.04, 1.0, 2 * 1.25**2),
    )
    assert chosen(rows) == {"rule": pytest.approx(math.sqrt(0.01 * 0.04), rel=1e-3)}


def test_the_nearest_is_taken_and_one_too_far_refused() -> None:
    reference = (REFERENCE, 0.01, 1.0, 2.0)
    assert chosen(tried(reference, ("rule", 0.03, 1.01, 2.01), ("rule", 0.05, 0.5, 1.0))) == {"rule": 0.03}
    assert chosen(tried(reference, ("rule", 0.03, 0.96, 1.92))) == {"rule": 0.03}
    with user_error(r"0\.80 times as far"):
        chosen(tried(reference, ("rule", 0.03, 0.8, 1.6)))


def test_twins_of_too_few_runs_are_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The second of two arms of 40 would have been shorter, and was said to have 40."""
    monkeypatch.setattr(sys, "argv", ["exact_checks", "twins", "--runs", "79"])
    with pytest.raises(SystemExit):
        exact_checks.main()
    assert "--runs 79: at least 80" in capsys.readouterr().err
