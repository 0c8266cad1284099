"""Enumerates the runs of a sweep: models x variants x axes, each composed and validated.

First the grid that a sweep file declares together with the command line: the labels of its runs (the variant with its
axis values), conditions on them (`exclude`, `resources.for`), and which axes and overrides apply to a run: a rule's
constant applies to the rules that have it. An error in composing a run is located in the sweep file, or on the command
line.
"""

import itertools
import json
import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from typing import Any

from cppo_lab import schema
from cppo_lab.core_records import DEFAULT_CORE
from cppo_lab.core_records import core_of as core_record
from cppo_lab.errors import ALSO, MOST_FAULTS, UserError, together, unknown
from cppo_lab.rules import colours
from cppo_lab.runs.folder import variants_text
from cppo_lab.runs.tags import names
from cppo_lab.spec import LayoutSpec, ResourcesSpec, RunSpec
from cppo_lab.sweep.compose import SHARED_CONSTANTS, Composed, UnknownKey, compose, groups_set_by, takes
from cppo_lab.sweep.file import (
    ANY_CORE,
    ERRORS,
    Conditions,
    Scalar,
    Sweep,
    code_fault,
    is_of,
    same,
)
from cppo_lab.sweep.groups import groups
from cppo_lab.sweep.overrides import Override, override_text, parse_override, shell_form

UNNAMED = frozenset({"seed", "model"})  # shown in separate columns
MAX_RUNS = 1_000_000


def number(value: Scalar) -> str:
    """The shortest unambiguous text of a value."""
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    if isinstance(value, float):
        short = f"{value:g}"
        return short if float(short) == value else repr(value)
    return str(value)


@dataclass(frozen=True, slots=True)
class GridPoint:
    """A run as declared by its sweep: its names, the values of its variant's keys and of the axes that apply to it, and
    the overrides of the command line that do.

    `label` is the name of its variant among the runs: with its axis values, such as `cppo w_min=0.6`.
    """

    core: str
    model: str
    variant: str
    keys: Mapping[str, Scalar]
    axes: Mapping[str, Scalar]
    overrides: tuple[str, ...]
    label: str

    @property
    def values(self) -> dict[str, Scalar]:
        """The values of its keys and axes."""
        return {**self.keys, **self.axes}


def _is_in(value: Scalar, options: Iterable[Scalar]) -> bool:
    return any(same(value, option) for option in options)


def meets(point: GridPoint, conditions: Conditions) -> bool:
    """Whether a run meets all conditions."""
    values = {**point.values, "variant": point.variant, "model": point.model, "core": point.core}
    return all(key in values and _is_in(values[key], accepted) for key, accepted in conditions.items())


def _valid(sweep: Sweep, cores: Sequence[str], all_cores: Sequence[str]) -> dict[str, list[Scalar]]:
    """The valid values of each condition key, for these cores."""
    models = [name for core in cores for name in sweep.models.get(core) or sweep.models.get(ANY_CORE, ())]
    valid: dict[str, list[Scalar]] = {
        "variant": [name for name in sweep.variants if name],
        "model": list(dict.fromkeys(models)),
        "core": list(all_cores),
    }
    for keys in sweep.variants.values():
        for key, value in keys.items():
            valid.setdefault(key, []).append(value)
    for key, by_core in sweep.axes.items():
        values = [value for core in cores for value in by_core.get(core) or by_core.get(ANY_CORE, ())]
        valid.setdefault(key, []).extend(values)
    return valid


