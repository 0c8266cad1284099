"""One line of a diagnosis."""

from dataclasses import dataclass

OK, WARNING, MISSING, UNNEEDED = "ok", "warning", "missing", "not needed"


@dataclass(frozen=True)
class Check:
    """`name` is what was looked for, `found` what is there; `remedy` says what to do where it is not as it should be.

    MISSING keeps a run from starting; WARNING does not.
    """

    name: str
    status: str
    found: str
    remedy: str = ""

    @property
    def line(self) -> str:
        """As printed."""
        remedy = f": {self.remedy}" if self.remedy else ""
        return f"{self.status:<10}  {self.name}: {self.found}{remedy}"
