"""The plan of a sweep or study: every run once, with its id and names; and a run by a prefix of its id."""

import contextlib
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from cppo_lab.core_records import core_names
from cppo_lab.core_records import core_of as core_record
from cppo_lab.errors import UserError, say, together, unknown
from cppo_lab.launch.base import LauncherSpec
from cppo_lab.runs.folder import (
    COMPLETE_ID,
    CONFIG,
    ID_BEGINNING,
    ID_LENGTH,
    only_id,
    read_config,
    require_beginning,
)
from cppo_lab.spec import PathsSpec
from cppo_lab.sweep.compose import NotifySpec, TrackingSpec
from cppo_lab.sweep.enumerate import (
    Enumerated,
    PlannedRun,
    condition_faults,
    core_of,
    enumerate_runs,
    key_faults,
    refuse,
    with_core,
)
from cppo_lab.sweep.file import ANY_CORE, Search, Study, Sweep, load_sweep, shipped_sweeps
from cppo_lab.sweep.overrides import parse_override
from cppo_lab.sweep.source import sweep_files


@dataclass(frozen=True)
class Plan:
    """All runs of a sweep or study, each once, and how to launch and track them. `parts`: by sweep, what is enumerated
    of it.
    """

    name: str
    title: str
    question: str
    parts: Mapping[str, Enumerated]
    runs: tuple[PlannedRun, ...]
    paths: PathsSpec
    launcher: LauncherSpec
    tracking: TrackingSpec
    notify: NotifySpec
    is_study: bool

    @property
    def sweeps(self) -> tuple[Sweep, ...]:
        """The sweeps, as their files declare them."""
        return tuple(part.sweep for part in self.parts.values())

    def statement(self, sweep: Sweep) -> tuple[str, str]:
        """The statement of a sweep's hypotheses that is registered: a JSON text and its digest."""
        return sweep.statement(self.parts[sweep.name].changes)

    def is_paired(self, sweep: str) -> bool:
        """Whether a report compares the runs of a sweep seed by seed (`analysis/statistics/values.py`); with hypotheses
        whichever runs are selected.
        """
        part = self.parts[sweep]
        if part.sweep.paired is not None:
            return part.sweep.paired
        specs = [run.spec for run in self.runs if sweep in run.variants]
        planned = {(getattr(spec.model, "warm_start", None), spec.seed) for spec in specs}
        starts = part.declared.starts or planned
        drawn = core_record(self.core).seed_fixes_start
        return all(drawn if start is None else start.seed in (None, seed) for start, seed in starts)

    @property
    def core(self) -> str:
        """The trainer core of all runs."""
        return self.runs[0].spec.core

    @property
    def places(self) -> int:
        """The number of (sweep, run) pairs; a run shared by several sweeps counts in each."""
        return sum(len(run.variants) for run in self.runs)


def make_plan(declared: Sweep | Study | Search, overrides: Sequence[str] = ()) -> Plan:
    """Enumerate and validate every run.

    `model=`, `variant=` and the sweep's axes select what the sweep enumerates (`seed=0,1,2`); any other override
    applies to every run that has the key. In a study they select within each sweep that has them. If all models
    belong to a single core, it needs no `core=`. Raises UserError for an invalid override or configuration, before
    anything else happens.
    """
    if isinstance(declared, Sweep):
        overrides = with_core(declared.models, overrides)
        faults, sound = _faults(declared, core_of(overrides))
        try:
            part = enumerate_runs(sound, overrides)
        except UserError as error:
            faults.append(str(error))
        if faults:
            raise together(faults, f"sweep {declared.source}: ")
        refuse(part.unused)
        if not part.runs:
            selection = f" that {' '.join(overrides)!r} chooses" if overrides else ""
            raise UserError(
                f"sweep {declared.source}: exclude removes every run{selection}: remove an entry of it"
            )
        return _plan(declared, [part], part.runs)
    if not isinstance(declared, Study):
        raise UserError(
            f"{declared.name} is a search, which chooses its runs as it goes: use `cppo tune` for it"
        )
    loaded = [_part(declared, i) for i in range(len(declared.sweeps))]
    overrides = with_core({core for part in loaded for core in part.models}, overrides)
    core = core_of(overrides)
    for sweep in loaded:
        if faults := _faults(sweep, core)[0]:
            raise together(faults, f"sweep {sweep.source}: ")
    parts = [part.with_axes(declared) for part in loaded]
    names = [part.name for part in parts]
    if len(set(names)) < len(names):
        raise UserError(f"study {declared.source}: sweeps={names} must have distinct names")
    chosen = _chosen(parts, overrides, core)
    enumerated = [enumerate_runs(part, chosen[part.name]) for part in parts if part.name in chosen]
    if enumerated:
        refuse([text for text in enumerated[0].unused if all(text in part.unused for part in enumerated)])
    enumerated = [part for part in enumerated if part.runs]
    if not enumerated:
        raise UserError(f"study {declared.name}: no sweep of it has all of {' '.join(overrides)!r}")
    runs: dict[str, PlannedRun] = {}
    for part in enumerated:
        for run in part.runs:
            runs.setdefault(run.run_id, replace(run, variants={})).variants.update(run.variants)
    # Seed by seed, so that an interrupted study is a complete study with fewer seeds.
    return _plan(declared, enumerated, sorted(runs.values(), key=lambda run: run.spec.seed))


