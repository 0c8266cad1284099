"""Tables of our own sweeps: marks, seeds, gaps, collapse, and text that must not break the format."""

import csv
import io
import itertools
import re
from dataclasses import replace
from decimal import Decimal

import pytest

from cppo_lab import schema
from cppo_lab.analysis.inputs import USUAL, Baseline
from cppo_lab.analysis.statistics.claims import CLAIMS, Hypotheses
from cppo_lab.analysis.statistics.estimate import Estimate
from cppo_lab.analysis.statistics.summary import sweep_statistics
from cppo_lab.reports import names, sections, tables
from cppo_lab.reports.names import display_name, escape_latex, estimate_text, in_order, points, score_name
from cppo_lab.reports.sections import Scored
from cppo_lab.reports.statistics_tables import statistics_tables, with_looks
from cppo_lab.reports.tables import (
    ABOVE,
    BELOW,
    BEST,
    NOT_DECLARED,
    SECOND,
    Entry,
    full_table,
    main_table,
    mark,
    steps_text,
)
from cppo_lab.reports.words import headlines
from tests.analysis.made_sweeps import MadeRun, both, scored

COLLAPSE, MISSING = Entry(word="collapse"), Entry(word="missing")
PROVISIONAL = Entry(Decimal(3), 1, provisional=True)


def flat(variant: str, score: float, **more: object) -> MadeRun:
    return MadeRun(variant, scores=both({10: score}), **more)  # type: ignore[arg-type]


def rows_of(text: str) -> list[list[str]]:
    return list(csv.reader(io.StringIO(text, newline="")))


@pytest.mark.parametrize(
    "entries, marks",
    [
        ([1, 3, 2], " bs"),
        ([3, 3, 2], "bbs"),
        ([3, 2, 2], "bss"),
        ([3, COLLAPSE, 2], "b s"),
        ([PROVISIONAL, 2, 1], " bs"),
        ([3, MISSING], "  "),  # nothing to compare with
        ([], ""),
    ],
)
def test_marks(entries: list[int | Entry], marks: str) -> None:
    """b: best, s: second."""
    made = [Entry(Decimal(entry)) if isinstance(entry, int) else entry for entry in entries]
    letters = {BEST: "b", SECOND: "s", "": " "}
    assert "".join(letters[entry.mark] for entry in mark(made)) == marks


def test_seeds_give_mean_and_standard_deviation() -> None:
    board = scored([flat("cppo", 0.30), flat("cppo", 0.34, seed=1), flat("dppo", 0.2)])
    table = main_table(board, "Demo")
    assert "over up to 2 seeds" in table.notes[1]
    alike = scored([flat(name, 0.3, seed=seed) for name in ("cppo", "dppo") for seed in (0, 1)])
    assert "over 2 seeds" in main_table(alike, "Demo").notes[1]
    assert "| **CPPO** | **32.00 ± 2.83** |" in tables.markdown(table)
    assert r"\textbf{32.00 $\pm$ 2.83}" in tables.latex(table)
    assert tables.table_csv(table) == "method,chain,core\ndppo,20.00,mini\ncppo,32.00,mini\n"
    assert re.findall(r"cppo,avg,.*(2,32\.0000,2\.8284)\n", sections.long_csv(board))


def test_the_list_of_runs_has_final_scores_and_warm_starts() -> None:
    curve = {step: 0.2 + 0.001 * step for step in range(0, 101, 10)}
    board = scored(
        [
            MadeRun("cppo", scores=both(curve), warm_start="0123abcd"),
            MadeRun("dppo", scores=both({0: 0.2, 10: 0.5, 20: 0.1}), status=schema.COLLAPSED),
            MadeRun("grpo", status=schema.RUNNING),
        ]
    )
    listed = csv.DictReader(io.StringIO(sections.runs_csv(board)))
    # Of CPPO the mean of steps 80, 90, 100; DPPO goes on at its last score.
    said = [f"{row['method']} {row['final']} {row['warm_start']}" for row in listed]
    assert said == ["cppo 29.0000 0123abcd", "dppo 10.0000 ", "grpo  "]


