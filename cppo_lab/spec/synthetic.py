"""The embedded models and their arithmetic tasks."""

import math
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from cppo_lab.schema import MEAN
from cppo_lab.spec.base import Count, Name, Positive, Probability, Seed, Spec

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

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.heads % self.kv_heads:
            raise ValueError(f"heads={self.heads} must be a multiple of kv_heads={self.kv_heads}")
        if self.head_dim % 2:
            raise ValueError(f"head_dim={self.head_dim} must be even (rotary embedding turns pairs)")
        return self


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
    seed: Seed | None = None  # None: the run's seed, so that each seed of a study has its own start
    target_accuracy: Probability | None = None

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.target_accuracy is not None and self.steps <= ANNEAL_STEPS:
            raise ValueError(
                f"steps={self.steps} is the limit of a warm start that ends with {ANNEAL_STEPS} steps behind its "
                f"target_accuracy={self.target_accuracy}: raise it, or set target_accuracy to null"
            )
        return self


class SyntheticModel(Spec):
    """An embedded small transformer (Qwen3 architecture), and its initialisation."""

    name: Name
    architecture: Architecture
    warm_start: WarmStart

    def for_seed(self, seed: int) -> Self:
        """The model with the seed of its warm start set: its own if there is one, else that of the run."""
        if self.warm_start.seed is not None:
            return self
        return self.model_copy(update={"warm_start": self.warm_start.model_copy(update={"seed": seed})})

    @property
    def start_seed(self) -> int:
        """The seed of the warm start. Raises ValueError if it has not been set (see `for_seed`)."""
        if self.warm_start.seed is None:
            raise ValueError(
                "the warm start has no seed of its own: SyntheticModel.for_seed sets that of the run"
            )
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
