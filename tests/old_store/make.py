"""Makes `3df9b01.tar.xz` with the code of that commit (README.md): python make.py CLONE, in an empty folder.

Two folders are trained: `whole`, where nothing is interrupted, and `killed`, where one run gets SIGKILL behind its
twentieth record. The archive has the second, and in `expected.json` the numbers of the first.
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
from contextlib import closing
from pathlib import Path

HERE = Path(__file__).parent
ARCHIVE = "3df9b01.tar.xz"
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
    "training.t_stop=40",
]
TIMED = ("perf/", "system/")  # metrics that differ between any two runs
POINTS = """SELECT tags.value, metrics.key, metrics.step, metrics.value FROM metrics
    JOIN tags ON tags.run_uuid = metrics.run_uuid AND tags.key = 'cppo.run_id'"""
LINES = 20  # of the killed run's spool: its checkpoint is then of step 16


def points(store: Path) -> dict[str, float]:
    """Every point of a SQLite store that is no time, by "run id metric step"."""
    with closing(sqlite3.connect(store)) as connection:
        rows = connection.execute(POINTS).fetchall()
    return {f"{run} {key} {step}": value for run, key, step, value in rows if not key.startswith(TIMED)}


def _start(clone: Path, folder: Path, *words: str) -> subprocess.Popen[bytes]:
    environment = {**os.environ, "PYTHONPATH": str(clone), "OMP_NUM_THREADS": "1"}
    return subprocess.Popen([sys.executable, "-m", "cppo_lab.cli", *words], cwd=folder, env=environment)


def _run(clone: Path, folder: Path, *words: str) -> None:
    if code := _start(clone, folder, *words).wait():
        raise SystemExit(f"cppo {' '.join(words)} ended with {code}")


def _kill_behind(process: subprocess.Popen[bytes], runs: Path, lines: int) -> None:
    """SIGKILL to the process once a run that is not finished has that many lines in its spool."""
    while True:
        for checkpoint in runs.glob("*/checkpoint.pt"):
            spool = checkpoint.with_name("spool") / "0001.jsonl"
            if spool.read_bytes().count(b"\n") > lines:
                process.send_signal(signal.SIGKILL)
                process.wait()
                return
        try:
            process.wait(0.002)
        except subprocess.TimeoutExpired:
            continue
        raise SystemExit("the run ended before it was killed: make it longer")


def main(clone: Path) -> None:
    """Train both folders with the code of `clone`, and pack the archive into the current folder."""
    whole, killed = Path("whole"), Path("killed")
    for folder in (whole, killed):
        folder.mkdir()
        shutil.copy(HERE / "sweep.yaml", folder)
    chosen = ["./sweep.yaml", *SETTINGS, "launcher=inline"]
    _run(clone, whole, "launch", *chosen)
    _run(clone, whole, "report", *chosen)
    _run(clone, killed, "launch", *chosen, "variant=grpo,dppo")
    _kill_behind(_start(clone, killed, "launch", *chosen, "variant=cppo"), killed / "runs", LINES)
    _run(clone, killed, "sync")
    with (whole / "reports/build/sweep/runs.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    expected = {"made_in": str(killed.resolve()), "rows": rows, "points": points(whole / "mlflow.db")}
    (killed / "expected.json").write_text(json.dumps(expected), encoding="utf-8")
    with tarfile.open(ARCHIVE, "w:xz", preset=9) as archive:
        for name in ("expected.json", "mlartifacts", "mlflow.db", "runs"):
            archive.add(killed / name, name)


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve())
