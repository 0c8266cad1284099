"""The registry of trainer cores, including those of other packages, and their interface. Imports no trainer.

A core is a function from a RunSpec to metrics: it knows no sweeps, launchers or MLflow. Other parts that it may have
train runs together, export, evaluate, or make stand-ins of models; and it says what it needs from a machine.
`cppo_lab.testing.CoreTests` checks this contract.

Another package registers a core by an entry point of the group `cppo_lab.cores` that names its `CoreRecord`. There is
no other way: a sweep file, which may come from a stranger, can choose an installed core but cannot name code.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from cppo_lab.errors import UserError, unknown
from cppo_lab.plugins import CORE_GROUP, Check, Plugin, Requirement, entry_points
from cppo_lab.schema import Dataset, Outcome

if TYPE_CHECKING:
    from cppo_lab.spec import AnswersSpec, LayoutSpec, PathsSpec, RunSpec

DEFAULT_CORE = "mini"  # as in conf/config.yaml
BUILT_IN: Mapping[str, str] = MappingProxyType(
    {
        "mini": "cppo_lab.cores.mini:MINI",
        "verl": "cppo_lab.cores.verl:VERL",
        "exact": "cppo_lab.cores.exact:EXACT",
    }
)


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
    """The resources of a run on this machine: its folder, and `shared` for files that runs have in common."""

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
    """Train a run to its end, or raise.

    `sink.begin` is called once, before everything else; `sink.log` once for each step from 0 (the validation before
    training) to the last, in order, with the mean validation score at step 0 and each `validation.every` steps. A
    killed run resumes from the file CHECKPOINT or the folder CHECKPOINTS in `resources.folder`, with the same numbers
    as an uninterrupted run. It may log again what it has logged up to the checkpoint.
    """

    def __call__(self, spec: RunSpec, sink: MetricSink, resources: Resources) -> Outcome: ...


S = TypeVar("S", bound="RunSpec")


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


class StandIns(Protocol):
    """Make what these runs read in `folder`: models of the same shapes with random weights, and problems; what is there
    already stays. Returns paths to them.

    `say` takes lines of progress. Raises UserError for a model that has no stand-in.
    """

    def __call__(self, runs: Sequence[RunSpec], folder: Path, say: Callable[[str], None]) -> PathsSpec: ...


@dataclass(frozen=True)
class CoreRecord(Plugin):
    """The registration of a trainer core. Each `package.module:name` is imported when it is needed.

    settings: its subclass of RunSpec, whose validation refuses everything that the core cannot train.
    train, datasets: a `Core` and a `Datasets`.
    title: the trainer's name within a sentence. note: a paragraph on its experiment in MLflow, Markdown.

    train_together: a `Together`, which trains runs together that differ only in the seed; None: each is
    trained alone. most_together: the maximum number of them in a job.

    exporter: an `Exporter`; None: its models cannot be exported.
    evaluator: an `Evaluator`; None: `cppo evaluate` refuses its runs.
    worker_node: a `Companion`; None: a run uses one machine.
    check_placement: a function (run, layout) that raises UserError for a run that cannot train on the layout.
    estimate: a function (run, layout, available bytes of a GPU or None) -> CostEstimate or None; None: the cost is
    known from past runs only. doctor: a `CoreChecks`; None: nothing beyond Python is checked.
    trainer_config: a function (run, layout, paths, folder of runs) -> the trainer's configuration as plain values.

    uses_layout: `layout` and `paths` are part of its resources, are listed with its runs, and the machine is examined
    before they start. fresh_process: a run needs a process that has not trained another run.
    published_models: it trains models of the Hugging Face hub.
    own_models: the models of conf/model that only this core of the product trains; empty: it trains those that no core
    claims.
    seed_fixes_start: the seed of a run draws the parameters from which it starts, alike for all rules and models, so
    runs of the same seed are compared with each other. False: all starts are independent or the same, unless the
    configuration of a run has a warm start, which says it itself.
    miniature: a description of its models if its results are no evidence for or against the paper; otherwise empty.
    score: what its scores are, if they are no share of right answers among k responses (Avg@k).
    deviations: standard deviations of its scores over seeds, in points, that `cppo plan --power` assumes for a sweep's
    hypotheses.
    computes_error: its runs have the error of the surrogate, which hypotheses may be about.
    preflight: it writes the timers of each step, from which a short run predicts a long run.
    no_preflight: why it has no preflight.
    stand_ins: a `StandIns`, for a preflight without downloads; None: its models have none.
    validated_points: MLflow gets the points of validated steps alone, `history.npz` those of all steps. For runs of
    seconds in thousands, which would wait for MLflow's inserts.
    extra: the extra of pyproject.toml that has its packages; empty: it needs none, or is another package's.
    config: further sections of its configuration, as conf/core/<name>.yaml has them for a core of the product.
    """

    KIND = "core"
    title: str
    note: str
    settings: str
    train: str
    datasets: str
    train_together: str | None = None
    most_together: int = 1
    exporter: str | None = None
    evaluator: str | None = None
    worker_node: str | None = None
    check_placement: str | None = None
    estimate: str | None = None
    doctor: str | None = None
    trainer_config: str | None = None
    uses_layout: bool = False
    fresh_process: bool = False
    published_models: bool = False
    own_models: tuple[str, ...] = ()
    seed_fixes_start: bool = False
    miniature: str = ""
    score: str = ""
    deviations: tuple[float, ...] = (1.0, 2.0)
    computes_error: bool = False
    preflight: bool = False
    no_preflight: str = "it writes no timers that a preflight could read"
    stand_ins: str | None = None
    validated_points: bool = False
    extra: str = ""
    config: Mapping[str, Any] = field(default_factory=dict)

    def nodes(self, layout: LayoutSpec | None) -> int:
        """Machines that a run takes."""
        return layout.nodes if layout is not None and self.uses_layout else 1

    def gpus(self, layout: LayoutSpec | None) -> int:
        """GPUs that a run takes on each machine; 0 if it runs on the CPU."""
        if layout is None or not self.uses_layout or layout.device != "cuda":
            return 0
        return layout.devices_per_node


def core_names() -> tuple[str, ...]:
    """The cores of the product, then those of other installed packages by name. Imports none of them."""
    return (*BUILT_IN, *sorted(entry_points(CORE_GROUP).keys() - BUILT_IN.keys()))


@cache
def core_of(name: str) -> CoreRecord:
    """The record of the core called `name`. The product's names take precedence.

    Raises UserError if there is none, or if an entry point does not name a CoreRecord.
    """
    path = BUILT_IN.get(name) or entry_points(CORE_GROUP).get(name)
    if path is None:
        raise unknown("core", name, core_names())
    return CoreRecord.at(path, name)


@cache
def core_if_installed(name: str) -> CoreRecord:
    """The record of the core called `name`; an empty record, enough for reports, if its package is not installed."""
    try:
        return core_of(name)
    except UserError:
        return CoreRecord(name, title="", note="", settings="", train="", datasets="")


def cores_that(part: str) -> list[str]:
    """The names of the product's cores whose record has `part`, for messages."""
    return [name for name in BUILT_IN if getattr(core_of(name), part)]


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
        raise UserError(f"core={name!r} is no {_NOT_OF_ALL[part]}: these are {', '.join(cores_that(part))}")
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