def condition_faults(sweep: Sweep, core: str) -> list[tuple[str, str]]:
    """Every entry of `exclude` and every `for` of `resources` that has a name which the sweep does not have for any
    core, or that matches no run of the whole sweep for this core: its place in the file, and what is wrong.

    An entry may be for other cores: it then has a value that only they have.
    """
    conditions: dict[str, Conditions] = {f"exclude.{i}": entry for i, entry in enumerate(sweep.exclude)}
    conditions |= {f"resources.{i}.for": rule.for_ for i, rule in enumerate(sweep.resources) if rule.for_}
    with_lists = {core for values in sweep.axes.values() for core in values} | set(sweep.models)
    here = _valid(sweep, [core], [core])
    valid = _valid(sweep, [core, *sorted(with_lists - {ANY_CORE, core})], groups()["core"])
    faults: list[tuple[str, str]] = []
    unmet: dict[str, Conditions] = {}
    for where, entry in conditions.items():
        before, place = len(faults), f"sweep {sweep.source}: {where}"
        for key, values in entry.items():
            if key not in valid:
                faults.append((where, f"{place}.{key}: {unknown('condition', key, valid)}"))
                continue
            names = [*map(number, valid[key])]
            for value in values:
                if not _is_in(value, valid[key]):
                    remedy = "remove its quotes" if value in names else unknown(key, value, names)
                    faults.append((where, f"{place}.{key}={value!r}: {remedy}"))
        if len(faults) == before and all(
            any(_is_in(value, here[key]) for value in values) for key, values in entry.items()
        ):
            unmet[where] = entry
    for point in points(whole(sweep, core)) if unmet else ():
        unmet = {where: entry for where, entry in unmet.items() if not meets(point, entry)}
        if not unmet:
            break
    for where, entry in unmet.items():
        listed = ", ".join(f"{key}: {'/'.join(map(number, values))}" for key, values in entry.items())
        text = f"sweep {sweep.source}: {where}={{{listed}}}: no run of the sweep has all of these"
        faults.append((where, f"{text}: remove the entry, or a condition of it"))
    return faults


LAUNCHING = ("launcher", "tracking", "paths", "notify")  # how runs are started and tracked
NO_AXES = (*LAUNCHING, "core", "layout", "resources")  # sections that make no runs differ
NO_AXIS = {
    "model": "use models:",
    "core": "choose it on the command line: core=verl",
    "variant": "use variants:",
    "layout": "use resources:",
    "resources": "use resources:",
}


@dataclass(frozen=True)
class Grid:
    """The models, variants and axes whose product is enumerated, and the overrides of every run.

    `asked`: axis -> the command-line override that gave its values.
    """

    sweep: Sweep
    core: str
    models: tuple[str, ...]
    variants: Mapping[str, Mapping[str, Scalar]]
    axes: dict[str, tuple[Scalar, ...]]
    common: tuple[str, ...] = ()
    asked: Mapping[str, str] = field(default_factory=dict)
    models_asked: bool = False


def core_of(overrides: Sequence[str]) -> str:
    """The trainer core that the overrides choose."""
    given = map(parse_override, reversed(overrides))
    return next((str(override.right) for override in given if override.sets("core")), DEFAULT_CORE)


def with_core(cores: Collection[str], overrides: Sequence[str]) -> list[str]:
    """The overrides, with the core if none is chosen and all models belong to one of these alone."""
    (core, *more) = cores
    chosen = more or core == ANY_CORE or any(parse_override(text).sets("core") for text in overrides)
    return [*overrides] if chosen or not core_record(core).own_models else [f"core={core}", *overrides]


def whole(sweep: Sweep, core: str) -> Grid:
    """The complete grid of the file for a core."""
    if core not in groups()["core"]:
        raise unknown("core", core, groups()["core"])
    return Grid(sweep, core, sweep.models_of(core), sweep.variants, sweep.axes_of(core))


def narrow(sweep: Sweep, overrides: Sequence[str]) -> Grid:
    """Apply the overrides that select what to enumerate; the others apply to every run.

    Raises UserError for an invalid override, and for a key that the file should not set.
    """
    if faults := [text for _, text in key_faults(sweep)]:
        raise together(faults, f"sweep {sweep.source}: ")
    core = core_of(overrides)
    declared = whole(sweep, core)
    models: tuple[str, ...] | None = None
    variants, axes = dict(declared.variants), dict(declared.axes)
    asked, given, common = dict[str, str](), dict[str, str](), list[str]()
    # The keys and groups that distinguish variants or values of the axis `rule`, which no override may set.
    rules = [keys.get("rule", "") for keys in sweep.variants.values()]
    rules += [rule for values in sweep.axes.get("rule", {}).values() for rule in values]
    distinct = {key for keys in sweep.variants.values() for key in keys}
    distinct |= {group for rule in rules for group in groups_set_by(str(rule))}
    sections = distinct & groups().keys() - {"rule"}
    for override in map(parse_override, overrides):
        text, key = override.text, override.key
        if override.right is None or override.sets(""):
            raise UserError(f"override {text!r} is not of the form key=value")
        # Of a plain value the last counts, as for Hydra.
        if key in given and (key in axes or key in ("model", "variant") or override.values() is not None):
            raise UserError(f"override {text!r}: {given[key]!r} appears too: give {key} once")
        given[key] = text
        if override.sets("model"):
            models = tuple(override.names)
        elif override.sets("variant"):
            for name in override.names:
                if not name or name not in sweep.variants:
                    raise unknown(f"variant of sweep {sweep.name}", name, filter(None, sweep.variants))
            variants = {name: sweep.variants[name] for name in override.names}
        elif (
            key not in axes
            and (override.sets(key) or key not in groups())
            and (key in distinct or key.partition(".")[0] in sections)
        ):
            raise UserError(
                f"override {text!r}: the variants of sweep {sweep.name} set {key!r} themselves; choose among them "
                f"with variant= (valid: {', '.join(name for name in sweep.variants if name) or 'none'})"
            )
        elif key in axes or override.values() is not None:
            axes[key], asked[key] = _axis_values(override), text
        else:
            common.append(text)
    chosen = models or declared.models
    return Grid(sweep, core, chosen, variants, axes, tuple(common), asked, models is not None)


