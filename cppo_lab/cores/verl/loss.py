"""Our loss within verl: its configuration, its metrics, and the loss of a micro-batch.

The typed configuration of our losses in verl: `actor.policy_loss` of a run.
"""

from collections.abc import Callable, Mapping, MutableMapping
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor
from verl.trainer.ppo.core_algos import POLICY_LOSS_REGISTRY, register_policy_loss
from verl.utils import tensordict_utils as tu
from verl.workers.config import PolicyLossConfig
from verl.workers.utils.losses import ppo_loss
from verl.workers.utils.padding import no_padding_2_padding

from cppo_lab import schema
from cppo_lab.cores.diagnostics import ObservedTokens
from cppo_lab.cores.verl import logits as from_engine
from cppo_lab.cores.verl.kept_responses import Decided, places_of
from cppo_lab.errors import NotFinite, UserError, unknown
from cppo_lab.maths import aggregation, divergence, mismatch
from cppo_lab.maths.divergence import CONVENTIONS, ESTIMATES
from cppo_lab.maths.metrics import relative_logprob_error, summarise
from cppo_lab.maths.mismatch import log_ratios, mismatch_sums
from cppo_lab.maths.tokens import RuleOutput, Tokens, common_stats, compute_dtype
from cppo_lab.rules import MINIBATCH, PERMUTATION, RULES, Rule, rule_of

if TYPE_CHECKING:
    from verl.utils.metric import Metric


NAME = "trust_region"
MEASURES = {"topk": ("tv", "kl"), "exact": ("tv", "kl"), "binary": ("tv", "kl"), "sample": tuple(ESTIMATES)}


@dataclass
class TrustRegionLossConfig(PolicyLossConfig):
    """`actor.policy_loss` with `_target_` of this class.

    `loss_mode` is "trust_region" (then `rule` with its `constants`), or a loss of verl, to which we only add
    diagnostics. The divergence: `estimator` "topk" (with `k`, `convention`), "exact" (the same with k = V), "binary"
    or "sample" (`measure` k2 or k3). `horizon`: the run's maximum response length. `mismatch`: whether the sums of the
    metrics `mismatch/*` are reported.

    Raises UserError for settings that do not fit together.
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

    def __post_init__(self) -> None:
        if self.estimator not in MEASURES:
            raise unknown("policy_loss.estimator", self.estimator, MEASURES)
        if self.measure not in MEASURES[self.estimator]:
            raise UserError(
                f"policy_loss.measure={self.measure!r} with estimator {self.estimator!r}: "
                f"choose one of {', '.join(MEASURES[self.estimator])}"
            )
        is_topk = self.estimator == "topk"
        if is_topk != (self.k is not None) or is_topk != (self.convention is not None):
            raise UserError(
                f"policy_loss.estimator={self.estimator!r} with k={self.k}, convention={self.convention!r}: "
                "k and convention belong to estimator 'topk', and only to it"
            )
        if self.k is not None and self.k < 1:
            raise UserError(f"policy_loss.k={self.k} must be at least 1")
        if self.convention not in (None, *CONVENTIONS):
            raise unknown("policy_loss.convention", self.convention, CONVENTIONS)
        if self.horizon is not None and self.horizon < 1:
            raise UserError(f"policy_loss.horizon={self.horizon} must be at least 1 token")
        if self.loss_mode == NAME:
            _check_rule(self.record, self.constants, self.measure)
        elif self.loss_mode not in POLICY_LOSS_REGISTRY:
            raise unknown("policy_loss.loss_mode", self.loss_mode, {NAME, *POLICY_LOSS_REGISTRY})
        elif self.rule or self.constants:
            raise UserError(
                f"policy_loss.rule={self.rule!r} with loss_mode={self.loss_mode!r}: that is verl's own loss and "
                f"takes no rule; set loss_mode={NAME} or drop rule and constants"
            )

    @property
    def needs_topk(self) -> bool:
        """Whether D_t needs mu's most likely tokens (`rollout_topk_ids`, `rollout_topk_logp`)."""
        return self.estimator in ("topk", "exact")

    @property
    def needs_permutation(self) -> bool:
        """Whether the rule shuffles weights, by the column `weight_permutation`."""
        return PERMUTATION in self.record.needs

    @property
    def record(self) -> Rule:
        """The rule; a rule of another package is imported in this process.

        Raises UserError if there is none.
        """
        if self.path is None and self.rule not in RULES:
            raise unknown("policy_loss.rule", self.rule, RULES)
        return rule_of(self.rule, self.path)


