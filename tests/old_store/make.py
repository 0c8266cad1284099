"""Makes the archive of a commit with that commit's code (README.md): python -m tests.old_store.make CLONE, in an empty
folder.

Two folders are trained: `whole`, where nothing is interrupted, and `killed`, where runs wait at a gate behind the
record of a named step, and are killed or cancelled there. The archive has the second, and in `expected.json` the
numbers of the first.
"""

import csv
import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import tarfile
import tempfile
from contextlib import closing
from pathlib import Path
from typing import Any

from tests.launch.gate import Gate

HERE = Path(__file__).parent
OLDEST = "3df9b01"  # it has neither batches nor searches nor registrations
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
]
# Keys that were added since the oldest commit, with the values that keep its runs' ids, and its steps.
LONG = ["training.t_stop=40"]
ADDED = ["model.warm_start.target_accuracy=null"]
# Fewer steps and numbers, for a small archive.
SHORT = [*ADDED, "training.t_stop=24", "tracking.mismatch=false", "tracking.answers.keep=false"]
TABULAR = ["validation.every=2", "training.t_stop=6", "rollout.max_response_length=16"]
STUDY = "tune-exact_early"
TIMED = ("perf/", "system/")  # metrics that differ between any two runs
POINTS = """SELECT tags.value, metrics.key, metrics.step, metrics.value FROM metrics
    JOIN tags ON tags.run_uuid = metrics.run_uuid AND tags.key = 'cppo.run_id'"""


def embedded(commit: str) -> list[str]:
    """The sweep of the embedded core with today's keys, as the archive of a commit has it."""
    return ["./sweep.yaml", *SETTINGS, *(ADDED + LONG if commit == OLDEST else SHORT)]


def points(store: Path) -> dict[str, float]:
    """Every point of a SQLite store that is no time, by "run id metric step"."""
    with closing(sqlite3.connect(store)) as connection:
        rows = connection.execute(POINTS).fetchall()
    return {f"{run} {key} {step}": value for run, key, step, value in rows if not key.startswith(TIMED)}


def dumped(store: Path) -> str:
    """A SQLite store as text. A store's file repeats its numbers in indexes, and is twice as large when compressed."""
    with closing(sqlite3.connect(store)) as connection:
        made = connection.execute(
            "SELECT type, name, sql FROM sqlite_master WHERE sql IS NOT NULL"
        ).fetchall()
        columns = {
            name: list(zip(*connection.execute(f'SELECT * FROM "{name}"'), strict=True))
            for kind, name, _ in made
            if kind == "table" and not name.startswith("sqlite_")
        }
    tables = {name: sql for kind, name, sql in made if kind == "table" and name in columns}
    others = [sql for kind, _, sql in made if kind != "table"]  # indexes and triggers
    return json.dumps({"tables": tables, "columns": columns, "others": others})


def restore(text: str, store: Path) -> None:
    """Make the store that was `dumped`."""
    content = json.loads(text)
    with closing(sqlite3.connect(store)) as connection:
        for name, sql in content["tables"].items():
            connection.execute(sql)
            if columns := content["columns"][name]:
                values = ", ".join("?" * len(columns))
                insert = f'INSERT INTO "{name}" VALUES ({values})'
                connection.executemany(insert, zip(*columns, strict=True))
        for sql in content["others"]:
            connection.execute(sql)
        connection.commit()


def _wanted(file: tarfile.TarInfo) -> tarfile.TarInfo | None:
    """Every file but the copies of checkpoints that were about to replace them."""
    return None if file.name.endswith(".partial") else file


def table(folder: Path, sweep: str) -> list[dict[str, str]]:
    """The rows of a report's `runs.csv`."""
    with (folder / f"reports/build/{sweep}/runs.csv").open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


def trials(folder: Path) -> list[dict[str, Any]]:
    """The trials of the search without their times."""
    content = json.loads((folder / f"runs/searches/{STUDY}/search.json").read_text(encoding="utf-8"))
    names = ("number", "state", "values", "params", "curve")
    return [{name: trial[name] for name in names} for trial in content["trials"]]


