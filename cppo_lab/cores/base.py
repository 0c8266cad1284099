"""The interface of a trainer core: a function from a RunSpec to metrics. Cores know no sweeps, launchers or MLflow.

Their records are in `core_records.py`; `cppo_lab.testing.CoreTests` checks what is said here.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

from cppo_lab.core_records import core_of, cores_that
from cppo_lab.errors import unknown
from cppo_lab.schema import Dataset, Outcome
from cppo_lab.spec import AnswersSpec, LayoutSpec, PathsSpec, RunSpec


class MetricSink(Protocol):
    """Where a core puts its metrics."""

    def begin(self, step: int | None) -> None:
        """Training resumes from the checkpoint of `step`; None: it starts from the beginning. Called once, first."""

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Record `metrics` (names of schema.py) of training step `step`. Never blocks training on a server."""

    def tag(self, name: str, value: str) -> None:
        """Give the run a tag of schema.TAGS_OF_CORES, of what is known only once training begins."""

    def artifact(self, name: str, values: Mapping[str, Any]) -> None:
        """Keep `values` as the JSON file `name` of the run; a later one of the same name replaces it."""

    def file(self, name: str, content: bytes) -> bool | None:
        """Keep `content` as the file `name` of the run; only called where `Resources.answers` is set.

        False: it, or an earlier one, is not on disk yet and would be lost by a kill.
        """


# In the run's folder.
BEST_MODEL = "best_model.pt"  # of the embedded core: the weights of its best validation, which stay
# Removed when the run is recorded.
CHECKPOINT = "checkpoint.pt"
CHECKPOINTS = "verl_checkpoints"  # of the core that has a folder of them


@dataclass(frozen=True)
class Allocation:
    """The machines that one run has together, as one of them sees it. The first one trains, the others are lent."""

    machines: tuple[str, ...]
    rank: int  # this one's place among them
    meeting: Path  # a folder that all of them see, new for each life of the job

    @property
    def machine(self) -> str:
        """This one."""
        return self.machines[self.rank]

    def end(self) -> None:
        """The first machine is through: the others may leave, also those that were never needed."""
        self.meeting.mkdir(parents=True, exist_ok=True)
        (self.meeting / "ended").touch()

    def ended(self) -> bool:
        """Whether the first machine is through."""
        return (self.meeting / "ended").exists()


class Doing(Protocol):
    """Say what a run does besides the steps that it logs: `warm start`, and how much of it is `done`."""

    def __call__(self, activity: str, done: int | None = None, of: int | None = None) -> None: ...


def say_nothing(activity: str, done: int | None = None, of: int | None = None) -> None:
    """For a run that nobody watches."""


@dataclass(frozen=True)
class Resources:
    """What this machine gives one run: a folder of its own, and `shared` for files that runs have in common."""

    shared: Path
    folder: Path
    device: str = "auto"  # "auto" takes CUDA when there is one
    threads: int = 1
    layout: LayoutSpec | None = None  # of cores that use one
    paths: PathsSpec | None = None
    memory_gb: float | None = None  # of this machine, in 2^30 bytes; None: as much as there is
    allocation: Allocation | None = None  # None: this machine alone
    mismatch: bool = True  # whether the metrics `mismatch/*` are computed
    answers: AnswersSpec | None = None  # what is kept of the answers; None: nothing
    doing: Doing = say_nothing  # shown while the run lives; may be called at any time, from its process alone


class Core(Protocol):
    """Train one run to its end, or raise.

    `sink.begin` is called once, before everything else; `sink.log` once for each step from 0 (the validation before
    training) to the last, in order, with the mean validation score at step 0 and each `validation.every` steps. What a
    killed run goes on from is the file CHECKPOINT or the folder CHECKPOINTS in `resources.folder`: the continued run
    has the numbers of an unbroken one. It may log again what it has logged up to the checkpoint.
    """

    def __call__(self, spec: RunSpec, sink: MetricSink, resources: Resources) -> Outcome: ...