def _check_rule(rule: Rule, constants: dict[str, Any], measure: str) -> None:
    """Raise UserError for a rule that does not take these constants."""
    rule.check(constants, measure)
    if MINIBATCH in rule.needs:
        raise UserError(
            f"policy_loss.rule={rule.name!r} decides over a whole minibatch, which verl cuts into micro-batches and "
            "spreads over ranks: choose another rule, or core=mini"
        )
    single = torch.zeros(1, 1)
    try:  # the rule itself validates its constants
        rule.load(Tokens(single, single, single, single.bool(), single, single.long()), **constants)
    except (ValueError, TypeError) as error:
        raise UserError(f"policy_loss.constants of rule {rule.name!r}: {error}") from error


# The statistics that a loss reports through verl, converted to the metrics of our schema.
#
# verl reduces a metric three times: over the data-parallel ranks (mean), over micro-batches (sum) and over minibatches
# (mean; by "max" or "min" in the name: the maximum or minimum). A share would become a mean of means. So we
# report sums, which those reductions divide by the same factor (ranks x minibatches): the ratio of two of them is
# exact. `loss` and `updates` are scaled by the number of ranks beforehand, so that `updates` becomes the share of
# minibatches with a token, and `loss` the sum over all minibatches.
#
# Importing this module imports no verl.


PREFIX = "rule_sums/"
GAP = f"{PREFIX}gap/"  # + third / part of MismatchSums / place in it


@torch.no_grad()
def diagnostic_sums(
    logp: Tensor, rollout_logp: Tensor, valid: Tensor, entropy: Tensor | None
) -> dict[str, Tensor]:
    """Rule-independent sums over the valid tokens of [B, T]; `entropy` of pi, if known."""
    difference, scale = relative_logprob_error(logp, rollout_logp, valid)
    gap = (logp.float().exp() - rollout_logp.float().exp()).abs()
    sums = {
        "logprob_difference": difference,
        "logprob_scale": scale,
        "probability_gap": torch.where(valid, gap, 0.0).sum(),
    }
    return sums if entropy is None else sums | {"entropy": torch.where(valid, entropy.float(), 0.0).sum()}


def report(
    stats: Mapping[str, Tensor], *, loss: Tensor, minibatch_tokens: float, dp_size: int
) -> "dict[str, Metric]":
    """The micro-batch's `stats` (sums; `*_max`: maxima) and loss as verl metrics.

    Args:
        stats: among them `tokens`, the valid tokens of this micro-batch.
        loss: the differentiated value: the micro-batch's part of the minibatch loss, times `dp_size`.
        minibatch_tokens: valid tokens of the minibatch on all ranks; 0 if all its rows are padding.
        dp_size: data-parallel ranks.
    """
    from verl.utils.metric import AggregationType, Metric

    values = dict(stats) | {"loss": loss, "updates": stats["tokens"] * dp_size / max(minibatch_tokens, 1)}
    # One transfer from the device for all of them.
    numbers = torch.stack([value.detach().double() for value in values.values()]).tolist()
    kinds = [AggregationType.MAX if name.endswith("_max") else AggregationType.SUM for name in values]
    return {
        PREFIX + name: Metric(kind, number) for name, kind, number in zip(values, kinds, numbers, strict=True)
    }


def report_mismatch(sums: mismatch.MismatchSums) -> "dict[str, Metric]":
    """The micro-batch's sums as verl metrics: one number each, since verl reduces only scalars."""
    from verl.utils.metric import AggregationType, Metric

    numbers = torch.cat([part.flatten() for part in sums]).tolist()  # one transfer from the device
    return {
        name: Metric(AggregationType.MAX if "/largest/" in name else AggregationType.SUM, number)
        for name, number in zip(_names(), numbers, strict=True)
    }


@cache
def _names() -> tuple[str, ...]:
    """The names of the numbers in MismatchSums, in order."""
    widths = {"sums": len(mismatch.FIELDS), "largest": 1, "counts": mismatch.BINS}
    return tuple(
        f"{GAP}{third}/{part}/{place}"
        for part, width in widths.items()
        for third in schema.THIRDS
        for place in range(width)
    )