def test_every_text_of_a_mini_sweep_says_so() -> None:
    board = scored([flat("cppo", 0.3)])
    made = main_table(board, "Demo"), full_table(board, "Demo")
    for text in (*map(tables.markdown, made), *map(tables.latex, made)):
        assert "core=mini" in text and "not comparable with the paper" in text
    for text in (sections.long_csv(board), sections.runs_csv(board), *map(tables.table_csv, made)):
        assert "mini" in rows_of(text)[1]


def test_columns_follow_the_benchmarks_and_models_of_the_runs() -> None:
    board = scored(
        [
            flat("cppo", 0.3, model="small", t_stop=40),
            flat("cppo", 0.4, model="large", t_stop=80),
            flat("dppo", 0.5, model="large", t_stop=80),
        ]
    )
    assert tables.table_csv(full_table(board, "Demo")) == (
        "model,t_stop,method,chain24,chain25,avg,core\n"
        "small,40,cppo,30.00,30.00,30.00,mini\n"
        "large,80,dppo,50.00,50.00,50.00,mini\n"
        "large,80,cppo,40.00,40.00,40.00,mini\n"
    )
    of_two_windows = scored([flat("cppo", 0.3, t_stop=40), flat("dppo", 0.3, t_stop=80)])
    for given, heading in ((board, "## small (T\\_stop = 40)\n"), (of_two_windows, "## chain\n")):
        assert heading in tables.markdown(full_table(given, "Demo")).replace("T_stop", "T\\_stop")
    main = main_table(board, "Demo")
    assert main.headings == ("small", "large")
    assert [row.cells[0].word for row in main.rows] == [NOT_DECLARED, ""]


def test_no_form_of_a_table_hides_a_gap() -> None:
    """A cell of unfinished runs is marked, one without runs says why, in every format."""
    runs = [flat("cppo", 0.3, status=schema.RUNNING), flat("trm_avg", 0.2)]
    runs.append(MadeRun("grpo", status=schema.FAILED, reason="killed"))
    board = scored(runs, gaps=[MadeRun("dppo")])
    main = main_table(board, "Demo")
    assert tables.table_csv(main) == (
        "method,chain,core\ngrpo,failed†,mini\ndppo,missing†,mini\ntrm_avg,20.00,mini\ncppo,30.00†,mini\n"
    )
    assert not any(entry.mark for row in main.rows for entry in row.cells)
    assert main.notes[-1].count("cppo on chain, seed 0 (running); ") == 1
    assert "grpo on chain, seed 0 (failed: killed)" in main.notes[-1]
    for write, shown in (
        (tables.markdown, "30.00†"),
        (tables.table_csv, "30.00†"),
        (tables.latex, r"30.00$^\dagger$"),
    ):
        for text in map(write, (main, full_table(board, "Full"))):
            assert "missing" in text and "failed" in text and shown in text
    rows = sections.runs_csv(board)
    assert "missing" in rows and "failed" in rows and "running" in rows


def test_latex_escapes() -> None:
    hostile = r"50% of_A & B {x} #1 $2 ~ ^ \ <script> [x]"
    shown = (
        r"50\% of\_A \& B \{x\} \#1 \$2 \textasciitilde{} \textasciicircum{} \textbackslash{} "
        r"\textless{}script\textgreater{} {[}x{]}"
    )
    latex = tables.latex(main_table(scored([flat(hostile, 0.3, model=hostile)]), hostile))
    assert latex.count(shown) == 3  # caption, column, row
    # Whichever LaTeX reads it, in whatever encoding.
    assert escape_latex("\u00e9\u4e2d") == r"\'{e}{[}U+4E2D{]}"


