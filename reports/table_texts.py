"""Tables as Markdown, LaTeX (booktabs) and CSV text, and boards as CSV, in percent."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence

from cppo_lab import schema
from cppo_lab.analysis.scoring import Scoreboard
from cppo_lab.analysis.statistics.values import run_values
from cppo_lab.reports.names import csv_text, escape_latex, escape_markdown, percent
from cppo_lab.reports.tables import BEST, SECOND, Entry, FullTable, TextRow, TextTable, core_of

Table = FullTable | TextTable
_MARKDOWN_MARKS = {BEST: ("**", "**"), SECOND: ("<u>", "</u>"), "": ("", "")}
_LATEX_MARKS = {BEST: (r"\textbf{", "}"), SECOND: (r"\underline{", "}"), "": ("", "")}


def _texts(row: TextRow, escape: Callable[[str], str], marks: Mapping[str, tuple[str, str]]) -> list[str]:
    """The row's texts, escaped and marked."""
    cells = [
        escape(str(cell)).join(marks[cell.mark if isinstance(cell, Entry) else ""]) for cell in row.cells
    ]
    return [escape(row.label), *cells]


def markdown(table: Table) -> str:
    """The table as a Markdown document, one table per model if the models have different columns."""
    lines = [f"# {escape_markdown(table.title)}", ""]
    for number, (title, block) in enumerate(table.blocks):
        if isinstance(table, FullTable):
            stop = "not given" if table.stops[number] is None else table.stops[number]
            lines += [f"## {escape_markdown(title)} (T_stop = {stop})", ""]
        rows = [_texts(row, escape_markdown, _MARKDOWN_MARKS) for row in block.rows]
        for row, texts in zip(block.rows, rows, strict=True):
            texts[0] = f"**{texts[0]}**" if row.shaded and block.of_scores else texts[0]
        head = map(escape_markdown, (block.lead, *block.headings))
        align = ["---", *["---:"] * len(block.headings)]
        lines += ["| " + " | ".join(cells) + " |" for cells in (head, align, *rows)]
        lines += [""] * isinstance(table, FullTable)
    return "\n".join([*lines, "", *(escape_markdown(note) + "\n" for note in table.notes)])


PACKAGES = (r"\usepackage{booktabs}", r"\usepackage[table]{xcolor}", r"\usepackage{graphicx}")


def latex(table: Table) -> str:
    """The table as LaTeX, to be included with `\\input`, with a block of rows per model if their columns differ.

    A table wider than the text is scaled down to fit. It needs the packages `PACKAGES`.
    """
    small = " ".join(escape_latex(note) for note in table.notes)
    caption = escape_latex(re.sub(r" \(Table \d+\)$", "", table.title))  # LaTeX numbers it
    width = 1 + max(len(block.headings) for _, block in table.blocks)
    body, before = [r"\toprule"], None
    for number, (title, block) in enumerate(table.blocks):
        if block.headings != before:
            body += [r"\midrule"] * (before is not None)
            body.append(_latex_row(False, map(escape_latex, (block.lead, *block.headings))))
        before = block.headings
        body.append(r"\midrule")
        if isinstance(table, FullTable):
            end = table.stops[number]
            stop = "" if end is None else f" ($T_{{\\mathrm{{stop}}}} = {end}$)"
            body.append(rf"\multicolumn{{{width}}}{{l}}{{\textit{{{escape_latex(title)}}}{stop}}} \\")
        body += [_latex_row(row.shaded, _texts(row, escape_latex, _LATEX_MARKS)) for row in block.rows]
    body.append(r"\bottomrule")
    align = "r" * (width - 1)
    if not block.of_scores:  # numbers and intervals are right-aligned, words left-aligned
        columns = zip(*(row.cells for row in block.rows), strict=True) if block.rows else [()] * (width - 1)
        joined = ("".join(map(str, column)).replace(" to ", "") for column in columns)
        align = "".join("l" if re.search("[A-Za-z]", texts) else "r" for texts in joined)
    lines = [
        f"% needs {' '.join(PACKAGES)}",
        r"\begin{table}[htbp]",
        r"  \centering",
        rf"  \caption{{{caption}}}",
        rf"  \sbox0{{\begin{{tabular}}{{l{align}}}",
        *(f"    {line}" for line in body),
        r"  \end{tabular}}%",
        r"  \ifdim\wd0>\linewidth\resizebox{\linewidth}{!}{\usebox0}\else\usebox0\fi",
        r"  \par\smallskip",
        rf"  \begin{{minipage}}{{\linewidth}}\footnotesize {small}\end{{minipage}}",
        r"\end{table}",
    ]
    return "\n".join(lines) + "\n"


