"""Numbers and methods for a paper: what they say of made sweeps, and nothing that these do not show."""

import re
from dataclasses import replace

import pytest

from cppo_lab import __version__, schema
from cppo_lab.analysis.scoring import Scoreboard, score_sweep
from cppo_lab.analysis.statistics.claims import Claim, Kind
from cppo_lab.analysis.statistics.summary import sweep_statistics
from cppo_lab.reports.paper_text import letters, paper_texts
from cppo_lab.reports.registration import Standing
from cppo_lab.reports.sections import Section
from cppo_lab.reports.verdict_view import VerdictView, verdict_view
from tests.analysis.made_sweeps import MadeRun, both, expect, make_data

OWN = Claim("hypothesis higher", "CPPO is above DPPO 100 %", "demo", Kind.SUPERIORITY, (("cppo",), ("dppo",)))


def made(variant: str, model: str, seed: int, score: float) -> MadeRun:
    wiggle = (0.0, 0.004, -0.003)[seed] * {"dppo": 1, "cppo": 1.5}.get(variant, 2)
    return MadeRun(variant, model, seed, both({10: 0.1, 100: score + wiggle}))


def board_of(*runs: MadeRun, code: str = "") -> Scoreboard:
    data = make_data(runs)
    if code:
        data = replace(data, code=dict.fromkeys(data.runs["mlflow_id"], code))
    return score_sweep(data, expect(runs), partial=True)


def grid(
    models: tuple[str, ...] = ("m",),
    seeds: int = 3,
    lead: float = 0.2,
    variants: tuple[str, ...] = ("dppo", "cppo"),
) -> list[MadeRun]:
    return [
        made(name, model, seed, 0.3 + lead * place)
        for place, name in enumerate(variants)
        for model in models
        for seed in range(seeds)
    ]


def texts(board: Scoreboard, view: VerdictView | None = None, **other: tuple[str, ...]) -> dict[str, str]:
    sections = [Section("verdicts", "", {}, lines=view.lines, how=view.rule)] if view else []
    return paper_texts({"demo": board}, {"demo": sweep_statistics(board)}, sections, **other)


def macros(text: str) -> dict[str, str]:
    found = re.findall(r"^\\newcommand\{\\([A-Za-z]+)\}\{(.*)\} % \S.*$", text, flags=re.MULTILINE)
    assert len(found) == text.count(r"\newcommand") == len(dict(found))  # each of letters, and none twice
    return dict(found)


def test_numbers_of_a_sweep() -> None:
    numbers = macros(texts(board_of(*grid()))["numbers.tex"])
    assert numbers["cppoDemoMDppoSeeds"] == "3"
    assert numbers["cppoDemoMDppoFinal"] == numbers["cppoDemoMDppoBest"] == "30.03"
    assert numbers["cppoDemoMCppoFinal"] == "50.05"
    assert numbers["cppoDemoMCppoDiff"] == r"\ensuremath{+20.02}"
    low, high = (float(numbers[f"cppoDemoMCppoDiff{end}"][13:-1]) for end in ("Low", "High"))
    assert low < 20.02 < high
    assert numbers["cppoDemoMCppoDiffWord"] == "better"
    assert not any("AllModels" in name or "DppoDiff" in name for name in numbers)


@pytest.mark.parametrize(
    ("runs", "word", "low"),
    [
        (grid(lead=-0.2), "worse", True),
        (grid(lead=0.0), "no relevant difference", True),
        (grid(seeds=1), "not decided", False),
    ],
)
def test_words_of_a_difference(runs: list[MadeRun], word: str, low: bool) -> None:
    numbers = macros(texts(board_of(*runs))["numbers.tex"])
    assert numbers["cppoDemoMCppoDiffWord"] == word
    assert (numbers["cppoDemoMCppoDiffLow"] != "--") is low


def test_models_are_named_and_averaged() -> None:
    numbers = macros(texts(board_of(*grid(("Qwen3-1.7B", "b"))))["numbers.tex"])
    assert numbers["cppoDemoQwenThreeOneSevenBCppoFinal"] == numbers["cppoDemoBCppoFinal"] == "50.05"
    assert numbers["cppoDemoAllModelsCppoDiffWord"] == "better"


@pytest.mark.parametrize(
    ("name", "said"),
    [("cppo_w0.6", "CppoWZeroSix"), ("Qwen3-1.7B", "QwenThreeOneSevenB"), ("δ中", ""), ("aB c", "ABC")],
)
def test_letters(name: str, said: str) -> None:
    assert letters(name) == said


