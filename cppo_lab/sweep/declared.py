"""The common base of sweeps, studies and searches: their names, and the plain values in their files."""

import re
from typing import Annotated

from pydantic import AfterValidator, Field, PrivateAttr

from cppo_lab.spec import Spec

Scalar = str | int | float | bool | None
ANY_CORE = "any"  # key of a list for all trainer cores


def _feed(value: str) -> str:
    if not re.fullmatch(r"(Table|Figure) [1-9][0-9]*", value):
        raise ValueError("must be a table or figure of the paper, such as Table 1 or Figure 4")
    return value


Feed = Annotated[str, AfterValidator(_feed)]
Identifier = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]*$")]


class Declared(Spec):
    """The fields of every kind of sweep file."""

    name: Identifier
    title: str
    question: str
    feeds: tuple[Feed, ...] = ()  # tables and figures of the paper
    _source: str = PrivateAttr("")

    @property
    def source(self) -> str:
        """Its file, or its name if it is shipped with the product, for messages."""
        return self._source or self.name
