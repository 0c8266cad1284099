"""From a scoreboard to frozen tables: contents, best marks and notes; and their texts as Markdown, LaTeX and CSV."""

import csv
import io
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from importlib import resources
from itertools import product
from typing import Any

import pandas as pd

from cppo_lab import schema
from cppo_lab.analysis.inputs import ExpectedRun
from cppo_lab.analysis.scoring import (
    COLLAPSE_SHARE,
    CellScore,
    RunScore,
    Scoreboard,
    SelectionState,
    Stat,
    describe_gaps,
)
from cppo_lab.analysis.statistics.summary import Statistics
from cppo_lab.analysis.statistics.values import Score
from cppo_lab.reports.names import (
    ABSENT,
    EDGE,
    OURS,
    baseline_name,
    benchmark_name,
    csv_text,
    display_name,
    edge_text,
    escape_latex,
    escape_markdown,
    in_order,
    origin,
    percent,
    round_half_up,
    score_name,
)

BEST, SECOND = "best", "second"
ABOVE, BELOW = "\N{UPWARDS ARROW}", "\N{DOWNWARDS ARROW}"
TWO_SIDED_LEVEL = 0.05  # level of an adjusted two-sided p-value
NOT_DECLARED = "not declared"
_FEW_RUNS = 5  # whose selected steps are listed individually
_EVALUATION = (
    "In brackets: standard error of the evaluation of one run, over other answers to the same problems, from each "
    "problem's outcome. The deviation over seeds contains it, except the part that equal sampling seeds make common to "
    "all runs."
)


@dataclass(frozen=True)
class Entry:
    """One cell, in percent: a `value` at printed precision (two decimals), or a `word` that says why there is none.

    `std`: sample standard deviation over several runs. `evaluation`: standard error of a run's evaluation over other
    answers to the same problems, if each problem's outcome is known, which `std` contains; or Wilson's limit of a score
    of 0 or 100 %. `provisional`: a run behind it is missing or unfinished. `test`: ABOVE or BELOW the baseline if the
    difference is significant. `pair`: the (model, variant) whose runs it is about.
    """

    value: Decimal | None = None
    std: Decimal | None = None
    word: str = ""
    provisional: bool = False
    mark: str = ""
    evaluation: str = ""
    test: str = ""
    pair: tuple[str, str] | None = None

    def __str__(self) -> str:
        """`31.88`, `31.88 ± 0.42`, `31.88 ± 0.42 [0.31]`, `0.00 [to 0.79]`, `collapse`; then an arrow, and a dagger if
        it is provisional.
        """
        std = "" if self.std is None else f"± {self.std}"
        evaluation = self.evaluation and f"[{self.evaluation}]"
        parts = (self.word or str(self.value), std, evaluation, self.test)
        return " ".join(filter(None, parts)) + "†" * self.provisional

    @property
    def plain(self) -> str:
        """The mean alone, or the word in its place; a provisional mean keeps its dagger."""
        return (self.word or str(self.value)) + "†" * self.provisional


@dataclass(frozen=True)
class TextRow:
    """A row: its label and a text, or `Entry`, for each heading. `pair`: the (model, variant) whose runs it is about;
    without a model if its scores are of different models.
    """

    label: str
    shaded: bool
    cells: tuple[Any, ...]
    pair: tuple[str, str] | None = None

    @property
    def plain(self) -> list[str]:
        """Its cells as texts, without marks and deviations."""
        return [cell.plain if isinstance(cell, Entry) else cell for cell in self.cells]

    @property
    def variant(self) -> str:
        """The variant that it is about, by its own name; the label without one."""
        return self.pair[1] if self.pair else self.label


@dataclass(frozen=True)
class TextTable:
    """`lead` is the heading of the label column; `core` is empty if the table has no numbers of runs. `stop`: T_stop of
    its runs, None if they have none, or different ones.

    `tables`: in place of rows, a table for each model. Models on different tasks have different benchmarks, `avg` is
    their mean, and `step` the selected steps. `several_runs`: whether any row of them is a mean over runs, which makes
    the columns wide.
    """

    title: str
    lead: str
    headings: Sequence[str]
    rows: Sequence[TextRow]
    notes: Sequence[str] = ()
    core: str = ""
    stop: int | None = None
    tables: "tuple[TextTable, ...]" = ()
    several_runs: bool = False

    @property
    def blocks(self) -> "tuple[TextTable, ...]":
        """The parts with headings of their own, as they are shown: the table of each model, or the table itself."""
        names = {"avg": "Avg", "step": "Step"}
        return tuple(
            replace(table, headings=tuple(names.get(h) or benchmark_name(h) for h in table.headings))
            for table in self.tables
        ) or (self,)

    @property
    def of_scores(self) -> bool:
        """Whether it has scores, which are set as numbers."""
        return any(isinstance(cell, Entry) for row in self.rows for cell in row.cells)


