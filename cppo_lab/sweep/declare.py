"""Sweep files: one YAML per table or figure panel, saying what is compared and nothing of how it is run."""

from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import yaml
from pydantic import Field, field_validator

from cppo_lab.errors import UserError, unknown
from cppo_lab.parse import parse
from cppo_lab.spec import Spec

if TYPE_CHECKING:
    from cppo_lab.sweep.search.declare import Search

Scalar = str | int | float | bool | None
Axes = dict[str, Annotated[tuple[Scalar, ...], Field(min_length=1)]]
ANY_CORE = "any"
SHIPPED = resources.files("cppo_lab") / "sweeps"


class Sweep(Spec):
    """What a sweep file declares.

    Every run of the sweep is a model x variant x one value of each axis. A variant is a name and the
    configuration keys that make it; an axis is a configuration key and its values. `models` is a list, or a list
    for each trainer core: the same comparison then serves every scale. A plain list is kept under ANY_CORE.
    """

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]*$")]
    title: str
    question: str
    models: dict[str, tuple[str, ...]]
    variants: Annotated[dict[str, dict[str, Scalar]], Field(min_length=1)]
    axes: Axes = Field(default_factory=dict)

    def models_of(self, core: str) -> tuple[str, ...]:
        """The models to train with `core`.

        Raises UserError if the sweep has none for it.
        """
        models = self.models.get(core) or self.models.get(ANY_CORE)
        if models is None:
            raise UserError(
                f"sweep {self.name} has no models for core={core} (valid: {', '.join(self.models)})"
            )
        return models

    @field_validator("models", mode="before")
    @classmethod
    def _by_core(cls, value: Any) -> Any:
        lists = value if isinstance(value, dict) else {ANY_CORE: value}
        for names in lists.values() or [[]]:
            if not (isinstance(names, list) and names and all(isinstance(name, str) for name in names)):
                raise ValueError(
                    f"models={value!r} must be a list of one or more names, or such a list for each core"
                )
        return {core: tuple(names) for core, names in lists.items()}


class Study(Spec):
    """What a study file declares: several sweeps, of which each run is trained once.

    `axes` are those of every sweep, in place of its own of the same name.
    """

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]*$")]
    title: str
    question: str
    sweeps: Annotated[tuple[str, ...], Field(min_length=1)]
    axes: Axes = Field(default_factory=dict)


def shipped_sweeps() -> list[str]:
    """Names of the sweeps that come with the product."""
    return sorted(Path(entry.name).stem for entry in SHIPPED.iterdir() if entry.name.endswith(".yaml"))


def load_sweep(name: str) -> "Sweep | Study | Search":
    """The sweep, study or search called `name`, or the one in the file `name` if that is a path to a YAML file.

    Raises UserError for an unknown name, an unreadable file, or a key or value that does not belong there.
    """
    if name.endswith((".yaml", ".yml")) or "/" in name:
        path = Path(name)
        if not path.is_file():
            raise UserError(
                f"sweep file {name} does not exist (shipped sweeps: {', '.join(shipped_sweeps())})"
            )
        try:
            text, stem = path.read_text(encoding="utf-8"), path.stem
        except UnicodeDecodeError:
            raise UserError(f"sweep file {name} is not UTF-8 text: save it as UTF-8") from None
    elif name in shipped_sweeps():
        text, stem = (SHIPPED / f"{name}.yaml").read_text(encoding="utf-8"), name
    else:
        raise unknown("sweep", name, shipped_sweeps())
    values = {"name": stem, **_mapping(text, name)}
    if "search" in values:
        from cppo_lab.sweep.search.declare import Search

        return parse(Search, values, f"search {name}")
    return parse(Study if "sweeps" in values else Sweep, values, f"sweep {name}")


def _mapping(text: str, source: str) -> dict[str, Any]:
    """The top-level mapping of a YAML text."""
    try:
        values = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        place = f" line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        raise UserError(
            f"sweep {source}{place}: not valid YAML: {getattr(error, 'problem', error)}"
        ) from None
    if not isinstance(values, dict):
        raise UserError(
            f"sweep {source}: a sweep file is a mapping with title, question, models, variants, axes"
        )
    return values
