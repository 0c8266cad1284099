"""The typed configuration of our losses in verl: `actor.policy_loss` of a run."""

from dataclasses import dataclass, field
from typing import Any

import torch
from verl.trainer.ppo.core_algos import POLICY_LOSS_REGISTRY
from verl.workers.config import PolicyLossConfig

from cppo_lab.errors import UserError, unknown
from cppo_lab.maths.divergence import CONVENTIONS, ESTIMATES
from cppo_lab.rules import MINIBATCH, PERMUTATION, RULES, Rule, rule_of

NAME = "trust_region"
MEASURES = {"topk": ("tv", "kl"), "exact": ("tv", "kl"), "binary": ("tv", "kl"), "sample": tuple(ESTIMATES)}


@dataclass
class TrustRegionLossConfig(PolicyLossConfig):
    """`actor.policy_loss` with `_target_` of this class.

    `loss_mode` is "trust_region" (then `rule` with its `constants`), or one of verl's own losses, to which we only add
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
        wanted = self.estimator == "topk"
        if wanted != (self.k is not None) or wanted != (self.convention is not None):
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
        """The rule; one of another package is imported in this process.

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
    one = torch.zeros(1, 1)
    own = {PERMUTATION: one.long()} if PERMUTATION in rule.needs else {}
    try:  # the rule itself validates its constants
        rule.load(one, one, one, one.bool(), one, **constants, **own)
    except (ValueError, TypeError) as error:
        raise UserError(f"policy_loss.constants of rule {rule.name!r}: {error}") from error