def summarise_mismatch(metrics: MutableMapping[str, Any]) -> None:
    """Replace the sums of a training step by the metrics `mismatch/*`, if there are any.

    Args:
        metrics: name -> one number per minibatch of the step, in order, reduced over ranks and micro-batches, as
        returned
            by verl's `train_mini_batch`. verl has divided the sums of each minibatch by the number of ranks.
    """
    if _names()[0] not in metrics:
        return
    values = torch.tensor([metrics.pop(name) for name in _names()], dtype=torch.float64)
    updates = [_mismatch_sums(column) for column in values.unbind(1)]
    updates = [sums for sums in updates if sums.sums[:, 0].any()]  # padding alone makes no update
    for computed in (mismatch.metrics(updates), mismatch.metrics(updates[:1], before_update=True)):
        metrics.update({name: [value] for name, value in computed.items()})


def _mismatch_sums(numbers: Tensor) -> mismatch.MismatchSums:
    """MismatchSums from the numbers in the order of `_names`."""
    thirds = mismatch.THIRDS
    sums, largest, counts = numbers.split([thirds * len(mismatch.FIELDS), thirds, thirds * mismatch.BINS])
    return mismatch.MismatchSums(sums.view(thirds, -1), largest, counts.view(thirds, -1))


def rule_metrics(reduced: Mapping[str, float]) -> dict[str, float]:
    """Metrics in the names of the schema from verl's reduced actor metrics of a training step.

    Keys may carry verl's prefix `actor/`. Empty if our sums are missing, or if no minibatch had a token.

    `train/entropy` is that of the policy being updated, at the states of the rollouts, since verl's sampling engines do
    not return the entropy of mu. The two are equal in the first minibatch of a step.
    """
    names = {key.removeprefix("actor/"): key for key in reduced}
    sums = {
        name.removeprefix(PREFIX): float(reduced[key])
        for name, key in names.items()
        if name.startswith(PREFIX)
    }
    if not sums.get("updates"):
        return {}
    tensors = {name: torch.tensor(value, dtype=torch.float64) for name, value in sums.items()}
    metrics = {f"rule/{name}": value for name, value in summarise(tensors).items()}
    metrics |= {name: float(reduced[key]) for name, key in names.items() if name.startswith(schema.MISMATCH)}
    metrics["train/loss"] = sums["loss"] / sums["updates"]
    if "grad_norm" in names:
        # A minibatch of padding only has norm 0 and makes no update.
        metrics["train/grad_norm"] = float(reduced[names["grad_norm"]]) / sums["updates"]
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
#
# Importing this module also registers the loss `trust_region` in verl's standard protocol, for recipes that do not use
# our worker. It gets only verl's arguments: no Top-K, unless D_t is passed as `rollout_is_weights`.


class MicroBatch(NamedTuple):
    """The responses of a micro-batch, right-padded [B, T]; only `logp` has a gradient."""

    logp: Tensor
    rollout_logp: Tensor
    advantages: Tensor
    valid: Tensor  # bool
    permutation: Tensor | None = None


class MinibatchTotals(NamedTuple):
    """Per-minibatch totals needed by a micro-batch. `responses` is None if verl does not count them."""

    tokens: float
    responses: float | None
    dp_size: int


def trust_region_loss(
    config: Any,
    model_output: Any = None,
    data: Any = None,
    dp_group: Any = None,
    student_logits: Tensor | None = None,
    data_format: str = "thd",
    *,
    watch: Callable[[ObservedTokens], None] | None = None,
    keep: Callable[[Decided], None] | None = None,
) -> Any:
    """Both phases of the loss; bind `config` (an ActorConfig), `watch` and `keep` with `functools.partial`.

    With `student_logits`: dict of per-row outputs, as `logits.fsdp_outputs` or `logits.megatron_outputs`. Otherwise:
    the micro-batch's loss and its metrics, see above.

    Args:
        data: the micro-batch. Columns `responses`, `response_mask`, `old_log_probs` (of mu), `advantages`; for the
            seq-mean modes `minibatch_responses`; for the shuffled rule `weight_permutation`.
        watch: called with the tokens of every micro-batch.
        keep: called with the rule's decisions on a micro-batch that has marked rows (`kept_responses`).

    Raises:
        UserError: settings of the actor that this loss does not have, or missing columns.
        NotFinite: a log-probability of a response token is NaN or infinite.
    """
    loss_config = config.policy_loss
    if student_logits is not None:
        return _from_logits(config, student_logits, data, data_format)
    responses = _responses(model_output, data)
    d = _divergence(loss_config, responses, _on_responses(model_output, data, from_engine.DIVERGENCE))
    ids = _padded(data["responses"], responses.logp.shape[1])
    seen = ObservedTokens(
        responses.logp.detach(), responses.rollout_logp, d, responses.advantages, responses.valid, ids
    )
    if watch is not None:
        watch(seen)
    totals = _totals(data)
    if loss_config.loss_mode == NAME:
        loss, output = evaluate(config, config.loss_agg_mode, responses, d, totals)
        stats, metrics = output.stats, {}
        if keep is not None and (places := places_of(data)) is not None:
            keep(Decided(places, seen, responses.permutation, output))
    else:
        loss, metrics = _verl_loss(config, model_output, data, dp_group, totals)
        batch = Tokens(responses.logp.detach(), *responses[1:4], d)
        # verl's losses apply their masks and report them.
        stats = {k: v for k, v in common_stats(batch, batch.valid.float()).items() if k != "masked"}
    if loss_config.mismatch:
        gap = log_ratios(responses.logp, responses.rollout_logp, responses.valid)
        metrics = metrics | report_mismatch(mismatch_sums(gap))
    entropy = _on_responses(model_output, data, from_engine.ENTROPY)
    stats = stats | diagnostic_sums(responses.logp.detach(), *responses[1:2], responses.valid, entropy)
    return loss, metrics | report(stats, loss=loss, minibatch_tokens=totals.tokens, dp_size=totals.dp_size)


