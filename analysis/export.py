"""Exports the metrics of a sweep's runs for other programs, as Parquet or CSV."""

import json
from collections.abc import Callable, Iterable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pandas as pd

from cppo_lab import schema
from cppo_lab.errors import UserError
from cppo_lab.files import appearing, require_free

PARQUET, CSV = "parquet", "csv"
ABOUT = "about.json"
_MARK = "cppo export metrics"  # in ABOUT: only such a folder is replaced


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
    frames: Mapping[str, pd.DataFrame],
    about: Mapping[str, Any],
    form: str,
    place: Path,
    force: bool,
    say: Callable[[str], None],
) -> dict[str, int]:
    """Write `frames` to the folder `place` of `require_writable`, which appears as a whole or not at all: `runs`,
    `history` and, if a run kept outcomes, `outcomes`, as `cppo_lab.load` gives them.

    ABOUT is beside them, with units of the metrics, the number of rows and the entries of `about`, such as the sweep's
    name. `say` takes lines of progress. Returns file -> rows.
    """
    written = {}
    with appearing(place, replace=force) as folder:
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
        units = _units(map(str, frames["history"]["metric"].cat.categories))
        entries = {"made_by": _MARK, "format": form, **about, "rows": written, "units": units}
        (folder / ABOUT).write_text(json.dumps(entries, indent=1) + "\n", encoding="utf-8")
    return written


def _is_ours(out: Path) -> bool:
    try:
        about = json.loads((out / ABOUT).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(about, dict) and about.get("made_by") == _MARK


def _units(names: Iterable[str]) -> dict[str, str]:
    """The unit of each metric that `schema.METRICS` lists; validation scores are fractions."""
    units = {}
    for name in names:
        if schema.parse_validation_metric(name) is not None:
            units[name] = "fraction"
        elif name in schema.METRIC_BY_NAME:
            units[name] = schema.METRIC_BY_NAME[name].unit
    return units
