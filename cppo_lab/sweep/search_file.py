"""Search files: which constants are tuned, within which bounds, and for which objectives."""

from decimal import Decimal, InvalidOperation
from typing import Annotated, Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from cppo_lab.core_records import core_names
from cppo_lab.errors import UserError
from cppo_lab.parse import parse
from cppo_lab.spec import Spec
from cppo_lab.sweep.declared import ANY_CORE, Declared, Scalar

MAX_TRIALS = 100_000  # a study creates all of them in advance
Objective = Literal["final_score", "best_score", "mean_score", "stability"]


def _divides(step: float, low: float, high: float) -> bool:
    """Whether `step` divides `high` - `low` exactly in decimal arithmetic."""
    try:
        return step > 0 and not (Decimal(str(high)) - Decimal(str(low))) % Decimal(str(step))
    except InvalidOperation:  # nan, or more steps than can be counted
        return False


class Interval(Spec):
    """Numbers from `low` to `high`, both included; on a logarithmic scale, or in steps, or neither."""

    low: int | float
    high: int | float
    log: bool = False
    step: int | float | None = None

    @model_validator(mode="after")
    def _check(self) -> Self:
        low, high, step = self.low, self.high, self.step
        if low >= high:
            raise ValueError(
                f"low={low} must be less than high={high}: exchange them, or put the key into settings"
            )
        if self.log and low <= 0:
            raise ValueError(f"log=True with low={low}: a logarithmic scale begins above 0; raise low")
        if self.log and step is not None:
            raise ValueError(
                f"log=True with step={step}: a logarithmic scale has no steps; remove one of the two"
            )
        if step is not None and not _divides(step, low, high):
            raise ValueError(f"step={step} must be above 0 and divide high - low = {high} - {low} evenly")
        return self

    @property
    def ends(self) -> tuple[Scalar, ...]:
        """The values at which the bounds are checked."""
        return (self.low, self.high)


class Choices(Spec):
    """One of several values."""

    choices: Annotated[tuple[Scalar, ...], Field(min_length=2)]

    @model_validator(mode="after")
    def _check(self) -> Self:
        if len({repr(value) for value in self.choices}) < len(self.choices):
            raise ValueError(f"choices={list(self.choices)}: a value appears twice; remove one")
        return self

    @property
    def ends(self) -> tuple[Scalar, ...]:
        """The values at which the bounds are checked."""
        return self.choices


Parameter = Interval | Choices


class SamplerSpec(Spec):
    """How points are proposed. The first `startup` points are random; for NSGA-II this is the population size."""

    name: Literal["tpe", "nsga2", "random"] = "tpe"
    seed: Annotated[int, Field(ge=0, lt=2**31)] = 0
    startup: Annotated[int, Field(ge=2)] = 10


class PrunerSpec(Spec):
    """When a trial is pruned: never before `startup` trials are complete, or before its step `warmup_steps`."""

    name: Literal["median", "hyperband", "none"] = "none"
    startup: Annotated[int, Field(ge=0)] = 5
    warmup_steps: Annotated[int, Field(ge=0)] = 0


class SearchSpec(Spec):
    """What is tuned. `parameters`: configuration key -> an interval or choices, or one of these for each core."""

    trials: Annotated[int, Field(ge=1, le=MAX_TRIALS)]
    parameters: Annotated[dict[str, dict[str, Any]], Field(min_length=1)]
    objectives: Annotated[tuple[Objective, ...], Field(min_length=1)]
    sampler: SamplerSpec = Field(default_factory=SamplerSpec)
    pruner: PrunerSpec = Field(default_factory=PrunerSpec)

    @model_validator(mode="after")
    def _check(self) -> Self:
        if len(set(self.objectives)) < len(self.objectives):
            raise ValueError(f"objectives={list(self.objectives)}: one appears twice; remove it")
        if len(self.objectives) > 1 and self.pruner.name != "none":
            raise ValueError(
                f"pruner.name={self.pruner.name!r} with objectives={list(self.objectives)}: Optuna prunes for a single "
                "objective only; set pruner: {name: none}"
            )
        return self


class Search(Declared):
    """What a search file declares.

    Every trial trains one model with `settings`, once for each of `seeds`, at a point of the search space; objectives
    are averaged over the seeds. `models` names one model, or one for each trainer core.
    """

    models: dict[str, str]
    settings: dict[str, Scalar] = Field(default_factory=dict)
    seeds: Annotated[tuple[Annotated[int, Field(ge=0, lt=2**31)], ...], Field(min_length=1)] = (0,)
    search: SearchSpec

    @field_validator("models", mode="before")
    @classmethod
    def _one_for_each_core(cls, value: Any) -> Any:
        lists: dict[str, Any] = value if isinstance(value, dict) else {ANY_CORE: value}
        for names in lists.values() if lists else [None]:
            if not (isinstance(names, list) and len(names) == 1 and isinstance(names[0], str)):
                raise ValueError(
                    f"models={value!r} must be a list of exactly one name, or such a list for each core: a search "
                    "tunes for one model"
                )
        return {core: names[0] for core, names in lists.items()}

    @model_validator(mode="after")
    def _check(self) -> Self:
        if len(set(self.seeds)) < len(self.seeds):
            raise ValueError(f"seeds={list(self.seeds)}: one appears twice; remove it")
        for key in self.settings.keys() & self.search.parameters.keys():
            raise ValueError(
                f"settings.{key}={self.settings[key]!r} is tuned by search.parameters too: keep one of them"
            )
        return self

    def model_of(self, core: str) -> str:
        """The model to train with `core`.

        Raises UserError if the search has none for it.
        """
        model = self.models.get(core) or self.models.get(ANY_CORE)
        if model is None:
            raise UserError(
                f"search {self.source} has no models for core={core} (valid: {', '.join(self.models)})"
            )
        return model

    def parameters_of(self, core: str) -> dict[str, Parameter]:
        """The search space with `core`: configuration key -> interval or choices.

        Raises UserError for a parameter that is neither an interval nor choices, or has no bounds for the core.
        """
        return {key: self._parameter(key, values, core) for key, values in self.search.parameters.items()}

    def _parameter(self, key: str, values: dict[str, Any], core: str) -> Parameter:
        place = f"search {self.source}: search.parameters.{key}"
        if values and values.keys() <= set(core_names()):
            for name, inner in values.items():
                if not isinstance(inner, dict):
                    raise UserError(
                        f"{place}.{name}={inner!r} must be {{low: ..., high: ...}} or {{choices: [...]}}"
                    )
            if core not in values:
                raise UserError(
                    f"{place} has no bounds for core={core} (valid: {', '.join(values)}): add {core}: {{...}}"
                )
            place, values = f"{place}.{core}", values[core]
        return parse(Choices, values, place) if "choices" in values else parse(Interval, values, place)
