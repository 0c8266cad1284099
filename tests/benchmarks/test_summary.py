"""All benchmarks on one page: the form of their last lines, the page made of them, and a run that meets failures."""

import ast
import importlib
import io
import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from matplotlib.image import imread

from benchmarks.summary import __main__ as command
from benchmarks.summary.form import FULL_ONLY, Figure, Result, read, result, skipped
from benchmarks.summary.page import Measured, number, page, table, tally
from benchmarks.summary.plots import bars, curves, drawings
from benchmarks.summary.running import Ran, first_sentence, run
from tests.waiting import CEILING_SECONDS, until

SCRIPTS = sorted((Path(__file__).parents[2] / "benchmarks").glob("*.py"))
MACHINE = {"Processor": "Abacus|9", "Threads": "2", "GPU": "none"}


def ran(found: Result | None, failure: str = "") -> Ran:
    name = found.name if found else "broken"
    return Ran(name, f"python benchmarks/{name}.py", "What it is about.", 12.4, found, failure)


def measured(*all_ran: Ran, load: float = 0.1) -> Measured:
    return Measured("2031-05-06", MACHINE, {"Python": "3.11.7"}, load, all_ran, {"p/targets.png": "Bars"})


class TestForm:
    def test_patterns_give_units_and_targets(self) -> None:
        found = result(
            "x",
            {"a_seconds": 1.0, "b_seconds": 3.0, "speed": 2.0, "times": 7.123456789},
            {"*_seconds": "s", "speed": "m/s", "*": "x"},
            at_most={"*_seconds": 2.0},
            at_least={"speed": 2.0},
        ).figures
        assert found["a_seconds"] == Figure(1.0, "s", at_most=2.0)
        assert [figure.met for figure in found.values()] == [True, False, True, None]
        assert found["times"].value == 7.12346

    @pytest.mark.parametrize(
        ("figure", "met"),
        [
            (Figure(2.0, at_most=2.0), True),
            (Figure(2.1, at_most=2.0), False),
            (Figure(2.0, at_least=2.0), True),
            (Figure(1.9, at_least=2.0), False),
            (Figure(1.5, at_most=2.0, at_least=1.0), True),
            (Figure(0.5, at_most=2.0, at_least=1.0), False),
            (Figure(None, at_most=2.0, absent="no GPU"), None),
            (Figure(3.0), None),
        ],
    )
    def test_met(self, figure: Figure, met: bool | None) -> None:
        assert figure.met is met

    def test_what_is_not_measured_says_why(self) -> None:
        found = result(
            "x", {"a": 1.0, "b": None}, {"*": "s"}, at_most={"c": 1.0}, absent={"b": "no GPU"}, quick=True
        )
        assert found.figures["b"].absent == "no GPU"
        assert found.figures["c"] == Figure(None, "s", at_most=1.0, absent=FULL_ONLY)

    def test_no_figure_is_missing_in_silence(self) -> None:
        with pytest.raises(ValueError, match="'b' has no value"):
            result("x", {"b": None}, {"*": "s"})
        with pytest.raises(ValueError, match="'c' has no value"):
            result("x", {"a": 1.0}, {"*": "s"}, at_most={"c": 1.0})
        with pytest.raises(ValueError, match="'a' has no unit"):
            result("x", {"a": 1.0}, {"b": "s"})

    def test_a_line_is_read_back(self) -> None:
        for one in (
            result("x", {"a": 1.0, "b": None}, {"*": "s"}, at_least={"a": 2.0}, absent={"*": "no GPU"}),
            skipped("y", "needs root", quick=True),
        ):
            assert read(one.line()) == one
        assert json.loads(result("x", {"a": 1.0}, {"*": "s"}, at_most={"a": 0.5}).line())["figures"]["a"] == {
            "value": 1.0,
            "unit": "s",
            "at_most": 0.5,
            "met": False,
        }

    @pytest.mark.parametrize(
        "line",
        [
            *("", "done", "[]", "{}", '{"name": "x", "quick": false, "skipped": "", "figures": {}}'),
            '{"name": "x", "quick": false, "skipped": "", "figures": {"a": 1.0}}',
            '{"name": "x", "quick": false, "skipped": "", "figures": {"a": {"value": "1", "unit": "s"}}}',
            '{"name": "x", "quick": false, "skipped": "", "figures": {"a": {"value": NaN, "unit": "s"}}}',
        ],
    )
    def test_other_lines_are_refused(self, line: str) -> None:
        with pytest.raises(ValueError, match="last line"):
            read(line)


