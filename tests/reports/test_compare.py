"""Comparing two reports by the records that they leave."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from mlflow import MlflowClient

from cppo_lab import schema
from cppo_lab.reports.build import build_report
from cppo_lab.reports.saved import RECORD, compare, compare_lines, read_record
from tests.conftest import Command, user_error
from tests.reports.conftest import request_in, svg_alone


@pytest.fixture(scope="module")
def made(demo_store: Path, shared_path: Path) -> Path:
    """A folder with two reports: of three runs of the sweep, and of all four with another score."""
    whole = replace(request_in(shared_path, demo_store), name="main")
    folder, client = whole.out.parent, MlflowClient(whole.uri)
    few = replace(whole.sweeps[0], expected=whole.sweeps[0].expected[:3])
    with svg_alone():
        build_report(replace(whole, sweeps=(few,), partial=True, out=folder / "a"))
    (run,) = client.search_runs(["1"], f"tags.`{schema.TAG_RUN_ID}` = 'cppo-0'")
    for name, value in (("chain24", 0.59), ("chain25", 0.6), ("chain26", 0.61)):
        client.log_metric(run.info.run_id, schema.validation_metric(name, 8), value, 100, 40)
    with svg_alone():
        build_report(replace(whole, out=folder / "b"))
    return folder


@pytest.fixture
def two(made: Path, tmp_path: Path) -> tuple[Path, Path]:
    """Copies of them, to be changed."""
    return shutil.copytree(made / "a", tmp_path / "a"), shutil.copytree(made / "b", tmp_path / "b")


def spoil(folder: Path, change: Callable[[Any], object]) -> None:
    record = json.loads((folder / RECORD).read_text())
    change(record)
    (folder / RECORD).write_text(json.dumps(record))


def compared(before: Path, after: Path) -> tuple[dict[str, Any], list[str]]:
    """What differs, and the lines that say so."""
    result = compare(read_record(before), read_record(after), ("a", "b"))
    return result, compare_lines(result)


def test_a_record_gives_back_what_was_scored(made: Path) -> None:
    saved = read_record(made / "b")
    assert (saved.kind, saved.name, saved.core) == ("sweep", "main", "mini")
    cell = saved.cells["main", "mini_base", "cppo"]
    assert (cell["score"], cell["components"]["chain24"]) == pytest.approx((0.56, 0.55))
    assert (cell["runs"], cell["state"], cell["provisional"]) == (2, "scored", False)
    run = saved.runs["main", "cppo on mini_base, seed 0"]
    assert (run["run_id"], run["step"], run["score"]) == ("cppo-0", 40, pytest.approx(0.6))
    best = next(verdict for verdict in saved.claims.values() if verdict["claim"] == "cppo_best")
    assert best["outcome"] == "undecided" and best["low"] < best["estimate"]
    # Of the last part of the window: CPPO's changed seed and the other, less those of GRPO.
    cppo, grpo = (0.5 * 0.8 + 0.6) / 2 + 0.52 * 0.85, (0.30 + 0.32) * 0.85
    assert best["estimate"] == pytest.approx((cppo - grpo) / 2)
    assert set(saved.files) == {path.name for path in (made / "b").iterdir()} - {RECORD, ".cppo-report"}


def test_what_differs_is_found(made: Path) -> None:
    found, lines = compared(made / "a", made / "b")
    back, _ = compared(made / "b", made / "a")
    seeds = [f"cppo on mini_base, seed {seed}" for seed in (0, 1)]
    for side, sign, added in ((found, 1, "added"), (back, -1, "removed")):
        assert [(run["run"], run["what"], run["points"]) for run in side["runs"]] == [
            (seeds[0], "changed", pytest.approx(sign * 10.0)),
            (seeds[1], added, None),
        ]
        assert [cell["points"] for cell in side["cells"]] == [pytest.approx(sign * 6.0)]
    assert not found["same"] and found["verdicts"] == []  # one seed and two decide nothing
    assert found["figures"] == {"figure_curves": "changed", "figure_diagnostics": "changed"}
    text = "\n".join(lines)
    for line in (
        f"added: {seeds[1]} in main (scored)",
        f"changed: {seeds[0]} in main (scored, +10.00 points)",
        "main: cppo on mini_base: 50.00 -> 56.00 (+6.00), 1 -> 2 runs, chain24 +6.00",
        "changed: figure_curves",
    ):
        assert line in text, line
    same, lines = compared(made / "a", made / "a")
    assert same["same"] and lines == ["a and b say the same."]


def test_of_another_sweep_the_runs_are_counted(two: tuple[Path, Path]) -> None:
    spoil(two[1], lambda record: record["sweeps"][0].update(name="other"))
    found, lines = compared(*two)
    assert found["sweeps"] == {"main": "removed", "other": "added"} and len(found["runs"]) == 7
    at = lines.index("Sweeps: 2")
    assert lines[at + 1 : at + 3] == ["  removed: main, 3 runs", "  added: other, 4 runs"]
    assert not any(line.startswith(("Runs: ", "Cells ")) for line in lines)


def test_another_verdict_is_a_difference(two: tuple[Path, Path]) -> None:
    def decide(record: Any) -> None:
        (best,) = (verdict for verdict in record["verdicts"] if verdict["claim"] == "cppo_best")
        best.update(outcome="supported", estimate=0.125)

    spoil(two[1], decide)
    found, lines = compared(*two)
    (verdict,) = found["verdicts"]
    assert (verdict["before"], verdict["after"]) == ("undecided", "supported")
    assert verdict["estimate_after"] == pytest.approx(12.5)
    (line,) = [line for line in lines if "CPPO is best" in line]
    assert line.startswith("  CPPO is best in every setting: undecided -> supported (+")
    assert line.endswith("-> +12.50 points)")
    shutil.copytree(two[1], two[0], dirs_exist_ok=True)
    spoil(two[1], lambda record: record["verdicts"][0].update(exploratory=True))
    for folder, sweep in zip(two, ("", "main "), strict=True):  # so a study calls a hypothesis of its sweep
        spoil(
            folder, lambda record, sweep=sweep: record["verdicts"][0].update(claim=f"hypothesis {sweep}rate")
        )
    [verdict] = compared(*two)[0]["verdicts"]
    assert verdict["after"] == f"{verdict['before']} (exploratory)"


def test_a_ratio_of_errors_is_no_number_of_points(two: tuple[Path, Path]) -> None:
    for folder, outcome, ratio in zip(two, ("supported", "undecided"), (0.842, 0.97), strict=True):
        changes = {"outcome": outcome, "estimate": ratio, "unit": "ratio of errors"}
        spoil(folder, lambda record, changes=changes: record["verdicts"][0].update(changes))
    found, lines = compared(*two)
    assert found["verdicts"][0]["estimate_after"] == 0.97
    assert "(0.842 -> 0.970 ratio of errors)" in "".join(lines)


@pytest.mark.parametrize("name", ["demo", "./demo.yaml"])
def test_the_command(made: Path, cppo: Command, name: str) -> None:
    shutil.copytree(made / "a", "reports/build/demo")
    found = cppo(f"compare {name}", str(made / "b"), "--json", code=1).answer
    assert (found["same"], [cell["variant"] for cell in found["cells"]]) == (False, ["cppo"])


@pytest.mark.parametrize(
    "of_sweep, change, words",
    [("cells", {"score": {"mean": 1e999, "n": 1}}, "finite number"), ("runs", {"step": -1}, "step=-1")],
)
def test_nothing_in_a_record_is_trusted(
    two: tuple[Path, Path], of_sweep: str, change: dict[str, Any], words: str
) -> None:
    """Further: tests/hostile/folders.py."""
    spoil(two[0], lambda record: record["sweeps"][0][of_sweep][0].update(change))
    with user_error(words):
        read_record(two[0])
    with two[0].joinpath(RECORD).open("ab") as record:
        record.truncate(2**26 + 1)
    with user_error("more than the 67108864 bytes allowed"):
        read_record(two[0])
