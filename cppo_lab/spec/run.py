"""Typed, frozen configuration of a training run, and its identity.

A RunSpec has everything that determines the numbers of a run, and nothing else: where it runs, what it writes and where
it is tracked are in other configs. `run_id` is the hash of the fully resolved RunSpec including the seed. Below it are
its parts, from the base of all configs to the rule, the divergence, and the models and data of each core.
"""

import json
import math
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Discriminator,
    Field,
    ModelWrapValidatorHandler,
    Tag,
    model_validator,
)

from cppo_lab.plugins import NAME, PATH
from cppo_lab.rules import ABOVE, AT_MOST, ENTROPY, ENTRY_POINT, KL, MINIBATCH, RULES
from cppo_lab.schema import MEAN, MOST_SAMPLES, digest

# -0.0 equals 0.0 but would be written differently, so that a run would have two ids.
Finite = Annotated[float, Field(allow_inf_nan=False), AfterValidator(lambda value: value + 0.0)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NonNegative = Annotated[Finite, Field(ge=0)]
# A lower value overflows float32, and the samples of a policy that is not a number look like those of a bad policy.
Temperature = Annotated[float, Field(ge=1e-6, allow_inf_nan=False)]
Probability = Annotated[Finite, Field(ge=0, le=1)]
Count = Annotated[int, Field(ge=1, le=10**9)]  # an upper bound, so that no loop over a count runs without end
Seed = Annotated[int, Field(ge=0, lt=2**31)]
# Names become parts of file names and metric names.
Name = Annotated[str, Field(pattern=f"^{NAME.pattern}$")]


class Spec(BaseModel):
    """Base of all configs: immutable, no unknown keys, no silent conversion of text to numbers."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, ser_json_inf_nan="constants")

    @model_validator(mode="after")
    def _refuse(self) -> Self:
        if fault := next(self.faults(), ""):
            raise ValueError(fault)
        return self

    def faults(self) -> Iterator[str]:
        """What is wrong with its values, of which the first is said; may also raise ValueError."""
        yield from ()


def canonical(spec: Spec) -> str:
    """The canonical JSON text of a config: sorted keys, without values that do not apply (None).

    So a constant that a later rule adds does not change older texts.
    """
    return json.dumps(spec.model_dump(mode="json", exclude_none=True), sort_keys=True, separators=(",", ":"))


def fingerprint(spec: Spec) -> str:
    """The first 12 hex digits of SHA-256 of a config's canonical JSON: of a run's whole config, its id."""
    return digest(canonical(spec))


TRAIN = "train"  # among a run's files of problems, those to train on
Digest = Annotated[str, Field(pattern="^[0-9a-f]{12}$")]
BYTES = 259  # symbols of an embedded model on text: the bytes, padding and two of a chat template


class HubModel(Spec):
    """A checkpoint of the Hugging Face hub, by repository and revision.

    `parameters` and `active_parameters` (per token; fewer than all in a mixture of experts) are in billions; estimates
    of time and memory need them before the model is downloaded.
    """

    name: Name
    repository: Annotated[str, Field(pattern=r"^[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*$")]
    revision: str
    parameters: Positive
    active_parameters: Positive
    layers: Count
    width: Count
    kv_width: Count  # key-value heads x head dimension
    vocabulary: Count
    context: Count  # context length in tokens


class OwnFile(Spec):
    """A file of the user's: the digest of its bytes and, as no part of the id, where it is."""

    digest: Digest
    path: Annotated[str, Field(exclude=True)] = ""


class MathData(Spec):
    """Training prompts and benchmarks in text (docs/data.md): those that `cppo data prepare` lays out, or the user's.

    `files`: the user's, by name: TRAIN, and the benchmarks. `reward`: the user's reward function,
    `package.module:function`, and `reward_code`, the digest of its source (`plugins.code_digest`); None: `data.reward`.
    """

    name: Name
    training: Literal["dapo_math_17k", "files"]
    benchmarks: tuple[Name, ...]
    max_prompt_length: Count  # tokens; longer prompts are left out
    files: dict[Name, OwnFile] | None = None
    reward: Annotated[str, Field(pattern=f"^(?:{PATH.pattern})$")] | None = None
    reward_code: Digest | None = None

    def faults(self) -> Iterator[str]:
        check_benchmarks(self.benchmarks)
        if (self.training == "files") != (self.files is not None):
            yield f"training={self.training!r}: only data=files takes data.train and data.validation"
        if self.files is not None and sorted(self.files) != sorted([TRAIN, *self.benchmarks]):
            yield f"benchmarks={list(self.benchmarks)}: no validation set is called {TRAIN!r}"


LONGEST = 4096  # tokens of a response: the probability of every state is stored for each


class ProcessData(Spec):
    """The process: how tokens move its state, and which responses are rewarded.

    Symbol 0 is the branch token, the others are ordinary. `family` determines in which eighth of the response the
    branch token changes the mode. A response is rewarded if it has at most `allowed_slips` wrong tokens. The starting
    symbols are divided among the `benchmarks`.
    """

    name: Name
    family: Literal["early_fork", "late_fork", "no_fork"]
    vocabulary: Annotated[int, Field(ge=3, le=256)]
    allowed_slips: Annotated[int, Field(ge=0, le=15)]
    benchmarks: tuple[Name, ...]

    def faults(self) -> Iterator[str]:
        check_benchmarks(self.benchmarks)
        if len(self.benchmarks) > self.vocabulary - 1:
            yield (
                f"benchmarks={list(self.benchmarks)} are more than the {self.vocabulary - 1} ordinary symbols, which "
                "are dealt out to them: raise vocabulary, or name fewer"
            )


class TableModel(Spec):
    """A log-linear policy with four tables of logits, its initial parameters, and the mismatch of its sampler.

    The start makes `slips` wrong tokens per response on average in the first mode and `second_mode_slips` in the
    second, and takes the fork with probability `fork`; `start_noise` is the standard deviation of a normal draw that
    the run's seed adds to every parameter. The policy knows in which of `stretches` equal parts of the response it
    is. `mismatch` scales the Student-t noise (3 degrees of freedom) on the sampler's logits.
    """

    name: Name
    stretches: Annotated[int, Field(ge=1, le=64)]
    slips: Positive
    second_mode_slips: Positive
    fork: Annotated[Finite, Field(gt=0, lt=1)]
    start_noise: NonNegative
    mismatch: NonNegative


ANNEAL_STEPS = 300  # of a warm start, after it has reached its target accuracy
MAX_NUMBERS = 100_000  # symbols for numbers that a vocabulary may have


class Architecture(Spec):
    """Shape of the transformer."""

    layers: Count
    width: Count
    heads: Count
    kv_heads: Count
    head_dim: Count
    mlp_width: Count
    rope_theta: Positive = 10000.0

    def faults(self) -> Iterator[str]:
        if self.heads % self.kv_heads:
            yield f"heads={self.heads} must be a multiple of kv_heads={self.kv_heads}"
        if self.head_dim % 2:
            yield f"head_dim={self.head_dim} must be even (rotary embedding turns pairs)"


class WarmStart(Spec):
    """Supervised start of the model on noisy worked examples.

    With `target_accuracy` the model trains until that share of its most likely tokens is right on noise-free worked
    examples, and then for another ANNEAL_STEPS steps; `steps` limits both together. The initial plateau before a model
    learns the task varies between seeds, so a fixed number of steps would leave some seeds at an accuracy from which no
    rule can train. Without `target_accuracy` it trains for exactly `steps` steps.
    """

    steps: Count
    batch: Count
    learning_rate: Positive
    step_noise: Probability
    seed: Seed | None = None  # None: the run's seed, so that each seed of a study has a separate start
    target_accuracy: Probability | None = None

    def faults(self) -> Iterator[str]:
        if self.target_accuracy is not None and self.steps <= ANNEAL_STEPS:
            yield (
                f"steps={self.steps} is the limit of a warm start that ends with {ANNEAL_STEPS} steps behind its "
                f"target_accuracy={self.target_accuracy}: raise it, or set target_accuracy to null"
            )


class SyntheticModel(Spec):
    """An embedded small transformer (Qwen3 architecture), and its initialisation."""

    name: Name
    architecture: Architecture
    warm_start: WarmStart

    def for_seed(self, seed: int) -> Self:
        """The model with the seed of its warm start set: as given, else that of the run."""
        if self.warm_start.seed is not None:
            return self
        return self.model_copy(update={"warm_start": self.warm_start.model_copy(update={"seed": seed})})

    @property
    def start_seed(self) -> int:
        """The seed of the warm start, which `for_seed` sets to that of the run where it has none."""
        assert self.warm_start.seed is not None
        return self.warm_start.seed


class TaskData(Spec):
    """An arithmetic task and its held-out problem sets.

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

    def faults(self) -> Iterator[str]:
        check_benchmarks(self.benchmarks)
        if self.modulus * self.spellings > MAX_NUMBERS:
            yield (
                f"modulus={self.modulus} x spellings={self.spellings} makes {self.modulus * self.spellings} symbols, "
                f"more than {MAX_NUMBERS}: lower spellings to {MAX_NUMBERS // self.modulus} or less"
            )
        needed = len(self.benchmarks) * self.validation_problems
        if needed * 2 > self.problem_space:
            yield (
                f"validation_problems={self.validation_problems} x {len(self.benchmarks)} benchmarks takes more "
                f"than half of the {self.problem_space} problems that exist: raise operations or modulus"
            )

    @property
    def problem_space(self) -> int:
        """The number of distinct problems; spellings are not counted separately."""
        if self.task == "addition":
            return int(self.modulus ** (2 * self.operations))
        units = sum(math.gcd(n, self.modulus) == 1 for n in range(1, self.modulus))
        return int(self.modulus * (2 * (self.modulus - 1) + units) ** self.operations)

    @property
    def vocabulary(self) -> int:
        """Symbols: the spellings of all numbers, three operators, `=`, end of response, padding."""
        return self.modulus * self.spellings + 6

    @property
    def prompt_length(self) -> int:
        """Tokens of every prompt."""
        return 2 * self.operations + (1 if self.task == "addition" else 2)

    @property
    def worked_length(self) -> int:
        """Tokens of every worked response, the end token included."""
        return (2 if self.task == "addition" else 3) * self.operations + 1


VERL = "verl_"  # prefix of the names of verl's losses


# Constants that a recipe sets, with the paper's values. They were added after the first runs: a value listed here
# becomes None, which keeps it out of run ids (`canonical`).
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

    `position_span` is T of the position weight: the response's length, or the width that batches are padded to. The
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
    tau: Positive | None = None
    smoothing: Annotated[Finite, Field(ge=0, lt=1)] | None = None
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
    def _without_unused(cls, values: Any, validate: ModelWrapValidatorHandler[Self]) -> Self:
        """Drop constants that do not change the run: the paper's values, and those of an unused quantile."""
        if not isinstance(values, dict) or values.get("path") is not None:
            return validate(values)  # a rule of another package may require them
        constants = {
            key: value
            for key, value in values.items()
            if isinstance(value, bool) or key not in PAPER or value != PAPER[key]
        }
        rule = validate(constants)
        if rule.delta_b_mode == "fixed" and not constants.keys().isdisjoint(OF_ADAPTIVE):
            return validate({key: value for key, value in constants.items() if key not in OF_ADAPTIVE})
        return rule

    def faults(self) -> Iterator[str]:
        if self.path is None:
            return
        if self.name in RULES or self.verl_loss is not None:
            yield f"rule.path={self.path!r}: rule {self.name!r} comes with the product and is not replaced"
        if self.path != ENTRY_POINT and not PATH.fullmatch(self.path):
            yield f"rule.path={self.path!r} must be package.module:function"

    @property
    def verl_loss(self) -> str | None:
        """The loss of verl in `verl_<loss>`; None for other rules."""
        return self.name.removeprefix(VERL) if self.name.startswith(VERL) else None

    def parameters(self) -> dict[str, Any]:
        """The constants that are set, by their names in the configuration."""
        constants = self.model_dump(exclude={"name", "path", "options"})
        foreign = (self.options or {}) if self.path else {}
        return {k: v for k, v in constants.items() if v is not None} | foreign

    def arguments(self, longest: int) -> dict[str, Any]:
        """`parameters` as arguments of the rule's function; `longest` is the run's longest response, in tokens."""
        arguments = self.parameters()
        if arguments.pop("position_span", None) == "padded":
            arguments["span"] = longest
        return arguments

    @property
    def known_needs(self) -> frozenset[str]:
        """The needs of a built-in rule (`cppo_lab.rules`); those of another package's are known when it is imported."""
        return RULES[self.name].needs if self.name in RULES else frozenset()


def _drop_default(value: object) -> AfterValidator:
    """None for what was meant before the field existed: it does not enter the id."""
    return AfterValidator(lambda given: None if given == value else given)


class DivergenceSpec(Spec):
    """How D_t is measured: `estimator` on which partition, `measure` TV or KL(mu to pi).

    `sample` estimates the KL from the sampled token alone (k2, k3), for cases where no more of mu is known. `origin`:
    from which policy D_t measures, mu (None) or, in decoupled runs, pi_old.
    """

    estimator: Literal["exact", "topk", "binary", "sample"]
    measure: Literal["tv", "kl", "k2", "k3"]
    k: Count | None = None
    convention: Literal["union", "replace_kth"] | None = None
    origin: Annotated[Literal["mu", "old"] | None, _drop_default("mu")] = None

    def faults(self) -> Iterator[str]:
        if (self.estimator == "topk") != (self.k is not None and self.convention is not None):
            yield (
                f"estimator={self.estimator!r} with k={self.k}, convention={self.convention!r}: "
                "k and convention belong to estimator 'topk', and only to it"
            )
        if (self.estimator == "sample") != (self.measure in ("k2", "k3")):
            yield (
                f"measure={self.measure!r} with estimator={self.estimator!r}: sample takes k2 or k3, "
                "the others tv or kl"
            )


def _kind_of_model(value: object) -> str:
    """`Tag` of a model: only embedded models have an architecture."""
    is_made = "architecture" in value if isinstance(value, dict) else isinstance(value, SyntheticModel)
    return "<made>" if is_made else "<hub>"


def _kind_of_data(value: object) -> str:
    """`Tag` of a data set: only arithmetic tasks have a `task`."""
    task = "task" in value if isinstance(value, dict) else isinstance(value, TaskData)
    return "<task>" if task else "<math>"


class AdvantageSpec(Spec):
    """Group-relative advantages: divide by the group's standard deviation; drop groups without variance."""

    normalize_std: bool
    drop_zero_variance: bool


def _divisors(number: int) -> list[int]:
    """The divisors of a number, in order."""
    small = [n for n in range(1, math.isqrt(number) + 1) if number % n == 0]
    return sorted({*small, *(number // n for n in small)})


class BatchSpec(Spec):
    """One rollout batch: `prompts` x `responses`, cut into minibatches of `minibatch_prompts` (an update each)."""

    prompts: Count
    responses: Annotated[Count, Field(ge=2)]
    minibatch_prompts: Count

    def faults(self) -> Iterator[str]:
        if self.prompts % self.minibatch_prompts:
            yield (
                f"minibatch_prompts={self.minibatch_prompts} must divide prompts={self.prompts} "
                f"(valid: {_divisors(self.prompts)})"
            )

    @property
    def updates(self) -> int:
        """Minibatch updates per rollout batch."""
        return self.prompts // self.minibatch_prompts


class SamplingSpec(Spec):
    """How training rollouts are sampled: from the untruncated softmax (`top_p` = 1), as in the paper.

    `staleness` (rollout batches by which mu is older than pi) and `precision` (of mu's weights and arithmetic)
    make mu differ from the policy in training, as asynchronous trainers and inference engines do.

    `correction`: bypass (None), where rules act on pi / mu, or decoupled, where they act on pi / pi_old, with pi_old
    the policy at the start of a batch's updates, and pi_old / mu enters by the weights `rollout_*` (named as in verl;
    `maths.rules.corrected`).

    Of the verl core alone: `quantization` of mu's weights; `router_replay`, by which a mixture of experts trains
    each token with the experts that sampled it (R3); and `mode` async, in which responses that are not ready when a
    batch is go on with the next policy: no token's mu is older than pi by more than `max_staleness` batches.
    """

    temperature: Temperature
    top_p: Annotated[float, Field(gt=0, le=1)]
    max_response_length: Annotated[Count, Field(ge=2)]
    staleness: Annotated[int, Field(ge=0, le=100)]
    precision: Literal["float32", "bfloat16"]
    quantization: Literal["fp8"] | None = None
    router_replay: Literal["R2", "R3"] | None = None
    correction: Annotated[Literal["bypass", "decoupled"] | None, _drop_default("bypass")] = None
    rollout_is: Literal["token", "sequence"] | None = None
    rollout_is_threshold: Positive | None = None
    rollout_rs: Literal["token_k1", "seq_sum_k1", "seq_mean_k1"] | None = None
    rollout_rs_threshold: Annotated[Finite, Field(gt=1)] | None = None
    mode: Annotated[Literal["sync", "async"] | None, _drop_default("sync")] = None
    max_staleness: Annotated[int, Field(ge=1, le=100)] | None = None

    def faults(self) -> Iterator[str]:
        if (self.mode is None) != (self.max_staleness is None):
            yield (
                f"mode={self.mode or 'sync'!r} with max_staleness={self.max_staleness}: set mode=async and "
                "max_staleness=1 or more, or neither"
            )
        if self.mode and self.staleness:
            yield (
                f"staleness={self.staleness} with mode='async', where mu's age is what the run's timing makes it, up "
                "to max_staleness: set staleness=0, or drop mode"
            )
        if self.mode and self.correction:
            yield (
                "correction='decoupled' with mode='async': a batch of several policies has no pi_old here; set "
                "correction=bypass, or drop mode"
            )
        for name in ("rollout_is", "rollout_rs"):
            value, limit = getattr(self, name), getattr(self, f"{name}_threshold")
            if (value is None) != (limit is None):
                yield f"{name}={value!r} with {name}_threshold={limit}: set both, or neither"
            if value and not self.correction:
                yield (
                    f"{name}={value!r} with correction='bypass', which has no pi_old to compare with mu: set "
                    f"correction=decoupled, or {name} and {name}_threshold to null"
                )

    @property
    def weights(self) -> dict[str, Any] | None:
        """The arguments of `maths.rules.corrected`; None: the run is not decoupled."""
        values = self.model_dump(exclude_none=True)
        return (
            {name: values[name] for name in values if name.startswith("rollout_")}
            if self.correction
            else None
        )


class ValidationSpec(Spec):
    """Avg@`samples` on every benchmark every `every` steps, with constant sampling seeds."""

    every: Count
    samples: Annotated[int, Field(ge=1, le=MOST_SAMPLES)]
    temperature: Temperature
    top_p: Annotated[float, Field(gt=0, le=1)]


class OptimSpec(Spec):
    """AdamW, constant learning rate, gradient clipping by global norm.

    Of the verl core alone: `master_dtype` of the weights that AdamW updates, and of its moments (None: float32), and
    low-rank adapters of all linear layers in place of the weights, scaled by `lora_alpha` / `lora_rank`.
    """

    learning_rate: Positive
    beta1: Annotated[Finite, Field(ge=0, lt=1)]
    beta2: Annotated[Finite, Field(ge=0, lt=1)]
    weight_decay: NonNegative
    clip_grad_norm: Positive
    master_dtype: Annotated[Literal["float32", "bfloat16"] | None, _drop_default("float32")] = None
    lora_rank: Count | None = None
    lora_alpha: Count | None = None

    def faults(self) -> Iterator[str]:
        if (self.lora_rank is None) != (self.lora_alpha is None):
            yield f"lora_rank={self.lora_rank} with lora_alpha={self.lora_alpha}: set both, or neither"


class TrainingSpec(Spec):
    """The number of training steps `t_stop`, and the aggregation of per-token objectives to a loss.

    A run whose validation score stays below `collapse_share` x its best for `collapse_patience` validations in a
    row ends as collapsed (`schema.collapse_reason`).
    """

    t_stop: Count
    collapse_share: Probability
    collapse_patience: Count
    aggregation: Literal["token-mean", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm"]


OF_VERL = {
    "rollout": ("quantization", "router_replay", "mode", "max_staleness"),
    "optim": ("master_dtype", "lora_rank", "lora_alpha"),
}


class ObjectiveSpec(Spec):
    """What is done to the loss of any rule. `centering`: score centering (maths/rules.py)."""

    centering: bool = False


class RunSpec(Spec):
    """Everything that determines the numbers of a training run; each core has a subclass."""

    core: str
    seed: Seed
    model: SyntheticModel | HubModel | TableModel
    data: TaskData | MathData | ProcessData
    rule: RuleSpec
    divergence: DivergenceSpec
    advantage: AdvantageSpec
    batch: BatchSpec
    rollout: SamplingSpec
    validation: ValidationSpec
    optim: OptimSpec
    training: TrainingSpec
    objective: Annotated[ObjectiveSpec | None, _drop_default(ObjectiveSpec())] = None

    def faults(self) -> Iterator[str]:
        self._check_objective(self.rule)
        for section, names in OF_VERL.items() if not isinstance(self, VerlRun) else ():
            for name in names:
                if (value := getattr(getattr(self, section), name)) is not None:
                    yield f"{section}.{name}={value!r}: core={self.core} has none; drop it, or choose core=verl"
        if self.rollout.top_p != 1:
            yield (
                f"rollout.top_p={self.rollout.top_p}: core={self.core} evaluates the untruncated softmax, and tokens "
                "would be drawn from another distribution than the mu that pi is compared with; set rollout.top_p=1.0"
            )
        if KL in self.rule.known_needs and self.divergence.measure == "tv":
            yield (
                f"divergence.measure='tv' with rule {self.rule.name!r}: its thresholds are on KL(mu to pi); "
                "choose divergence=topk_kl, binary_kl, exact_kl or sample_k3"
            )
        if self.training.t_stop % self.validation.every:
            yield (
                f"training.t_stop={self.training.t_stop} must lie on the validation grid: make it a multiple of "
                f"validation.every={self.validation.every}"
            )

    def check_needs(self, rule: RuleSpec, needs: frozenset[str]) -> None:
        """Check that the run gives `rule` what it needs. Raises ValueError."""
        if ENTROPY in needs and self.rollout.correction:
            raise ValueError(
                f"rollout.correction='decoupled' with rule {rule.name!r}: its limit is by the entropy of mu, and its "
                "ratio would be to pi_old; choose another rule, or rollout.correction=bypass"
            )

    def _check_objective(self, rule: RuleSpec) -> None:
        """Check that the loss of `rule` can be centred or decoupled, if it shall be, and what is known of its needs.

        Raises ValueError.
        """
        self.check_needs(rule, rule.known_needs)
        if self.rollout.correction:
            decoupled = "rollout.correction='decoupled' with"
            if self.objective:
                raise ValueError(
                    f"{decoupled} objective.centering=true: the weight pi_old / mu of a token that was not sampled is "
                    "not defined; set objective.centering=false, or rollout.correction=bypass"
                )
            if rule.verl_loss is not None:
                raise ValueError(
                    f"{decoupled} rule {rule.name!r}: a loss of verl's own is trained in bypass mode alone; choose "
                    "another rule, or rollout.correction=bypass"
                )
        elif self.divergence.origin:
            raise ValueError(
                "divergence.origin='old' with rollout.correction='bypass', which has no pi_old: set "
                "rollout.correction=decoupled, or divergence.origin=mu"
            )
        if self.objective is None:
            return
        if self.divergence.estimator not in ("topk", "exact"):
            raise ValueError(
                f"objective.centering=true with divergence.estimator={self.divergence.estimator!r}: the expectation is "
                "taken over mu's most likely tokens, which only topk and exact divergences record; choose "
                "divergence=topk_tv or topk_kl"
            )
        if rule.verl_loss is not None:
            raise ValueError(
                f"objective.centering=true with rule {rule.name!r}: a loss of verl's own is not centred; choose "
                "another rule"
            )
        if rule.name in RULES and (fault := RULES[rule.name].centering_fault):
            raise ValueError(fault)

    @property
    def run_id(self) -> str:
        """Twelve hex digits that identify this configuration, stable across machines, Python versions and key order."""
        return fingerprint(self)


class MiniRun(RunSpec):
    """A run of the embedded core."""

    core: Literal["mini"]
    model: SyntheticModel
    data: TaskData

    def faults(self) -> Iterator[str]:
        yield from super().faults()
        check_no_verl_loss(self.rule)
        check_length(self.data, self.rollout)
        check_top_k(self.divergence, self.data.vocabulary)


COLDEST = 0.01  # vLLM raises a lower temperature to this (`SamplingParams`)


class VerlRun(RunSpec):
    """A run of verl's trainer: a published model on text, or an embedded model on its task or, untrained, on bytes."""

    core: Literal["verl"]
    model: Annotated[
        Annotated[HubModel, Tag("<hub>")] | Annotated[SyntheticModel, Tag("<made>")],
        Discriminator(_kind_of_model),
    ]
    data: Annotated[
        Annotated[MathData, Tag("<math>")] | Annotated[TaskData, Tag("<task>")], Discriminator(_kind_of_data)
    ]

    def faults(self) -> Iterator[str]:
        yield from super().faults()
        if self.rollout.temperature < COLDEST:
            yield (
                f"rollout.temperature={self.rollout.temperature}: vLLM samples at {COLDEST:g} instead, and pi would be "
                f"compared with another mu; set rollout.temperature={COLDEST:g} or more"
            )
        if self.validation.temperature < COLDEST:
            yield (
                f"validation.temperature={self.validation.temperature}: vLLM samples at {COLDEST:g} instead; set "
                f"validation.temperature={COLDEST:g} or more"
            )
        if self.rollout.staleness and self.optim.lora_rank:
            yield (
                f"rollout.staleness={self.rollout.staleness} with optim.lora_rank={self.optim.lora_rank}: earlier "
                "policies are kept whole, and that merged adapters come back unchanged has not been tested; set "
                "rollout.staleness=0, or optim.lora_rank=null"
            )
        replay = self.rollout.router_replay
        if replay and self.rollout.correction:
            yield (
                f"rollout.router_replay={replay!r} with rollout.correction='decoupled': that pi_old is computed with "
                "the experts that sampled has not been tested; set rollout.router_replay=null, or "
                "rollout.correction=bypass"
            )
        if self.divergence.origin and self.divergence.estimator in ("topk", "exact"):
            yield (
                f"divergence.origin='old' with divergence.estimator={self.divergence.estimator!r}: core=verl knows "
                "pi_old at sampled tokens alone; choose divergence=binary_tv, binary_kl, sample_k2 or sample_k3, or "
                "divergence.origin=mu"
            )
        if replay == "R2":
            yield (
                "rollout.router_replay='R2' replays the routes by which old log-probabilities were recomputed, and "
                "core=verl recomputes none (mu's are the engine's); set rollout.router_replay=R3, or null"
            )
        if replay and not self.has_experts:
            yield f"rollout.router_replay={replay!r}: model={self.model.name} has no experts to route to; set null"
        if self.optim.lora_rank and self.has_experts:
            yield (
                f"optim.lora_rank={self.optim.lora_rank} with model={self.model.name}: verl sends experts that it has "
                "merged with adapters in a form that no rollout engine reads; set null, or choose a dense model"
            )
        if isinstance(self.model, HubModel) and isinstance(self.data, TaskData):
            yield (
                f"model={self.model.name!r} with data={self.data.name!r}: published models train on text; choose "
                "data=dapo_math or data=files"
            )
        if isinstance(self.data, TaskData):
            check_length(self.data, self.rollout)
        if self.divergence.estimator == "exact" and isinstance(self.data, MathData):
            yield (
                "divergence.estimator='exact' would carry mu's whole vocabulary for every token: choose "
                "divergence=topk_tv or topk_kl"
            )
        symbols = self.model if isinstance(self.model, HubModel) else self.data
        check_top_k(self.divergence, BYTES if isinstance(symbols, MathData) else symbols.vocabulary)

    def check_needs(self, rule: RuleSpec, needs: frozenset[str]) -> None:
        """As in the base; and that this core can do it. Raises ValueError."""
        super().check_needs(rule, needs)
        if MINIBATCH in needs:
            raise ValueError(
                f"rule={rule.name} decides over a whole minibatch, which core=verl cuts into micro-batches and spreads "
                "over ranks: choose core=mini, or another rule"
            )
        if ENTROPY in needs and self.divergence.estimator not in ("topk", "exact"):
            raise ValueError(
                f"rule={rule.name} needs the entropy of mu, which core=verl takes from mu's Top-K: choose "
                "divergence=topk_tv or topk_kl"
            )

    @property
    def longest_prompt(self) -> int:
        """Tokens of the longest prompt."""
        return self.data.prompt_length if isinstance(self.data, TaskData) else self.data.max_prompt_length

    @property
    def own_reward(self) -> str | None:
        """The user's reward function; None: that of the product."""
        return self.data.reward if isinstance(self.data, MathData) else None

    @property
    def has_experts(self) -> bool:
        """Whether a token uses only a part of the parameters."""
        return isinstance(self.model, HubModel) and self.model.active_parameters < self.model.parameters


class AlongSpec(Spec):
    """The training that a run of single updates goes along: `rule` and `learning_rate` choose every state, and how far
    an update moves the policy; the run's rule and learning rate update it once from each of these states.

    `match`: by what the run's update is brought to the same movement: its length alone (`scale`), or first its
    threshold rule.delta, and the length for what is left (`delta`). Movement is measured from mu without its staleness;
    with `update`, by length as well, from the policy before the step, without mu's rounding and noise.
    """

    rule: RuleSpec
    learning_rate: Positive
    match: Literal["scale", "delta", "update"]


class ExactRun(RunSpec):
    """A run of the core with exactly known returns: a tabular policy on a small Markov process.

    `along`: None trains; else each step measures one update of the run's rule, see `AlongSpec`.
    """

    core: Literal["exact"]
    model: TableModel
    data: ProcessData
    along: AlongSpec | None = None

    def faults(self) -> Iterator[str]:
        yield from super().faults()
        for rule in (self.rule, *([self.along.rule] if self.along else [])):
            check_no_verl_loss(rule)
            self._check_objective(rule)
        if self.along and self.along.match == "delta" and self.rule.delta is None:
            yield f"along.match='delta' with rule {self.rule.name!r}, which has no delta: set along.match=scale"
        horizon = self.rollout.max_response_length
        if horizon > LONGEST:
            yield (
                f"rollout.max_response_length={horizon}: core=exact keeps the probability of every state at every "
                f"token; set {LONGEST} or less"
            )
        if self.model.stretches > horizon:
            yield f"model.stretches={self.model.stretches} of a response of {horizon} tokens: set {horizon} or less"
        for part, slips in (("slips", self.model.slips), ("second_mode_slips", self.model.second_mode_slips)):
            if slips >= horizon:
                yield f"model.{part}={slips:g} of {horizon} tokens: a start makes fewer slips than tokens; lower it"
        if self.validation.top_p != 1:
            yield (
                f"validation.top_p={self.validation.top_p}: core=exact evaluates the untruncated softmax; set "
                "validation.top_p=1.0"
            )
        check_top_k(self.divergence, self.data.vocabulary)


def check_benchmarks(names: tuple[str, ...]) -> None:
    """Check that there are benchmarks, each with another name.

    Raises ValueError.
    """
    if not names or len(set(names)) != len(names):
        raise ValueError(f"benchmarks={list(names)} must be one or more distinct names")
    if MEAN in names:
        raise ValueError(f"benchmarks={list(names)}: {MEAN!r} names the mean over them; choose another")


def check_no_verl_loss(rule: RuleSpec) -> None:
    """Check that a rule is none of verl's own losses. Raises ValueError."""
    if rule.verl_loss is not None:
        raise ValueError(f"rule.name={rule.name!r} is a loss of verl's own: it needs core=verl")


def check_length(data: TaskData, rollout: SamplingSpec) -> None:
    """Check that a worked answer fits into a response.

    Raises ValueError.
    """
    worked = data.worked_length
    if rollout.max_response_length < worked:
        raise ValueError(
            f"rollout.max_response_length={rollout.max_response_length}: a worked response to "
            f"data.task={data.task!r} with operations={data.operations} has {worked} tokens; raise "
            f"max_response_length to {worked} or more, or lower operations"
        )


def check_top_k(divergence: DivergenceSpec, vocabulary: int) -> None:
    """Check that k is at most the size of the vocabulary.

    Raises ValueError.
    """
    if divergence.k is not None and divergence.k > vocabulary:
        raise ValueError(
            f"divergence.k={divergence.k}: the rollout policy has log-probabilities of {vocabulary} tokens, the whole "
            f"vocabulary; set divergence.k={vocabulary} or less"
        )


TAGS: dict[str, type[Spec]] = {
    "<hub>": HubModel,
    "<made>": SyntheticModel,
    "<math>": MathData,
    "<task>": TaskData,
}
