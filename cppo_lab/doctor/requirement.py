"""A package that a run needs, against what is installed."""

from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version

from packaging.specifiers import SpecifierSet

from cppo_lab.doctor.check import MISSING, OK, UNNEEDED, WARNING, Check
from cppo_lab.installed import install_extra


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
        wanted = self.remedy or (
            install_extra(self.extra)
            if self.extra
            else f"pip install '{self.install or self.name + self.versions}'"
        )
        try:
            found = version(self.name)
        except PackageNotFoundError:
            if not self.needed_by:
                return Check(self.name, UNNEEDED, "not installed")
            return Check(self.name, MISSING, f"not installed, needed by {self.needed_by}", wanted)
        if SpecifierSet(self.versions).contains(found, prereleases=True):
            return Check(self.name, OK, found)
        if not self.needed_by:
            return Check(self.name, UNNEEDED, f"{found} is outside {self.versions}")
        return Check(
            self.name, MISSING if self.strict else WARNING, f"{found} is outside {self.versions}", wanted
        )
