"""Search files: what they declare, and one clear line for each way in which they can be wrong."""

import re
import shlex
from pathlib import Path

import pytest
import yaml

from cppo_lab.search.space import main_overrides, resolve
from cppo_lab.sweep.file import load_sweep, shipped_sweeps
from tests.conftest import Command
from tests.jobs import planned
from tests.search.made_search import SETTINGS, made_tuning, search_values, write_search

SHIPPED = ["tune_cppo", "tune_tradeoff"]


@pytest.mark.parametrize("name", SHIPPED)
def test_every_shipped_search_composes_on_both_cores(name: str) -> None:
    assert [shipped for shipped in shipped_sweeps() if shipped.startswith("tune_")] == SHIPPED
    search = load_sweep(name)
    mini, verl = (resolve(search, [f"core={core}"]) for core in ("mini", "verl"))
    assert (mini.base.run.core, verl.base.run.core) == ("mini", "verl")
    assert (mini.study, verl.study) == tuple(f"{name}-{search.models[core]}" for core in ("mini", "verl"))
    if name == "tune_cppo":  # bounds may differ between the cores
        assert mini.space["rule.delta_b"].ends == (0.001, 0.05)
        assert verl.space["rule.delta_b"].ends == (0.005, 0.08)
        assert mini.space["rule.w_min"] == verl.space["rule.w_min"]


def test_the_command_line_chooses_model_seeds_and_settings(workspace: Path) -> None:
    tuning = made_tuning(None, "seed=3,4", "model=mini_strong", "training.t_stop=8", trials=7)
    assert (tuning.model, tuning.seeds, tuning.t_stop, tuning.trials) == ("mini_strong", (3, 4), 8, 7)
    assert tuning.study == "tune-mini_strong"
    assert tuning.at({"rule.delta_b": 0.01, "rule.w_min": 0.5}, 4).run.seed == 4
    exact = {**search_values(), "models": {"exact": ["exact_early"]}, "settings": {"rule": "cppo"}}
    assert made_tuning(exact).core == "exact"  # the only one that it has models of


# Two settings that need each other are no mistake.
SETS = "{training.t_stop: 14, validation.every: 7, seed: 3, tracking.uri: x, training.nope: 1}"
PARAMETERS = """
launcher.threads: {low: 1, high: 2}
rule.delta: {low: 1.0, high: 0.4}
rule.w_mim: {low: 0.4, high: 1.0}
rule.w_min: {choices: [0.5, 2.0, 1.0]}
"""
FAULTS = {
    "settings.seed=3: use models and seeds",
    "settings.tracking.uri belongs on the command line",
    "unknown key 'training.nope'",
    "search.parameters.launcher.threads: this key cannot be tuned",
    "search.parameters.rule.delta: low=1.0 must be less than high=0.4",
    "unknown key 'rule.w_mim': did you mean 'rule.w_min'?",
    "search.parameters.rule.w_min at 2.0: configuration: rule.w_min=2.0",
    "override 'seed=y': seeds are whole numbers",
    "override 'x' is not",
    # Also where the form is wrong, and every test of one mistake has a right form.
    "search.trials=0: must be in [1, 100000]",
    "search.sampler.name='grid'",
    "search.objectives.1='nope'",
    "unknown key 'search.objective'",
}
FORM = "{trials: 0, sampler: {name: grid}, objectives: [final_score, nope], objective: 1}"


def test_all_mistakes_of_a_search_come_together(workspace: Path, cppo: Command) -> None:
    values = search_values(**yaml.safe_load(FORM))
    values["search"]["parameters"] |= yaml.safe_load(PARAMETERS)
    write_search({**values, "settings": values["settings"] | yaml.safe_load(SETS)})
    for command in ("plan", "tune", "report"):
        text = cppo(f"{command} ./tune.yaml x seed=y", code=2).err
        assert text.count("\n") == 1 and text.count("; also: ") == len(FAULTS) - 1
        assert [fault for fault in FAULTS if fault not in text] == []
    assert [path.name for path in workspace.iterdir()] == ["tune.yaml"]


def test_plan_of_a_search_says_its_space_and_cost_and_writes_nothing(workspace: Path, cppo: Command) -> None:
    out = cppo("plan tune_cppo").out
    assert "rule.delta_b  0.001 to 0.05, logarithmic" in out
    assert "study tune_cppo-mini_small_base: 24 trials (24 left)" in out
    assert "one trial: 2 x 50 training steps\n" in out
    out = cppo("plan tune_cppo core=verl").out
    assert re.search(r"steps, \d+ to \d+ GPU-hours \([\d,]+ to [\d,]+ for all", out)
    assert list(workspace.iterdir()) == []


POINT = {"rule.delta_b": 0.01, "rule.w_min": 0.7}


@pytest.mark.parametrize(
    "overrides", [(), ("training.t_stop=8",), ("rule=cppo", "model=mini_small_base", "launcher.workers=2")]
)
def test_the_line_trains_the_runs_of_the_best_trial(overrides: tuple[str, ...], workspace: Path) -> None:
    tuning = made_tuning(None, *overrides)
    words = main_overrides(tuning)
    line = shlex.split(" ".join([*words, *(f"{key}={value}" for key, value in POINT.items()), "seed=1,2"]))
    runs = planned(["main", *line]).runs
    assert [run.run_id for run in runs] == [tuning.at(POINT, seed).run.run_id for seed in (1, 2)]
    absent = {**search_values(), "settings": SETTINGS | {"rule": "cppo_soft"}}
    assert main_overrides(made_tuning(absent)) is None  # the main sweep has no such variant
