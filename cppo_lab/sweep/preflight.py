"""A short trial job before a run's GPU-hours are spent: start, validate, train a step, checkpoint, resume. One for each
kind of run of a plan.

`runs/preflight` has a folder for each kind. Nothing is sent to MLflow, since a preflight is not a result.

Each part runs in a separate process, since Ray and verl can be loaded only once, and since the second part must start
from the state that a killed run leaves. On several nodes the machines form their cluster again for each part.
"""

import json
import os
import shutil
import time
import traceback
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import Any

from cppo_lab.core_records import (
    PHASES,
    Phases,
    StandIns,
    core_of,
    cores_that,
    load_core,
    load_part,
    read_machine,
    read_phases,
)
from cppo_lab.errors import Interrupted, UserError, counted, describe, one_line, say
from cppo_lab.files import print_to, replace_file
from cppo_lab.launch.launchers import child, jobs_in_queue, load_launcher
from cppo_lab.plugins import install_extra
from cppo_lab.runs.attempt import Equipped, lend_machine, prepare_process
from cppo_lab.runs.machine import sampling
from cppo_lab.spec import LayoutSpec, RunSpec
from cppo_lab.spec.job import CostEstimate, estimate, read_folders
from cppo_lab.sweep.cost import (
    FILE,
    PREFLIGHTS,
    Hours,
    PreflightResult,
    Step,
    preflight_folder,
    read_preflight,
    whole_run,
)
from cppo_lab.sweep.enumerate import PlannedRun
from cppo_lab.sweep.plan import Plan

STAND_INS = "stand_ins"  # models with random weights and synthetic problems, in the folder of preflights
SYSTEM_SECONDS = 1.0  # sampling interval of the memory of machine and GPUs


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
        starts = {1: self, 2: self}  # the last step of a part -> the job, with a new folder to meet in
        if self.allocation is not None:
            meeting = self.allocation.meeting
            for last in starts:
                machines = replace(self.allocation, meeting=meeting / f"part-{last}")
                starts[last] = replace(self, allocation=machines)
            if self.allocation.rank:
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
        _clear(self.folder, keep=("attempts", FILE, PHASES))

    def give_up(self, why: str) -> None:
        """Record why the job will not be continued."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self._nothing(why).write(self.folder)

    def _part(self, last: int) -> "_Part":
        """Train up to step `last` in a separate process."""
        try:
            with child(_train, self, last) as process:
                process.join()
        finally:
            if self.allocation is not None:
                self.allocation.end()
        try:
            return _Part(**json.loads((self.folder / f"part-{last}.json").read_text(encoding="utf-8")))
        except FileNotFoundError:
            return _Part(error=f"its process was ended from outside (exit code {process.exitcode})")

    def _nothing(self, error: str) -> PreflightResult:
        return PreflightResult(
            self.spec.model.name, self.layout.name, self.layout.devices, self.spec.run_id, error=error
        )

    def _measured(self, parts: Mapping[int, "_Part"]) -> PreflightResult:
        lines = {line.step: line for line in read_phases(self.folder)}
        rows = {int(step): row for part in parts.values() for step, row in part.rows.items()}
        memory: dict[str, float] = {}
        for values in [*(line.memory for line in lines.values()), *(part.memory for part in parts.values())]:
            for name, value in values.items():
                memory[name] = max(value, memory.get(name, value))
        error = ""
        for number, part in parts.items():
            if part.error:
                steps = [int(step) for step in part.rows]
                reached = f"after step {max(steps)}" if steps else "before the first validation"
                error = f"{'resuming' if number > 1 else 'starting'}, {reached}: {part.error}"
        return replace(
            self._nothing(error),
            steps=tuple(_step(rows[step], lines[step]) for step in sorted(rows) if step and step in lines),
            start=_until_begun(parts[1], lines),
            resume=_until_begun(parts[2], lines) if 2 in parts else None,
            validation=_median(line.seconds.get("testing") for line in lines.values()),
            checkpoint=_median(line.seconds.get("save_checkpoint") for line in lines.values()),
            memory=memory,
            machine=read_machine(self.folder),
        )


@dataclass
class _Part:
    """One process, and the metric sink of its core, which sends nothing anywhere: when it began, the rows that it
    recorded and their times (all in seconds since the epoch), its peak memory.
    """

    began: float = 0.0
    rows: dict[str, Mapping[str, float]] = field(default_factory=dict)
    row_times: dict[str, float] = field(default_factory=dict)
    memory: Mapping[str, float] = field(default_factory=dict)
    error: str = ""
    resumed_from: int = -1  # the last step of the part before

    def begin(self, step: int | None) -> None:
        """The rows up to `step` belong to an earlier part and are logged again."""
        self.resumed_from = -1 if step is None else step

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Keep a new row."""
        if step > self.resumed_from:
            self.rows[str(step)], self.row_times[str(step)] = dict(metrics), time.time()

    def tag(self, name: str, value: str) -> None:
        """Not kept."""

    def artifact(self, name: str, values: Mapping[str, Any]) -> None:
        """Not kept."""

    def file(self, name: str, content: bytes) -> None:
        """Not kept."""


