"""Studies: several sweeps, each run once, and what the command line chooses within them."""

import pytest

from cppo_lab.sweep.compose import compose
from cppo_lab.sweep.file import load_sweep
from cppo_lab.sweep.plan import Plan, make_plan

GRID = {  # sweep: runs of one seed, as paper_grid.md lists them
    "main": 28, "single_mechanism": 4, "position_weight_ordering": 3, "mask_vs_soft": 3, "sensitivity": 4,
    "kl_vs_tv": 4, "binary_vs_topk": 3,
}  # fmt: skip


@pytest.fixture(scope="module")
def study() -> Plan:
    return make_plan(load_sweep("study"))


def test_the_study_is_the_papers_grid(study: Plan) -> None:
    assert study.is_study and study.places == 3 * 49
    assert [sweep.name for sweep in study.sweeps] == list(GRID)
    for name, runs in GRID.items():
        assert sum(name in run.variants for run in study.runs) == 3 * runs
        assert len(make_plan(load_sweep(name)).runs) == runs


def test_a_shared_run_is_one_run_with_all_its_names(study: Plan) -> None:
    assert len(study.runs) == len({run.run_id for run in study.runs}) == 111  # of 3 x 49 places
    full = [run for run in study.runs if run.variants.get("single_mechanism") == "cppo"]
    assert [run.spec.seed for run in full] == [0, 1, 2]
    for run in full:
        assert run.variants == {"main": "cppo", "single_mechanism": "cppo", "mask_vs_soft": "cppo"}
        assert run.spec.model.name == "mini_strong"


def test_one_seed_comes_before_the_next(study: Plan) -> None:
    assert [run.spec.seed for run in study.runs] == sorted(run.spec.seed for run in study.runs)


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
        (["core=exact", "seed=0"], 37, 7),
        (["model=mini_long", "seed=0"], 7, 1),
        (["model=mini_small_base", "seed=0"], 12, 4),
        (["variant=cppo", "seed=0"], 4, 6),
        (["variant=cppo_kl,cppo_soft"], 6, 2),
        (["training.t_stop=20", "seed=0"], 37, 7),
        (["rule.w_min=0.7", "variant=cppo,dppo", "seed=0"], 8, 7),
    ],
)
def test_the_command_line_chooses_within_the_sweeps(overrides: list[str], runs: int, sweeps: int) -> None:
    plan = make_plan(load_sweep("study"), overrides)
    assert (len(plan.runs), len(plan.sweeps)) == (runs, sweeps)


def test_binary_and_top_k_differ_on_the_wide_process() -> None:
    spec = compose(["core=exact", "model=exact_wide"]).run
    assert 2 < spec.divergence.k < spec.data.vocabulary == 64
