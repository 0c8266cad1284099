"""Stores and runs folders of earlier commits: read, continued and reported by today's code, with equal numbers.

How they were made is in README.md.
"""

import contextlib
import csv
import io
import json
import math
import sqlite3
import subprocess
import sys
import tarfile
from collections.abc import Collection, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from cppo_lab.cli import main
from cppo_lab.runs.spool import files
from cppo_lab.runs.tags import dotted

HERE = Path(__file__).parent
OLDEST, LATER = "3df9b01", "37ff870"  # the first has neither batches nor searches nor registrations
SETTINGS = [
    "model.architecture.width=16",
    "model.architecture.heads=2",
    "model.architecture.kv_heads=1",
    "model.architecture.head_dim=8",
    "model.architecture.mlp_width=32",
    "model.architecture.layers=1",
    "model.warm_start.steps=600",
    "model.warm_start.batch=32",
    "model.warm_start.learning_rate=0.004",
    "model.warm_start.seed=0",
    "data.operations=1",
    "data.validation_problems=20",
    "rollout.max_response_length=9",
    "batch.prompts=8",
    "batch.responses=4",
    "batch.minibatch_prompts=4",
    "validation.every=4",
    "optim.learning_rate=0.003",
    # Added since the oldest commit, with the value that keeps its runs' ids; the later one has fewer steps.
    "model.warm_start.target_accuracy=null",
]
SWEEP = {
    OLDEST: ["./sweep.yaml", *SETTINGS, "training.t_stop=40"],
    LATER: [
        *("./sweep.yaml", *SETTINGS, "training.t_stop=24"),
        *("tracking.mismatch=false", "tracking.answers.keep=false"),
    ],
}
TABULAR = ["validation.every=2", "training.t_stop=6", "rollout.max_response_length=16"]
BATCHES, ENDED, TUNE = ["./exact.yaml", *TABULAR], ["./ended.yaml", *TABULAR], ["./tune.yaml", "core=exact"]
INLINE, STUDY = "launcher=inline", "tune-exact_early"
# Every point that is no time.
# Where a run without a checkpoint begins again, in another MLflow run, the older point is the last and stands.
POINTS = """SELECT tags.value || ' ' || metrics.key || ' ' || metrics.step, metrics.value FROM metrics
    JOIN tags ON tags.run_uuid = metrics.run_uuid AND tags.key = 'cppo.run_id'
    WHERE metrics.key NOT LIKE 'perf/%' AND metrics.key NOT LIKE 'system/%' ORDER BY metrics.timestamp DESC"""
MOVED = (("runs", "artifact_uri"), ("experiments", "artifact_location"))
# Processors round differently, and training amplifies that. So the numbers of the first steps behind the checkpoint are
# compared, with this relative tolerance; of the others, that they are there.
NEAR, STEPS = 1e-3, 3
# Columns of `runs.csv` for a run that continues.
OF_ANY_MACHINE = ("run_id", "method", "model", "seed", "state")
# Of a verdict over runs that continue; `estimate` is compared by itself.
STATED = ("claim", "text", "sweep", "score", "outcome", "provisional", "pairs", "exploratory", "unit")


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
        """The store's points by "run id metric step"."""
        with closing(sqlite3.connect(self.folder / "mlflow.db")) as store:
            return dict(store.execute(POINTS).fetchall())

    def spools(self, run_id: str) -> list[Path]:
        """The records of a run's attempts."""
        return files(self.folder / "runs" / run_id)

    def recorded(self, run_id: str) -> dict[int, dict[str, float]]:
        """The metrics of each step in the record of a run's last attempt."""
        lines = map(json.loads, self.spools(run_id)[-1].read_text().splitlines())
        return {line["step"]: line["metrics"] for line in lines if "metrics" in line}

    def report(self, sweep: str, file: str) -> str:
        """A file of a report."""
        return (self.folder / "reports/build" / sweep / file).read_text()

    def assert_rows(self, sweep: str, expected: list[dict[str, str]]) -> None:
        """The rows of a report's `runs.csv` are the expected ones; of CPPO's, which continue, as far as on any
        machine.
        """
        rows = csv.DictReader(self.report(sweep, "runs.csv").splitlines())
        for row, old in zip(rows, expected, strict=True):
            columns = old.keys() - {"mlflow_run_id"} if old["rule"] != "cppo" else OF_ANY_MACHINE
            assert [row[key] for key in columns] == [old[key] for key in columns]

    def trials(self) -> list[dict[str, Any]]:
        """The trials of the search without their times."""
        content = json.loads((self.folder / f"runs/searches/{STUDY}/search.json").read_text())
        names = ("number", "state", "values", "params", "curve")
        return [{name: trial[name] for name in names} for trial in content["trials"]]

    def assert_continued(
        self, before: dict[str, float], killed: Collection[str], done: Collection[str]
    ) -> None:
        """No point of the store `before` has changed, those of all these runs are there, and what the last attempts at
        the killed ones recorded is what was expected.
        """
        after, points = self.points(), [name.split() for name in self.expected["points"]]
        # Of a run of the exact core the store now gets the points of validated steps.
        exact = {run_id for run_id, metric, _ in points if metric.startswith("exact/")}
        validated = {(run_id, step) for run_id, metric, step in points if metric.startswith("val/")}
        expected = {
            name: value
            for (name, value), (run_id, _, step) in zip(self.expected["points"].items(), points, strict=True)
            if run_id in {*done, *killed}
            and (name in before or run_id not in exact or (run_id, step) in validated)
        }
        assert before.items() <= after.items() and expected.keys() <= after.keys()
        assert before.items() <= (before | expected).items()
        for run_id in killed:
            recorded, compared = self.recorded(run_id), 0
            for step in sorted(recorded)[:STEPS]:
                for key, value in recorded[step].items():
                    name = f"{run_id} {key} {step}"
                    assert after.get(name, value) == before.get(name, value), name
                    if name in expected:
                        compared += 1
                        assert math.isclose(value, expected[name], rel_tol=NEAR, abs_tol=1e-6), name
            assert compared > 10


