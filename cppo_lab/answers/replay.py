"""Replays another rule on a run's recorded tokens: which tokens it drops, and by which test, without training.

A rule decides by log mu, log pi, A and D_t of a response's tokens, all of which are in the file. Three inputs are not,
and replays that need them are refused: the rest of the minibatch (for rules that decide about a whole minibatch), the
order in which training shuffled position weights (unless the run's own rule did), and D_t on a different partition of
the vocabulary, since log-probabilities are recorded only for sampled tokens. The divergences FROM_SAMPLED can always be
computed.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from cppo_lab.answers.tokens import RecordedTokens, RuleUsed
from cppo_lab.errors import UserError, unknown
from cppo_lab.maths import divergence as divergences
from cppo_lab.maths.masks import budget_terms, decisions
from cppo_lab.rules import KL, MINIBATCH, PERMUTATION, Rule, rule_of

FROM_SAMPLED = ("binary_tv", "binary_kl", "sample_k2", "sample_k3")
_OF_BUDGET = ("delta", "delta_b", "w_min", "delta_b_mode")
_MAY_BE_GIVEN = ("delta_b_cap", "delta_b_quantile", "delta_b_scale", "span", "reverse")


@dataclass(frozen=True, eq=False)
class Replayed:
    """A rule on kept tokens; arrays [N] as in `RecordedTokens`.

    divergence: the D_t that it was given, such as `topk_tv`; `measured` are its values.
    keep, tests, reason: as in `RecordedTokens`.
    weight, prefix_sum, limit: w_t, S_{t-1} and c_t of CPPO's tests, which drop a token if w_t D_t > c_t and it moves
        away from mu; None for other rules.
    """

    rule: str
    constants: Mapping[str, Any]
    divergence: str
    measured: NDArray[np.float32]
    tests: tuple[str, ...]
    keep: NDArray[np.float32]
    reason: NDArray[np.uint8]
    weight: NDArray[np.float32] | None = None
    prefix_sum: NDArray[np.float32] | None = None
    limit: NDArray[np.float32] | None = None


def own_divergence(rule: RuleUsed) -> str:
    """The name of the D_t in the file."""
    return f"{rule.estimator}_{rule.measure}"


def replay(
    tokens: RecordedTokens,
    rule: str | None = None,
    constants: Mapping[str, Any] | None = None,
    *,
    path: str | None = None,
    divergence: str | None = None,
) -> Replayed:
    """Apply `rule` with `constants` to recorded tokens; by default the run's own rule, as in training.

    Args:
        rule, path: as in a run's configuration.
        constants: the keyword arguments of the rule's function; None: the run's own.
        divergence: the run's own D_t (`own_divergence`) or one of FROM_SAMPLED; None: the run's own, but for rules with
            limits on a KL divergence `binary_kl` where the run measured a TV.

    Raises UserError for an unknown rule or divergence, for one that cannot be replayed from a file, and for constants
    that do not fit the rule.
    """
    if rule is None:
        rule, path, constants = tokens.rule.name, tokens.rule.path, constants or tokens.rule.constants
    record = rule_of(rule, path)
    given = dict(tokens.rule.constants if constants is None else constants)
    if (reason := why_not(record, tokens)) is not None:
        raise UserError(reason)
    name = divergence or _default_divergence(record, tokens.rule)
    record.check(given, name.rpartition("_")[2])
    batch = _Batch(tokens, name)
    drawn = {PERMUTATION: batch.order} if PERMUTATION in record.needs else {}
    try:
        output = record.load(
            batch.logp, batch.rollout_logp, batch.advantages, batch.valid, batch.divergence, **given, **drawn
        )
        terms = _terms(record, given, batch, drawn)
    except (ValueError, TypeError) as error:  # TypeError: text in place of a number
        raise UserError(f"rule {rule!r} cannot be replayed with {given}: {error}") from None
    found = decisions(output, batch.valid)
    return Replayed(
        rule,
        given,
        name,
        _flat(batch.divergence, batch.valid),
        found.tests,
        found.keep.numpy().astype(np.float32),
        found.reason.numpy(),
        *terms,
    )


def why_not(record: Rule, tokens: RecordedTokens) -> str | None:
    """Why a rule cannot be replayed on these tokens; None if it can."""
    if MINIBATCH in record.needs:
        return (
            f"rule {record.name!r} decides over a whole minibatch, and the file has only some of its responses: it "
            "cannot be replayed"
        )
    if PERMUTATION in record.needs and not len(tokens.order):
        return (
            f"rule {record.name!r} shuffles its weights by an order that is drawn in training, and the run's rule "
            f"{tokens.rule.name!r} drew none: it cannot be replayed"
        )
    return None


def _default_divergence(record: Rule, own: RuleUsed) -> str:
    return "binary_kl" if KL in record.needs and own.measure == "tv" else own_divergence(own)


class _Batch:
    """The arguments of a rule, [R, T] with T the longest response; float32, as in training."""

    def __init__(self, tokens: RecordedTokens, name: str) -> None:
        lengths = torch.from_numpy(np.diff(tokens.ends, prepend=0))
        width = int(lengths.max()) if len(lengths) else 0
        self.valid = torch.arange(width) < lengths[:, None]
        self.logp = self._padded(tokens.logp)
        self.rollout_logp = self._padded(tokens.rollout_logp)
        advantage = torch.from_numpy(tokens.advantage.astype(np.float32))
        self.advantages = advantage[:, None].expand(self.valid.shape)
        self.order = self._padded(tokens.order).long() if len(tokens.order) else None
        self.divergence = self._measured(tokens, name)

    def _padded(self, values: NDArray[Any]) -> Tensor:
        flat = torch.from_numpy(
            np.array(values, dtype=values.dtype.newbyteorder("="))
        )  # a copy, since a file's arrays are read-only
        return flat.new_zeros(self.valid.shape).masked_scatter(self.valid, flat)

    def _measured(self, tokens: RecordedTokens, name: str) -> Tensor:
        """D_t [R, T] called `name`. Raises UserError for one that cannot be computed from the file."""
        if name == own_divergence(tokens.rule):
            return self._padded(tokens.divergence)
        if name not in FROM_SAMPLED:
            raise unknown("divergence of kept tokens", name, {*FROM_SAMPLED, own_divergence(tokens.rule)})
        measure = name.rpartition("_")[2]
        if measure in divergences.ESTIMATES:
            return divergences.ESTIMATES[measure](self.logp, self.rollout_logp)
        return divergences.binary(self.logp, self.rollout_logp, measure)


def _terms(
    record: Rule, given: Mapping[str, Any], batch: _Batch, drawn: Mapping[str, Any]
) -> list[NDArray[np.float32]]:
    """The terms of CPPO's tests for rules that have its constants; empty for others."""
    constants = {**given, **record.fixed}
    if not all(name in constants for name in _OF_BUDGET):
        return []
    wanted = {name: constants[name] for name in (*_OF_BUDGET, *_MAY_BE_GIVEN) if name in constants}
    terms = budget_terms(batch.divergence, batch.valid, **wanted, **drawn)
    return [_flat(term, batch.valid) for term in terms]


def _flat(values: Tensor, valid: Tensor) -> NDArray[np.float32]:
    return values[valid].numpy().astype(np.float32)
