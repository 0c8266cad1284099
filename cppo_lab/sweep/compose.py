"""One configuration from overrides: Hydra composes the groups, OmegaConf holds the values, pydantic types them.

Hydra takes 0.1 s for a composition, so it composes each combination of group choices once in this process. All other
overrides are set in copies of it by OmegaConf, which also resolves the references (`${trust_region.delta}`). The result
equals that of Hydra alone (tests/sweep/test_compose.py).
"""

import copy
import errno
import json
import logging
import os
import re
import stat
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, Literal, NamedTuple

import yaml
from hydra import compose as hydra_compose
from hydra import initialize_config_dir
from hydra.core.config_store import ConfigStore
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import ConfigAttributeError, ConfigKeyError, OmegaConfBaseException

from cppo_lab.core_records import BUILT_IN, core_names, core_of, cores_that
from cppo_lab.errors import UserError, unknown
from cppo_lab.launch.base import LauncherSpec
from cppo_lab.launch.launchers import LAUNCHERS, launcher_kind, launcher_names, launcher_of
from cppo_lab.plugins import code_digest, digest_of
from cppo_lab.rules import RULES, from_environment, path_of_user
from cppo_lab.runs.tags import dotted
from cppo_lab.schema import MEAN, SUMMARIES
from cppo_lab.spec import (
    AnswersSpec,
    LayoutSpec,
    PathsSpec,
    ResourcesSpec,
    RuleSpec,
    RunSpec,
    Spec,
)
from cppo_lab.spec.parse import MUST_BE, parse, parse_run, run_kind
from cppo_lab.spec.run import PAPER, TRAIN
from cppo_lab.sweep.file import REWARD, REWARD_REMEDY, REWARDS
from cppo_lab.sweep.groups import CONF, added_rules, groups, shipped
from cppo_lab.sweep.overrides import UNREADABLE, Override, parse_override, quote

SHARED_CONSTANTS = ("trust_region.", "recipe.")  # of models and recipes, referred to by rules and data
# A container with another launcher, whose runs share the environment of `cppo` itself.
CONTAINER = (
    "launcher.container needs launcher=slurm: choose it, or start `cppo` itself within the container "
    "(docs/verl.md)"
)
KEYS = "`cppo show SWEEP` prints the valid keys"
# Groups of Hydra's own, whose keys are dropped: which composing need not read.
_UNUSED = (
    "~hydra/env", "~hydra/help", "~hydra/hydra_help", "~hydra/hydra_logging", "~hydra/job_logging", "~hydra/launcher",
    "~hydra/output", "~hydra/sweeper",
)  # fmt: skip
# Raised by Hydra and OmegaConf; those of Python for values that they cannot merge or reach.
_REFUSED = (*UNREADABLE, OmegaConfBaseException, TypeError, AttributeError, LookupError, AssertionError)


class UnknownKey(UserError):
    """An override names a key that the composed configuration does not have."""


class TrackingSpec(Spec):
    """Where runs are tracked if MLFLOW_TRACKING_URI is not set, where else (CPPO_MIRROR takes precedence), whether they
    log the metrics `mismatch/*`, and what they record of their answers.
    """

    uri: str
    mirror: Literal["trackio", "wandb"] | None = None
    mismatch: bool
    answers: AnswersSpec


class NotifySpec(Spec):
    """The webhook that gets messages if CPPO_NOTIFY_URL is not set; None: nothing does."""

    url: str | None = None


# What is not part of a run, in the order of its checks; `launcher` is of the kind that its name says.
PARTS: dict[str, type[Spec]] = {
    "launcher": LauncherSpec,
    "tracking": TrackingSpec,
    "notify": NotifySpec,
    "layout": LayoutSpec,
    "paths": PathsSpec,
    "resources": ResourcesSpec,
}


@dataclass(frozen=True, slots=True)
class Composed:
    """One composed configuration: what to train, where, how to launch it, where to track it."""

    run: RunSpec
    layout: LayoutSpec
    paths: PathsSpec
    launcher: LauncherSpec
    tracking: TrackingSpec
    resources: ResourcesSpec
    notify: NotifySpec

    @property
    def nodes(self) -> int:
        """Machines that the run takes."""
        return core_of(self.run.core).nodes(self.layout)