class _Folder:
    """A folder in which commands of the clone run."""

    def __init__(self, clone: Path, path: Path) -> None:
        self.clone, self.path = clone, path.resolve()
        self.path.mkdir()
        for file in HERE.glob("*.yaml"):
            shutil.copy(file, self.path)

    def start(self, *words: str, gate: Gate | None = None) -> subprocess.Popen[str]:
        environment = {**os.environ} if gate is None else gate.environment
        before = [] if gate is None else [environment["PYTHONPATH"].split(os.pathsep)[0]]
        environment["PYTHONPATH"] = os.pathsep.join([*before, str(self.clone)])
        environment["OMP_NUM_THREADS"] = "1"
        command = [sys.executable, "-m", "cppo_lab.cli", *words]
        return subprocess.Popen(command, cwd=self.path, env=environment, text=True)

    def run(self, *words: str, code: int = 0) -> None:
        if (ended := self.start(*words).wait()) != code:
            raise SystemExit(f"cppo {' '.join(words)} ended with {ended}")

    def kill(self, *words: str, validation: int) -> None:
        """SIGKILL to the command, and to what it trains, behind the record of that validation."""
        gate = Gate(Path(tempfile.mkdtemp()), validation)
        process = self.start(*words, gate=gate)
        trainers = gate.reached(process)
        process.kill()  # first: it would start the others again
        process.wait()
        for trainer in set(trainers) - {process.pid}:
            os.kill(trainer, signal.SIGKILL)
        gate.remove()

    def cancel(self, *words: str, validation: int) -> None:
        """`cppo cancel` of the sweep's only run behind the record of that validation."""
        gate = Gate(Path(tempfile.mkdtemp()), validation)
        process = self.start("launch", *words, "launcher=local", "launcher.workers=1", gate=gate)
        gate.reached(process)
        self.run("cancel", *words)
        process.wait()
        gate.remove()


def main(clone: Path) -> None:
    """Train both folders with the code of `clone`, and pack the archive into the current folder."""
    shown = subprocess.run(
        ["git", "-C", clone, "rev-parse", "HEAD"], check=True, capture_output=True, text=True
    )
    commit = shown.stdout[:7]
    sweep = [word for word in embedded(commit) if commit != OLDEST or word not in ADDED]
    whole, killed = _Folder(clone, Path("whole")), _Folder(clone, Path("killed"))
    whole.run("launch", *sweep, "launcher=inline")
    whole.run("report", *sweep)
    expected: dict[str, Any] = {"made_in": str(killed.path), "rows": table(whole.path, "sweep")}
    killed.run("launch", *sweep, "variant=grpo,dppo", "launcher=inline")
    names = ["expected.json", "mlartifacts", "mlflow.json", "runs"]
    if commit == OLDEST:
        killed.kill("launch", *sweep, "variant=cppo", "launcher=inline", validation=5)
        killed.run("sync")
    else:
        names.append("optuna.db")
        expected |= _tabular(whole, killed)
        # At last, so that no other command sends its lines.
        killed.kill("launch", *sweep, "variant=cppo", "launcher=inline", validation=5)
    expected["points"] = points(whole.path / "mlflow.db")
    (killed.path / "expected.json").write_text(json.dumps(expected), encoding="utf-8")
    (killed.path / "mlflow.json").write_text(dumped(killed.path / "mlflow.db"), encoding="utf-8")
    with tarfile.open(f"{commit}.tar.xz", "w:xz", preset=9) as archive:
        for name in names:
            archive.add(killed.path / name, name, filter=_wanted)


def _tabular(whole: _Folder, killed: _Folder) -> dict[str, Any]:
    """Batches, a registration, a search, a cancelled and a failed run; what the folder `whole` says of them."""
    batches, ended, tune = (
        [f"./{name}.yaml", *more]
        for name, more in (("exact", TABULAR), ("ended", TABULAR), ("tune", ["core=exact"]))
    )
    whole.run("launch", *batches, "launcher=inline")
    whole.run("report", *batches)
    whole.run("launch", *ended, "variant=cancelled", "launcher=inline")
    for folder in (whole, killed):
        folder.run("tune", *tune, "launcher=inline", "--trials", "2")
    whole.run("tune", *tune, "launcher=inline")

    killed.run("launch", *batches, "variant=grpo", "launcher=inline")
    # Behind step 2, where the first of its two runs has a checkpoint.
    killed.kill("launch", *batches, "variant=cppo", "launcher=inline", validation=2)
    killed.run("sync")
    killed.run("launch", *ended, "variant=failed", "launcher=inline", code=4)
    killed.cancel(*ended, "variant=cancelled", validation=2)
    killed.kill("tune", *tune, "launcher=inline", validation=2)
    report = json.loads((whole.path / "reports/build/exact/report.json").read_text(encoding="utf-8"))
    return {
        "tabular": table(whole.path, "exact"),
        "verdicts": report["verdicts"],
        "trials": trials(whole.path),
    }


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve())
