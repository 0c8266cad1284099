"""The registry of trainer cores, including those of other packages. Imports no trainer.

Another package registers a core by an entry point of the group `cppo_lab.cores` that names its `CoreRecord`. There is
no other way: a sweep file, which may come from a stranger, can choose an installed core but cannot name code.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from types import MappingProxyType
from typing import Any, Protocol

from cppo_lab.errors import UserError, unknown
from cppo_lab.plugins import CORE_GROUP, Plugin, entry_points

DEFAULT_CORE = "mini"  # as in conf/config.yaml
BUILT_IN: Mapping[str, str] = MappingProxyType(
    {
        "mini": "cppo_lab.cores.mini:MINI",
        "verl": "cppo_lab.cores.verl:VERL",
        "exact": "cppo_lab.cores.exact:EXACT",
    }
)


class Layout(Protocol):
    """The part of a LayoutSpec that decides how many machines and GPUs a run takes."""

    @property
    def device(self) -> str: ...
    @property
    def nodes(self) -> int: ...
    @property
    def devices_per_node(self) -> int: ...


@dataclass(frozen=True)
class CoreRecord(Plugin):
    """The registration of a trainer core. Each `package.module:name` is imported when it is needed.

    settings: its subclass of RunSpec, whose validation refuses everything that the core cannot train.
    train, datasets: a `Core` and a `Datasets` (cores/base.py).
    title: the trainer's name within a sentence. note: a paragraph on its experiment in MLflow, Markdown.

    train_together: a `Together` (cores/base.py), which trains runs together that differ only in the seed; None: they
    are trained one by one. most_together: the maximum number of them in a job.

    exporter: an `Exporter`; None: its models cannot be exported.
    evaluator: an `Evaluator`; None: `cppo evaluate` refuses its runs.
    worker_node: a `Companion`; None: a run uses one machine.
    check_placement: a function (run, layout) that raises UserError for a run that cannot train on the layout.
    estimate: a function (run, layout, available bytes of a GPU or None) -> CostEstimate or None; None: the cost is
    known from past runs only. doctor: a `CoreChecks` (cores/base.py); None: nothing beyond Python is checked.
    trainer_config: a function (run, layout, paths, folder of runs) -> the trainer's configuration as plain values.

    uses_layout: `layout` and `paths` are part of its resources, are listed with its runs, and the machine is examined
    before they start. fresh_process: a run needs a process that has not trained another run.
    published_models: it trains models of the Hugging Face hub.
    own_models: the models of conf/model that only this core of the product trains; empty: it trains those that no core
    claims.
    seed_fixes_start: the seed of a run draws the parameters from which it starts, alike for all rules and models, so
    runs of one seed are compared with each other. False: all starts are independent or the same, unless the
    configuration of a run has a warm start, which says it itself.
    miniature: a description of its models if its results are no evidence for or against the paper; otherwise empty.
    score: what its scores are, if they are no share of right answers among k responses (Avg@k).
    deviations: standard deviations of its scores over seeds, in points, that `cppo plan --power` assumes for a sweep's
    hypotheses.
    preflight: it writes the timers of each step (cores/base.py), from which a short run predicts a long run.
    no_preflight: why it has no preflight.
    stand_ins: a `StandIns` (cores/base.py), for a preflight without downloads; None: its models have none.
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
    preflight: bool = False
    no_preflight: str = "it writes no timers that a preflight could read"
    stand_ins: str | None = None
    validated_points: bool = False
    extra: str = ""
    config: Mapping[str, Any] = field(default_factory=dict)

    def nodes(self, layout: Layout | None) -> int:
        """Machines that a run takes."""
        return layout.nodes if layout is not None and self.uses_layout else 1

    def gpus(self, layout: Layout | None) -> int:
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
    """The record of the core called `name`; if its package is not installed, an empty one, which reports do with."""
    try:
        return core_of(name)
    except UserError:
        return CoreRecord(name, title="", note="", settings="", train="", datasets="")


def cores_that(part: str) -> list[str]:
    """The names of the product's cores whose record has `part`, for messages."""
    return [name for name in BUILT_IN if getattr(core_of(name), part)]
