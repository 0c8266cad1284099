"""Tables of our own sweeps: marks, seeds, gaps, collapse, and text that must not break the format."""

import csv
import io
from decimal import Decimal

import pytest

from cppo_lab import schema
from cppo_lab.analysis.scoring import Scoreboard, score_sweep
from cppo_lab.analysis.statistics.summary import sweep_statistics
from cppo_lab.reports import table_texts
from cppo_lab.reports.escapes import escape_latex
from cppo_lab.reports.headlines import headlines
from cppo_lab.reports.names import benchmark_name, display_name, in_order, score_name
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
from tests.analysis.made_sweeps import MadeRun, both, expect, make_data


def board_of(*runs: MadeRun, partial: bool = False) -> Scoreboard:
    return score_sweep(make_data(runs), expect(runs), partial)


def number(text: str, provisional: bool = False) -> Entry:
    return Entry(Decimal(text), n=1, provisional=provisional)


@pytest.mark.parametrize(
    ("entries", "marks"),
    [
        pytest.param([number("1.00"), number("3.00"), number("2.00")], ["", BEST, SECOND], id="three"),
        pytest.param(
            [number("3.00"), number("3.00"), number("2.00")], [BEST, BEST, SECOND], id="tie for best"
        ),
        pytest.param(
            [number("3.00"), number("2.00"), number("2.00")], [BEST, SECOND, SECOND], id="tie for second"
        ),
        pytest.param(
            [number("3.00"), Entry(word="collapse"), number("2.00")], [BEST, "", SECOND], id="collapse"
        ),
        pytest.param(
            [number("3.00", True), number("2.00"), number("1.00")], ["", BEST, SECOND], id="provisional"
        ),
        pytest.param([number("3.00"), Entry(word="missing")], ["", ""], id="nothing to compare with"),
        pytest.param([number("2.00"), number("2.00")], [BEST, BEST], id="all equal"),
        pytest.param([], [], id="empty"),
    ],
)
def test_marks(entries: list[Entry], marks: list[str]) -> None:
    assert [entry.mark for entry in mark(entries)] == marks


def test_seeds_give_mean_and_standard_deviation() -> None:
    runs = [MadeRun("cppo", seed=seed, scores=both({10: score})) for seed, score in enumerate((0.30, 0.34))]
    runs += [MadeRun("dppo", seed=seed, scores=both({10: 0.2})) for seed in (0, 1)]
    table = main_table(board_of(*runs), "Demo")
    assert "| **CPPO** | **32.00 ± 2.83** |" in table_texts.markdown(table)
    assert r"\textbf{32.00 $\pm$ 2.83}" in table_texts.latex(table)
    assert table_texts.table_csv(table) == "method,chain,core\ndppo,20.00,mini\ncppo,32.00,mini\n"
    long = list(csv.DictReader(io.StringIO(table_texts.long_csv(board_of(*runs)))))
    avg = next(row for row in long if (row["method"], row["benchmark"]) == ("cppo", "avg"))
    assert (avg["core"], avg["n"], avg["mean"], avg["std"]) == ("mini", "2", "32.0000", "2.8284")


def test_the_list_of_runs_has_final_scores_and_warm_starts() -> None:
    curve = {step: 0.2 + 0.001 * step for step in range(0, 101, 10)}
    runs = [
        MadeRun("cppo", scores=both(curve), warm_start="0123abcd"),
        MadeRun("dppo", scores=both({0: 0.2, 10: 0.5, 20: 0.1}), status=schema.COLLAPSED),
        MadeRun("grpo", status=schema.RUNNING),
    ]
    cppo, dppo, grpo = csv.DictReader(io.StringIO(table_texts.runs_csv(board_of(*runs, partial=True))))
    assert (cppo["final"], cppo["warm_start"]) == ("29.0000", "0123abcd")  # mean of steps 80, 90, 100
    assert (dppo["final"], dppo["warm_start"]) == ("10.0000", "")  # goes on at its last score
    assert (grpo["final"], grpo["warm_start"]) == ("", "")