def _train(job: PreflightJob, last: int) -> None:
    """One part, in a separate process: train up to step `last`, and write the result."""
    print_to(job.folder / "attempts" / f"part-{last}.log")
    prepare_process(job.threads, job.visible_devices)
    part = _Part(time.time())
    with sampling(job.folder, SYSTEM_SECONDS) as load:
        try:
            load_core(job.spec.core)(shortened(job.spec, last), part, job.resources_in(job.folder))
        except (Exception, Interrupted) as error:  # noqa: BLE001 - any error is the result; nodes that do not join
            traceback.print_exc()
            part.error = describe(error)
    part.memory = {name: value for name, value in load().items() if name.endswith("peak_megabytes")}
    replace_file(job.folder / f"part-{last}.json", json.dumps(vars(part)))


def _until_begun(part: _Part, lines: Mapping[int, Phases]) -> float | None:
    """Seconds from the start of a part to the first timer; None if it did not get that far.

    A row is logged after its step and its validation have been timed.
    """
    first = min(map(int, part.row_times), default=None)
    if first is None or first not in lines:
        return None
    timed = sum(lines[first].seconds.get(name, 0.0) for name in ("step", "testing"))
    return part.row_times[str(first)] - part.began - timed


def _step(row: Mapping[str, float], line: Phases) -> Step:
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


GIB = 2**30


@dataclass(frozen=True)
class RunKind:
    """Runs that take the same time and memory, with the folder of their preflight."""

    runs: tuple[PlannedRun, ...]
    folder: Path
    random_weights: bool  # measured with random weights of the same shapes; not used for plans

    @property
    def example(self) -> PlannedRun:
        """The run that is measured: a run that needs the most of mu."""
        return max(self.runs, key=lambda run: run.spec.divergence.k or 0)

    @property
    def measured(self) -> PreflightResult | None:
        """The recorded result."""
        return read_preflight(self.folder)

    @property
    def is_measured(self) -> bool:
        """Whether a preflight of this kind has finished."""
        result = self.measured
        return result is not None and not result.error

    @property
    def hours(self) -> Hours | None:
        """The hours of all runs together for which the recorded result says them; None if it does for none."""
        result = self.measured
        spans = [span for run in self.runs if result and (span := whole_run(result, run.spec))]
        return Hours(sum(span.low for span in spans), sum(span.high for span in spans)) if spans else None


def kinds(plan: Plan, runs: Path, random_weights: bool = False) -> list[RunKind]:
    """The kinds of runs of a plan, in its order; with random weights they have separate folders.

    Raises UserError for runs of a core that needs no preflight.
    """
    core = core_of(plan.core)
    if not core.preflight:
        others = " or ".join(f"core={name}" for name in cores_that("preflight"))
        raise UserError(
            f"core={core.name} needs no preflight: {core.no_preflight}. Add {others} for those on GPUs"
        )
    by_folder: dict[Path, list[PlannedRun]] = {}
    for run in plan.runs:
        folder = preflight_folder(run.spec, run.layout, runs)
        folder = folder.with_name(folder.name + "-random" * random_weights)
        by_folder.setdefault(folder, []).append(run)
    return [RunKind(tuple(alike), folder, random_weights) for folder, alike in by_folder.items()]


def with_stand_ins(chosen: Sequence[RunKind], plan: Plan, runs: Path) -> Plan:
    """The plan with paths to stand-ins for the models and data of these kinds; missing stand-ins are created.

    Raises UserError for a model without a stand-in, or if packages are not installed.
    """
    core = core_of(plan.core)
    try:
        maker: StandIns = load_part(core.name, "stand_ins")
    except ModuleNotFoundError as error:
        remedy = install_extra(core.extra) if core.extra else f"install the packages of core={core.name}"
        raise UserError(
            f"package {error.name!r} is not installed, and stand-ins are made by it: {remedy}"
        ) from None
    return replace(
        plan, paths=maker([kind.example.spec for kind in chosen], runs / PREFLIGHTS / STAND_INS, say)
    )


def job_of(kind: RunKind, plan: Plan, runs: Path) -> PreflightJob:
    """The short job of a kind."""
    run = kind.example
    return PreflightJob(
        run.spec,
        runs,
        run.layout,
        plan.paths,
        run.resources,
        plan.launcher.threads,
        os.environ.get("CUDA_VISIBLE_DEVICES"),
        folder=kind.folder,
    )


def open_kinds(all_kinds: Sequence[RunKind], plan: Plan, runs: Path, again: bool = False) -> list[RunKind]:
    """The kinds to measure: those without a complete result, or all if `again`, except those in the queue.

    Raises UserError if the launcher's queue does not answer.
    """
    queued = set(jobs_in_queue(plan.launcher.name, runs / PREFLIGHTS))
    free = [kind for kind in all_kinds if job_of(kind, plan, runs).name not in queued]
    return [kind for kind in free if again or not kind.is_measured]


