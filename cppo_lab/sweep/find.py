"""Finds a run by a prefix of its id: in the folders of runs, or among the runs declared by sweeps."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from cppo_lab.core_records import BUILT_IN, core_names
from cppo_lab.errors import UserError
from cppo_lab.runs.folder import CONFIG, read_config
from cppo_lab.spec import PathsSpec
from cppo_lab.sweep.declare import Study, Sweep, load_sweep, shipped_sweeps
from cppo_lab.sweep.declared import ANY_CORE
from cppo_lab.sweep.enumerate import PlannedRun
from cppo_lab.sweep.plan import make_plan

LENGTH = 12  # hexadecimal digits of a complete id
_BEGINNING = re.compile(r"[0-9a-f]{4,12}")


@dataclass(frozen=True)
class Found:
    """A run, its resolved configuration as plain values, and the source of that.

    `planned` and `paths` are set if a sweep declares the run.
    """

    run_id: str
    source: str
    config: dict[str, Any]
    planned: PlannedRun | None = None
    paths: PathsSpec | None = None


def is_run_id(text: str) -> bool:
    """Whether `text` is a prefix of a run id and not the name of a sweep or its file."""
    return (
        _BEGINNING.fullmatch(text) is not None and text not in shipped_sweeps() and not Path(text).is_file()
    )


def require_beginning(text: str) -> None:
    """Raises UserError if `text` is not a valid prefix of a run id, or is too short."""
    if not _BEGINNING.fullmatch(text):
        raise UserError(
            f"run {text!r} is not a prefix of a run's id: give 4 to {LENGTH} hexadecimal digits "
            "(`cppo plan SWEEP` lists the ids)"
        )


def find_run(beginning: str, runs: Path, sweeps: Sequence[str] = ()) -> Found:
    """The run whose id begins with `beginning`: among those with a folder and those of `sweeps`, or else among those
    of the shipped sweeps.

    Raises UserError if there is none or more than one.
    """
    require_beginning(beginning)
    sources: list[Callable[[], dict[str, Found]]] = [
        lambda: _in_folders(beginning, runs) | _of_sweeps(beginning, sweeps),
        lambda: _of_sweeps(beginning, [name for name in _by_size() if name not in sweeps]),
    ]
    for source in sources:
        if found := _only(beginning, source()):
            return found
    raise UserError(
        f"unknown run {beginning!r}: no folder in {runs} and no run of a shipped sweep has such an id: "
        "name the sweep that declares it with --in SWEEP"
    )


def find_recorded_run(beginning: str, runs: Path) -> Found:
    """The run whose id begins with `beginning`, if it has been started here, or finished elsewhere and pulled; no sweep
    is read.

    Raises UserError if there is none or more than one.
    """
    require_beginning(beginning)
    if run := _only(beginning, _in_folders(beginning, runs)):
        return run
    raise UserError(
        f"run {beginning!r} has not been started: no folder in {runs} has such an id; if it was finished elsewhere, "
        "`cppo pull SWEEP` gives it one"
    )


def _only(beginning: str, found: Mapping[str, Found]) -> Found | None:
    """The single run in `found`, or None. Raises UserError if there are several."""
    if len(found) > 1:
        raise UserError(
            f"run {beginning!r} is a prefix of {len(found)} ids: {', '.join(sorted(found)[:10])}: give more digits"
        )
    return next(iter(found.values()), None)


def _in_folders(beginning: str, runs: Path) -> dict[str, Found]:
    found = {}
    for folder in runs.glob(f"{beginning}*"):
        own = read_config(folder / CONFIG)
        if own is not None and re.fullmatch(f"[0-9a-f]{{{LENGTH}}}", folder.name):
            found[folder.name] = Found(folder.name, f"{folder.name}/{CONFIG} in {runs}", own)
    return found


def _of_sweeps(beginning: str, names: Sequence[str]) -> dict[str, Found]:
    """Runs of the named sweeps, with each core for which they have models; a complete id ends the search."""
    found: dict[str, Found] = {}
    for name in names:
        for core, run, paths in _declared(name):
            if run.run_id.startswith(beginning) and run.run_id not in found:
                config = run.spec.model_dump(mode="json", exclude_none=True)
                source = f"sweep {name}, core={core}"
                found[run.run_id] = Found(run.run_id, source, config, run, paths)
                if len(beginning) == LENGTH:
                    return found
    return found


@cache
def _declared(name: str) -> tuple[tuple[str, PlannedRun, PathsSpec], ...]:
    """(core, run, paths) of every run of a sweep."""
    declared, found = load_sweep(name), []
    fault: UserError | None = None
    for core in core_names():
        if isinstance(declared, Sweep) and not {core, ANY_CORE} & declared.models.keys():
            continue
        if isinstance(declared, Sweep | Study):
            try:
                plan = make_plan(declared, [f"core={core}"])
            except UserError as error:
                if core in BUILT_IN and isinstance(declared, Sweep):
                    raise
                fault = error  # for a study, or another package's core, not all sweeps have models
                continue
            found += [(core, run, plan.paths) for run in plan.runs]
    if fault is not None and not found:
        raise fault
    return tuple(found)


def _by_size() -> list[str]:
    """The shipped sweeps, those with the most runs first."""
    return sorted(shipped_sweeps(), key=lambda name: (name not in ("study", "main"), name))
