"""Overrides in Hydra's grammar: the only reader of their text, and the writer for values of sweep files."""

import itertools
import json
import re
import shlex
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override as HydraOverride
from hydra.core.override_parser.types import QuotedString, ValueType
from hydra.errors import HydraException

from cppo_lab.errors import UserError, unknown
from cppo_lab.sweep.file import Scalar
from cppo_lab.sweep.groups import groups

MAX_LISTED = 100_000
# Raised by Hydra's parser: ValueError for a number with more digits than Python parses, RecursionError for deep
# nesting.
UNREADABLE = (HydraException, ValueError, RecursionError)
QUOTE = "a value with spaces or special characters needs quotes"
QUOTES = " \t'\""  # around a value, and blanks
_LONGEST = 200  # characters of a value in a hint
_PARSER = OverridesParser.create()
# Words that Hydra's grammar parses as text in any context.
WORD = re.compile(r"(?!(?:true|false|null|inf|nan)$)[a-z_][a-z0-9_]*", re.IGNORECASE | re.ASCII)
_INNERMOST = re.compile(r"\$\{[^${}:]*\}")  # a reference without references in its name
_RESOLVER = re.compile(r"\$\{[^}:]*:")


@dataclass(frozen=True, slots=True)
class Override:
    """One override: `sign`, `key`, `=`, `right`.

    `sign`: empty to set a key, `+` to add it, `++` to do either, `~` to delete it. `right` is None without `=`.
    `kind`: `choice` (of a group option), `value` (a scalar or list of scalars for a key) or `other`: additions,
    deletions, packages, mappings, references, several values, and text that Hydra cannot read, whose `parsed` is None
    and whose `fault` is the reason.
    """

    text: str
    sign: str
    key: str
    right: str | None
    kind: Literal["choice", "value", "other"] = "other"
    value: Any = None
    parsed: HydraOverride | None = None
    fault: str = ""

    def sets(self, key: str) -> bool:
        """Whether it has the form `key=...`."""
        return self.text.startswith(f"{key}=")

    @property
    def names(self) -> list[str]:
        """The right side as names between commas, whatever Hydra's grammar says of them."""
        return (self.right or "").split(",")

    def values(self) -> tuple[Any, ...] | None:
        """The values of an override that lists several: `key=1,2`, `key=choice(1,2)` or `key=range(0,3)`; else None.

        Raises UserError for values that cannot be listed.
        """
        kinds = (ValueType.SIMPLE_CHOICE_SWEEP, ValueType.CHOICE_SWEEP, ValueType.RANGE_SWEEP)
        if self.parsed is None or self.parsed.value_type not in kinds:
            return None
        try:
            values = list(itertools.islice(self.parsed.sweep_iterator(), MAX_LISTED + 1))
        except (*UNREADABLE, TypeError) as error:  # e.g. a range with step 0, a sort of mixed types
            raise UserError(f"override {self.text!r}: {error}: list the values") from None
        if len(values) > MAX_LISTED:
            raise UserError(f"override {self.text!r}: lists more than {MAX_LISTED:,} values: list fewer")
        if self.parsed.value_type is ValueType.RANGE_SWEEP:  # sums of its step: 0.7999999999999999 means 0.8
            values = [float(f"{value:.12g}") if isinstance(value, float) else value for value in values]
        return tuple(value.text if isinstance(value, QuotedString) else value for value in values)

    def check(self, is_list: bool = False) -> None:
        """Refuse what is not a single value of a key: Hydra has settings under `hydra`, and follows paths in the
        names of options to files outside conf/.

        OmegaConf's resolvers (`${oc.env:...}`) are refused since they depend on machine and time. With `is_list` the
        key takes a list. Raises UserError.
        """
        if self.parsed is None:
            if self.right is None:
                raise UserError(f"override {self.text!r} is not of the form key=value")
            right = self.right
            right = f"[{right}]" if is_list and not right.startswith("[") else right
            form = shell_form(self.sign + self.key, right) or "key=\"'value'\""
            raise UserError(
                f"override {self.text!r} is not key=value as Hydra reads it ({self.fault}): {QUOTE}: {form}"
            )
        if not self.key or re.split(r"[/.]", self.key)[0] == "hydra":
            raise unknown("key", self.key, groups())
        if self.parsed.is_sweep_override():
            raise UserError(
                f"override {self.text!r}: {self.key} takes one value here; a sweep takes several: {self.key}=1,2"
            )
        if self.kind == "other" and _has_resolver(json.dumps(self.value, default=str)):
            raise UserError(f"override {self.text!r}: ${{NAME:...}} is not resolved: write the value itself")
        if (options := groups().get(self.key)) is not None:
            if self.kind != "choice" or isinstance(self.value, list | dict):
                raise UserError(
                    f"override {self.text!r}: {self.key} takes one option (valid: {', '.join(options)}): "
                    f"{self.key}=OPTION"
                )
            if self.value not in options:
                raise unknown(self.key, self.value, options)


