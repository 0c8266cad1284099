"""verl's tree for our runs: composed and checked without a GPU, with the values that the run says."""

import re
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pandas as pd
import pytest
from datasets import load_dataset
from omegaconf import DictConfig, OmegaConf
from verl.utils.config import omega_conf_to_dataclass

from cppo_lab.cores.verl import check_api
from cppo_lab.cores.verl.checks import PERFORMANCE, check_placement
from cppo_lab.cores.verl.config import (
    _verl_tree,
    check_config,
    lab_settings,
    plain_config,
    settings,
)
from cppo_lab.cores.verl.files import Files
from cppo_lab.rules import RULES
from cppo_lab.spec.job import estimate
from cppo_lab.sweep.compose import Composed, compose
from cppo_lab.sweep.groups import groups
from cppo_lab.sweep.preflight import shortened
from tests.conftest import user_error
from tests.cores.verl.conftest import ROOT
from tests.cores.verl.in_process import tree

pytestmark = pytest.mark.filterwarnings("ignore:Disabled critic")

TINY = ("core=verl", "model=tiny_qwen3")
DENSE = ("core=verl", "model=qwen3_1_7b_base")
EXPERTS = ("core=verl", "model=qwen3_30b_a3b_base")
# What a rule needs beside its name.
COMPANIONS = {"trm_max": ["divergence=topk_kl"], "trm_avg": ["divergence=topk_kl"]}
ACTOR, ROLLOUT = "actor_rollout_ref.actor", "actor_rollout_ref.rollout"


@cache
def composed(*overrides: str) -> Composed:
    return compose(list(overrides))


def with_layout(composition: Composed, **fields: Any) -> Composed:
    """`composition` with other fields of its layout."""
    layout = composition.layout.model_validate(composition.layout.model_dump() | fields)
    return replace(composition, layout=layout)


def checked(composition: Composed) -> DictConfig:
    """verl's tree, as it passes."""
    config = tree(composition)
    check_config(composition.run, composition.layout, config)
    return config


@pytest.mark.parametrize("rule", [rule for rule in groups()["rule"] if rule != "m2po"])  # it is refused
def test_every_rule_composes_and_passes(rule: str) -> None:
    composition = composed(*TINY, f"rule={rule}", *COMPANIONS.get(rule, []))
    config = checked(composition)
    loss = omega_conf_to_dataclass(config.actor_rollout_ref.actor).policy_loss  # as verl's worker makes it
    if rule.startswith("verl_"):
        assert (loss.loss_mode, loss.rule, loss.constants) == (rule.removeprefix("verl_"), "", {})
    else:
        assert loss.rule in RULES
        assert (loss.loss_mode, loss.rule) == ("trust_region", composition.run.rule.name)
        assert dict(loss.constants) == composition.run.rule.parameters()
    # What the loss will ask of the batch is what the rollout keeps.
    assert loss.needs_topk == (config.actor_rollout_ref.rollout.engine_kwargs.cppo_lab.topk > 0)


@pytest.mark.parametrize("divergence", groups()["divergence"])
def test_every_divergence_composes_and_passes(divergence: str) -> None:
    composition = composed(*TINY, "rule=grpo", f"divergence={divergence}")
    config = checked(composition)
    loss, kept = config.actor_rollout_ref.actor.policy_loss, config.actor_rollout_ref.rollout.engine_kwargs
    estimator, _, measure = divergence.partition("_")
    assert (loss.estimator, loss.measure) == (estimator, measure)
    vocabulary = 16  # of the task: ten digits, three operators, `=`, end, padding
    assert kept.cppo_lab.topk == {"topk": 8, "exact": vocabulary}.get(estimator, 0)


METHODS = ("grpo", "minpro", "cispo", "dppo", "trm_max", "trm_avg", "cppo")  # of the sweep `main`


@pytest.mark.parametrize("layout", [name for name in groups()["layout"] if not name.startswith("cpu")])
def test_every_layout_passes_as_documented_for_the_papers_runs(layout: str) -> None:
    """But for the mixture of experts where a GPU has no room for a whole engine. Methods and recipes in turn."""
    for number, (model, peak) in enumerate(documented(layout).items(), 3 * len(layout)):
        rule, recipe = METHODS[number % len(METHODS)], ("paper", "authors")[number % 2]
        kind = ("core=verl", f"model={model}", f"layout={layout}", f"recipe={recipe}")
        if peak == "too long":  # for a micro-batch of this layout
            with user_error("less than the longest sequence"):
                composed(*kind, f"rule={rule}")
            continue
        composition = composed(*kind, f"rule={rule}", *COMPANIONS.get(rule, ()))
        if peak == "refused":
            with user_error(r"does not fit in (80|24) GB \(.*layout\.device_memory_gb=\1"):
                checked(composition)
            checked(with_layout(composition, device_memory_gb=400))
        else:
            checked(composition)
            assert peak == f"{estimate(composition.run, composition.layout).memory.peak / 1e9:.0f}"


