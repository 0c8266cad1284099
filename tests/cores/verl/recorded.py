"""Recorded responses in verl's form: micro-batches of nested columns, as its engines hand them to the loss."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from verl.utils import tensordict_utils as tu
from verl.workers.config import FSDPActorConfig

from cppo_lab.cores.rule_loss import KeptResponse
from cppo_lab.cores.verl.answers import PLACE
from cppo_lab.cores.verl.loss import TrustRegionLossConfig, trust_region_loss
from cppo_lab.rules import ENTROPY, PERMUTATION, RULES
from tests.maths.maths_batches import TokenBatch, head, random_permutation


def actor(
    rule: str = "grpo", constants: dict[str, Any] | None = None, mode: str = "token-mean", **policy: Any
) -> FSDPActorConfig:
    """verl's config of an actor with our loss; `policy` are further keys of the loss's config."""
    if "loss_mode" not in policy:
        policy |= {"rule": rule, "constants": constants or {}}
    return plain_actor(TrustRegionLossConfig(**policy), loss_agg_mode=mode)


def plain_actor(policy_loss: Any, **keys: Any) -> FSDPActorConfig:
    return FSDPActorConfig(
        strategy="fsdp2", rollout_n=1, ppo_micro_batch_size_per_gpu=1, policy_loss=policy_loss, **keys
    )


def nested(rows: Sequence[Tensor]) -> Tensor:
    return torch.nested.as_nested_tensor(list(rows), layout=torch.jagged)


def packed_output(values: Tensor, lengths: Sequence[int], prompts: Sequence[Tensor]) -> Tensor:
    """What an engine returns for `values` [B, T]: row p of a sequence speaks of token p + 1.

    Elsewhere it holds numbers that must never count.
    """
    rows = []
    for row, (length, prompt) in enumerate(zip(lengths, prompts, strict=True)):
        before, after = torch.full((len(prompt) - 1,), -77.0), torch.full((1,), -99.0)
        rows.append(torch.cat([before.to(values.dtype), values[row, :length], after.to(values.dtype)]))
    return torch.nested.nested_tensor_from_jagged(
        torch.cat(rows), torch.tensor([0, *(len(row) for row in rows)]).cumsum(0)
    )


def micro_batch(
    columns: dict[str, Tensor], valid: Tensor, prompts: Sequence[Tensor], **known: Any
) -> tuple[Any, list[int]]:
    """A TensorDict of `columns` [B, T, ...], and the lengths; a row without a token pads, with one response token."""
    lengths = valid.sum(1).clamp_min(1).tolist()
    batch = {
        name: nested([row[:length] for row, length in zip(column, lengths, strict=True)])
        for name, column in columns.items()
    }
    batch["response_mask"] = nested([row[:length].long() for row, length in zip(valid, lengths, strict=True)])
    batch["prompts"] = nested(prompts)
    pairs = zip(prompts, batch["responses"].unbind(), strict=True)
    batch["input_ids"] = nested([torch.cat(pair) for pair in pairs])
    data = tu.get_tensordict(batch, {})
    tu.assign_non_tensor(data, **known)
    return data, lengths


class Trained(NamedTuple):
    """What a minibatch in parts gives: loss and gradient as FSDP makes them; by rank, metrics and kept responses."""

    loss: float
    gradient: Tensor
    metrics: list[list[dict[str, Any]]]
    kept: list[dict[int, KeptResponse]]


def train(
    config: Any,
    batch: TokenBatch,
    cuts: Sequence[Sequence[Sequence[int]]],
    *,
    measured: bool = True,
    entropy: Tensor | None = None,
    marked: dict[int, int] | None = None,
    watch: Any = None,
    of_mu: Tensor | None = None,
) -> Trained:
    """The loss on a minibatch that is cut into [rank][micro-batch] -> rows. Token t of row i has the id 100 i + t.

    `measured`: the engine has measured D_t; `marked`: row -> its place among those that are kept; `of_mu`: log mu
    [B, T] in a decoupled run, where `batch.rollout_logp` is pi_old's.
    """
    logp = batch.logp.clone().requires_grad_()
    tokens, rows, width = int(batch.valid.sum()), float(batch.valid.any(1).sum()), batch.valid.shape[1]
    columns = {
        "old_log_probs": batch.rollout_logp, "advantages": batch.advantages,
        "responses": 100 * torch.arange(len(logp))[:, None] + torch.arange(width),
    }  # fmt: skip
    if of_mu is not None:
        columns["rollout_log_probs"] = of_mu
    rule = RULES.get(config.policy_loss.rule)  # None for a loss of verl and a rule of another package
    if rule is not None and PERMUTATION in rule.needs:
        columns["weight_permutation"] = random_permutation(batch.valid, 0).int()
    if rule is not None and ENTROPY in rule.needs:
        columns |= {
            "rollout_topk_ids": columns["responses"][..., None].int(),
            "rollout_topk_logp": head(batch),
        }
    trained = Trained(0.0, logp, [[] for _ in cuts], [{} for _ in cuts])
    loss = 0.0
    for cut, metrics, kept in zip(cuts, trained.metrics, trained.kept, strict=True):
        for index in map(list, cut):
            prompts = [torch.arange(2 + row % 3) for row in index]
            data, lengths = micro_batch(
                {name: column[index] for name, column in columns.items()}, batch.valid[index], prompts,
                dp_size=len(cuts), batch_num_tokens=tokens, global_batch_size=len(logp),
            )  # fmt: skip
            data["minibatch_responses"] = torch.where(batch.valid.any(1), rows, 0.0)[index, None]
            if marked:
                data[PLACE] = nested([torch.tensor([marked.get(row, -1)]) for row in index])
            values = {"log_probs": logp}
            values |= {"divergence": batch.divergence} if measured else {}
            values |= {} if entropy is None else {"policy_entropy": entropy}
            output = {name: packed_output(value[index], lengths, prompts) for name, value in values.items()}
            part, reported = trust_region_loss(
                config, output, data, watch=watch, record_decisions=kept.update
            )  # fmt: skip
            (part / len(cuts)).backward()  # FSDP averages gradients over the ranks
            loss += float(part.detach()) / len(cuts)
            metrics.append(reported)
    return trained._replace(loss=loss, gradient=logp.grad)


def by_minibatch(parts: Sequence[Sequence[Sequence[dict[str, Any]]]]) -> dict[str, Any]:
    """A list for each metric of [minibatch][rank][micro-batch], as `train_mini_batch` returns it."""
    from verl.utils.metric import Metric
    from verl.utils.py_functional import append_to_dict

    steps: dict[str, Any] = {}
    for minibatch in parts:
        ranks = []
        for micro_batches in minibatch:
            collected: dict[str, Any] = {}
            for metrics in micro_batches:  # as workers/engine/utils.py: postprocess_batch_func
                append_to_dict(collected, metrics)
            ranks.append(collected)
        # As TrainingWorker.train_mini_batch, after the gathering over ranks.
        append_to_dict(steps, {key: Metric.aggregate_dp([rank[key] for rank in ranks]) for key in ranks[0]})
    return steps


def reduced(parts: Sequence[Sequence[Sequence[dict[str, Any]]]]) -> dict[str, float]:
    """What verl's trainer makes of metrics of [minibatch][rank][micro-batch], by verl's own functions."""
    from verl.utils.metric import reduce_metrics
    from verl.utils.py_functional import rename_dict

    return reduce_metrics(rename_dict(by_minibatch(parts), "actor/"))
