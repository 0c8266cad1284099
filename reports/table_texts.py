"""Tables as Markdown, LaTeX (booktabs) and CSV text, and boards as CSV, in percent."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from cppo_lab import schema
from cppo_lab.analysis.audit import percent
from cppo_lab.analysis.scoring import Scoreboard
from cppo_lab.analysis.statistics.values import run_values
from cppo_lab.reports.escapes import csv_text, escape_latex, escape_markdown
from cppo_lab.reports.tables import BEST, SECOND, Entry, FullTable, MainTable, TableRow, TextTable, core_of

Table = MainTable | FullTable | TextTable
FEW_RUNS = 5  # whose selected steps are listed one by one
_MARKDOWN_MARKS = {BEST: ("**", "**"), SECOND: ("<u>", "</u>"), "": ("", "")}
_LATEX_MARKS = {BEST: (r"\textbf{", "}"), SECOND: (r"\underline{", "}"), "": ("", "")}


@dataclass(frozen=True)
class _Block:
    """Rows under the same headings. A row: whether it is shaded, and its cells, each with its mark. Of a table with
    several blocks, `model` and `t_stop` are about this one.
    """

    headings: tuple[str, ...]
    rows: Sequence[tuple[bool, Sequence[tuple[str, str]]]]
    model: str = ""
    t_stop: int | None = None


def _blocks(table: Table) -> Iterator[_Block]:
    match table:
        case MainTable():
            yield _Block(("Method", *table.models), [(row.shaded, _cells(row)) for row in table.rows])
        case FullTable():
            for block in table.blocks:
                rows = [(row.shaded, [*_cells(row), (steps_text(row), "")]) for row in block.rows]
                yield _Block(("Method", *block.headings, "Step"), rows, block.model, block.t_stop)
        case TextTable():
            words = [(row.shaded, [(text, "") for text in (row.label, *row.cells)]) for row in table.rows]
            yield _Block((table.lead, *table.headings), words)


def _cells(row: TableRow) -> list[tuple[str, str]]:
    return [(row.label, ""), *((plain(entry), entry.mark) for entry in row.entries)]


def plain(entry: Entry) -> str:
    """`31.88`, `31.88 ± 0.42`, `31.88 ± 0.42 [0.31]`, `collapse`; then an arrow, and a dagger if it is provisional."""
    text = entry.word if entry.value is None else f"{entry.value}"
    if entry.std is not None:
        text += f" ± {entry.std}"
    if entry.evaluation is not None:
        text += f" [{entry.evaluation}]"
    return text + (f" {entry.test}" if entry.test else "") + ("†" if entry.provisional else "")


def steps_text(row: TableRow) -> str:
    """The selected steps: of each run, or their range if there are more than FEW_RUNS; once if all are the same."""
    steps = row.steps
    if len(set(steps)) == 1:
        return str(steps[0])
    if len(steps) > FEW_RUNS:
        return f"{min(steps)} to {max(steps)}"
    return ", ".join(map(str, steps)) or "–"


def markdown_table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """The lines of a table; its texts must be escaped already."""
    align = ["---", *["---:"] * (len(headings) - 1)]
    return ["| " + " | ".join(cells) + " |" for cells in (headings, align, *rows)]


def document(title: str, lines: Sequence[str], notes: Sequence[str]) -> str:
    """A Markdown document around the lines of a table; title and notes are escaped here."""
    return "\n".join(
        [f"# {escape_markdown(title)}", "", *lines, "", *(escape_markdown(note) + "\n" for note in notes)]
    )


def markdown(table: Table) -> str:
    """The table as a Markdown document, one table per model if the models have different columns."""
    lines: list[str] = []
    for block in _blocks(table):
        rows = []
        for shaded, cells in block.rows:
            texts = [escape_markdown(text).join(_MARKDOWN_MARKS[mark]) for text, mark in cells]
            ours = shaded and not isinstance(table, TextTable)
            rows.append([f"**{texts[0]}**" if ours else texts[0], *texts[1:]])
        grid = markdown_table([escape_markdown(heading) for heading in block.headings], rows)
        if isinstance(table, FullTable):
            stop = "not given" if block.t_stop is None else block.t_stop
            grid = [f"## {escape_markdown(block.model)} (T_stop = {stop})", "", *grid, ""]
        lines += grid
    return document(table.title, lines, table.notes)


PACKAGES = (r"\usepackage{booktabs}", r"\usepackage[table]{xcolor}", r"\usepackage{graphicx}")


def latex(table: Table) -> str:
    """The table as LaTeX, to be included with `\\input`, with a block of rows per model if their columns differ.

    A table wider than the text is scaled down to fit. It needs the packages `PACKAGES`.
    """
    small = " ".join(escape_latex(note) for note in table.notes)
    caption = escape_latex(re.sub(r" \(Table \d+\)$", "", table.title))  # LaTeX numbers it
    blocks = list(_blocks(table))
    width = max(len(block.headings) for block in blocks)
    body, before = [r"\toprule"], None
    for block in blocks:
        if block.headings != before:
            body += [r"\midrule"] * (before is not None)
            body.append(_latex_row(False, [(heading, "") for heading in block.headings]))
        before = block.headings
        body.append(r"\midrule")
        if isinstance(table, FullTable):
            stop = "" if block.t_stop is None else f" ($T_{{\\mathrm{{stop}}}} = {block.t_stop}$)"
            model = escape_latex(block.model)
            body.append(rf"\multicolumn{{{width}}}{{l}}{{\textit{{{model}}}{stop}}} \\")
        body += [_latex_row(*row) for row in block.rows]
    body.append(r"\bottomrule")
    align = "r" * (width - 1)
    if isinstance(table, TextTable):  # numbers are right-aligned, words left-aligned
        columns = zip(*(row.cells for row in table.rows), strict=True) if table.rows else [()] * (width - 1)
        align = "".join("l" if re.search("[A-Za-z]", "".join(column)) else "r" for column in columns)
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


def _latex_row(shaded: bool, cells: Iterable[tuple[str, str]]) -> str:
    texts = [escape_latex(text).join(_LATEX_MARKS[mark]) for text, mark in cells]
    return (r"\rowcolor{black!8} " if shaded else "") + " & ".join(texts) + r" \\"


def table_csv(table: Table) -> str:
    """The table as CSV, scores in percent. The paper's tables have exactly the paper's columns; numbers of one of our
    cores name it in every row. Table 4 is `model, t_stop, method`, the benchmarks (empty if a model does not have one)
    and `avg`.
    """
    head: list[str] = [] if table.core in ("", schema.PAPER) else ["core"]
    core = [table.core] if head else []
    match table:
        case TextTable():
            texts = ([row.label, *row.cells, *core] for row in table.rows)
            return csv_text([table.lead, *table.headings, *head], texts)
        case MainTable():
            rows = ([row.variant, *map(_csv_entry, row.entries), *core] for row in table.rows)
            return csv_text(["method", *table.models, *head], rows)
    columns = [*dict.fromkeys(name for block in table.blocks for name in block.benchmarks), "avg"]
    lines = []
    for block in table.blocks:
        for row in block.rows:
            entries = dict(zip((*block.benchmarks, "avg"), map(_csv_entry, row.entries), strict=True))
            lead = [block.model, "" if block.t_stop is None else block.t_stop, row.variant]
            lines.append([*lead, *(entries.get(name, "") for name in columns), *core])
    return csv_text(["model", "t_stop", "method", *columns, *head], lines)


def _csv_entry(entry: Entry) -> str:
    """The mean alone, or the word in its place; a provisional cell keeps its dagger."""
    text = entry.word if entry.value is None else f"{entry.value}"
    return text + ("†" if entry.provisional else "")


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
        found = (run.model, run.variant, run.seed, run.rule, run.core, run.run_id, run.mlflow_id, run.status)
        ties = " ".join(map(str, choice.ties))
        chosen = (run.state.value, run.t_stop, choice.step, ties, *shown[:-1], choice.last_step, shown[-1])
        late = final.get((run.model, run.variant, run.seed))
        rows.append(
            [*found, *chosen, "" if late is None else percent(late), starts.get(run.mlflow_id or "", "")]
        )
    return csv_text(header, rows)
