"""Tables -> files in Markdown, LaTeX and CSV."""

from collections.abc import Mapping

from cppo_lab.reports import csv_tables, markup, text_tables
from cppo_lab.reports.tables import FullTable, MainTable
from cppo_lab.reports.text_tables import TextTable

Table = MainTable | FullTable | TextTable


def table_files(tables: Mapping[str, Table | None]) -> dict[str, str]:
    """Every table under its name in all three formats, by file name; None has no files."""
    return {
        f"{name}.{kind}": text
        for name, table in tables.items()
        if table is not None
        for kind, text in zip(("md", "tex", "csv"), _texts(table), strict=True)
    }


def _texts(table: Table) -> tuple[str, str, str]:
    match table:
        case MainTable():
            return markup.main_markdown(table), markup.main_latex(table), csv_tables.main_csv(table)
        case FullTable():
            return markup.full_markdown(table), markup.full_latex(table), csv_tables.full_csv(table)
    return text_tables.text_markdown(table), text_tables.text_latex(table), text_tables.text_csv(table)