def measure(chosen: Sequence[RunKind], plan: Plan, runs: Path) -> None:
    """Pass the short jobs to the plan's launcher and report progress on standard error. With Slurm they are only
    queued.
    """
    jobs = [job_of(kind, plan, runs) for kind in chosen]
    launch = load_launcher(plan.launcher.name)
    launch(jobs, plan.launcher, lambda event: say(f"{event.job.name}: {event.kind}"))


def report(kind: RunKind) -> str:
    """The measurements of a kind of run as lines of plain text, next to the estimate if there is any."""
    run, result = kind.example, kind.measured
    count = counted(len(kind.runs), "run")
    lines = [f"{run.spec.model.name}, layout {run.layout.name}: {count}"]
    if kind.random_weights:
        lines.append(
            "  random weights of these shapes: hardly any response ends by itself, so times are upper bounds"
        )
    if result is None:
        return "\n".join([*lines, "  not measured yet"])
    if result.error:
        lines += [f"  FAILED {one_line(result.error)}", f"  logs: {kind.folder / 'attempts'}"]
    planned = estimate(run.spec, run.layout)
    rows = _rows(result, planned)
    widths = [max((len(row[column]) for row in rows), default=0) for column in range(2)]
    lines += [f"  {name:<{widths[0]}}  {value:>{widths[1]}}  {guess}".rstrip() for name, value, guess in rows]
    if hours := kind.hours:
        gpus, unit = (run.layout.devices, "GPU-hours") if run.layout.device == "cuda" else (1, "hours")
        beside = f" (estimate: {_number(planned.time.gpu_hours * len(kind.runs))})" if planned else ""
        low, high = _number(hours.low * gpus), _number(hours.high * gpus)
        lines.append(f"  {count} to the last step: {low} to {high} {unit}{beside}")
    return "\n".join(lines)


def as_values(kind: RunKind) -> dict[str, Any]:
    """The measurements for JSON; `hours` are the total wall-clock hours of all runs of the kind, None if unknown."""
    result, hours = kind.measured, kind.hours
    return {
        "model": kind.example.spec.model.name,
        "layout": kind.example.layout.name,
        "runs": [run.run_id for run in kind.runs],
        "measured": kind.is_measured,
        "error": result.error if result else "",
        "hours": hours and {"low": hours.low, "high": hours.high},
        "folder": str(kind.folder),
    }


_MEMORY = {
    "max_memory_allocated_gb": "the trainer on one device, allocated",
    "max_memory_reserved_gb": "the trainer on one device, reserved",
    "cpu_memory_used_gb": "the host, all that runs on it",
}


def _rows(result: PreflightResult, planned: CostEstimate | None) -> list[tuple[str, str, str]]:
    """The name of each measurement, what was measured, and what was estimated."""
    measured: list[tuple[str, float | None, str]] = [
        ("start", result.start, "s"),
        ("start from a checkpoint", result.resume, "s"),
        ("validation", result.validation, "s"),
        ("checkpoint", result.checkpoint, "s"),
    ]
    for step in result.steps:
        measured += [
            (f"step {step.step}", step.seconds, "s"),
            ("  sampling", step.rollout, "s"),
            ("  update", step.update, "s"),
            ("  weights to the rollout engine", step.weights, "s"),
            ("  other", step.other, "s"),
            ("  sampled", step.sampled_per_second, "tokens/s"),
            ("  trained", step.trained_per_second, "tokens/s"),
            ("  mean response", step.response_length, "tokens"),
            ("  Top-K of mu", step.topk_megabytes, "MB"),
        ]
    for name, value in sorted(result.memory.items()):
        if (what := _MEMORY.get(name)) is None:  # of runs.machine, in 1e6 bytes
            what = name.removeprefix("system/").removesuffix("_memory_peak_megabytes").replace("_", " ")
            what, value = f"{what}, highest", value * 1e6 / GIB
        measured.append((f"memory of {what}", value, "GiB"))
    guesses = dict[str, float]()
    if planned:
        time = planned.time
        guesses |= {"validation": time.validation, "  sampling": time.rollout, "  update": time.update}
        guesses |= {"  other": time.overhead, **{f"step {step.step}": time.step for step in result.steps}}
        guesses[f"memory of {_MEMORY['max_memory_allocated_gb']}"] = planned.memory.training / GIB
    rows = [
        (
            name,
            f"{_number(value)} {unit}",
            f"estimate {_number(guesses[name])} {unit}" if name in guesses else "",
        )
        for name, value, unit in measured
        if value is not None
    ]
    errors = [step.logprob_error for step in result.steps if step.logprob_error is not None]
    rows += [("mean |mu/pi - 1| over a step's updates", f"{error:.1e}", "") for error in errors[:1]]
    return rows + [
        (name, value if isinstance(value, str) else _number(value), "")
        for name, value in result.machine.items()
    ]


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