def run_ids_of(runs: Iterable[RunScore]) -> tuple[str, ...]:
    """The ids of runs, sorted, without those of which only the name is known."""
    return tuple(sorted({run.run_id for run in runs if run.run_id is not None}))


def main_table(board: Scoreboard, title: str, statistics: Statistics | None = None) -> TextTable:
    """Table 1: best and second best per model at printed precision; ties share the mark. `statistics`: those with the
    errors of evaluations and the significant differences from the baseline; without them no cell has either.
    """
    compared, adjusted = (statistics.cells, statistics.adjusted) if statistics else ({}, {})
    variants, columns, errors = in_order(board.variants), [], []
    for model in board.models:
        entries = []
        for pair in product([model], variants):
            score = board.cells.get(pair)
            entry = replace(_entry(score, score.score) if score else Entry(word=NOT_DECLARED), pair=pair)
            if entry.value is not None and (cell := compared.get(pair)):
                if (error := cell.sampling) is not None and error.known:
                    errors.append(error)
                    answers = str(round_half_up(percent(error.answers)))
                    entry = replace(entry, evaluation=edge_text(error.edge) if error.edge else answers)
                if adjusted.get((*pair, Score.BEST), 1) < TWO_SIDED_LEVEL:
                    lead = cell.differences[Score.BEST].estimate.value
                    entry = replace(entry, test=ABOVE if lead > 0 else BELOW)
            entries.append(entry)
        columns.append(mark(entries))
    rows = [cell_row("", name, entries) for name, *entries in zip(variants, *columns, strict=True)]
    notes = _table_notes(board)
    if errors:
        notes += (_EVALUATION + (f" There {EDGE}" if any(error.edge for error in errors) else ""),)
    if statistics is not None and adjusted:
        notes += (
            f"{ABOVE} above, {BELOW} below {baseline_name(statistics.baseline)}: these scores of the best step, which "
            f"favours a noisy run, differ significantly (two-sided p < {TWO_SIDED_LEVEL:g} with Holm's adjustment over "
            "all methods and models of the table). Without an arrow, it is not significant.",
        )
    return TextTable(title, "Method", board.models, rows, notes, board.core)


def full_table(board: Scoreboard, title: str) -> TextTable:
    """Table 4: the components at the selected step, in a block per model; marks are per block and column."""
    tables, several = [], False
    for model in board.models:
        variants = [name for name in in_order(board.variants) if (model, name) in board.cells]
        cells, benchmarks = [board.cells[model, name] for name in variants], board.benchmarks_of(model)
        columns = [
            mark(_entry(cell, cell.components.get(name), "not logged") for cell in cells)
            for name in benchmarks
        ]
        columns.append(mark(_entry(cell, cell.score) for cell in cells))
        rows = []
        for cell, *entries in zip(cells, *columns, strict=True):
            steps = cell.steps
            if cell.state is SelectionState.COLLAPSE:  # where the curves end that did
                fallen = [run for run in board.runs_of(model, cell.variant) if run.state is cell.state]
                steps = tuple(run.choice.last_step for run in fallen if run.choice.last_step is not None)
            several |= len(steps) > 1
            rows.append(cell_row(model, cell.variant, (*entries, steps_text(steps))))
        stop, *others = {cell.t_stop for cell in cells if cell.t_stop is not None} or [None]
        headings = (*benchmarks, "avg", "step")
        table = TextTable(model, "Method", headings, rows, (), board.core, None if others else stop)
        tables.append(table)
    notes = _table_notes(board)
    return TextTable(title, "", (), (), notes, board.core, tables=tuple(tables), several_runs=several)


def steps_text(steps: Sequence[int]) -> str:
    """The selected steps: of each run, or their range if there are more than _FEW_RUNS; once if all are the same."""
    if len(set(steps)) == 1:
        return str(steps[0])
    if len(steps) > _FEW_RUNS:
        return f"{min(steps)} to {max(steps)}"
    return ", ".join(map(str, steps)) or ABSENT


def _entry(cell: CellScore, stat: Stat | None, absent: str = "no score") -> Entry:
    if cell.state is SelectionState.COLLAPSE:
        share = f" {cell.collapsed}/{cell.finished}" if cell.collapsed < cell.finished else ""
        return Entry(word=SelectionState.COLLAPSE.value + share, provisional=cell.provisional)
    if stat is None:
        word = absent if cell.state is SelectionState.SCORED else cell.state.value
        return Entry(word=word, provisional=cell.provisional)
    std = None if stat.std is None else round_half_up(percent(stat.std))
    return Entry(round_half_up(percent(stat.mean)), std, provisional=cell.provisional)


