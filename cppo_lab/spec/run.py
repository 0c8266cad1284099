"""Typed, frozen configuration of one training run, and its identity.

A RunSpec has everything that determines the numbers of a run, and nothing else: where it runs, what it writes and where
it is tracked are in other configs. `run_id` is the hash of the fully resolved RunSpec including the seed.
"""

import math
from typing import Annotated, Literal, Self

from pydantic import Discriminator, Field, Tag, model_validator

from cppo_lab.rules import KL
from cppo_lab.spec.base import Count, Finite, NonNegative, Positive, Probability, Seed, Spec, fingerprint
from cppo_lab.spec.hub import HubModel, MathData
from cppo_lab.spec.process import LONGEST, ProcessData, TableModel
from cppo_lab.spec.rule import DivergenceSpec, RuleSpec
from cppo_lab.spec.synthetic import SyntheticModel, TaskData


def _kind_of_model(value: object) -> str:
    """`Tag` of a model: only embedded models have an architecture."""
    made = "architecture" in value if isinstance(value, dict) else isinstance(value, SyntheticModel)
    return "<made>" if made else "<hub>"


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
    """One rollout batch: `prompts` x `responses`, cut into minibatches of `minibatch_prompts` (one update each)."""

    prompts: Count
    responses: Annotated[Count, Field(ge=2)]
    minibatch_prompts: Count

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.prompts % self.minibatch_prompts:
            raise ValueError(
                f"minibatch_prompts={self.minibatch_prompts} must divide prompts={self.prompts} "
                f"(valid: {_divisors(self.prompts)})"
            )
        return self

    @property
    def updates(self) -> int:
        """Minibatch updates per rollout batch."""
        return self.prompts // self.minibatch_prompts


class SamplingSpec(Spec):
    """How training rollouts are sampled: from the untruncated softmax (`top_p` = 1), as in the paper.

    `staleness` (rollout batches by which mu is older than pi) and `precision` (of mu's weights and arithmetic)
    make mu differ from the policy in training, as asynchronous trainers and inference engines do.
    """

    temperature: Positive
    top_p: Annotated[float, Field(gt=0, le=1)]
    max_response_length: Annotated[Count, Field(ge=2)]
    staleness: Annotated[int, Field(ge=0, le=100)]
    precision: Literal["float32", "bfloat16"]


class ValidationSpec(Spec):
    """Avg@`samples` on every benchmark every `every` steps, with constant sampling seeds."""

    every: Count
    samples: Count
    temperature: Positive
    top_p: Annotated[float, Field(gt=0, le=1)]


class OptimSpec(Spec):
    """AdamW, constant learning rate, gradient clipping by global norm."""

    learning_rate: Positive
    beta1: Annotated[Finite, Field(ge=0, lt=1)]
    beta2: Annotated[Finite, Field(ge=0, lt=1)]
    weight_decay: NonNegative
    clip_grad_norm: Positive