def documented(layout: str) -> dict[str, str]:
    """A layout's column of the table in docs/verl.md."""
    lines = (ROOT / "docs/verl.md").read_text().splitlines()
    [head] = [line for line in lines if line.startswith("| model | `one_node`")]
    column = [cell.strip() for cell in head.split("|")].index(f"`{layout}`")
    rows = [[cell.strip() for cell in line.split("|")] for line in lines if line.startswith("| `qwen3_")]
    peaks = {cells[1].strip("`"): cells[column] for cells in rows}
    assert len(peaks) == 5
    return peaks


# What decides the numbers, as the paper's Setup and Table 3 have it (docs/paper_settings.md).
PAPER = {
    "data.train_batch_size": 64,
    "data.max_prompt_length": 2048,
    "data.max_response_length": 8192,
    "data.shuffle": True,
    "data.seed": 0,
    f"{ACTOR}.ppo_mini_batch_size": 32,
    f"{ACTOR}.ppo_epochs": 1,
    f"{ACTOR}.shuffle": False,
    f"{ACTOR}.loss_agg_mode": "token-mean",
    f"{ACTOR}.entropy_coeff": 0,
    f"{ACTOR}.use_kl_loss": False,
    f"{ACTOR}.optim.lr": 1e-6,
    f"{ACTOR}.optim.betas": [0.9, 0.999],
    f"{ACTOR}.optim.weight_decay": 0.1,
    f"{ACTOR}.optim.clip_grad": 1.0,
    f"{ACTOR}.grad_clip": 1.0,
    f"{ACTOR}.optim.lr_warmup_steps": -1,
    f"{ACTOR}.optim.lr_warmup_steps_ratio": 0.0,
    f"{ACTOR}.optim.lr_scheduler_type": "constant",
    f"{ACTOR}.policy_loss.rule": "cppo",
    f"{ACTOR}.policy_loss.constants": {
        "delta": 0.15, "delta_b": 0.02, "delta_b_mode": "adaptive", "w_min": 0.8,
    },
    f"{ACTOR}.policy_loss.estimator": "topk",
    f"{ACTOR}.policy_loss.measure": "tv",
    f"{ACTOR}.policy_loss.k": 20,
    f"{ACTOR}.policy_loss.convention": "union",
    f"{ACTOR}.policy_loss.horizon": 8192,
    f"{ACTOR}.policy_loss.centering": False,
    f"{ACTOR}.policy_loss.weights": None,
    f"{ACTOR}.policy_loss.origin": None,
    f"{ROLLOUT}.n": 8,
    f"{ROLLOUT}.temperature": 1.0,
    f"{ROLLOUT}.top_p": 1.0,
    f"{ROLLOUT}.top_k": -1,
    f"{ROLLOUT}.calculate_log_probs": True,
    f"{ROLLOUT}.logprobs_mode": "processed_logprobs",  # log mu at the sampling temperature
    f"{ROLLOUT}.dtype": "bfloat16",
    f"{ROLLOUT}.engine_kwargs.cppo_lab": {"topk": 20, "topk_dtype": "float16", "seed": 0, "seed_requests": True},
    f"{ROLLOUT}.val_kwargs.n": 16,
    f"{ROLLOUT}.val_kwargs.temperature": 0.7,
    f"{ROLLOUT}.val_kwargs.top_p": 0.95,
    f"{ROLLOUT}.val_kwargs.do_sample": True,
    "algorithm.adv_estimator": "grpo",
    "algorithm.norm_adv_by_std_in_grpo": True,
    "algorithm.use_kl_in_reward": False,
    "algorithm.rollout_correction.bypass_mode": True,
    "algorithm.filter_groups.enable": False,
    "trainer.total_training_steps": 680,
    "trainer.test_freq": 10,
    "trainer.save_freq": 1,  # of which our trainer takes its own
    "trainer.use_v1": True,
    "trainer.v1.trainer_mode": "sync",
    "trainer.val_before_train": True,
    "trainer.critic_warmup": 0,
    "actor_rollout_ref.model.use_fused_kernels": False,
    "actor_rollout_ref.model.path": "Qwen/Qwen3-1.7B-Base",
    f"{ROLLOUT}.name": "vllm",
}  # fmt: skip


