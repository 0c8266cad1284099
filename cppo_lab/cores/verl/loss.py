"""Our loss of a micro-batch within verl, with its typed configuration (`actor.policy_loss` of a run) and its metrics.

The loss is the same as that of the embedded cores (`cores/rule_loss.py`), cut into the micro-batches of ranks.
"""

from collections.abc import Callable, Mapping, MutableMapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from verl.trainer.ppo.core_algos import POLICY_LOSS_REGISTRY
from verl.utils import tensordict_utils as tu
from verl.utils.metric import AggregationType, Metric
from verl.workers.config import PolicyLossConfig
from verl.workers.utils.losses import ppo_loss
from verl.workers.utils.padding import no_padding_2_padding

from cppo_lab import schema
from cppo_lab.cores.rule_loss import (
    KeptResponse,
    ObservedTokens,
    applied,
    kept_responses,
    mismatch_metrics,
)
from cppo_lab.cores.verl import logits as from_engine
from cppo_lab.cores.verl.answers import places_of
from cppo_lab.errors import NotFinite, UserError, unknown
from cppo_lab.maths import divergence, mismatch
from cppo_lab.maths.mismatch import log_ratios, mismatch_sums, relative_logprob_error
from cppo_lab.maths.rules import aggregate
from cppo_lab.maths.tokens import Tokens, common_stats, compute_dtype, summarise
from cppo_lab.rules import DRIFT, ENTROPY, Rule, rule_of

NAME = "trust_region"


@dataclass
class TrustRegionLossConfig(PolicyLossConfig):
    """`actor.policy_loss` with `_target_` of this class.

    `loss_mode` is "trust_region" (then `rule` with its `constants`), or a loss of verl, to which we only add
    diagnostics. The divergence: `estimator` "topk" (with `k`, `convention`), "exact" (the same with k = V), "binary"
    or "sample" (`measure` k2 or k3). `horizon`: the run's maximum response length. `mismatch`: whether the sums of the
    metrics `mismatch/*` are reported. `centering`: score centering, with "topk" and "exact". `weights`: the arguments
    of `maths.rules.corrected` in a decoupled run; None: mu is pi_old. `origin` "old": D_t measures from pi_old.

    Raises UserError for an unknown loss, rule or constant.
    """

    loss_mode: str = NAME
    rule: str = ""
    path: str | None = None  # of a rule of another package
    constants: dict[str, Any] = field(default_factory=dict)
    estimator: str = "binary"
    measure: str = "tv"
    k: int | None = None
    convention: str | None = None
    horizon: int | None = None
    mismatch: bool = True
    centering: bool = False
    weights: dict[str, Any] | None = None
    origin: str | None = None

    def __post_init__(self) -> None:
        if self.loss_mode == NAME:
            self.record.check(self.constants, self.measure)
            if self.centering and self.record.centering_fault:
                raise UserError(self.record.centering_fault)
        elif self.loss_mode not in POLICY_LOSS_REGISTRY:
            raise unknown("policy_loss.loss_mode", self.loss_mode, {NAME, *POLICY_LOSS_REGISTRY})

    @property
    def needs_topk(self) -> bool:
        """Whether D_t needs mu's most likely tokens (`rollout_topk_ids`, `rollout_topk_logp`)."""
        return self.estimator in ("topk", "exact")

    @property
    def needs_drift(self) -> bool:
        """Whether the rule needs the change of a D_t that has mu's most likely tokens."""
        return self.loss_mode == NAME and self.needs_topk and DRIFT in self.record.needs

    @property
    def measuring(self) -> dict[str, Any]:
        """The arguments of the divergence on mu's most likely tokens. Without them it is not used, and "sample" has
        other measures.
        """
        return {
            "measure": self.measure if self.needs_topk else "tv",
            "convention": self.convention or "union",
        }

    @property
    def record(self) -> Rule:
        """The rule; a rule of another package is imported in this process."""
        return rule_of(self.rule, self.path)


