"""Checks Python and packages against the supported version ranges of each core."""

import platform
from collections.abc import Iterator

from packaging.specifiers import SpecifierSet

from cppo_lab.doctor.check import MISSING, OK, WARNING, Check
from cppo_lab.doctor.core_checks import CoreChecks, checks_of
from cppo_lab.doctor.requirement import Requirement
from cppo_lab.launch.launchers import launcher_of
from cppo_lab.spec import LayoutSpec, RunSpec


def check_launcher(launcher: str) -> Iterator[Check]:
    """Check the package that starts runs in separate processes."""
    needed = f"launcher={launcher}" if launcher_of(launcher).submitit else ""
    yield Requirement("submitit", ">=1.5.2,<2", needed, extra="train").check()


def check_packages(run: RunSpec, layout: LayoutSpec) -> Iterator[Check]:
    """Check Python, then every package of the run's core."""
    checks = checks_of(run.core)
    python = platform.python_version()
    if SpecifierSet(checks.python).contains(python, prereleases=True):
        built_for = checks.gpu_python if layout.device == "cuda" else ""
        if built_for and not python.startswith(f"{built_for}."):
            yield Check("Python", WARNING, python, f"{checks.gpu_builds}, are for Python {built_for}")
        else:
            yield Check("Python", OK, python)
    else:
        remedy = "use a Python within it"
        yield Check("Python", MISSING, f"{python} is outside {checks.python}", remedy)
    for requirement in checks.requirements(run, layout):
        yield requirement.check()


_EMBEDDED = (
    Requirement("torch", ">=2.4,<3", "core=mini", extra="train"),
    Requirement("numpy", ">=1.26", "core=mini", extra="train"),
)
MINI = CoreChecks(requirements=lambda run, layout: _EMBEDDED)
