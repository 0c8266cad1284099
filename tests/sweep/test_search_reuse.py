"""The main sweep trains what a search has tuned: the same runs, on other seeds."""

import shlex

import pytest

from cppo_lab.sweep.declare import load_sweep
from cppo_lab.sweep.plan import make_plan
from cppo_lab.sweep.search.reuse import main_overrides
from tests.sweep.made_search import made_tuning, search_values

POINT = {"rule.delta_b": 0.01, "rule.w_min": 0.7}


@pytest.mark.usefixtures("workspace")
@pytest.mark.parametrize(
    "overrides", [(), ("training.t_stop=8",), ("rule=cppo", "model=mini_small_base", "launcher.workers=2")]
)
def test_the_line_trains_the_runs_of_the_best_trial(overrides: tuple[str, ...]) -> None:
    tuning = made_tuning(None, *overrides)
    words = main_overrides(tuning)
    assert words is not None
    line = shlex.split(" ".join([*words, *(f"{key}={value}" for key, value in POINT.items()), "seed=1,2"]))
    runs = make_plan(load_sweep("main"), line).runs
    assert [run.run_id for run in runs] == [tuning.at(POINT, seed).run_id for seed in (1, 2)]


@pytest.mark.usefixtures("workspace")
def test_a_rule_that_the_main_sweep_does_not_have() -> None:
    values = search_values()
    values["settings"] |= {"rule": "cppo_soft"}
    assert main_overrides(made_tuning(values)) is None