# The statistics that a loss reports through verl, converted to the metrics of our schema.
#
# verl reduces a metric three times: over the data-parallel ranks (mean), over micro-batches (sum) and over minibatches
# (mean; by "max" or "min" in the name: the maximum or minimum). A share would become a mean of means. So we
# report sums, which those reductions divide by the same factor (ranks x minibatches): the ratio of two of them is
# exact. `loss` and `updates` are scaled by the number of ranks beforehand, so that `updates` becomes the share of
# minibatches with a token, and `loss` the sum over all minibatches.

PREFIX = "rule_sums/"
GAP = f"{PREFIX}gap/"  # + place among the numbers of MismatchSums


def report(
    stats: Mapping[str, Tensor], *, loss: Tensor, minibatch_tokens: float, dp_size: int
) -> dict[str, Metric]:
    """The micro-batch's `stats` (sums; `*_max`: maxima) and loss as verl metrics.

    Args:
        stats: among them `tokens`, the valid tokens of this micro-batch.
        loss: the differentiated value: the micro-batch's part of the minibatch loss, times `dp_size`.
        minibatch_tokens: valid tokens of the minibatch on all ranks; 0 if all its rows are padding.
        dp_size: data-parallel ranks.
    """
    values = dict(stats) | {"loss": loss, "updates": stats["tokens"] * dp_size / max(minibatch_tokens, 1)}
    # One transfer from the device for all of them.
    numbers = torch.stack([value.detach().double() for value in values.values()]).tolist()
    return {
        PREFIX + name: Metric(AggregationType.MAX if name.endswith("_max") else AggregationType.SUM, number)
        for name, number in zip(values, numbers, strict=True)
    }


def report_mismatch(sums: mismatch.MismatchSums) -> dict[str, Metric]:
    """The micro-batch's sums as verl metrics: a number each, since verl reduces only scalars."""
    numbers = torch.cat([part.flatten() for part in sums]).tolist()  # one transfer from the device
    largest = range(sums.sums.numel(), sums.sums.numel() + sums.largest.numel())
    return {
        f"{GAP}{place}": Metric(AggregationType.MAX if place in largest else AggregationType.SUM, number)
        for place, number in enumerate(numbers)
    }


def summarise_mismatch(metrics: MutableMapping[str, Any]) -> None:
    """Replace the sums of a training step by the metrics `mismatch/*`, if there are any.

    Args:
        metrics: name -> a number per minibatch of the step, in order, as verl's `train_mini_batch` returns them:
            reduced over ranks and micro-batches, the sums of each minibatch divided by the number of ranks.
    """
    values: list[list[float]] = []
    while (name := f"{GAP}{len(values)}") in metrics:
        values.append(metrics.pop(name))
    if not values:
        return
    thirds, updates = mismatch.THIRDS, []
    widths = [thirds * len(mismatch.FIELDS), thirds, thirds * mismatch.BINS, 1 + mismatch.BINS]
    for numbers in torch.tensor(values, dtype=torch.float64).unbind(1):
        sums, largest, counts, d = numbers.split(widths)
        if sums.view(thirds, -1)[:, 0].any():  # padding alone makes no update
            updates.append(mismatch.MismatchSums(sums.view(thirds, -1), largest, counts.view(thirds, -1), d))
    for computed in (mismatch_metrics(updates), mismatch_metrics(updates[:1], before_update=True)):
        metrics.update({name: [value] for name, value in computed.items()})


