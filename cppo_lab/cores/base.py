"""The interface of a trainer core: a function from a RunSpec to metrics. Cores know no sweeps, launchers or MLflow.

With the other parts that a core may have (training runs together, export, evaluation, stand-ins), what it needs from a
machine, the file of its steps' times, and the datasets of the embedded cores, which are known without drawing any
(verl's runs on an arithmetic task name the same sets). Cores are registered in `core_records.py`;
`cppo_lab.testing.CoreTests` checks this contract.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

from cppo_lab import schema
from cppo_lab.core_records import core_of, cores_that
from cppo_lab.errors import UserError, unknown
from cppo_lab.files import open_append, replace_file
from cppo_lab.plugins import Check, Requirement
from cppo_lab.schema import Dataset, Outcome
from cppo_lab.spec import AnswersSpec, ExactRun, LayoutSpec, MiniRun, PathsSpec, RunSpec, TaskData
from cppo_lab.spec.run import digest


class MetricSink(Protocol):
    """Receives the metrics of a core."""

    def begin(self, step: int | None) -> None:
        """Training resumes from the checkpoint of `step`; None: it starts from the beginning. Called once, first."""

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Record `metrics` (names of schema.py) of training step `step`. Never blocks training on a server."""

    def tag(self, name: str, value: str) -> None:
        """Give the run a tag of schema.TAGS_OF_CORES, for facts that are known only when training begins."""

    def artifact(self, name: str, values: Mapping[str, Any]) -> None:
        """Keep `values` as the JSON file `name` of the run; a later file of the same name replaces it."""

    def file(self, name: str, content: bytes) -> bool | None:
        """Keep `content` as the file `name` of the run; only called if `Resources.answers` is set.

        Returns False if it, or an earlier file, is not on disk yet and would be lost by a kill.
        """


# In the run's folder.
BEST_MODEL = "best_model.pt"  # of the embedded core: the weights of its best validation; kept
BEST_CHECKPOINT = "best_checkpoint"  # the same of the verl core, a folder
# Removed when the run's result is recorded.
CHECKPOINT = "checkpoint.pt"
CHECKPOINTS = "verl_checkpoints"  # of the verl core, which has a folder of checkpoints


@dataclass(frozen=True)
class Allocation:
    """The machines of a multi-node run, as each sees it. The first trains, the others are worker nodes."""

    machines: tuple[str, ...]
    rank: int  # index of this machine
    meeting: Path  # a folder that all of them see, new for each start of the job

    @property
    def machine(self) -> str:
        """The name of this machine."""
        return self.machines[self.rank]

    def end(self) -> None:
        """Called by the first machine when it has finished: the others may leave, even if they were never needed."""
        self.meeting.mkdir(parents=True, exist_ok=True)
        (self.meeting / "ended").touch()

    def ended(self) -> bool:
        """Whether the first machine has finished."""
        return (self.meeting / "ended").exists()


class Doing(Protocol):
    """Shows the activity of a run besides its logged steps, such as `warm start`, with `done` `of` a total."""

    def __call__(self, activity: str, done: int | None = None, of: int | None = None) -> None: ...


def say_nothing(activity: str, done: int | None = None, of: int | None = None) -> None:
    """A `Doing` that shows nothing."""


@dataclass(frozen=True)
class Resources:
    """The resources of one run on this machine: its folder, and `shared` for files that runs have in common."""

    shared: Path
    folder: Path
    device: str = "auto"  # "auto" is CUDA if available
    threads: int = 1
    layout: LayoutSpec | None = None  # for cores that use a layout
    paths: PathsSpec | None = None
    memory_gb: float | None = None  # of this machine, in 2^30 bytes; None: all of it
    allocation: Allocation | None = None  # None: only this machine
    deadline: float | None = None  # when the run is ended, in seconds since the epoch; None: never
    grace_seconds: float = 0.0  # how long before the deadline it is warned; 0: it is not
    mismatch: bool = True  # whether the metrics `mismatch/*` are computed
    answers: AnswersSpec | None = None  # which responses to keep; None: none
    doing: Doing = say_nothing  # may be called at any time, but only from the run's process


