"""The settings for recording answers, which are not part of a run's identity."""

from typing import Annotated, Literal

from pydantic import Field

from cppo_lab.spec.base import Spec


class AnswersSpec(Spec):
    """How much of its answers a run records, in the files of `cppo_lab.answers`.

    keep: False records nothing. problems: the number of validation problems whose answers are recorded at each
    validation; outcomes always cover all problems. groups: the number of training groups (prompts) whose responses and
    tokens are recorded at each validated step. megabytes: the limit of a run's texts and tokens together, in 2^20
    bytes.
    """

    keep: bool
    problems: Annotated[int, Field(ge=0, le=10**6)] | Literal["all"]
    groups: Annotated[int, Field(ge=0, le=10**6)]
    megabytes: Annotated[float, Field(ge=0, le=10**6)]

    @property
    def wanted_problems(self) -> int | None:
        """How many problems; None for all of them."""
        return None if self.problems == "all" else self.problems
