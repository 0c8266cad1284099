"""The configuration group `recipe`: what the two readings set, which runs they are, and what is refused."""

import json

import pytest

from cppo_lab.spec import MathData, RuleSpec, canonical
from tests.jobs import planned, run_of

CORES = ("mini", "verl")
SWEEPS = {"recipe_choices": (35, 7), "position_span": (30, 6), "delta_b_cap": (20, 4)}


SAME = """
recipe=paper rule.position_span=own rule.ratio_cap=inf rule.log_ratio_clamp=inf rule.delta_b_cap=2
rule.delta_b_cap=2.0 rule.delta_b_quantile=0.9 rule.delta_b_scale=1 recipe.position_span=own
recipe.ratio_cap=null
"""
OTHERS = """
recipe=authors rule.position_span=padded rule.ratio_cap=20 rule.log_ratio_clamp=20 rule.delta_b_cap=5
rule.delta_b_cap=inf rule.delta_b_quantile=0.8 rule.delta_b_scale=0.5 recipe.delta_b_cap=5
"""


def test_the_papers_values_make_no_other_run_and_any_others_do() -> None:
    plain = run_of("")
    assert [override for override in SAME.split() if run_of(override) != plain] == []
    ids = {override: run_of(override).run_id for override in (SAME + OTHERS).split()}
    assert [override for override in ids if ids[override] == plain.run_id] == SAME.split()


def test_an_infinite_cap_survives_json() -> None:
    rule = run_of("rule.delta_b_cap=inf").rule
    assert rule.delta_b_cap == float("inf")
    assert RuleSpec.model_validate(json.loads(canonical(rule))) == rule


def test_a_fixed_budget_has_neither_cap_nor_quantile_nor_scale() -> None:
    fixed = "rule.delta_b_mode=fixed"
    assert run_of(f"{fixed} rule.delta_b_cap=5 rule.delta_b_scale=3") == run_of(fixed)


def test_a_rule_of_another_package_is_given_what_its_file_says() -> None:
    def rule(**more: object) -> RuleSpec:
        theirs = {"name": "theirs", "path": "acme_rules:theirs", "delta_b_cap": 2.0}
        return RuleSpec.model_validate(theirs | more)

    assert rule().parameters() == {"delta_b_cap": 2.0}
    assert rule(name="cppo", path=None).parameters() == {}
    assert "span" not in rule(position_span="own").arguments(64)
    assert rule(position_span="padded").arguments(64)["span"] == 64


def test_what_the_authors_recipe_sets() -> None:
    run = run_of("core=verl model=qwen3_8b_base recipe=authors")
    assert isinstance(run.data, MathData)
    assert run.data.max_prompt_length == 1024
    assert (run.divergence.estimator, run.divergence.measure) == ("binary", "tv")
    assert (run.advantage.normalize_std, run.training.aggregation) == (False, "seq-mean-token-sum-norm")
    assert run.optim.weight_decay == 0.01
    constants = {"delta": 0.15, "delta_b": 0.02, "delta_b_mode": "adaptive", "w_min": 0.8}  # of Table 3
    constants |= {"ratio_cap": 20.0, "log_ratio_clamp": 20.0, "delta_b_cap": 5.0}
    assert run.rule.parameters() == constants | {"position_span": "padded"}
    assert run.rule.arguments(8192) == constants | {"span": 8192}


@pytest.mark.parametrize("rule", ["trm_max", "trm_avg", "trm_max_avg", "cppo_kl"])
def test_rules_on_kl_keep_their_divergence(rule: str) -> None:
    run = run_of(f"rule={rule} recipe=authors")
    assert (run.divergence.estimator, run.divergence.measure) == ("topk", "kl")
    assert run.rule.ratio_cap == 20.0


def test_the_command_line_counts_more_than_the_recipe() -> None:
    run = run_of("recipe=authors divergence=topk_tv advantage.normalize_std=true")
    assert (run.divergence.estimator, run.advantage.normalize_std) == ("topk", True)
    assert run_of("recipe=authors rule=dr_grpo").training.aggregation == "seq-mean-token-sum-norm"


@pytest.mark.parametrize("sweep", SWEEPS)
def test_the_sweeps_of_the_recipe(sweep: str) -> None:
    for core, runs in zip(CORES, SWEEPS[sweep], strict=True):
        plan = planned(f"{sweep} core={core}")
        assert len({run.run_id for run in plan.runs}) == len(plan.runs) == runs