def unpacked(commit: str, folder: Path) -> Old:
    """The archive of a commit, moved to `folder`. Of the later one the store is text: a store's file repeats its
    numbers in indexes.
    """
    with tarfile.open(HERE / f"{commit}.tar.xz") as archive:
        archive.extractall(folder, filter="data")
    for file in HERE.glob("*.yaml"):
        (folder / file.name).write_bytes(file.read_bytes())
    expected = json.loads((folder / "expected.json").read_text())
    with closing(sqlite3.connect(folder / "mlflow.db")) as store:
        if (dump := folder / "mlflow.json").exists():
            content = json.loads(dump.read_text())
            for name, sql in content["tables"].items():
                store.execute(sql)
                if columns := content["columns"][name]:
                    insert = f'INSERT INTO "{name}" VALUES ({", ".join("?" * len(columns))})'
                    store.executemany(insert, zip(*columns, strict=True))
            for sql in content["others"]:
                store.execute(sql)
        for name, column in MOVED:
            move = f"UPDATE {name} SET {column} = replace({column}, ?, ?)"
            store.execute(move, (expected["made_in"], str(folder)))
        store.commit()
    return Old(commit, folder, expected)


@pytest.fixture(scope="module", autouse=True)
def _no_store_from_outside() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("MLFLOW_TRACKING_URI", raising=False)
        patch.delenv("OPTUNA_STORAGE", raising=False)
        yield


@pytest.mark.parametrize("commit", [OLDEST, LATER])
def test_runs_of_the_embedded_core_are_read_continued_and_reported(commit: str, tmp_path: Path) -> None:
    old, sweep = unpacked(commit, tmp_path), SWEEP[commit]
    rows = old.expected["rows"]
    grpo, dppo, cppo = ids = [row["run_id"] for row in rows]
    shown, plan, status = (old.states(command, *sweep) for command in ("show", "plan", "status"))
    for run_id, row in zip(ids, rows, strict=True):
        recorded = json.loads((old.folder / "runs" / run_id / "config.json").read_text())
        assert recorded["rule"]["name"] == row["rule"]
        # Keys were added since.
        assert dotted(recorded).items() <= dotted(shown[run_id]["run"]).items()
    for states in (plan, status):
        assert [states[run_id]["state"] for run_id in ids] == ["done", "done", "partial"]
    for run_id, row in zip((grpo, dppo), rows, strict=False):
        assert status[run_id]["step"] == int(row["t_stop"])
        assert status[run_id]["score"] == pytest.approx(float(row["last"]) / 100, abs=1e-6)
    before = old.points()
    if commit == LATER:  # the lines of the killed run were not sent, so this is a test of sending, too
        assert max(old.recorded(cppo)) == 20 and f"{cppo} train/reward 20" not in before

    assert "3 runs (2 done, 1 partial); 1 to train" in old.cppo("launch", *sweep, INLINE)
    # From its checkpoint of step 16, not from the start. What the killed attempt had recorded is not recorded again.
    assert min(old.recorded(cppo)) == {OLDEST: 17, LATER: 21}[commit]
    old.assert_continued(before, [cppo], [grpo, dppo])
    old.cppo("report", *sweep)
    old.assert_rows("sweep", rows)
    assert {run["state"] for run in old.states("plan", *sweep).values()} == {"done"}


