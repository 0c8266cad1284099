"""From one sweep to the runs it means: models x variants x axes, each composed and validated."""

import itertools
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from cppo_lab.errors import UserError, unknown
from cppo_lab.launch.base import LauncherSpec
from cppo_lab.spec import LayoutSpec, PathsSpec, RunSpec
from cppo_lab.sweep.compose import TrackingSpec, UnknownKey, compose, groups, groups_set_by
from cppo_lab.sweep.declare import ANY_CORE, Scalar, Sweep

DEFAULT_CORE = "mini"  # as in conf/config.yaml


@dataclass(frozen=True)
class PlannedRun:
    """One run, and the name of its variant in each sweep that it belongs to."""

    run_id: str
    variants: dict[str, str]
    spec: RunSpec
    layout: LayoutSpec

    @property
    def variant(self) -> str:
        """Its name in the first of its sweeps."""
        return next(iter(self.variants.values()))


@dataclass(frozen=True)
class Enumerated:
    """The runs of one sweep as narrowed by the command line, and the overrides that none of them could use."""

    sweep: Sweep
    runs: tuple[PlannedRun, ...]
    paths: PathsSpec
    launcher: LauncherSpec
    tracking: TrackingSpec
    unused: tuple[str, ...]


def core_of(overrides: Sequence[str]) -> str:
    """The trainer core that the overrides choose."""
    return next((text[5:] for text in reversed(overrides) if text.startswith("core=")), DEFAULT_CORE)


def enumerate_runs(sweep: Sweep, overrides: Sequence[str]) -> Enumerated:
    """Every run of `sweep`; `model=`, `variant=` and its axes among the overrides choose what there is.

    Raises UserError for a bad override or configuration.
    """
    sweep, rest = _narrow(sweep, overrides)
    _check_keys(sweep)
    runs: dict[str, PlannedRun] = {}
    places: dict[tuple[str, str, int], str] = {}
    applied: set[str] = set()
    composed = None
    for variant, fixed in _combinations(sweep):
        fitting = [text for text in rest if _fits(text, fixed)]
        applied.update(fitting)
        composed = compose([*fixed, *fitting])
        run = PlannedRun(composed.run.run_id, {sweep.name: variant}, composed.run, composed.layout)
        twin = runs.setdefault(run.run_id, run)
        if twin.variant != variant:
            raise UserError(
                f"sweep {sweep.name}: variants {twin.variant!r} and {variant!r} compose to the same run "
                f"{run.run_id}: remove one, or the override that makes them equal"
            )
        place = (run.spec.model.name, variant, run.spec.seed)
        if places.setdefault(place, run.run_id) != run.run_id:
            raise UserError(
                f"sweep {sweep.name}: variant {variant!r} on {place[0]} with seed {place[2]} stands for two different "
                "runs: give each setting a variant of its own; only models and seeds make runs of one variant"
            )
    assert composed is not None
    unused = tuple(text for text in rest if text not in applied)
    return Enumerated(
        sweep, tuple(runs.values()), composed.paths, composed.launcher, composed.tracking, unused
    )


def refuse(unused: Sequence[str]) -> None:
    """Say what is wrong with the first override that no run could use."""
    for text in unused:
        _fits(text, (), must=True)


def _check_keys(sweep: Sweep) -> None:
    """A key has one source, and a sweep says nothing of how runs are started or tracked."""
    for variant, keys in sweep.variants.items():
        for key in keys:
            if key in sweep.axes or key == "model":
                raise UserError(
                    f"sweep {sweep.name}: variant {variant!r} sets {key!r}, which is an axis too: keep one of them"
                )
    for key in [*sweep.axes, *(key for keys in sweep.variants.values() for key in keys)]:
        if key.partition(".")[0] in ("launcher", "tracking", "paths"):
            raise UserError(f"sweep {sweep.name}: {key!r} belongs on the command line, not in a sweep file")


def _combinations(sweep: Sweep) -> Iterator[tuple[str, tuple[str, ...]]]:
    """(variant, overrides) of every run that the sweep declares."""
    axes = [[(key, value) for value in values] for key, values in sweep.axes.items()]
    for model, (variant, keys) in itertools.product(sweep.models[ANY_CORE], sweep.variants.items()):
        for point in itertools.product(*axes):
            pairs = [("model", model), *keys.items(), *point]
            yield variant, tuple(f"{key}={quote(value)}" for key, value in pairs)


def _narrow(sweep: Sweep, overrides: Sequence[str]) -> tuple[Sweep, list[str]]:
    """Apply the overrides that choose what to enumerate; return the rest."""
    chosen = {key for keys in sweep.variants.values() for key in keys}
    chosen |= {
        group for keys in sweep.variants.values() for group in groups_set_by(str(keys.get("rule", "")))
    }
    changes: dict[str, object] = {}
    if not any(text.startswith("model=") for text in overrides):
        changes["models"] = {ANY_CORE: sweep.models_of(core_of(overrides))}
    axes, rest = dict(sweep.axes), []
    for text in overrides:
        key, equals, value = text.partition("=")
        if not equals or not key:
            raise UserError(f"override {text!r} is not of the form key=value")
        if key == "model":
            changes["models"] = {ANY_CORE: tuple(value.split(","))}
        elif key == "variant":
            names = value.split(",")
            for name in names:
                if name not in sweep.variants:
                    raise unknown(f"variant of sweep {sweep.name}", name, sweep.variants)
            changes["variants"] = {name: sweep.variants[name] for name in names}
        elif key in axes:
            axes[key] = tuple(_scalar(part) for part in value.split(","))
        elif key in chosen or key.partition(".")[0] in chosen & set(groups()) - {"rule"}:
            raise UserError(
                f"override {text!r}: the variants of sweep {sweep.name} set {key!r} themselves; choose among them "
                f"with variant= (valid: {', '.join(sweep.variants)})"
            )
        else:
            rest.append(text)
    return sweep.model_copy(update={**changes, "axes": axes}), rest


def _fits(text: str, fixed: Sequence[str], must: bool = False) -> bool:
    """Whether an override applies to a run: a rule's constant only to rules that have it."""
    key = text.split("=", 1)[0].lstrip("+~")
    if key.startswith("trust_region."):
        # Constants that rules take from their model: no part of a run by themselves.
        if must:
            raise UserError(f"override {text!r}: no run of this sweep depends on {key!r}; remove it")
        return compose([*fixed, text]).run.run_id != compose(fixed).run.run_id
    if not must and not key.startswith("rule."):
        return True
    try:
        compose([*fixed, text])
    except UnknownKey as error:
        if must or error.key != key:
            raise
        return False
    if must:
        raise UserError(f"override {text!r}: no variant of this sweep has the key {key!r}; remove it")
    return True


def _scalar(text: str) -> Scalar:
    """A value of an axis as typed on the command line."""
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def quote(value: Scalar) -> str:
    """A value in Hydra's override grammar; text is always quoted, so that nothing in it is syntax."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)
    if value.replace("_", "").replace("-", "").isalnum() and value.isascii():
        return value
    if "${" in value:
        raise UserError(f"value {value!r}: a sweep file holds plain values; ${{...}} belongs into conf/")
    # In Hydra's grammar a backslash is special only in a run of them before a quote.
    escaped = re.sub(r"(\\*)('|$)", lambda m: m[1] * 2 + ("\\'" if m[2] else ""), value)
    return f"'{escaped}'"
