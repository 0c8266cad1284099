"""One composed and validated configuration. Equal sections of different runs are validated once and shared."""

import copy
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any, TypeVar, get_type_hints

from pydantic import TypeAdapter, ValidationError

from cppo_lab.core_records import core_names, core_of
from cppo_lab.launch.base import LauncherSpec
from cppo_lab.launch.launchers import launcher_kind, launcher_of
from cppo_lab.parse import parse, parse_run, run_kind
from cppo_lab.spec import (
    AnswersSpec,
    LayoutSpec,
    PathsSpec,
    ResourcesSpec,
    RunSpec,
    Spec,
    canonical,
    digest,
)
from cppo_lab.sweep.compose.checks import check_constants, check_model
from cppo_lab.sweep.compose.settings import SHARED_CONSTANTS, Section, settings
from cppo_lab.sweep.compose.through_hydra import container_is_of_slurm

S = TypeVar("S", bound=Spec)


class TrackingSpec(Spec):
    """Where runs are tracked if MLFLOW_TRACKING_URI is not set, whether they log the metrics `mismatch/*`, and what
    they record of their answers.
    """

    uri: str
    mismatch: bool
    answers: AnswersSpec


@dataclass(frozen=True, slots=True)
class Composed:
    """One composed configuration: what to train, where, how to launch it, where to track it."""

    run: RunSpec
    layout: LayoutSpec
    paths: PathsSpec
    launcher: LauncherSpec
    tracking: TrackingSpec
    resources: ResourcesSpec
    run_id: str  # of `run`


def compose(overrides: Sequence[str]) -> Composed:
    """Compose and validate one configuration.

    Raises UserError for an override that does not parse, an unknown group option, key, or value.
    """
    sections = settings(overrides)
    for (
        shared
    ) in SHARED_CONSTANTS:  # of the model and the recipe; references from rule and data are resolved by now
        sections.pop(shared.removesuffix("."), None)
    chosen = sections["launcher"].value if "launcher" in sections else None
    kind = launcher_kind(chosen.get("name") if isinstance(chosen, dict) else None)
    if kind is LauncherSpec and isinstance(chosen, dict) and "container" in chosen:
        raise container_is_of_slurm()
    launcher = _part(kind, sections, "launcher")
    tracking = _part(TrackingSpec, sections, "tracking")
    layout = _part(LayoutSpec, sections, "layout")
    paths = _part(PathsSpec, sections, "paths")
    resources = _part(ResourcesSpec, sections, "resources")
    if (check := launcher_of(launcher.name).load("check")) is not None:
        check(launcher, resources)
    run, run_id = _run(sections)
    check_constants(run)
    if (check_placement := core_of(run.core).load("check_placement")) is not None:
        check_placement(run, layout)
    return Composed(run, layout, paths, launcher, tracking, resources, run_id)


def resolve(overrides: Sequence[str]) -> dict[str, Any]:
    """The composed configuration as plain values, interpolations resolved; the caller's own copy."""
    return {name: copy.deepcopy(section.value) for name, section in settings(overrides).items()}


def _part(kind: type[S], sections: dict[str, Section], name: str) -> S:
    """Remove and parse a section that is not part of the run."""
    section = sections.pop(name, None) or Section({})
    found: S = _parsed(kind, section.text, name)
    return found


@lru_cache(maxsize=10_000)
def _parsed(kind: type[S], text: str, where: str) -> S:
    return parse(kind, json.loads(text), where)


def _run(sections: Mapping[str, Section]) -> tuple[RunSpec, str]:
    """The run and its id. Errors are reported by parsing the run as a whole."""
    core = sections["core"].value if "core" in sections else None
    kind = run_kind(core) if isinstance(core, str) and core in core_names() else None
    if kind is not None and sections.keys() == kind.model_fields.keys():
        values, texts = {}, []
        try:
            for name in sorted(sections):
                values[name], text = _field(kind, name, sections[name].text)
                texts.append(f'"{name}":{text}')
            return kind.model_validate(values), digest("{" + ",".join(texts) + "}")
        except ValidationError:
            pass
    plain = {name: section.value for name, section in sections.items()}
    check_model(plain)
    run = parse_run(plain, "configuration")
    return run, run.run_id


@lru_cache(maxsize=200_000)
def _field(kind: type[RunSpec], name: str, text: str) -> tuple[Any, str]:
    """A field of a run from JSON, and its canonical JSON.

    Raises ValidationError.
    """
    value = _adapter(kind, name).validate_json(text, strict=True)
    return value, canonical(value) if isinstance(value, Spec) else json.dumps(value)


@cache
def _adapter(kind: type[Spec], name: str) -> TypeAdapter[Any]:
    return TypeAdapter(get_type_hints(kind, include_extras=True)[name])
