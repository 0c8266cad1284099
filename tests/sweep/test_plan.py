"""Sweep files, studies and command-line overrides: what they enumerate, each run once, and what they refuse."""

from pathlib import Path

import numpy as np
import pytest

from cppo_lab.analysis.inputs import USUAL
from cppo_lab.sweep.claims import grids_of
from cppo_lab.sweep.compose import compose
from cppo_lab.sweep.file import load_sweep, shipped_sweeps
from cppo_lab.sweep.groups import groups
from cppo_lab.sweep.overrides import quote
from cppo_lab.sweep.plan import Plan, make_plan
from tests.conftest import user_error
from tests.jobs import planned, run_of

GRID = {  # sweep: runs of one seed, as paper_grid.md lists them
    "main": 28, "single_mechanism": 4, "position_weight_ordering": 3, "mask_vs_soft": 3, "sensitivity": 4,
    "kl_vs_tv": 4, "binary_vs_topk": 3,
}  # fmt: skip


def test_the_quickstart_warms_up_one_model_in_which_topk_truncates() -> None:
    runs = [run.spec for run in planned("quickstart seed=0,1,2").runs]
    assert {run.model.for_seed(run.seed).start_seed for run in runs} == {0}
    for run in runs:
        assert run.divergence.estimator == "topk" or run.rule.name == "grpo"
        # What its start has learned: a step's right result or the next number, each in any spelling.
        spellings = 1 / np.arange(1, run.data.spellings + 1)
        slip = run.model.warm_start.step_noise
        learned = np.outer([1 - slip, slip], spellings / spellings.sum())
        assert np.sort(learned, axis=None)[-run.divergence.k :].sum() < 0.9


@pytest.mark.parametrize(
    "name", [name for name in shipped_sweeps() if name not in {"study", *GRID} and name[:5] != "tune_"]
)
def test_every_shipped_sweep_composes(name: str) -> None:
    """On its first model; on all, of two cores: test_authors_recipe.py. Those of the paper's study are below; searches:
    tests/search/test_space.py.
    """
    sweep = load_sweep(name)
    core, (model, *_) = next(iter(sweep.models.items()))
    assert make_plan(sweep, [f"core={core}", f"model={model}", "seed=0"]).runs


def test_a_sweep_of_a_study_need_not_have_all_variants_that_are_chosen(workspace: Path) -> None:
    for name, variants in {
        "one": "{a: {rule: grpo}, c: {rule: dppo}}\nbaseline: c",
        "two": "{b: {rule: cppo}}",
    }.items():
        Path(f"{name}.yaml").write_text(f"title: t\nmodels: [mini_base]\nvariants: {variants}\n")
    Path("all.yaml").write_text("title: t\nsweeps: [./one.yaml, ./two.yaml]\n")
    grids = grids_of(make_plan(load_sweep("all.yaml"), ["variant=a,b"]))
    assert [(grid.name, grid.expected[0].variant) for grid in grids] == [("one", "a"), ("two", "b")]
    assert {grid.baseline for grid in grids} == {USUAL}  # that of the first is not planned


NEEDS = {  # how an override begins -> what goes with it
    "model=qwen3_": ["core=verl"],
    "model=exact_": ["core=exact"],
    "core=exact": ["model=exact_early"],
    "along=": ["core=exact", "model=exact_early"],
    "data=fork_": ["core=exact", "model=exact_early"],
    "data=dapo_math": ["core=verl", "model=qwen3_1_7b"],
    "data=files": [
        "core=verl",
        "model=qwen3_1_7b",
        *(f"data.{part}={__file__}" for part in ("train", "validation.a")),
    ],
}


@pytest.mark.parametrize(
    "override",
    [f"{group}={option}" for group, options in groups().items() if group != "rule" for option in options],
)
def test_every_shipped_option_composes(override: str) -> None:
    """Those of `rule`: tests/spec/test_run.py."""
    group, _, option = override.partition("=")
    needs = [text for start, texts in NEEDS.items() if override.startswith(start) for text in texts]
    composed = compose([override, *needs])
    named = {"model": composed.run.model, "data": composed.run.data, "layout": composed.layout}
    if group in named:  # a file's own name is what people choose it by
        assert named[group].name == option


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
        with user_error("holds plain values"):
            quote(value)
    else:
        assert compose([f"tracking.uri={quote(value)}"]).tracking.uri == value


