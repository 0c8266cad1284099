"""A short trial job before a run's GPU-hours are spent: start, validate, train a step, checkpoint, resume.

`runs/preflight` has a folder for each kind of run. Nothing is sent to MLflow, since a preflight is not a result.

Each part runs in a separate process, since Ray and verl can be loaded only once, and since the second part must start
from the state that a killed run leaves. On several nodes all machines meet anew for each part.
"""

import json
import multiprocessing
import os
import shutil
import sys
import time
import traceback
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import Any

from cppo_lab.core_records import core_of
from cppo_lab.cores import phases
from cppo_lab.cores.base import StandIns, load_core, load_part
from cppo_lab.errors import UserError
from cppo_lab.files import mask_output, open_append, replace_file
from cppo_lab.plugins import install_extra
from cppo_lab.runs.attempt import Allocation, Equipped, describe, lend_machine, prepare_process, read_folders
from cppo_lab.runs.machine import sampling
from cppo_lab.signals import Interrupted
from cppo_lab.spec import LayoutSpec, PathsSpec, RunSpec
from cppo_lab.tracking.preflight import FILE, PreflightResult, Step

STAND_INS = "stand_ins"  # models with random weights and synthetic problems, in the folder of preflights
SYSTEM_SECONDS = 1.0  # sampling interval of the memory of machine and GPUs


def make_stand_ins(specs: Sequence[RunSpec], folder: Path, say: Callable[[str], None]) -> PathsSpec:
    """Write models of the same shapes with random weights, and problems, for runs of one core; returns the paths.

    Raises UserError for a core or a model without a stand-in, or if packages are missing.
    """
    core = core_of(specs[0].core)
    try:
        maker: StandIns = load_part(core.name, "stand_ins")
    except ModuleNotFoundError as error:
        remedy = install_extra(core.extra) if core.extra else f"install the packages of core={core.name}"
        raise UserError(
            f"package {error.name!r} is not installed, and stand-ins are made by it: {remedy}"
        ) from None
    return maker(specs, folder, say)


def shortened(spec: RunSpec, last: int) -> RunSpec:
    """`spec` cut to `last` steps that exercise every part once; all shapes stay.

    No group is dropped, so that each update has its maximum size.
    """
    return spec.model_copy(
        update={
            "training": spec.training.model_copy(update={"t_stop": last}),
            "validation": spec.validation.model_copy(update={"every": 1}),
            "advantage": spec.advantage.model_copy(update={"drop_zero_variance": False}),
        }
    )


@dataclass(frozen=True)
class PreflightJob(Equipped):
    """The launcher's job: `folder` is that of this preflight."""

    layout: LayoutSpec
    folder: Path = field(kw_only=True)

    @property
    def name(self) -> str:
        """What the launcher calls it."""
        return f"preflight-{self.folder.name}"

    @property
    def places(self) -> tuple[Path, ...]:
        """The folders of runs, of the prepared data and of models."""
        return (self.runs, *read_folders(self.spec, self.paths))

    @property
    def fresh_process(self) -> bool:
        """False, since it trains in child processes."""
        return False

    def run(self) -> None:
        """Measure and write the result; on the other machines of an allocation, serve as a worker node."""
        starts = {last: replace(self, allocation=self._meeting(last)) for last in (1, 2)}
        if self.allocation is not None and self.allocation.rank:
            resources = [start.resources_in(self.folder) for start in starts.values()]
            lend_machine(self.spec.core, resources, self.visible_devices)
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        _clear(self.folder, keep=("attempts",))
        parts: dict[int, _Part] = {}
        try:
            for last, start in starts.items():
                parts[last] = start._part(last)
                if parts[last].error:
                    break
        finally:
            for start in starts.values():
                if start.allocation is not None:
                    start.allocation.end()  # also of a start that there was not
        result = self._measured(parts)
        result.write(self.folder)
        _clear(self.folder, keep=("attempts", FILE, phases.FILE))

    def give_up(self, why: str) -> None:
        """Record why the job will not be continued."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self._nothing(why).write(self.folder)

    def _meeting(self, last: int) -> Allocation | None:
        """The machines, with a folder of their own to meet for the part up to step `last`."""
        if self.allocation is None:
            return None
        return replace(self.allocation, meeting=self.allocation.meeting / f"part-{last}")

    def _part(self, last: int) -> "_Part":
        """Train up to step `last` in a separate process."""
        process = multiprocessing.get_context("spawn").Process(target=_train, args=(self, last))
        process.start()
        try:
            process.join()
        finally:
            if process.is_alive():  # interrupted
                process.terminate()
                process.join()
            if self.allocation is not None:
                self.allocation.end()
        part = _Part.read(self.folder, last)
        if part.ended:
            return part
        return replace(part, error=f"its process was ended from outside (exit code {process.exitcode})")

    def _nothing(self, error: str = "") -> PreflightResult:
        return PreflightResult(
            self.spec.model.name, self.layout.name, self.layout.devices, self.spec.run_id, error=error
        )

    def _measured(self, parts: Mapping[int, "_Part"]) -> PreflightResult:
        lines = {line.step: line for line in phases.read(self.folder)}
        rows = {int(step): row for part in parts.values() for step, row in part.rows.items()}
        memory: dict[str, float] = {}
        for values in [*(line.memory for line in lines.values()), *(part.memory for part in parts.values())]:
            for name, value in values.items():
                memory[name] = max(value, memory.get(name, value))
        failed = [
            f"{'resuming' if number > 1 else 'starting'}, {_reached(part)}: {part.error}"
            for number, part in parts.items()
            if part.error
        ]
        return replace(
            self._nothing(failed[0] if failed else ""),
            steps=tuple(_step(rows[step], lines[step]) for step in sorted(rows) if step and step in lines),
            start=_until_begun(parts[1], lines),
            resume=_until_begun(parts[2], lines) if 2 in parts else None,
            validation=_median(line.seconds.get("testing") for line in lines.values()),
            checkpoint=_median(line.seconds.get("save_checkpoint") for line in lines.values()),
            memory=memory,
            machine=phases.read_machine(self.folder),
        )


def _reached(part: "_Part") -> str:
    """How far a part got."""
    steps = [int(step) for step in part.rows]
    return f"after step {max(steps)}" if steps else "before the first validation"


@dataclass(frozen=True)
class _Part:
    """One process: its times in seconds since the epoch, the rows that it recorded, its peak memory."""

    began: float = 0.0
    ended: float = 0.0
    rows: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    row_times: Mapping[str, float] = field(default_factory=dict)
    memory: Mapping[str, float] = field(default_factory=dict)
    error: str = ""

    @classmethod
    def read(cls, folder: Path, last: int) -> "_Part":
        """What the process that trained up to step `last` has written; an empty part if it wrote nothing."""
        try:
            return cls(**json.loads(_part_file(folder, last).read_text(encoding="utf-8")))
        except FileNotFoundError:
            return cls()


def _part_file(folder: Path, last: int) -> Path:
    return folder / f"part-{last}.json"


class _Rows:
    """A metric sink that keeps rows and their times in memory. Nothing is sent anywhere."""

    def __init__(self) -> None:
        self.rows: dict[int, dict[str, float]] = {}
        self.times: dict[int, float] = {}
        self._known = -1

    def begin(self, step: int | None) -> None:
        """The rows up to `step` belong to an earlier part and are logged again."""
        self._known = -1 if step is None else step

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Keep a new row."""
        if step > self._known:
            self.rows[step], self.times[step] = dict(metrics), time.time()

    def tag(self, name: str, value: str) -> None:
        """Not kept."""

    def artifact(self, name: str, values: Mapping[str, Any]) -> None:
        """Not kept."""

    def file(self, name: str, content: bytes) -> None:
        """Not kept."""


