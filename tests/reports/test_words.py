"""Numbers and methods for a paper: what they say of made sweeps, and nothing that these do not show."""

import re
from collections.abc import Sequence
from dataclasses import replace

from cppo_lab import __version__, schema
from cppo_lab.analysis.scoring import Scoreboard
from cppo_lab.analysis.statistics.claims import Claim, Kind, Standing
from cppo_lab.reports.sections import Scored, Section
from cppo_lab.reports.verdict_view import VerdictView, verdict_view
from cppo_lab.reports.words import letters, paper_texts
from tests.analysis.made_sweeps import MadeRun, both, scored
from tests.analysis.statistics.made_curves import broken, flat

OWN = Claim("hypothesis higher", "CPPO is above DPPO 100 %", "demo", Kind.SUPERIORITY, (("cppo",), ("dppo",)))
LATE = {OWN: Standing("Not registered. Exploratory.", False)}


def grid(
    *models: str, seeds: int = 3, lead: float = 0.2, variants: Sequence[str] = ("dppo", "cppo")
) -> list[MadeRun]:
    """Each variant is better than the one before it."""
    wiggle = (0.0, 0.004, -0.003)[:seeds]
    levels = {
        name: [0.3 + lead * place + extra * min(1 + place / 2, 2) for extra in wiggle]
        for place, name in enumerate(variants)
    }
    return flat(levels, *models)


def texts(board: Scoreboard, view: VerdictView | None = None, **other: tuple[str, ...]) -> dict[str, str]:
    sections = [Section("verdicts", "", {}, lines=view.lines, how=view.rule)] if view else []
    return paper_texts([Scored("demo", "Demo", board, "")], sections, **other)


def numbers_of(board: Scoreboard, view: VerdictView | None = None) -> dict[str, str]:
    """The macros of a sweep: each of letters, and none twice."""
    text = texts(board, view)["numbers.tex"]
    assert text.isascii()
    macros = re.findall(r"^\\newcommand\{\\([A-Za-z]+)\}\{(.*)\} % \S.*$", text, flags=re.MULTILINE)
    assert len(macros) == text.count(r"\newcommand") == len(dict(macros))
    return dict(macros)


def test_numbers_of_a_sweep() -> None:
    numbers = numbers_of(scored(grid()))
    names = ("DppoSeeds", "DppoFinal", "DppoBest", "CppoFinal", "CppoDiff", "CppoDiffWord")
    assert [numbers[f"cppoDemoM{name}"] for name in names] == [
        "3",
        "30.03",
        "30.03",
        "50.05",
        r"\ensuremath{+20.02}",
        "better",
    ]
    low, high = (float(numbers[f"cppoDemoMCppoDiff{end}"][13:-1]) for end in ("Low", "High"))
    assert low < 20.02 < high
    assert not any("AllModels" in name or "DppoDiff" in name for name in numbers)
    few = numbers_of(scored(grid(seeds=2, lead=0.69)))  # whose t intervals are wide
    assert (few["cppoDemoMDppoFinalLow"], few["cppoDemoMCppoFinalHigh"]) == ("27.66", "100.00")
    single = numbers_of(scored(grid(seeds=1)))
    assert (single["cppoDemoMCppoDiffWord"], single["cppoDemoMCppoDiffLow"]) == ("not decided", "--")


def test_names_are_letters_and_differ() -> None:
    assert letters("cppo_w0.6 Qwen3-1.7B δ中 aB c") == "CppoWZeroSixQwenThreeOneSevenBABC"
    numbers = numbers_of(scored(grid("Qwen3-1.7B", "b")))
    assert numbers["cppoDemoQwenThreeOneSevenBCppoFinal"] == numbers["cppoDemoBCppoFinal"] == "50.05"
    assert numbers["cppoDemoAllModelsCppoDiffWord"] == "better"
    variants = ("dppo", "a_b", "a-b", "a.b", "δ", "中", "a_b_final", "a_b_diff", "}%\\x\n")
    numbers = numbers_of(scored(grid(variants=variants, lead=0.01)))
    assert {"cppoDemoMABFinal", "cppoDemoMABFinalB", "cppoDemoMABFinalC"} <= set(numbers)
    numbers = numbers_of(scored(grid(variants=("dppo", "dppo."))))  # dppo, the baseline, has no difference
    assert numbers["cppoDemoMDppoDiffB"] == r"\ensuremath{+20.02}" and "cppoDemoMDppoDiff" not in numbers