class Core(Protocol):
    """Train one run to its end, or raise.

    `sink.begin` is called once, before everything else; `sink.log` once for each step from 0 (the validation before
    training) to the last, in order, with the mean validation score at step 0 and each `validation.every` steps. A
    killed run resumes from the file CHECKPOINT or the folder CHECKPOINTS in `resources.folder`, with the same numbers
    as an uninterrupted run. It may log again what it has logged up to the checkpoint.
    """

    def __call__(self, spec: RunSpec, sink: MetricSink, resources: Resources) -> Outcome: ...


S = TypeVar("S", bound=RunSpec)


@dataclass(frozen=True)
class TogetherRun(Generic[S]):
    """One of several runs that are trained together, with a sink and a folder."""

    spec: S
    sink: MetricSink
    resources: Resources


class Ended(Protocol):
    """Reports that the run at `place` has ended with an outcome or with an error; called once for each run."""

    def __call__(self, place: int, how: Outcome | BaseException) -> None: ...


class Together(Protocol):
    """Train runs together that differ only in the seed. Each gets the numbers, checkpoints and files that `Core` gives
    it alone, whichever runs are trained with it.

    An exception from a sink (an error, or `Interrupted` without a signal if the run was cancelled) ends only its run.
    An interruption of the process is raised, and `ended` is not called for the remaining runs.
    """

    def __call__(self, runs: Sequence[TogetherRun[Any]], ended: Ended) -> None: ...


class Companion(Protocol):
    """Serve as a worker node for a run that another machine trains, until it ends; for multi-node cores."""

    def __call__(self, resources: Resources) -> None: ...


class Datasets(Protocol):
    """The datasets that a run reads. Must be fast, and must not fail if a dataset is missing."""

    def __call__(self, spec: RunSpec, resources: Resources) -> tuple[Dataset, ...]: ...


@dataclass(frozen=True)
class Exported:
    """An exported model: `step` is the training step after which it was the best of its run.

    `dtype` is that of its weights, `parameters` their number; weights that two layers share count once.
    """

    step: int
    dtype: str
    parameters: int


class Exporter(Protocol):
    """Write the best model of a run to `target`, an empty folder, in Hugging Face's format.

    `runs` is the folder of all runs; `say` takes lines of progress. Raises UserError if the run has kept no model, or
    a model that cannot be read.
    """

    def __call__(self, spec: RunSpec, runs: Path, target: Path, say: Callable[[str], None]) -> Exported: ...


class Evaluator(Protocol):
    """Avg@k of the best model of a run on the benchmarks of another run's data, with the step after which it was best.

    `resources.shared` is the folder of all runs. The benchmarks are asked as `spec` validates; the embedded core takes
    the response length of `other`, a run of the same core and model. Raises UserError if the run has kept no model, or
    the benchmarks are not for it.
    """

    def __call__(
        self, spec: RunSpec, other: RunSpec, resources: Resources
    ) -> tuple[int, Mapping[str, float]]: ...


def require_same_task(spec: RunSpec, other: RunSpec) -> None:
    """Raises UserError if the data of `other` is of another task or vocabulary than that of a run."""
    ours, theirs = (
        [getattr(data, name, None) for name in ("task", "modulus", "spellings")]
        for data in (spec.data, other.data)
    )
    if ours != theirs:
        raise UserError(
            f"benchmark {other.data.name!r}: run {spec.run_id} trained on {spec.data.name!r}, another task or "
            "vocabulary: choose one of its own"
        )


class StandIns(Protocol):
    """Make what these runs read in `folder`: models of the same shapes with random weights, and problems; what is there
    already stays. Returns paths to them.

    `say` takes lines of progress. Raises UserError for a model that has no stand-in.
    """

    def __call__(self, runs: Sequence[RunSpec], folder: Path, say: Callable[[str], None]) -> PathsSpec: ...


