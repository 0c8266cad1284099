"""Published models and the mathematics that they are trained on."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from cppo_lab.schema import MEAN
from cppo_lab.spec.base import Count, Name, Spec


class HubModel(Spec):
    """A checkpoint of the Hugging Face hub, by repository and revision.

    `parameters` and `active_parameters` (per token; fewer than all in a mixture of experts) are in billions; estimates
    of time and memory need them before the model is downloaded.
    """

    name: Name
    repository: Annotated[str, Field(pattern=r"^[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*$")]
    revision: str
    parameters: Annotated[float, Field(gt=0)]
    active_parameters: Annotated[float, Field(gt=0)]
    layers: Count
    width: Count
    kv_width: Count  # key-value heads x head dimension
    vocabulary: Count
    context: Count  # context length in tokens


class MathData(Spec):
    """Training prompts and benchmarks as `cppo data prepare` lays them out (docs/data.md)."""

    name: Name
    training: Literal["dapo_math_17k"]
    benchmarks: tuple[Name, ...]
    max_prompt_length: Count  # tokens; longer prompts are left out

    @model_validator(mode="after")
    def _check(self) -> Self:
        if (
            not self.benchmarks
            or len(set(self.benchmarks)) != len(self.benchmarks)
            or MEAN in self.benchmarks
        ):
            raise ValueError(
                f"benchmarks={list(self.benchmarks)} must be one or more distinct names, {MEAN!r} not among them"
            )
        return self