def test_a_markdown_row_stays_one_row() -> None:
    name = "a|b\n| c_d* |\r\x0b$x$ ~~s~~ <u> `code` \u2028 &amp;"
    lines = tables.markdown(main_table(scored([flat(name, 0.3)]), name)).splitlines()
    (row,) = (line for line in lines if "30.00" in line)
    shown = r"a\|b \| c\_d\* \|  \$x\$ \~\~s\~\~ &lt;u&gt; \`code\`   &amp;amp;"
    assert (row, lines[0]) == (f"| {shown} | 30.00 |", f"# {shown}")


def test_no_cell_of_a_csv_is_a_formula() -> None:
    for text in ("=HYPERLINK(1)", "+cmd", "-1+1", "@SUM(A1)", "\t=1"):
        assert rows_of(names.csv_text([text, "b"], [[text, -1]])) == [[f"'{text}", "b"], [f"'{text}", "-1"]]


def test_numbers_and_words_of_a_csv_are_as_they_were() -> None:
    cells = ["-0.12 (-0.30 to 0.05)", "-0.0067", "+1.2 ± 0.3", "+1.5 ± 0.2 ↑", "30.00†", "a=b", ""]
    assert rows_of(names.csv_text([*cells, "−0.12 (−0.30 to +0.05)", "\r=1"], [])) == [
        [*cells, "-0.12 (-0.30 to +0.05)", "'\n=1"]
    ]


def test_names_and_order() -> None:
    assert in_order(["zeta", "cppo", "grpo", "alpha", "dppo"]) == ("grpo", "dppo", "cppo", "zeta", "alpha")
    assert display_name("cppo_db0.02_w0.6") == "CPPO, delta_b 0.02, w_min 0.6"
    assert display_name("mine") == "mine"
    for core, name in (("exact", "expected score"), ("not installed", "Avg@16")):
        assert score_name(scored([flat("cppo", 0.3, core=core)])) == name


@pytest.mark.parametrize(
    "fraction, text",
    {0.00125: "+0.13", -0.00125: "−0.13", -0.00001: "+0.00", 0.0: "+0.00", None: "–"}.items(),
)
def test_a_difference_is_spelled_in_one_way(fraction: float | None, text: str) -> None:
    assert points(fraction, signed=True) == text
    if fraction is not None:
        value = Estimate(fraction, 3, 0.001, 2.0)
        assert (
            estimate_text(value, signed=True)
            == f"{text} ({points(value.low, True)} to {points(value.high, True)})"
        )
        assert rows_of(names.csv_text(["a"], [[text]]))[1] == [text.replace("−", "-")]


def test_an_arrow_is_about_the_score_beside_it() -> None:
    """CPPO peaks above DPPO and ends like it. The baseline is DPPO, or what the file says."""
    runs = [
        MadeRun(name, seed=seed, scores=both({10: peak + 0.001 * seed * (1 + peak), 90: 0.2 + 0.001 * seed}))
        for name, peak in (("dppo", 0.3), ("cppo", 0.6))
        for seed in range(4)
    ]
    board = scored(runs)
    for baseline, arrows in ((USUAL, ("", ABOVE)), (Baseline("cppo"), (BELOW, ""))):
        table = main_table(board, "Demo", sweep_statistics(board, resamples=10, baseline=baseline))
        shown = [str(row.cells[0]).partition(" ± ")[2].partition(" ")[2] for row in table.rows]
        assert shown == list(arrows) and "of the best step, which favours a noisy run" in table.notes[-1]
    fallen = MadeRun("cppo", seed=4, scores=both({10: 0.6, 20: 0.0}), status=schema.COLLAPSED)
    gap = MadeRun("cppo", seed=5, scores=both({10: 0.6}), status=schema.RUNNING)
    board = scored([*runs, fallen, gap])
    of_collapse = main_table(board, "Demo", sweep_statistics(board, resamples=10)).rows[-1]
    assert str(of_collapse.cells[0]) == "collapse 1/5†"  # of the finished runs, without an arrow
    assert "CPPO 1 of 5." in headlines(board)[1][1][-1]
    order = statistics_tables(Scored("demo", "Demo", board, ""))["order"]
    assert {row.label for row in order.rows} == {"CPPO (1 of 5 collapsed)†", "DPPO"}
    nothing = MadeRun("grpo", status=schema.COLLAPSED)  # before its first validation
    last = statistics_tables(Scored("demo", "Demo", scored([*runs, nothing]), ""))["order"].rows[-1]
    assert (last.label, last.cells[0], last.cells[3]) == ("GRPO (1 of 1 collapsed)", "–", "3")
    looked = Scored("demo", "Demo", board, "", stated=Hypotheses((replace(CLAIMS[0], sequential=True),)))
    assert with_looks(order, looked).notes[-1].startswith("Seeds were added until sequential hypotheses")
    assert r"$\downarrow$" in tables.latex(table)


