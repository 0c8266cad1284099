"""The grid declared by a sweep file together with the command line."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from cppo_lab.core_records import DEFAULT_CORE
from cppo_lab.errors import UserError, unknown
from cppo_lab.sweep.compose import groups_set_by
from cppo_lab.sweep.declare import Sweep
from cppo_lab.sweep.declared import Scalar
from cppo_lab.sweep.groups import groups
from cppo_lab.sweep.overrides import Override, read
from cppo_lab.sweep.rule_files import PATH_REMEDY, RULE_PATH

LAUNCHING = ("launcher", "tracking", "paths")
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
    axes: Mapping[str, tuple[Scalar, ...]]
    rest: tuple[str, ...] = ()
    asked: Mapping[str, str] | None = None
    models_asked: bool = False


def core_of(overrides: Sequence[str]) -> str:
    """The trainer core that the overrides choose."""
    cores = [str(override.right) for override in map(read, overrides) if override.sets("core")]
    return cores[-1] if cores else DEFAULT_CORE


def whole(sweep: Sweep, core: str, rest: Sequence[str] = ()) -> Grid:
    """The complete grid of the file for a core."""
    if core not in groups()["core"]:
        raise unknown("core", core, groups()["core"])
    return Grid(sweep, core, sweep.models_of(core), sweep.variants, sweep.axes_of(core), tuple(rest))


def narrow(sweep: Sweep, overrides: Sequence[str]) -> Grid:
    """Apply the overrides that select what to enumerate; the others apply to every run.

    Raises UserError for an invalid override, and for a key that the file should not set.
    """
    check_keys(sweep)
    core = core_of(overrides)
    if core not in groups()["core"]:
        raise unknown("core", core, groups()["core"])
    models: tuple[str, ...] | None = None
    variants: dict[str, Mapping[str, Scalar]] = dict(sweep.variants)
    asked = dict[str, str]()
    axes, rest = sweep.axes_of(core), list[str]()
    for override in map(read, overrides):
        text, key = override.text, override.key
        if override.right is None or override.sets(""):
            raise UserError(f"override {text!r} is not of the form key=value")
        if override.sets("model"):
            models = tuple(override.names)
        elif override.sets("variant"):
            variants = {name: _variant(sweep, name) for name in override.names}
        elif key in axes and key not in asked:
            axes[key], asked[key] = _axis_values(override), text
        elif key in axes:
            raise UserError(f"override {text!r}: {asked[key]!r} appears too: give {key} once")
        elif (override.sets(key) or key not in groups()) and _is_set_by_variants(sweep, key):
            raise UserError(
                f"override {text!r}: the variants of sweep {sweep.name} set {key!r} themselves; choose among them "
                f"with variant= (valid: {', '.join(name for name in sweep.variants if name) or 'none'})"
            )
        elif override.values() is not None:
            _check_new_axis(override)
            axes[key], asked[key] = _axis_values(override), text
        else:
            rest.append(text)
    chosen = models or sweep.models_of(core)
    return Grid(sweep, core, chosen, variants, axes, tuple(rest), asked, models is not None)


def changes(grid: Grid, unused: Sequence[str]) -> tuple[str, ...]:
    """The overrides that change the runs declared in the file, in normalised form; `unused`: overrides that apply to no
    run.

    Selecting among the file's seeds, models and variants does not change a run, nor does the place where it is trained.
    """
    found = []
    for key, text in (grid.asked or {}).items():
        declared = grid.sweep.axes_of(grid.core).get(key, ())
        if text not in unused and any(value not in declared for value in grid.axes[key]):
            found.append(f"{key}={','.join(sorted(map(repr, grid.axes[key])))}")
    for text in grid.rest:
        override = read(text)
        section = override.key.partition(".")[0]
        if text not in unused and section not in (*LAUNCHING, "core", "layout", "resources"):
            found.append(text if override.kind == "other" else f"{override.key}={override.value!r}")
    own = grid.sweep.models_of(grid.core)
    if others := sorted(model for model in grid.models if model not in own):
        found.append(f"model={','.join(others)}")
    return tuple(sorted(found))


def without_selections(sweep: Sweep, overrides: Sequence[str]) -> list[str]:
    """The overrides without those that only select among the models, variants and axis values of the file.

    Expects overrides that `narrow` accepts.
    """
    core = core_of(overrides)
    axes = sweep.axes_of(core)
    kept = []
    for override in map(read, overrides):
        if override.sets("variant"):
            continue
        if override.sets("model") and set(override.names) <= set(sweep.models_of(core)):
            continue
        if override.key in axes and set(_axis_values(override)) <= set(axes[override.key]):
            continue
        kept.append(override.text)
    return kept


def check_keys(sweep: Sweep) -> None:
    """Check that each key has one source, and that a sweep does not declare how runs are started or tracked.

    Raises UserError for a key that belongs elsewhere.
    """
    for variant, keys in sweep.variants.items():
        for key in keys:
            if key in sweep.axes or key == "model":
                raise UserError(
                    f"sweep {sweep.source}: variants.{variant}.{key}: variant {variant!r} sets {key!r}, "
                    "which is an axis too: keep one of them"
                )
            if key == "core":
                raise UserError(f"sweep {sweep.source}: variants.{variant}.{key}: {NO_AXIS['core']}")
    places: list[tuple[str, str, object]] = [(f"axes.{key}", key, value) for key, value in sweep.axes.items()]
    places += [
        (f"variants.{name}.{key}", key, value)
        for name, keys in sweep.variants.items()
        for key, value in keys.items()
    ]
    for where, key, value in places:
        if key == RULE_PATH:
            raise UserError(f"sweep {sweep.source}: {where}={value!r}: {PATH_REMEDY}")
        if key.partition(".")[0] in LAUNCHING:
            raise UserError(
                f"sweep {sweep.source}: {where}: {key!r} belongs on the command line, not in a sweep file"
            )
        if key.startswith("resources."):
            raise UserError(f"sweep {sweep.source}: {where}: {NO_AXIS['resources']}")
    for key in sweep.axes:
        section = key.partition(".")[0]
        remedy = NO_AXIS.get(section if section in ("layout", "resources") else key)
        if remedy is not None:
            raise UserError(f"sweep {sweep.source}: axes.{key}: {key!r} is no axis: {remedy}")


def _variant(sweep: Sweep, name: str) -> Mapping[str, Scalar]:
    if not name or name not in sweep.variants:
        raise unknown(f"variant of sweep {sweep.name}", name, filter(None, sweep.variants))
    return sweep.variants[name]


def _is_set_by_variants(sweep: Sweep, key: str) -> bool:
    """Whether an override would overwrite a key that distinguishes variants or axis values."""
    chosen = {key for keys in sweep.variants.values() for key in keys}
    rules = [keys.get("rule", "") for keys in sweep.variants.values()]
    rules += [rule for values in sweep.axes.get("rule", {}).values() for rule in values]
    chosen |= {group for rule in rules for group in groups_set_by(str(rule))}
    return key in chosen or key.partition(".")[0] in chosen & set(groups()) - {"rule"}


def _check_new_axis(override: Override) -> None:
    """Raise UserError unless the key may take several values, i.e. makes runs differ."""
    text, key = override.text, override.key
    if key.partition(".")[0] in (*LAUNCHING, "core", "layout", "resources"):
        raise UserError(
            f"override {text!r}: {key} takes one value for all runs; a comma within it needs quotes: {key}=\"'a,b'\""
        )
    if not override.sets(key):
        raise UserError(f"override {text!r}: only a key that is there can take several values: give one")


def _axis_values(override: Override) -> tuple[Scalar, ...]:
    """The values that an override gives an axis."""
    key, values = override.key, override.values()
    if values is None:
        if override.kind == "other":
            override.check()
            raise UserError(f"override {override.text!r}: {key} takes plain values here: {key}=1,2")
        values = (override.value,)
    elif override.sign:
        _check_new_axis(override)
    if any(isinstance(item, list | dict) for item in values):
        raise UserError(f"override {override.text!r}: {key} takes plain values here, not lists: {key}=1,2")
    return tuple(dict.fromkeys(values))