def latex_wrapper(files: Iterable[str], figures: Sequence[str] = (), before: Sequence[str] = ()) -> str:
    """A LaTeX document: `before`, all tables among `files`, then `figures` (both LaTeX code). It compiles in the folder
    that contains them.
    """
    tables = sorted(name for name in files if name.startswith("table_") and name.endswith(".tex"))
    lines = [
        r"\documentclass{article}",
        r"\usepackage[margin=2.5cm]{geometry}",
        *PACKAGES,
        r"\begin{document}",
        *before,
        *(rf"\input{{{name.removesuffix('.tex')}}}\clearpage" for name in tables),
        *figures,
        r"\end{document}",
    ]
    return "\n".join(lines) + "\n"


def _latex_row(shaded: bool, texts: Iterable[str]) -> str:
    return (r"\rowcolor{black!8} " if shaded else "") + " & ".join(texts) + r" \\"


def table_csv(table: Table) -> str:
    """The table as CSV, scores in percent. The paper's tables have exactly the paper's columns; numbers of one of our
    cores name it in every row. Table 4 is `model, t_stop, method`, the benchmarks (empty if a model does not have one)
    and `avg`.
    """
    head: list[str] = [] if table.core in ("", schema.PAPER) else ["core"]
    core = [table.core] if head else []
    if isinstance(table, TextTable):
        if not table.of_scores:
            texts = ([row.label, *map(str, row.cells), *core] for row in table.rows)
            return csv_text([table.lead, *table.headings, *head], texts)
        scores = ([_variant(row), *map(_plain, row.cells), *core] for row in table.rows)
        return csv_text(["method", *table.headings, *head], scores)
    names = dict.fromkeys(
        name for block in table.tables for name in block.headings if name not in ("avg", "step")
    )
    columns, lines = [*names, "avg"], []
    for block, stop in zip(table.tables, table.stops, strict=True):
        for row in block.rows:
            entries = dict(zip(block.headings, map(_plain, row.cells), strict=True))
            lead = [block.title, "" if stop is None else stop, _variant(row)]
            lines.append([*lead, *(entries.get(name, "") for name in columns), *core])
    return csv_text(["model", "t_stop", "method", *columns, *head], lines)


def _variant(row: TextRow) -> str:
    return row.label if row.pair is None else row.pair[1]


def _plain(cell: str | Entry) -> str:
    return cell.plain if isinstance(cell, Entry) else cell


def table_files(tables: Mapping[str, Table | None]) -> dict[str, str]:
    """Every table in Markdown, LaTeX and CSV, by file name; a table that is None has no files."""
    kinds = (("md", markdown), ("tex", latex), ("csv", table_csv))
    return {
        f"{name}.{kind}": write(table)
        for name, table in tables.items()
        if table is not None
        for kind, write in kinds
    }


def long_csv(board: Scoreboard) -> str:
    """One row per (model, variant, benchmark): mean, standard deviation and number of runs, in percent."""
    header = [
        "core",
        "model",
        "t_stop",
        "method",
        "benchmark",
        "state",
        "provisional",
        "runs",
        "n",
        "mean",
        "std",
    ]
    rows: list[list[object]] = []
    for (model, variant), cell in board.cells.items():
        about = [cell.state.value, int(cell.provisional), cell.expected]
        for name, stat in {
            **cell.components,
            "avg": cell.score,
            "base": cell.base,
            "gain": cell.gain,
        }.items():
            numbers: list[object] = [0, "", ""]
            if stat is not None:
                numbers = [stat.n, percent(stat.mean), "" if stat.std is None else percent(stat.std)]
            rows.append([core_of(board), model, cell.t_stop, variant, name, *about, *numbers])
    return csv_text(header, rows)


def runs_csv(board: Scoreboard) -> str:
    """One row per expected run: what it is, its state, the selected step and score (percent), the last score, the score
    `final` of the statistics, and the digest of the weights that it began with.
    """
    header = [
        *("model", "method", "seed", "rule", "core", "run_id", "mlflow_run_id", "status", "state", "t_stop"),
        *("step", "tied_steps", "avg", *board.benchmarks, "base", "last_step", "last"),
        *("final", "warm_start"),
    ]
    final = {(run.model, run.variant, run.seed): run.final for run in run_values(board)}
    starts = dict(zip(board.data.runs["mlflow_id"], board.data.runs["warm_start"], strict=True))
    rows = []
    for run in board.runs:
        choice = run.choice
        scores = [choice.score, *(choice.components.get(name) for name in board.benchmarks), choice.base]
        shown = ["" if value is None else percent(value) for value in (*scores, choice.last_score)]
        about = (run.model, run.variant, run.seed, run.rule, run.core, run.run_id, run.mlflow_id, run.status)
        ties = " ".join(map(str, choice.ties))
        chosen = (run.state.value, run.t_stop, choice.step, ties, *shown[:-1], choice.last_step, shown[-1])
        late = final.get((run.model, run.variant, run.seed))
        rows.append(
            [*about, *chosen, "" if late is None else percent(late), starts.get(run.mlflow_id or "", "")]
        )
    return csv_text(header, rows)
