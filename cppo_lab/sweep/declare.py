"""Sweep files: one YAML file per table or figure panel, which declares what is compared, not how it is run."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from cppo_lab import PARTS_FOLDER
from cppo_lab.core_records import core_names
from cppo_lab.errors import UserError, unknown
from cppo_lab.parse import parse
from cppo_lab.spec import Count, Spec
from cppo_lab.spec.base import Name
from cppo_lab.spec.resources import Features, GpuType, Hours, Memory, Word
from cppo_lab.sweep.declared import ANY_CORE, Declared, Scalar
from cppo_lab.sweep.hypotheses import Hypotheses, Pairing, check_hypotheses, statement
from cppo_lab.sweep.rule_files import read_rules
from cppo_lab.sweep.search_file import Search
from cppo_lab.sweep.source import mapping, read_text

SHIPPED = PARTS_FOLDER / "sweeps"


def _is_scalar(value: object) -> bool:
    return value is None or isinstance(value, str | int | float)


def _names(value: Any) -> dict[str, Any]:
    """Normalise a list of names, or one list per core, to lists by core."""
    lists: dict[str, Any] = value if isinstance(value, dict) else {ANY_CORE: value}
    _refuse_other_cores(lists)
    for names in list(lists.values()) or [None]:
        if not (isinstance(names, list) and names and all(isinstance(name, str) for name in names)):
            raise ValueError("must be a list of one or more names, or such a list for each core")
        _refuse_duplicates(names)
    return {core: tuple(names) for core, names in lists.items()}


def _values(value: Any) -> dict[str, Any]:
    """Normalise a list of values, or one list per core, to lists by core."""
    lists: dict[str, Any] = value if isinstance(value, dict) else {ANY_CORE: value}
    _refuse_other_cores(lists)
    for values in list(lists.values()) or [None]:
        if not (isinstance(values, list) and values and all(map(_is_scalar, values))):
            raise ValueError("must be a list of one or more plain values, or such a list for each core")
        _refuse_duplicates(values)
    return {core: tuple(values) for core, values in lists.items()}


def _refuse_other_cores(lists: Mapping[str, Any]) -> None:
    for core in lists:
        if core not in (ANY_CORE, *core_names()):
            raise ValueError(str(unknown("core", core, core_names())))


def _refuse_duplicates(values: list[Any]) -> None:
    for i, value in enumerate(values):
        if any(same(value, other) for other in values[:i]):
            raise ValueError(f"{value!r} appears twice: remove one")


def same(one: Scalar, other: Scalar) -> bool:
    """Whether two values of a key are equal: 1 equals 1.0, but not true."""
    return one == other and isinstance(one, bool) == isinstance(other, bool)


def _wanted(value: Any) -> Any:
    """A condition's value or values, as values."""
    wanted = value if isinstance(value, list) else [value]
    if not wanted or not all(map(_is_scalar, wanted)):
        raise ValueError("must be a plain value or a list of one or more")
    return tuple(wanted)


def _one_unnamed() -> dict[str, dict[str, Scalar]]:
    return {"": {}}


def _one(value: Any) -> Any:
    if not _is_scalar(value):
        raise ValueError("must be a plain value: several are an axis")
    return value


def _variant_name(value: str) -> str:
    if not value.strip() or value != value.strip() or "," in value:
        raise ValueError("must be a name without commas: the command line lists names (variant=a,b)")
    if not value.isprintable():  # line ends and bidirectional control characters
        raise ValueError(f"must consist of printable characters: {value!a}")
    return value


def _some(value: Any) -> Any:
    if value == {}:
        raise ValueError("must name at least one of variant, model, core, or a key of variants and axes")
    return value


Models = Annotated[dict[str, tuple[str, ...]], BeforeValidator(_names)]
Values = Annotated[dict[str, tuple[Scalar, ...]], BeforeValidator(_values)]
Axes = dict[str, Values]
Conditions = Annotated[
    dict[str, Annotated[tuple[Scalar, ...], BeforeValidator(_wanted)]], BeforeValidator(_some)
]
VariantName = Annotated[str, AfterValidator(_variant_name)]
VariantValue = Annotated[Scalar, BeforeValidator(_one)]


class ResourceRule(Spec):
    """The resources of runs: of all runs, or of those that meet the conditions of `for`."""

    for_: Conditions | None = Field(default=None, alias="for")
    layout: str | None = None
    nodes: Count | None = None
    gpus: Count | None = None  # of each node
    hours: Hours | None = None
    cpus: Count | None = None
    memory_gb: Memory | None = None
    gpu_type: GpuType | None = None
    partition: Word | None = None
    account: Word | None = None
    qos: Word | None = None
    constraint: Features | None = None

    def settings(self) -> dict[str, tuple[str, Scalar]]:
        """The settings in the file, by configuration key: (the file's key, value)."""
        keys = {"layout": "layout", "nodes": "layout.nodes", "gpus": "layout.devices_per_node"}
        return {
            keys.get(name, f"resources.{name}"): (name, getattr(self, name))
            for name in type(self).model_fields
            if name in self.model_fields_set and name != "for_"
        }