def test_a_score_of_one_benchmark_is_no_mean() -> None:
    """Each model has another benchmark."""
    board = scored([MadeRun("cppo", name, scores={name: {10: 0.3}}) for name in ("a", "b")])
    assert "with the highest score inside" in main_table(board, "").notes[0]


def on_two_models(*scores: float) -> list[MadeRun]:
    """CPPO and DPPO on a, then on b."""
    places = itertools.product("ab", ("cppo", "dppo"))
    return [flat(name, score, model=model) for (model, name), score in zip(places, scores, strict=True)]


START, GAIN = {0: 0.2, 10: 0.9}, "The model starts at 20.00 (step 0); CPPO gains 70.00 points.\n"
EQUAL = [flat(name, 0.5) for name in ("grpo", "dppo", "cppo")]


@pytest.mark.parametrize(
    "runs, said",
    [
        (
            on_two_models(0.9, 0.3, 0.5, 0.4),
            "All models: CPPO has the highest score on 2 of 2 models, 10.00 to 60.00 points above the runner-up.\n"
            "a: CPPO scores 90.00, 60.00 points above DPPO (30.00).\n"
            "b: CPPO scores 50.00, 10.00 points above DPPO (40.00).\n",
        ),
        (
            [MadeRun("cppo", scores=both(START)), MadeRun("dppo", scores=both({0: 0.2, 10: 0.5}))],
            f"chain: CPPO scores 90.00, 40.00 points above DPPO (50.00). {GAIN}",
        ),
        (
            on_two_models(0.9, 0.3, 0.4, 0.5),
            "All models: CPPO and DPPO each have the highest score on 1 of 2 models.\n"
            "a: CPPO scores 90.00, 60.00 points above DPPO (30.00).\n"
            "b: DPPO scores 50.00, 10.00 points above CPPO (40.00).\n",
        ),
        (  # a tie as printed
            on_two_models(0.50004, 0.49996, 0.4, 0.6),
            "All models: DPPO has the highest score on 2 of 2 models, 0.00 to 20.00 points above the runner-up.\n"
            "a: CPPO and DPPO share the highest score, 50.00.\n"
            "b: DPPO scores 60.00, 20.00 points above CPPO (40.00).\n",
        ),
        ([MadeRun("cppo", scores=both(START))], f"chain: {GAIN}"),
        (EQUAL, "chain: CPPO, DPPO and GRPO share the highest score, 50.00.\n"),
        (EQUAL[:1], ""),
        (
            [flat("cppo", 0.9, status=schema.RUNNING), flat("dppo", 0.4), flat("grpo", 0.3)],
            "All models: 1 of 3 runs has no result yet: everything marked † will change.\n"
            "chain: DPPO scores 40.00, 10.00 points above GRPO (30.00).\n",
        ),
    ],
)
def test_headlines(runs: list[MadeRun], said: str) -> None:
    lines = (f"{about}: {' '.join(sentences)}\n" for about, sentences in headlines(scored(runs)))
    assert "".join(lines) == said


def test_selected_steps_are_never_a_row_of_equal_numbers() -> None:
    texts = map(steps_text, ([], [20] * 20, [10, 20], range(5, 105, 5)))
    assert [*texts] == ["–", "20", "10, 20", "5 to 100"]
