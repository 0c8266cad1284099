"""Run specs: identity, immutability, validation messages."""

import json
import re

import pytest

from cppo_lab.core_records import DEFAULT_CORE
from cppo_lab.rules import RULES
from cppo_lab.spec.parse import parse_run
from cppo_lab.spec.run import VERL
from cppo_lab.sweep.compose import compose
from cppo_lab.sweep.groups import groups
from tests.conftest import user_error
from tests.jobs import run_of

TINY_VERL = ["core=verl", "model=tiny_qwen3"]

# The warm start of earlier runs of mini_base: one for all seeds, of 500 steps.
SHARED = (
    "model.warm_start.seed=0 model.warm_start.steps=500 model.warm_start.learning_rate=0.004 "
    "model.warm_start.target_accuracy=null"
)
# Ids are part of users' records: a change here orphans every run made before.
GOLDEN_IDS = {
    "rule=grpo": "b9a8123df337",
    "rule=dppo seed=1": "8db8455e8ab7",
    "rule=cppo rule.delta=0.1": "24732ac05faa",
    f"rule=grpo {SHARED}": "e3796fa0e7c3",
    f"rule=dppo seed=1 {SHARED}": "f7d7ab8c3b1d",
    f"rule=cppo rule.delta=0.1 {SHARED}": "b8cc78e6023f",
    "core=exact model=exact_early": "3e492bf3761c",
    "core=verl model=tiny_qwen3": "c604daa57e66",
    # What null says, what is synchronous anyway, and fields that runs of earlier versions did not have.
    "core=verl model=tiny_qwen3 optim.master_dtype=float32 rollout.mode=sync": "c604daa57e66",
    "rule=grpo objective.centering=false": "b9a8123df337",
    "rule=grpo rollout.correction=bypass divergence.origin=mu": "b9a8123df337",
    "core=verl model=qwen3_8b_base": "42ce5e99848a",
    # Sequence parallelism divides the longest sequence; the place of a run is no part of its id.
    "core=verl model=qwen3_8b_base layout.tokens_per_device=5120 layout.sequence_parallel=2": "42ce5e99848a",
    "core=verl model=qwen3_30b_a3b_base recipe=authors": "861b80c60ac1",
}


@pytest.mark.parametrize("words, run_id", GOLDEN_IDS.items())
def test_golden_run_ids(words: str, run_id: str) -> None:
    assert run_of(words).run_id == run_id


def test_run_id_ignores_launcher_tracking_and_key_order() -> None:
    plain = compose([])
    moved = compose(
        ["launcher=inline", "launcher.threads=2", "tracking.uri=sqlite:///elsewhere.db", "tracking.mismatch=false",
         "tracking.answers.keep=false", "tracking.answers.problems=all"]
    )  # fmt: skip
    assert moved.run.run_id == plain.run.run_id
    assert plain.run.core == DEFAULT_CORE and plain.tracking.answers.keep and plain.tracking.mismatch
    values = json.loads(plain.run.model_dump_json())
    assert parse_run(dict(reversed(values.items())), "test").run_id == plain.run.run_id


DECOUPLED = "rollout.correction=decoupled"
WEIGHED = f"{DECOUPLED} rollout.rollout_is=token rollout.rollout_is_threshold=2"
DECISIVE = (
    "", "seed=1", "rule.delta=0.149", "model.warm_start.seed=1", "data.operations=7", "divergence=exact_tv",
    "objective.centering=true", DECOUPLED, f"{DECOUPLED} divergence.origin=old", WEIGHED,
)  # fmt: skip


def test_run_id_depends_on_everything_that_decides_the_numbers_and_survives_the_record() -> None:
    runs = [run_of(text) for text in DECISIVE]
    run_ids = [run.run_id for run in runs]
    assert len(set(run_ids)) == len(runs)
    assert [parse_run(json.loads(run.model_dump_json()), "the record").run_id for run in runs] == run_ids


NOT_CENTRED = {  # with objective.centering=true
    "rule=gspo": "objective.centering=true with rule 'gspo': the weight it would give to a token that was not",
    "rule=m2po": "with rule 'm2po'",
    "rule=pdm": "with rule 'pdm'",
    "rule=cppo_random_mask": "with rule 'cppo_random_mask'",
    "divergence=binary_tv": "with divergence.estimator='binary': the expectation is taken over mu's most likely",
    "rule=dppo divergence=sample_k3": "with divergence.estimator='sample'",
    "core=verl model=tiny_qwen3 rule=verl_sapo": "with rule 'verl_sapo': a loss of verl's own is not centred",
    "core=verl model=qwen3_8b_base layout=one_node_megatron": "Megatron gives no gradient in log pi at mu's Top-K",
    "core=exact model=exact_early data=fork_early along=cppo rule=gspo": "with rule 'gspo'",
}