def _from_logits(config: Any, logits: Tensor, data: Any, data_format: str) -> dict[str, Tensor]:
    """The first phase: the outputs from the engine's logits for each packed row."""
    loss_config = config.policy_loss
    top_k = loss_config.needs_topk
    # The measure is ignored if D_t does not come from the logits: "sample" has other measures.
    cells = {
        "measure": loss_config.measure if top_k else "tv",
        "convention": loss_config.convention or "union",
    }
    if config.strategy == "megatron":
        return from_engine.megatron_outputs(logits, data, data_format, top_k=top_k, **cells)
    return from_engine.fsdp_outputs(logits, data, top_k=top_k, **cells)


def evaluate(
    config: Any, mode: str, responses: MicroBatch, d: Tensor, totals: MinibatchTotals
) -> tuple[Tensor, RuleOutput]:
    """Apply the rule to these responses with divergence `d` [B, T]; returns also their part of the minibatch loss.

    `mode` is the aggregation. Raises UserError as `trust_region_loss`.
    """
    _check_actor(config, mode)
    loss_config = config.policy_loss
    if loss_config.needs_permutation and responses.permutation is None:
        raise UserError(f"rule {loss_config.rule!r} needs the column weight_permutation, drawn per rollout")
    shuffled = responses.permutation if loss_config.needs_permutation else None
    output = loss_config.record.load(Tokens(*responses[:4], d, shuffled), **loss_config.constants)
    denominator = totals.tokens if mode == "token-mean" else totals.responses
    if denominator is None:
        raise UserError(
            f"loss_agg_mode={mode} needs the column minibatch_responses: the non-padding responses of the "
            "minibatch over all ranks (verl's global_batch_size counts padding rows)"
        )
    if not denominator:  # a minibatch of padding only
        return 0.0 * output.objective.sum(), output
    horizon = loss_config.horizon if mode == "seq-mean-token-sum-norm" else None
    part = aggregation.aggregate(
        output.objective, responses.valid, mode, denominator=denominator, horizon=horizon
    )
    return -totals.dp_size * part, output


def _check_actor(config: Any, mode: str) -> None:
    """Raise UserError for settings of the actor that our losses do not have."""
    if mode not in aggregation.MODES:
        raise unknown("actor.loss_agg_mode", mode, aggregation.MODES)
    if mode == "seq-mean-token-sum-norm" and config.policy_loss.horizon is None:
        raise UserError(
            f"actor.loss_agg_mode={mode} without policy_loss.horizon: set it to the maximum response length"
        )
    if config.entropy_coeff or config.use_kl_loss:
        raise UserError(
            f"actor.entropy_coeff={config.entropy_coeff}, actor.use_kl_loss={config.use_kl_loss}: rules have "
            "neither an entropy bonus nor a KL loss; set 0 and False"
        )