def test_a_collapse_is_a_word() -> None:
    board = scored([*grid(), broken("cispo", 0, 0.5)])
    assert numbers_of(board)["cppoDemoMCispoBest"] == "collapse"
    methods = texts(board)["methods.md"]
    assert "7 of 7 runs have a result, and 1 of them collapsed." in methods
    assert "a collapsed run counts to the end of the window" in methods


def test_verdicts_and_their_standing() -> None:
    board = scored(grid())
    standing = Standing("Pre-registered on 2026-01-01 (ab_c).", True)
    view, late = (verdict_view({"demo": board}, "mini", standings=own) for own in ({OWN: standing}, LATE))
    said = texts(board, view, withdrawn=("Hypotheses of old were withdrawn.",))
    numbers = numbers_of(board, view)
    assert numbers["cppoDemoHigherVerdict"] == "supported"
    assert numbers["cppoDemoHigherEstimate"].startswith("+20.02 points, 95 \\% interval")
    for text in (
        "Hypothesis of sweep demo: CPPO is above DPPO 100 %. Pre-registered on 2026-01-01 (ab",
        "Hypotheses of old were withdrawn.",
    ):
        assert text in said["methods.md"]
    assert r"CPPO is above DPPO 100 \%" in said["methods.tex"]
    assert numbers_of(board, late)["cppoDemoHigherVerdict"] == "supported (exploratory)"


def test_methods_of_a_sweep() -> None:
    board = scored(grid(), code={f"{number:032x}": "0.9+abc" for number in range(6)})
    said = texts(board)["methods.md"]
    for sentence in (
        "Sweep demo has 2 methods (DPPO, CPPO) on 1 model (m), with 3 seeds (0 to 2) of each method and model: 6 of 6 "
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
    shorter = [replace(run, t_stop=80) if run.variant == "cppo" else run for run in grid()]
    assert "windows of different lengths" in texts(scored(shorter))["methods.md"]
    apart = texts(replace(board, pairing=False))["methods.md"]
    assert "as independent runs (Welch's test)" in apart and "in pairs" not in apart
    several = texts(scored(grid(variants=("dppo", "cppo", "grpo"))))["methods.md"]
    assert "with Holm's adjustment over 2 comparisons" in several
    mixed = scored([*grid(), *flat({"single": [0.5], "even": [0.4, 0.404, 0.397]})])
    for why in ("with a single run on a side", "without any spread between runs"):
        assert [
            f"Comparisons {why} have no test." in text for text in (said, texts(mixed)["methods.md"])
        ] == [False, True]
    board = scored([*grid(), MadeRun("cppo", "m", 3, status=schema.RUNNING, scores=both({10: 0.1}))])
    numbers, gaps = numbers_of(board), texts(board)["methods.md"]
    assert (numbers["cppoDemoMCppoFinal"], numbers["cppoDemoMCppoSeeds"]) == ("50.05", "3")
    assert "with 3 to 4 runs of each method and model: 6 of 7 runs have a result." in gaps
    assert "Without a result: " in gaps


NO_TEST = ("two-sided", "interval", "Welch", "Student", "Hypothes", "Claims", "collapsed", "made with")


def test_methods_say_nothing_that_the_records_do_not_show() -> None:
    said = texts(scored(grid(seeds=1)))["methods.md"]
    assert [word for word in NO_TEST if word in said] == []
    assert "Single runs are compared with DPPO, without a test." in said
    said = texts(scored(grid(variants=("dppo",))))["methods.md"]
    # Of the mean over the seeds of one method.
    assert {word for word in (*NO_TEST, "compared with", "without a test") if word in said} <= {"interval"}


def test_verdicts_on_single_runs_have_no_test() -> None:
    board = scored(grid(seeds=1))
    for own in ({}, LATE):
        view = verdict_view({"demo": board}, "mini", standings=own)
        said = texts(board, view)["methods.md"]
        assert view.lines and "(the paper says it of its main grid). Not registered. Exploratory." in said
        assert not [word for word in ("one-sided", "in pairs", "interval", "power") if word in said]
    three = scored(grid())
    assert "p is one-sided" in texts(three, verdict_view({"demo": three}, "mini"))["methods.md"]