class TestPage:
    def test_figures_beside_their_targets(self) -> None:
        values = {"fast": 1.0, "slow": 3.0, "plain": 5.0}
        one = ran(result("x", values, {"*": "s"}, at_most={"fast": 2.0, "slow": 2.0}))
        text = page(measured(one))
        assert "| x | `slow` | 3 s | at most 2 s |\n" in text
        assert "fast" not in text and "plain" not in text
        assert "| `python benchmarks/x.py` | What it is about. | 1 of 2 targets met | 12 s |\n" in text
        assert table([one]).splitlines() == [
            "benchmark,figure,measured,target,met",
            "x,fast,1 s,at most 2 s,met",
            "x,slow,3 s,at most 2 s,not met",
            "x,plain,5 s,,",
        ]
        assert "Abacus\\|9" in text
        assert "2031-05-06" in text
        assert "![Bars](p/targets.png)" in text

    def test_what_did_not_run_says_why(self) -> None:
        absent = result("g", {"gpu": None}, {"*": "s"}, at_most={"gpu": 1.0}, absent={"*": "no GPU"})
        text = page(measured(ran(skipped("x", "needs root")), ran(None, "it ended | <b>"), ran(absent)))
        assert "| cannot run here: needs root |" in text
        assert "| failed: it ended \\| &lt;b> |" in text
        assert "| 0 of 0 targets met, 1 not measured: no GPU |" in text
        assert table([ran(absent)]).endswith("\ng,gpu,not measured: no GPU,at most 1 s,\n")
        assert tally(ran(absent)) == "0 of 0 targets met, 1 not measured: no GPU"

    def test_says_what_makes_it_doubtful(self) -> None:
        one = ran(result("x", {"a": 1.0}, {"*": "s"}))
        assert "**" not in page(measured(one))
        assert "**A loaded machine**: before the first benchmark began, 5.2" in page(measured(one, load=5.2))

    @pytest.mark.parametrize(
        ("value", "text"),
        [
            (0.0, "0"),
            (1.23456, "1.235"),
            (151936, "151,936"),
            (0.000123456, "0.0001235"),
            (2e-7, "2e-07"),
        ],
    )
    def test_numbers(self, value: float, text: str) -> None:
        assert number(value) == text


class TestDrawings:
    FOUND = result(
        "x",
        {
            "seconds_10": 1.0,
            "seconds_1000": 4.0,
            "seconds_100": 2.0,
            "calls_10": 1.0,
            "calls_20": 2.0,
            "up": 8.0,
        },
        {"seconds_*": "s", "*": "x"},
        at_most={"seconds_1000": 2.0},
        at_least={"up": 2.0},
    )

    def test_bars_say_how_many_times_better_than_the_target(self) -> None:
        assert [(bar.label, bar.times) for bar in bars([self.FOUND])] == [
            ("x: seconds_1000", 0.5),
            ("x: up", 4.0),
        ]

    def test_curves_are_of_seconds_and_memory_by_size(self) -> None:
        [curve] = curves([self.FOUND])
        assert (curve.label, curve.unit) == ("x: seconds", "s")
        assert curve.points == ((10, 1.0), (100, 2.0), (1000, 4.0))

    def test_pictures_are_the_same_for_the_same_figures(self) -> None:
        found = drawings([self.FOUND])
        assert found == drawings([self.FOUND])
        assert set(found) == {"targets.png", "growth.png"}
        for _, content in found.values():
            assert imread(io.BytesIO(content)).shape[1] > 500
            assert len(content) < 150_000

    def test_nothing_measured_draws_nothing(self) -> None:
        assert drawings([skipped("x", "needs root")]) == {}


ENDS = {
    "good": 'print("words")\nprint(\'{"name": "good", "quick": false, "skipped": "", '
    '"figures": {"a": {"value": 3.0, "unit": "s", "at_most": 1.0}}}\')',
    "crash": 'raise SystemExit("the disk is full")',
    "silent": 'print("no result")',
    "slow": "import time\ntry:\n    print('begun', flush=True)\n    time.sleep(1000)\n"
    "finally:\n    print('tidied', flush=True)",
}


@pytest.fixture
def scripts(tmp_path: Path) -> dict[str, Path]:
    folder = tmp_path / "benchmarks"
    folder.mkdir()
    for name, code in ENDS.items():
        (folder / f"{name}.py").write_text(f'"""About {name},\nin words.\n\nMore.\n"""\n{code}\n')
    return {name: folder / f"{name}.py" for name in sorted(ENDS)}