def _responses(model_output: Any, data: Any) -> MicroBatch:
    """The padded [B, T] arguments of a rule.

    Raises NotFinite if a log-probability of a valid token is not finite.
    """
    logp = compute_dtype(no_padding_2_padding(model_output[from_engine.LOGP], data))
    width = logp.shape[1]
    valid = _padded(data["response_mask"], width).bool()
    if not bool(torch.where(valid, logp.detach(), 0.0).sum().isfinite()):
        raise NotFinite("log-probabilities are not finite")
    permutation = data.get("weight_permutation", None)
    return MicroBatch(
        logp,
        _padded(data["old_log_probs"], width),
        _padded(data["advantages"], width),
        valid,
        None if permutation is None else _padded(permutation, width).long(),
    )


def _padded(column: Tensor, width: int) -> Tensor:
    """[B, width] from a column of response tokens, nested or padded already."""
    if not column.is_nested:
        return column
    padded: Tensor = torch.nested.to_padded_tensor(column, 0, (column.size(0), width))
    return padded


def _on_responses(model_output: Any, data: Any, key: str) -> Tensor | None:
    """[B, T] without gradient from an output of the logits processor; None where there is none."""
    return no_padding_2_padding(model_output[key], data).detach() if key in model_output else None


def _totals(data: Any) -> MinibatchTotals:
    """The totals of the minibatch, from verl and our batch."""
    counts = data.get("minibatch_responses", None)
    if counts is not None:
        # The same number in every row, except 0 in padding rows.
        counts = float((counts.values() if counts.is_nested else counts).max())
    return MinibatchTotals(float(data["batch_num_tokens"]), counts, int(data["dp_size"]))


def _divergence(loss_config: TrustRegionLossConfig, responses: MicroBatch, measured: Tensor | None) -> Tensor:
    """D_t [B, T]: what the logits processor measured, or from the sampled tokens' log-probabilities."""
    if measured is not None:
        return compute_dtype(measured)
    logp, rollout_logp, measure = responses.logp.detach(), responses.rollout_logp, loss_config.measure
    if loss_config.needs_topk:
        raise UserError(
            f"policy_loss.estimator={loss_config.estimator!r} but the engine did not measure D_t: set "
            "distillation_use_topk in the batch, or choose estimator binary or sample"
        )
    if loss_config.estimator == "sample":
        return divergence.ESTIMATES[measure](logp, rollout_logp)
    return divergence.binary(logp, rollout_logp, measure)


def _verl_loss(config: Any, model_output: Any, data: Any, dp_group: Any, totals: MinibatchTotals) -> Any:
    """verl's policy loss with its metrics; seq-mean modes divide by the number of non-padding responses."""
    if totals.responses is not None:
        data = data.clone(recurse=False)
        tu.assign_non_tensor(data, global_batch_size=max(totals.responses, 1.0))
    return ppo_loss(config, model_output, data, dp_group)


@register_policy_loss(NAME)
def registered_loss(
    old_log_prob: Tensor,
    log_prob: Tensor,
    advantages: Tensor,
    response_mask: Tensor,
    loss_agg_mode: str = "token-mean",
    config: Any = None,
    rollout_is_weights: Tensor | None = None,
) -> tuple[Tensor, dict[str, Any]]:
    """`trust_region` in verl's standard protocol: the same evaluation from verl's arguments.

    `rollout_is_weights` is D_t [B, T] if given; otherwise D_t is computed from the log-probabilities. The seq-mean
    modes divide by verl's `global_batch_size`, padding rows included. The metrics are those of a micro-batch, which
    verl averages.
    """
    if not isinstance(config.policy_loss, TrustRegionLossConfig):
        raise UserError(
            f"policy_loss.loss_mode={NAME} with a {type(config.policy_loss).__name__}: set policy_loss._target_ to "
            f"{TrustRegionLossConfig.__module__}.{TrustRegionLossConfig.__name__}"
        )
    batch_info = config.global_batch_info
    valid = response_mask.bool()
    responses = MicroBatch(log_prob, old_log_prob, advantages, valid)
    tokens_in_all, rows_in_all = batch_info.get("batch_num_tokens"), batch_info.get("global_batch_size")
    totals = MinibatchTotals(
        float(valid.sum() if tokens_in_all is None else tokens_in_all),
        float(valid.any(1).sum() if rows_in_all is None else rows_in_all),
        batch_info.get("dp_size", 1),
    )
    d = _divergence(config.policy_loss, responses, rollout_is_weights)
    loss, output = evaluate(config, loss_agg_mode, responses, d, totals)
    return loss, {f"actor/rule/{name}": value for name, value in summarise(output.stats).items()}
