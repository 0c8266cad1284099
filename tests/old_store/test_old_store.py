"""A store and runs folder of commit 3df9b01: read, continued and reported by today's code, with equal numbers.

How they were made is in README.md.
"""

import csv
import json
import math
import sqlite3
import subprocess
import sys
import tarfile
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.old_store.make import ARCHIVE, SETTINGS, points

HERE = Path(__file__).parent
# Keys that were added since, with the values that keep the old runs' ids.
CHOSEN = ["./sweep.yaml", *SETTINGS, "model.warm_start.target_accuracy=null"]
MOVED = (("runs", "artifact_uri"), ("experiments", "artifact_location"))
# Processors round differently, and training amplifies that. So the numbers of the first steps behind the checkpoint are
# compared, with this relative tolerance; of the others, that they are there.
NEAR, STEPS = 1e-3, 3
OF_ANY_MACHINE = (
    "run_id",
    "method",
    "model",
    "seed",
    "state",
)  # columns of `runs.csv` for the run that continues


@dataclass(frozen=True)
class Seen:
    """What was expected, and what each command showed. `before` and `after`: the store's points by `make.points`."""

    expected: dict[str, Any]
    plan: dict[str, Any]
    status: dict[str, Any]
    before: dict[str, float]
    launched: str
    continued_from: int
    after: dict[str, float]
    rows: list[dict[str, str]]
    planned_again: dict[str, Any]


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> Seen:
    folder = tmp_path_factory.mktemp("old")
    with tarfile.open(HERE / ARCHIVE) as archive:
        archive.extractall(folder, filter="data")
    (folder / "sweep.yaml").write_bytes((HERE / "sweep.yaml").read_bytes())
    expected = json.loads((folder / "expected.json").read_text(encoding="utf-8"))
    with closing(sqlite3.connect(folder / "mlflow.db")) as store:
        for table, column in MOVED:
            move = f"UPDATE {table} SET {column} = replace({column}, ?, ?)"
            store.execute(move, (expected["made_in"], str(folder)))
        store.commit()

    def cppo(*words: str) -> str:
        command = [sys.executable, "-m", "cppo_lab.cli", *words]
        ended = subprocess.run(command, cwd=folder, capture_output=True, text=True)
        assert ended.returncode == 0, ended.stdout + ended.stderr
        return ended.stdout if "--json" in words else ended.stderr

    plan, status = (json.loads(cppo(command, *CHOSEN, "--json")) for command in ("plan", "status"))
    before = points(folder / "mlflow.db")
    launched = cppo("launch", *CHOSEN, "launcher=inline")
    cppo("report", *CHOSEN)
    spools = sorted(folder.glob(f"runs/{expected['rows'][2]['run_id']}/spool/*.jsonl"))
    first = min(record["step"] for record in map(json.loads, spools[-1].open()) if "metrics" in record)
    with (folder / "reports/build/sweep/runs.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    again = json.loads(cppo("plan", *CHOSEN, "--json"))
    after = points(folder / "mlflow.db")
    return Seen(expected, plan, status, before, launched, first, after, rows, again)


def test_the_plan_finds_the_old_runs_by_their_ids(seen: Seen) -> None:
    grpo, dppo, cppo = (row["run_id"] for row in seen.expected["rows"])
    states = {run["run_id"]: run["state"] for run in seen.plan["runs"]}
    assert states == {grpo: "done", dppo: "done", cppo: "partial"}


def test_status_shows_steps_and_scores(seen: Seen) -> None:
    found = {run["rule"]: run for run in seen.status["runs"]}
    for row in seen.expected["rows"][:2]:
        run = found[row["rule"]]
        assert (run["state"], run["step"]) == ("done", 40)
        assert run["score"] == pytest.approx(float(row["last"]) / 100, abs=1e-6)
    assert found["cppo"]["state"] == "partial" and found["cppo"]["step"] < 40


def test_the_killed_run_continues_to_the_numbers_of_the_whole_one(seen: Seen) -> None:
    assert "3 runs (2 done, 1 partial); 1 to train" in seen.launched
    assert seen.continued_from > 1  # from its checkpoint, not from the start
    expected = seen.expected["points"]
    assert 0 < len(seen.before) < len(expected)
    assert seen.after.keys() >= expected.keys()
    compared = 0
    for name, value in expected.items():
        step = int(name.split()[-1])
        if name in seen.before:
            assert seen.after[name] == seen.before[name] == value, name
        elif step < seen.continued_from + STEPS:
            compared += 1
            assert math.isclose(seen.after[name], value, rel_tol=NEAR, abs_tol=1e-6), name
    assert compared > 10


def test_the_report_has_the_old_scores(seen: Seen) -> None:
    assert [row["method"] for row in seen.rows] == ["grpo", "dppo", "cppo"]
    for row, old in zip(seen.rows, seen.expected["rows"], strict=True):
        known = old.keys() - {"mlflow_run_id"} if old["rule"] != "cppo" else OF_ANY_MACHINE
        assert {key: row[key] for key in known} == {key: old[key] for key in known}
    assert len({row["last"] for row in seen.rows}) == 3  # equal by chance is no evidence


def test_nothing_is_left_to_train(seen: Seen) -> None:
    assert [run["state"] for run in seen.planned_again["runs"]] == ["done"] * 3
