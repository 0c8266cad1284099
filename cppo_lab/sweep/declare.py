"""Sweep files: one YAML per table or figure panel, saying what is compared and nothing of how it is run."""

from importlib import resources
from pathlib import Path
from typing import Annotated, Any

import yaml
from pydantic import Field

from cppo_lab.errors import UserError, unknown
from cppo_lab.spec import Spec, parse

Scalar = str | int | float | bool | None
SHIPPED = resources.files("cppo_lab") / "sweeps"


class Sweep(Spec):
    """What a sweep file declares.

    Every run of the sweep is a model x variant x one value of each axis. A variant is a name and the
    configuration keys that make it; an axis is a configuration key and its values.
    """

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]*$")]
    title: str
    question: str
    models: Annotated[tuple[str, ...], Field(min_length=1)]
    variants: Annotated[dict[str, dict[str, Scalar]], Field(min_length=1)]
    axes: dict[str, Annotated[tuple[Scalar, ...], Field(min_length=1)]] = Field(default_factory=dict)


def shipped_sweeps() -> list[str]:
    """Names of the sweeps that come with the product."""
    return sorted(Path(entry.name).stem for entry in SHIPPED.iterdir() if entry.name.endswith(".yaml"))


def load_sweep(name: str) -> Sweep:
    """The sweep called `name`, or the one in the file `name` if that is a path to a YAML file.

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
    return parse(Sweep, {"name": stem, **_mapping(text, name)}, f"sweep {name}")


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
