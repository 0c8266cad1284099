"""Stores and runs folders of earlier commits: read, continued and reported by today's code, with equal numbers.

How they were made is in README.md.
"""

import contextlib
import io
import json
import math
import sqlite3
import subprocess
import sys
import tarfile
from collections.abc import Collection, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from cppo_lab.cli import main
from tests.old_store.make import HERE, OLDEST, STUDY, TABULAR, embedded, points, restore, table, trials

LATER = "37ff870"
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
)  # columns of `runs.csv` for a run that continues
# Of a verdict over runs that continue; `estimate` is compared by itself.
STATED = ("claim", "text", "sweep", "score", "outcome", "provisional", "pairs", "exploratory", "unit")
BATCHES, ENDED, TUNE = ["./exact.yaml", *TABULAR], ["./ended.yaml", *TABULAR], ["./tune.yaml", "core=exact"]
INLINE = "launcher=inline"


@dataclass(frozen=True)
class Old:
    """The unpacked archive of a commit."""

    commit: str
    folder: Path
    expected: dict[str, Any]

    def cppo(self, *words: str, code: int = 0) -> str:
        """What a command prints in the folder: its JSON, or else what it says on standard error."""
        out, err = io.StringIO(), io.StringIO()
        with contextlib.chdir(self.folder), contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            ended = main(list(words))
        assert ended == code, out.getvalue() + err.getvalue()
        return out.getvalue() if "--json" in words else err.getvalue()

    def states(self, command: str, *words: str) -> dict[str, dict[str, Any]]:
        """What `cppo plan` or `cppo status` says of each run, by its id."""
        return {run["run_id"]: run for run in json.loads(self.cppo(command, *words, "--json"))["runs"]}

    def points(self) -> dict[str, float]:
        """The store's points by `make.points`."""
        return points(self.folder / "mlflow.db")

    def spools(self, run_id: str) -> list[Path]:
        """The records of a run's attempts."""
        return sorted((self.folder / "runs" / run_id / "spool").glob("*.jsonl"))

    def recorded(self, run_id: str) -> dict[int, dict[str, float]]:
        """The metrics of each step in the record of a run's last attempt."""
        lines = map(json.loads, self.spools(run_id)[-1].read_text(encoding="utf-8").splitlines())
        return {line["step"]: line["metrics"] for line in lines if "metrics" in line}

    def first_step(self, run_id: str) -> int:
        """The first step in the record of a run's last attempt."""
        return min(self.recorded(run_id))

    def report(self, sweep: str) -> Path:
        """The folder of a report."""
        return self.folder / "reports/build" / sweep


def unpacked(commit: str, folder: Path) -> Old:
    """The archive of a commit, moved to `folder`."""
    with tarfile.open(HERE / f"{commit}.tar.xz") as archive:
        archive.extractall(folder, filter="data")
    for file in HERE.glob("*.yaml"):
        (folder / file.name).write_bytes(file.read_bytes())
    expected = json.loads((folder / "expected.json").read_text(encoding="utf-8"))
    if (dump := folder / "mlflow.json").exists():
        restore(dump.read_text(encoding="utf-8"), folder / "mlflow.db")
    with closing(sqlite3.connect(folder / "mlflow.db")) as store:
        for name, column in MOVED:
            move = f"UPDATE {name} SET {column} = replace({column}, ?, ?)"
            store.execute(move, (expected["made_in"], str(folder)))
        store.commit()
    return Old(commit, folder, expected)


def assert_continued(
    old: Old, before: Mapping[str, float], done: Collection[str], killed: Collection[str]
) -> None:
    """No point of the store `before` has changed, those of all these runs are there, and what the last attempts at the
    killed ones recorded is what was expected.
    """
    after = old.points()
    assert {name: after[name] for name in before} == before
    runs = {*done, *killed}
    expected = {name: value for name, value in old.expected["points"].items() if name.split()[0] in runs}
    assert after.keys() >= expected.keys()
    assert {name: after[name] for name in before.keys() & expected.keys()} == {
        name: expected[name] for name in before.keys() & expected.keys()
    }
    for run_id in killed:
        compared, first = 0, old.first_step(run_id)
        for step in range(first, first + STEPS):
            for key, value in old.recorded(run_id).get(step, {}).items():
                name = f"{run_id} {key} {step}"
                assert after.get(name, value) == before.get(name, value), name
                if name in expected:
                    compared += 1
                    assert math.isclose(value, expected[name], rel_tol=NEAR, abs_tol=1e-6), name
        assert compared > 10


def is_part(recorded: object, shown: object) -> bool:
    """Whether a recorded configuration is what is shown of it today, but for keys that were added since."""
    if isinstance(recorded, dict):
        return isinstance(shown, dict) and all(
            is_part(value, shown.get(key)) for key, value in recorded.items()
        )
    return recorded == shown


