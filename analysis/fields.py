"""JSON files from a store, as models or dataclasses of pydantic: errors name the file and the field."""

from typing import Annotated, TypeVar

from pydantic import Field, TypeAdapter, ValidationError

from cppo_lab.errors import UserError, one_line

REMEDY = "the run was recorded by other code than this; run it again, or delete it"

Count = Annotated[int, Field(ge=0)]
Number = Annotated[float, Field(allow_inf_nan=False)]
Model = TypeVar("Model")


def parsed(kind: type[Model], content: str | bytes, what: str, remedy: str = REMEDY) -> Model:
    """The content of the file `what`; `remedy` ends each message. Raises UserError if it is no such model."""
    try:
        return TypeAdapter(kind).validate_json(content, strict=True)
    except ValidationError as error:
        [first, *_] = error.errors()
        place, value = ".".join(map(str, first["loc"])), first["input"]
        shown = "" if isinstance(value, dict | list) or not place else f"={value!r:.60}"
        raise UserError(
            one_line(f"{what} has {place or 'no JSON'}{shown}: {first['msg']}: {remedy}")
        ) from None
