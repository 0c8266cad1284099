"""Search files: what they declare, and one clear line for each way in which they can be wrong."""

import json
import shlex
from pathlib import Path
from typing import Any

import pytest

from cppo_lab.cli import main
from cppo_lab.search.space import main_overrides, resolve
from cppo_lab.sweep.file import Search, load_sweep, shipped_sweeps
from cppo_lab.sweep.plan import make_plan
from tests.search.made_search import SETTINGS, made_tuning, search_values, write_search

SHIPPED = [name for name in shipped_sweeps() if name.startswith("tune_")]


@pytest.mark.parametrize("core", ["mini", "verl"])
@pytest.mark.parametrize("name", SHIPPED)
def test_every_shipped_search_composes_on_both_cores(name: str, core: str) -> None:
    search = load_sweep(name)
    assert isinstance(search, Search)
    tuning = resolve(search, [f"core={core}"])
    assert tuning.base.run.core == core
    assert tuning.study == f"{name}-{search.models[core]}"


def test_the_shipped_searches() -> None:
    assert SHIPPED == ["tune_cppo", "tune_tradeoff"]


def test_bounds_may_differ_between_the_cores() -> None:
    search = load_sweep("tune_cppo")
    assert isinstance(search, Search)
    mini, verl = resolve(search), resolve(search, ["core=verl"])
    assert mini.space["rule.delta_b"].ends == (0.001, 0.05)
    assert verl.space["rule.delta_b"].ends == (0.005, 0.08)
    assert mini.space["rule.w_min"] == verl.space["rule.w_min"]


def test_the_command_line_chooses_model_seeds_and_settings(workspace: Path) -> None:
    tuning = made_tuning(None, "seed=3,4", "model=mini_strong", "training.t_stop=8", trials=7)
    assert (tuning.model, tuning.seeds, tuning.t_stop, tuning.trials) == ("mini_strong", (3, 4), 8, 7)
    assert tuning.study == "tune-mini_strong"
    assert tuning.at({"rule.delta_b": 0.01, "rule.w_min": 0.5}, 4).run.seed == 4


@pytest.mark.parametrize(
    ("models", "words", "core"),
    [
        ({"exact": ["exact_early"]}, (), "exact"),
        ({"mini": ["mini_base"]}, (), "mini"),
        ({"exact": ["exact_early"], "mini": ["mini_base"]}, (), "mini"),
        ({"exact": ["exact_early"], "mini": ["mini_base"]}, ("core=exact",), "exact"),
    ],
)
def test_the_models_choose_the_core_as_in_a_sweep(
    models: dict[str, list[str]], words: tuple[str, ...], core: str, workspace: Path
) -> None:
    values = search_values()
    values["models"], values["settings"] = models, {"rule": "cppo"}
    del values["question"]
    tuning = made_tuning(values, *words)
    assert (tuning.core, tuning.base.run.core, tuning.model) == (core, core, models[core][0])
    declared = {"title": "T", "models": models, "variants": {"a": {"rule": "cppo"}}}
    Path("same.yaml").write_text(json.dumps(declared))
    assert make_plan(load_sweep("same.yaml"), words).core == core


def test_whole_numbers_are_drawn_where_the_configuration_has_them(workspace: Path) -> None:
    values = search_values(
        parameters={
            "rollout.staleness": {"low": 0, "high": 2},
            "rule.w_min": {"low": 0.5, "high": 1},
        }
    )
    tuning = made_tuning(values)
    assert tuning.is_whole("rollout.staleness")
    assert not tuning.is_whole("rule.w_min")