@pytest.fixture(scope="module")
def later(tmp_path_factory: pytest.TempPathFactory) -> Old:
    return unpacked(LATER, tmp_path_factory.mktemp("later"))


def test_batches_continue_and_their_hypothesis_is_registered_before_its_runs(later: Old) -> None:
    """Of the killed batch the first run has a checkpoint of step 2, the second has none."""
    *done, first, second = later.expected["tabular"]
    killed = [first["run_id"], second["run_id"]]
    finished = [row["run_id"] for row in done]
    planned = {run_id: run["state"] for run_id, run in later.states("plan", *BATCHES).items()}
    assert planned == dict.fromkeys(finished, "done") | dict.fromkeys(killed, "partial")
    status = later.states("status", *BATCHES)
    for row in done:
        assert status[row["run_id"]]["score"] == pytest.approx(float(row["last"]) / 100, abs=1e-6)

    before = later.points()
    assert "4 runs (2 done, 2 partial); 2 to train" in later.cppo("launch", *BATCHES, INLINE)
    assert sorted(min(later.recorded(run_id)) for run_id in killed) == [0, 3]
    later.assert_continued(before, killed, finished)

    later.cppo("report", *BATCHES)
    later.assert_rows("exact", later.expected["tabular"])
    verdicts = json.loads(later.report("exact", "report.json"))["verdicts"]
    for verdict, old in zip(verdicts, later.expected["verdicts"], strict=True):
        # Nobody registered it, which the old version did not say.
        old["exploratory"] = old["claim"] == "cppo_best"
        assert [verdict[key] for key in STATED] == [old[key] for key in STATED]
        assert verdict["estimate"] == pytest.approx(old["estimate"], abs=0.02)
    assert "before any of the 4 runs that test it; unchanged." in later.report("exact", "index.html")

    spools = {run_id: later.spools(run_id) for run_id in planned}
    assert "4 runs (4 done); 0 to train" in later.cppo("launch", *BATCHES, INLINE)
    assert {run_id: later.spools(run_id) for run_id in planned} == spools


def test_a_cancelled_run_continues_and_a_failed_one_is_left_alone(later: Old) -> None:
    runs = later.states("status", *ENDED).values()
    cancelled, failed = sorted(runs, key=lambda run: run["variants"]["ended"])
    assert (cancelled["state"], cancelled["step"], failed["state"]) == ("partial", 4, "failed")
    assert cancelled["reason"].startswith("interrupted: cancelled")
    assert failed["reason"].startswith("RuntimeError: Storage size calculation overflowed")

    before, run_id = later.points(), cancelled["run_id"]
    printed = later.cppo("launch", *ENDED, INLINE, code=4)
    assert "2 runs (1 failed, 1 partial); 1 to train" in printed
    assert "1 run failed with an error and is not retrained" in printed
    assert min(later.recorded(run_id)) == 5
    later.assert_continued(before, [run_id], [])
    assert len(later.spools(failed["run_id"])) == 1
    assert "2 runs (1 done, 1 failed); 0 to train" in later.cppo("launch", *ENDED, INLINE, code=4)
    # Not retried in earnest: its batch takes 8 GB of memory before it fails.
    assert failed["run_id"] in later.cppo("retry", *ENDED, "--failed", "--dry-run", "--json")


def test_a_search_goes_on_with_its_trials(later: Old) -> None:
    """Two are done, and the third was killed with its run."""
    states = json.loads(later.cppo("plan", *TUNE, "--json"))["search"]["states"]
    assert states["done"] == 2 and sum(states.values()) == 3
    stored, spools = later.points(), {*later.folder.glob("runs/*/spool/*.jsonl")}
    # As a command: a search's trials are new interpreters.
    command = [sys.executable, "-m", "cppo_lab.cli", "tune", *TUNE, INLINE]
    ended = subprocess.run(command, cwd=later.folder, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    *done, continued = later.trials()
    *expected, third = later.expected["trials"]
    assert done == expected
    assert continued["values"] == pytest.approx(third["values"], rel=NEAR)
    steps = [step for step, _ in third["curve"]]
    assert [step for step, _ in continued["curve"]] == steps
    assert continued == third | {key: continued[key] for key in ("values", "curve")}
    [written] = {*later.folder.glob("runs/*/spool/*.jsonl")} - spools
    run_id = written.parents[1].name
    assert (written.name, min(later.recorded(run_id))) == ("0002.jsonl", 5)  # the killed one's
    later.assert_continued(stored, [run_id], [])

    later.cppo("report", *TUNE)
    page = later.report("tune", "index.html")
    assert STUDY in page and "3 trials" in page
    again = json.loads(later.cppo("tune", *TUNE, INLINE, "--dry-run", "--json"))
    assert again["search"]["states"] == {"done": 3}
