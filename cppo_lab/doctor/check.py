"""A check of the machine: one line of a diagnosis, a required package, and the list of a core's checks."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version

from packaging.specifiers import SpecifierSet

from cppo_lab.core_records import core_of
from cppo_lab.plugins import install_extra
from cppo_lab.spec import LayoutSpec, RunSpec

OK, WARNING, MISSING, UNNEEDED = "ok", "warning", "missing", "not needed"


@dataclass(frozen=True)
class Check:
    """`name` is what was checked, `found` what is there; `remedy` says what to do if there is a problem.

    MISSING keeps a run from starting; WARNING does not.
    """

    name: str
    status: str
    found: str
    remedy: str = ""

    @property
    def line(self) -> str:
        """The check as a line of text."""
        remedy = f": {self.remedy}" if self.remedy else ""
        return f"{self.status:<10}  {self.name}: {self.found}{remedy}"


@dataclass(frozen=True)
class Requirement:
    """A distribution, its supported versions, and how to install it.

    `needed_by` names the setting that needs it; empty: this run does not. With `strict`, an unsupported version keeps a
    run from starting; otherwise it is a warning.
    """

    name: str
    versions: str
    needed_by: str
    install: str = ""
    extra: str = ""  # extra of this package that includes it
    strict: bool = False
    remedy: str = ""  # if pip alone cannot install it

    def check(self) -> Check:
        """Compare with what is installed."""
        remedy = self.remedy or (
            install_extra(self.extra)
            if self.extra
            else f"pip install '{self.install or self.name + self.versions}'"
        )
        try:
            installed = version(self.name)
        except PackageNotFoundError:
            if not self.needed_by:
                return Check(self.name, UNNEEDED, "not installed")
            return Check(self.name, MISSING, f"not installed, needed by {self.needed_by}", remedy)
        if SpecifierSet(self.versions).contains(installed, prereleases=True):
            return Check(self.name, OK, installed)
        if not self.needed_by:
            return Check(self.name, UNNEEDED, f"{installed} is outside {self.versions}")
        return Check(
            self.name, MISSING if self.strict else WARNING, f"{installed} is outside {self.versions}", remedy
        )


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
    checks: CoreChecks | None = core_of(core).load("doctor")
    return checks or CoreChecks()
