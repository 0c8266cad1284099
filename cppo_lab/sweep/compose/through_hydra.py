"""The only module that uses Hydra: its override grammar, its composition, and its errors reworded."""

import itertools
import logging
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any, Literal

import yaml
from hydra import compose as hydra_compose
from hydra import initialize_config_dir
from hydra.core.config_store import ConfigStore
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override as HydraOverride
from hydra.core.override_parser.types import OverrideType, QuotedString, ValueType
from hydra.errors import ConfigCompositionException, HydraException, MissingConfigException
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from cppo_lab.core_records import core_of, other_cores
from cppo_lab.errors import UserError, unknown
from cppo_lab.launch.launchers import launcher_of, other_launchers
from cppo_lab.sweep.groups import CONF, added_rules, groups

MAX_LISTED = 100_000
# Raised inside Hydra for overrides that parse but are invalid, such as `+rule=[1,2]`.
_HYDRAS_OWN = (TypeError, AttributeError, LookupError, AssertionError)
# Raised by Hydra's parser: ValueError for a number with more digits than Python parses, RecursionError for deep
# nesting.
_UNREADABLE = (HydraException, ValueError, RecursionError)
RESOLVER = re.compile(r"\$\{[^}:]*:")
KEYS = "`cppo show SWEEP` prints the valid keys"
QUOTE = "a value with spaces or special characters needs quotes: key=\"'value'\""


class UnknownKey(UserError):
    """An override names a key that the composed configuration does not have; `key` is its dotted name."""

    def __init__(self, key: str, text: str) -> None:
        super().__init__(text)
        self.key = key


@dataclass(frozen=True, slots=True)
class Override:
    """One override, parsed with Hydra's grammar.

    `kind`: `choice` (of a group option), `value` (a scalar or list of scalars for a key) or `other`: additions,
    deletions, packages, mappings, references, and invalid text.
    """

    key: str
    value: Any
    kind: Literal["choice", "value", "other"]


@lru_cache(maxsize=100_000)
def parsed(text: str) -> Override:
    """Parse an override. Anything unusual is `other`, and is left to Hydra to compose or reject."""
    named = re.split(r"[=@]", text.lstrip("+~"), maxsplit=1)[0]
    try:
        found = _parser().parse_override(text)
    except _UNREADABLE:
        return Override(named, None, "other")
    if found.type is not OverrideType.CHANGE or found.package is not None or found.is_sweep_override():
        return Override(named, None, "other")
    key, value = found.key_or_group, found.value()
    if key in groups():
        return Override(key, value, "other" if isinstance(value, dict) else "choice")
    plain = all(map(_is_plain, value if isinstance(value, list) else [value]))
    return Override(key, value, "value" if plain else "other")


def listed(text: str) -> tuple[Any, ...] | None:
    """The values of an override that lists several: `key=1,2`, `key=choice(1,2)` or `key=range(0,3)`; else None."""
    try:
        found = _parser().parse_override(text)
    except _UNREADABLE:
        return None
    kinds = (ValueType.SIMPLE_CHOICE_SWEEP, ValueType.CHOICE_SWEEP, ValueType.RANGE_SWEEP)
    if found.value_type not in kinds:
        return None
    try:
        values = list(itertools.islice(found.sweep_iterator(), MAX_LISTED + 1))
    except (*_UNREADABLE, TypeError) as error:  # e.g. a range with step 0, a sort of mixed types
        raise UserError(f"override {text!r}: {error}: list the values") from None
    plain = tuple(value.text if isinstance(value, QuotedString) else value for value in values)
    if len(plain) > MAX_LISTED:
        raise UserError(f"override {text!r}: lists more than {MAX_LISTED:,} values: list fewer")
    return plain


@cache
def _parser() -> OverridesParser:
    return OverridesParser.create()


def _is_plain(value: object) -> bool:
    """Whether it is a scalar that OmegaConf does not interpret: not a reference, and not its missing-value marker."""
    if isinstance(value, str):
        return "${" not in value and value != "???"
    return value is None or isinstance(value, bool | int | float)


def composed(overrides: Sequence[str], resolved: bool) -> dict[str, Any]:
    """Hydra's composition as plain values; `${...}` resolved or unresolved.

    Raises UserError for an override that does not parse, an unknown group option or key.
    """
    for text in overrides:
        _check(text)
    for name, content in added_rules().items():
        ConfigStore.instance().store(name, dict(content), group="rule", package="_global_")
    for text in overrides:
        _add_installed(parsed(text))
    # Hydra logs a warning for each file without a schema; we validate ourselves.
    logging.getLogger("hydra").setLevel(logging.ERROR)
    try:
        with initialize_config_dir(str(CONF), version_base="1.3"):
            config = hydra_compose("config", list(overrides))
        values = OmegaConf.to_container(config, resolve=resolved)
    except MissingConfigException as error:
        raise _unknown_option(error) from None
    except ConfigCompositionException as error:
        raise _unknown_key(error, overrides) from None
    except (*_UNREADABLE, *_HYDRAS_OWN, OmegaConfBaseException) as error:
        first_line = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise UserError(f"overrides {' '.join(overrides)!r}: {first_line}: {KEYS}") from None
    assert isinstance(values, dict)
    return {str(key): value for key, value in values.items()}


