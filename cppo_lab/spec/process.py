"""A small Markov process with a known reward, and the tabular policy that core `exact` trains on it."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from cppo_lab.schema import MEAN
from cppo_lab.spec.base import Count, Finite, Name, NonNegative, Positive, Spec

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

    @model_validator(mode="after")
    def _check(self) -> Self:
        if not self.benchmarks or len(set(self.benchmarks)) != len(self.benchmarks):
            raise ValueError(f"benchmarks={list(self.benchmarks)} must be one or more distinct names")
        if MEAN in self.benchmarks:
            raise ValueError(
                f"benchmarks={list(self.benchmarks)}: {MEAN!r} names the mean over them; choose another"
            )
        if len(self.benchmarks) > self.vocabulary - 1:
            raise ValueError(
                f"benchmarks={list(self.benchmarks)} are more than the {self.vocabulary - 1} ordinary symbols, which "
                "are dealt out to them: raise vocabulary, or name fewer"
            )
        return self


class TableModel(Spec):
    """A log-linear policy with four tables of logits, its initial parameters, and the mismatch of its sampler.

    The start makes `slips` wrong tokens per response on average in the first mode and `second_mode_slips` in the
    second, and takes the fork with probability `fork`; `start_noise` is the standard deviation of a normal draw that
    the run's seed adds to every parameter. The policy knows its position as one of `stretches` equal parts of the
    response. `mismatch` scales the Student-t noise (3 degrees of freedom) on the sampler's logits.
    """

    name: Name
    stretches: Annotated[int, Field(ge=1, le=64)]
    slips: Positive
    second_mode_slips: Positive
    fork: Annotated[Finite, Field(gt=0, lt=1)]
    start_noise: NonNegative
    mismatch: NonNegative


Horizon = Annotated[Count, Field(le=LONGEST)]