def test_every_text_of_a_mini_sweep_says_so() -> None:
    board = board_of(MadeRun("cppo", scores=both({10: 0.3})))
    main, full = main_table(board, "Demo"), full_table(board, "Demo")
    for text in (
        table_texts.markdown(main),
        table_texts.latex(main),
        table_texts.markdown(full),
        table_texts.latex(full),
    ):
        assert "core=mini" in text
        assert "not comparable with the paper" in text
    for text in (
        table_texts.table_csv(main),
        table_texts.table_csv(full),
        table_texts.long_csv(board),
        table_texts.runs_csv(board),
    ):
        assert "mini" in text.splitlines()[1].split(",")


def test_columns_follow_the_benchmarks_and_models_of_the_runs() -> None:
    board = board_of(
        MadeRun("cppo", model="small", scores=both({10: 0.3}), t_stop=40),
        MadeRun("cppo", model="large", scores=both({10: 0.4}), t_stop=80),
        MadeRun("dppo", model="large", scores=both({10: 0.5}), t_stop=80),
    )
    full = full_table(board, "Demo")
    assert table_texts.table_csv(full).splitlines() == [
        "model,t_stop,method,chain24,chain25,avg,core",
        "small,40,cppo,30.00,30.00,30.00,mini",
        "large,80,dppo,50.00,50.00,50.00,mini",
        "large,80,cppo,40.00,40.00,40.00,mini",
    ]
    main = main_table(board, "Demo")
    assert main.headings == ("small", "large")
    assert [row.cells[0].word for row in main.rows] == [NOT_DECLARED, ""]


def test_a_partial_table_marks_its_cells_in_every_format() -> None:
    board = board_of(
        MadeRun("cppo", scores=both({10: 0.3}), status=schema.RUNNING),
        MadeRun("dppo", scores=both({10: 0.2})),
        MadeRun("grpo", status=schema.FAILED, reason="killed"),
        partial=True,
    )
    table = main_table(board, "Demo")
    assert table_texts.table_csv(table).splitlines()[1:] == [
        "grpo,failed†,mini",
        "dppo,20.00,mini",
        "cppo,30.00†,mini",
    ]
    assert "30.00†" in table_texts.markdown(table)
    assert r"30.00$^\dagger$" in table_texts.latex(table)
    assert not any(entry.mark for row in table.rows for entry in row.cells)
    assert "cppo on chain, seed 0 (running); grpo on chain, seed 0 (failed: killed)" in table.notes[-1]


def test_a_collapse_of_some_seeds_says_how_many() -> None:
    runs = [
        MadeRun("cppo", seed=0, scores=both({10: 0.3, 20: 0.3})),
        MadeRun("cppo", seed=1, scores=both({10: 0.3, 20: 0.0}), status=schema.COLLAPSED),
    ]
    table = main_table(board_of(*runs), "Demo")
    assert table.rows[0].cells[0].word == "collapse 1/2"


HOSTILE = r"50% of_A & B {x} #1 $2 ~ ^ \ <script>"


def test_latex_escapes() -> None:
    assert table_texts.escape_latex("a_b % c & d") == r"a\_b \% c \& d"
    assert table_texts.escape_latex("[x]") == "{[}x{]}"
    table = main_table(board_of(MadeRun(HOSTILE, model=HOSTILE, scores=both({10: 0.3}))), HOSTILE)
    expected = (
        r"50\% of\_A \& B \{x\} \#1 \$2 \textasciitilde{} \textasciicircum{} \textbackslash{} "
        r"\textless{}script\textgreater{}"
    )
    latex = table_texts.latex(table)
    assert latex.count(expected) == 3  # caption, column, row
    assert HOSTILE not in latex


def test_markdown_escapes() -> None:
    assert table_texts.escape_markdown("a|b*c_d<e>") == r"a\|b\*c\_d&lt;e&gt;"
    table = main_table(board_of(MadeRun("x|y", scores=both({10: 0.3}))), "a\nb")
    assert "| x\\|y | 30.00 |" in table_texts.markdown(table)
    assert table_texts.markdown(table).startswith("# a b\n")


