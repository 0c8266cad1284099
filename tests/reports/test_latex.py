"""The tables through a real LaTeX, as they stand, whatever the names in them."""

import re
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from cppo_lab.analysis.statistics.claims import Standing
from cppo_lab.reports.sections import Scored
from cppo_lab.reports.statistics_tables import statistics_tables
from cppo_lab.reports.study import comparison_table
from cppo_lab.reports.tables import TextRow, TextTable, full_table, latex, latex_wrapper, main_table
from cppo_lab.reports.verdict_view import verdict_view
from tests.analysis.made_sweeps import scored
from tests.analysis.statistics.made_curves import broken, flat
from tests.reports.test_verdict_view import ABOVE
from tests.reports.test_words import texts
from tests.requirement import LATEX
from tests.waiting import CEILING_SECONDS

pytestmark = pytest.mark.latex

NAMES = (
    *("&", "%", "$x$", "a_b", "\\", "\\input{/etc/passwd}", "{", "}", "#1", "~", "^^M", "[2cm]", "*", "<<"),
    *("a\nb", "\r\n\n\n", "-- --- '' ``", "δ_b ≥ 0", "\u202eabc", "\x00\x1b[31m", "é" * 3, '"quoted"'),
    *(
        "50%\\\\",
        "=1+1",
        "żółw",
        "Ñandú ß Æ ø ł",
        "中文",
        "😀",
        "\\begin{tabular}",
        "\\end{table}",
        "\\hline",
    ),
    *("\\cr", "\\endinput"),
)


@pytest.fixture(scope="module", autouse=True)
def _latex() -> None:
    LATEX.demand()


def pages(folder: Path, files: dict[str, str], text: str = "") -> int:
    """The pages that LaTeX makes of the text, or else of the tables, without a question, warning or stranger's file."""
    for name, content in {**files, "tables.tex": text or latex_wrapper(files)}.items():
        (folder / name).write_text(content)
    command = ["pdflatex", "-no-shell-escape", "-halt-on-error", "-interaction=nonstopmode", "tables.tex"]
    made = subprocess.run(command, cwd=folder, capture_output=True, timeout=CEILING_SECONDS, check=False)
    assert made.returncode == 0, made.stdout[-2000:]
    assert (folder / "tables.pdf").read_bytes().startswith(b"%PDF")
    log = (folder / "tables.log").read_text(errors="replace")
    for words in ("Missing character", "undefined", "Float too large", "(/etc/passwd"):
        assert words not in log
    (count,) = re.findall(r"Output written on tables.pdf \((\d+) page", log)
    return int(count)


def test_all_tables_of_a_sweep_fit_the_page(tmp_path: Path) -> None:
    names = ("grpo", "dppo", "cppo", "cppo_no_prefix_budget_shuffled")
    models = ("Qwen3-1.7B", "Qwen3-1.7B-Base", "Qwen3-8B-Base", "Qwen3-30B-A3B-Base")
    runs = flat(dict.fromkeys(names, (0.4567, 0.4667, 0.4767)), *models)
    board = scored([*runs, broken("cispo", 0, 0.5)])
    tables = statistics_tables(Scored("made", "Intervals", board, ""))
    files = {
        "table_1.tex": latex(main_table(board, "Mean (Table 1)")),
        "table_2.tex": latex(comparison_table("Rules", {"cppo"})),
        "table_4.tex": latex(full_table(board, "All")),
        **{f"statistics_{kind}.tex": latex(table) for kind, table in tables.items()},
    }
    assert 1 <= pages(tmp_path, files) <= len(files)
    assert "Overfull" not in (tmp_path / "tables.log").read_text(errors="replace")
    assert r"\caption{Mean}" in files["table_1.tex"]


def test_hostile_names_are_printed_and_do_nothing(tmp_path: Path) -> None:
    levels = {name: (0.4, 0.41 + 0.001 * place) for place, name in enumerate(("grpo", "cppo", *NAMES))}
    board = scored(flat(levels, "m", "\\\\[&"))
    rows = tuple(TextRow(name, False, (name, f"x{name}")) for name in NAMES)
    files = {
        "table_a.tex": latex(TextTable(NAMES[1], NAMES[5], NAMES[:2], rows, (*NAMES, "x" * 300))),
        "table_b.tex": latex(main_table(board, "_&%$#\\")),
    }
    assert pages(tmp_path, files) == 2

    own = {
        replace(ABOVE, key=f"hypothesis {key}", text=f"{key} holds", sweep="demo"): Standing(
            f"({key}).", True
        )
        for key in ("higher", *NAMES[:12])
    }
    view = verdict_view({"demo": board}, "mini", standings=own)
    files = texts(board, view, withdrawn=NAMES)
    macros = re.findall(r"\\newcommand\{(\\[A-Za-z]+)\}", files["numbers.tex"])
    assert "\\cppoDemoMCppoDiff" in macros and len(macros) > 500
    document = [r"\documentclass{article}", r"\input{numbers}", r"\begin{document}", r"\input{methods}", ""]
    document += [*(f"{macro}{{}} {macro}\n" for macro in macros), r"\end{document}"]
    assert pages(tmp_path, files, "\n".join(document)) > 1