def mark(entries: Iterable[Entry]) -> tuple[Entry, ...]:
    """Mark the best and the second best of a column at printed precision; equal numbers share a mark.

    Words and provisional numbers do not compete. A column with a single competitor gets no mark.
    """
    column = tuple(entries)
    competing = pd.Series([None if entry.provisional else entry.value for entry in column], dtype=float)
    if competing.count() < 2:
        return column
    ranks, marks = competing.rank(method="dense", ascending=False), {1: BEST, 2: SECOND}
    return tuple(replace(entry, mark=marks.get(rank, "")) for entry, rank in zip(column, ranks, strict=True))


# PAPER: its Table 4 calls a run that diverged a collapse. Shares: analysis/scoring.py, conf/config.yaml.
_COLLAPSE_OF_PAPER = (
    f"collapse: the run diverged; the step is its curve's last. Counted here: a curve that ends below "
    f"{COLLAPSE_SHARE:g} of its own best score. Our runs are ended during training, below 0.4 of their best."
)
_COLLAPSE = (
    "collapse: training was ended, because the validation score stayed below a share of the run's best "
    "(training.collapse_share, 0.4 unless set otherwise) or a gradient or log-probability was not finite. Curves of "
    f"the paper count as collapsed if they end below {COLLAPSE_SHARE:g} of their best."
)


def _table_notes(board: Scoreboard) -> tuple[str, ...]:
    """Notes that explain the table; the last names every gap."""
    score = score_name(board)
    highest = "mean over the benchmarks" if board.means_over_benchmarks else "score"
    notes = [
        f"{score[0].upper()}{score[1:]} in percent, at the step with the highest {highest} inside "
        "[0, T_stop]. Best in bold, second best underlined; equal numbers share a mark.",
    ]
    runs_per_cell = sorted({cell.expected for cell in board.cells.values()})
    if (most := runs_per_cell[-1]) > 1:
        few = "up to " if board.gaps or len(runs_per_cell) > 1 else ""
        notes.append(
            f"Mean ± standard deviation over {few}{most} seeds, each selected on its own. The sign ± has "
            "no other meaning; 95 % intervals are written (low to high)."
        )
    if any(cell.collapsed for cell in board.cells.values()):
        notes.append(_COLLAPSE_OF_PAPER if board.core == schema.PAPER else _COLLAPSE)
    if board.gaps:
        gaps = "; ".join(describe_gaps(board.gaps))
        notes.append(f"† provisional and not ranked, because these runs have no result yet: {gaps}.")
    return tuple(notes)


def cell_row(model: str, variant: str, cells: Iterable[str]) -> TextRow:
    """The row of a cell, which leads to its runs."""
    return TextRow(display_name(variant), variant == OURS, tuple(cells), (model, variant))


def completed(table: TextTable, board: Scoreboard, title: str) -> TextTable:
    """A table of the sweep `title` with where its numbers come from; rows name their model where there are several."""
    core, several = board.core, len(board.models) > 1
    rows = tuple(
        replace(row, label=f"{row.pair[0]}: {row.label}") if several and row.pair else row
        for row in table.rows
    )
    return replace(table, title=f"{table.title} ({title})", core=core, rows=rows)


# The paper's numbers as printed, from the files in `reports/paper/`, which are part of the wheel.


def printed_table(name: str) -> list[dict[str, str]]:
    """The rows of `reports/paper/<name>.csv` as printed, every value as text."""
    place = resources.files("cppo_lab.reports").joinpath("paper", f"{name}.csv")
    return list(csv.DictReader(io.StringIO(place.read_text(encoding="utf-8"))))


def main_grid() -> tuple[ExpectedRun, ...]:
    """The runs behind the paper's Tables 1 and 4, in the order of Table 4. The paper gives no seeds."""
    return tuple(ExpectedRun(None, row["model"], row["method"], None) for row in printed_table("table_full"))


def ablation_curves() -> pd.DataFrame:
    """The ablation panels: columns ablation, model, variant, step, value (mean Avg@16 as a fraction)."""
    frame = pd.DataFrame(printed_table("ablation_curves"))
    frame = frame.rename(columns={"aime24_25_26_avg_at_16": "value"})
    return frame.astype({"step": "int64", "value": "float64"})


# Tables as Markdown, LaTeX (booktabs) and CSV, in percent.

_MARKDOWN_MARKS = {BEST: ("**", "**"), SECOND: ("<u>", "</u>"), "": ("", "")}
_LATEX_MARKS = {BEST: (r"\textbf{", "}"), SECOND: (r"\underline{", "}"), "": ("", "")}


def _texts(row: TextRow, escape: Callable[[str], str], marks: Mapping[str, tuple[str, str]]) -> list[str]:
    """The row's texts, escaped and marked."""
    cells = (escape(str(cell)).join(marks[getattr(cell, "mark", "")]) for cell in row.cells)
    return [escape(row.label), *cells]


