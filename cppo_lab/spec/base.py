"""The base of all configs (immutable, typed, no unknown keys) and their fingerprint."""

import hashlib
import json
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from cppo_lab.plugins import NAME


def _one_zero(value: float) -> float:
    """Normalise -0.0, which equals 0.0 but would be written differently, so that one run would have two ids."""
    return value + 0.0


Finite = Annotated[float, Field(allow_inf_nan=False), AfterValidator(_one_zero)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NonNegative = Annotated[Finite, Field(ge=0)]
Probability = Annotated[Finite, Field(ge=0, le=1)]
Count = Annotated[int, Field(ge=1, le=10**9)]  # an upper bound, so that no loop over a count runs without end
Seed = Annotated[int, Field(ge=0, lt=2**31)]
# Names become parts of file names and metric names.
Name = Annotated[str, Field(pattern=f"^{NAME.pattern}$")]


class Spec(BaseModel):
    """Base of all configs: immutable, no unknown keys, no silent conversion of text to numbers."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, ser_json_inf_nan="constants")


def canonical(spec: Spec) -> str:
    """The canonical JSON text of a config: sorted keys, without values that do not apply (None).

    So a constant that a later rule adds does not change older texts.
    """
    return json.dumps(spec.model_dump(mode="json", exclude_none=True), sort_keys=True, separators=(",", ":"))


def digest(text: str) -> str:
    """First 12 hex digits of SHA-256."""
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def fingerprint(spec: Spec) -> str:
    """The digest of a config's canonical JSON."""
    return digest(canonical(spec))