def _train(job: PreflightJob, last: int) -> None:
    """One part, in a separate process: train up to step `last`, and write the result."""
    _redirect_output(job.folder / "attempts" / f"part-{last}.log")
    prepare_process(job.threads, job.visible_devices)
    began, sink, error = time.time(), _Rows(), ""
    with sampling(job.folder, SYSTEM_SECONDS) as load:
        try:
            load_core(job.spec.core)(shortened(job.spec, last), sink, job.resources_in(job.folder))
        except (Exception, Interrupted) as raised:  # noqa: BLE001 - any error is the result; nodes that do not join
            traceback.print_exc()
            error = describe(raised)
    peaks = {name: value for name, value in load().items() if name.endswith("peak_megabytes")}
    part = _Part(
        began,
        time.time(),
        {str(step): row for step, row in sink.rows.items()},
        {str(step): when for step, when in sink.times.items()},
        peaks,
        error,
    )
    replace_file(_part_file(job.folder, last), json.dumps(asdict(part)))


def _redirect_output(path: Path) -> None:
    """Redirect the output of this process and its children to a file; secrets in Python's output are masked."""
    path.parent.mkdir(exist_ok=True)
    with open_append(path) as log:
        os.dup2(log.fileno(), sys.stdout.fileno())
        os.dup2(log.fileno(), sys.stderr.fileno())
    mask_output()


def _until_begun(part: _Part, lines: Mapping[int, phases.Phases]) -> float | None:
    """Seconds from the start of a part to the first timer; None if it did not get that far.

    A row is logged after its step and its validation have been timed.
    """
    first = min((int(step) for step in part.row_times), default=None)
    if first is None or first not in lines:
        return None
    timed = lines[first].seconds.get("step", 0.0) + lines[first].seconds.get("testing", 0.0)
    return part.row_times[str(first)] - part.began - timed


def _step(row: Mapping[str, float], line: phases.Phases) -> Step:
    whole = line.seconds["step"] - line.seconds.get("save_checkpoint", 0.0)  # the step's timer includes it
    rollout, update = row["perf/rollout_seconds"], row["perf/update_seconds"]
    weights = line.seconds.get("update_weights", 0.0)
    return Step(
        step=line.step,
        seconds=whole,
        rollout=rollout,
        update=update,
        weights=weights,
        other=whole - rollout - update - weights,
        sampled_per_second=row.get("perf/sampled_tokens_per_second", 0.0),
        trained_per_second=row.get("perf/trained_tokens_per_second", 0.0),
        response_length=row.get("train/response_length", 0.0),
        topk_megabytes=row.get("perf/topk_megabytes", 0.0),
        logprob_error=row.get("train/relative_logprob_error"),
    )


def _median(values: Iterable[float | None]) -> float | None:
    measured = [value for value in values if value is not None]
    return median(measured) if measured else None


def _clear(folder: Path, keep: Collection[str]) -> None:
    """Remove everything in the folder except `keep`.

    Raises UserError for a link: another member of the group may have created it, and it may point anywhere.
    """
    if folder.is_symlink():
        raise UserError(f"{folder} is a link, and its target would be emptied: remove it")
    for path in folder.iterdir():
        if path.name in keep:
            continue
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()
