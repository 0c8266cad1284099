"""Applies a rule to tokens, for every core; and the embedded cores' loss from log-probabilities: divergence, rule and
aggregation. And the diagnostics of a run's tokens: metrics `mismatch/*`, drift by position (Figure 2), a masked
response (Figure 3).

The metrics are those of every step of mini and verl. The other diagnostics are computed from the batches of validated
steps, and their size does not depend on the length of the run.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from cppo_lab import schema
from cppo_lab.answers.texts import Sample
from cppo_lab.answers.tokens import RecordedTokens, RuleUsed
from cppo_lab.errors import UserError
from cppo_lab.maths import divergence as divergences
from cppo_lab.maths import mismatch
from cppo_lab.maths.divergence import Recorded
from cppo_lab.maths.masks import decisions, limits_of
from cppo_lab.maths.rules import aggregate, centred, corrected
from cppo_lab.maths.tokens import RuleOutput, Tokens
from cppo_lab.rules import PERMUTATION, RULES, Rule, rule_of
from cppo_lab.spec import DivergenceSpec, RuleSpec, RunSpec


def recorded_tokens(kind: DivergenceSpec, vocabulary: int) -> int:
    """K: how many of mu's most likely tokens the divergence needs."""
    return vocabulary if kind.estimator == "exact" else kind.k or 1


def measured_divergence(kind: DivergenceSpec, pi_logp: Tensor, logp: Tensor, mu: Recorded) -> Tensor:
    """D [...] between mu and the policy with log-probabilities `pi_logp` [..., V]; `logp` [...] is log pi(y)."""
    if kind.estimator == "binary":
        return divergences.binary(logp, mu.logp, kind.measure)
    if kind.estimator == "sample":
        return divergences.ESTIMATES[kind.measure](logp, mu.logp)
    if kind.estimator == "exact":
        mu_logp = torch.empty_like(pi_logp).scatter_(-1, mu.topk_ids, mu.topk_logp)
        return divergences.exact(mu_logp, pi_logp, kind.measure)
    assert kind.convention is not None  # the specification has checked it
    return divergences.topk(mu, pi_logp, measure=kind.measure, convention=kind.convention)


@torch.no_grad()
def measured_drift(kind: DivergenceSpec, pi_logp: Tensor, logp: Tensor, mu: Recorded) -> Tensor:
    """The change of `measured_divergence` with these arguments (divergence.drift), [...], or a number of its sign."""
    if kind.estimator in ("binary", "sample"):
        return logp - mu.logp
    pi_topk_logp, convention = pi_logp.gather(-1, mu.topk_ids), kind.convention or "union"
    return divergences.drift(mu, pi_topk_logp, logp, measure=kind.measure, convention=convention)


def applied(
    rule: Rule,
    tokens: Tokens,
    constants: Mapping[str, Any],
    mu_logp: Tensor,
    *,
    centering: bool,
    weights: Mapping[str, Any] | None,
) -> RuleOutput:
    """What a rule returns for tokens, with score centering and the correction for the rollout policy if they are set.

    `mu_logp` is log mu [B, T]; `weights` are the arguments of `corrected`. Every core calls this.

    Raises UserError if the rule's `keep` is no weight, or its objective has no gradient.
    """
    function = partial(centred, rule.apply) if centering else rule.apply
    output: RuleOutput = function(tokens, **constants)
    if not torch.equal(output.keep.clamp(0, 1), output.keep):  # NaN is not equal to itself
        raise UserError(
            f"rule {rule.name!r} returns a keep with a value that is NaN or outside [0, 1]: return a weight in "
            "[0, 1] for each token, as docs/rules.md says"
        )
    if tokens.log_ratio.requires_grad and not output.objective.requires_grad:
        raise UserError(
            f"rule {rule.name!r} returns an objective without a gradient: compute it from tokens.logp or "
            "tokens.log_ratio, and detach only its weights"
        )
    return output if weights is None else corrected(output, tokens, mu_logp, **weights)


class RuleLoss:
    """The loss that `spec` defines on the tokens of a minibatch, with its rule or with `other`."""

    def __init__(self, spec: RunSpec, other: RuleSpec | None = None) -> None:
        settings = other or spec.rule
        rule = rule_of(settings.name, settings.path)
        self.mode, self.horizon = spec.training.aggregation, spec.rollout.max_response_length
        self.rule, self.constants = rule, settings.arguments(self.horizon)
        self.needs, self.shuffles = rule.needs, PERMUTATION in rule.needs
        self.centering, self.weights = spec.objective is not None, spec.rollout.weights
        if self.centering and rule.centering_fault:
            raise UserError(rule.centering_fault)

    def __call__(self, tokens: Tokens, mu_logp: Tensor) -> tuple[Tensor, RuleOutput]:
        """The loss, a scalar differentiable in `tokens.logp`, and the rule's output; `mu_logp` is log mu [B, T].

        With `centering`, the tokens have log pi at mu's Top-K, in which the loss is differentiable as well.

        Raises UserError as `applied`.
        """
        output = applied(
            self.rule, tokens, self.constants, mu_logp, centering=self.centering, weights=self.weights
        )
        # The horizon of the run, not the longest response of the batch: the scale must not depend on padding.
        horizon = self.horizon if self.mode == "seq-mean-token-sum-norm" else None
        return -aggregate(output.objective, tokens.valid, self.mode, horizon=horizon), output


