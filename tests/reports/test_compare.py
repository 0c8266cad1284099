"""Comparing two reports by the records that they leave."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from mlflow import MlflowClient

from cppo_lab import schema
from cppo_lab.cli import main
from cppo_lab.errors import UserError
from cppo_lab.reports.build import build_report
from cppo_lab.reports.saved import RECORD, compare, compare_lines, read_record
from tests.reports.conftest import request_in


@pytest.fixture(scope="module")
def made(demo_store: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with two reports: of three runs of the sweep, and of all four with another score."""
    demo_request = request_in(tmp_path_factory.mktemp("made"), demo_store)
    first = replace(demo_request, name="main", expected=demo_request.expected[:3], partial=True)
    build_report(replace(first, out=demo_request.out.parent / "a"))
    client = MlflowClient(demo_request.uri)
    (run,) = client.search_runs(["1"], f"tags.`{schema.TAG_RUN_ID}` = 'cppo-0'")
    for offset, name in enumerate(("chain24", "chain25", "chain26")):
        metric = schema.validation_metric(name, 8)
        client.log_metric(run.info.run_id, metric, 0.6 + 0.01 * (offset - 1), 100, 40)
    build_report(replace(demo_request, name="main", out=demo_request.out.parent / "b"))
    return demo_request.out.parent


@pytest.fixture
def two(made: Path, tmp_path: Path) -> tuple[Path, Path]:
    """Copies of them, to be changed."""
    for name in ("a", "b"):
        shutil.copytree(made / name, tmp_path / name)
    return tmp_path / "a", tmp_path / "b"


def test_a_record_gives_back_what_was_scored(two: tuple[Path, Path]) -> None:
    saved = read_record(two[1])
    assert (saved.kind, saved.name, saved.core) == ("sweep", "main", "mini")
    cell = saved.cells["main", "mini_base", "cppo"]
    assert cell["score"] == pytest.approx((0.60 + 0.52) / 2)
    assert cell["components"]["chain24"] == pytest.approx((0.59 + 0.51) / 2)
    assert (cell["runs"], cell["expected"], cell["state"], cell["provisional"]) == (2, 2, "scored", False)
    run = saved.runs["main", "cppo on mini_base, seed 0"]
    assert (run["run_id"], run["step"], run["score"]) == ("cppo-0", 40, pytest.approx(0.6))
    verdicts = {one["claim"]: one for one in saved.verdicts.values()}
    assert list(verdicts)[:3] == ["cppo_mean", "cppo_each", "cppo_best"]
    assert set(verdicts) >= {"cppo_widens", "cppo_horizon", "cispo_collapse", "prefix_early"}
    verdict = verdicts["cppo_best"]
    assert verdict["outcome"] == "undecided"
    ours, theirs = (
        ((0.5 * 0.8 + 0.6) / 2, 0.52 * 0.85),
        (0.30 * 0.85, 0.32 * 0.85),
    )  # of the last part of the window
    assert verdict["estimate"] == pytest.approx((sum(ours) - sum(theirs)) / 2)
    assert verdict["low"] is not None
    assert verdict["low"] < verdict["estimate"]
    assert set(saved.files) == {path.name for path in two[1].iterdir()} - {RECORD, ".cppo-report"}


def test_what_differs_is_found(two: tuple[Path, Path]) -> None:
    found = compare(*map(read_record, two), ("a", "b"))
    assert not found["same"]
    runs = {(one["run"], one["what"]): one["points"] for one in found["runs"]}
    assert runs == {
        ("cppo on mini_base, seed 0", "changed"): pytest.approx(10.0),
        ("cppo on mini_base, seed 1", "added"): None,
    }
    (cell,) = found["cells"]
    assert (cell["variant"], cell["runs_before"], cell["runs_after"]) == ("cppo", 1, 2)
    assert (cell["score_before"], cell["score_after"]) == (pytest.approx(50.0), pytest.approx(56.0))
    assert cell["points"] == pytest.approx(6.0)
    assert cell["components"] == {name: pytest.approx(6.0) for name in ("chain24", "chain25", "chain26")}
    assert found["verdicts"] == []  # one seed and two decide nothing
    assert found["figures"] == {"figure_curves": "changed", "figure_diagnostics": "changed"}
    text = "\n".join(compare_lines(found))
    for line in (
        "added: cppo on mini_base, seed 1 in main (scored)",
        "changed: cppo on mini_base, seed 0 in main (scored, +10.00 points)",
        "main: cppo on mini_base: 50.00 -> 56.00 (+6.00), 1 -> 2 runs, chain24 +6.00",
        "changed: figure_curves",
    ):
        assert line in text, line