def test_what_decides_numbers_has_the_papers_values() -> None:
    """In what `cppo show --verl` prints."""
    given = composed(*DENSE)
    config = OmegaConf.create(plain_config(given.run, given.layout, given.paths, Path("/somewhere/runs")))
    assert {key: OmegaConf.select(config, key) for key in PAPER} == PAPER
    assert config.trainer.experiment_name == given.run.run_id


@pytest.mark.parametrize("overrides", [TINY, DENSE, EXPERTS])
def test_every_key_of_ours_is_one_of_verls_or_says_that_it_is_new(overrides: tuple[str, ...]) -> None:
    """Against verl's own tree as its `main_ppo` would compose it."""
    composition = composed(*overrides)
    theirs = _verl_tree("megatron" if composition.layout.megatron else "dp")
    keys = [(key, *key.rsplit(".", 1)) for key in settings(composition.run, composition.layout, MagicMock())]
    # `in` misses those without a value.
    new = {key for key, section, name in keys if name not in list(OmegaConf.select(theirs, section))}
    loss = (
        "rule", "path", "constants", "estimator", "measure", "k", "convention", "horizon", "centering", "weights",
        "origin",
    )  # fmt: skip
    engine_keys = {"fsdp_config.mixed_precision", "megatron.override_transformer_config.moe_router_dtype"}
    assert new - {f"{ACTOR}.{key}" for key in engine_keys} == {
        *(f"{ACTOR}.policy_loss.{key}" for key in loss),
        f"{ROLLOUT}.agent.agent_loop_manager_class",
        f"{ROLLOUT}.engine_kwargs.cppo_lab",
    }


def test_the_trainers_process_gets_the_whole_run_back() -> None:
    # The last has an infinite constant. Ray pickles the tree; YAML is harsher.
    for overrides in (TINY, EXPERTS, (*TINY, "rule=cppo_no_prefix_budget")):
        composition = composed(*overrides)
        config = OmegaConf.create(OmegaConf.to_yaml(tree(composition), resolve=True))
        read, run = lab_settings(config), composition.run
        assert (read.spec, read.spec.run_id) == (run, run.run_id)
        assert read.folder == Path("/somewhere/runs") / run.run_id


# What the audit of GPUs tried (F6), and other keys by which runs of one id would compute different numbers.
NUMBERS = [
    (f"{ACTOR}.fsdp_config.model_dtype", "bfloat16"),
    (f"+{ROLLOUT}.engine_kwargs.vllm.kv_cache_dtype", "fp8"),
    (f"++{ROLLOUT}.max_num_seqs", 5),
    (ROLLOUT, {"top_p": 0.9}),
]


@pytest.mark.parametrize("key, value", NUMBERS)
def test_a_layout_cannot_change_what_a_run_computes(key: str, value: Any) -> None:
    """The id of a run does not know its layout. Refused by the plan, and by what trains."""
    composition = with_layout(composed(*DENSE), verl={key: value})
    said = rf"layout\.verl sets {re.escape(key)}=.*: (drop it, or set the run's own field|set \w+\.\w+, which enters)"
    with user_error(said):
        check_placement(composition.run, composition.layout)
    with user_error(said):
        tree(composition)


def test_the_accepted_keys_are_verls_and_documented() -> None:
    """But for those that verl's tree has not, which a layout writes with a leading `+`."""
    new = {
        "enable_sleep_mode", "disable_custom_all_reduce", "moe_grouped_gemm", "moe_permute_fusion",
        "moe_token_dispatcher_type",
    }  # fmt: skip
    free = {f"{ACTOR}.megatron.override_ddp_config", f"{ACTOR}.optim.override_optimizer_config"}
    for key in PERFORMANCE:
        section, name = key.rsplit(".", 1)
        sections = [OmegaConf.select(_verl_tree(engine), section) for engine in ("dp", "megatron")]
        assert name in new or section in free or any(tree and name in list(tree) for tree in sections), key
    written = re.findall(
        r"^\| `([a-z_A-Z.]+)` \| (`.*`) \|$", (ROOT / "docs/verl.md").read_text(), re.MULTILINE
    )
    documented = {f"{section}.{name.strip('`')}" for section, names in written for name in names.split(", ")}
    assert documented == set(PERFORMANCE)


