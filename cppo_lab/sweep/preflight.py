"""Determines the kinds of runs in a plan, measures them, and reports the results."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from cppo_lab.core_records import core_of, cores_that
from cppo_lab.errors import UserError, counted, one_line, say
from cppo_lab.launch.base import Event
from cppo_lab.launch.launchers import jobs_in_queue, load_launcher
from cppo_lab.launch.preflight import STAND_INS, PreflightJob, make_stand_ins
from cppo_lab.spec.estimate import CostEstimate, estimate
from cppo_lab.sweep.cost import Hours, whole_run
from cppo_lab.sweep.enumerate import PlannedRun
from cppo_lab.sweep.plan import Plan
from cppo_lab.tracking.preflight import FOLDER, PreflightResult, folder_of, read

GIB = 2**30


@dataclass(frozen=True)
class RunKind:
    """Runs that take the same time and memory, with the folder of their preflight."""

    runs: tuple[PlannedRun, ...]
    folder: Path
    random_weights: bool = False  # measured with random weights of the same shapes; not used for plans

    @property
    def example(self) -> PlannedRun:
        """The run that is measured: a run that needs the most of mu."""
        return max(self.runs, key=lambda run: run.spec.divergence.k or 0)

    @property
    def measured(self) -> PreflightResult | None:
        """The recorded result."""
        return read(self.folder)

    @property
    def is_measured(self) -> bool:
        """Whether a preflight of this kind has finished."""
        result = self.measured
        return result is not None and not result.error

    @property
    def hours(self) -> list[Hours]:
        """The hours of each run for which the recorded result says them."""
        result = self.measured
        spans = [whole_run(result, run.spec) for run in self.runs] if result else []
        return [span for span in spans if span is not None]


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
        by_folder.setdefault(folder_of(run.spec, run.layout, runs), []).append(run)
    if random_weights:
        by_folder = {folder.with_name(f"{folder.name}-random"): some for folder, some in by_folder.items()}
    return [RunKind(tuple(some), folder, random_weights) for folder, some in by_folder.items()]


def with_stand_ins(chosen: Sequence[RunKind], plan: Plan, runs: Path) -> Plan:
    """The plan with paths to stand-ins for the models and data of these kinds; missing stand-ins are created.

    Raises UserError for a model without a stand-in, or if packages are not installed.
    """
    folder = runs / FOLDER / STAND_INS
    paths = make_stand_ins([kind.example.spec for kind in chosen], folder, say)
    return replace(plan, paths=paths)


def job_of(kind: RunKind, plan: Plan, runs: Path) -> PreflightJob:
    """The short job of a kind."""
    run = kind.example
    return PreflightJob(
        run.spec, runs, run.layout, plan.paths, run.resources, plan.launcher.threads, folder=kind.folder
    )


def open_kinds(all_kinds: Sequence[RunKind], plan: Plan, runs: Path, again: bool = False) -> list[RunKind]:
    """The kinds to measure: those without a complete result, or all if `again`, except those in the queue.

    Raises UserError if the launcher's queue does not answer.
    """
    queued = set(jobs_in_queue(plan.launcher.name, runs / FOLDER))
    free = [kind for kind in all_kinds if job_of(kind, plan, runs).name not in queued]
    return [kind for kind in free if again or not kind.is_measured]


def measure(chosen: Sequence[RunKind], plan: Plan, runs: Path) -> None:
    """Pass the short jobs to the plan's launcher and report progress on standard error. With Slurm they are only
    queued.
    """

    def see(event: Event[PreflightJob]) -> None:
        say(f"{event.job.name}: {event.kind}")

    load_launcher(plan.launcher.name)([job_of(kind, plan, runs) for kind in chosen], plan.launcher, see)


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
    lines += _aligned([*_times(result, planned), *_memory(result, planned), *_gap(result), *_machine(result)])
    hours = kind.hours
    if hours:
        cuda = run.layout.device == "cuda"
        low, high = (sum(getattr(run_hours, end) for run_hours in hours) for end in ("low", "high"))
        gpus = run.layout.devices if cuda else 1
        beside = f" (estimate: {_number(planned.time.gpu_hours * len(kind.runs))})" if planned else ""
        lines.append(
            f"  {count} to the last step: {_number(low * gpus)} to {_number(high * gpus)} "
            f"{'GPU-hours' if cuda else 'hours'}{beside}"
        )
    return "\n".join(lines)


def as_values(kind: RunKind) -> dict[str, Any]:
    """The measurements for JSON; `hours` are the total wall-clock hours of all runs of the kind, None if unknown."""
    result = kind.measured
    hours = kind.hours
    return {
        "model": kind.example.spec.model.name,
        "layout": kind.example.layout.name,
        "runs": [run.run_id for run in kind.runs],
        "measured": kind.is_measured,
        "error": result.error if result else "",
        "hours": {end: sum(getattr(run_hours, end) for run_hours in hours) for end in ("low", "high")}
        if hours
        else None,
        "folder": str(kind.folder),
    }


Line = tuple[str, str, str]  # what, measured, estimated


def _times(result: PreflightResult, planned: CostEstimate | None) -> Iterator[Line]:
    time = planned.time if planned else None
    yield from _line("start", result.start, "s")
    yield from _line("start from a checkpoint", result.resume, "s")
    yield from _line("validation", result.validation, "s", time.validation if time else None)
    yield from _line("checkpoint", result.checkpoint, "s")
    for step in result.steps:
        yield from _line(f"step {step.step}", step.seconds, "s", time.step if time else None)
        yield from _line("  sampling", step.rollout, "s", time.rollout if time else None)
        yield from _line("  update", step.update, "s", time.update if time else None)
        yield from _line("  weights to the rollout engine", step.weights, "s")
        yield from _line("  other", step.other, "s", time.overhead if time else None)
        yield from _line("  sampled", step.sampled_per_second, "tokens/s")
        yield from _line("  trained", step.trained_per_second, "tokens/s")
        yield from _line("  mean response", step.response_length, "tokens")
        yield from _line("  Top-K of mu", step.topk_megabytes, "MB")


def _memory(result: PreflightResult, planned: CostEstimate | None) -> Iterator[Line]:
    guess = planned.memory.training / GIB if planned else None
    for name, value in sorted(result.memory.items()):
        if name == "max_memory_allocated_gb":
            yield from _line("memory of the trainer on one device, allocated", value, "GiB", guess)
        elif name == "max_memory_reserved_gb":
            yield from _line("memory of the trainer on one device, reserved", value, "GiB")
        elif name == "cpu_memory_used_gb":
            yield from _line("memory of the host, all that runs on it", value, "GiB")
        else:  # of runs.machine, in 1e6 bytes
            what = name.removeprefix("system/").removesuffix("_memory_peak_megabytes").replace("_", " ")
            yield from _line(f"memory of {what}, highest", value * 1e6 / GIB, "GiB")


def _gap(result: PreflightResult) -> Iterator[Line]:
    errors = [step.logprob_error for step in result.steps if step.logprob_error is not None]
    if errors:
        yield "mean |mu/pi - 1| over a step's updates", f"{errors[0]:.1e}", ""


def _machine(result: PreflightResult) -> Iterator[Line]:
    for name, value in result.machine.items():
        yield name, value if isinstance(value, str) else _number(value), ""


def _line(name: str, value: float | None, unit: str, guess: float | None = None) -> Iterator[Line]:
    if value is not None:
        yield name, f"{_number(value)} {unit}", "" if guess is None else f"estimate {_number(guess)} {unit}"


def _aligned(rows: Sequence[Line]) -> list[str]:
    widths = [max((len(row[column]) for row in rows), default=0) for column in range(3)]
    return [f"  {name:<{widths[0]}}  {value:>{widths[1]}}  {guess}".rstrip() for name, value, guess in rows]


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
