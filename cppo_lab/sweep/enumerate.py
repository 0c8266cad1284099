"""Enumerates the runs of a sweep: models x variants x axes, each composed and validated.

An error in composing a run is located in the sweep file, or on the command line.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cppo_lab import schema
from cppo_lab.errors import ALSO, MOST_FAULTS, UserError, together, unknown
from cppo_lab.runs.folder import variants_text
from cppo_lab.runs.tags import names
from cppo_lab.spec import LayoutSpec, ResourcesSpec, RunSpec
from cppo_lab.sweep.compose import Composed, compose
from cppo_lab.sweep.file import ANY_CORE, ERRORS, Hypothesis, Scalar, Sweep, is_of
from cppo_lab.sweep.grid import (
    UNNAMED,
    Grid,
    GridPoint,
    as_declared,
    changes,
    choices,
    included,
    meets,
    narrow,
    points,
    whole,
)
from cppo_lab.sweep.groups import groups
from cppo_lab.sweep.overrides import override_text, parse_override


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

    @property
    def names(self) -> dict[str, Any]:
        """What the status in its folder says of what the run is (`runs.folder.NAMES`)."""
        return {**names(self.spec), "variants": variants_text(self.variants)}


RunPlace = tuple[str, str, int]  # model, variant as in the plan, seed


@dataclass(frozen=True)
class DeclaredRuns:
    """All runs of the file, with those overrides that change them, whatever else the command line selects.

    `settings`: digest of the settings of all runs, also of those in conf/, apart from the seed. `starts`: the warm
    start of a run's model, None if it has none, and the seed of the run.
    """

    places: frozenset[RunPlace]
    settings: str
    starts: frozenset[tuple[Any, int]]


@dataclass(frozen=True)
class Enumerated:
    """The runs of a sweep as narrowed by the command line, and the overrides that apply to none of them.

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
    runs: dict[str, PlannedRun] = {}
    places: dict[RunPlace, str] = {}
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
        where = (run.spec.model.name, run.variant, run.spec.seed)
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
        composed,
        tuple(unused),
        changes(declared, unused),
        _declared_runs(declared) if sweep.hypotheses else None,
    )


def _declared_runs(grid: Grid) -> DeclaredRuns:
    """What hypotheses are registered about. Composes one run of each model and variant."""
    places: set[RunPlace] = set()
    starts: set[tuple[Any, int]] = set()
    cells: dict[tuple[str, str], tuple[str, Any]] = {}
    models: dict[str, str] = {}  # file in conf/model -> name of the model
    for point in included(grid):
        seed, cell = point.values.get("seed"), (point.model, point.label)
        if type(seed) is not int or cell not in cells:
            run = _composed(grid, point).run
            seed, models[point.model] = run.seed, run.model.name
            start = getattr(run.model, "warm_start", None)
            cells.setdefault(cell, (run.model_copy(update={"seed": 0}).run_id, start))
        places.add((models[point.model], point.label, seed))
        starts.add((cells[cell][1], seed))
    lines = sorted(f"{model} {variant} {run_id}" for (model, variant), (run_id, _) in cells.items())
    return DeclaredRuns(frozenset(places), schema.digest("\n".join(lines)), frozenset(starts))


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


def axis_values(sweep: Sweep, overrides: Sequence[str]) -> dict[str, tuple[str, dict[str, Scalar]]]:
    """Label of each variant of `enumerate_runs` -> the variant's name in the file, and its axis values.

    Excludes seed and model, and composes nothing. Raises UserError as `enumerate_runs`.
    """
    return {
        point.label: (
            point.variant or sweep.name,
            {key: value for key, value in point.axes.items() if key not in UNNAMED},
        )
        for point in included(narrow(sweep, overrides))
    }


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
        if hypothesis.outcome not in ERRORS and {*labels} >= {*hypothesis.variants}:
            yield from (f"{where}: {text}" for text in _one_sided(hypothesis, cells))


def _one_sided(hypothesis: Hypothesis, cells: Mapping[tuple[str, str], set[str]]) -> Iterator[str]:
    """The first of the `cells`, (model, seed) -> variants that have a run, with some variants of a hypothesis about
    scores and not all: that comparison could never be decided.
    """
    tested = {str(seed) for seed in hypothesis.test_seeds}
    for (model, seed), variants in cells.items():
        present = [name for name in hypothesis.variants if name in variants]
        lacking = [name for name in hypothesis.variants if name not in variants]
        if seed in tested and present and lacking:
            yield (
                f"`exclude` leaves model {model!r}, seed {seed}, with runs of {', '.join(map(repr, present))} "
                f"and without {', '.join(map(repr, lacking))}, so they are never compared: exclude all of them there, "
                "or none"
            )
            return


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