S = TypeVar("S", bound=RunSpec)


@dataclass(frozen=True)
class TogetherRun(Generic[S]):
    """A run among several that are trained at once, with a sink and a folder of its own."""

    spec: S
    sink: MetricSink
    resources: Resources


class Ended(Protocol):
    """The run at `place` has come to its outcome, or to an error that is its own; called once for each run."""

    def __call__(self, place: int, how: Outcome | BaseException) -> None: ...


class Together(Protocol):
    """Train runs that differ in nothing but the seed, each as `Core` trains it alone: with its numbers, checkpoints and
    files, whatever its company.

    What a sink raises ends its run alone: an error, or `Interrupted` without a signal if it was cancelled. An
    interruption of the process is raised, with the other runs not ended.
    """

    def __call__(self, runs: Sequence[TogetherRun[Any]], ended: Ended) -> None: ...


class Companion(Protocol):
    """Lend this machine to a run that another one trains, until that ends; for cores that use several machines."""

    def __call__(self, resources: Resources) -> None: ...


class Datasets(Protocol):
    """The datasets that a run reads: found quickly, and without an error where one is missing."""

    def __call__(self, spec: RunSpec, resources: Resources) -> tuple[Dataset, ...]: ...


@dataclass(frozen=True)
class Exported:
    """A model that was written: the training step behind which it is the best of its run.

    `dtype` is that of its weights, `parameters` how many there are; weights that two layers share count once.
    """

    step: int
    dtype: str
    parameters: int


class Exporter(Protocol):
    """Write the best model of a run to `target`, an empty folder, in Hugging Face's format.

    `runs` is the folder of all runs; `say` takes lines of progress. Raises UserError if the run has kept none, or one
    that cannot be read.
    """

    def __call__(self, spec: RunSpec, runs: Path, target: Path, say: Callable[[str], None]) -> Exported: ...


class StandIns(Protocol):
    """Make what these runs read in `folder`: models of the same shapes with random weights, and problems; what is there
    already stays. Returns paths to them.

    `say` takes lines of progress. Raises UserError for a model that has no stand-in.
    """

    def __call__(self, runs: Sequence[RunSpec], folder: Path, say: Callable[[str], None]) -> PathsSpec: ...


def load_core(name: str) -> Core:
    """The core called `name`; it is imported only now, since trainers are heavy.

    Raises UserError for an unknown name, ModuleNotFoundError if a package is not installed.
    """
    core: Core = core_of(name).load("train")
    return core


def load_together(name: str) -> Together:
    """What trains several runs of the core called `name` at once.

    Raises UserError for a core that trains them one by one.
    """
    found: Together | None = core_of(name).load("train_together")
    if found is None:
        raise unknown("core that trains runs together", name, cores_that("train_together"))
    return found


def load_datasets(name: str) -> Datasets:
    """What lists the datasets of a run of the core called `name`; no trainer is imported.

    Raises UserError for an unknown name.
    """
    found: Datasets = core_of(name).load("datasets")
    return found


def load_exporter(name: str) -> Exporter:
    """What writes the models of the core called `name` in Hugging Face's format.

    Raises UserError for a core without one, ModuleNotFoundError if a package is not installed.
    """
    found: Exporter | None = core_of(name).load("exporter")
    if found is None:
        raise unknown("core that exports its models", name, cores_that("exporter"))
    return found


def load_companion(name: str) -> Companion:
    """What the other machines of a run of the core called `name` do.

    Raises UserError for a core that uses one machine.
    """
    found: Companion | None = core_of(name).load("worker_node")
    if found is None:
        raise unknown("core that uses several machines", name, cores_that("worker_node"))
    return found


def load_stand_ins(name: str) -> StandIns:
    """What makes models with random weights in the place of those of the core called `name`.

    Raises UserError for a core without them, ModuleNotFoundError if a package is not installed.
    """
    found: StandIns | None = core_of(name).load("stand_ins")
    if found is None:
        raise unknown("core with models of random weights", name, cores_that("stand_ins"))
    return found