class TrainingSpec(Spec):
    """The number of training steps `t_stop`, and the aggregation of per-token objectives to a loss.

    A run whose validation score stays below `collapse_share` x its best for `collapse_patience` validations in a
    row ends as collapsed (cores/collapse.py).
    """

    t_stop: Count
    collapse_share: Probability
    collapse_patience: Count
    aggregation: Literal["token-mean", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm"]


class RunSpec(Spec):
    """Everything that determines the numbers of one training run; each core has its own subclass."""

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

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.rollout.top_p != 1:
            raise ValueError(
                f"rollout.top_p={self.rollout.top_p}: core={self.core} evaluates the untruncated softmax, and tokens "
                "would be drawn from another distribution than the mu that pi is compared with; set rollout.top_p=1.0"
            )
        if self.rule.needs(KL) and self.divergence.measure == "tv":
            raise ValueError(
                f"divergence.measure='tv' with rule {self.rule.name!r}: its thresholds are on KL(mu to pi); "
                "choose divergence=topk_kl, binary_kl, exact_kl or sample_k3"
            )
        if self.training.t_stop % self.validation.every:
            raise ValueError(
                f"training.t_stop={self.training.t_stop} must lie on the validation grid: make it a multiple of "
                f"validation.every={self.validation.every}"
            )
        return self

    @property
    def run_id(self) -> str:
        """Twelve hex digits that identify this configuration, stable across machines, Python versions and key order."""
        return fingerprint(self)


class MiniRun(RunSpec):
    """A run of the embedded core."""

    core: Literal["mini"]
    model: SyntheticModel
    data: TaskData

    @model_validator(mode="after")
    def _check_mini(self) -> Self:
        if self.rule.verl_loss is not None:
            raise ValueError(f"rule.name={self.rule.name!r} is a loss of verl's own: it needs core=verl")
        check_length(self.data, self.rollout)
        check_top_k(self.divergence, self.data.vocabulary)
        return self


COLDEST = 0.01  # vLLM raises a lower temperature to this one (`SamplingParams`)


class VerlRun(RunSpec):
    """A run of verl's trainer: a published model on mathematics, or one of our embedded models on its task."""

    core: Literal["verl"]
    model: Annotated[
        Annotated[HubModel, Tag("<hub>")] | Annotated[SyntheticModel, Tag("<made>")],
        Discriminator(_kind_of_model),
    ]
    data: Annotated[
        Annotated[MathData, Tag("<math>")] | Annotated[TaskData, Tag("<task>")], Discriminator(_kind_of_data)
    ]

    @model_validator(mode="after")
    def _check_verl(self) -> Self:
        if self.rollout.temperature < COLDEST:
            raise ValueError(
                f"rollout.temperature={self.rollout.temperature}: vLLM samples at {COLDEST:g} instead, and pi would be "
                f"compared with another mu; set rollout.temperature={COLDEST:g} or more"
            )
        if self.rollout.staleness:
            raise ValueError(
                f"rollout.staleness={self.rollout.staleness}: verl's synchronous trainer samples from the current "
                "policy; set rollout.staleness=0, or core=mini"
            )
        if isinstance(self.model, HubModel) != isinstance(self.data, MathData):
            raise ValueError(
                f"model={self.model.name!r} with data={self.data.name!r}: published models train on mathematics, "
                "models of our own making on the tasks of their vocabulary; choose data=dapo_math for the former"
            )
        if isinstance(self.data, TaskData):
            check_length(self.data, self.rollout)
        if self.divergence.estimator == "exact" and isinstance(self.model, HubModel):
            raise ValueError(
                "divergence.estimator='exact' would carry mu's whole vocabulary for every token: choose "
                "divergence=topk_tv or topk_kl"
            )
        symbols = self.data if isinstance(self.data, TaskData) else self.model
        assert isinstance(symbols, TaskData | HubModel)
        check_top_k(self.divergence, symbols.vocabulary)
        return self


class ExactRun(RunSpec):
    """A run of the core with exactly known returns: a tabular policy on a small Markov process."""

    core: Literal["exact"]
    model: TableModel
    data: ProcessData

    @model_validator(mode="after")
    def _check_exact(self) -> Self:
        if self.rule.verl_loss is not None:
            raise ValueError(f"rule.name={self.rule.name!r} is a loss of verl's own: it needs core=verl")
        horizon = self.rollout.max_response_length
        if horizon > LONGEST:
            raise ValueError(
                f"rollout.max_response_length={horizon}: core=exact keeps the probability of every state at every "
                f"token; set {LONGEST} or less"
            )
        if self.model.stretches > horizon:
            raise ValueError(
                f"model.stretches={self.model.stretches} of a response of {horizon} tokens: set {horizon} or less"
            )
        for part, slips in (("slips", self.model.slips), ("second_mode_slips", self.model.second_mode_slips)):
            if slips >= horizon:
                raise ValueError(
                    f"model.{part}={slips:g} of {horizon} tokens: a start makes fewer slips than tokens; lower it"
                )
        if self.validation.top_p != 1:
            raise ValueError(
                f"validation.top_p={self.validation.top_p}: core=exact evaluates the untruncated softmax; set "
                "validation.top_p=1.0"
            )
        check_top_k(self.divergence, self.data.vocabulary)
        return self


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