def rule_metrics(reduced: Mapping[str, float]) -> dict[str, float]:
    """Metrics in the names of the schema from verl's reduced actor metrics of a training step.

    Keys may carry verl's prefix `actor/`. Empty if our sums are missing, or if no minibatch had a token.

    `train/entropy` is that of the policy being updated, at the states of the rollouts, since verl's sampling engines do
    not return the entropy of mu. The two are equal in the first minibatch of a step.
    """
    values = {key.removeprefix("actor/"): float(value) for key, value in reduced.items()}
    sums = {name.removeprefix(PREFIX): value for name, value in values.items() if name.startswith(PREFIX)}
    if not sums.get("updates"):
        return {}
    tensors = {name: torch.tensor(value, dtype=torch.float64) for name, value in sums.items()}
    metrics = {f"rule/{name}": value for name, value in summarise(tensors).items()}
    ready = (schema.MISMATCH, "rule/")  # `summarise_mismatch` has made them
    metrics |= {name: value for name, value in values.items() if name.startswith(ready)}
    metrics["train/loss"] = sums["loss"] / sums["updates"]
    if "grad_norm" in values:
        # A minibatch of padding only has norm 0 and makes no update.
        metrics["train/grad_norm"] = values["grad_norm"] / sums["updates"]
    metrics["train/relative_logprob_error"] = (
        sums["logprob_difference"] / sums["logprob_scale"] if sums["logprob_scale"] else 0.0
    )
    metrics["train/mean_abs_probability_gap"] = sums["probability_gap"] / sums["tokens"]
    if "entropy" in sums:
        metrics["train/entropy"] = sums["entropy"] / sums["tokens"]
    return metrics


# The rules of `maths.rules` as verl's policy loss.
#
# `trust_region_loss` has verl's two-phase protocol (that of its `distillation_ppo_loss`): an engine calls it on the
# logits, see `logits.py`, and then for the loss of a micro-batch. The losses of micro-batches add up to that of the
# minibatch: each is divided by the per-minibatch total (of tokens, or of responses), and multiplied by the number of
# data-parallel ranks, over which FSDP and Megatron average gradients.


