"""Typed, frozen configuration of one training run, and its identity.

A RunSpec holds everything that decides the numbers of a run, and nothing else: where it runs, where it writes
and who tracks it live in other configs. `run_id` is the hash of the fully resolved RunSpec including the seed.
"""

import hashlib
import json
import math
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from cppo_lab.schema import MEAN

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NonNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Probability = Annotated[float, Field(ge=0, le=1)]
Count = Annotated[int, Field(ge=1)]
Seed = Annotated[int, Field(ge=0, lt=2**31)]
# Names become parts of file names and of metric names.
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$")]

MAX_NUMBERS = 100_000  # symbols for numbers that a vocabulary may have


class Spec(BaseModel):
    """Base of all configs: immutable, no unknown keys, no silent conversion of text to numbers."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, ser_json_inf_nan="constants")


class Architecture(Spec):
    """Shape of the embedded transformer."""

    layers: Count
    width: Count
    heads: Count
    kv_heads: Count
    head_dim: Count
    mlp_width: Count
    rope_theta: Positive = 10000.0

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.heads % self.kv_heads:
            raise ValueError(f"heads={self.heads} must be a multiple of kv_heads={self.kv_heads}")
        if self.head_dim % 2:
            raise ValueError(f"head_dim={self.head_dim} must be even (rotary embedding turns pairs)")
        return self


class WarmStart(Spec):
    """Supervised start of the embedded model on noisy worked examples."""

    steps: Count
    batch: Count
    learning_rate: Positive
    step_noise: Probability
    seed: Seed = 0


class ModelSpec(Spec):
    """The model to train, and the start of its training."""

    name: Name
    architecture: Architecture
    warm_start: WarmStart


class DataSpec(Spec):
    """The task and its held-out problem sets.

    `chain` works `operations` operations modulo `modulus`; `addition` adds two numbers of `operations` digits in base
    `modulus`. Each number has `spellings` symbols.
    """

    name: Name
    task: Literal["chain", "addition"]
    modulus: Annotated[int, Field(ge=2, le=1000)]
    operations: Annotated[int, Field(ge=1, le=127)]
    spellings: Annotated[int, Field(ge=1, le=1000)]
    benchmarks: tuple[Name, ...]
    validation_problems: Annotated[int, Field(ge=1, le=10_000)]
    validation_seed: Seed

    @model_validator(mode="after")
    def _check(self) -> Self:
        if not self.benchmarks or len(set(self.benchmarks)) != len(self.benchmarks):
            raise ValueError(f"benchmarks={list(self.benchmarks)} must be one or more distinct names")
        if MEAN in self.benchmarks:
            raise ValueError(
                f"benchmarks={list(self.benchmarks)}: {MEAN!r} names the mean over them; choose another"
            )
        if self.modulus * self.spellings > MAX_NUMBERS:
            raise ValueError(
                f"modulus={self.modulus} x spellings={self.spellings} makes {self.modulus * self.spellings} symbols, "
                f"more than {MAX_NUMBERS}: lower spellings to {MAX_NUMBERS // self.modulus} or less"
            )
        needed = len(self.benchmarks) * self.validation_problems
        if needed * 2 > self.problem_space:
            raise ValueError(
                f"validation_problems={self.validation_problems} x {len(self.benchmarks)} benchmarks takes more "
                f"than half of the {self.problem_space} problems that exist: raise operations or modulus"
            )
        return self

    @property
    def problem_space(self) -> int:
        """How many problems there are; another spelling is no other problem."""
        if self.task == "addition":
            return self.modulus ** (2 * self.operations)
        units = sum(math.gcd(n, self.modulus) == 1 for n in range(1, self.modulus))
        return self.modulus * (2 * (self.modulus - 1) + units) ** self.operations

    @property
    def prompt_length(self) -> int:
        """Tokens of every prompt."""
        return 2 * self.operations + (1 if self.task == "addition" else 2)

    @property
    def worked_length(self) -> int:
        """Tokens of every worked response, the end token included."""
        return (2 if self.task == "addition" else 3) * self.operations + 1


class RuleSpec(Spec):
    """A trust-region rule and its constants; None where the rule has no such constant (algorithms.md, "Rules")."""

    name: str
    clip_low: Probability | None = None
    clip_high: NonNegative | None = None
    dual_clip: Annotated[float, Field(gt=1)] | None = None
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

    def parameters(self) -> dict[str, Any]:
        """The constants that are set, as keyword arguments of the rule's function."""
        return {k: v for k, v in self.model_dump(exclude={"name"}).items() if v is not None}