def as_declared(grid: Grid) -> Grid:
    """The grid without what only selects among the models, variants and axis values of its file."""
    file = whole(grid.sweep, grid.core)
    models = file.models if {*grid.models} <= {*file.models} else grid.models
    selected = [key for key in grid.asked if {*grid.axes[key]} <= {*file.axes.get(key, ())}]
    return replace(
        grid,
        models=models,
        variants=file.variants,
        axes=grid.axes | {key: file.axes[key] for key in selected},
        asked={key: text for key, text in grid.asked.items() if key not in selected},
        models_asked=models is not file.models,
    )


def changes(declared: Grid, unused: Sequence[str]) -> tuple[str, ...]:
    """The overrides that change the runs declared in the file, in normalised form; `unused`: overrides that apply to no
    run.

    The place where a run is trained does not change it.
    """
    changed = {
        key: f"{key}={','.join(sorted(map(repr, declared.axes[key])))}"
        for key, text in declared.asked.items()
        if text not in unused
    }
    for text in declared.common:
        override = parse_override(text)
        key = override.key
        if text in unused or key.partition(".")[0] in NO_AXES:
            continue
        if override.kind == "other":
            changed[text] = text
        else:  # of several values of a key the last counts
            changed[key] = f"{key}={override.value!r}"
    listed = declared.sweep.models_of(declared.core)
    if others := sorted(model for model in declared.models if model not in listed):
        changed["model"] = f"model={','.join(others)}"
    return tuple(sorted(changed.values()))


def key_faults(sweep: Sweep) -> Iterator[tuple[str, str]]:
    """Every key that has a second source, or that says how runs are started or tracked, which a sweep does not: its
    entry in the file, and what is wrong.
    """
    where = f"sweep {sweep.source}"
    places: dict[str, Mapping[str, object]] = {"axes": sweep.axes}
    places |= {f"variants.{name}": keys for name, keys in sweep.variants.items()}
    for of, key, value in [(of, *item) for of, keys in places.items() for item in keys.items()]:
        place, section, is_axis = f"{of}.{key}", key.partition(".")[0], of == "axes"
        remedy = NO_AXIS.get(section if section in ("layout", "resources") else key)
        if fault := code_fault(parse_override(f"{key}=0").key, value):
            yield place, f"{where}: {place}={value!r}: {fault}"
        elif section in LAUNCHING:
            yield place, f"{where}: {place}: {key!r} belongs on the command line, not in a sweep file"
        elif not is_axis and key != "core" and (key in sweep.axes or key == "model"):
            variant = of.removeprefix("variants.")
            yield (
                place,
                f"{where}: {place}: variant {variant!r} sets {key!r}, which is an axis too: keep one of them",
            )
        elif (key == "core" and not is_axis) or key.startswith("resources."):
            yield place, f"{where}: {place}: {remedy}"
        elif is_axis and remedy is not None:
            yield place, f"{where}: {place}: {key!r} is no axis: {remedy}"


def _axis_values(override: Override) -> tuple[Scalar, ...]:
    """The values that an override gives an axis.

    Raises UserError unless its key may take them, i.e. makes runs differ.
    """
    key, values, where = override.key, override.values(), f"override {override.text!r}"
    if values is None:
        if override.kind == "other":
            override.check()
            raise UserError(f"{where}: {key} takes plain values here: {key}=1,2")
        values = (override.value,)
    elif key.partition(".")[0] in NO_AXES:
        raise UserError(
            f"{where}: {key} takes one value for all runs; a comma within it needs quotes: "
            + (shell_form(key, override.right or "") or f"{key}=\"'a,b'\"")
        )
    elif not override.sets(key):
        raise UserError(f"{where}: only a key that is there can take several values: give one")
    if any(isinstance(item, list | dict) for item in values):
        raise UserError(f"{where}: {key} takes plain values here, not lists: {key}=1,2")
    return tuple(dict.fromkeys(values))


