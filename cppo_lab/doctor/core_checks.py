"""The doctor's checks for one core."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from cppo_lab.core_records import core_of
from cppo_lab.doctor.check import Check
from cppo_lab.doctor.requirement import Requirement
from cppo_lab.spec import LayoutSpec, RunSpec


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
    """The checks of the core called `core`.

    Raises UserError for an unknown core.
    """
    found: CoreChecks | None = core_of(core).load("doctor")
    return found or CoreChecks()
