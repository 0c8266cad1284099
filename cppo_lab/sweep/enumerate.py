"""Enumerates the runs of one sweep: models x variants x axes, each composed and validated.

An error in composing a run is located in the sweep file, or on the command line.
"""

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from cppo_lab import schema
from cppo_lab.errors import MOST_FAULTS, UserError, together
from cppo_lab.spec import LayoutSpec, ResourcesSpec, RunSpec
from cppo_lab.spec.run import digest
from cppo_lab.sweep.compose import Composed, compose
from cppo_lab.sweep.file import ANY_CORE, ERRORS, Scalar, Sweep
from cppo_lab.sweep.grid import (
    Fit,
    Fitting,
    Grid,
    GridPoint,
    changes,
    check_names,
    declared_conditions,
    is_elsewhere,
    label,
    meets,
    narrow,
    nothing_met,
    short_names,
    whole,
    without_selections,
)
from cppo_lab.sweep.groups import groups
from cppo_lab.sweep.overrides import override_text, read


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
    """The error with the file and key that caused it, or unchanged if the command line is at fault.

    `file` are the settings of the run from the file, `typed` the overrides from the command line. The cause is the last
    setting whose removal changes the outcome of composing.
    """
    texts = [setting.text for setting in file]
    # The core is a choice, not a mistake: the file has to support it.
    core = [text for text in typed if read(text).sets("core")]
    if len(typed) > len(core) and _outcome([*texts, *core]) != str(error):
        return error
    for setting in reversed(file):
        if str(error).startswith((f"configuration: {setting.key}=", f"unknown key {setting.key!r}")):
            return _named(error, source, setting)
    for i in reversed(range(len(file))):
        if _outcome([*texts[:i], *texts[i + 1 :], *typed]) != str(error):
            return _named(error, source, file[i])
    return UserError(f"sweep {source}: {str(error).removeprefix('configuration: ')}")


def _named(error: UserError, source: str, setting: Setting) -> UserError:
    text = str(error).removeprefix("configuration: ")
    said = f"{setting.key}={setting.value!r}"
    if text.startswith(said):
        return UserError(f"sweep {source}: {setting.where}={text.removeprefix(setting.key + '=')}")
    return UserError(f"sweep {source}: {setting.where}={setting.value!r}: {text}")


def _outcome(overrides: Sequence[str]) -> str:
    """The error of overrides; empty if there is none."""
    try:
        compose(overrides)
    except UserError as error:
        return str(error)
    return ""


MAX_RUNS = 1_000_000


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


RunPlace = tuple[str, str, int]  # model, variant as in the plan, seed


@dataclass(frozen=True)
class DeclaredRuns:
    """All runs of the file, with those overrides that change them, whatever else the command line selects.

    `settings`: digest of the settings of all runs, also of those in conf/, apart from the seed.
    """

    places: frozenset[RunPlace]
    settings: str


@dataclass(frozen=True)
class Enumerated:
    """The runs of one sweep as narrowed by the command line, and the overrides that apply to none of them.

    `shared` is the configuration common to all runs (paths, launcher and tracking); None if every run is excluded.
    `changes`: the overrides that change the runs declared in the file (`grid.changes`). `declared`: None for a sweep
    without hypotheses.
    """

    sweep: Sweep
    runs: tuple[PlannedRun, ...]
    shared: Composed | None
    unused: tuple[str, ...]
    changes: tuple[str, ...] = ()
    declared: DeclaredRuns | None = None


def enumerate_runs(sweep: Sweep, overrides: Sequence[str]) -> Enumerated:
    """Enumerate the runs of `sweep`; overrides for `model`, `variant` and its axes select among them.

    Raises UserError for a bad override or configuration.
    """
    grid = narrow(sweep, overrides)
    fitting, names = Fitting(grid), short_names(grid.axes)
    runs: dict[str, PlannedRun] = {}
    places: dict[tuple[str, str, int], str] = {}
    composed = None
    faults: dict[str, str] = {}  # variant -> the error of the first of its runs
    for place, fit in _places(grid, fitting):
        if any(meets(place, entry) for entry in sweep.exclude) or place.variant in faults:
            continue
        variant = label(place.variant, {key: place.values[key] for key in fit.axes}, names, sweep.name)
        try:
            composed = _composed(grid, place, fit)
        except UserError as error:
            if not str(error).startswith(f"sweep {sweep.source}: "):  # the command line is at fault
                raise
            faults[place.variant] = str(error)
            if len(faults) > MOST_FAULTS:
                break
            continue
        run = PlannedRun(
            composed.run_id, {sweep.name: variant}, composed.run, composed.layout, composed.resources
        )
        twin = runs.setdefault(run.run_id, run)
        if twin.variant != variant:
            raise UserError(
                f"sweep {sweep.source}: variants {twin.variant!r} and {variant!r} compose to the same run "
                f"{run.run_id}: remove one, or the override that makes them equal"
            )
        where = (run.spec.model.name, variant, run.spec.seed)
        if places.setdefault(where, run.run_id) != run.run_id:
            raise UserError(
                f"sweep {sweep.source}: variant {variant!r} on {where[0]} with seed {where[2]} names two "
                "different runs: give each setting a variant of its own; only models and seeds make runs of one variant"
            )
    if faults:
        raise together(faults.values(), f"sweep {sweep.source}: ")
    used = fitting.used()
    _check_axes(grid, used)
    if sweep.hypotheses:
        _check_hypotheses(grid)
    asked = [text for key, text in (grid.asked or {}).items() if key not in used]
    unused = [*(text for text in grid.rest if text not in used), *asked]
    declared = _declared(sweep, overrides) if sweep.hypotheses else None
    return Enumerated(sweep, tuple(runs.values()), composed, tuple(unused), changes(grid, unused), declared)