# Keys that not every run has or depends on. Any other key is applied to every run, and is an error if unknown.
OPTIONAL = ("rule.", *SHARED_CONSTANTS)


def choices(grid: Grid, model: str, values: Mapping[str, Scalar]) -> list[str]:
    """The overrides that choose group options for a run with these values of keys and axes."""
    texts = [
        override_text(key, value) for key, value in {"model": model, **values}.items() if key in groups()
    ]
    return [*texts, *(text for text in grid.common if parse_override(text).kind == "choice")]


def points(grid: Grid) -> Iterator[GridPoint]:
    """Every run that a grid declares, excluded or not, in file order and without duplicates."""
    count = len(grid.models) * len(grid.variants) * math.prod(map(len, grid.axes.values()))
    if count > MAX_RUNS:
        raise UserError(
            f"sweep {grid.sweep.source}: declares {count:,} runs, more than {MAX_RUNS:,}: declare fewer"
        )
    # The names of axes in labels: the last part of the key, or the whole key if two end alike; empty for groups.
    lasts = {key: key.rpartition(".")[2] for key in grid.axes}
    names = {
        key: "" if key in groups() else key if [*lasts.values()].count(last) > 1 else last
        for key, last in lasts.items()
        if key not in UNNAMED
    }

    @cache
    def applying(variant: str, chosen: tuple[str, ...]) -> tuple[list[str], tuple[str, ...]]:
        """The axes and the overrides that apply to a variant's runs with these group options."""
        given = {*grid.variants[variant], *grid.axes, *(parse_override(text).key for text in grid.common)}
        axes = [key for key in grid.axes if not key.startswith(OPTIONAL) or takes(chosen, key, given)]
        return axes, tuple(text for text in grid.common if _fits(text, chosen, given))

    seen: set[tuple[object, ...]] = set()
    for model, (variant, keys) in itertools.product(grid.models, grid.variants.items()):
        for values in itertools.product(*grid.axes.values()):
            point = dict(zip(grid.axes, values, strict=True))
            axes, overrides = applying(variant, tuple(choices(grid, model, {**keys, **point})))
            used = {key: point[key] for key in axes}
            if len(used) < len(point):
                if (place := (model, variant, *used.items())) in seen:
                    continue
                seen.add(place)
            named = [
                f"{names[key]}={number(value)}" if names[key] else number(value)
                for key, value in used.items()
                if key in names
            ]
            label = " ".join(filter(None, [variant, *named])) or grid.sweep.name
            yield GridPoint(grid.core, model, variant, keys, used, overrides, label)


def included(grid: Grid) -> Iterator[GridPoint]:
    """Every run of a grid that is not excluded."""
    return (point for point in points(grid) if not any(meets(point, entry) for entry in grid.sweep.exclude))


def _fits(text: str, choices: Sequence[str], given: Collection[str]) -> bool:
    """Whether a command-line override applies to runs with these group choices."""
    key = parse_override(text).key
    if not key.startswith(OPTIONAL):
        return True
    if parse_override(text).kind == "value":
        return takes(choices, key, given)
    try:
        run = compose([*choices, text]).run
    except UnknownKey:
        return False
    return key.startswith("rule.") or run != compose(choices).run


def refuse(unused: Iterable[str]) -> None:
    """Raise UserError for the first override that applies to no run."""
    for text in unused:
        key, values = parse_override(text).key, parse_override(text).values()
        if key.startswith(SHARED_CONSTANTS):
            # Constants that rules take from their model or recipe are not part of a run themselves.
            raise UserError(f"override {text!r}: no run of this sweep depends on {key!r}; remove it")
        compose([override_text(key, values[0]) if values else text])
        raise UserError(f"override {text!r}: no variant of this sweep has the key {key!r}; remove it")


# The runs of a grid


@dataclass(frozen=True, slots=True)
class Setting:
    """A key that a sweep file sets: `where` in the file, and its configuration key."""

    where: str
    key: str
    value: Scalar

    @property
    def text(self) -> str:
        """The setting as an override."""
        return override_text(self.key, self.value)


