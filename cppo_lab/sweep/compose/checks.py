"""Checks across configs: a model against its core, a rule against its file in conf/rule."""

from collections.abc import Mapping
from functools import cache
from typing import Any

from cppo_lab.core_records import BUILT_IN, core_names, core_of, cores_that
from cppo_lab.errors import UserError, unknown
from cppo_lab.rules import RULES
from cppo_lab.spec import RunSpec
from cppo_lab.spec.rule import PAPER
from cppo_lab.sweep.compose.settings import settings
from cppo_lab.sweep.groups import groups


def check_model(values: Mapping[str, Any]) -> None:
    """Check that the core can train the model, before its keys are validated as those of another kind of model."""
    model, core = values.get("model"), values.get("core")
    if not (isinstance(core, str) and isinstance(model, dict)):
        return
    if "repository" not in model:
        _check_own_models(str(model.get("name")), core)
        return
    if core in core_names() and not core_of(core).published_models:
        others = " or ".join(f"core={name}" for name in cores_that("published_models"))
        raise UserError(
            f"configuration: model={model.get('name')!r} is a published model, which core={core!r} cannot train: add "
            f"{others}, or choose a model of its own"
        )


def _check_own_models(model: str, core: str) -> None:
    """Check models that only one of the built-in cores can train."""
    own = {name: core_of(name).own_models for name in BUILT_IN}
    if core in own and own[core] and model not in own[core]:
        raise UserError(
            f"configuration: core={core!r} does not train model={model!r}: choose model={' or '.join(own[core])}"
        )
    for owner, models in own.items():
        if model in models and core in own and core != owner:
            raise UserError(f"configuration: model={model!r} is a model of core={owner}: add core={owner}")


def check_constants(run: RunSpec) -> None:
    """Check that a rule has exactly the constants in its file in conf/rule; those that are null there may stay null.

    verl's own losses have their constants in `rule.options`, under verl's names.
    """
    name = run.rule.name
    if name not in groups()["rule"]:
        raise unknown("rule", name, groups()["rule"])
    if run.rule.path is None and run.rule.verl_loss is None and name not in RULES:
        raise UserError(f"configuration: rule.name={name!r} is of another package: choose rule={name}")
    options = run.rule.options or {}
    own = {key: value for key, value in run.rule.parameters().items() if key not in options}
    _compare(name, "rule", _declared_constants(name), own)
    _compare(name, "rule.options", _declared_constants(name, "options"), options)


def _compare(name: str, section: str, declared: Mapping[str, bool], given: Mapping[str, Any]) -> None:
    """Compare the constants of one section with those in the rule's file."""
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
    """The constants in a rule's file, or its options, and whether each must have a value; those of a recipe need
    none.
    """
    rule = settings([f"rule={name}"])["rule"].value
    values = rule.get(section) or {} if section else rule
    return {
        key: value is not None and key not in PAPER
        for key, value in values.items()
        if key not in ("name", "path", "options")
    }
