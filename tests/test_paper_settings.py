"""The paper's settings as configured for the verl core, against its Table 3, Setup and list of sweeps."""

import csv
import re
from functools import cache

import pytest

from cppo_lab.spec import HubModel, VerlRun
from cppo_lab.sweep.compose import Composed, compose
from cppo_lab.sweep.file import load_sweep
from tests.conftest import ROOT
from tests.jobs import run_of
from tests.sweep.test_plan import GRID


def printed(name: str) -> list[dict[str, str]]:
    with (ROOT / "reports/paper" / name).open() as file:
        return list(csv.DictReader(file))


# Table 3 as printed: prompts, n, minibatch (in prompts), updates, T_max, delta, delta_b_min, w_min.
TABLE_3 = {row.pop("model"): tuple(map(float, row.values())) for row in printed("table_config.csv")}
T_STOP = {row["model"]: int(row["t_stop"]) for row in printed("table_full.csv")}
FILES = {
    "Qwen3-1.7B": "qwen3_1_7b",
    "Qwen3-1.7B-Base": "qwen3_1_7b_base",
    "Qwen3-8B-Base": "qwen3_8b_base",
    "Qwen3-30B-A3B-Base": "qwen3_30b_a3b_base",
}
# Published configs: layers, width, MLP width (of one expert), heads, kv heads, head dimension, matrices of embeddings,
# experts and how many of them a token uses.
PUBLISHED = {
    "Qwen3-1.7B": "28 2048 6144 16 8 128 1 1 1",
    "Qwen3-1.7B-Base": "28 2048 6144 16 8 128 1 1 1",
    "Qwen3-8B-Base": "36 4096 12288 32 8 128 2 1 1",
    "Qwen3-30B-A3B-Base": "48 2048 768 32 4 128 2 128 8",
}
VOCABULARY = 151_936
# Sweep: its models.
MODELS = {
    "main": tuple(FILES.values()),
    **dict.fromkeys(("single_mechanism", "position_weight_ordering", "mask_vs_soft"), ("qwen3_1_7b",)),
    **dict.fromkeys(("sensitivity", "kl_vs_tv", "binary_vs_topk"), ("qwen3_1_7b_base",)),
}


@cache
def composed(model: str, *overrides: str) -> Composed:
    return compose(["core=verl", f"model={FILES[model]}", *overrides])


@pytest.mark.parametrize("model", TABLE_3)
def test_table_3_and_the_setup(model: str) -> None:
    run = composed(model).run
    assert isinstance(run, VerlRun) and isinstance(run.model, HubModel)
    batch, rule = run.batch, run.rule
    assert TABLE_3[model] == (
        *(batch.prompts, batch.responses, batch.minibatch_prompts, batch.updates),
        *(run.rollout.max_response_length, rule.delta, rule.delta_b, rule.w_min),
    )
    assert rule.delta_b_mode == ("fixed" if model == "Qwen3-1.7B" else "adaptive")
    assert run.training.t_stop == T_STOP[model]
    assert (run.rollout.temperature, run.rollout.top_p, run.rollout.staleness) == (1.0, 1.0, 0)
    assert run.rollout.precision == "bfloat16"
    validation = run.validation
    assert (validation.samples, validation.temperature, validation.top_p) == (16, 0.7, 0.95)
    assert run.data.benchmarks == ("aime24", "aime25", "aime26")
    assert run.optim.learning_rate == 1e-6
    assert (run.advantage.normalize_std, run.advantage.drop_zero_variance) == (True, True)
    assert (run.divergence.estimator, run.divergence.measure, run.divergence.k) == ("topk", "tv", 20)
    assert run.model.repository == f"Qwen/{model}"
    # Validations are on the grid of the paper's curves.
    points = {int(row["step"]) for row in printed("validation_curves.csv") if row["model"] == model}
    assert points - {0} == set(range(validation.every, T_STOP[model] + 1, validation.every))