@pytest.mark.parametrize(
    "key, value, text",
    [
        (f"{ACTOR}.use_torch_compile", "yes", r"actor\.use_torch_compile='yes' must be bool"),
        (f"{ROLLOUT}.max_num_seqs", True, r"max_num_seqs=True must be"),
        (f"{ROLLOUT}.agent.num_workers", 1.5, r"num_workers=1\.5 must be int"),
        (f"{ROLLOUT}.enable_sleep_mode", 1, rf"'{ROLLOUT}\.enable_sleep_mode': did you mean '{ROLLOUT}\."),
        (f"{ACTOR}.megatron.sequence_parallel", 1, rf"cpu.*'{ACTOR}\.megatron': did you mean '{ACTOR}\."),
    ],
)
def test_a_refused_key_comes_with_the_right_one_and_a_value_with_its_type(
    key: str, value: Any, text: str
) -> None:
    with user_error(text):
        checked(with_layout(composed(*TINY), verl={key: value}))


GSPO = {"rule": "gspo", "constants": {"clip_low": 0.0003, "clip_high": 0.0004}, "centering": True}


@pytest.mark.parametrize(
    "section, values, text",
    [
        (ROLLOUT, {"temperature": 0.0}, r"verl refuses .*temperature should be greater than 0"),
        (f"{ACTOR}.policy_loss", {"loss_mode": "gpso"}, r"policy_loss\.loss_mode 'gpso': did you mean 'gspo'"),
        (f"{ACTOR}.policy_loss", {"constants": {"w": 1}}, r"unknown constant of rule 'cppo' 'w'"),
        (f"{ACTOR}.policy_loss", {"rule": "trm_max", "constants": {"delta_max": 0.1}}, "its thresholds are on KL"),
        (f"{ACTOR}.policy_loss", GSPO, "the weight it would give to a token"),
    ],
)  # fmt: skip
def test_what_verl_or_the_loss_refuses_is_said_in_one_line(
    section: str, values: dict[str, Any], text: str
) -> None:
    composition = composed(*TINY)
    config = tree(composition)
    for key, value in values.items():
        OmegaConf.update(config, f"{section}.{key}", value, merge=False, force_add=True)
    with user_error(text):
        check_config(composition.run, composition.layout, config)


def test_another_verl_is_refused_with_the_one_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check_api, "version", lambda package: "0.10.0")
    said = r"verl 0\.10\.0 is installed, but >=0\.9\.1,<0\.9\.2 is supported: pip install 'verl>=0\.9\.1,<0\.9\.2'"
    with user_error(said):
        checked(composed(*TINY))


def test_devices_that_share_a_sequence_share_its_tokens() -> None:
    """With half the tokens per device; composing refuses less (tests/spec/test_run.py)."""
    for model, sharing, tokens in (("8b", "sequence_parallel", 5120), ("30b_a3b", "megatron.context", 9216)):
        layout = (f"layout.{sharing}=2", f"layout.tokens_per_device={tokens}")
        checked(composed("core=verl", f"model=qwen3_{model}_base", *layout))


def test_a_continued_run_takes_its_checkpoint_and_no_tree_is_changed_by_the_next() -> None:
    """It does not validate first. verl's defaults are composed once for all runs."""
    path = "/somewhere/global_step_2"
    made = tree(composed(*TINY), Path(path)).trainer
    assert (made.resume_mode, made.resume_from_path, made.val_before_train) == ("resume_path", path, False)
    first = tree(composed(*TINY))
    assert first.trainer.resume_mode == "disable"
    before = OmegaConf.to_yaml(first, resolve=True)
    keys = {
        f"{ROLLOUT}.max_num_seqs": 7, f"+{ROLLOUT}.engine_kwargs.vllm.disable_custom_all_reduce": True,
        "trainer.max_actor_ckpt_to_keep": None,
    }  # fmt: skip
    rollout = checked(with_layout(composed(*TINY), verl=keys)).actor_rollout_ref.rollout
    assert (rollout.max_num_seqs, rollout.engine_kwargs.vllm.disable_custom_all_reduce) == (7, True)
    assert tree(composed(*DENSE)).actor_rollout_ref.rollout.name == "vllm"
    assert all(OmegaConf.to_yaml(one, resolve=True) == before for one in (first, tree(composed(*TINY))))


def test_a_preflight_trains_fewer_steps_than_lie_between_checkpoints() -> None:
    composition = composed(*TINY, "layout.checkpoint_every=3")
    short = replace(composition, run=shortened(composition.run, 1))
    config = checked(short)
    timed = tree(short, deadline=1.7e9)
    assert (lab_settings(config).checkpoint_every, lab_settings(config).deadline) == (3, None)
    assert lab_settings(timed).deadline == 1.7e9
    assert lab_settings(tree(composed(*TINY))).checkpoint_every is None