def compose(overrides: Sequence[str]) -> Composed:
    """Compose and validate a configuration.

    Raises UserError for an override that does not parse, an unknown group option, key, or value.
    """
    sections = _sections(overrides)
    sections["data"] = _with_digests(sections["data"])
    for constants in SHARED_CONSTANTS:  # no part of the run, whose references to them are resolved by now
        sections.pop(constants.removesuffix("."), None)
    launcher = launcher_kind(sections["launcher"].get("name"))
    if launcher is LauncherSpec and "container" in sections["launcher"]:
        raise UserError(CONTAINER)
    kinds = {**PARTS, "launcher": launcher}
    parts: dict[str, Any] = {name: parse(kind, sections.pop(name, {}), name) for name, kind in kinds.items()}
    if (check := launcher_of(parts["launcher"].name).load("check")) is not None:
        check(parts["launcher"], parts["resources"])
    run = _run(sections)
    _check_constants(run)
    every, record = parts["layout"].checkpoint_every, core_of(run.core)
    if every is not None:
        where = f"configuration: layout.checkpoint_every={every}"
        if not record.uses_layout:
            raise UserError(
                f"{where}: core={run.core} has checkpoints at its validations alone: drop it or choose core=verl"
            )
        if every > run.training.t_stop:
            raise UserError(
                f"{where} is beyond the run's last step, training.t_stop={run.training.t_stop}: lower it, or set null "
                "for checkpoints at validations alone"
            )
    if (check_placement := record.load("check_placement")) is not None:
        check_placement(run, parts["layout"])
    return Composed(run, **parts)


VALIDATION = "data.validation."  # before the name of a validation set, which its user chooses
FILES = "data=files needs data.train=FILE and data.validation.NAME=FILE"


def _with_digests(data: dict[str, Any]) -> dict[str, Any]:
    """The section `data`, where files and code of the user's are identified by what they contain.

    Raises UserError if there are none.
    """
    data = {**data}
    if isinstance(reward := data.get("reward"), str):
        path = reward if ":" in reward else from_environment(reward, REWARDS)
        if path is None:
            raise UserError(f"{REWARD}={reward!r}: {REWARD_REMEDY}")
        data |= {"reward": path, "reward_code": code_digest(path, REWARD)}
    if "train" in data:
        train, validation = data.pop("train"), data.pop("validation", None)
        if not train or not validation or not isinstance(validation, dict):
            raise UserError(FILES)
        data["benchmarks"] = [*validation]
        named = {f"{VALIDATION}{name}": path for name, path in validation.items()} | {"data.train": train}
        data["files"] = {key.rpartition(".")[2]: _own_file(key, path) for key, path in named.items()}
    if taken := [name for name in data.get("benchmarks") or () if name in SUMMARIES]:
        raise UserError(
            f"data.benchmarks: tables have a column {taken[0]!r}: give that validation set another name"
        )
    return data


def data_of(benchmark: str) -> list[str]:
    """The overrides that choose a benchmark: an option of the group `data`, or a file of problems."""
    if (file := Path(benchmark)).suffix not in (".jsonl", ".parquet"):
        return [f"data={benchmark}"]
    name, value = re.sub(r"\W", "_", file.stem, flags=re.ASCII).lstrip("_"), quote(str(file))
    # A key of Hydra's begins with a letter, or is a number; and no benchmark is called so.
    if name in (TRAIN, MEAN) or not re.match(r"[A-Za-z]|[0-9]+$", name):
        name = f"problems_{name}".rstrip("_")
    return ["data=files", f"data.train={value}", f"{VALIDATION}{name[:64]}={value}"]


def _own_file(key: str, name: object) -> dict[str, str]:
    """The fields of an `OwnFile`."""
    path = Path(os.path.realpath(str(name)))  # `resolve` raises an error of its own for a circular link
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):  # a pipe, or a device without an end
            raise OSError(errno.EINVAL, "not a regular file")
        return {"path": str(path), "digest": _digest(path, status.st_mtime_ns, status.st_size)}
    except OSError as error:
        raise UserError(f"{key}={name!r} cannot be read ({error.strerror}): {FILES}") from None