def load_core(name: str) -> Core:
    """The core called `name`. Importing it is slow.

    Raises UserError for an unknown name, ModuleNotFoundError if a package is not installed.
    """
    core: Core = core_of(name).load("train")
    return core


# Parts of a core's record that not every core has -> what the cores that have it are called.
_NOT_OF_ALL = {
    "train_together": "core that trains runs together",
    "exporter": "core that exports its models",
    "evaluator": "core that evaluates finished runs",
    "worker_node": "core that uses several machines",
    "stand_ins": "core with models of random weights",
}


def load_part(name: str, part: str) -> Any:
    """What the record of the core called `name` names as its `part`, such as `train_together`: a `Together`.

    Raises UserError for a core without it, ModuleNotFoundError if a package is not installed.
    """
    function = core_of(name).load(part)
    if function is None:
        raise unknown(_NOT_OF_ALL[part], name, cores_that(part))
    return function


def _nothing(run: RunSpec, layout: LayoutSpec) -> tuple[()]:
    return ()


@dataclass(frozen=True)
class CoreChecks:
    """What a core needs from a machine, besides GPUs, disk, data and model.

    python: the supported versions. gpu_python: the only version that its GPU builds (`gpu_builds`) support, if any.
    interfaces: checks that libraries have the interfaces that the core uses; may take seconds. machine: memory, limits,
    drivers.
    """

    requirements: Callable[[RunSpec, LayoutSpec], Sequence[Requirement]] = _nothing
    interfaces: Callable[[], Iterable[Check]] = tuple
    machine: Callable[[RunSpec, LayoutSpec], Iterable[Check]] = _nothing
    python: str = ">=3.11"
    gpu_python: str = ""
    gpu_builds: str = "its own builds"


def checks_of(core: str) -> CoreChecks:
    """What the core called `core` needs.

    Raises UserError for an unknown core.
    """
    checks: CoreChecks | None = core_of(core).load("doctor")
    return checks or CoreChecks()


_EMBEDDED = (
    Requirement("torch", ">=2.4,<3", "core=mini", extra="train"),
    Requirement("numpy", ">=1.26", "core=mini", extra="train"),
)
EMBEDDED = CoreChecks(requirements=lambda run, layout: _EMBEDDED)


# The time of each part of a step, and peak memory: lines of the file PHASES in the run's folder.
#
# Written by a core whose record has `preflight`. A preflight reads the timers `step` (with the checkpoint), `testing`
# (the validation), `save_checkpoint` and `update_weights` (from trainer to engine); others are kept. The names are
# verl's. Memory is in 2^30 bytes, of the trainer's process on one device and of the host.

PHASES = "verl_phases.jsonl"
MACHINE = "verl_machine.json"  # what the run's processes saw of the machines and the engine once all of them were up
_MEMORY = ("max_memory_allocated_gb", "max_memory_reserved_gb", "cpu_memory_used_gb")


@dataclass(frozen=True)
class Phases:
    """One step; step 0 is the validation before the first."""

    step: int
    seconds: Mapping[str, float]
    memory: Mapping[str, float] = field(default_factory=dict)


def write_phases(folder: Path, step: int, seconds: Mapping[str, float], metrics: Mapping[str, float]) -> None:
    """Add the line of `step`; `metrics` are all of verl's, of which those on memory are kept."""
    memory = {
        name: max(values)
        for name in _MEMORY
        if (values := [value for key, value in metrics.items() if key.endswith(name)])
    }
    with open_append(folder / PHASES) as file:
        file.write(json.dumps({"step": step, "seconds": dict(seconds), "memory": memory}) + "\n")


def write_machine(folder: Path, seen: Mapping[str, float | str]) -> None:
    """Write what is known of the machine; names and values are for people."""
    replace_file(folder / MACHINE, json.dumps(dict(seen)))