def located(error: UserError, source: str, file: Sequence[Setting], typed: Sequence[str]) -> UserError:
    """The error, and those behind it, with the file and key that caused each; unchanged if the command line did.

    `file` are the settings of the run from the file, `typed` the overrides from the command line.
    """
    texts, settings, message = list[str](), list(file), str(error)
    while message:
        cause = _cause(message, settings, typed)
        if cause is None:
            return error if not texts else together(texts, f"sweep {source}: ")
        text = message.removeprefix("configuration: ")
        if cause not in settings:
            texts.append(f"sweep {source}: {text}")
            break
        place = f"sweep {source}: {cause.where}="
        if text.startswith(f"{cause.key}={cause.value!r}"):
            texts.append(place + text.removeprefix(f"{cause.key}="))
        else:
            texts.append(f"{place}{cause.value!r}: {text}")
        if cause.key in groups() or ALSO in message:  # other settings depend on it, or all are named already
            break
        settings.remove(cause)
        message = _outcome([*(setting.text for setting in settings), *typed])
    return together(texts, f"sweep {source}: ")


def _cause(message: str, file: Sequence[Setting], typed: Sequence[str]) -> Setting | None:
    """The last setting whose removal changes the outcome of composing; a setting without a key if they are at fault
    only together, and None if the command line is.
    """
    texts = [setting.text for setting in file]
    # The core is a choice, not a mistake: the file has to support it.
    core = [text for text in typed if parse_override(text).sets("core")]
    if len(typed) > len(core) and _outcome([*texts, *core]) != message:
        return None
    for setting in reversed(file):
        if message.startswith((f"configuration: {setting.key}=", f"unknown key {setting.key!r}")):
            return setting
    for i in reversed(range(len(file))):
        if _outcome([*texts[:i], *texts[i + 1 :], *typed]) != message:
            return file[i]
    return Setting("", "", None)


def _outcome(overrides: Sequence[str]) -> str:
    """The error of overrides; empty if there is none."""
    try:
        compose(overrides)
    except UserError as error:
        return str(error)
    return ""


RunPlace = tuple[str, str, int]  # model, variant as in the plan, seed


@dataclass(frozen=True, slots=True)
class PlannedRun:
    """One run, and the name of its variant in each sweep that it belongs to."""

    run_id: str
    variants: dict[str, str]
    spec: RunSpec
    layout: LayoutSpec
    resources: ResourcesSpec

    @property
    def variant(self) -> str:
        """The variant's name in the first of its sweeps."""
        return next(iter(self.variants.values()))

    def place(self, sweep: str) -> RunPlace:
        """Its model, its variant in a sweep, and its seed."""
        return self.spec.model.name, self.variants[sweep], self.spec.seed

    @property
    def names(self) -> dict[str, Any]:
        """What the status in its folder says of what the run is (`runs.folder.NAMES`)."""
        return {**names(self.spec), "variants": variants_text(self.variants)}


@dataclass(frozen=True)
class DeclaredRuns:
    """All runs of the file, with those overrides that change them, whatever else the command line selects.

    `settings`: digest of the settings of all runs, also of those in conf/, apart from the seed. `starts`: the warm
    start of a run's model, None if it has none, and the seed of the run.
    """

    places: frozenset[RunPlace] = frozenset()
    settings: str = ""
    starts: frozenset[tuple[Any, int]] = frozenset()


@dataclass(frozen=True)
class Enumerated:
    """The runs of a sweep as narrowed by the command line, and the overrides that apply to none of them.

    `keys`: the axes, of the file and of the command line. `axes`: the label of each variant -> its name in the file,
    and its axis values (not of seed and model). `shared` is the configuration common to all runs (paths, launcher and
    tracking); None if every run is excluded. `changes`: the overrides that change the runs declared in the file
    (`changes`). `declared`: what the hypotheses are about.
    """

    sweep: Sweep
    runs: tuple[PlannedRun, ...]
    keys: tuple[str, ...]
    axes: dict[str, tuple[str, dict[str, Scalar]]]
    shared: Composed | None
    unused: tuple[str, ...]
    changes: tuple[str, ...]
    declared: DeclaredRuns

    @cached_property
    def colours(self) -> dict[str, str]:
        """The colour of each variant, as its report has it: of some variants as they are among all. Settings of an axis
        are variants as far as they are planned.
        """
        variants, planned = self.sweep.variants, dict.fromkeys(run.variant for run in self.runs)
        return colours(tuple(variants if planned.keys() <= variants.keys() else planned))


