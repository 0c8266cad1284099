"""The tables through a real LaTeX, as they stand, whatever the names in them."""

import re
import subprocess
from pathlib import Path

import pytest

from cppo_lab import schema
from cppo_lab.analysis.scoring import Scoreboard, score_sweep
from cppo_lab.analysis.statistics.claims import Claim, Kind
from cppo_lab.analysis.statistics.summary import sweep_statistics
from cppo_lab.reports import table_texts
from cppo_lab.reports.paper_text import paper_texts
from cppo_lab.reports.printed import comparison_table
from cppo_lab.reports.registration import Standing
from cppo_lab.reports.sections import Section
from cppo_lab.reports.statistics_tables import statistics_tables
from cppo_lab.reports.table_texts import latex
from cppo_lab.reports.tables import TextRow, TextTable, full_table, main_table
from cppo_lab.reports.verdict_view import verdict_view
from tests.analysis.made_sweeps import MadeRun, both, expect, make_data
from tests.requirement import LATEX
from tests.waiting import CEILING_SECONDS

pytestmark = pytest.mark.latex

NAMES = (
    *(
        "&",
        "%",
        "$x$",
        "a_b",
        "\\",
        "\\input{/etc/passwd}",
        "{",
        "}",
        "#1",
        "~",
        "^^M",
        "[2cm]",
        "*",
        "a\nb",
        "\r\n\n\n",
    ),
    *(
        "-- --- '' `` <<",
        '"quoted"',
        "50%\\\\",
        "=1+1",
        "żółw",
        "Ñandú ß Æ ø ł",
        "δ_b ≥ 0",
        "中文",
        "😀",
        "‮abc",
        "\x00\x1b[31m",
    ),
    *("\\begin{tabular}", "\\end{table}", "\\hline", "\\cr", "\\endinput", "\\", "é" * 3, "x" * 300),
)


@pytest.fixture(scope="module", autouse=True)
def _latex() -> None:
    LATEX.demand()


def compiled(folder: Path, files: dict[str, str]) -> str:
    """The log of LaTeX on `tables.tex`, which must come through without a question."""
    for name, text in files.items():
        (folder / name).write_text(text, encoding="utf-8")
    command = ["pdflatex", "-no-shell-escape", "-halt-on-error", "-interaction=nonstopmode", "tables.tex"]
    made = subprocess.run(
        command,
        cwd=folder,
        capture_output=True,
        text=True,
        errors="replace",
        timeout=CEILING_SECONDS,
        check=False,
    )
    assert made.returncode == 0, made.stdout[-2000:]
    assert (folder / "tables.pdf").read_bytes().startswith(b"%PDF")
    log = (folder / "tables.log").read_text(errors="replace")
    assert "Missing character" not in log
    assert "undefined" not in log
    return log


def board_of(*runs: MadeRun, partial: bool = False) -> Scoreboard:
    return score_sweep(make_data(runs), expect(runs), partial)


def with_wrapper(files: dict[str, str]) -> dict[str, str]:
    return files | {"tables.tex": table_texts.latex_wrapper(files)}


def pages(log: str) -> int:
    found = re.search(r"Output written on tables.pdf \((\d+) page", log)
    assert found is not None
    return int(found[1])


def test_all_tables_of_a_sweep_fit_the_page(tmp_path: Path) -> None:
    variants = ("grpo", "dppo", "cppo", "cppo_no_prefix_budget_shuffled")
    scores = {10: 0.3111, 20: 0.4567}
    runs = [
        MadeRun(name, model=model, seed=seed, scores=both({k: v + 0.01 * seed for k, v in scores.items()}))
        for name in variants
        for model in ("Qwen3-1.7B", "Qwen3-1.7B-Base", "Qwen3-8B-Base", "Qwen3-30B-A3B-Base")
        for seed in (0, 1, 2)
    ]
    runs.append(MadeRun("cispo", scores=both({10: 0.5, 20: 0.0}), status=schema.COLLAPSED))
    board = board_of(*runs)
    sure = statistics_tables(board, "Intervals")
    files = {
        "table_1.tex": table_texts.latex(main_table(board, "Mean (Table 1)")),
        "table_2.tex": latex(comparison_table("Rules", {"cppo"})),
        "table_4.tex": table_texts.latex(full_table(board, "All")),
        **{f"statistics_{kind}.tex": latex(table) for kind, table in sure.items()},
    }
    log = compiled(tmp_path, with_wrapper(files))
    assert 1 <= pages(log) <= len(files)
    assert "Overfull" not in log
    assert "Float too large" not in log
    assert r"\caption{Mean}" in files["table_1.tex"]


def test_hostile_names_are_printed_and_do_nothing(tmp_path: Path) -> None:
    rows = tuple(TextRow(name, False, (name, f"x{name}")) for name in NAMES[:-1])
    texts = TextTable(NAMES[1], "", NAMES[5], NAMES[:2], rows, NAMES)
    runs = [
        MadeRun(name, model=model, scores=both({10: 0.3}))
        for name in dict.fromkeys(NAMES[:-1])
        for model in ("m", "\\\\[&")
    ]
    board = board_of(*runs)
    files = {
        "table_a.tex": latex(texts),
        "table_b.tex": table_texts.latex(main_table(board, "_&%$#\\")),
    }
    log = compiled(tmp_path, with_wrapper(files))
    assert pages(log) == 2
    assert "(/etc/passwd" not in log


def test_numbers_and_methods_of_hostile_names(tmp_path: Path) -> None:
    runs = [
        MadeRun(
            name, model=model, seed=seed, scores=both({10: 0.3, 20: 0.4 + 0.01 * seed + 0.001 * place * seed})
        )
        for place, name in enumerate(("grpo", "cppo", *NAMES))
        for model in ("m", "\\\\[&")
        for seed in (0, 1)
    ]
    board = board_of(*runs)
    own = {
        Claim(
            f"hypothesis {key}", f"{key} holds", "demo", Kind.SUPERIORITY, (("cppo",), ("grpo",))
        ): Standing(f"Pre-registered ({key}).", True)
        for key in ("higher", *NAMES[:12])
    }
    view = verdict_view({"demo": board}, "mini", own=own)
    sections = [Section("verdicts", "", {}, lines=view.lines, how=view.rule)]
    files = paper_texts({"demo": board}, {"demo": sweep_statistics(board)}, sections, NAMES)
    used = re.findall(r"\\newcommand\{(\\[A-Za-z]+)\}", files["numbers.tex"])
    assert "\\cppoDemoMCppoDiff" in used and len(used) > 500
    document = [r"\documentclass{article}", r"\input{numbers}", r"\begin{document}", r"\input{methods}", ""]
    document += [*(f"{one}{{}} {one}\n" for one in used), r"\end{document}"]
    log = compiled(tmp_path, files | {"tables.tex": "\n".join(document)})
    assert pages(log) > 1
    assert "(/etc/passwd" not in log


def test_the_check_would_see_an_unescaped_name(tmp_path: Path) -> None:
    broken = latex(TextTable("t", "", "l", ("h",), (TextRow("x", False, ("y",)),), ())).replace(
        "y", "50% & $"
    )
    with pytest.raises(AssertionError):
        compiled(tmp_path, with_wrapper({"table_a.tex": broken}))
