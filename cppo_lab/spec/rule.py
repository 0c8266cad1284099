"""The trust-region rule of a run and the divergence that it measures."""

from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from cppo_lab.plugins import PATH
from cppo_lab.rules import ENTRY_POINT, RULES
from cppo_lab.spec.base import Count, Finite, NonNegative, Positive, Probability, Spec

VERL = "verl_"  # begins the names of verl's own losses


class RuleSpec(Spec):
    """A trust-region rule and its constants; None where the rule has no such constant.

    `path` says where a rule of another package is, see `cppo_lab.rules`; None for those of the product and of verl.
    """

    name: str
    path: str | None = None
    clip_low: Probability | None = None
    clip_high: NonNegative | None = None
    dual_clip: Annotated[Finite, Field(gt=1)] | None = None
    delta: Positive | None = None
    delta_b: Positive | None = None
    delta_b_mode: Literal["fixed", "adaptive"] | None = None
    w_min: Annotated[float, Field(gt=0, le=1)] | None = None
    delta_max: Positive | None = None
    delta_avg: Positive | None = None
    gate: Literal["inverse", "sapo_admissible"] | None = None
    log_clip_low: NonNegative | None = None
    log_clip_high: NonNegative | None = None
    tau_positive: Positive | None = None
    tau_negative: Positive | None = None
    ratio_low: Probability | None = None
    ratio_high: Annotated[Finite, Field(ge=1)] | None = None
    kl_tau: NonNegative | None = None
    m2: Positive | None = None
    k_positive: NonNegative | None = None
    lambda_positive: Positive | None = None
    k_negative: NonNegative | None = None
    lambda_negative: Positive | None = None
    # Constants that only verl's losses and rules of other packages have.
    options: dict[str, Finite] | None = None

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.path is None:
            return self
        if self.name in RULES or self.verl_loss is not None:
            raise ValueError(
                f"rule.path={self.path!r}: rule {self.name!r} comes with the product and is not replaced"
            )
        if self.path != ENTRY_POINT and not PATH.fullmatch(self.path):
            raise ValueError(f"rule.path={self.path!r} must be package.module:function")
        return self

    @property
    def verl_loss(self) -> str | None:
        """The loss of verl's own that `verl_<loss>` names; None for a rule of ours."""
        return self.name.removeprefix(VERL) if self.name.startswith(VERL) else None

    def parameters(self) -> dict[str, Any]:
        """The constants that are set, as keyword arguments of the rule's function."""
        own = self.model_dump(exclude={"name", "path", "options"})
        foreign = self.options or {} if self.path is not None else {}
        return {k: v for k, v in own.items() if v is not None} | foreign

    def needs(self, need: str) -> bool:
        """Whether a rule of the product needs something (`cppo_lab.rules`); False where that is not known."""
        return self.name in RULES and need in RULES[self.name].needs


class DivergenceSpec(Spec):
    """How D_t is measured: `estimator` on which partition, `measure` TV or KL(mu to pi).

    `sample` estimates the KL from the sampled token alone (k2, k3), where no more of mu is known.
    """

    estimator: Literal["exact", "topk", "binary", "sample"]
    measure: Literal["tv", "kl", "k2", "k3"]
    k: Count | None = None
    convention: Literal["union", "replace_kth"] | None = None

    @model_validator(mode="after")
    def _check(self) -> Self:
        if (self.estimator == "topk") != (self.k is not None and self.convention is not None):
            raise ValueError(
                f"estimator={self.estimator!r} with k={self.k}, convention={self.convention!r}: "
                "k and convention belong to estimator 'topk', and only to it"
            )
        if (self.estimator == "sample") != (self.measure in ("k2", "k3")):
            raise ValueError(
                f"measure={self.measure!r} with estimator={self.estimator!r}: sample takes k2 or k3, "
                "the others tv or kl"
            )
        return self