def _declared(sweep: Sweep, overrides: Sequence[str]) -> DeclaredRuns:
    """What hypotheses are registered about. Composes one run of each model and variant."""
    grid = narrow(sweep, without_selections(sweep, overrides))
    names = short_names(grid.axes)
    places: set[RunPlace] = set()
    settings: dict[tuple[str, str], str] = {}
    models: dict[str, str] = {}  # file in conf/model -> name of the model
    for place, fit in _places(grid, Fitting(grid)):
        if any(meets(place, entry) for entry in sweep.exclude):
            continue
        variant = label(place.variant, {key: place.values[key] for key in fit.axes}, names, sweep.name)
        seed = place.values.get("seed")
        cell = place.model, variant
        if seed is None or cell not in settings:
            run = _composed(grid, place, fit).run
            seed, models[place.model] = run.seed, run.model.name
            settings.setdefault(cell, run.model_copy(update={"seed": 0}).run_id)
        places.add((models[place.model], variant, int(seed)))
    lines = sorted(f"{model} {variant} {run_id}" for (model, variant), run_id in settings.items())
    return DeclaredRuns(frozenset(places), digest("\n".join(lines)))


def _places(grid: Grid, fitting: Fitting) -> Iterator[tuple[GridPoint, Fit]]:
    """Every run that a grid declares, excluded or not, in file order and without duplicates."""
    count = len(grid.models) * len(grid.variants) * math.prod(map(len, grid.axes.values()))
    if count > MAX_RUNS:
        raise UserError(
            f"sweep {grid.sweep.source}: declares {count:,} runs, more than {MAX_RUNS:,}: declare fewer"
        )
    seen: set[tuple[object, ...]] = set()
    for model, (variant, keys) in itertools.product(grid.models, grid.variants.items()):
        for values in itertools.product(*grid.axes.values()):
            point = dict(zip(grid.axes, values, strict=True))
            fit = fitting.of(model, variant, point)
            used = {key: point[key] for key in fit.axes}
            if len(used) < len(point):
                same = (model, variant, *used.items())
                if same in seen:
                    continue
                seen.add(same)
            yield GridPoint(grid.core, model, variant, {**keys, **used}), fit


def _composed(grid: Grid, place: GridPoint, fit: Fit) -> Composed:
    """The configuration of one run. Errors name the location in the file that caused them."""
    resources = _resources(grid, place)
    texts = [
        override_text("model", place.model),
        *(override_text(key, value) for key, value in place.values.items()),
    ]
    try:
        return compose([*texts, *(setting.text for setting in resources), *fit.rest])
    except UserError as error:
        file, typed = _sources(grid, place)
        raise located(error, grid.sweep.source, [*file, *resources], [*typed, *fit.rest]) from None


def _sources(grid: Grid, place: GridPoint) -> tuple[list[Setting], list[str]]:
    """The settings of a run from the file, and the axis settings from the command line."""
    file = [Setting(f"variants.{place.variant}.{key}", key, value) for key, value in place.values.items()]
    file = [one for one in file if one.key in grid.variants[place.variant]]
    typed = []
    for key in grid.axes.keys() & place.values.keys():
        if key in (grid.asked or {}):
            typed.append(override_text(key, place.values[key]))
        else:
            file.append(Setting(f"axes.{key}", key, place.values[key]))
    if grid.models_asked:
        typed.append(override_text("model", place.model))
    else:
        file.insert(0, Setting("models", "model", place.model))
    return file, typed