def test_the_two_quickstarts_compare_the_same_rules_and_the_claim_of_one_is_about_all_its_runs() -> None:
    exact, mini = load_sweep("quickstart_exact"), load_sweep("quickstart")
    assert exact.variants == mini.variants
    assert (exact.beside, mini.beside) == (("quickstart",), ("quickstart_exact",))
    [claim] = exact.hypotheses.values()
    runs = make_plan(exact).runs
    assert len(runs) == 60
    assert {run.spec.core for run in runs} == {"exact"}
    assert {run.spec.seed for run in runs} == set(claim.test_seeds)
    assert set(claim.variants) == {run.variant for run in runs}


def test_a_plan_pairs_the_runs_of_one_seed_where_they_share_their_start() -> None:
    """As the report will (tests/analysis/statistics/test_paired.py)."""
    cases = {"quickstart_exact": [], "main": ["core=exact", "variant=cppo,dppo"], "horizon": []}
    assert all(planned([name, *more]).is_paired(name) for name, more in cases.items())
    assert not planned("main core=verl variant=cppo,dppo").is_paired("main")
    assert not planned("quickstart model.warm_start.seed=0").is_paired("quickstart")


@pytest.fixture(scope="module")
def study() -> Plan:
    return planned("study")


def test_the_study_is_the_papers_grid_one_seed_before_the_next(study: Plan) -> None:
    assert study.is_study and study.places == 3 * 49
    assert [run.spec.seed for run in study.runs] == sorted(run.spec.seed for run in study.runs)
    assert [sweep.name for sweep in study.sweeps] == list(GRID)
    for name, runs in GRID.items():
        assert sum(name in run.variants for run in study.runs) == 3 * runs
        assert len(planned(name).runs) == runs


def test_a_shared_run_is_one_run_with_all_its_names(study: Plan) -> None:
    assert len(study.runs) == len({run.run_id for run in study.runs}) == 111  # of 3 x 49 places
    full = [run for run in study.runs if run.variants.get("single_mechanism") == "cppo"]
    assert [run.spec.seed for run in full] == [0, 1, 2]
    for run in full:
        assert run.variants == {"main": "cppo", "single_mechanism": "cppo", "mask_vs_soft": "cppo"}
        assert run.spec.model.name == "mini_strong"


def test_base_models_differ_as_their_roles_do(study: Plan) -> None:
    specs = {run.spec.model.name: run.spec for run in study.runs if run.variant == "cppo"}
    assert list(specs) == ["mini_strong", "mini_small_base", "mini_large_base", "mini_long"]
    updates = [spec.batch.updates for spec in specs.values()]
    assert updates[-1] > max(updates[:-1])
    assert specs["mini_long"].batch.responses > specs["mini_strong"].batch.responses
    assert specs["mini_small_base"].data.modulus * specs["mini_small_base"].data.spellings >= 1000
    assert specs["mini_small_base"].divergence.k == 20


@pytest.mark.parametrize(
    "overrides, runs, sweeps",
    [
        (["seed=5"], 37, 7),
        (["model=mini_small_base", "seed=0"], 12, 4),
        (["core=exact", "variant=cppo_kl,cppo_soft"], 6, 2),
        (["training.t_stop=20", "rule.w_min=0.7", "variant=cppo,dppo", "seed=0"], 8, 7),
    ],
)
def test_the_command_line_chooses_within_the_sweeps(overrides: list[str], runs: int, sweeps: int) -> None:
    plan = planned(["study", *overrides])
    assert (len(plan.runs), len(plan.sweeps)) == (runs, sweeps)


def test_binary_and_top_k_differ_on_the_wide_process() -> None:
    spec = run_of("core=exact model=exact_wide")
    assert 2 < spec.divergence.k < spec.data.vocabulary == 64