def enumerate_runs(sweep: Sweep, overrides: Sequence[str]) -> Enumerated:
    """Enumerate the runs of `sweep`; overrides for `model`, `variant` and its axes select among them.

    Raises UserError for a bad override or configuration.
    """
    grid = narrow(sweep, overrides)
    runs: dict[str, PlannedRun] = {}
    places: dict[RunPlace, str] = {}
    axes: dict[str, tuple[str, dict[str, Scalar]]] = {}
    composed = None
    faults: dict[str, str] = {}  # variant -> the error of the first of its runs
    for point in included(grid):
        if point.variant in faults:
            continue
        try:
            composed = _composed(grid, point)
        except UserError as error:
            if not str(error).startswith(f"sweep {sweep.source}: "):  # the command line is at fault
                raise
            faults[point.variant] = str(error)
            if len(faults) > MOST_FAULTS:
                break
            continue
        run = PlannedRun(
            composed.run.run_id, {sweep.name: point.label}, composed.run, composed.layout, composed.resources
        )
        twin = runs.setdefault(run.run_id, run)
        if twin.variant != run.variant:
            raise UserError(
                f"sweep {sweep.source}: variants {twin.variant!r} and {run.variant!r} compose to the same run "
                f"{run.run_id}: remove one, or the override that makes them equal"
            )
        values = {key: value for key, value in point.axes.items() if key not in UNNAMED}
        axes[point.label] = (point.variant or sweep.name, values)
        where = run.place(sweep.name)
        if places.setdefault(where, run.run_id) != run.run_id:
            raise UserError(
                f"sweep {sweep.source}: variant {run.variant!r} on {where[0]} with seed {where[2]} names two "
                "different runs: give each setting a variant of its own; only models and seeds make runs of one variant"
            )
    used = {name for point in points(grid) for name in (*point.axes, *point.overrides)}
    texts = [*faults.values(), *_axis_faults(grid, used), *_hypothesis_faults(grid)]
    if texts:
        raise together(texts, f"sweep {sweep.source}: ")
    asked = [text for key, text in grid.asked.items() if key not in used]
    unused = [*(text for text in grid.common if text not in used), *asked]
    declared = as_declared(grid)
    return Enumerated(
        sweep,
        tuple(runs.values()),
        tuple(grid.axes),
        axes,
        composed,
        tuple(unused),
        changes(declared, unused),
        _declared_runs(declared) if sweep.hypotheses else DeclaredRuns(),
    )


def _declared_runs(grid: Grid) -> DeclaredRuns:
    """What hypotheses are registered about. The settings of a model and variant are those of its first run."""
    places: set[RunPlace] = set()
    starts: set[tuple[Any, int]] = set()
    cells: dict[str, RunSpec] = {}
    seeds: dict[str, int] = {}
    for point in included(grid):
        cell, given = f"{point.model} {point.label}", str(point.values.get("seed"))
        if cell not in cells or given not in seeds:  # each seed is checked once
            run = _composed(grid, point).run
            cells.setdefault(cell, run)
            seeds[given] = run.seed
        run, seed = cells[cell], seeds[given]
        places.add((run.model.name, point.label, seed))
        starts.add((getattr(run.model, "warm_start", None), seed))
    lines = [f"{cell} {run.model_copy(update={'seed': 0}).run_id}" for cell, run in cells.items()]
    return DeclaredRuns(frozenset(places), schema.digest("\n".join(sorted(lines))), frozenset(starts))


def _composed(grid: Grid, point: GridPoint) -> Composed:
    """The configuration of a run. Errors name the location in the file that caused them."""
    resources = _resources(grid, point)
    settings = {"model": point.model, **point.values}
    texts = [override_text(key, value) for key, value in settings.items()]
    try:
        return compose([*texts, *(setting.text for setting in resources), *point.overrides])
    except UserError as error:
        file = [
            Setting("models", "model", point.model),
            *(Setting(f"variants.{point.variant}.{key}", key, value) for key, value in point.keys.items()),
            *(Setting(f"axes.{key}", key, value) for key, value in point.axes.items()),
        ]
        asked = {*grid.asked, *["model"] * grid.models_asked}
        typed = [setting.text for setting in file if setting.key in asked]
        file = [setting for setting in file if setting.key not in asked] + resources
        raise located(error, grid.sweep.source, file, [*typed, *point.overrides]) from None


