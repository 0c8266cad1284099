"""Plain values -> typed configs, with messages that name key, value and remedy."""

import json
import re
from collections import Counter
from functools import cache
from typing import Any, TypeVar, get_args

from pydantic import ValidationError

from cppo_lab.core_records import core_of
from cppo_lab.errors import together, unknown
from cppo_lab.spec import TAGS, RunSpec, Spec

S = TypeVar("S", bound=Spec)

# In our words what pydantic says of a wrong type.
MUST_BE = {
    "string_type": "text: quote it",
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "finite_number": "a finite number",
    "bool_type": "true or false",
    "dict_type": "a mapping: KEY: VALUE",
    "model_type": "a mapping: KEY: VALUE",
    "tuple_type": "a list: [...]",
    "list_type": "a list: [...]",
}
_PLAIN = r"[^'\"$`\\!{}\[\]\n]+"  # text that needs no escape, in a shell or an override
_NUMBERS = ("int_type", "int_from_float", "float_type", "finite_number")
# pydantic's names for the kinds that a value may be of, at the end of a fault's place.
_KINDS = {
    "str": "text",
    "constrained-str": "text on one line",
    "int": "a whole number",
    "constrained-int": "a whole number",
    "float": "a number",
    "bool": "true or false",
}


def parse(kind: type[S], values: dict[str, Any], where: str) -> S:
    """Validate plain values into a config. `where` names their source in messages.

    Raises UserError for all faults together, naming key, value and what is valid.
    """
    try:
        return kind.model_validate_json(json.dumps(values))
    except ValidationError as error:
        cause, foreign = error, _foreign(error.errors())
    lines = [
        f"{where}: {section}={option!r} has the keys of other cores: choose another option of the group `{section}`, "
        "or another core"
        for section, option in foreign.items()
    ]
    faults: list[Any] = [
        fault
        for fault in cause.errors()
        if fault["loc"][:1] not in [(section,) for section in foreign]
        # pydantic counts the valid items; the others have other faults
        and not (fault["type"] == "too_short" and len(fault["input"]) >= fault["ctx"]["min_length"])
    ]
    # A misspelt key is also a missing key: its name says more, and comes first.
    for fault in sorted(faults, key=lambda fault: fault["type"] != "extra_forbidden"):
        no_kind = _of_no_kind(kind, fault, faults, where) if len(fault["loc"]) > 1 else ""
        lines.append(no_kind or _explain(kind, fault, where))
    raise together(lines, f"{where}: ") from cause


def _foreign(faults: list[Any]) -> dict[str, str]:
    """Section -> its option, where that is made for other cores: several keys are unknown, and several are missing."""
    counts = Counter((fault["loc"][0], fault["type"]) for fault in faults if len(fault["loc"]) == 2)
    return {
        fault["loc"][0]: fault["input"]["name"]
        for fault in faults
        if fault["type"] == "missing" and len(fault["loc"]) == 2 and "name" in fault["input"]
        if min(counts[fault["loc"][0], name] for name in ("missing", "extra_forbidden")) > 2
    }


@cache
def run_kind(core: str) -> type[RunSpec]:
    """The kind of run that the core called `core` trains.

    Raises UserError for an unknown core, or one whose settings are none.
    """
    return core_of(core).settings_kind(RunSpec)


def parse_run(values: dict[str, Any], where: str) -> RunSpec:
    """Validate plain values into a run of the core that they name.

    Raises UserError as `parse`.
    """
    return parse(run_kind(str(values.get("core"))), values, where)


def _of_no_kind(kind: type[Spec], fault: Any, faults: list[Any], where: str) -> str:
    """A value that may be of several kinds, and is of none: of each pydantic has a fault. Empty for any other fault."""
    path = [str(part) for part in fault["loc"][:-1]]
    tried = [
        str(alternative["loc"][-1])
        for alternative in faults
        if alternative["loc"][:-1] == fault["loc"][:-1] and alternative["input"] == fault["input"]
    ]
    words = [_KINDS.get(name) or re.sub(r"literal\[(.*)\]", r"\1", name) for name in tried]
    if len(words) == 1 or words == tried:
        return ""
    if valid := _interval(kind, path):
        words = [f"{word} in {valid}" if "number" in word else word for word in words]
    return f"{where}: {_dotted(path)}={fault['input']!r}: must be {' or '.join(words)}"