# The time of each part of a step, and peak memory: lines of the file PHASES in the run's folder.
#
# Written by a core whose record has `preflight`. A preflight reads the timers `step` (with the checkpoint), `testing`
# (the validation), `save_checkpoint` and `update_weights` (from trainer to engine); others are kept. The names are
# verl's. Memory is in 2^30 bytes, of the trainer's process on one device and of the host.

PHASES = "verl_phases.jsonl"
MACHINE = "verl_machine.json"  # what the run's processes saw of the machines and the engine once all of them were up


@dataclass(frozen=True)
class Phases:
    """One step; step 0 is the validation before the first."""

    step: int
    seconds: Mapping[str, float]
    memory: Mapping[str, float] = field(default_factory=dict)


def read_machine(folder: Path) -> dict[str, float | str]:
    """What the run saw of its machines; {} if it did not get that far."""
    path = folder / MACHINE
    return dict(json.loads(path.read_text(encoding="utf-8"))) if path.exists() else {}


def read_phases(folder: Path) -> list[Phases]:
    """The complete lines, in the order in which they were written."""
    try:
        lines = (folder / PHASES).read_text(encoding="utf-8").splitlines(keepends=True)
    except FileNotFoundError:
        return []
    return [Phases(**json.loads(line)) for line in lines if line.endswith("\n")]
