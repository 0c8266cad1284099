"""The audit as text, for the page and the Markdown file."""

from collections.abc import Sequence
from dataclasses import dataclass

from cppo_lab.analysis.audit import AVERAGE, Audit
from cppo_lab.reports.discrepancy import Discrepancy
from cppo_lab.reports.names import benchmark_name, display_name

ABSENT = "–"


@dataclass(frozen=True)
class AuditLine:
    """One printed number and the curve's, as text. `label` is the display name of `method`."""

    model: str
    method: str
    label: str
    column: str
    printed: str
    exact: str
    difference: str
    printing: str


@dataclass(frozen=True)
class AuditView:
    """The audit section."""

    summary: str
    discrepancies: tuple[Discrepancy, ...]
    cells: tuple[AuditLine, ...]


def audit_view(audit: Audit, found: Sequence[Discrepancy]) -> AuditView:
    """The audit section from the audit and its discrepancies."""
    numbers = [cell for cell in audit.cells if cell.difference is not None]
    largest = max(abs(cell.difference) for cell in numbers if cell.difference is not None)
    summary = (
        f"The selection rule applied to the paper's curves gives all {len(numbers)} printed numbers of "
        f"Table 4 to "
        f"within {largest} points. The list has first the known discrepancies of the printed tables, each tested "
        f"against the curves, then those that only the curves show."
    )
    return AuditView(summary, tuple(found), tuple(audit_lines(audit)))


def audit_lines(audit: Audit) -> list[AuditLine]:
    """Every printed cell as text."""
    return [
        AuditLine(
            model=cell.model,
            method=cell.method,
            label=display_name(cell.method),
            column="Avg" if cell.column == AVERAGE else benchmark_name(cell.column),
            printed=cell.printed,
            exact=ABSENT if cell.exact is None else str(cell.exact),
            difference=ABSENT if cell.difference is None else f"{cell.difference:+}",
            printing=cell.printing.value,
        )
        for cell in audit.cells
    ]