@lru_cache(maxsize=1000)
def _digest(path: Path, *_changed: int) -> str:
    return digest_of(path)


def values(overrides: Sequence[str]) -> dict[str, Any]:
    """Dotted key -> value of everything in the composition of these overrides; not validated.

    Raises UserError for an override that does not parse, an unknown group option or key.
    """
    return dotted(_sections(overrides), null=True)


def takes(choices: Sequence[str], key: str, given: Collection[str]) -> bool:
    """Whether the composition of these group choices has a key, while the keys `given` are set.

    `trust_region` and `recipe` are not part of a run: their keys count only if a key of the run still refers to them.
    """
    keys = _combination(tuple(choices)).keys
    if key not in keys or not key.startswith(SHARED_CONSTANTS):
        return key in keys
    cut = [f"{name}=null" for name in sorted(keys.intersection(given) - groups().keys()) if name != key]
    first, second = (_sections([*choices, *cut, f"{key}={number}"]) for number in (1, 2))
    return any(first[name] != second[name] for name in first if f"{name}." not in SHARED_CONSTANTS)


def groups_set_by(rule: str) -> tuple[str, ...]:
    """The other groups for which the file of `rule` in conf/rule chooses an option."""
    if rule not in groups()["rule"]:
        return ()
    return tuple(key.removeprefix("override /") for entry in _file(rule).get("defaults", []) for key in entry)


class _Combination(NamedTuple):
    """Hydra's composition of group choices, to be read only.

    `keys`: dotted names of the values. `alone`: top-level values, such as the seed, that no reference names.
    """

    config: DictConfig
    keys: frozenset[str]
    alone: frozenset[str]


@lru_cache(maxsize=1000)
def _combination(choices: tuple[str, ...]) -> _Combination:
    """The composition of these group choices.

    Raises UserError for an unknown choice.
    """
    others = [("rule", name, dict(content)) for name, content in added_rules().items()]
    for choice in map(parse_override, choices):
        choice.check()
        # Of a core or launcher of another package.
        name = choice.value
        if choice.key == "core" and name not in BUILT_IN and name in core_names():
            others.append(("core", name, {"core": name, **core_of(name).config}))
        elif choice.key == "launcher" and name not in LAUNCHERS and name in launcher_names():
            settings = {"name": name, "workers": None, "threads": 1, **launcher_of(name).config}
            others.append(("launcher", name, {"launcher": settings}))
    for group, name, content in others:
        ConfigStore.instance().store(name, content, group=group, package="_global_")
    # Hydra logs a warning for each file without a schema; we validate ourselves.
    logging.getLogger("hydra").setLevel(logging.ERROR)
    try:
        with initialize_config_dir(str(CONF), version_base="1.3"):
            config = hydra_compose("config", [*choices, *_UNUSED])
    except _REFUSED as error:
        raise _refused(choices, error) from None
    values: Any = OmegaConf.to_container(config)
    referenced = set(re.findall(r"\$\{(\w*)", json.dumps(values)))
    # Without a name: a relative reference, or a reference within a name.
    alone = frozenset() if "" in referenced else frozenset(map(str, config)) - referenced
    return _Combination(config, frozenset(dotted(values, null=True)), alone)


def _sections(overrides: Sequence[str]) -> dict[str, Any]:
    """The values under each top-level key, references resolved; to be read only, since runs share sections."""
    given = [parse_override(text) for text in overrides]
    choices = tuple(override.text for override in given if override.kind == "choice")
    for override in given:
        override.check(override.parsed is None and _is_list(choices, override.key))
    others = [override for override in given if override.kind != "choice"]
    alone = _combination(choices).alone if all(override.kind == "value" for override in others) else ()
    # Hundreds of runs that differ in the seed share what else is resolved.
    last = {
        override.key: override.value
        for override in others
        if override.key in alone and not isinstance(override.value, list)
    }
    texts = tuple(override.text for override in others if override.key not in last)
    try:
        return _resolved(choices, texts) | last
    except _REFUSED as error:
        raise _refused((*choices, *(override.text for override in others)), error) from None


