"""What runs are called: names told apart, tags that grow with the attempts, a configuration that can be read back."""

import yaml

from cppo_lab import schema
from cppo_lab.runs.tags import (
    code,
    escaped,
    figure_tag,
    merged,
    resolved_yaml,
    run_name,
    run_tags,
    variants_in,
)
from cppo_lab.spec import RunSpec
from cppo_lab.spec.parse import parse, parse_run
from cppo_lab.sweep.compose import compose
from cppo_lab.sweep.launch import sweep_tags
from tests.jobs import planned, run_of


def test_a_name_says_variant_model_and_seed_and_the_tags_too(tiny_spec: RunSpec) -> None:
    end = f" · s{tiny_spec.seed} · {tiny_spec.model.name}"
    assert run_name(tiny_spec, {"main": "cppo"}) == f"cppo{end}"
    assert run_name(tiny_spec, {}) == f"{tiny_spec.rule.name}{end}"
    both = {"main": "cppo", "kl_vs_tv": "cppo", "sensitivity_grid": "cppo w_min=0.8"}
    assert run_name(tiny_spec, both) == f"cppo w_min=0.8{end}"
    longest = run_name(tiny_spec, {"main": "cppo w_min=0.8", "grid": "x" * 300})  # what a database takes
    assert len(longest) == 250 and longest.startswith("cppo w_min=0.8 / xxx") and longest.endswith(f"x{end}")
    tags = run_tags(tiny_spec) | {schema.sweep_tag(sweep): variant for sweep, variant in both.items()}
    assert variants_in(tags) == both
    exact = run_of("core=exact model=exact_early")
    assert run_tags(exact)[schema.TAG_SEED_FIXES_START] == "true"
    assert schema.TAG_SEED_FIXES_START not in tags


def test_the_runs_of_a_study_have_names_of_their_own_and_say_what_they_feed() -> None:
    plan = planned("study model=mini_small_base seed=0")
    assert len({run_name(run.spec, run.variants) for run in plan.runs}) == len(plan.runs) > 10
    tags = {run.variant: sweep_tags(plan, run) for run in plan.runs}
    assert tags["cppo_kl"][schema.TAG_FIGURE] == "Figure 6"
    figures = [f"Figure {number}" for number in (1, 2, 3, 4, 6, 7, 8, 9, 10, 11)]
    shared = tags["cppo"]  # of the main sweep and of ablations
    assert shared[schema.TAG_FIGURE] == ", ".join(["Table 1", "Table 3", "Table 4", *figures])
    assert shared[schema.sweep_tag("main")] == "cppo"
    assert figure_tag([]) == {}


def test_tags_of_several_attempts() -> None:
    names = ("job", "host", "python", "figure", "dirty", "nodes")
    keys = [getattr(schema, f"TAG_{name.upper()}") for name in names]

    def tags(*values: str) -> dict[str, str]:
        return {key: value for key, value in zip(keys, values, strict=True) if value}

    old = tags("7 8", "a", "3.11", "Table 1, Figure 10", "true", "") | {"other": "stays where it is"}
    new = tags("8", "b", "3.12", "Figure 2, Table 1", "false", "n[1-2]")
    both = tags("7 8", "a b", "3.12", "Table 1, Figure 2, Figure 10", "true", "n[1-2]")
    assert merged(old, new) == merged(both, new) == both
    assert merged({}, new) == new | {schema.TAG_FIGURE: "Table 1, Figure 2"}
    assert merged(old, {}) == {schema.TAG_DIRTY: "true"}


def test_the_yaml_makes_the_run_again(tiny_spec: RunSpec) -> None:
    composed = compose(["core=verl", "model=tiny_qwen3"])
    parts = {"layout": composed.layout, "resources": composed.resources, "paths": composed.paths}
    read = yaml.safe_load(resolved_yaml(composed.run, *parts.values()))
    assert list(read) == ["run_id", "run", *parts]
    assert parse_run(read["run"], "test").run_id == read["run_id"] == composed.run.run_id
    for name, part in parts.items():
        assert parse(type(part), read[name], "test") == part
    mini = yaml.safe_load(resolved_yaml(tiny_spec))
    assert (list(mini), parse_run(mini["run"], "test")) == (["run_id", "run"], tiny_spec)


def test_other_peoples_words_are_no_markup() -> None:
    """Whatever they are: tests/fuzz/test_escaping.py."""
    shown = "plain 1.0 - (x)&#60;img src=x&#62; &#91;a&#93;(javascript&#58;b) a&#124;b &#35; c &#38;lt;"
    assert escaped("plain 1.0 - (x)<img src=x> [a](javascript:b) a|b\n# c &lt;") == shown
    assert (code("a=1"), code("a`b|c")) == ("`a=1`", "a&#96;b&#124;c")
