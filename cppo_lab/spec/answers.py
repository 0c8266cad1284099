"""What a run keeps of its answers: no part of its identity."""

from typing import Annotated, Literal

from pydantic import Field

from cppo_lab.spec.base import Spec


class AnswersSpec(Spec):
    """How much of its answers a run keeps, in the files of `cppo_lab.answers`.

    keep: False keeps nothing at all. problems: validation problems whose answers are kept at each validation; the
    outcomes are those of all problems always. groups: training groups (prompts) whose responses and tokens are kept at
    each validated step. megabytes: the most, in 2^20 bytes, that texts and tokens of a run take together.
    """

    keep: bool
    problems: Annotated[int, Field(ge=0, le=10**6)] | Literal["all"]
    groups: Annotated[int, Field(ge=0, le=10**6)]
    megabytes: Annotated[float, Field(ge=0, le=10**6)]

    @property
    def wanted_problems(self) -> int | None:
        """How many problems; None for all of them."""
        return None if self.problems == "all" else self.problems
