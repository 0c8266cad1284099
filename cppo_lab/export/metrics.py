"""Exports the metrics of a sweep's runs for other programs, as Parquet or CSV."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pandas as pd

from cppo_lab import schema
from cppo_lab.errors import UserError
from cppo_lab.export.folder import appearing, require_free

PARQUET, CSV = "parquet", "csv"
ABOUT = "about.json"
_MARK = "cppo export metrics"  # in ABOUT: only such a folder is replaced


@dataclass(frozen=True, eq=False)
class MetricTables:
    """The frames `runs`, `history()` and `outcomes()` of `cppo_lab.load`, and their origin.

    `about`: further entries of ABOUT, such as the sweep's name.
    """

    runs: pd.DataFrame
    history: pd.DataFrame
    outcomes: pd.DataFrame
    about: Mapping[str, Any]


def require_writable(form: str, out: Path, force: bool) -> Path:
    """The resolved path of `out`, checked before anything is read.

    Raises UserError if pyarrow is not installed and needed, or if `out` exists; with `force`, if it exists and is not
    an earlier export of metrics.
    """
    if form == PARQUET and find_spec("pyarrow") is None:
        raise UserError(
            f"--format {form}: package 'pyarrow' is not installed: pip install 'cppo-lab[export]', or take "
            "--format csv"
        )
    if not force:
        try:
            return require_free(out)
        except UserError as error:
            hint = "; --force replaces an earlier export of metrics" if _is_ours(out) else ""
            raise UserError(f"{error}{hint}") from None
    return out.resolve() if _is_ours(out) else require_free(out)


def write(
    tables: MetricTables, form: str, place: Path, force: bool, say: Callable[[str], None]
) -> dict[str, int]:
    """Write the tables to the folder `place` of `require_writable`, which appears as a whole or not at all.

    These are `runs`, `history` and, if a run kept outcomes, `outcomes`, beside ABOUT: units of the metrics and the
    number of rows. `say` takes lines of progress. Returns file -> rows.
    """
    with appearing(place, replace=force) as folder:
        written = _write_tables(tables, form, folder, say)
        names = [str(name) for name in tables.history["metric"].cat.categories]
        about = {"made_by": _MARK, "format": form, **tables.about, "rows": written, "units": _units(names)}
        (folder / ABOUT).write_text(json.dumps(about, indent=1) + "\n", encoding="utf-8")
    return written


def _is_ours(out: Path) -> bool:
    try:
        about = json.loads((out / ABOUT).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(about, dict) and about.get("made_by") == _MARK


def _units(names: list[str]) -> dict[str, str]:
    """The unit of each metric that `schema.METRICS` lists; validation scores are fractions."""
    units = {name: schema.METRIC_BY_NAME[name].unit for name in names if name in schema.METRIC_BY_NAME}
    return units | {name: "fraction" for name in names if schema.parse_validation_metric(name) is not None}


def _write_tables(
    tables: MetricTables, form: str, folder: Path, say: Callable[[str], None]
) -> dict[str, int]:
    frames = {"runs": tables.runs, "history": tables.history, "outcomes": tables.outcomes}
    written = {}
    for name, frame in frames.items():
        if name == "outcomes" and frame.empty:
            continue
        file = f"{name}.{form}"
        say(f"{file}: {len(frame):,} rows")
        if form == PARQUET:
            frame.to_parquet(folder / file, engine="pyarrow", index=False)
        else:
            frame.to_csv(folder / file, index=False, lineterminator="\n")
        written[file] = len(frame)
    return written
