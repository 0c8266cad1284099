"""Search files: what they declare, and one clear line for each way in which they can be wrong."""

import json
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cppo_lab.cli import main
from cppo_lab.search.space import main_overrides, resolve
from cppo_lab.sweep.file import Search, load_sweep, shipped_sweeps
from cppo_lab.sweep.plan import make_plan
from tests.search.made_search import made_tuning, search_values, write_search

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


def change(**section: Any) -> Callable[[], dict[str, Any]]:
    return lambda: search_values(**section)


def parameter(**values: Any) -> Callable[[], dict[str, Any]]:
    return lambda: search_values(parameters={"rule.w_min": values})


def top(**values: Any) -> Callable[[], dict[str, Any]]:
    return lambda: {**search_values(), **values}


def setting(**values: Any) -> Callable[[], dict[str, Any]]:
    made = search_values()
    return lambda: {**made, "settings": {**made["settings"], **values}}


BROKEN = {
    "unknown key": (top(titel="x"), "search ./tune.yaml: unknown key 'titel': did you mean 'title'?"),
    "unknown key of the section": (
        change(objective=1),
        "unknown key 'search.objective': did you mean 'search.objectives'?",
    ),
    "unknown key of the sampler": (
        change(sampler={"nmae": "tpe"}),
        "'search.sampler.nmae': did you mean 'search.sampler.name'?",
    ),
    "unknown sampler": (change(sampler={"name": "cma"}), "search.sampler.name='cma'"),
    "unknown objective": (
        change(objectives=["score"]),
        "'final_score', 'best_score', 'mean_score' or 'stability'",
    ),
    "the same objective twice": (
        change(objectives=["stability", "stability"], pruner={"name": "none"}),
        "appears twice",
    ),
    "no trials": (change(trials=0), "search.trials=0: must be in [1, 100000]"),
    "no parameters": (change(parameters={}), "search.parameters"),
    "several objectives with a pruner": (
        change(objectives=["final_score", "stability"], pruner={"name": "median"}),
        "pruner.name='median' with objectives=['final_score', 'stability']: Optuna prunes for a single objective only; "
        "set pruner: {name: none}",
    ),
    "low above high": (
        parameter(low=0.9, high=0.5),
        "search.parameters.rule.w_min: low=0.9 must be less than high=0.5",
    ),
    "low equals high": (parameter(low=0.5, high=0.5), "must be less than high=0.5"),
    "log of zero": (
        parameter(low=0, high=1, log=True),
        "log=True with low=0: a logarithmic scale begins above 0",
    ),
    "log with step": (parameter(low=0.1, high=1, log=True, step=0.1), "a logarithmic scale has no steps"),
    "step that does not divide": (
        parameter(low=0.4, high=1.0, step=0.25),
        "step=0.25 must be above 0 and divide",
    ),
    "misspelt bound": (
        parameter(low=0.4, hihg=1.0),
        "search.parameters.rule.w_min: unknown key 'hihg': did you mean 'high'?",
    ),
    "text as a bound": (parameter(low="a", high=1.0), "search.parameters.rule.w_min: low"),
    "one choice": (parameter(choices=[0.5]), "search.parameters.rule.w_min: choices"),
    "the same choice twice": (parameter(choices=[0.5, 0.5]), "a value appears twice"),
    "no bounds for the core": (
        parameter(verl={"low": 0.5, "high": 1.0}),
        "has no bounds for core=mini (valid: verl)",
    ),
    "core without bounds": (
        parameter(mini=3),
        "search.parameters.rule.w_min.mini=3 must be {low: ..., high: ...}",
    ),
    "out of range at the high end": (
        parameter(low=0.4, high=1.5),
        "search.parameters.rule.w_min at 1.5: configuration: rule.w_min=1.5: must be in (0, 1]",
    ),
    "out of range at the low end": (parameter(low=0, high=1.0), "rule.w_min=0: must be in (0"),
    "unknown parameter": (
        change(parameters={"rule.wmin": {"low": 0.4, "high": 1.0}}),
        "search ./tune.yaml: unknown key 'rule.wmin': did you mean 'rule.w_min'?",
    ),
    "constant of another rule": (
        change(parameters={"rule.clip_low": {"low": 0.1, "high": 0.3}}),
        "unknown key 'rule.clip_low'",
    ),
    "parameter without effect": (
        change(parameters={"trust_region.kl_delta": {"low": 0.1, "high": 0.3}}),
        "search.parameters.trust_region.kl_delta at 0.3: the runs do not depend on 'trust_region.kl_delta'; remove it",
    ),
    "the length of a run as a parameter": (
        change(
            parameters={"rule.w_min": {"low": 0.4, "high": 1.0}, "validation.samples": {"choices": [8, 16]}}
        ),
        "search.parameters.validation.samples at 16: trials would differ in training.t_stop or validation",
    ),
    "the seed as a parameter": (
        change(parameters={"seed": {"low": 1, "high": 3}}),
        "search.parameters.seed: this key cannot be tuned",
    ),
    "the launcher as a parameter": (
        change(parameters={"launcher.threads": {"low": 1, "high": 3}}),
        "cannot be tuned",
    ),
    "tuned and set": (
        setting(**{"rule.w_min": 0.8}),
        "settings.rule.w_min=0.8 is tuned by search.parameters too: keep one",
    ),
    "the code of a rule as a setting": (
        setting(**{"rule.path": "mine.rules:ours"}),
        "search ./tune.yaml: settings.rule.path='mine.rules:ours': a file does not say what is imported",
    ),
    "the code of a rule as a parameter": (
        change(parameters={"rule.path": {"choices": ["mine.rules:ours", "mine.rules:theirs"]}}),
        "search ./tune.yaml: search.parameters.rule.path: a file does not say what is imported",
    ),
    "unknown setting": (
        setting(**{"training.tstop": 4}),
        "unknown key 'training.tstop': did you mean 'training.t_stop'?",
    ),
    "the model as a setting": (
        setting(model="mini_base"),
        "settings.model='mini_base': use models and seeds",
    ),
    "the store as a setting": (
        setting(**{"tracking.uri": "x"}),
        "settings.tracking.uri belongs on the command line",
    ),
    "two models": (top(models=["mini_base", "mini_strong"]), "must be a list of exactly one name"),
    "unknown model": (top(models=["mini_bsae"]), "unknown model 'mini_bsae': did you mean 'mini_base'?"),
    "no model for the core": (
        top(models={"verl": ["tiny_qwen3"]}),
        "has no models for core=mini (valid: verl)",
    ),
    "the same seed twice": (top(seeds=[1, 1]), "seeds=[1, 1]: one appears twice"),
    "no seed": (top(seeds=[]), "seeds"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_search_is_one_clear_line(
    name: str, workspace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make, message = BROKEN[name]
    write_search(make())
    for command in ("plan", "tune"):
        assert main([command, "./tune.yaml"]) == 2
        text = capsys.readouterr().err
        assert message in text
        assert "tune" in text
        assert text.startswith("cppo: error: ")
        assert text.count("\n") == 1
    assert [path.name for path in workspace.iterdir()] == ["tune.yaml"]  # nothing was begun


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["model=mini_base,mini_strong"], "a search tunes for one model"),
        (["seed=x"], "seeds are whole numbers"),
        (["seed"], "is not of the form key=value"),
        (["rule.wmin=1"], "did you mean 'rule.w_min'?"),
        (["--study", "a/b"], "--study 'a/b': use letters"),
        (["--storage", "redis://x"], "storage 'redis://x' is not supported: use sqlite:///FILE.db"),
        (["--storage", "mysql://me:secret@h/d"], "storage 'mysql://me:***@h/d' is not supported"),
        (["--storage", "sqlite:///no/where.db"], "does not exist: make it"),
    ],
)
def test_bad_arguments_are_one_clear_line(
    workspace: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    write_search(search_values())
    assert main(["tune", "./tune.yaml", *arguments]) == 2
    text = capsys.readouterr().err
    assert message in text
    assert text.count("\n") == 1


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