def _resources(grid: Grid, point: GridPoint) -> list[Setting]:
    """The cluster resources of a run from the file: later entries override earlier ones, and the command line overrides
    all.
    """
    by_key: dict[str, Setting] = {}
    for i, rule in enumerate(grid.sweep.resources):
        if rule.for_ is not None and not meets(point, rule.for_):
            continue
        settings = rule.settings()
        if "layout" in settings:
            by_key = {key: setting for key, setting in by_key.items() if not key.startswith("layout.")}
        by_key |= {
            key: Setting(f"resources.{i}.{name}", key, value) for key, (name, value) in settings.items()
        }
    typed = {parse_override(text).key for text in grid.common}
    if "layout" in typed:
        typed |= {key for key in by_key if key.startswith("layout.")}
    return [setting for key, setting in by_key.items() if key not in typed]


def _hypothesis_faults(grid: Grid) -> Iterator[str]:
    """What is wrong with a baseline that no run has, and with hypotheses about scores that do not name variants with
    the axis values in their labels, since no run tests them. An error is averaged over the horizons, so those
    hypotheses name the variant alone.
    """
    sweep = grid.sweep
    if not (sweep.hypotheses or sweep.baseline):
        return
    everything = list(included(whole(sweep, grid.core)))
    labels = list(dict.fromkeys(point.label for point in everything))
    cells: dict[tuple[str, str], set[str]] = {}
    for point in everything if sweep.exclude else ():
        cells.setdefault((point.model, str(point.values.get("seed"))), set()).add(point.label)
    own_core = set(sweep.models) <= {grid.core, ANY_CORE}
    names = {*labels, *(point.variant or sweep.name for point in everything)}
    if sweep.baseline and own_core and sweep.baseline not in names:
        yield f"sweep {sweep.source}: {unknown('baseline', sweep.baseline, names)}"
    for key, hypothesis in sweep.hypotheses.items():
        where = f"sweep {sweep.source}: hypotheses.{key}"
        if hypothesis.outcome == "error_slope" and len(sweep.axes_of(grid.core).get(schema.HORIZON, ())) < 2:
            yield (
                f"{where}: outcome=error_slope needs two horizons or more: give axes.{schema.HORIZON} several values"
            )
        for name in hypothesis.variants if hypothesis.outcome not in ERRORS else ():
            longer = [text for text in labels if text.startswith(f"{name} ")]
            if name in labels:
                continue
            if longer:
                yield (
                    f"{where}: the file's axes are part of the names of variants: {name!r} is "
                    f"{' or '.join(map(repr, longer[:3]))}: name that, or set the axis' key in each variant"
                )
            elif own_core and is_of(name, sweep.variants):
                yield f"{where}: no run is of variant {name!r} (variants: {', '.join(map(repr, labels[:5]))})"
        if hypothesis.outcome in ERRORS or not {*labels} >= {*hypothesis.variants}:
            continue
        # A cell with some of its variants and not all: that comparison could never be decided.
        tested = {str(seed) for seed in hypothesis.test_seeds}
        for (model, seed), variants in cells.items():
            lacking = [name for name in hypothesis.variants if name not in variants]
            present = [name for name in hypothesis.variants if name in variants]
            if seed in tested and present and lacking:
                yield (
                    f"{where}: `exclude` leaves model {model!r}, seed {seed}, with runs of "
                    f"{', '.join(map(repr, present))} and without {', '.join(map(repr, lacking))}, so they are never "
                    "compared: exclude all of them there, or none"
                )
                break


def _axis_faults(grid: Grid, used: set[str]) -> Iterator[str]:
    """What is wrong with axes of the file that apply to no run of the whole sweep."""
    idle = [key for key in grid.axes if key not in used and key not in grid.asked]
    if not idle:
        return
    everything = whole(grid.sweep, grid.core)
    declared = list(points(everything))
    chosen = choices(everything, declared[0].model, declared[0].values)
    for key in idle:
        if any(key in point.axes for point in declared):
            continue
        where = f"sweep {grid.sweep.source}: axes.{key}"
        try:
            compose([*chosen, override_text(key, grid.axes[key][0])])
        except UserError as error:
            yield f"{where}: {error}"
        else:
            yield f"{where}: no run of the sweep depends on {key!r}: remove it"
