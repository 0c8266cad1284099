"""Sweep files and command-line overrides: what they enumerate, and what they refuse."""

from pathlib import Path

import numpy as np
import pytest

from cppo_lab.errors import UserError
from cppo_lab.sweep.compose import compose
from cppo_lab.sweep.file import load_sweep, shipped_sweeps
from cppo_lab.sweep.groups import groups
from cppo_lab.sweep.overrides import quote
from cppo_lab.sweep.plan import make_plan


def test_quickstart_enumerates_three_rules_by_two_seeds() -> None:
    plan = make_plan(load_sweep("quickstart"))
    assert [(run.variant, run.spec.seed) for run in plan.runs] == [
        (rule, seed) for rule in ("grpo", "dppo", "cppo") for seed in (0, 1)
    ]
    assert all(run.spec.rule.name == run.variant for run in plan.runs)
    assert len({run.run_id for run in plan.runs}) == 6


def test_the_quickstart_warms_up_one_model_in_which_topk_truncates() -> None:
    runs = [run.spec for run in make_plan(load_sweep("quickstart"), ["seed=0,1,2"]).runs]
    assert {run.model.for_seed(run.seed).start_seed for run in runs} == {0}
    for run in runs:
        assert run.divergence.estimator == "topk" or run.rule.name == "grpo"
        # What its start has learned: a step's right result or the next number, each in any spelling.
        spellings = 1 / np.arange(1, run.data.spellings + 1)
        slip = run.model.warm_start.step_noise
        learned = np.outer([1 - slip, slip], spellings / spellings.sum())
        assert np.sort(learned, axis=None)[-run.divergence.k :].sum() < 0.9


@pytest.mark.parametrize("name", [name for name in shipped_sweeps() if not name.startswith("tune_")])
def test_every_shipped_sweep_composes(name: str) -> None:
    overrides = ["core=exact"] if name == "exact" else []
    assert make_plan(load_sweep(name), overrides).runs


def _model_of(data: str) -> str:
    """The model of the exact core whose process has this `data`."""
    return {"fork_none": "exact_no_fork"}.get(data, data.replace("fork_", "exact_"))


def test_a_model_of_one_core_names_its_core() -> None:
    with pytest.raises(UserError, match="model='exact_early' is a model of core=exact: add core=exact"):
        compose(["model=exact_early"])
    with pytest.raises(
        UserError, match="core='exact' does not train model='mini_base': choose model=exact_early or"
    ):
        compose(["core=exact"])


@pytest.mark.parametrize(
    "override", [f"{group}={option}" for group, options in groups().items() for option in options]
)
def test_every_shipped_option_composes(override: str) -> None:
    group, _, option = override.partition("=")
    needs = []
    if group == "rule" and option.startswith("verl_"):
        needs = ["core=verl", "model=tiny_qwen3"]
    elif override.startswith("model=qwen3_"):
        needs = ["core=verl"]
    elif override == "data=dapo_math":
        needs = ["core=verl", "model=qwen3_1_7b"]
    elif override == "core=exact":
        needs = ["model=exact_early"]
    elif override.startswith("model=exact_"):
        needs = ["core=exact"]
    elif override.startswith("data=fork_"):
        needs = ["core=exact", f"model={_model_of(option)}"]
    composed = compose([override, *needs])
    assert composed.run.run_id
    named = {"model": composed.run.model, "data": composed.run.data, "layout": composed.layout}
    if group in named:  # a file's own name is what people choose it by
        assert named[group].name == option


def test_axes_and_variants_can_be_narrowed_and_extended() -> None:
    plan = make_plan(load_sweep("quickstart"), ["variant=cppo", "seed=3,4,5"])
    assert [(run.variant, run.spec.seed) for run in plan.runs] == [("cppo", 3), ("cppo", 4), ("cppo", 5)]