@lru_cache(maxsize=100_000)
def parse_override(text: str) -> Override:
    """The override that a text is, also if it is none that can be composed: see `Override.check`."""
    left, equals, right = text.partition("=")
    sign = text[: len(text) - len(text.lstrip("+~"))]
    name = left.lstrip("+~")
    key, parsed, value, fault = name.partition("@")[0], None, None, ""
    try:
        parsed = _PARSER.parse_override(text)
        key, value = parsed.key_or_group or name, parsed.value()
    except UNREADABLE as error:
        fault = (str(error).strip().splitlines() or ["too deep"])[-1].partition(" expecting {")[0]
    kind: Literal["choice", "value", "other"] = "other"
    if parsed and not (sign or parsed.package is not None or parsed.is_sweep_override()):
        if key in groups():
            kind = "choice"
        # Scalars that OmegaConf does not interpret: no references, and not its missing-value marker.
        elif all(
            "${" not in item and item != "???"
            if isinstance(item, str)
            else item is None or isinstance(item, bool | int | float)
            for item in (value if isinstance(value, list) else [value])
        ):
            kind = "value"
    return Override(text, sign, key, right if equals else None, kind, value, parsed, fault)


def _has_resolver(text: str) -> bool:
    """Whether OmegaConf would call a resolver, whose name may itself contain references: `${oc.${a}:HOME}`."""
    before = ""
    while before != text:
        before, text = text, _INNERMOST.sub("_", text)
    return _RESOLVER.search(text) is not None


def override_text(key: str, value: Scalar) -> str:
    """A key of a sweep file and its value as an override."""
    return f"{key}={quote(value)}"


def shell_form(key: str, right: str) -> str:
    """An override as it is typed in a shell, whose value is the text `right`, or a list of texts if it has brackets;
    empty if there is none, or it is long.
    """
    if len(right) > _LONGEST:
        return ""
    items = re.fullmatch(r"\s*\[(.*)\]\s*", right, re.DOTALL)
    try:
        if items is None:
            text = f"{key}={quote(right.strip(QUOTES))}"
        else:
            texts = [item.strip(QUOTES) for item in items[1].split(",")]
            text = f"{key}=[{','.join(quote(item) for item in texts if item)}]"
    except UserError:  # a reference
        return ""
    if parse_override(text).parsed is None or "\n" in text:
        return ""
    return shlex.quote(text) if re.search(r"[\"$`\\!]", text) else f'"{text}"'


def quote(value: Scalar) -> str:
    """A value in Hydra's override grammar; text stays text, whatever it looks like.

    Raises UserError for text with a reference.
    """
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)
    if WORD.fullmatch(value):
        return value
    if "${" in value:
        raise UserError(f"value {value!r}: a sweep file holds plain values; ${{...}} belongs into conf/")
    # In Hydra's grammar backslashes are special only directly before a quote.
    escaped = re.sub(r"(\\*)('|$)", lambda m: m[1] * 2 + ("\\'" if m[2] else ""), value)
    return f"'{escaped}'"