@pytest.mark.parametrize(
    ("text", "cell"),
    [
        ("=HYPERLINK(1)", "'=HYPERLINK(1)"),
        ("+cmd", "'+cmd"),
        ("-1+1", "'-1+1"),
        ("@SUM(A1)", "'@SUM(A1)"),
        ("\t=1", "'\t=1"),
        ("\r=1", "'\n=1"),
        ("-0.0067", "-0.0067"),
        ("+1.2 ± 0.3", "+1.2 ± 0.3"),
        ("30.00†", "30.00†"),
        ("a=b", "a=b"),
        ("", ""),
    ],
)
def test_no_cell_of_a_csv_is_a_formula(text: str, cell: str) -> None:
    rows = list(csv.reader(io.StringIO(table_texts.csv_text([text, "b"], [[text, -1]]), newline="")))
    assert rows == [[cell, "b"], [cell, "-1"]]


def test_a_csv_keeps_hostile_names_apart() -> None:
    names = ('a,"b"', "x;y", "two\nlines", "ça 中")
    table = main_table(board_of(*(MadeRun(name, scores=both({10: 0.3})) for name in names)), "Demo")
    rows = list(csv.reader(io.StringIO(table_texts.table_csv(table), newline="")))
    assert [row[0] for row in rows[1:]] == list(names)
    assert {len(row) for row in rows} == {3}


def test_a_markdown_row_stays_one_row() -> None:
    name = "a|b\n| c |\r\x0b$x$ ~~s~~ <u> `code` \u2028 &amp;"
    table = main_table(board_of(MadeRun(name, scores=both({10: 0.3}))), name)
    lines = table_texts.markdown(table).splitlines()
    (row,) = (line for line in lines if "30.00" in line)
    shown = r"a\|b \| c \|  \$x\$ \~\~s\~\~ &lt;u&gt; \`code\`   &amp;amp;"
    assert row == f"| {shown} | 30.00 |"
    assert lines[0] == f"# {shown}"


def test_names_and_order() -> None:
    assert in_order(["zeta", "cppo", "grpo", "alpha", "dppo"]) == ("grpo", "dppo", "cppo", "zeta", "alpha")
    assert display_name("trm_avg") == "TRM-Avg"
    assert display_name("cppo_db0.02_w0.6") == "CPPO, delta_b 0.02, w_min 0.6"
    assert display_name("mine") == "mine"
    assert (benchmark_name("aime24"), benchmark_name("chain24")) == ("AIME24", "chain24")


def sentences(*runs: MadeRun, partial: bool = False) -> dict[str, str]:
    return {entry.about: " ".join(entry.sentences) for entry in headlines(board_of(*runs, partial=partial))}


def test_an_arrow_is_about_the_score_beside_it() -> None:
    """CPPO peaks above DPPO and ends like it."""
    runs = [
        MadeRun(
            name,
            seed=seed,
            scores=both(
                {10: peak + 0.001 * seed * (1 + peak), **dict.fromkeys((80, 90, 100), 0.2 + 0.001 * seed)}
            ),
        )
        for name, peak in (("dppo", 0.3), ("cppo", 0.6))
        for seed in range(4)
    ]
    board = board_of(*runs)
    dppo, cppo = main_table(board, "Demo", sweep_statistics(board, resamples=10)).rows
    assert str(cppo.cells[0]).endswith(ABOVE) and not str(dppo.cells[0]).endswith((ABOVE, BELOW))


def test_headlines_name_winner_and_margin() -> None:
    said = sentences(
        MadeRun("cppo", model="a", scores=both({10: 0.9, 80: 0.2, 90: 0.2, 100: 0.2})),
        MadeRun("dppo", model="a", scores=both({10: 0.1, 80: 0.3, 90: 0.3, 100: 0.3})),
        MadeRun("cppo", model="b", scores=both({10: 0.5})),
        MadeRun("dppo", model="b", scores=both({10: 0.4})),
    )
    assert said["All models"] == (
        "CPPO has the highest score on 2 of 2 models, 10.00 to 60.00 points above the runner-up."
    )
    assert said["a"] == "CPPO scores 90.00, 60.00 points above DPPO (30.00)."
    assert said["b"] == "CPPO scores 50.00, 10.00 points above DPPO (40.00)."


