"""Tables as Markdown and LaTeX (booktabs) text."""

import re
from collections.abc import Iterable, Sequence

from cppo_lab.reports.audit_view import AuditView
from cppo_lab.reports.escapes import escape_latex, escape_markdown
from cppo_lab.reports.tables import BEST, SECOND, Entry, FullTable, MainTable, TableRow


def plain(entry: Entry) -> str:
    """`31.88`, `31.88 ± 0.42`, `31.88 ± 0.42 [0.31]`, `collapse`; then an arrow, and a dagger if it is provisional."""
    text = entry.word if entry.value is None else f"{entry.value}"
    if entry.std is not None:
        text += f" ± {entry.std}"
    if entry.evaluation is not None:
        text += f" [{entry.evaluation}]"
    return text + (f" {entry.test}" if entry.test else "") + ("†" if entry.provisional else "")


def _marked(entry: Entry, best: tuple[str, str], second: tuple[str, str], escaped: str) -> str:
    before, after = {BEST: best, SECOND: second}.get(entry.mark, ("", ""))
    return before + escaped + after


def _markdown_entry(entry: Entry) -> str:
    return _marked(entry, ("**", "**"), ("<u>", "</u>"), escape_markdown(plain(entry)))


def _latex_entry(entry: Entry) -> str:
    return _marked(entry, (r"\textbf{", "}"), (r"\underline{", "}"), escape_latex(plain(entry)))


def markdown_table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """The lines of a table; its texts must be escaped already."""
    align = ["---", *["---:"] * (len(headings) - 1)]
    return ["| " + " | ".join(cells) + " |" for cells in (headings, align, *rows)]


def _label(row: TableRow) -> str:
    label = escape_markdown(row.label)
    return f"**{label}**" if row.shaded else label


def steps_text(row: TableRow) -> str:
    """The selected steps, one per run."""
    return ", ".join(map(str, row.steps)) or "–"


def main_markdown(table: MainTable) -> str:
    """Table 1 as a Markdown document."""
    rows = [[_label(row), *map(_markdown_entry, row.entries)] for row in table.rows]
    lines = markdown_table(["Method", *map(escape_markdown, table.models)], rows)
    return document(table.title, lines, table.notes)


def full_markdown(table: FullTable) -> str:
    """Table 4 as a Markdown document, one table per model."""
    lines: list[str] = []
    for block in table.blocks:
        stop = "not given" if block.t_stop is None else block.t_stop
        lines += [f"## {escape_markdown(block.model)} (T_stop = {stop})", ""]
        rows = [[_label(row), *map(_markdown_entry, row.entries), steps_text(row)] for row in block.rows]
        lines += [*markdown_table(["Method", *map(escape_markdown, block.headings), "Step"], rows), ""]
    return document(table.title, lines, table.notes)


def document(title: str, lines: Sequence[str], notes: Sequence[str]) -> str:
    """A Markdown document around the lines of a table; title and notes are escaped here."""
    return "\n".join(
        [f"# {escape_markdown(title)}", "", *lines, "", *(escape_markdown(note) + "\n" for note in notes)]
    )


def _latex_row(row: TableRow, extra: Sequence[str] = ()) -> str:
    shade = r"\rowcolor{black!8} " if row.shaded else ""
    return shade + " & ".join([escape_latex(row.label), *map(_latex_entry, row.entries), *extra]) + r" \\"


PACKAGES = (r"\usepackage{booktabs}", r"\usepackage[table]{xcolor}", r"\usepackage{graphicx}")


def latex_document(title: str, columns: str, body: Sequence[str], notes: Sequence[str]) -> str:
    """A LaTeX table around the lines of its body, to be included with `\\input`; title and notes are escaped here.

    A table wider than the text is scaled down to fit. It needs the packages `PACKAGES`.
    """
    small = " ".join(escape_latex(note) for note in notes)
    caption = escape_latex(re.sub(r" \(Table \d+\)$", "", title))  # LaTeX numbers it
    lines = [
        f"% needs {' '.join(PACKAGES)}",
        r"\begin{table}[htbp]",
        r"  \centering",
        rf"  \caption{{{caption}}}",
        rf"  \sbox0{{\begin{{tabular}}{{{columns}}}",
        *(f"    {line}" for line in body),
        r"  \end{tabular}}%",
        r"  \ifdim\wd0>\linewidth\resizebox{\linewidth}{!}{\usebox0}\else\usebox0\fi",
        r"  \par\smallskip",
        rf"  \begin{{minipage}}{{\linewidth}}\footnotesize {small}\end{{minipage}}",
        r"\end{table}",
    ]
    return "\n".join(lines) + "\n"


def latex_wrapper(files: Iterable[str], figures: Sequence[str] = ()) -> str:
    """A LaTeX document with all tables among `files`, then `figures` (LaTeX code). It compiles in the folder that
    contains them.
    """
    tables = sorted(name for name in files if name.startswith("table_") and name.endswith(".tex"))
    lines = [
        r"\documentclass{article}",
        r"\usepackage[margin=2.5cm]{geometry}",
        *PACKAGES,
        r"\begin{document}",
        *(rf"\input{{{name.removesuffix('.tex')}}}\clearpage" for name in tables),
        *figures,
        r"\end{document}",
    ]
    return "\n".join(lines) + "\n"


def main_latex(table: MainTable) -> str:
    """Table 1 as a LaTeX snippet."""
    head = " & ".join(["Method", *map(escape_latex, table.models)]) + r" \\"
    body = [r"\toprule", head, r"\midrule", *map(_latex_row, table.rows), r"\bottomrule"]
    return latex_document(table.title, "l" + "r" * len(table.models), body, table.notes)


def full_latex(table: FullTable) -> str:
    """Table 4 as a LaTeX snippet with one block of rows per model."""
    width = max(len(block.headings) for block in table.blocks) + 2
    body = [r"\toprule"]
    for number, block in enumerate(table.blocks):
        if number == 0 or block.headings != table.blocks[number - 1].headings:
            body += [r"\midrule"] * (number > 0)
            body.append(" & ".join(["Method", *map(escape_latex, block.headings), "Step"]) + r" \\")
        stop = "" if block.t_stop is None else f" ($T_{{\\mathrm{{stop}}}} = {block.t_stop}$)"
        body += [
            r"\midrule",
            rf"\multicolumn{{{width}}}{{l}}{{\textit{{{escape_latex(block.model)}}}{stop}}} \\",
        ]
        body += [_latex_row(row, [escape_latex(steps_text(row))]) for row in block.rows]
    body.append(r"\bottomrule")
    return latex_document(table.title, "l" + "r" * (width - 1), body, table.notes)


def audit_markdown(view: AuditView) -> str:
    """The audit of the printed tables as a Markdown document."""
    lines = [view.summary, "", "## Oddities", ""]
    for number, discrepancy in enumerate(view.discrepancies, start=1):
        claim, evidence = escape_markdown(discrepancy.claim), escape_markdown(discrepancy.evidence)
        lines += [f"{number}. **{claim}** ({discrepancy.verdict}) {evidence}"]
    lines += ["", "## Every printed number", ""]
    cells = [(c.model, c.label, c.column, c.printed, c.exact, c.difference, c.printing) for c in view.cells]
    headings = ("Model", "Method", "Column", "Printed", "Curve", "Difference", "Printed digits")
    lines += markdown_table(headings, [[escape_markdown(text) for text in cell] for cell in cells])
    return document("Audit of the printed tables", lines, ())
