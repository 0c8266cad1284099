"""Exports the metrics of a sweep's runs for other programs, as Parquet, CSV or TensorBoard files."""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pandas as pd

from cppo_lab import schema
from cppo_lab.errors import UserError
from cppo_lab.export.folder import appearing, require_free
from cppo_lab.runs.tags import name_part

PARQUET, CSV, TENSORBOARD = "parquet", "csv", "tensorboard"
FORMATS = (PARQUET, CSV, TENSORBOARD)
ABOUT = "about.json"
_MARK = "cppo export metrics"  # in ABOUT: only such a folder is replaced
_NEEDS = {PARQUET: "pyarrow", TENSORBOARD: "tensorboard"}
_NOT_IN_FILES = re.compile(r"[^\w.=+-]+")
_LONGEST_NAME = 200  # bytes; file systems take 255
_EVERY = 20  # runs between two lines of progress


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

    Raises UserError if the format's package is not installed, or if `out` exists; with `force`, if it exists and is not
    an earlier export of metrics.
    """
    package = _NEEDS.get(form)
    if package is not None and find_spec(package) is None:
        raise UserError(
            f"--format {form}: package {package!r} is not installed: pip install 'cppo-lab[export]', or take "
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

    Parquet and CSV: `runs`, `history` and, if a run kept outcomes, `outcomes`. TensorBoard: one file of events for each
    run that logged something. Always ABOUT: units of the metrics and the number of rows. `say` takes lines of progress.
    Returns file -> rows (of TensorBoard: points).
    """
    with appearing(place, replace=force) as folder:
        written = (
            _write_events(tables, folder, say)
            if form == TENSORBOARD
            else _write_tables(tables, form, folder, say)
        )
        names = [str(name) for name in tables.history["metric"].cat.categories]
        about = {"made_by": _MARK, "format": form, **tables.about, "rows": written, "units": _units(names)}
        (folder / ABOUT).write_text(json.dumps(about, indent=1) + "\n", encoding="utf-8")
    return written


def _is_ours(out: Path) -> bool:
    try:
        found = json.loads((out / ABOUT).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(found, dict) and found.get("made_by") == _MARK


def _units(names: list[str]) -> dict[str, str]:
    """The unit of each metric that `schema.METRICS` lists; validation scores are fractions."""
    known = {name: schema.METRIC_BY_NAME[name].unit for name in names if name in schema.METRIC_BY_NAME}
    return known | {name: "fraction" for name in names if schema.parse_validation_metric(name) is not None}


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


def _write_events(tables: MetricTables, folder: Path, say: Callable[[str], None]) -> dict[str, int]:
    """MODEL/VARIANT/seed_SEED-RUN/events.out.tfevents.RUN; a run that several sweeps share under its first variant."""
    runs = tables.runs.drop_duplicates("run_id").set_index("run_id")
    written = {}
    parts = tables.history.groupby("run_id", sort=False, observed=True)
    for number, (run_id, points) in enumerate(parts, 1):
        run = runs.loc[run_id]
        seed = "" if pd.isna(run["seed"]) else f"seed_{run['seed']}-"
        model, variant, name = (
            name_part(text, _NOT_IN_FILES, _LONGEST_NAME) for text in (run["model"], run["variant"], run_id)
        )
        below = Path(model, variant, f"{seed}{name}")
        (folder / below).mkdir(parents=True)
        file = below / f"events.out.tfevents.{name}"
        began = 0.0 if pd.isna(run["start"]) else run["start"].timestamp()
        _write_event_file(folder / file, points, began)
        written[file.as_posix()] = len(points)
        if number % _EVERY == 0 or number == parts.ngroups:
            say(f"events of {number} of {parts.ngroups} runs")
    return written


def _write_event_file(path: Path, points: pd.DataFrame, began: float) -> None:
    """The points as TensorBoard's scalars, step by step. All have the time at which the run began, in s since 1970."""
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.summary.writer.record_writer import RecordWriter

    by_step: dict[int, list[Any]] = {}
    for name, step, value in zip(points["metric"], points["step"], points["value"], strict=True):
        by_step.setdefault(int(step), []).append(Summary.Value(tag=str(name), simple_value=float(value)))
    with path.open("wb") as file:
        writer = RecordWriter(file)
        writer.write(Event(wall_time=began, file_version="brain.Event:2").SerializeToString())
        for step, values in sorted(by_step.items()):
            writer.write(Event(wall_time=began, step=step, summary=Summary(value=values)).SerializeToString())
        writer.flush()
