"""Hydra's only home: from override strings to typed configs."""

import copy
import logging
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import yaml
from hydra import compose as hydra_compose
from hydra import initialize_config_dir
from hydra.errors import ConfigCompositionException, HydraException, MissingConfigException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from cppo_lab.errors import UserError, unknown
from cppo_lab.launch.base import LauncherSpec
from cppo_lab.parse import parse, parse_run
from cppo_lab.spec import LayoutSpec, MiniRun, PathsSpec, RunSpec, Spec, TaskData, VerlRun
from cppo_lab.sweep.groups import CONF, groups


class TrackingSpec(Spec):
    """Where runs are tracked when MLFLOW_TRACKING_URI is not set."""

    uri: str


@dataclass(frozen=True)
class Composed:
    """One composed configuration: what to train, where, how to launch it, where to track it."""

    run: MiniRun | VerlRun
    layout: LayoutSpec
    paths: PathsSpec
    launcher: LauncherSpec
    tracking: TrackingSpec


class UnknownKey(UserError):
    """An override names a key that the composed configuration does not have; `key` is its dotted name."""

    def __init__(self, key: str, text: str) -> None:
        super().__init__(text)
        self.key = key


def compose(overrides: Sequence[str]) -> Composed:
    """Compose and validate one configuration.

    Raises UserError for an override that does not parse, an unknown group option, key, or value.
    """
    # Runs of several seeds differ in nothing else, unless an override refers to the seed: they are composed once.
    refers = any("${seed}" in text for text in overrides)
    seeds = [] if refers else [text for text in overrides if re.fullmatch(r"seed=\d+", text)]
    values = resolve(tuple(text for text in overrides if text not in seeds))
    if seeds:
        values["seed"] = int(seeds[-1].partition("=")[2])
    values.pop("trust_region", None)  # per-model constants: the rule has taken what it needs
    launcher = parse(LauncherSpec, values.pop("launcher", {}), "launcher")
    tracking = parse(TrackingSpec, values.pop("tracking", {}), "tracking")
    layout = parse(LayoutSpec, values.pop("layout", {}), "layout")
    paths = parse(PathsSpec, values.pop("paths", {}), "paths")
    _check_model(values)
    run = parse_run(values, "configuration")
    _check_constants(run)
    if isinstance(run, VerlRun):
        _check_length(run, layout)
    return Composed(run, layout, paths, launcher, tracking)


def resolve(overrides: Sequence[str]) -> dict[str, Any]:
    """The composed configuration as plain values, interpolations resolved."""
    return copy.deepcopy(_resolve(tuple(overrides)))


@cache
def _resolve(overrides: tuple[str, ...]) -> dict[str, Any]:
    # Hydra logs a warning for each file without a schema; validation is ours.
    logging.getLogger("hydra").setLevel(logging.ERROR)
    try:
        with initialize_config_dir(str(CONF), version_base="1.3"):
            config = hydra_compose("config", list(overrides))
        values = OmegaConf.to_container(config, resolve=True)
    except MissingConfigException as error:
        raise _unknown_option(error) from None
    except ConfigCompositionException as error:
        raise _unknown_key(error, overrides) from None
    except (HydraException, OmegaConfBaseException, ValueError) as error:
        first_line = str(error).strip().splitlines()[0]
        raise UserError(f"overrides {' '.join(overrides)!r}: {first_line}") from None
    assert isinstance(values, dict)
    return {str(key): value for key, value in values.items()}


def _check_model(values: Mapping[str, Any]) -> None:
    """Say which core a published model needs before its keys are compared with those of another kind of model."""
    model, core = values.get("model"), values.get("core")
    if core == "mini" and isinstance(model, dict) and "repository" in model:
        raise UserError(
            f"configuration: model={model.get('name')!r} is a published model, which core='mini' cannot train: add "
            "core=verl, or choose a model of its own"
        )