def test_a_failing_one_does_not_stop_the_others(
    scripts: dict[str, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(command, "LOGS", tmp_path / "logs")
    wait = subprocess.Popen.wait

    def passed(process: "subprocess.Popen[bytes]", timeout: float | None = None) -> int:
        """The limit of time has passed for the slow one as soon as it has begun, for the others never."""
        if timeout == 12.0 and "slow" in str(process.args):
            until("it has begun", lambda: "begun" in (tmp_path / "logs" / "slow.log").read_text())
            raise subprocess.TimeoutExpired("slow", timeout)
        return wait(process)

    monkeypatch.setattr(subprocess.Popen, "wait", passed)
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # as in the background of a shell
    try:
        found = {one.name: one for one in command.all_of(scripts, quick=False, limit=12.0)}
    finally:
        signal.signal(signal.SIGINT, before)
    assert list(found) == ["crash", "good", "silent", "slow"]
    assert found["crash"].failure == "it ended with exit code 1: the disk is full"
    assert found["silent"].failure.startswith("not a benchmark's last line")
    assert found["slow"].failure == "it took longer than 12 s and was ended"
    assert "tidied" in (tmp_path / "logs" / "slow.log").read_text()  # it was interrupted before it was killed
    good = found["good"].result
    assert good is not None and good.figures["a"].met is False
    assert found["good"].about == "About good, in words."
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].startswith("[2/4] good ... ") and lines[1].endswith("s: 0 of 1 targets met")
    assert "failed: it took longer" in page(measured(*found.values()))


@pytest.mark.parametrize(("ends", "code"), [(["good"], 0), (["good", "crash"], 1)])
def test_the_command_writes_the_page(
    ends: list[str], code: int, scripts: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in set(scripts) - set(ends):
        scripts[name].unlink()
    monkeypatch.setattr(command, "ROOT", tmp_path)
    monkeypatch.setattr(command, "LOGS", tmp_path / "logs")
    stale = tmp_path / "docs" / "pictures" / "benchmarks" / "old.png"
    stale.parent.mkdir(parents=True)
    stale.touch()
    assert command.main(["--out", str(tmp_path / "docs")]) == code
    text = (tmp_path / "docs" / "benchmarks.md").read_text()
    assert "| good | `a` | 3 s | at most 1 s |\n" in text
    assert ("the disk is full" in text) == ("crash" in ends)
    assert "](pictures/benchmarks/targets.png)" in text
    assert "\ngood,a,3 s,at most 1 s,not met\n" in (tmp_path / "docs" / "benchmarks.csv").read_text()
    assert [path.name for path in stale.parent.iterdir()] == ["targets.png"]


def test_the_quick_form_writes_no_page_and_prints_the_output_of_what_failed(
    scripts: dict[str, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    scripts["slow"].unlink()
    monkeypatch.setattr(command, "ROOT", tmp_path)
    monkeypatch.setattr(command, "LOGS", tmp_path / "logs")
    monkeypatch.setattr(command, "DOCS", tmp_path / "docs")
    assert command.main(["--quick"]) == 1
    assert not list(tmp_path.rglob("benchmarks.md")) and not (tmp_path / "docs").exists()
    said = capsys.readouterr().out
    for name, output in (("crash", "the disk is full"), ("silent", "no result")):
        assert f"{name}.log, the output of {name}, which failed:\n{output}\n" in said
    assert "the output of good" not in said
    assert said.endswith("3 benchmarks, failed: crash, silent\n")
    assert command.main(["--quick", "good"]) == 0
    assert not list(tmp_path.rglob("benchmarks.md"))


def test_quick_is_passed_on(tmp_path: Path) -> None:
    script = tmp_path / "echo.py"
    script.write_text('"""Says."""\nimport sys\nraise SystemExit(str(sys.argv[1:]))\n')
    assert run(script, True, CEILING_SECONDS, tmp_path / "log").failure.endswith("['--quick']")
    assert run(script, False, CEILING_SECONDS, tmp_path / "log").failure.endswith("[]")


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_every_script_ends_with_such_a_line(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert f'"{path.stem}"' in text and ".line()" in text, "it prints no `result(...).line()`"
    assert "from summary.form import" in text
    assert "--quick" in text
    assert first_sentence(path).endswith(".")


def programs(path: Path) -> list[str]:
    """The Python programs in a script's strings, which no linter reads."""
    strings = [
        node.value
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    ]
    return [text for text in strings if text.startswith(("\nimport ", "\nfrom "))]


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_programs_in_strings_know_their_names(path: Path) -> None:
    for text in programs(path):
        ruff = [sys.executable, "-m", "ruff", "check", "--isolated", "--quiet", "--select=F", "-"]
        checked = subprocess.run(ruff, input=text, capture_output=True, text=True, check=False)
        assert checked.returncode == 0, checked.stdout + checked.stderr
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.ImportFrom) and node.module:
                for name in node.names:
                    module = importlib.import_module(node.module)
                    assert hasattr(module, name.name) or importlib.import_module(f"{node.module}.{name.name}")


def test_programs_in_strings_are_found() -> None:
    assert {path.stem: len(programs(path)) for path in SCRIPTS if programs(path)} == {
        **{"launch": 1, "plan": 2, "report": 1, "scale": 2, "tracking_read": 3},
    }