def markdown(table: TextTable) -> str:
    """The table as a Markdown document, a table per model if the models have different columns."""
    lines = [f"# {escape_markdown(table.title)}", ""]
    for block in table.blocks:
        if table.tables:
            stop = "" if block.stop is None else f" (T_stop = {block.stop})"
            lines += [f"## {escape_markdown(block.title)}{stop}", ""]
        rows = [_texts(row, escape_markdown, _MARKDOWN_MARKS) for row in block.rows]
        for row, texts in zip(block.rows, rows, strict=True):
            texts[0] = f"**{texts[0]}**" if row.shaded and block.of_scores else texts[0]
        head = map(escape_markdown, (block.lead, *block.headings))
        align = ["---", *["---:"] * len(block.headings)]
        lines += ["| " + " | ".join(cells) + " |" for cells in (head, align, *rows)]
        lines += [""] * bool(table.tables)
    return "\n".join([*lines, "", *(escape_markdown(note) + "\n" for note in _file_notes(table))])


def _file_notes(table: TextTable) -> list[str]:
    """The notes of a table that leaves its page, whose top has the source."""
    return [*([f"Source: {origin(table.core)}."] if table.core else []), *table.notes]


_PACKAGES = (r"\usepackage{booktabs}", r"\usepackage[table]{xcolor}", r"\usepackage{graphicx}")


def latex(table: TextTable) -> str:
    """The table as LaTeX, to be included with `\\input`, with a block of rows per model if their columns differ.

    A table wider than the text is scaled down to fit. It needs the packages `_PACKAGES`.
    """
    small = " ".join(escape_latex(note) for note in _file_notes(table))
    caption = escape_latex(re.sub(r" \(Table \d+\)$", "", table.title))  # LaTeX numbers it
    width = 1 + max(len(block.headings) for block in table.blocks)
    body, before = [r"\toprule"], None
    for block in table.blocks:
        if block.headings != before:
            body += [r"\midrule"] * (before is not None)
            body.append(" & ".join(map(escape_latex, (block.lead, *block.headings))) + r" \\")
        before = block.headings
        body.append(r"\midrule")
        if table.tables:
            stop = "" if block.stop is None else f" ($T_{{\\mathrm{{stop}}}} = {block.stop}$)"
            body.append(rf"\multicolumn{{{width}}}{{l}}{{\textit{{{escape_latex(block.title)}}}{stop}}} \\")
        for row in block.rows:
            shade = r"\rowcolor{black!8} " if row.shaded else ""
            body.append(shade + " & ".join(_texts(row, escape_latex, _LATEX_MARKS)) + r" \\")
    body.append(r"\bottomrule")
    align = "r" * (width - 1)
    if not block.of_scores:  # numbers and intervals are right-aligned, words left-aligned
        columns = zip(*(row.cells for row in block.rows), strict=True) if block.rows else [()] * (width - 1)
        joined = ("".join(map(str, column)).replace(" to ", "") for column in columns)
        align = "".join("l" if re.search("[A-Za-z]", texts) else "r" for texts in joined)
    lines = [
        f"% needs {' '.join(_PACKAGES)}",
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
        *_PACKAGES,
        r"\begin{document}",
        *before,
        *(rf"\input{{{name.removesuffix('.tex')}}}\clearpage" for name in tables),
        *figures,
        r"\end{document}",
    ]
    return "\n".join(lines) + "\n"


def table_csv(table: TextTable) -> str:
    """The table as CSV, scores in percent. The paper's tables have exactly the paper's columns; numbers of our cores
    name the core in every row. Table 4 is `model, t_stop, method`, the benchmarks (empty if a model does not have one)
    and `avg`.
    """
    if table.tables:
        names = dict.fromkeys(name for block in table.tables for name in block.headings)
        columns = [*(name for name in names if name not in ("avg", "step")), "avg"]
        head, rows = ["model", "t_stop", "method", *columns], list[list[object]]()
        for block in table.tables:
            for row in block.rows:
                cells = dict(zip(block.headings, row.plain, strict=True))
                rows.append([block.title, block.stop, row.variant, *(cells.get(name) for name in columns)])
    elif table.of_scores:
        head, rows = ["method", *table.headings], [[row.variant, *row.plain] for row in table.rows]
    else:
        head, rows = [table.lead, *table.headings], [[row.label, *row.plain] for row in table.rows]
    if table.core not in ("", schema.PAPER):
        head, rows = [*head, "core"], [[*row, table.core] for row in rows]
    return csv_text(head, rows)


def table_files(tables: Mapping[str, TextTable | None]) -> dict[str, str]:
    """Every table in Markdown, LaTeX and CSV, by file name; a table that is None has no files."""
    kinds = (("md", markdown), ("tex", latex), ("csv", table_csv))
    return {
        f"{name}.{kind}": write(table) for name, table in tables.items() if table for kind, write in kinds
    }
