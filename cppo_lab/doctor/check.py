"""One line of a diagnosis."""

from dataclasses import dataclass

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
