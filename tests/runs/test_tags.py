"""What runs are called: names told apart, tags that grow with the attempts, a configuration that can be read back."""

import pytest
import yaml

from cppo_lab import schema
from cppo_lab.parse import parse, parse_run
from cppo_lab.runs.tags import (
    code,
    escaped,
    figure_tag,
    flatten,
    merged,
    resolved_yaml,
    run_name,
    run_tags,
    variants_in,
)
from cppo_lab.spec import LayoutSpec, PathsSpec, ResourcesSpec, RunSpec
from cppo_lab.sweep.compose import compose
from cppo_lab.sweep.declare import Study, Sweep, load_sweep, shipped_sweeps
from cppo_lab.sweep.launch import sweep_tags
from cppo_lab.sweep.plan import make_plan


def test_a_name_says_variant_model_and_seed(tiny_spec: RunSpec) -> None:
    seed = tiny_spec.seed
    assert run_name(tiny_spec, {"main": "cppo"}) == f"cppo · {tiny_spec.model.name} · s{seed}"
    assert run_name(tiny_spec, {}) == f"{tiny_spec.rule.name} · {tiny_spec.model.name} · s{seed}"
    both = run_name(tiny_spec, {"main": "cppo", "kl_vs_tv": "cppo", "sensitivity_grid": "cppo w_min=0.8"})
    assert both.startswith("cppo / cppo w_min=0.8 · ")


def test_names_are_unique_in_every_shipped_sweep() -> None:
    seen = 0
    for name in shipped_sweeps():
        declared = load_sweep(name)
        if not isinstance(declared, Sweep | Study):
            continue
        runs = make_plan(declared, ["core=exact"] if name == "exact" else []).runs
        called = {run_name(run.spec, run.variants) for run in runs}
        assert len(called) == len(runs), name
        seen += len(runs)
    assert seen > 100


def test_the_variants_of_a_run_are_in_its_tags(tiny_spec: RunSpec) -> None:
    tags = run_tags(tiny_spec) | {schema.sweep_tag("a"): "x", schema.sweep_tag("b-1"): "y z"}
    assert variants_in(tags) == {"a": "x", "b-1": "y z"}


def test_runs_whose_seed_fixes_their_start_are_marked(tiny_spec: RunSpec) -> None:
    exact = compose(["core=exact", "model=exact_early"]).run
    assert run_tags(exact)[schema.TAG_SEED_FIXES_START] == "true"
    assert schema.TAG_SEED_FIXES_START not in run_tags(tiny_spec)


def test_what_the_runs_of_a_study_feed() -> None:
    plan = make_plan(load_sweep("study"), ["model=mini_small_base", "seed=0"])
    tags = {run.variant: sweep_tags(plan, run) for run in plan.runs}
    assert tags["cppo_kl"][schema.TAG_FIGURE] == "Figure 6"
    shared = tags["cppo"]  # of the main sweep and of ablations
    assert shared[schema.TAG_FIGURE].startswith("Table 1, Table 3, Table 4, Figure 1, Figure 2, Figure 3, ")
    assert shared[schema.TAG_FIGURE].endswith(
        "Figure 4, Figure 6, Figure 7, Figure 8, Figure 9, Figure 10, Figure 11"
    )
    assert shared[schema.sweep_tag("main")] == "cppo"
    quick = make_plan(load_sweep("quickstart"))
    assert schema.TAG_FIGURE not in sweep_tags(quick, quick.runs[0])


def test_tags_of_several_attempts() -> None:
    old = {
        schema.TAG_JOB: "7 8",
        schema.TAG_HOST: "a",
        schema.TAG_PYTHON: "3.11",
        schema.TAG_FIGURE: "Table 1, Figure 10",
        schema.TAG_DIRTY: "true",
        "other": "stays where it is",
    }
    new = {
        schema.TAG_JOB: "8",
        schema.TAG_HOST: "b",
        schema.TAG_PYTHON: "3.12",
        schema.TAG_FIGURE: "Figure 2, Table 1",
        schema.TAG_NODES: "n[1-2]",
        schema.TAG_DIRTY: "false",
    }
    assert merged(old, new) == {
        schema.TAG_JOB: "7 8",
        schema.TAG_HOST: "a b",
        schema.TAG_PYTHON: "3.12",
        schema.TAG_FIGURE: "Table 1, Figure 2, Figure 10",
        schema.TAG_NODES: "n[1-2]",
        schema.TAG_DIRTY: "true",
    }
    assert merged(merged(old, new), new) == merged(old, new)
    assert merged({}, new)[schema.TAG_FIGURE] == "Table 1, Figure 2"
    assert figure_tag([]) == {}


def test_flatten_leaves_out_what_does_not_apply() -> None:
    assert flatten({"a": {"b": 1, "c": None}, "d": [1, 2]}) == {"a.b": "1", "d": "[1, 2]"}


def test_the_yaml_makes_the_run_again(tiny_spec: RunSpec) -> None:
    composed = compose(["core=verl", "model=tiny_qwen3"])
    text = resolved_yaml(composed.run, composed.layout, composed.resources, composed.paths)
    read = yaml.safe_load(text)
    assert list(read) == ["run_id", "run", "layout", "resources", "paths"]
    assert parse_run(read["run"], "test").run_id == read["run_id"] == composed.run.run_id
    assert parse(LayoutSpec, read["layout"], "test") == composed.layout
    assert parse(ResourcesSpec, read["resources"], "test") == composed.resources
    assert parse(PathsSpec, read["paths"], "test") == composed.paths
    mini = resolved_yaml(tiny_spec)
    assert mini == resolved_yaml(parse_run(yaml.safe_load(mini)["run"], "test"))
    assert list(yaml.safe_load(mini)) == ["run_id", "run"]


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain 1.0 - (x)", "plain 1.0 - (x)"),
        ("<img src=x>", "&#60;img src=x&#62;"),
        ("[a](javascript:b)", "&#91;a&#93;(javascript&#58;b)"),
        ("a|b\n# c", "a&#124;b &#35; c"),
        ("&lt;", "&#38;lt;"),
    ],
)
def test_other_peoples_words_are_no_markup(text: str, shown: str) -> None:
    assert escaped(text) == shown


def test_code_keeps_to_its_cell() -> None:
    assert code("a=1") == "`a=1`"
    assert code("a`b|c") == "a&#96;b&#124;c"