def _resources(grid: Grid, place: GridPoint) -> list[Setting]:
    """The cluster resources of a run from the file: later entries override earlier ones, and the command line overrides
    all.
    """
    found: dict[str, Setting] = {}
    for i, rule in enumerate(grid.sweep.resources):
        if rule.for_ is not None and not meets(place, rule.for_):
            continue
        settings = rule.settings()
        if "layout" in settings:
            found = {key: one for key, one in found.items() if not key.startswith("layout.")}
        found |= {
            key: Setting(f"resources.{i}.{name}", key, value) for key, (name, value) in settings.items()
        }
    typed = {read(text).key for text in grid.rest}
    if "layout" in typed:
        typed |= {key for key in found if key.startswith("layout.")}
    return [setting for key, setting in found.items() if key not in typed]


def axis_values(sweep: Sweep, overrides: Sequence[str]) -> dict[str, tuple[str, dict[str, Scalar]]]:
    """Label of each variant of `enumerate_runs` -> the variant's name in the file, and its axis values.

    Excludes seed and model, and composes nothing. Raises UserError as `enumerate_runs`.
    """
    return _labels(narrow(sweep, overrides))


def _labels(grid: Grid) -> dict[str, tuple[str, dict[str, Scalar]]]:
    """See `axis_values`."""
    sweep, names = grid.sweep, short_names(grid.axes)
    found: dict[str, tuple[str, dict[str, Scalar]]] = {}
    for place, fit in _places(grid, Fitting(grid)):
        own = {key: place.values[key] for key in fit.axes if key in names}
        if not any(meets(place, entry) for entry in sweep.exclude):
            found[label(place.variant, own, names, sweep.name)] = (place.variant or sweep.name, own)
    return found


def _check_hypotheses(grid: Grid) -> None:
    """Check that each hypothesis about scores names variants with the axis values in their labels.

    Otherwise no run tests it. An error is averaged over the horizons, so those hypotheses name the variant alone.

    Raises UserError for the first that does not.
    """
    sweep = grid.sweep
    labels = _labels(whole(sweep, grid.core))
    own_core = set(sweep.models) <= {grid.core, ANY_CORE}
    for key, one in sweep.hypotheses.items():
        if one.outcome == "error_slope" and len(sweep.axes_of(grid.core).get(schema.HORIZON, ())) < 2:
            raise UserError(
                f"sweep {sweep.source}: hypotheses.{key}: outcome=error_slope needs two horizons or more: give "
                f"axes.{schema.HORIZON} several values"
            )
        for name in one.variants if one.outcome not in ERRORS else ():
            longer = [text for text in labels if text.startswith(f"{name} ")]
            if longer and name not in labels:
                raise UserError(
                    f"sweep {sweep.source}: hypotheses.{key}: the file's axes are part of the names of variants: "
                    f"{name!r} is {' or '.join(map(repr, longer[:3]))}: name that, or set the axis' key in each variant"
                )
            if own_core and name not in labels:
                raise UserError(
                    f"sweep {sweep.source}: hypotheses.{key}: no run is of variant {name!r} (variants: "
                    f"{', '.join(map(repr, list(labels)[:5]))})"
                )


def _check_axes(grid: Grid, used: set[str]) -> None:
    """Check that every axis of the file applies to some run of the whole sweep.

    Raises UserError for the first that does not.
    """
    asked = grid.asked or {}
    idle = [key for key in grid.axes if key not in used and key not in asked]
    if not idle:
        return
    everything = whole(grid.sweep, grid.core)
    fitting = Fitting(everything)
    places = [place for place, _ in _places(everything, fitting)]
    idle = [key for key in idle if key not in fitting.used()]
    if not idle:
        return
    key, place = idle[0], places[0]
    choices = fitting.choices(place.model, place.variant, place.values)
    try:
        compose([*choices, override_text(key, grid.axes[key][0])])
    except UserError as error:
        raise UserError(f"sweep {grid.sweep.source}: axes.{key}: {error}") from None
    raise UserError(
        f"sweep {grid.sweep.source}: axes.{key}: no run of the sweep depends on {key!r}: remove it"
    )


def check_conditions(sweep: Sweep, core: str) -> None:
    """Check that every entry of `exclude` and every `for` of `resources` matches some run of the whole sweep, for this
    core.

    Raises UserError for the first that does not match any.
    """
    cores = groups()["core"]
    check_names(sweep, core, cores)
    open_ = {
        where: conditions
        for where, conditions in declared_conditions(sweep)
        if core in conditions.get("core", (core,)) and not is_elsewhere(sweep, conditions, core, cores)
    }
    if not open_:
        return
    grid = whole(sweep, core)
    for place, _ in _places(grid, Fitting(grid)):
        open_ = {where: conditions for where, conditions in open_.items() if not meets(place, conditions)}
        if not open_:
            return
    raise nothing_met(sweep, *next(iter(open_.items())))