def _check_length(run: VerlRun, layout: LayoutSpec) -> None:
    """A micro-batch holds at least one longest sequence; verl would say so only in the first update that meets one."""
    data = run.data
    prompt = data.prompt_length if isinstance(data, TaskData) else data.max_prompt_length
    longest = prompt + run.rollout.max_response_length
    group = layout.sequence_parallel * (layout.megatron.context if layout.megatron else 1)
    if layout.tokens_per_device * group < longest:
        raise UserError(
            f"configuration: layout.tokens_per_device={layout.tokens_per_device} on {group} devices per sequence is "
            f"less than the longest sequence, {prompt} + {run.rollout.max_response_length} tokens: set "
            f"layout.tokens_per_device={-(-longest // group)} or more, or raise layout.sequence_parallel"
        )


def _check_constants(run: RunSpec) -> None:
    """A rule has exactly the constants that its file in conf/rule names; those that are null there may stay null.

    verl's own losses have theirs in `rule.options`, under verl's names.
    """
    name = run.rule.name
    if name not in groups()["rule"]:
        raise unknown("rule", name, groups()["rule"])
    _compare(name, "rule", _declared_constants(name), run.rule.parameters())
    _compare(name, "rule.options", _declared_constants(name, "options"), run.rule.options or {})


def _compare(name: str, section: str, declared: Mapping[str, bool], given: Mapping[str, Any]) -> None:
    """The constants of one section against those that the file of the rule names."""
    for key, needed in declared.items():
        if needed and key not in given:
            raise UserError(f"configuration: {section}.{key}=null: rule {name!r} needs a value")
    for key in given:
        if key not in declared:
            kind = "constant" if section == "rule" else "option"
            raise UserError(
                f"configuration: rule {name!r} has no {kind} {key!r} (valid: {', '.join(declared) or 'none'})"
            )


@cache
def _declared_constants(name: str, section: str = "") -> dict[str, bool]:
    """Constants of a rule's file, or its options, and whether each must have a value."""
    rule = resolve([f"rule={name}"])["rule"]
    values = rule.get(section) or {} if section else rule
    return {key: value is not None for key, value in values.items() if key not in ("name", "options")}


@cache
def groups_set_by(rule: str) -> tuple[str, ...]:
    """The other groups of which the file of `rule` in conf/rule chooses the option."""
    if rule not in groups()["rule"]:
        return ()
    defaults = yaml.safe_load((CONF / "rule" / f"{rule}.yaml").read_text(encoding="utf-8")).get(
        "defaults", []
    )
    return tuple(key.removeprefix("override /") for entry in defaults for key in entry)


def _unknown_option(error: MissingConfigException) -> UserError:
    group, _, option = str(error.missing_cfg_file).rpartition("/")
    return unknown(group or "configuration", option, groups().get(group, []))


def _unknown_key(error: ConfigCompositionException, overrides: Sequence[str]) -> UserError:
    """Hydra says 'Could not override KEY' for a key, and 'no match in the defaults list' for a group."""
    match = re.search(r"Could not override '([^']+)'", str(error))
    if match is None:
        return UserError(f"overrides {' '.join(overrides)!r}: {str(error).strip().splitlines()[0]}")
    key = match[1].split("@")[0]
    base = [text for text in overrides if re.split(r"[=@]", text.lstrip("+~"), maxsplit=1)[0] in groups()]
    if any(re.split(r"[=@]", text)[0] == key for text in base) or len(base) == len(overrides):
        return UserError(f"override of group {key!r}: {str(error).strip().splitlines()[0]}")
    names = _dotted(OmegaConf.create(resolve(base)))
    section = key.rpartition(".")[0]
    siblings = [name for name in names if name.rpartition(".")[0] == section]
    valid = siblings or [*groups(), *{name.partition(".")[0] for name in names}]
    return UnknownKey(key, str(unknown("key", key, set(valid))))


def _dotted(config: DictConfig, prefix: str = "") -> list[str]:
    """Dotted names of all leaves."""
    names = []
    for key, value in config.items():
        if isinstance(value, DictConfig):
            names += _dotted(value, f"{prefix}{key}.")
        else:
            names.append(f"{prefix}{key}")
    return names