# What tests/hostile/sweep_files.py does not have.
BROKEN: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "several objectives with a pruner": (
        {},
        {"objectives": ["final_score", "stability"], "pruner": {"name": "median"}},
        "pruner.name='median' with objectives=['final_score', 'stability']: Optuna prunes for a single objective only; "
        "set pruner: {name: none}",
    ),
    "parameter without effect": (
        {},
        {"parameters": {"trust_region.kl_delta": {"low": 0.1, "high": 0.3}}},
        "search.parameters.trust_region.kl_delta at 0.3: the runs do not depend on 'trust_region.kl_delta'; remove it",
    ),
    "the code of a rule as a parameter": (
        {},
        {"parameters": {"rule.path": {"choices": ["mine.rules:ours", "mine.rules:theirs"]}}},
        "search ./tune.yaml: search.parameters.rule.path: a file does not say what is imported",
    ),
    "the code of a rule as a setting": (
        {"settings": {**SETTINGS, "rule.path": "mine.rules:ours"}},
        {},
        "search ./tune.yaml: settings.rule.path='mine.rules:ours': a file does not say what is imported",
    ),
    "no model for the core": (
        {"models": {"verl": ["tiny_qwen3"]}},
        {},
        "has no models for core=mini (valid: verl)",
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_search_is_one_clear_line(
    name: str, workspace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    top, section, message = BROKEN[name]
    write_search({**search_values(**section), **top})
    for command in ("plan", "tune"):
        assert main([command, "./tune.yaml"]) == 2
        text = capsys.readouterr().err
        assert text.startswith("cppo: error: ") and text.count("\n") == 1
        assert message in text
    assert [path.name for path in workspace.iterdir()] == ["tune.yaml"]  # nothing was begun


FAULTS = {
    "settings.seed=3: use models and seeds": ("settings", "seed", 3),
    "settings.tracking.uri belongs on the command line": ("settings", "tracking.uri", "x"),
    "unknown key 'training.nope'": ("settings", "training.nope", 1),
    "search.parameters.launcher.threads: this key cannot be tuned": (
        "launcher.threads",
        {"low": 1, "high": 2},
    ),
    "search.parameters.rule.delta: low=1.0 must be less than high=0.4": (
        "rule.delta",
        {"low": 1.0, "high": 0.4},
    ),
    "unknown key 'rule.w_mim': did you mean 'rule.w_min'?": ("rule.w_mim", {"low": 0.4, "high": 1.0}),
    "search.parameters.rule.w_min at 2.0: configuration: rule.w_min=2.0": (
        "rule.w_min",
        {"choices": [0.5, 2.0, 1.0]},
    ),
}
FORM = {
    "search.trials=0: must be in [1, 100000]": ("trials", 0),
    "search.sampler.name='grid'": ("sampler", {"name": "grid"}),
    "search.objectives.1='nope'": ("objectives", ["final_score", "nope"]),
    "unknown key 'search.objective'": ("objective", 1),
}


@pytest.mark.parametrize("form", [{}, FORM])
def test_all_mistakes_of_a_search_come_together(
    form: dict[str, tuple[str, Any]], workspace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    values = search_values(**dict(form.values()))
    # Two settings that need each other are none.
    settings = {**values["settings"], "training.t_stop": 14, "validation.every": 7}
    for place, *rest in FAULTS.values():
        if place == "settings":
            settings[rest[0]] = rest[1]
        else:
            values["search"]["parameters"][place] = rest[0]
    write_search({**values, "settings": settings})
    for command in ("plan", "tune", "report"):
        assert main([command, "./tune.yaml", "x", "seed=y"]) == 2
        text = capsys.readouterr().err
        assert text.count("\n") == 1
        said = text.removeprefix("cppo: error: search ./tune.yaml: ").split("; also: ")
        expected = [*form, *FAULTS, "override 'seed=y': seeds are whole numbers", "override 'x' is not"]
        assert len(said) == len(expected)
        for fault in expected:
            assert any(fault in each for each in said), fault
    assert [path.name for path in workspace.iterdir()] == ["tune.yaml"]


def test_plan_of_a_search_says_its_space_and_cost_and_writes_nothing(
    workspace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", "tune_cppo"]) == 0
    out = capsys.readouterr().out
    assert "rule.delta_b  0.001 to 0.05, logarithmic" in out
    assert "study tune_cppo-mini_small_base: 24 trials (24 left)" in out
    assert "one trial: 2 x 50 training steps\n" in out
    assert main(["plan", "tune_cppo", "core=verl"]) == 0
    assert "GPU-hours of an H100 80 GB" in capsys.readouterr().out
    assert list(workspace.iterdir()) == []


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