def test_another_verdict_is_a_difference(two: tuple[Path, Path]) -> None:
    record = json.loads((two[1] / RECORD).read_text())
    (best,) = (one for one in record["verdicts"] if one["claim"] == "cppo_best")
    best.update(outcome="supported", estimate=0.125)
    (two[1] / RECORD).write_text(json.dumps(record))
    found = compare(*map(read_record, two), ("a", "b"))
    (verdict,) = found["verdicts"]
    assert (verdict["before"], verdict["after"]) == ("undecided", "supported")
    assert verdict["estimate_after"] == pytest.approx(12.5)
    (line,) = [line for line in compare_lines(found) if "CPPO is best" in line]
    assert line.startswith("  CPPO is best in every setting: undecided -> supported (+")
    assert line.endswith("-> +12.50 points)")


def test_it_turns_around_and_nothing_differs_from_itself(two: tuple[Path, Path]) -> None:
    first, second = map(read_record, two)
    forth, back = compare(first, second, ("a", "b")), compare(second, first, ("b", "a"))
    turned = {"added": "removed", "removed": "added", "changed": "changed"}
    assert [(one["run"], turned[one["what"]]) for one in forth["runs"]] == [
        (one["run"], one["what"]) for one in back["runs"]
    ]
    assert [one["points"] for one in back["cells"]] == [-one["points"] for one in forth["cells"]]
    same = compare(first, first, ("a", "a"))
    assert same["same"]
    assert compare_lines(same) == ["a and a say the same."]


def test_the_command(
    two: tuple[Path, Path],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    before, after = map(str, two)
    assert main(["compare", before, before]) == 0
    assert main(["compare", before, after]) == 1
    capsys.readouterr()
    assert main(["compare", before, after, "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert found["same"] is False
    assert [one["variant"] for one in found["cells"]] == ["cppo"]
    monkeypatch.chdir(tmp_path)
    (tmp_path / "reports" / "build").mkdir(parents=True)
    two[0].rename(tmp_path / "reports" / "build" / "demo")
    assert main(["compare", "demo", after]) == 1
    assert main(["compare", "nothing", after]) == 2
    assert "name the folder of a report" in capsys.readouterr().err


def spoiled(folder: Path, change: object) -> str:
    """The message on a record after `change(record)`."""
    content = json.loads((folder / RECORD).read_text())
    change(content)  # type: ignore[operator]
    (folder / RECORD).write_text(json.dumps(content))
    with pytest.raises(UserError) as error:
        read_record(folder)
    assert "\n" not in str(error.value)
    return str(error.value)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda record: record.update(title=3), "has title=3: Input should be a valid string"),
        (lambda record: record["sweeps"].append("x"), "has sweeps.1='x'"),
        (
            lambda record: record["sweeps"][0]["cells"][0].update(score={"mean": "high", "n": 1}),
            "valid number",
        ),
        (
            lambda record: record["sweeps"][0]["cells"][0].update(score={"mean": 1e999, "n": 1}),
            "finite number",
        ),
        (lambda record: record["sweeps"][0]["runs"][0].update(step=-1), "step=-1"),
        (lambda record: record["verdicts"][0].update(outcome=None), "outcome=None"),
        (lambda record: record["figures"].update(figure_1=[]), "valid string"),
    ],
)
def test_nothing_in_a_record_is_trusted(two: tuple[Path, Path], change: object, words: str) -> None:
    assert words in spoiled(two[0], change)


def test_control_characters_do_not_reach_the_terminal(two: tuple[Path, Path]) -> None:
    record = json.loads((two[1] / RECORD).read_text())
    record["sweeps"][0]["runs"][0]["key"] = "x\x1b[2J\nforged: line"
    (two[1] / RECORD).write_text(json.dumps(record))
    lines = compare_lines(compare(*map(read_record, two), ("a", "b")))
    assert any("x\\x1b[2J\\nforged" in line for line in lines)
    assert all(line.isprintable() for line in lines)