def read_machine(folder: Path) -> dict[str, float | str]:
    """What `write_machine` wrote; {} if the run did not get that far."""
    path = folder / MACHINE
    return dict(json.loads(path.read_text(encoding="utf-8"))) if path.exists() else {}


def read_phases(folder: Path) -> list[Phases]:
    """The complete lines, in the order in which they were written."""
    try:
        lines = (folder / PHASES).read_text(encoding="utf-8").splitlines(keepends=True)
    except FileNotFoundError:
        return []
    return [Phases(**json.loads(line)) for line in lines if line.endswith("\n")]


# The code that draws them.
PROCESS = "cppo_lab.cores.exact.process"
TASKS = "cppo_lab.cores.mini.tasks"


def exact_datasets(spec: ExactRun, resources: Resources) -> tuple[Dataset, ...]:
    """The starting symbols that the run's seed draws, batch after batch, and the benchmarks' shares of them."""
    data = spec.data
    process = data.model_dump(mode="json", exclude={"name", "benchmarks"})
    process["horizon"] = spec.rollout.max_response_length
    drawn = {"process": process, "seed": spec.seed, "prompts": spec.batch.prompts}
    profile = {"problems": spec.training.t_stop * spec.batch.prompts, "seed": spec.seed, **process}
    training = Dataset(data.name, digest(_text(drawn)), PROCESS, schema.CODE, schema.TRAINING, profile)
    count = len(data.benchmarks)
    held = []
    for i, benchmark in enumerate(data.benchmarks):
        starts = range(1 + i, data.vocabulary, count)
        name = digest(_text({"process": process, "starts": list(starts)}))
        profile = {"problems": len(starts), **process}
        held.append(Dataset(benchmark, name, PROCESS, schema.CODE, schema.VALIDATION, profile))
    return (training, *held)


def mini_datasets(spec: MiniRun, resources: Resources) -> tuple[Dataset, ...]:
    """The training problems that the run's seed draws, batch after batch, and the held-out sets."""
    drawn = {"stream": "batches", "seed": spec.seed, "prompts": spec.batch.prompts}
    return (
        training_set(spec.data, drawn, spec.training.t_stop * spec.batch.prompts),
        *held_out_sets(spec.data),
    )


def training_set(data: TaskData, drawn: dict[str, Any], problems: int) -> Dataset:
    """The `problems` training problems of a run; `drawn` are the settings, besides the task, that determine them."""
    profile = {"problems": problems, "seed": drawn["seed"], **_parameters(data)}
    name = digest(_text({"training": drawn, "task": _definition(data)}))
    return Dataset(data.name, name, f"{TASKS}.{data.task}", schema.CODE, schema.TRAINING, profile)


def held_out_sets(data: TaskData) -> tuple[Dataset, ...]:
    """The validation sets: the same for every run on `data`, whatever core trains it."""
    profile = {"problems": data.validation_problems, "seed": data.validation_seed, **_parameters(data)}
    return tuple(
        Dataset(
            benchmark,
            # The sets are drawn one after the other and are disjoint, so its index determines a set.
            digest(_text({"validation": i, "task": _definition(data)})),
            f"{TASKS}.{data.task}",
            schema.CODE,
            schema.VALIDATION,
            profile,
        )
        for i, benchmark in enumerate(data.benchmarks)
    )


def _definition(data: TaskData) -> dict[str, Any]:
    """Everything that determines the problems: the number of sets does, their names do not."""
    values = data.model_dump(mode="json", exclude={"name", "benchmarks"})
    return values | {"benchmarks": len(data.benchmarks)}


def _parameters(data: TaskData) -> dict[str, int | str]:
    return {
        "task": data.task,
        "modulus": data.modulus,
        "operations": data.operations,
        "spellings": data.spellings,
    }


def _text(values: dict[str, Any]) -> str:
    return json.dumps(values, sort_keys=True)