def _plan(declared: Sweep | Study, parts: Sequence[Enumerated], runs: Sequence[PlannedRun]) -> Plan:
    shared = parts[0].shared
    assert shared is not None
    return Plan(
        name=declared.name,
        title=declared.title,
        question=declared.question,
        parts={part.sweep.name: part for part in parts},
        runs=tuple(runs),
        paths=shared.paths,
        launcher=shared.launcher,
        tracking=shared.tracking,
        notify=shared.notify,
        is_study=isinstance(declared, Study),
    )


def _faults(sweep: Sweep, core: str) -> tuple[list[str], Sweep]:
    """The mistakes of a sweep file apart from those of single runs, and the sweep without what has them."""
    keys = dict(key_faults(sweep))
    sound = sweep.without(keys)
    conditions = condition_faults(sound, core)
    texts = [*keys.values(), *(text for _, text in conditions)]
    return texts, sound.without({where for where, _ in conditions})


def _part(study: Study, index: int) -> Sweep:
    """A sweep of a study, as its file declares it.

    Raises UserError for a sweep that does not exist, or has an invalid file.
    """
    where = f"study {study.source}: sweeps.{index}"
    try:
        part = load_sweep(study.sweeps[index])
    except UserError as error:
        raise UserError(f"{where}: {error}") from None
    if not isinstance(part, Sweep):
        remedy = "a study itself; name its sweeps" if isinstance(part, Study) else "a search; name sweeps"
        raise UserError(f"{where}: {part.name} is {remedy}")
    return part


def _chosen(parts: Sequence[Sweep], overrides: Sequence[str], core: str) -> dict[str, list[str]]:
    """The sweeps of a study that have some of the models and variants on the command line -> the overrides, with
    `model=` and `variant=` restricted to those.

    Raises UserError for a model or variant that no sweep has.
    """
    chosen = {part.name: list[str]() for part in parts}
    for override in map(parse_override, overrides):
        valid = {
            part.name: {"model": part.models_of(core), "variant": [*filter(None, part.variants)]}.get(
                override.key
            )
            for part in parts
        }
        every = dict.fromkeys(name for names in valid.values() for name in names or ())
        for name in override.names if every else ():
            if name not in every:
                raise unknown(f"{override.key} of this study", name, every)
        for part, texts in [*chosen.items()]:
            listed = valid[part]
            if listed is None:
                texts.append(override.text)
            elif names := [name for name in override.names if name in listed]:
                texts.append(f"{override.key}={','.join(names)}")
            else:
                del chosen[part]
    return chosen


TELL_SECONDS = 2.0  # before a search in sweeps says so: a large one takes long


@dataclass(frozen=True)
class FoundRun:
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
        ID_BEGINNING.fullmatch(text) is not None and text not in shipped_sweeps() and not Path(text).is_file()
    )


def find_run(beginning: str, runs: Path, sweeps: Sequence[str] = ()) -> FoundRun:
    """The run whose id begins with `beginning`: among those with a folder and those of `sweeps`, or else among those
    of the sweep files here. Composing all shipped sweeps takes half a minute, so they have to be named.

    Raises UserError if no run or more than a single run has such an id.
    """
    require_beginning(beginning)
    searched = [*sweeps]
    declared = _in_folders(beginning, runs) | _of_sweeps(beginning, sweeps)
    if not declared:
        searched += [name for name in _sweeps_here() if name not in sweeps]
        declared = _of_sweeps(beginning, searched[len(sweeps) :])
    if declared:
        return declared[only_id(beginning, declared)]
    looked = f" and no run of {', '.join(searched)}" if searched else ""
    raise UserError(
        f"unknown run {beginning!r}: no folder in {runs}{looked} has such an id: a run that has not begun is found by "
        "its sweep: --in SWEEP"
    )