@lru_cache(maxsize=1000)
def _resolved(choices: tuple[str, ...], texts: tuple[str, ...]) -> dict[str, Any]:
    config = copy.deepcopy(_combination(choices).config)
    for text in texts:
        _set(config, parse_override(text))
    values: Any = OmegaConf.to_container(config, resolve=True)
    return {str(key): value for key, value in values.items()}


def _set(config: DictConfig, override: Override) -> None:
    """Set, add or delete a key as Hydra does.

    Raises UserError for a key that cannot be.
    """
    key, parsed = override.key, override.parsed
    assert parsed is not None
    if parsed.package is not None:
        raise unknown("key", override.text.partition("=")[0].lstrip("+~"), groups())
    value = parsed.value()
    try:
        present = OmegaConf.select(config, key, throw_on_resolution_failure=False)
        if override.sign == "~":
            if present is None:
                raise _unknown_key(config, key)
            if value is not None and value != present:
                raise UserError(
                    f"override {override.text!r}: {key} is {present}: give that value, or none: ~{key}"
                )
            section, _, last = key.rpartition(".")
            with open_dict(config):
                del (OmegaConf.select(config, section) if section else config)[last]
        elif override.sign == "+" and present is not None and not isinstance(value, list | dict):
            raise UserError(f"override {override.text!r}: {key} is there already: write {override.text[1:]}")
        elif isinstance(value, list) and OmegaConf.is_dict(present):
            raise UserError(f"override {override.text!r}: {key} must be {MUST_BE['dict_type']}")
        elif isinstance(value, dict) and OmegaConf.is_list(present):
            raise UserError(f"override {override.text!r}: {key} must be {MUST_BE['list_type']}")
        elif (
            key in ("model.name", "data.name", "layout.name")
            and value in groups()[group := key.removesuffix(".name")]
            and value != present
        ):
            raise UserError(f"override {override.text!r} renames the {group} alone: write {group}={value}")
        else:
            OmegaConf.update(config, key, value, force_add=override.sign != "" or key.startswith(VALIDATION))
    except (ConfigAttributeError, ConfigKeyError) as error:
        inner = str(error.full_key)  # of a mapping
        raise _unknown_key(config, inner if inner.startswith(f"{key}.") else key) from None
    except _REFUSED as error:
        raise _refused((override.text,), error) from None


def _unknown_key(config: DictConfig, key: str) -> UserError:
    if key.startswith("launcher.container") and "container" not in config["launcher"]:
        return UserError(CONTAINER)
    plain: Any = OmegaConf.to_container(config)
    names = dotted(plain, null=True)
    section = key.rpartition(".")[0]
    if section and OmegaConf.select(config, section) == {}:  # a mapping of whatever its user adds
        return UnknownKey(f"unknown key {key!r}: {section} has no keys yet: add it with +{key}=VALUE")
    siblings = {name for name in names if section and name.rpartition(".")[0] == section}
    sections = {*groups(), *map(str, config)}
    # `variant` chooses among the runs of a sweep.
    elsewhere = {"variant", *names, *sections, *(f"rule.{name}" for name in RuleSpec.model_fields)} - {key}
    if siblings:  # a key that is like another in other sections too is meant as such
        elsewhere = {name for name in elsewhere if name.rpartition(".")[2] == key.rpartition(".")[2]}
    return UnknownKey(str(unknown("key", key, siblings or sections, {name: name for name in elsewhere})))


def _is_list(choices: tuple[str, ...], key: str) -> bool:
    """Whether a key takes a list in the composition of these group choices, if they compose."""
    try:
        return OmegaConf.is_list(OmegaConf.select(_combination(choices).config, key))
    except (UserError, *_REFUSED):
        return False


def _refused(overrides: Sequence[str], error: Exception) -> UserError:
    reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
    return UserError(f"overrides {' '.join(overrides)!r}: {reason}: {KEYS}")


