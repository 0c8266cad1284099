"""The typed configuration of our losses in verl: `actor.policy_loss` of a run."""

import inspect
from dataclasses import dataclass, field
from typing import Any

import torch
from verl.trainer.ppo.core_algos import POLICY_LOSS_REGISTRY
from verl.workers.config import PolicyLossConfig

from cppo_lab.errors import UserError, unknown
from cppo_lab.maths.divergence import CONVENTIONS
from cppo_lab.maths.rules import RULES, get_rule

NAME = "trust_region"
MEASURES = {"topk": ("tv", "kl"), "exact": ("tv", "kl"), "binary": ("tv", "kl"), "sample": ("k2", "k3")}
PERMUTATION = "permutation"  # the one constant of a rule that comes with the batch, as `weight_permutation`


@dataclass
class TrustRegionLossConfig(PolicyLossConfig):
    """`actor.policy_loss` with `_target_` of this class.

    `loss_mode` is "trust_region" (then `rule` with its `constants`), or one of verl's own losses, to which we only add
    diagnostics. The divergence: `estimator` "topk" (with `k`, `convention`), "exact" (the same with k = V), "binary"
    or "sample" (`measure` k2 or k3). `horizon`: the run's maximum response length.

    Raises UserError for what does not fit together.
    """

    loss_mode: str = NAME
    rule: str = ""
    constants: dict[str, Any] = field(default_factory=dict)
    estimator: str = "binary"
    measure: str = "tv"
    k: int | None = None
    convention: str | None = None
    horizon: int | None = None

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
            _check_rule(self.rule, self.constants, self.measure)
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
        parameter = inspect.signature(get_rule(self.rule)).parameters.get(PERMUTATION)
        return parameter is not None and parameter.default is parameter.empty


def _check_rule(rule: str, constants: dict[str, Any], measure: str) -> None:
    """Raise UserError for a rule that does not exist or does not take these constants."""
    if rule not in RULES:
        raise unknown("policy_loss.rule", rule, RULES)
    takes = {
        name: parameter.default is parameter.empty
        for name, parameter in inspect.signature(RULES[rule]).parameters.items()
        if parameter.kind is parameter.KEYWORD_ONLY and name != PERMUTATION
    }
    for name in constants:
        if name not in takes:
            raise unknown(f"constant of rule {rule!r}", name, takes)
    missing = [name for name, required in takes.items() if required and name not in constants]
    if missing:
        raise UserError(f"policy_loss.constants lacks {', '.join(missing)}: rule {rule!r} needs them")
    if rule.startswith("trm_") and measure == "tv":
        raise UserError(
            f"policy_loss.measure='tv' with rule {rule!r}: the thresholds of TRM are on KL(mu to pi); "
            "choose measure kl, or estimator sample with k2 or k3"
        )
    one = torch.zeros(1, 1)
    own = {PERMUTATION: one.long()} if PERMUTATION in inspect.signature(RULES[rule]).parameters else {}
    try:  # the rule itself says what its constants may be
        get_rule(rule)(one, one, one, one.bool(), one, **constants, **own)
    except (ValueError, TypeError) as error:
        raise UserError(f"policy_loss.constants of rule {rule!r}: {error}") from error