def find_recorded_run(beginning: str, runs: Path) -> FoundRun:
    """The run whose id begins with `beginning`, if it has been started here, or finished elsewhere and pulled; no sweep
    is read.

    Raises UserError if no run or more than a single run has such an id.
    """
    require_beginning(beginning)
    if recorded := _in_folders(beginning, runs):
        return recorded[only_id(beginning, recorded)]
    raise UserError(
        f"run {beginning!r} has not been started: no folder in {runs} has such an id; if it was finished elsewhere, "
        "`cppo pull SWEEP` gives it one"
    )


def recorded_answers(beginning: str, runs: Path, kind: str, step: int | None) -> tuple[FoundRun, Any]:
    """A run, and what it has kept of a step, the newest if it is None: its `texts` (prompts and responses), or the
    `tokens` of some training responses. They are in its folder, or else in the tracking store.

    Raises UserError if there is nothing of this `kind`.
    """
    from cppo_lab.answers import records
    from cppo_lab.tracking import address

    uri = address.known_store(address.tracking_uri())
    run = find_recorded_run(beginning, runs)
    files: records.AnswerFiles = records.FolderFiles(runs / run.run_id)
    if not files.names():
        from cppo_lab.tracking.read import stored_files  # MLflow

        files = stored_files(uri, str(run.config.get("core")), run.run_id) or files
    steps = records.steps_with(files, kind)
    if not steps:
        raise UserError(
            f"run {run.run_id} has kept no {kind}: runs keep them from their first validation on if "
            f"tracking.answers.keep=true and their core ({run.config.get('core')}) samples text"
        )
    step = steps[-1] if step is None else step
    if step not in steps:
        raise UserError(
            f"--step {step}: run {run.run_id} has {kind} of the steps {', '.join(map(str, steps))}"
        )
    return run, (records.read_texts if kind == "texts" else records.read_tokens)(files, step)


def _in_folders(beginning: str, runs: Path) -> dict[str, FoundRun]:
    by_id = {}
    for folder in runs.glob(f"{beginning}*"):
        config = read_config(folder / CONFIG)
        if config and COMPLETE_ID.fullmatch(folder.name):
            by_id[folder.name] = FoundRun(folder.name, f"{folder.name}/{CONFIG} in {runs}", config)
    return by_id


def _of_sweeps(beginning: str, names: Sequence[str]) -> dict[str, FoundRun]:
    """Runs of the named sweeps, with each core for which they have models; a complete id ends the search."""
    by_id: dict[str, FoundRun] = {}
    tell_at = time.monotonic() + TELL_SECONDS
    for name in names:
        if time.monotonic() > tell_at:
            say(
                f"cppo: looking for run {beginning!r} in {len(names)} sweeps, which may take a minute; "
                "--in SWEEP names the right one"
            )
            tell_at = math.inf
        for core, run, paths in _declared(name):
            if run.run_id.startswith(beginning) and run.run_id not in by_id:
                config = run.spec.model_dump(mode="json", exclude_none=True)
                source = f"sweep {name}, core={core}"
                by_id[run.run_id] = FoundRun(run.run_id, source, config, run, paths)
                if len(beginning) == ID_LENGTH:
                    return by_id
    return by_id


@cache
def _declared(name: str) -> tuple[tuple[str, PlannedRun, PathsSpec], ...]:
    """(core, run, paths) of every run of a sweep."""
    declared, runs = load_sweep(name), []
    fault: UserError | None = None
    for core in core_names():
        if isinstance(declared, Sweep) and not {core, ANY_CORE} & declared.models.keys():
            continue
        if isinstance(declared, Sweep | Study):
            try:
                plan = make_plan(declared, [f"core={core}"])
            except UserError as error:
                # Not all cores train the models of a plain list, or of all parts of a study.
                fault = fault or error
                continue
            runs += [(core, run, plan.paths) for run in plan.runs]
    if fault is not None and not runs:
        raise fault
    return tuple(runs)


def _sweeps_here() -> list[str]:
    """The files that `cppo list` names whose runs can be planned: other mistakes are not asked about."""
    names = []
    for name in sweep_files().keys() - {*shipped_sweeps()}:
        with contextlib.suppress(UserError):
            _declared(name)
            names.append(name)
    return sorted(names)
