"""Tables with plain-text cells, such as the constants of each model; and the files of all kinds of tables."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from cppo_lab import schema
from cppo_lab.reports.csv_tables import csv_text, full_csv, main_csv
from cppo_lab.reports.escapes import escape_latex, escape_markdown
from cppo_lab.reports.markup import (
    document,
    full_latex,
    full_markdown,
    latex_document,
    main_latex,
    main_markdown,
    markdown_table,
)
from cppo_lab.reports.tables import FullTable, MainTable


@dataclass(frozen=True)
class TextRow:
    """One row: its label and one text for each heading. `pair`: the (model, variant) whose runs it is about."""

    label: str
    shaded: bool
    cells: tuple[str, ...]
    pair: tuple[str, str] | None = None


@dataclass(frozen=True)
class TextTable:
    """`lead` is the heading of the label column; `core` is empty if the table has no numbers of runs."""

    title: str
    core: str
    lead: str
    headings: tuple[str, ...]
    rows: tuple[TextRow, ...]
    notes: tuple[str, ...]


Table = MainTable | FullTable | TextTable


def text_markdown(table: TextTable) -> str:
    """The table as a Markdown document."""
    rows = [[escape_markdown(text) for text in (row.label, *row.cells)] for row in table.rows]
    headings = [escape_markdown(text) for text in (table.lead, *table.headings)]
    return document(table.title, markdown_table(headings, rows), table.notes)


def text_latex(table: TextTable) -> str:
    """The table as a LaTeX snippet."""
    head = " & ".join(map(escape_latex, (table.lead, *table.headings))) + r" \\"
    rows = [
        (r"\rowcolor{black!8} " if row.shaded else "")
        + " & ".join(map(escape_latex, (row.label, *row.cells)))
        + r" \\"
        for row in table.rows
    ]
    body = [r"\toprule", head, r"\midrule", *rows, r"\bottomrule"]
    columns = "l" + "".join(_align(table, column) for column in range(len(table.headings)))
    return latex_document(table.title, columns, body, table.notes)


def _align(table: TextTable, column: int) -> str:
    """Numbers are right-aligned, words left-aligned."""
    numeric = all(not re.search("[A-Za-z]", row.cells[column]) for row in table.rows)
    return "r" if numeric else "l"


def text_csv(table: TextTable) -> str:
    """The table as CSV; numbers of one of our cores name it in every row."""
    core = [table.core] if table.core not in ("", schema.PAPER) else []
    rows = ([row.label, *row.cells, *core] for row in table.rows)
    return csv_text([table.lead, *table.headings, *(["core"] if core else [])], rows)


def table_files(tables: Mapping[str, Table | None]) -> dict[str, str]:
    """Every table in Markdown, LaTeX and CSV, by file name; a table that is None has no files."""
    return {
        f"{name}.{kind}": text
        for name, table in tables.items()
        if table is not None
        for kind, text in zip(("md", "tex", "csv"), _texts(table), strict=True)
    }


def _texts(table: Table) -> tuple[str, str, str]:
    match table:
        case MainTable():
            return main_markdown(table), main_latex(table), main_csv(table)
        case FullTable():
            return full_markdown(table), full_latex(table), full_csv(table)
    return text_markdown(table), text_latex(table), text_csv(table)