def _add_installed(override: Override) -> None:
    """Register with Hydra the configuration of a core or launcher of another package that an override chooses."""
    name, content = override.value, {}
    if override.key == "core" and name in other_cores():
        content = {"core": name, **core_of(name).config}
    elif override.key == "launcher" and name in other_launchers():
        content = {"launcher": {"name": name, "workers": None, "threads": 1, **launcher_of(name).config}}
    if content:
        ConfigStore.instance().store(name, content, group=override.key, package="_global_")


def groups_set_by(rule: str) -> tuple[str, ...]:
    """The other groups for which the file of `rule` in conf/rule chooses an option."""
    return _groups_set_by(rule) if rule in groups()["rule"] else ()


@cache
def _groups_set_by(rule: str) -> tuple[str, ...]:
    values = added_rules().get(rule)
    if values is None:
        values = yaml.safe_load((CONF / "rule" / f"{rule}.yaml").read_text(encoding="utf-8"))
    defaults = values.get("defaults", [])
    return tuple(key.removeprefix("override /") for entry in defaults for key in entry)


def _check(text: str) -> None:
    """Reject overrides that Hydra would not treat as a plain value.

    Hydra has its own settings under `hydra`, follows paths in option names to files outside conf/, and resolves
    `${oc.env:...}` and the like to values that depend on machine and time. Raises UserError.
    """
    try:
        found = _parser().parse_override(text)
    except (HydraException, ValueError, RecursionError) as error:
        said = (str(error).strip().splitlines() or ["too deep"])[-1].partition(" expecting {")[0]
        raise UserError(f"override {text!r} is not key=value as Hydra reads it ({said}): {QUOTE}") from None
    key = found.key_or_group
    if not key or key.partition("/")[0].partition(".")[0] == "hydra":
        raise unknown("key", key, groups())
    if found.is_sweep_override():
        raise UserError(f"override {text!r}: {key} takes one value here; a sweep takes several: {key}=1,2")
    if RESOLVER.search(text):
        raise UserError(f"override {text!r}: ${{NAME:...}} is not resolved: write the value itself")
    if key in groups():
        _check_option(text, found)


def _check_option(text: str, found: HydraOverride) -> None:
    group, valid = found.key_or_group, groups()[found.key_or_group]
    option = None if found.is_delete() else found.value()
    if found.type is not OverrideType.CHANGE or found.package is not None or isinstance(option, list | dict):
        raise UserError(
            f"override {text!r}: {group} takes one option (valid: {', '.join(valid)}): {group}=OPTION"
        )
    if option not in valid:
        raise unknown(group, option, valid)


def _unknown_option(error: MissingConfigException) -> UserError:
    group, _, option = str(error.missing_cfg_file).rpartition("/")
    return unknown(group or "configuration", option, groups().get(group, []))


def _unknown_key(error: ConfigCompositionException, overrides: Sequence[str]) -> UserError:
    """Hydra's message is 'Could not override KEY' for a key, and 'no match in the defaults list' for a group."""
    match = re.search(r"Could not override '([^']+)'", str(error))
    if match is None:
        return UserError(f"overrides {' '.join(overrides)!r}: {str(error).strip().splitlines()[0]}: {KEYS}")
    key = match[1].split("@")[0]
    base = [text for text in overrides if re.split(r"[=@]", text.lstrip("+~"), maxsplit=1)[0] in groups()]
    if any(re.split(r"[=@]", text)[0] == key for text in base) or len(base) == len(overrides):
        return UserError(f"override of group {key!r}: {str(error).strip().splitlines()[0]}")
    known = composed(base, resolved=True)
    if key.startswith("launcher.container") and "container" not in known["launcher"]:
        return container_is_of_slurm()
    names = dotted(known)
    section = key.rpartition(".")[0]
    siblings = [name for name in names if section and name.rpartition(".")[0] == section]
    valid = siblings or [*groups(), *{name.partition(".")[0] for name in names}]
    return UnknownKey(key, str(unknown("key", key, set(valid))))


def container_is_of_slurm() -> UserError:
    """The error for a container with another launcher, whose runs share the environment of `cppo` itself."""
    return UserError(
        "launcher.container needs launcher=slurm: choose it, or start `cppo` itself within the container (docs/verl.md)"
    )


def dotted(values: dict[str, Any], before: str = "") -> list[str]:
    """Dotted names of all leaves."""
    names = []
    for key, value in values.items():
        names += dotted(value, f"{before}{key}.") if isinstance(value, dict) else [f"{before}{key}"]
    return names
