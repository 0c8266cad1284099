"""The trust-region rule of a run and the divergence that it measures."""

import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated, Any, Literal, Self

from pydantic import Field, ModelWrapValidatorHandler, model_validator

from cppo_lab.plugins import PATH
from cppo_lab.rules import ENTRY_POINT, RULES
from cppo_lab.rules.weights import ABOVE, AT_MOST
from cppo_lab.spec.base import Count, Finite, NonNegative, Positive, Probability, Spec

VERL = "verl_"  # prefix of the names of verl's own losses


# Constants that a recipe sets, with the paper's values. They were added after the first runs: a value listed here
# becomes None, which keeps it out of run ids (`base.canonical`).
PAPER: Mapping[str, str | float] = MappingProxyType(
    {
        "position_span": "own",
        "ratio_cap": math.inf,
        "log_ratio_clamp": math.inf,
        "delta_b_cap": 2.0,
        "delta_b_quantile": 0.9,
        "delta_b_scale": 1.0,
    }
)
OF_ADAPTIVE = ("delta_b_cap", "delta_b_quantile", "delta_b_scale")


class RuleSpec(Spec):
    """A trust-region rule and its constants. A constant is None if the rule does not have it, or if it has the value in
    PAPER.

    `position_span` is T of the position weight: the response's own length, or the width that batches are padded to. The
    constants of an adaptive delta_b are dropped if it is fixed.

    `path` locates a rule of another package, see `cppo_lab.rules`; None for built-in rules and those of verl.
    """

    name: str
    path: str | None = None
    clip_low: Probability | None = None
    clip_high: NonNegative | None = None
    dual_clip: Annotated[Finite, Field(gt=1)] | None = None
    delta: Positive | None = None
    delta_b: Positive | None = None
    delta_b_mode: Literal["fixed", "adaptive"] | None = None
    w_min: Annotated[float, Field(gt=ABOVE, le=AT_MOST)] | None = None
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
    position_span: Literal["own", "padded"] | None = None
    ratio_cap: Annotated[float, Field(ge=1)] | None = None
    log_ratio_clamp: Annotated[float, Field(gt=0)] | None = None
    delta_b_cap: Annotated[float, Field(ge=1)] | None = None
    delta_b_quantile: Probability | None = None
    delta_b_scale: NonNegative | None = None
    # Constants that only verl's losses and rules of other packages have.
    options: dict[str, Finite] | None = None

    @model_validator(mode="wrap")
    @classmethod
    def _without_unused(cls, values: Any, made: ModelWrapValidatorHandler[Self]) -> Self:
        """Drop constants that do not change the run: the paper's values, and those of an unused quantile."""
        if not isinstance(values, dict) or values.get("path") is not None:
            return made(values)  # a rule of another package may require them
        kept = {key: value for key, value in values.items() if not _is_papers(key, value)}
        found = made(kept)
        if found.delta_b_mode == "fixed" and not kept.keys().isdisjoint(OF_ADAPTIVE):
            return made({key: value for key, value in kept.items() if key not in OF_ADAPTIVE})
        return found

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
        """The loss of verl in `verl_<loss>`; None for other rules."""
        return self.name.removeprefix(VERL) if self.name.startswith(VERL) else None

    def parameters(self) -> dict[str, Any]:
        """The constants that are set, by their names in the configuration."""
        own = self.model_dump(exclude={"name", "path", "options"})
        foreign = self.options or {} if self.path is not None else {}
        return {k: v for k, v in own.items() if v is not None} | foreign

    def arguments(self, width: int) -> dict[str, Any]:
        """`parameters` as arguments of the rule's function; `width` is the padded width of batches, in tokens."""
        found = self.parameters()
        return found | {"span": width} if found.pop("position_span", None) == "padded" else found

    def needs(self, need: str) -> bool:
        """Whether a built-in rule has a need (`cppo_lab.rules`); False if that is unknown."""
        return self.name in RULES and need in RULES[self.name].needs


def _is_papers(key: str, value: object) -> bool:
    return key in PAPER and value == PAPER[key] and not isinstance(value, bool)


class DivergenceSpec(Spec):
    """How D_t is measured: `estimator` on which partition, `measure` TV or KL(mu to pi).

    `sample` estimates the KL from the sampled token alone (k2, k3), for cases where no more of mu is known.
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