def own_permutation(valid: Tensor, generator: torch.Generator) -> Tensor:
    """A random order of each response's positions, [B, T] like `valid`; draw it once per rollout."""
    draws = torch.rand(valid.shape, generator=generator).to(valid.device)
    # Padding sorts behind every draw, so the first len_b entries of row b are its positions.
    return torch.where(valid, draws, 2.0).argsort(1)


TOP_SHARE = 0.1  # the paper's "top 10 %"


def mismatch_metrics(
    parts: Sequence[mismatch.MismatchSums], *, before_update: bool = False
) -> dict[str, float]:
    """The metrics of the union of `parts` under their names of the schema: of all tokens, then of each third.

    A third without tokens, or a batch without tokens, has no metrics. `before_update`: of the state before a training
    step's first update.
    """
    if not parts:
        return {}
    union = mismatch.merge(parts)
    metrics = {
        schema.mismatch_metric(name, third, before_update=before_update): value
        for third, values in zip(("", *schema.THIRDS), mismatch.values(union), strict=True)
        for name, value in values.items()
    }
    if before_update and metrics:
        mean, percentile = mismatch.divergence_values(union)
        metrics |= {schema.DIVERGENCE_BEFORE: mean, schema.DIVERGENCE_BEFORE_P90: percentile}
    return metrics


def mismatch_of_step(updates: Sequence[mismatch.LogRatios]) -> dict[str, float]:
    """The metrics of a training step: over all its updates, and before the first."""
    if not updates:
        return {}
    first, later = mismatch.mismatch_sums(updates[0]), updates[1:]
    # A few large batches cost less than many small ones.
    parts = [first, mismatch.mismatch_sums(*later)] if later else [first]
    return mismatch_metrics(parts) | mismatch_metrics([first], before_update=True)


class ObservedTokens(NamedTuple):
    """The tokens of a batch as a rule saw them; every tensor [B, T], right-padded, without gradient."""

    logp: Tensor  # log pi(y_t)
    rollout_logp: Tensor  # log mu(y_t)
    divergence: Tensor  # D_t
    advantages: Tensor
    valid: Tensor  # bool
    tokens: Tensor  # ids
    origin_logp: Tensor  # log-probability under the policy from which D_t measures


class KeptResponse(NamedTuple):
    """A response of T tokens as it was trained, on the CPU. `columns`: those of `RecordedTokens`, by name, [T] each."""

    advantage: float
    tests: tuple[str, ...]
    columns: dict[str, NDArray[Any]]


@torch.no_grad()
def kept_responses(
    seen: ObservedTokens, output: RuleOutput, order: Tensor | None, rows: Tensor
) -> list[KeptResponse]:
    """The responses of a minibatch that `rows` [B] bool selects, with the rule's decisions. `order` [B, T] permutes
    positions, for the rule that shuffles.
    """
    part = seen.valid & rows[:, None]
    decision, lengths = decisions(output, part), part.sum(1)[rows].tolist()
    values = {
        "token": seen.tokens[part].int(),
        "rollout_logp": seen.rollout_logp[part].float(),
        "logp": seen.logp[part].float(),
        "divergence": seen.divergence[part].float(),
        "keep": decision.keep.float(),
        "reason": decision.reason,
    }
    if order is not None:
        values["order"] = order[:, : part.shape[1]][part].int()
    columns = {name: column.cpu().split(lengths) for name, column in values.items()}
    return [
        KeptResponse(
            advantage, decision.tests, {name: parts[place].numpy() for name, parts in columns.items()}
        )
        for place, advantage in enumerate(seen.advantages[rows, 0].tolist())
    ]


def token_table(
    step: int,
    spec: RunSpec,
    kept: Mapping[tuple[int, int], KeptResponse],
    samples: Sequence[Sample],
    piece: Callable[[int], str],
) -> RecordedTokens | None:
    """The tokens of responses that are `kept` by group and draw, in the order of their `samples`; None if there are
    none. `piece` is the text of a token by itself.
    """
    pairs = [
        (kept[sample.group, sample.draw], sample)
        for sample in samples
        if sample.group is not None and (sample.group, sample.draw) in kept
    ]
    if not pairs:
        return None
    columns: dict[str, Any] = {
        name: np.concatenate([response.columns[name] for response, _ in pairs])
        for name in pairs[0][0].columns
    }
    vocabulary, rule, kind = np.unique(columns["token"]), spec.rule, spec.divergence
    constants = rule.arguments(spec.rollout.max_response_length)
    return RecordedTokens(
        step=step,
        rule=RuleUsed(rule.name, rule.path, constants, kind.estimator, kind.measure, kind.k, kind.convention),
        tests=pairs[0][0].tests,
        ends=np.cumsum([len(response.columns["token"]) for response, _ in pairs], dtype=np.int64),
        group=np.array([sample.group for _, sample in pairs], np.int64),
        draw=np.array([sample.draw for _, sample in pairs], np.int64),
        advantage=np.array([response.advantage for response, _ in pairs], np.float32),
        reward=np.array([sample.reward for _, sample in pairs], np.float32),
        **columns,
        vocabulary=vocabulary,
        pieces=tuple(map(piece, vocabulary.tolist())),
    )