class Sweep(Declared):
    """What a sweep file declares.

    Every run of the sweep is a model x variant x one value of each applicable axis. A variant is a name and the
    configuration keys that define it; an axis is a configuration key and its values. `models` and axes are a list, or
    one list per trainer core, so that the same comparison can run at every scale. A plain list is stored under
    ANY_CORE. `exclude` removes the runs that meet all conditions of one of its entries. `hypotheses` are registered in
    the store before the runs that test them. `baseline` is the variant from which the report takes differences; by
    default DPPO, or else the first variant. `beside` names sweeps on the same question, to whose reports the page
    links. `pairing`: whether variants are compared seed by seed; None: decided by their design.
    """

    models: Models
    axes: Axes = Field(default_factory=dict)
    variants: Annotated[dict[VariantName, dict[str, VariantValue]], Field(min_length=1)] = Field(
        default_factory=_one_unnamed
    )
    exclude: tuple[Conditions, ...] = ()
    resources: tuple[ResourceRule, ...] = ()
    hypotheses: Hypotheses = Field(default_factory=dict)
    baseline: str = ""
    beside: tuple[Name, ...] = ()
    pairing: Pairing | None = None

    @model_validator(mode="after")
    def _check_hypotheses(self) -> Self:
        check_hypotheses(self.hypotheses, self.variants, self.models)
        return self

    @model_validator(mode="after")
    def _check_baseline(self) -> Self:
        # Its label may have axis values after the variant's name: `cppo w_min=0.8`.
        if self.baseline and not any(
            f"{self.baseline} ".startswith(f"{name} ".lstrip()) for name in self.variants
        ):
            raise ValueError(str(unknown("baseline", self.baseline, list(self.variants))))
        return self

    @property
    def paired(self) -> bool | None:
        """`pairing` as a boolean, or None if the file does not set it."""
        return None if self.pairing is None else self.pairing == "seed"

    def statement(self, overrides: Sequence[str] = ()) -> tuple[str, str]:
        """The statement of the hypotheses that is registered, with `overrides` that change the runs: a JSON text and
        its digest.
        """
        stated = (self.hypotheses, self.models, self.variants, self.axes, self.exclude)
        return statement(*stated, self.pairing, overrides)

    def models_of(self, core: str) -> tuple[str, ...]:
        """The models to train with `core`.

        Raises UserError if the sweep has none for it.
        """
        return self._of("models", self.models, core)

    def axes_of(self, core: str) -> dict[str, tuple[Scalar, ...]]:
        """The axes with their values for `core`.

        Raises UserError if an axis has none for it.
        """
        return {key: self._of(f"axes.{key}", values, core) for key, values in self.axes.items()}

    def with_axes(self, study: "Study") -> "Sweep":
        """The sweep with axes of the same name replaced by the study's."""
        found = self.model_copy(update={"axes": self.axes | study.axes})
        found._source = f"{self.source} in study {study.source}"
        return found

    def _of(self, where: str, lists: Mapping[str, tuple[Any, ...]], core: str) -> tuple[Any, ...]:
        found = lists.get(core) or lists.get(ANY_CORE)
        if found is None:
            raise UserError(f"sweep {self.source} has no {where} for core={core} (valid: {', '.join(lists)})")
        return found


class Study(Declared):
    """What a study file declares: several sweeps, whose shared runs are trained once.

    `axes` replace axes of the same name in every sweep.
    """

    sweeps: Annotated[tuple[str, ...], Field(min_length=1)]
    axes: Axes = Field(default_factory=dict)


# A file without any of these is not a sweep file.
_TELLING = frozenset({"title", "question", "models", "variants", "axes", "sweeps"})
# The key that determines the kind of a file; without one it is a Sweep.
KINDS: dict[str, type[Sweep] | type[Study]] = {"sweeps": Study}


def shipped_sweeps() -> list[str]:
    """Names of the sweeps shipped with the product."""
    return sorted(Path(entry.name).stem for entry in SHIPPED.iterdir() if entry.name.endswith(".yaml"))


def is_path(name: str) -> bool:
    """Whether a sweep's name is the path of a file."""
    return name.endswith((".yaml", ".yml")) or "/" in name


def load_sweep(name: str) -> Sweep | Study | Search:
    """The sweep, study or search called `name`, or the one in the file `name` if that is a path to a YAML file.

    Raises UserError for an unknown name, an unreadable file, or a key or value that does not belong there.
    """
    if is_path(name):
        path = Path(name)
        try:
            text = read_text(path, name)
        except FileNotFoundError:
            raise UserError(
                f"sweep file {name} does not exist (shipped sweeps: {', '.join(shipped_sweeps())})"
            ) from None
        stem, folder = path.stem, path.parent
    elif name in shipped_sweeps():
        text, stem, folder = (SHIPPED / f"{name}.yaml").read_text(encoding="utf-8"), name, None
    elif Path(name).is_file():
        raise UserError(
            f"{name} is a file, but a sweep file ends with .yaml: rename it, or name it as ./{name}"
        )
    else:
        raise unknown("sweep", name, shipped_sweeps())
    values = {"name": stem, **mapping(text, name)}
    if not values.keys() & (_TELLING | {"search"}):
        keys = ", ".join(sorted(values.keys() - {"name"})[:8]) or "none"
        raise UserError(
            f"{name} is no sweep file: it has the keys {keys}, and none of title, question, models, variants, axes, "
            "sweeps, search: see docs/sweeps.md"
        )
    if folder is not None:
        read_rules(Path(name), name)
    kind = _kind(values)
    found = parse(kind, values, f"{'search' if 'search' in values else 'sweep'} {name}")
    if isinstance(found, Study) and folder is not None:
        parts = tuple(str(folder / part) if is_path(part) else part for part in found.sweeps)
        found = found.model_copy(update={"sweeps": parts})
    found._source = name
    return found


def _kind(values: Mapping[str, Any]) -> type[Sweep] | type[Study] | type[Search]:
    """The kind of a file, determined by a key that only this kind has."""
    if "search" in values:
        return Search
    return Study if "sweeps" in values else Sweep
