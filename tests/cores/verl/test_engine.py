"""Training through verl's own engine and worker against the embedded core: the same rollouts, up to 20 updates.

verl's TrainingWorker with its FSDP2 engine runs in processes of its own, on one CPU rank and on two. The embedded
core's model is copied to a Qwen3; what it samples and grades is recorded, and given to verl in the columns that its
trainer would hand on. Groups that the embedded core drops are rows that pad.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor
from verl.utils import tensordict_utils as tu

from cppo_lab import schema
from cppo_lab.core_records import Resources
from cppo_lab.cores.mini.trainer import GradedRollout, Trainer
from cppo_lab.cores.verl.hf_models import as_qwen3
from cppo_lab.cores.verl.loss import rule_metrics, summarise_mismatch
from cppo_lab.maths.rules import group_advantages
from cppo_lab.spec import RunSpec
from cppo_lab.sweep.compose import compose
from tests.conftest import TINY
from tests.cores.verl.conftest import on_ranks, with_experts
from tests.cores.verl.recorded import actor, micro_batch, nested

MICRO_BATCH = 2
SETTINGS = [
    "divergence.k=4",
    "rollout.temperature=0.8",
    "rollout.staleness=1",
    "rule.delta=0.02",
    "rule.delta_b=0.002",
    "optim.learning_rate=0.0003",
    "model.architecture.layers=2",
]


# With three policies: mu of one batch ago, pi_old as the engine computes it, pi.
DECOUPLED = [
    "rollout.correction=decoupled", "rollout.rollout_is=token", "rollout.rollout_is_threshold=1.01",
    "rollout.rollout_rs=token_k1", "rollout.rollout_rs_threshold=1.02",
]  # fmt: skip
# The embedded core's runs: name -> steps of two minibatches each, overrides.
RUNS = {
    "by token": (10, ["training.aggregation=token-mean"]),
    "by response": (5, ["training.aggregation=seq-mean-token-sum-norm"]),
    "decoupled": (5, ["training.aggregation=token-mean", *DECOUPLED]),
}
# One run through verl each: the embedded core's run, ranks, without padding.
CASES = {
    "two ranks": ("by token", 2, False),
    "one rank, packed": ("by token", 1, True),
    "two ranks, by response": ("by response", 2, False),
    "two ranks, decoupled": ("decoupled", 2, False),
}
# What else a run may declare, on two ranks: settings of the worker, by name.
DECLARED: dict[str, dict[str, Any]] = {
    "adapters": {"lora": (4, 8)},
    "experts": {"model": "experts"},
    "bfloat16": {"master_dtype": "bfloat16"},
}


def spec_of(run: str) -> RunSpec:
    return compose([*TINY, *SETTINGS, *RUNS[run][1]]).run


class Recorded(NamedTuple):
    """A run of the embedded core: what it sampled, what it reported of each step, and where it ended."""

    batches: list[dict[str, Tensor]]
    metrics: list[dict[str, float]]
    before: dict[str, Tensor]
    after: dict[str, Tensor]


def record(run: str, folder: Path) -> Recorded:
    """Trains the embedded core, and saves its first model for verl in `folder`/model."""
    spec = spec_of(run)
    trainer = Trainer(spec, Resources(folder, folder, device="cpu"))
    first = as_qwen3(trainer.model, trainer.tokenizer.eos)
    first.save_pretrained(folder / "model")
    with_experts(first.config, 4).save_pretrained(folder / "experts")
    batches, metrics = [], []
    generator = torch.Generator().manual_seed(0)
    for _ in range(RUNS[run][0]):
        # This model is right too seldom: rewards are drawn, so that most groups have a signal and some have none.
        batch = trainer.collect()
        rewards = (torch.rand(len(batch.keep), generator=generator) < 0.4).float()
        advantages, keep = group_advantages(rewards, batch.rollout.group)
        batch = replace(batch, advantages=advantages, keep=keep)
        batches.append(columns(batch))
        metrics.append(trainer.update(batch))
        trainer.steps += 1
    after = as_qwen3(trainer.model, trainer.tokenizer.eos).state_dict()
    return Recorded(batches, metrics, first.state_dict(), after)


OF_RESPONSES = ("responses", "old_log_probs", "rollout_log_probs", "rollout_topk_ids", "rollout_topk_logp")


def columns(batch: GradedRollout) -> dict[str, Tensor]:
    rollout = batch.rollout
    return {
        "prompts": rollout.prompts[rollout.group], "responses": rollout.responses, "lengths": rollout.lengths,
        "old_log_probs": rollout.logp, "rollout_log_probs": rollout.logp, "rollout_topk_ids": rollout.topk_ids.int(),
        "rollout_topk_logp": rollout.topk_logp, "advantages": batch.advantages, "keep": batch.keep,
    }  # fmt: skip


def verl_batch(spec: RunSpec, batch: dict[str, Tensor], rank: int, ranks: int) -> Any:
    """This rank's rows of every minibatch of a step, as verl's trainer hands them on. Dropped rows pad."""
    size = spec.batch.minibatch_prompts * spec.batch.responses
    minibatches, keep = torch.arange(len(batch["keep"])).split(size), batch["keep"]
    kept = torch.cat([keep[rows].sum().repeat(size) for rows in minibatches])
    assert kept.all()
    index = torch.cat([rows.chunk(ranks)[rank] for rows in minibatches])
    responses = batch["responses"]
    valid = keep[:, None] & (torch.arange(responses.shape[1]) < batch["lengths"][:, None])
    columns = {name: batch[name][index] for name in OF_RESPONSES}
    columns["advantages"] = batch["advantages"][:, None].expand_as(responses)[index]
    data, _ = micro_batch(
        columns, valid[index], batch["prompts"][index].unbind(),
        temperature=spec.rollout.temperature, calculate_entropy=False, distillation_use_topk=True,
        distillation_only=True, mini_batch_size=size, global_batch_size=size, epochs=1, seed=0,
        dataloader_kwargs={"shuffle": False},
    )  # fmt: skip
    data["minibatch_responses"] = torch.where(keep, kept.float(), 0.0)[index, None]
    data["loss_mask"] = data["response_mask"]
    data["position_ids"] = nested([torch.arange(len(ids)) for ids in data["input_ids"].unbind()])
    return data


def through_verl(
    case: tuple[str, int, bool],
    rank: int,
    folder: Path,
    batches: list[dict[str, Tensor]],
    model: str = "model",
    **declared: Any,
) -> dict[str, Any]:
    """The recorded steps through verl's worker: our metrics of each, the parameters before and at the end, and what
    the rollout engine gets then.
    """
    from functools import partial

    from verl.utils.metric import reduce_metrics
    from verl.utils.py_functional import rename_dict

    from cppo_lab.cores.verl.loss import trust_region_loss
    from tests.cores.verl.cpu_engine import make_worker, sent, weights

    run, ranks, packed = case
    spec = spec_of(run)
    optim = spec.optim
    worker = make_worker(
        folder / model, micro_batch=MICRO_BATCH, remove_padding=packed, **declared,
        lr=optim.learning_rate, betas=(optim.beta1, optim.beta2), weight_decay=optim.weight_decay,
        clip_grad=optim.clip_grad_norm, total_training_steps=100,
    )  # fmt: skip
    kind = spec.divergence
    config = actor(
        "cppo", spec.rule.parameters(), spec.training.aggregation, estimator="topk", measure=kind.measure, k=kind.k,
        convention=kind.convention, horizon=spec.rollout.max_response_length, weights=spec.rollout.weights,
    )  # fmt: skip
    worker.set_loss_fn(partial(trust_region_loss, config=config))
    metrics, before = [], weights(worker)
    for batch in batches:
        data = verl_batch(spec, batch, rank, ranks)
        if spec.rollout.correction:
            data["old_log_probs"] = recomputed(worker, data)
        reported = tu.get(worker.train_mini_batch(data), "metrics")
        summarise_mismatch(reported)  # as our worker does
        metrics.append(rule_metrics(reduce_metrics(rename_dict(reported, "actor/"))))
    served = sent(worker)  # which merges adapters, and takes them out again
    return {"metrics": metrics, "before": before, "after": weights(worker), "sent": served}


def recomputed(worker: Any, data: Any) -> Tensor:
    """Log pi_old of the response tokens, from the engine before the batch's updates, as verl's trainer asks for it."""
    from verl.workers.utils.padding import no_padding_2_padding

    asked = data.clone()
    tu.assign_non_tensor(asked, compute_loss=False, distillation_use_topk=False, distillation_only=False)
    logp = no_padding_2_padding(tu.get(worker.infer_batch(asked), "log_probs"), asked)
    return nested([row[: len(tokens)] for row, tokens in zip(logp, data["responses"].unbind(), strict=True)])


def work(rank: int, ranks: int, folder: Path) -> None:
    """One process of a group of `ranks`: all cases of that many, into a file."""
    batches = torch.load(folder / "batches.pt")
    for name, case in (CASES | dict.fromkeys(DECLARED, ("by token", 2, False))).items():
        if case[1] == ranks:
            declared = DECLARED.get(name, {})
            steps = batches[case[0]][: 2 if declared else None]
            result = through_verl(case, rank, folder / case[0], steps, **declared)
            if rank == 0:
                torch.save(result, folder / f"{name}.pt")


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Recorded], dict[str, dict[str, Any]]]:
    """The embedded core's runs, and verl's of each case."""
    folder = tmp_path_factory.mktemp("engine")
    minis = {}
    for run in RUNS:
        (folder / run).mkdir()
        minis[run] = record(run, folder / run)
    torch.save({name: mini.batches for name, mini in minis.items()}, folder / "batches.pt")
    on_ranks(work, folder)
    names = (*CASES, *DECLARED)
    return minis, {name: torch.load(folder / f"{name}.pt", weights_only=False) for name in names}


@pytest.mark.parametrize("name", CASES)
def test_updates_agree_with_the_embedded_core(runs: Any, name: str) -> None:
    minis, verls = runs
    mini, verl = minis[CASES[name][0]], verls[name]
    assert any(not batch["keep"].all() for batch in mini.batches)  # dropped groups, hence rows that pad
    for ours, theirs in zip(mini.metrics, verl["metrics"], strict=True):
        assert set(theirs) - set(ours) == {"train/entropy", "train/mean_abs_probability_gap"}
        for key, value in ours.items():
            # A token at the edge of a bin moves the percentile by one, which is 19 % wide.
            near = {"rel": 0.2, "abs": 1e-4} if key.endswith("_p99") else {"rel": 1e-4, "abs": 1e-4}
            assert theirs[key] == pytest.approx(value, **near), key
        assert any(key.startswith(schema.MISMATCH) for key in theirs)
    masked = [metrics["rule/masked_fraction"] for metrics in mini.metrics]
    assert max(masked) > 0.05  # the trust region is at work
    limit = 1e-5  # asked for: 1e-4
    if CASES[name][0] == "decoupled":
        limit = 3e-5
        assert max(metrics["rule/rejected_fraction"] for metrics in mini.metrics) > 0.05
        assert any(metrics["rule/importance_weight_mean"] != 1 for metrics in mini.metrics)

    def apart(other: dict[str, Tensor]) -> float:
        return max(float((mini.after[key] - other[key]).abs().max()) for key in mini.after)

    assert apart(mini.before) > 20 * 1e-4
    assert apart(verl["after"]) < limit


def test_what_a_run_declares_trains_as_it_says(runs: Any) -> None:
    """The engine serves whole weights under the hub's names, whatever is trained."""
    minis, verls = runs
    moved = {}
    for name in DECLARED:
        before, after = verls[name]["before"], verls[name]["after"]
        moved[name] = {key for key in after if not torch.equal(before[key], after[key])}
        assert all(0 < row["train/grad_norm"] < 1000 for row in verls[name]["metrics"]), name
    adapters, sent = verls["adapters"]["after"], verls["adapters"]["sent"]
    assert moved["adapters"] == {key for key in adapters if ".lora_" in key}
    hub = minis["by token"].before
    assert sent.keys() == hub.keys()
    for key, value in sent.items():
        at = f"base_model.model.{key.removesuffix('weight')}lora_"
        change = torch.zeros(())
        if (a := adapters.get(f"{at}A.default.weight")) is not None:
            change = 8 / 4 * adapters[f"{at}B.default.weight"] @ a
            assert change.abs().max() > 0
        torch.testing.assert_close(value, (hub[key] + change).bfloat16())  # verl rounds what it has merged
    assert {value.dtype for value in verls["bfloat16"]["after"].values()} == {torch.bfloat16}
    experts = verls["experts"]
    assert any(".experts." in key for key in experts["after"])
    assert {key for key in experts["after"] if ".mlp." in key} <= moved["experts"]
    for layer in range(2):
        for part in ("gate", "up", "down"):
            assert f"model.layers.{layer}.mlp.experts.3.{part}_proj.weight" in experts["sent"]
