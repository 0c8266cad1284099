"""All benchmarks on one page: the form of their last lines, the page made of them, and a run that meets failures."""

import signal
import subprocess
from pathlib import Path

import pytest

from benchmarks import summary
from benchmarks.common import FULL_ONLY, Figure, figures_of, finish, read
from benchmarks.summary import Ran, page, table
from tests.waiting import until

SCRIPTS = sorted(
    path
    for path in (Path(__file__).parents[2] / "benchmarks").glob("*.py")
    if path.stem not in summary.OTHERS
)
ABOUT = {"Processor": "Abacus|9", "Threads": "2", "Python": "3.11.7"}


def ran(name: str, figures: dict[str, Figure], failure: str = "") -> Ran:
    return Ran(name, "What it is about.", 12.4, figures, failure)


def page_of(*all_ran: Ran, load: float = 0.1) -> str:
    return page(all_ran, load, "2031-05-06", ABOUT)


def test_patterns_give_units_and_targets(capsys: pytest.CaptureFixture[str]) -> None:
    values = {"a_seconds": 1.0, "b_seconds": 3.0, "speed": 2.0, "slow": 1.9, "times": 7.123456789, "b": None}
    most, least = {"*_seconds": 2.0, "c": 1.0}, {"speed": 2.0, "slow": 2.0}
    units = {"*_seconds": "s", "speed": "m/s", "*": "x"}
    options = {"at_most": most, "at_least": least, "absent": {"b": "no GPU"}, "quick": True}
    figures = figures_of(values, units, **options)
    assert figures == {
        "a_seconds": Figure(1.0, "s", at_most=2.0),
        "b_seconds": Figure(3.0, "s", at_most=2.0),
        "speed": Figure(2.0, "m/s", at_least=2.0),
        "slow": Figure(1.9, "x", at_least=2.0),
        "times": Figure(7.12346, "x"),
        "b": Figure(None, "x", absent="no GPU"),
        "c": Figure(None, "x", at_most=1.0, absent=FULL_ONLY),
    }
    assert [figure.met for figure in figures.values()] == [True, False, True, False, None, None, None]
    finish(values, units, **options)
    *shown, last = capsys.readouterr().out.splitlines()
    assert read(last) == figures
    ends = [line.split(maxsplit=1)[1] for line in shown]
    assert ends == ["1", "3", "2", "1.9", "7.123", "no GPU", FULL_ONLY]


@pytest.mark.parametrize(
    ("values", "units", "message"),
    [
        ({"b": None}, {"*": "s"}, "'b' has no value"),
        ({"a": 1.0}, {"*": "s"}, "'c' has no value"),
        ({"a": 1.0}, {"b": "s"}, "'a' has no unit"),
    ],
)
def test_no_figure_is_missing_in_silence(
    values: dict[str, float | None], units: dict[str, str], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        figures_of(values, units, at_most={"c": 1.0})


def test_figures_beside_their_targets() -> None:
    values = {"fast": 1.0, "slow": 3.0, "plain": 5.0}
    all_ran = [
        ran("x", figures_of(values, {"*": "s"}, at_most={"fast": 2.0, "slow": 2.0})),
        ran("broken", {}, "it ended | <b>"),
        ran("g", figures_of({"gpu": None}, {"*": "s"}, at_most={"gpu": 1.0}, absent={"*": "no GPU"})),
    ]
    text = page_of(*all_ran)
    for part in (
        "| x | `slow` | 3 s | at most 2 s |\n",
        "| `python benchmarks/x.py` | What it is about. | 1 of 2 targets met | 12 s |\n",
        "| failed: it ended \\| &lt;b> |",
        "| 0 of 0 targets met, 1 not measured: no GPU |",
        "Abacus\\|9",
        "2031-05-06",
    ):
        assert part in text
    assert "fast" not in text and "plain" not in text and "**" not in text
    assert "**A loaded machine**: before the first benchmark began, 5.2" in page_of(all_ran[0], load=5.2)
    assert table(all_ran).splitlines() == [
        "benchmark,figure,measured,target,met",
        "x,fast,1 s,at most 2 s,met",
        "x,slow,3 s,at most 2 s,not met",
        "x,plain,5 s,,",
        "g,gpu,not measured: no GPU,at most 1 s,",
    ]


ENDS = {
    "good": 'print("words")\nprint(\'{"figures": {"a": {"value": 3.0, "unit": "s", "at_most": 1.0}}}\')',
    "crash": 'import sys\nraise SystemExit(f"the disk is full {sys.argv[1:]}")',
    "odd": 'print(\'{"figures": {"a": 1.0}}\')',
    "silent": 'print("no result")',
    "slow": "import time\ntry:\n    print('begun', flush=True)\n    time.sleep(1000)\n"
    "finally:\n    print('tidied', flush=True)",
}


@pytest.fixture
def scripts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A tree with benchmarks that end in these ways; the folder of its logs."""
    (tmp_path / "benchmarks").mkdir()
    for name, code in ENDS.items():
        text = f'"""About {name},\nin words.\n\nMore.\n"""\n{code}\n'
        (tmp_path / "benchmarks" / f"{name}.py").write_text(text)
    for name, path in {"ROOT": "", "LOGS": "logs", "DOCS": "docs"}.items():
        monkeypatch.setattr(summary, name, tmp_path / path)
    monkeypatch.setattr(summary, "LIMIT", 12.0)
    return tmp_path / "logs"


def test_a_failing_one_does_not_stop_the_others(
    scripts: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    wait = subprocess.Popen.wait

    def passed(process: "subprocess.Popen[bytes]", timeout: float | None = None) -> int:
        """The limit of time has passed for the slow one as soon as it has begun, for the others never."""
        if timeout == 12.0 and "slow" in str(process.args):
            until("it has begun", lambda: "begun" in (scripts / "slow.log").read_text())
            raise subprocess.TimeoutExpired("slow", timeout)
        return wait(process)

    monkeypatch.setattr(subprocess.Popen, "wait", passed)
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # as in the background of a shell
    try:
        assert summary.main([]) == 1
    finally:
        signal.signal(signal.SIGINT, before)
    assert "tidied" in (scripts / "slow.log").read_text()  # it was interrupted before it was killed
    said = capsys.readouterr().out
    assert "\n[2/5] good ... " in said and "s: 0 of 1 targets met\n" in said
    assert "crash.log, the output of crash, which failed:\nthe disk is full []\n" in said
    assert "the output of good" not in said
    assert said.endswith("5 benchmarks, failed: crash, odd, silent, slow\n")
    text = (summary.DOCS / "benchmarks.md").read_text()
    assert "| About good, in words. |" in text
    assert "| good | `a` | 3 s | at most 1 s |\n" in text
    assert "| failed: it ended with exit code 1: the disk is full [] |" in text
    assert "| failed: not a benchmark's last line" in text
    assert "| failed: it took longer than 12 s and was ended |" in text
    assert "\ngood,a,3 s,at most 1 s,not met\n" in (summary.DOCS / "benchmarks.csv").read_text()


def test_the_quick_form_is_passed_on_and_writes_no_page(
    scripts: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert summary.main(["--quick", "crash", "good"]) == 1
    assert "the disk is full ['--quick']" in capsys.readouterr().out
    assert summary.main(["--quick", "good"]) == 0
    assert not summary.DOCS.exists() and not list(scripts.glob("*.md"))


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_every_script_ends_with_such_a_line(path: Path) -> None:
    text = path.read_text()
    assert "finish(" in text, "it prints no last line"
    assert "arguments(" in text  # --quick