def test_a_rule_constant_goes_to_the_rules_that_have_it() -> None:
    plain = {run.variant: run.run_id for run in make_plan(load_sweep("quickstart"), ["seed=0"]).runs}
    tuned = make_plan(load_sweep("quickstart"), ["seed=0", "rule.delta=0.1"]).runs
    assert {run.variant: run.spec.rule.delta for run in tuned} == {"grpo": None, "dppo": 0.1, "cppo": 0.1}
    assert {run.variant for run in tuned if run.run_id == plain[run.variant]} == {"grpo"}


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["rule.w_min=1.5"], "rule.w_min=1.5: must be in (0, 1]"),
        (["rule.delta=-0.1"], "rule.delta=-0.1: must be in (0, inf)"),
        (["rule.delta=abc"], "rule.delta='abc'"),
        (["rule.delta=.nan"], "rule.delta"),
        (["rule=cppo"], "choose among them with variant= (valid: grpo, dppo, cppo)"),
        (["variant=cpo"], "did you mean 'cppo'? valid: cppo, dppo, grpo"),
        (["model=mini_bas"], "unknown model 'mini_bas': did you mean 'mini_base'?"),
        (["launcher=slurmm"], "unknown launcher 'slurmm'"),
        (["launcher.workrs=1"], "did you mean 'launcher.workers'?"),
        (["training.t_stop=12"], "make it a multiple of validation.every=5"),
        (["batch.minibatch_prompts=5"], "must divide prompts=16 (valid: [1, 2, 4, 8, 16])"),
        (["rule.w_min=null", "variant=cppo"], "rule.w_min=null: rule 'cppo' needs a value"),
        (
            ["rule.name=dppo", "variant=cppo"],
            "rule 'dppo' has no constant 'delta_b' (valid: delta, ratio_cap,",
        ),
        (["+rule.dual_clip=3", "variant=cppo"], "rule 'cppo' has no constant 'dual_clip'"),
        (["rule.clip_low=2", "variant=grpo"], "rule.clip_low=2: must be in [0, 1]"),
        (["data.benchmarks=[a/b]"], "data.benchmarks.0='a/b'"),
        (["data.benchmarks=[mean,x]"], "'mean' names the mean over them"),
        (["data.operations=100000000"], "data.operations=100000000: must be in [1, 127]"),
        (["data.modulus=1000000000000"], "data.modulus=1000000000000: must be in [2, 1000]"),
        (["model.name=../x"], "model.name='../x'"),
        (["model.warm_start.seed=99999999999999999999999"], "model.warm_start.seed"),
        (["resources.hours=1e308"], "resources: hours=1e+308: must be in (0, 10000"),
        (["launcher=null"], "launcher"),
        (["divergence=null"], "divergence"),
        (["rule.clip_low=0.1", "variant=cppo"], "unknown key 'rule.clip_low'"),
        (["rule.delta=[1"], "no viable alternative"),
    ],
    ids=str,
)
def test_bad_overrides(overrides: list[str], message: str) -> None:
    with pytest.raises(UserError) as caught:
        make_plan(load_sweep("quickstart"), overrides)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


GOOD = {
    "title": "t",
    "question": "q",
    "models": "[mini_base]",
    "variants": "{cppo: {rule: cppo}}",
    "axes": "{seed: [0]}",
}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"variants": "{a: {rule: cppoo}}"}, "unknown rule 'cppoo': did you mean 'cppo'?"),
        ({"variants": "{a: {rule: cppo}, b: {rule: cppo}}"}, "variants 'a' and 'b' compose to the same run"),
        ({"variants": "{}"}, "variants={}"),
        ({"axis": "{seed: [0]}"}, "unknown key 'axis': did you mean 'axes'?"),
        ({"axes": "{sed: [0]}"}, "unknown key 'sed': did you mean 'seed'?"),
        ({"axes": "{seed: []}"}, "axes.seed=[]"),
        ({"axes": "{seed: 0}"}, "axes.seed=0"),
        ({"models": "[]"}, "models=[]"),
        ({"models": "[mini_baze]"}, "unknown model 'mini_baze'"),
        ({"variants": "{a: {rule: cppo, seed: 3}}"}, "variant 'a' sets 'seed', which is an axis too"),
        ({"axes": "{launcher.threads: [1, 2]}"}, "belongs on the command line, not in a sweep file"),
        ({"title": "2020-01-01"}, "only text, numbers"),
        ({"title": "!!binary aGVsbG8="}, "only text, numbers"),
        ({"title": "&a [*a]"}, "more than 32 levels deep"),
        ({"title": "[1"}, "not valid YAML"),
        ({"title": "!!python/object/apply:os.system [echo]"}, "not valid YAML"),
    ],
    ids=str,
)
def test_bad_sweep_files(tmp_path: Path, change: dict[str, str], message: str) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("\n".join(f"{key}: {value}" for key, value in {**GOOD, **change}.items()))
    with pytest.raises(UserError) as caught:
        make_plan(load_sweep(str(path)))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_sweep_file_that_is_not_text(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_bytes(b"title: \xff\xfe")
    with pytest.raises(UserError, match="is not UTF-8 text"):
        load_sweep(str(tmp_path / "mine.yaml"))


def test_a_sweep_file_in_any_folder(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("\n".join(f"{key}: {value}" for key, value in GOOD.items()))
    plan = make_plan(load_sweep(str(path)))
    assert (plan.name, len(plan.runs)) == ("mine", 1)


@pytest.mark.parametrize(
    "value",
    [
        "plain",
        "two words",
        "it's",
        'say "no"',
        "a=b",
        "[1,2]",
        "${oc.env:HOME}",
        "back\\slash",
        "end\\",
        "\\'",
    ],
)
def test_quoted_text_arrives_as_it_is_or_is_refused(value: str) -> None:
    """Text from a sweep file is data: no list, no dictionary, and no interpolation comes out of it."""
    if "${" in value:
        with pytest.raises(UserError, match="holds plain values"):
            quote(value)
    else:
        assert compose([f"tracking.uri={quote(value)}"]).tracking.uri == value