@pytest.mark.parametrize("model", TABLE_3)
def test_the_ablations_constants(model: str) -> None:
    def constants(rule: str) -> dict[str, object]:
        return composed(model, f"rule={rule}").run.rule.parameters()

    expected = {
        "dppo": {"delta": TABLE_3[model][5]},
        "trm_max": {"delta_max": 0.1},
        "trm_avg": {"delta_avg": 0.002},
        "trm_max_avg": {"delta_max": 0.1, "delta_avg": 0.002},
        "cppo_kl": {"delta": 0.1, "delta_b": 0.002, "delta_b_mode": "fixed", "w_min": 0.8},
        "cppo_fixed_budget": {**constants("cppo"), "delta_b": 0.03, "delta_b_mode": "fixed"},
        "cppo_low_w_min": {**constants("cppo"), "w_min": 0.6},
        "grpo": {"clip_low": 0.2, "clip_high": 0.28},
    }
    assert {rule: constants(rule) for rule in expected} == expected
    measures = {rule: composed(model, f"rule={rule}").run.divergence.measure for rule in expected}
    assert {rule for rule in expected if measures[rule] == "kl"} == {
        "trm_max",
        "trm_avg",
        "trm_max_avg",
        "cppo_kl",
    }


def test_small_models_keep_thresholds_of_trm_of_their_own() -> None:
    """The miniature study has been run with these (docs/evidence/miniature.md)."""
    run = run_of("model=mini_base rule=trm_max")
    assert run.rule.parameters() == {"delta_max": 0.05}


@pytest.mark.parametrize("model", PUBLISHED)
def test_sizes_are_those_of_the_published_architectures(model: str) -> None:
    """Parameters are counted here from the shapes of the matrices."""
    layers, width, mlp, heads, kv_heads, head, copies, experts, used = map(int, PUBLISHED[model].split())
    attention = width * head * 2 * (heads + kv_heads) + 2 * head
    router = width * experts if experts > 1 else 0
    embeddings = VOCABULARY * width * copies

    def count(active: int) -> float:
        layer = attention + active * 3 * width * mlp + router + 2 * width
        return (embeddings + layers * layer + width) / 1e9

    given = composed(model).run.model
    assert isinstance(given, HubModel)
    assert given.parameters == pytest.approx(count(experts), abs=5e-4)
    assert given.active_parameters == pytest.approx(count(used), abs=5e-4)
    assert (given.layers, given.width, given.kv_width) == (layers, width, kv_heads * head)
    assert given.vocabulary == VOCABULARY
    longest = composed(model).run.rollout.max_response_length + 2048
    assert given.context >= longest


@pytest.mark.parametrize("sweep", MODELS)
def test_the_sweeps_have_the_papers_models_and_runs(sweep: str) -> None:
    """That they compose: test_authors_recipe.py."""
    declared = load_sweep(sweep)
    models = tuple(declared.models_of("verl"))
    assert (models, declared.axes) == (MODELS[sweep], {"seed": {"any": (0,)}})
    assert len(models) * len(declared.variants) == GRID[sweep]


def test_the_documented_table_is_the_configured_one() -> None:
    """Every row of Table 3 in docs/paper_settings.md, and the values of ours beside it."""
    text = (ROOT / "docs/paper_settings.md").read_text()
    rows = {
        cells[0]: cells[1:]
        for line in text.splitlines()
        if (cells := [cell.strip() for cell in line.strip("|").split("|")]) and cells[0] in TABLE_3
    }
    assert set(rows) == set(TABLE_3)
    for model, cells in rows.items():
        layout = composed(model).layout
        expected = [*TABLE_3[model], T_STOP[model]]
        assert [float(cell.split()[0]) for cell in cells[:9]] == expected
        assert cells[9] == f"`{layout.name}`"
    optim = composed("Qwen3-1.7B").run.optim
    for name in ("weight_decay", "clip_grad_norm"):
        assert re.search(rf"`optim\.{name}` = {getattr(optim, name):g}\b", text), name
    for rule, name in (("trm_max", "delta_max"), ("trm_avg", "delta_avg")):
        constant = composed("Qwen3-1.7B", f"rule={rule}").run.rule.parameters()[name]
        assert f"`rule.{name}` = {constant:g}" in text
    assert f"`optim.beta1`, `optim.beta2` = {optim.beta1:g}, {optim.beta2:g}" in text