def trust_region_loss(
    config: Any,
    model_output: Any = None,
    data: Any = None,
    dp_group: Any = None,
    student_logits: Tensor | None = None,
    data_format: str = "thd",
    *,
    watch: Callable[[ObservedTokens], None] | None = None,
    record_decisions: Callable[[dict[int, KeptResponse]], None] | None = None,
) -> Any:
    """Both phases of the loss; bind `config` (an ActorConfig), `watch` and `record_decisions` with `functools.partial`.

    With `student_logits`: dict of per-row outputs, as `logits.fsdp_outputs` or `logits.megatron_outputs`. Otherwise:
    the micro-batch's loss and its metrics, see above.

    Args:
        data: the micro-batch. Columns `responses`, `response_mask`, `old_log_probs` (of pi_old), `advantages`,
            `minibatch_responses`; of mu `rollout_log_probs`, if it is not pi_old; for the shuffled rule
            `weight_permutation`.
        watch: called with the tokens of every micro-batch.
        record_decisions: called with the marked responses of a micro-batch that has any, by place.

    Raises:
        NotFinite: a log-probability of a response token is NaN or infinite.
    """
    loss_config = config.policy_loss
    if student_logits is not None and config.strategy == "megatron":
        return from_engine.megatron_outputs(student_logits, data, data_format, loss_config)
    if student_logits is not None:
        return from_engine.fsdp_outputs(student_logits, data, loss_config)
    logp = compute_dtype(no_padding_2_padding(model_output[from_engine.LOGP], data))

    def column(name: str) -> Tensor:
        """[B, T, ...] from a column of response tokens."""
        values = data[name]
        if not values.is_nested:
            return values
        return torch.nested.to_padded_tensor(values, 0, (values.size(0), logp.shape[1], *values.shape[2:]))

    def output(key: str) -> Tensor | None:
        """[B, T] without gradient from an output of the first phase; None where there is none."""
        return no_padding_2_padding(model_output[key], data).detach() if key in model_output else None

    valid = column("response_mask").bool()
    if not bool(torch.where(valid, logp.detach(), 0.0).sum().isfinite()):
        raise NotFinite("log-probabilities are not finite")
    old_logp, rollout_logp = column("old_log_probs"), column(from_engine.of_mu(data))
    origin_logp, advantages = old_logp if loss_config.origin else rollout_logp, column("advantages")
    if (measured := output(from_engine.DIVERGENCE)) is not None:
        d = compute_dtype(measured)
    else:
        assert not loss_config.needs_topk, "the engine did not measure D_t"
        sampled, measure = (logp.detach(), origin_logp), loss_config.measure
        alone = loss_config.estimator == "sample"
        d = divergence.ESTIMATES[measure](*sampled) if alone else divergence.binary(*sampled, measure)
    seen = ObservedTokens(logp.detach(), rollout_logp, d, advantages, valid, column("responses"), origin_logp)
    if watch is not None:
        watch(seen)
    dp_size, tokens_in_all = int(data["dp_size"]), float(data["batch_num_tokens"])
    counts = data["minibatch_responses"]
    # Without padding, over all ranks: the same number in every row. verl counts rows that pad.
    responses = float((counts.values() if counts.is_nested else counts).max())
    if loss_config.loss_mode == NAME:
        order = column("weight_permutation").long() if "weight_permutation" in data else None
        drift, given = output(from_engine.DRIFT), {"origin_logp": origin_logp}
        if loss_config.centering or ENTROPY in loss_config.record.needs:
            ids, topk_logp = column("rollout_topk_ids"), column("rollout_topk_logp").float()
            entropy = divergence.topk_entropy(topk_logp)
            given |= {"topk_ids": ids, "topk_logp": topk_logp, "rollout_entropy": entropy}
        if loss_config.centering:
            parts = [model_output[f"{from_engine.TOPK}{place}"] for place in range(ids.shape[-1])]
            given["topk_pi_logp"] = torch.stack([no_padding_2_padding(part, data) for part in parts], -1)
        given["drift"] = logp.detach() - origin_logp if drift is None else drift
        batch = Tokens(logp, old_logp, advantages, valid, d, order, **given)
        result = applied(
            loss_config.record,
            batch,
            loss_config.constants,
            rollout_logp,
            centering=loss_config.centering,
            weights=loss_config.weights,
        )
        mode = config.loss_agg_mode
        denominator = tokens_in_all if mode == "token-mean" else responses
        if denominator:
            horizon = loss_config.horizon if mode == "seq-mean-token-sum-norm" else None
            part = aggregate(result.objective, valid, mode, denominator=denominator, horizon=horizon)
            loss = -part * dp_size
        else:  # a minibatch of padding only
            loss = 0.0 * result.objective.sum()
        stats, metrics = result.stats, {}
        # Not of a decoupled run, as in the embedded core.
        if record_decisions and loss_config.weights is None and (places := places_of(data)) is not None:
            marked = places >= 0
            responses_kept = kept_responses(seen, result, order, marked)
            record_decisions(dict(zip(places[marked].tolist(), responses_kept, strict=True)))
    else:
        data = data.clone(recurse=False)
        tu.assign_non_tensor(data, global_batch_size=max(responses, 1.0))
        loss, metrics = ppo_loss(config, model_output, data, dp_group)
        batch = Tokens(logp.detach(), rollout_logp, advantages, valid, d)
        # verl's losses apply their masks and report them.
        stats = {k: v for k, v in common_stats(batch, valid.float()).items() if k != "masked"}
    if loss_config.mismatch:
        metrics = metrics | report_mismatch(mismatch_sums(log_ratios(logp, rollout_logp, d, valid)))
    difference, scale = relative_logprob_error(logp.detach(), rollout_logp, valid)
    gap = (logp.detach().float().exp() - rollout_logp.float().exp()).abs()
    stats = stats | {
        "logprob_difference": difference,
        "logprob_scale": scale,
        "probability_gap": torch.where(valid, gap, 0.0).sum(),
    }
    if (entropy_of_pi := output(from_engine.ENTROPY)) is not None:
        stats["entropy"] = torch.where(valid, entropy_of_pi.float(), 0.0).sum()
    return loss, metrics | report(stats, loss=loss, minibatch_tokens=tokens_in_all, dp_size=dp_size)