LORA = ("optim.lora_rank=8", "optim.lora_alpha=32")
ASYNC = ("rollout.mode=async", "rollout.max_staleness=3")
DECOUPLED = ("rollout.correction=decoupled", "divergence=binary_tv")
WEIGHTS = {
    "rollout_is": "sequence", "rollout_is_threshold": 2.0, "rollout_rs": "token_k1", "rollout_rs_threshold": 5.0,
}  # fmt: skip
LOSS = f"{ACTOR}.policy_loss"


@pytest.mark.parametrize(
    "overrides, expected",
    [
        (
            [*DENSE, *LORA],
            {"actor_rollout_ref.model.lora_rank": 8, "actor_rollout_ref.model.lora_alpha": 32,
             "actor_rollout_ref.model.lora.merge": True},
        ),
        ([*DENSE, "optim.master_dtype=bfloat16"], {f"{ACTOR}.fsdp_config.model_dtype": "bfloat16"}),
        ([*DENSE, "rollout.quantization=fp8"], {f"{ROLLOUT}.quantization": "fp8"}),
        (
            [*EXPERTS, "rollout.router_replay=R3"],
            {f"{ACTOR}.megatron.router_replay.mode": "R3", f"{ROLLOUT}.enable_rollout_routing_replay": True},
        ),
        (
            [*DENSE, *ASYNC],
            {"trainer.v1.trainer_mode": "colocate_async", "trainer.v1.sampler.max_off_policy_threshold": 4,
             "trainer.v1.sampler.max_off_policy_strategy": "wait"},
        ),
        (  # our loss has the weights: verl's own keys would apply them a second time
            [*DENSE, *DECOUPLED, "divergence.origin=old", *(f"rollout.{key}={WEIGHTS[key]}" for key in WEIGHTS)],
            {"algorithm.rollout_correction.bypass_mode": False, f"{LOSS}.weights": WEIGHTS, f"{LOSS}.origin": "old"},
        ),
        ([*DENSE, *DECOUPLED], {f"{LOSS}.weights": {}}),
        (  # what the loss makes of it: `test_parity`
            [*DENSE, "recipe=authors"],
            {f"{ACTOR}.loss_scale_factor": 8192, "algorithm.norm_adv_by_std_in_grpo": False,
             "data.max_prompt_length": 1024, f"{ACTOR}.optim.weight_decay": 0.01},
        ),
        ([*DENSE, "rule.delta_b_cap=inf"], {f"{LOSS}.constants.delta_b_cap": float("inf")}),
    ],
)  # fmt: skip
def test_what_a_run_declares_reaches_verl_and_its_id(overrides: list[str], expected: dict[str, Any]) -> None:
    composition, plain = composed(*overrides), composed(*overrides[:2])
    config, without = checked(composition), tree(plain)
    for key, value in expected.items():
        assert OmegaConf.select(config, key) == value != OmegaConf.select(without, key), key
    assert composition.run.run_id != plain.run.run_id
    verls_own = config.algorithm.rollout_correction
    assert verls_own.rollout_is is verls_own.rollout_rs is None


def test_a_folder_has_any_name_but_one_that_verl_takes_for_a_reference(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files are found in a folder whose name is a pattern."""
    folder = tmp_path / "[1] *?"
    folder.mkdir()
    files = Files("", folder / "train.parquet", (folder / "validation.parquet",), folder)
    pd.DataFrame({"prompt": ["a"]}).to_parquet(files.train)
    composition = composed(*TINY)
    path = settings(composition.run, composition.layout, files)["data.train_files"]
    assert load_dataset("parquet", data_files=path)["train"].to_list() == [{"prompt": "a"}]
    reference = tmp_path / "${a}"
    reference.mkdir()
    monkeypatch.chdir(reference)
    with user_error("rename the folder"):
        compose(list(TINY))


def test_megatron_recomputes_its_layers_and_routes_in_float32() -> None:
    """And a mixture of experts trains without seeds of requests."""
    rollout = tree(composed(*EXPERTS)).actor_rollout_ref.rollout
    assert rollout.engine_kwargs.cppo_lab.seed_requests is False
    for name in ("one_node_megatron", "two_nodes_megatron", "four_nodes_megatron"):
        config = tree(composed(*EXPERTS, f"layout={name}"))
        made = omega_conf_to_dataclass(config.actor_rollout_ref.actor).megatron.override_transformer_config
        assert made.items() >= {
            "recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1,
            "moe_router_dtype": "fp32", "moe_permute_fusion": True,
        }.items()  # fmt: skip