class Diagnostics:
    """Accumulates the sums over the watched steps, and the best example so far.

    Call `see` for each minibatch (at most `horizon` positions) of a watched step, then `end_step`.
    """

    def __init__(self, rule: RuleSpec, horizon: int) -> None:
        self.rule = rule
        fixed = RULES[rule.name].fixed if rule.name in RULES else {}
        self.constants = {**rule.arguments(horizon), **fixed}
        # The tests are those of CPPO's mask: a soft gate masks nothing, a random mask other tokens, and what a rule of
        # another package does with such constants is not known.
        self.shows_window = (
            rule.name in RULES
            and rule.delta_b is not None
            and rule.gate is None
            and not fixed.get("random_mask")
        )
        self.tokens = torch.zeros(horizon)
        self.gap = torch.zeros(horizon)
        self.top = torch.zeros(horizon)
        self.window: dict[str, Any] | None = None
        self._pending: list[Tensor] = []

    def see(self, step: int, seen: ObservedTokens, text: Callable[[list[int]], list[str]]) -> None:
        """Add a batch of training step `step`; `text` maps token ids to the readable text of each."""
        gap = torch.where(seen.valid, (seen.logp.exp() - seen.rollout_logp.exp()).abs(), torch.nan).cpu()
        self._pending.append(F.pad(gap, (0, len(self.gap) - gap.shape[1]), value=torch.nan))
        if not self.shows_window:
            return
        # Keep the response that best shows both tests; on a tie the later.
        valid, delta = seen.valid, self.constants["delta"]
        moves_away = (seen.advantages * (seen.logp - seen.origin_logp) > 0) & valid
        tests = limits_of(self.constants, seen.divergence, valid).tests
        by_token = moves_away & tests.token_fails
        by_prefix = moves_away & tests.prefix_fails & ~by_token
        merit = torch.minimum(by_token.sum(1), by_prefix.sum(1)) * 1000 + by_prefix.sum(1)
        merit = merit.where(valid.any(1), -1)  # an empty row is padding, with nothing to show
        row = int(merit.argmax())
        if int(merit[row]) < (0 if self.window is None else self.window["merit"]):
            return
        end = int(valid[row].sum())
        # Two transfers from the device, not two per token.
        reasons = [
            "token" if t else "prefix" if p else ""
            for t, p in zip(by_token[row].tolist(), by_prefix[row].tolist(), strict=True)
        ]
        self.window = {
            "merit": int(merit[row]),
            "step": step,
            "symbols": text(seen.tokens[row, :end].tolist()),
            "weighted_divergence": tests.weighted[row, :end].tolist(),
            "token_threshold": delta,
            "prefix_threshold": (delta - tests.excess[row, :end]).tolist(),
            "moves_away": moves_away[row, :end].tolist(),
            "masked_by": reasons[:end],
        }

    def end_step(self) -> None:
        """Finish a watched step, after all of its minibatches were passed to `see`."""
        if not self._pending:
            return
        gaps = torch.cat(self._pending)
        self._pending = []
        count = (~gaps.isnan()).sum(0)
        ordered = gaps.nan_to_num(-1.0).sort(dim=0, descending=True).values.clamp(min=0)
        top = (TOP_SHARE * count).ceil()
        rank = torch.arange(len(gaps))[:, None]
        self.tokens += count
        self.gap += ordered.sum(0)
        # Weighted by all tokens of the position, so that steps add up as they do for the mean.
        self.top += (ordered * (rank < top)).sum(0) / top.clamp(min=1) * count

    def tables(self) -> dict[str, dict[str, Any]]:
        """The artifacts by name: `positions`, and `window` if the rule has a prefix budget; none if no watched
        step has trained any token.
        """
        seen = int((self.tokens > 0).sum())
        if not seen:
            return {}
        count = self.tokens[:seen].clamp(min=1)
        tables: dict[str, dict[str, Any]] = {}
        tables["positions"] = {
            "position": list(range(1, seen + 1)),
            "tokens": [int(n) for n in self.tokens[:seen]],
            "gap_mean": (self.gap[:seen] / count).tolist(),
            "gap_top10": (self.top[:seen] / count).tolist(),
            "w_min": self.rule.w_min,
            "span": self.constants.get("span"),
            "delta": self.rule.delta,
        }
        if self.window is not None:
            tables["window"] = {key: value for key, value in self.window.items() if key != "merit"}
        return tables

    def state(self) -> dict[str, Any]:
        """The state for a checkpoint."""
        return {"tokens": self.tokens, "gap": self.gap, "top": self.top, "window": self.window}

    def load_state(self, state: dict[str, Any]) -> None:
        """Continue from `state`."""
        self.tokens, self.gap, self.top = (state[name].cpu() for name in ("tokens", "gap", "top"))
        self.window = state["window"]