def _run(values: dict[str, Any]) -> RunSpec:
    """The run; if it is none, first of all whether its core can train such a model, before the keys of that are
    validated as those of another kind of model, or has such a section.
    """
    try:
        return parse_run(values, "configuration")
    except UserError:
        core, name = values["core"], str(values["model"].get("name"))
        if "repository" in values["model"] and not core_of(core).published_models:
            others = " or ".join(f"core={other}" for other in cores_that("published_models"))
            raise UserError(
                f"configuration: model={name!r} is a published model, which core={core!r} cannot train: add {others}, "
                "or choose a model of its own"
            ) from None
        if "repository" not in values["model"] and core in BUILT_IN:
            if (models := core_of(core).own_models) and name not in models:
                valid = " or ".join(models)
                raise UserError(
                    f"configuration: core={core!r} does not train model={name!r}: choose model={valid}"
                ) from None
            for owner in BUILT_IN:
                if owner != core and name in core_of(owner).own_models:
                    raise UserError(
                        f"configuration: model={name!r} is a model of core={owner}: add core={owner}"
                    ) from None
        for name in values.keys() - run_kind(core).model_fields.keys():
            if owners := [owner for owner in BUILT_IN if name in run_kind(owner).model_fields]:
                raise UserError(
                    f"configuration: core={core!r} has no {name}: add core={' or core='.join(owners)}"
                ) from None
        raise


def _check_constants(run: RunSpec) -> None:
    """Check that a rule has exactly the constants in its file in conf/rule; those that are null there may stay null.

    The losses of verl have their constants in `rule.options`, under verl's names.
    """
    name, options = run.rule.name, run.rule.options or {}
    if name not in groups()["rule"]:
        raise unknown("rule", name, groups()["rule"])
    if run.rule.path is None and run.rule.verl_loss is None and name not in RULES:
        raise UserError(f"configuration: rule.name={name!r} is of another package: choose rule={name}")
    declared = _file(name).get("rule", _file(name))
    for kind, section, values, given in (
        ("constant", "rule", declared, run.rule.parameters().keys() - options.keys()),
        ("option", "rule.options", declared.get("options") or {}, options.keys()),
    ):
        valid = [key for key in values if key not in ("name", "path", "options")]
        for key in valid:
            if values[key] is not None and key not in {*PAPER, *given}:  # a recipe's constants need no value
                raise UserError(f"configuration: {section}.{key}=null: rule {name!r} needs a value")
        if unknown_keys := sorted(given - set(valid)):
            raise UserError(
                f"configuration: rule {name!r} has no {kind} {unknown_keys[0]!r} (valid: {', '.join(valid) or 'none'})"
            )


def _file(rule: str) -> Mapping[str, Any]:
    """The content of the file of a rule, in conf/rule or beside a sweep file."""
    return added_rules().get(rule) or _shipped(rule)


@cache
def _shipped(rule: str) -> Mapping[str, Any]:
    values: Mapping[str, Any] = yaml.safe_load((CONF / "rule" / f"{rule}.yaml").read_text(encoding="utf-8"))
    return values


def rule_on(rule: str, config: Mapping[str, Any]) -> tuple[str | None, dict[str, Any]]:
    """A rule for a replay of a run with `config`: its path, None if it is the product's; and the constants that it has
    on the run's core and model, none if that cannot be composed.

    Raises UserError for an option of the group `rule` that is no rule's name.
    """
    if rule not in RULES:
        if rule in shipped()["rule"]:
            raise UserError(
                f"--rule {rule}: conf/rule/{rule}.yaml configures a rule, and a replay composes nothing: name the rule "
                "in that file, with its constants as KEY=VALUE"
            )
        return path_of_user(rule), {}
    model, rollout = config.get("model"), config.get("rollout")
    name = model.get("name") if isinstance(model, dict) else None
    try:
        run = compose([f"core={config.get('core')}", f"model={name}", f"rule={rule}"]).run
    except UserError:
        return None, {}
    width = rollout.get("max_response_length") if isinstance(rollout, dict) else None
    return None, run.rule.arguments(width if isinstance(width, int) else run.rollout.max_response_length)