NOT_DECOUPLED = {
    "rollout.rollout_is=token": "rollout_is='token' with rollout_is_threshold=None: set both, or neither",
    "rollout.rollout_rs_threshold=2": "rollout_rs=None with rollout_rs_threshold=2.0: set both, or neither",
    "rollout.rollout_rs=token_k1 rollout.rollout_rs_threshold=2":
        "rollout_rs='token_k1' with correction='bypass', which has no pi_old to compare with mu: set correction=deco",
    "divergence.origin=old": "divergence.origin='old' with rollout.correction='bypass', which has no pi_old: set",
    f"{DECOUPLED} rollout.rollout_rs=token_k1 rollout.rollout_rs_threshold=1": "rollout_rs_threshold=1: must be in",
    f"{DECOUPLED} rollout.rollout_is=group rollout.rollout_is_threshold=1": "must be 'token' or 'sequence'",
    f"{DECOUPLED} objective.centering=true": "'decoupled' with objective.centering=true: the weight pi_old / mu of",
    f"{DECOUPLED} rule=estr": "'decoupled' with rule 'estr': its limit is by the entropy of mu, and its ratio would",
    f"{DECOUPLED} core=verl model=tiny_qwen3 rule=verl_sapo": "with rule 'verl_sapo': a loss of verl's own is trained",
    f"{DECOUPLED} core=verl model=tiny_qwen3 divergence.origin=old":
        "divergence.estimator='topk': core=verl knows pi_old at sampled tokens alone; choose divergence=binary_tv",
    f"{DECOUPLED} core=verl model=qwen3_30b_a3b_base rollout.router_replay=R3 layout=four_nodes_megatron":
        "router_replay='R3' with rollout.correction='decoupled': that pi_old is computed with the experts",
    f"{DECOUPLED} core=exact model=exact_early data=fork_early along=cppo rule=estr": "with rule 'estr'",
}  # fmt: skip


REFUSED = NOT_DECOUPLED | {f"{text} objective.centering=true": said for text, said in NOT_CENTRED.items()}


@pytest.mark.parametrize("text, said", REFUSED.items())
def test_what_does_not_go_with_three_policies_or_centring_is_refused(text: str, said: str) -> None:
    with user_error(re.escape(said)):
        run_of(text)


def test_the_entropy_of_mu_needs_its_top_k_with_verl() -> None:
    with user_error("rule=m2po decides over a whole minibatch, which core=verl cuts .* choose core=mini"):
        run_of("rule=m2po", TINY_VERL)
    with user_error("rule=estr needs the entropy of mu, which core=verl takes from mu's Top-K"):
        run_of("rule=estr divergence=binary_tv", TINY_VERL)
    of_mini = run_of("rule=estr divergence=binary_tv").rule
    assert run_of("rule=estr", TINY_VERL).rule == of_mini


OURS = [name for name in groups()["rule"] if not name.startswith(VERL)]
VERLS = [name for name in groups()["rule"] if name.startswith(VERL)]


@pytest.mark.parametrize("name", OURS)
def test_rule_files_give_exactly_the_constants_of_the_rule(name: str) -> None:
    """A key that the function does not take, or a constant without a default that the file forgets, fails here."""
    rule = run_of(f"rule={name}").rule
    assert rule.verl_loss is rule.options is None
    takes = RULES[rule.name].constants()
    assert {name for name, required in takes.items() if required} <= set(rule.parameters()) <= set(takes)


def test_verls_own_losses_belong_to_its_core() -> None:
    """Their options are checked against verl itself in tests/cores/verl/test_config.py."""
    assert {*VERLS} == {f"{VERL}{loss}" for loss in ("gspo", "sapo", "geo_mean", "clip_cov", "kl_cov", "dro")}
    for name in VERLS:
        rule = run_of(f"rule={name}", TINY_VERL).rule
        assert f"{VERL}{rule.verl_loss}" == rule.name == name
        assert rule.options and rule.parameters() == {}


@pytest.mark.parametrize(
    "path, value, message",
    [
        ("extra", 1, "unknown key 'extra': valid: advantage, batch"),
        ("rule.w_min", 0.0, "rule.w_min=0.0: must be in (0, 1]"),
        ("validation.samples", 65536, "validation.samples=65536: must be in [1, 65535]"),
        ("validation.temperature", 1e-40, "validation.temperature=1e-40: must be in [1e-06, inf)"),
        ("rollout.temperature", 1e-40, "rollout.temperature=1e-40: must be in [1e-06, inf)"),
    ],
)
def test_what_a_file_says_of_a_run_is_checked(path: str, value: object, message: str) -> None:
    values = json.loads(run_of("rule=cppo").model_dump_json())
    section, _, key = path.rpartition(".")
    (values[section] if section else values)[key] = value
    with user_error(re.escape(message)):
        parse_run(values, "configuration")