def test_names_that_would_be_equal_differ() -> None:
    variants = ("dppo", "a_b", "a-b", "a.b", "δ", "中", "a_b_final", "a_b_diff", "}%\\x\n")
    text = texts(board_of(*grid(variants=variants, lead=0.01)))["numbers.tex"]
    numbers = macros(text)
    assert {"cppoDemoMABFinal", "cppoDemoMABFinalB", "cppoDemoMABFinalC"} <= set(numbers)
    assert text.isascii()


def test_a_collapse_is_a_word() -> None:
    runs = [*grid(), MadeRun("cispo", "m", 0, both({10: 0.5, 100: 0.0}), status=schema.COLLAPSED)]
    found = texts(board_of(*runs))
    assert macros(found["numbers.tex"])["cppoDemoMCispoBest"] == "collapse"
    assert "7 of 7 runs have a result, and 1 of them collapsed." in found["methods.md"]
    assert "a collapsed run counts to the end of the window" in found["methods.md"]


def test_verdicts_and_their_standing() -> None:
    board = board_of(*grid())
    standing = Standing("Pre-registered on 2026-01-01 (ab_c).", True)
    view = verdict_view({"demo": board}, "mini", own={OWN: standing})
    found = texts(board, view, withdrawn=("Hypotheses of old were withdrawn.",))
    numbers = macros(found["numbers.tex"])
    assert numbers["cppoDemoHigherVerdict"] == "supported"
    assert numbers["cppoDemoHigherEstimate"].startswith("+20.02 points, 95 \\% interval")
    said = "Hypothesis of sweep demo: CPPO is above DPPO 100 %. Pre-registered on 2026-01-01 (ab"
    assert said in found["methods.md"] and "Hypotheses of old were withdrawn." in found["methods.md"]
    assert r"CPPO is above DPPO 100 \%" in found["methods.tex"]
    late = verdict_view({"demo": board}, "mini", own={OWN: Standing("Not registered. Exploratory.", False)})
    assert macros(texts(board, late)["numbers.tex"])["cppoDemoHigherVerdict"] == "supported (exploratory)"


def test_methods_of_a_sweep() -> None:
    board = board_of(*grid(), code="0.9+abc")
    said = texts(board)["methods.md"]
    for sentence in (
        "Sweep demo has 2 methods (DPPO, CPPO) on 1 model (m), with 3 seeds (0, 1, 2) of each method and model: 6 of 6 "
        "runs have a result.",
        "the mean over chain24, chain25.",
        "the first 100 steps.",
        "the mean score of the last 30 % of the window.",
        "Final means are compared with DPPO in pairs of runs with the same seed (Student's t); intervals are 95 %",
        "p values are two-sided; the level is 0.05.",
        "Runs were made with CPPO Lab 0.9+abc (6 runs).",
        f"The runs were analysed with CPPO Lab {__version__}.",
    ):
        assert sentence in said
    assert "Holm" not in said  # one comparison
    apart = texts(replace(board, pairing=False))["methods.md"]
    assert "as independent runs (Welch's test)" in apart and "in pairs" not in apart
    several = texts(board_of(*grid(variants=("dppo", "cppo", "grpo"))))["methods.md"]
    assert "with Holm's adjustment over 2 comparisons" in several


@pytest.mark.parametrize(
    ("runs", "absent"),
    [
        (
            grid(seeds=1),
            ("two-sided", "interval", "Welch", "Student", "Hypothes", "Claims", "collapsed", "made with"),
        ),
        (grid(variants=("dppo",)), ("compared with", "two-sided", "Welch", "Student", "without a test")),
    ],
)
def test_methods_say_nothing_that_the_records_do_not_show(
    runs: list[MadeRun], absent: tuple[str, ...]
) -> None:
    said = texts(board_of(*runs))["methods.md"]
    assert [word for word in absent if word in said] == []
    assert ("Single runs are compared with DPPO, without a test." in said) is (len(runs) == 2)


def test_verdicts_on_single_runs_have_no_test() -> None:
    board = board_of(*grid(seeds=1))
    for own in ({}, {OWN: Standing("Not registered. Exploratory.", False)}):
        view = verdict_view({"demo": board}, "mini", own=own)
        said = texts(board, view)["methods.md"]
        assert view.lines and "Claims of the paper that these runs can test: " in said
        assert not [word for word in ("one-sided", "in pairs", "interval", "power") if word in said]
    three = board_of(*grid())
    assert "p is one-sided" in texts(three, verdict_view({"demo": three}, "mini"))["methods.md"]


def test_gaps_are_named() -> None:
    runs = [*grid(), MadeRun("cppo", "m", 3, status=schema.RUNNING, scores=both({10: 0.1}))]
    said = texts(board_of(*runs))["methods.md"]
    assert (
        "with 3 to 4 runs of each method and model: 6 of 7 runs have a result." in said
        and "Without a result: " in said
    )