class DivergenceSpec(Spec):
    """How D_t is measured: `estimator` on which partition, `measure` TV or KL(mu to pi)."""

    estimator: Literal["exact", "topk", "binary"]
    measure: Literal["tv", "kl"]
    k: Count | None = None
    convention: Literal["union", "replace_kth"] | None = None

    @model_validator(mode="after")
    def _check(self) -> Self:
        if (self.estimator == "topk") != (self.k is not None and self.convention is not None):
            raise ValueError(
                f"estimator={self.estimator!r} with k={self.k}, convention={self.convention!r}: "
                "k and convention belong to estimator 'topk', and only to it"
            )
        return self


class AdvantageSpec(Spec):
    """Group-relative advantages: divide by the group's standard deviation; drop groups without variance."""

    normalize_std: bool
    drop_zero_variance: bool


class BatchSpec(Spec):
    """One rollout batch: `prompts` x `responses`, cut into minibatches of `minibatch_prompts` (one update each)."""

    prompts: Count
    responses: Annotated[int, Field(ge=2)]
    minibatch_prompts: Count

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.prompts % self.minibatch_prompts:
            raise ValueError(
                f"minibatch_prompts={self.minibatch_prompts} must divide prompts={self.prompts} "
                f"(valid: {[n for n in range(1, self.prompts + 1) if self.prompts % n == 0]})"
            )
        return self

    @property
    def updates(self) -> int:
        """Minibatch updates per rollout batch."""
        return self.prompts // self.minibatch_prompts


class SamplingSpec(Spec):
    """How training rollouts are sampled. The paper's setting is the untruncated softmax (1, 1).

    `staleness` (rollout batches by which mu is older than pi) and `precision` (of mu's weights and arithmetic)
    make mu differ from the policy in training, as asynchronous trainers and inference engines do.
    """

    temperature: Positive
    top_p: Annotated[float, Field(gt=0, le=1)]
    max_response_length: Annotated[int, Field(ge=2)]
    staleness: Annotated[int, Field(ge=0, le=100)]
    precision: Literal["float32", "bfloat16"]


class ValidationSpec(Spec):
    """Avg@`samples` on every benchmark each `every` steps, on sampling seeds that do not change."""

    every: Count
    samples: Count
    temperature: Positive
    top_p: Annotated[float, Field(gt=0, le=1)]


class OptimSpec(Spec):
    """AdamW, constant learning rate, gradient clipping by global norm."""

    learning_rate: Positive
    beta1: Annotated[float, Field(ge=0, lt=1)]
    beta2: Annotated[float, Field(ge=0, lt=1)]
    weight_decay: NonNegative
    clip_grad_norm: Positive


class TrainingSpec(Spec):
    """`t_stop` training steps; how per-token objectives become one loss.

    A run whose validation score stays below `collapse_share` x its best for `collapse_patience` validations in a
    row ends as collapsed (cores/collapse.py).
    """

    t_stop: Count
    collapse_share: Probability
    collapse_patience: Count
    aggregation: Literal["token-mean", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm"]


class RunSpec(Spec):
    """Everything that decides the numbers of one training run."""

    core: Literal["mini"]
    seed: Seed
    model: ModelSpec
    data: DataSpec
    rule: RuleSpec
    divergence: DivergenceSpec
    advantage: AdvantageSpec
    batch: BatchSpec
    rollout: SamplingSpec
    validation: ValidationSpec
    optim: OptimSpec
    training: TrainingSpec

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.rule.name.startswith("trm_") and self.divergence.measure != "kl":
            raise ValueError(
                f"divergence.measure={self.divergence.measure!r} with rule {self.rule.name!r}: the thresholds of TRM "
                "are on KL(mu to pi); choose divergence=topk_kl, binary_kl or exact_kl"
            )
        worked = self.data.worked_length
        if self.rollout.max_response_length < worked:
            raise ValueError(
                f"rollout.max_response_length={self.rollout.max_response_length}: a worked response to "
                f"data.task={self.data.task!r} with operations={self.data.operations} has {worked} tokens; raise "
                f"max_response_length to {worked} or more, or lower operations"
            )
        if self.training.t_stop % self.validation.every:
            raise ValueError(
                f"training.t_stop={self.training.t_stop} must lie on the validation grid: make it a multiple of "
                f"validation.every={self.validation.every}"
            )
        return self

    @property
    def run_id(self) -> str:
        """Twelve hex digits that name this configuration: stable over machines, Python versions and key order."""
        return fingerprint(self)


def fingerprint(spec: Spec) -> str:
    """First 12 hex digits of SHA-256 over the canonical JSON of a config.

    What does not apply (None) is left out, so that a constant that a later rule brings changes no older id.
    """
    text = json.dumps(spec.model_dump(mode="json", exclude_none=True), sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:12]