@dataclass(frozen=True)
class Seen:
    """What each command showed of the sweep of the embedded core."""

    old: Old
    shown: dict[str, Any]
    plan: dict[str, Any]
    status: dict[str, Any]
    before: dict[str, float]
    launched: str
    rows: list[dict[str, str]]
    planned_again: dict[str, Any]


@pytest.fixture(scope="module", autouse=True)
def _no_store_from_outside() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("MLFLOW_TRACKING_URI", raising=False)
        patch.delenv("OPTUNA_STORAGE", raising=False)
        yield


@pytest.fixture(scope="module", params=[OLDEST, LATER])
def seen(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Seen:
    old = unpacked(request.param, tmp_path_factory.mktemp("old"))
    sweep = embedded(old.commit)
    shown = {run["run_id"]: run["run"] for run in json.loads(old.cppo("show", *sweep, "--json"))["runs"]}
    plan, status = (old.states(command, *sweep) for command in ("plan", "status"))
    before = old.points()
    launched = old.cppo("launch", *sweep, INLINE)
    old.cppo("report", *sweep)
    rows, again = table(old.folder, "sweep"), old.states("plan", *sweep)
    return Seen(old, shown, plan, status, before, launched, rows, again)


def test_the_configurations_are_those_that_were_recorded(seen: Seen) -> None:
    for row in seen.old.expected["rows"]:
        recorded = json.loads((seen.old.folder / "runs" / row["run_id"] / "config.json").read_text())
        assert recorded["rule"]["name"] == row["rule"] and is_part(recorded, seen.shown[row["run_id"]])


def test_the_plan_finds_the_old_runs_by_their_ids(seen: Seen) -> None:
    grpo, dppo, cppo = (row["run_id"] for row in seen.old.expected["rows"])
    states = {run_id: run["state"] for run_id, run in seen.plan.items()}
    assert states == {grpo: "done", dppo: "done", cppo: "partial"}


def test_status_shows_steps_and_scores(seen: Seen) -> None:
    for row in seen.old.expected["rows"][:2]:
        run = seen.status[row["run_id"]]
        assert (run["state"], run["step"]) == ("done", int(row["t_stop"]))
        assert run["score"] == pytest.approx(float(row["last"]) / 100, abs=1e-6)
    row = seen.old.expected["rows"][2]
    killed = seen.status[row["run_id"]]
    assert killed["state"] == "partial" and killed["step"] < int(row["t_stop"])


def test_the_killed_run_continues_to_the_numbers_of_the_whole_one(seen: Seen) -> None:
    assert "3 runs (2 done, 1 partial); 1 to train" in seen.launched
    grpo, dppo, cppo = (row["run_id"] for row in seen.old.expected["rows"])
    # From its checkpoint of step 16, not from the start. What the killed attempt had recorded is not recorded again.
    assert seen.old.first_step(cppo) == {OLDEST: 17, LATER: 21}[seen.old.commit]
    assert seen.before
    assert_continued(seen.old, seen.before, [grpo, dppo], [cppo])


def test_the_report_has_the_old_scores(seen: Seen) -> None:
    assert [row["method"] for row in seen.rows] == ["grpo", "dppo", "cppo"]
    assert_rows(seen.rows, seen.old.expected["rows"], "cppo")
    assert len({row["last"] for row in seen.rows}) == 3  # equal by chance is no evidence


def assert_rows(rows: list[dict[str, str]], expected: list[dict[str, str]], continued: str) -> None:
    """The rows of `runs.csv` are the expected ones; of the rule that was `continued`, as far as on any machine."""
    for row, old in zip(rows, expected, strict=True):
        columns = old.keys() - {"mlflow_run_id"} if old["rule"] != continued else OF_ANY_MACHINE
        assert {key: row[key] for key in columns} == {key: old[key] for key in columns}


def test_nothing_is_left_to_train(seen: Seen) -> None:
    assert [run["state"] for run in seen.planned_again.values()] == ["done"] * 3


@pytest.fixture(scope="module")
def later(tmp_path_factory: pytest.TempPathFactory) -> Old:
    return unpacked(LATER, tmp_path_factory.mktemp("later"))


def test_the_lines_of_the_killed_run_were_not_sent(later: Old) -> None:
    """So the test of the killed run is one of sending, too."""
    killed = later.expected["rows"][2]["run_id"]
    assert len(later.spools(killed)) == 1
    recorded = [json.loads(line) for line in later.spools(killed)[0].read_text().splitlines()]
    assert max(line["step"] for line in recorded if "metrics" in line) == 20
    assert f"{killed} train/reward 20" not in later.points()


def test_batches_continue_and_their_hypothesis_is_registered_before_its_runs(later: Old) -> None:
    """Of the killed batch the first run has a checkpoint of step 2, the second has none."""
    done, killed = later.expected["tabular"][:2], [row["run_id"] for row in later.expected["tabular"][2:]]
    planned = {run_id: run["state"] for run_id, run in later.states("plan", *BATCHES).items()}
    assert planned == {**{row["run_id"]: "done" for row in done}, **dict.fromkeys(killed, "partial")}
    status = later.states("status", *BATCHES)
    for row in done:
        assert status[row["run_id"]]["score"] == pytest.approx(float(row["last"]) / 100, abs=1e-6)

    before = later.points()
    assert "4 runs (2 done, 2 partial); 2 to train" in later.cppo("launch", *BATCHES, INLINE)
    assert sorted(map(later.first_step, killed)) == [0, 3]
    assert_continued(later, before, [row["run_id"] for row in done], killed)

    later.cppo("report", *BATCHES)
    assert_rows(table(later.folder, "exact"), later.expected["tabular"], "cppo")
    verdicts = json.loads((later.report("exact") / "report.json").read_text())["verdicts"]
    for verdict, old in zip(verdicts, later.expected["verdicts"], strict=True):
        assert {key: verdict[key] for key in STATED} == {key: old[key] for key in STATED}
        assert verdict["estimate"] == pytest.approx(old["estimate"], abs=0.02)
    page = (later.report("exact") / "index.html").read_text(encoding="utf-8")
    assert "before any of the 4 runs that test it; unchanged." in page

    spools = {run_id: later.spools(run_id) for run_id in planned}
    assert "4 runs (4 done); 0 to train" in later.cppo("launch", *BATCHES, INLINE)
    assert {run_id: later.spools(run_id) for run_id in planned} == spools


def test_a_cancelled_run_continues_and_a_failed_one_is_left_alone(later: Old) -> None:
    status = {run["variants"]["ended"]: run for run in later.states("status", *ENDED).values()}
    cancelled, failed = status["cancelled"], status["failed"]
    assert (cancelled["state"], cancelled["step"]) == ("partial", 4)
    assert cancelled["reason"].startswith("interrupted: cancelled")
    assert failed["state"] == "failed"
    assert failed["reason"].startswith("RuntimeError: Storage size calculation overflowed")

    before, run_id = later.points(), cancelled["run_id"]
    said = later.cppo("launch", *ENDED, INLINE, code=4)
    assert "2 runs (1 failed, 1 partial); 1 to train" in said
    assert "1 run failed with an error and is not retrained" in said
    assert later.first_step(run_id) == 5
    assert_continued(later, before, [], [run_id])
    assert len(later.spools(failed["run_id"])) == 1
    assert "2 runs (1 done, 1 failed); 0 to train" in later.cppo("launch", *ENDED, INLINE, code=4)
    # Not retried in earnest: its batch takes 8 GB of memory before it fails.
    assert failed["run_id"] in later.cppo("retry", *ENDED, "--failed", "--dry-run", "--json")


def test_a_search_goes_on_with_its_own_trials(later: Old) -> None:
    """Two are done, and the third was killed with its run."""
    plan = json.loads(later.cppo("plan", *TUNE, "--json"))
    assert plan["search"]["states"]["done"] == 2 and sum(plan["search"]["states"].values()) == 3
    stored = later.points()
    before = {path: path.stat().st_mtime_ns for path in later.folder.glob("runs/*/spool/*.jsonl")}
    # As a command: a search's trials are new interpreters.
    command = [sys.executable, "-m", "cppo_lab.cli", "tune", *TUNE, INLINE]
    ended = subprocess.run(command, cwd=later.folder, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    *done, continued = trials(later.folder)
    *expected, third = later.expected["trials"]
    assert done == expected
    assert {key: continued[key] for key in ("number", "state", "params")} == {
        key: third[key] for key in ("number", "state", "params")
    }
    assert continued["values"] == pytest.approx(third["values"], rel=NEAR)
    assert [step for step, _ in continued["curve"]] == [step for step, _ in third["curve"]]
    written = {path for path in later.folder.glob("runs/*/spool/*.jsonl") if path not in before}
    assert [path.name for path in written] == ["0002.jsonl"]  # the killed one's
    [run_id] = [path.parents[1].name for path in written]
    assert later.first_step(run_id) == 5
    assert_continued(later, stored, [], [run_id])

    later.cppo("report", *TUNE)
    page = (later.report("tune") / "index.html").read_text(encoding="utf-8")
    assert STUDY in page and "3 trials" in page
    again = json.loads(later.cppo("tune", *TUNE, INLINE, "--dry-run", "--json"))
    assert again["search"]["states"] == {"done": 3}
