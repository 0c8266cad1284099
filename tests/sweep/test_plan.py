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


@pytest.mark.parametrize(
    "override",
    [f"{group}={option}" for group, options in groups().items() if group != "rule" for option in options],
)
def test_every_shipped_option_composes(override: str) -> None:
    """Those of `rule`: tests/spec/test_spec.py."""
    group, _, option = override.partition("=")
    needs = []
    if override.startswith("model=qwen3_"):
        needs = ["core=verl"]
    elif override == "data=dapo_math":
        needs = ["core=verl", "model=qwen3_1_7b"]
    elif override == "data=files":
        needs = [
            "core=verl",
            "model=qwen3_1_7b",
            f"data.train={__file__}",
            f"data.validation.held={__file__}",
        ]
    elif group == "along" and option != "none":
        needs = ["core=exact", "model=exact_early"]
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


GOOD = {
    "title": "t",
    "question": "q",
    "models": "[mini_base]",
    "variants": "{cppo: {rule: cppo}}",
    "axes": "{seed: [0]}",
}


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