def _explain(kind: type[Spec], fault: Any, where: str) -> str:
    """One line from a pydantic fault."""
    path, what, value = [str(part) for part in fault["loc"]], fault["type"], fault["input"]
    key = _dotted(path)
    if what == "extra_forbidden":
        fields = _spec_at(kind, path[:-1]).model_fields
        siblings = [_dotted([*path[:-1], field.alias or name]) for name, field in fields.items()]
        others = {"seed": "axes.seed"} if "axes" in siblings else {}  # in a sweep file
        if others and key.partition(".")[0] in RunSpec.model_fields.keys() - {"core", "model"}:
            others[key] = f"axes.{key}"
        return f"{where}: {unknown('key', key, siblings, others)}"
    if what == "json_invalid":  # half of a character: the command line, or a file, is not UTF-8
        return f"{where}: a value is not UTF-8 text: {fault['ctx']['error']}: type it again"
    if what == "missing":
        return f"{where}: {key} is missing: add it"
    if not key and what in MUST_BE:
        return f"{where}: must be {MUST_BE[what]}"
    text = fault["msg"].removeprefix("Value error, ")
    if not key or (what == "value_error" and isinstance(value, dict)):
        return f"{where}: {f'{key}: ' if key else ''}{text}"
    valid = _interval(kind, path)
    if what == "string_pattern_mismatch":
        text = f"must match {fault['ctx']['pattern']}"
    elif what == "literal_error":
        text = f"must be {fault['ctx']['expected']}".replace("True", "true")
    elif what in MUST_BE:
        text = (
            "must be text"
            if isinstance(value, list | dict) and what == "string_type"
            else f"must be {MUST_BE[what]}"
        )
        section = "" if where == "configuration" else f"{where}."
        # On the command line; a shell takes away the quotes around it.
        if what in ("tuple_type", "list_type") and " " not in where and re.fullmatch(_PLAIN, str(value)):
            text = f"must be a list: \"{section}{key}=['{value}']\""
    elif what in ("too_short", "string_too_short"):
        least = fault["ctx"]["min_length"]
        text = f"must have {least} items or more" if least > 1 else "must not be empty"
    elif valid:
        text = f"must be in {valid}"
    if what in _NUMBERS:
        text += f" in {valid}" if valid else ""
        if str(value).lower().lstrip("+-") == ".inf":
            text += " (infinity is `inf` on the command line, `.inf` in YAML)"
        if ends := re.fullmatch(r"(\d{1,9})(?:-|\.\.+|:)(\d{1,9})", str(value)):
            text += (
                f"; several: {key}=range({ends[1]},{int(ends[2]) + 1}) on the command line, a list in YAML"
            )
    text = text.replace("Input should be", "must be")
    named = "" if text.startswith((f"{key}=", f"unknown {key} ")) else f"{key}={value!r}: "
    return f"{where}: {named}{text}"


def _dotted(path: list[str]) -> str:
    """The key as its user wrote it: without the tags by which pydantic tells kinds apart."""
    return ".".join(part for part in path if part not in TAGS and part != "[key]")


def _spec_at(kind: type[Spec], path: list[str]) -> type[Spec]:
    """The config class at a dotted path, as far as it leads through config classes."""
    for name in path:
        if name.isdigit():  # an item of the list before it
            continue
        annotations = {field.alias or key: field.annotation for key, field in kind.model_fields.items()}
        inner = TAGS.get(name) or annotations.get(name)
        kinds = [
            candidate
            for part in (inner, *get_args(inner))
            for candidate in [getattr(part, "__origin__", part)]  # each value of a mapping has a validator
            if isinstance(candidate, type) and issubclass(candidate, Spec)
        ]
        if not kinds:
            if get_args(inner):  # one of several kinds: its tag comes next
                continue
            break
        kind = kinds[0]
    return kind


def _interval(kind: type[Spec], path: list[str]) -> str:
    """The valid interval of a number, such as `(0, 1]`; empty if the field is not bounded."""
    path = [name for name in path if not name.isdigit()]  # of a list: what its items may be
    field = _spec_at(kind, path[:-1]).model_fields.get(path[-1])
    bounds: dict[str, Any] = {}
    if field is not None:
        parts = [field.annotation, *get_args(field.annotation)]
        metadata = [item for part in parts for item in getattr(part, "__metadata__", ())] + list(
            field.metadata
        )
        for item in metadata:
            for holder in (item, *getattr(item, "metadata", ())):
                bounds |= {
                    name: getattr(holder, name) for name in ("gt", "ge", "lt", "le") if hasattr(holder, name)
                }
    if not bounds:
        return ""
    low = f"({bounds['gt']}" if "gt" in bounds else f"[{bounds['ge']}" if "ge" in bounds else "(-inf"
    high = f"{bounds['lt']})" if "lt" in bounds else f"{bounds['le']}]" if "le" in bounds else "inf)"
    return f"{low}, {high}"