def test_headlines_name_the_start_and_the_gain() -> None:
    said = sentences(
        MadeRun("cppo", scores=both({0: 0.2, 10: 0.9})), MadeRun("dppo", scores=both({0: 0.2, 10: 0.5}))
    )
    assert "The model starts at 20.00 (step 0); CPPO gains 70.00 points." in said["chain"]
    alone = sentences(MadeRun("cppo", scores=both({0: 0.2, 10: 0.9})))
    assert alone == {"chain": "The model starts at 20.00 (step 0); CPPO gains 70.00 points."}


def test_headlines_of_equals_and_of_a_single_variant() -> None:
    runs = [MadeRun(name, scores=both({10: 0.5})) for name in ("grpo", "dppo", "cppo")]
    assert sentences(*runs) == {"chain": "CPPO, DPPO and GRPO share the highest score, 50.00."}
    assert sentences(runs[0]) == {}


def test_a_provisional_cell_makes_no_headline() -> None:
    runs = [
        MadeRun("cppo", scores=both({10: 0.9}), status=schema.RUNNING),
        MadeRun("dppo", scores=both({10: 0.4})),
        MadeRun("grpo", scores=both({10: 0.3})),
    ]
    said = sentences(*runs, partial=True)
    assert said["All models"] == "1 of 3 runs have no result yet: everything marked † will change."
    assert said["chain"].startswith("DPPO scores 40.00, 10.00 points above GRPO (30.00).")


def test_no_form_of_a_table_hides_a_gap() -> None:
    """A cell of unfinished runs is marked, one without runs says why, in every format."""
    done = MadeRun("cppo", scores=both({10: 0.5}))
    going = MadeRun("cppo", seed=1, scores=both({10: 0.9}), status=schema.RUNNING)
    declared = expect([done, going, MadeRun("dppo"), MadeRun("grpo")])
    failed = MadeRun("grpo", status=schema.FAILED, reason="out of memory")
    board = score_sweep(make_data([done, going, failed]), declared, partial=True)
    main, full = main_table(board, "Main"), full_table(board, "Full")
    texts = [
        table_texts.markdown(main),
        table_texts.markdown(full),
        table_texts.table_csv(main),
        table_texts.table_csv(full),
    ]
    texts += [table_texts.latex(main), table_texts.latex(full)]
    for text in texts:
        assert "missing" in text
        assert "failed" in text
        assert "50.00" in text
        assert "†" in text or r"\dagger" in text or r"\textdagger" in text
    rows = table_texts.runs_csv(board)
    assert [word in rows for word in ("missing", "failed", "running")] == [True] * 3


def test_everything_is_ascii_in_latex() -> None:
    """So that it makes no difference which LaTeX reads it, and with which encoding."""
    for number in range(0x3000):
        assert escape_latex(chr(number)).isascii()
        assert "\n" not in escape_latex(chr(number))


@pytest.mark.parametrize(
    ("steps", "text"),
    [
        ((), "–"),
        ((10,), "10"),
        ((20,) * 20, "20"),
        ((10, 20), "10, 20"),
        (tuple(range(5, 105, 5)), "5 to 100"),
    ],
)
def test_selected_steps_are_never_a_row_of_equal_numbers(steps: tuple[int, ...], text: str) -> None:
    assert steps_text(steps) == text


def test_the_score_has_the_name_that_its_core_gives_it() -> None:
    assert score_name("exact", 16) == "expected score"
    assert score_name("mini", 16) == score_name("paper", 16) == score_name("not installed", 16) == "Avg@16"


def test_a_collapse_has_the_last_step_of_its_curve(paper_board: Scoreboard) -> None:
    """CISPO on 30B-A3B-Base is best at step 145 and ends at step 215, where it diverged."""
    rows = [row for one in full_table(paper_board, "Table 4").tables for row in one.rows]
    assert {row.pair: row.cells[-1] for row in rows}["Qwen3-30B-A3B-Base", "cispo"] == "215"
