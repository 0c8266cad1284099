"""Time to read the histories of an experiment, from a SQLite file and from a real MLflow server.

100 runs x 60 metrics x 500 steps, each run with the `history.npz` that our recorder leaves. In fresh processes, imports
and the opening of the store apart:

ours             our reader; the listing of the runs is in it
unfinished       our reader without those files, as for runs that have not ended, of as many metrics as a report reads
per_metric       `get_metric_history` for each metric of some of the runs, scaled to all of them
peak_mebibytes   of the process that reads 1,000 runs of 60 metrics x 1,000 steps from SQLite, imports included. There
                 the store has the last points alone: a run's other points are read from its file, and the same values
                 stand in all files

    python benchmarks/tracking_read.py [--quick]

The last line is JSON, see `common.py`.
"""

import sqlite3
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from common import arguments, finish, fresh
from mlflow import MlflowClient
from mlflow.entities import Param

from cppo_lab import schema
from cppo_lab.tracking.history import HISTORY, History, from_columns, pack
from dev.servers.mlflow_server import MlflowServer

METRICS = 60
SHOWN = 26  # of the 52 metrics of a run on core=exact (reports/sweep.py: _is_shown)
PARAMS = 80  # a resolved configuration has about as many
EXPERIMENT = "cppo-mini"
START_MS = 1_700_000_000_000
AT_LEAST = {"*_times_faster_than_per_metric": 20.0}
AT_MOST = {"*_unfinished_seconds": 60.0, "peak_mebibytes": 2000.0}
UNITS = {"*_seconds": "s", "peak_mebibytes": "MiB", "*_times_*": "x"}
OURS = """
import json, sys, time
from mlflow import MlflowClient
from cppo_lab.analysis.reader import read_sweep
MlflowClient(sys.argv[1]).search_experiments()  # loads what MLflow needs for this store
start = time.perf_counter()
most = int(sys.argv[2])
data = read_sweep(sys.argv[1], "cppo-mini", "demo", lambda name: int(name[-2:]) < most)
seconds = time.perf_counter() - start
print(json.dumps([seconds, data.metrics.shape[0]]))
"""
PER_METRIC = """
import json, sys, time
from mlflow import MlflowClient
client, count = MlflowClient(sys.argv[1]), int(sys.argv[2])
number = client.get_experiment_by_name("cppo-mini").experiment_id
start = time.perf_counter()
runs = client.search_runs([number], max_results=1000)
listing = time.perf_counter() - start
points = [
    (run.info.run_id, name, point.step, point.value)
    for run in runs[:count]
    for name in run.data.metrics
    for point in client.get_metric_history(run.info.run_id, name)
]
seconds = listing + (time.perf_counter() - start - listing) * len(runs) / count
print(json.dumps([seconds, len(points) * len(runs) // count]))
"""


def made(runs: int, steps: int) -> list[History]:
    """The histories of so many runs."""
    generator, step = np.random.default_rng(0), np.arange(1, steps + 1)
    names = [f"metric/{number:02d}" for number in range(METRICS)]
    return [
        from_columns(
            {name: (step, generator.standard_normal(steps), START_MS + 100 * step) for name in names}
        )
        for _ in range(runs)
    ]


def write(folder: Path, runs: int, histories: list[History], every_point: bool) -> str:
    """A SQLite store with runs by MLflow's API; their points go into its tables directly, as it would write them."""
    folder.mkdir()
    database = folder / "mlflow.db"
    client = MlflowClient(f"sqlite:///{database}")
    number = client.create_experiment(EXPERIMENT, artifact_location=(folder / "artifacts").as_uri())
    params = [Param(f"section.name{index}", str(index)) for index in range(PARAMS)]
    tags = {schema.sweep_tag("demo"): "cppo", schema.TAG_STATUS: schema.DONE, schema.TAG_MODEL: "chain"}
    packed = [pack(history) for history in histories]
    tables: dict[str, list[tuple[Any, ...]]] = {"latest_metrics": [], "metrics": []}
    for index in range(runs):
        of_run = {schema.TAG_RUN_ID: f"{index:016x}", schema.TAG_SEED: str(index)}
        mlflow_id = client.create_run(number, start_time=START_MS + index, tags=tags | of_run).info.run_id
        client.log_batch(mlflow_id, params=params)
        client.set_terminated(mlflow_id, "FINISHED", START_MS + 10_000)
        place = folder / "artifacts" / mlflow_id / "artifacts"
        place.mkdir(parents=True)
        (place / HISTORY).write_bytes(packed[index % len(packed)])
        history = histories[index % len(histories)]
        for name, columns in history.items():
            triples = zip(*(column.tolist() for column in columns), strict=True)
            points = [(name, time_ms, mlflow_id, value, step) for step, value, time_ms in triples]
            tables["latest_metrics"].append(points[-1])
            tables["metrics"] += points if every_point else []
    with sqlite3.connect(database) as connection:
        connection.execute("pragma synchronous=off")
        for table, rows in tables.items():  # in the order of the tables' keys, in which insertion is quick
            names = "(key, timestamp, run_uuid, value, step, is_nan)"
            connection.executemany(f"insert into {table} {names} values (?, ?, ?, ?, ?, 0)", sorted(rows))  # noqa: S608  literal names
    connection.close()
    return f"sqlite:///{database}"


def compare(kind: str, uri: str, folder: Path, points: int, timed: int) -> dict[str, float]:
    """Ours, and MLflow's own way, timed for so many runs."""

    def seconds(code: str, count: int, expected: float = points) -> float:
        taken, number = fresh(["-c", code, uri, str(count)], folder).json()
        assert number == expected, f"{kind}: {number} of {expected} points"
        return float(taken)

    ours, theirs = seconds(OURS, METRICS), seconds(PER_METRIC, timed)
    away = (folder / "artifacts").rename(folder / "away")
    unfinished = seconds(OURS, SHOWN, points / METRICS * SHOWN)
    away.rename(folder / "artifacts")
    return {
        f"{kind}_ours_seconds": ours,
        f"{kind}_unfinished_seconds": unfinished,
        f"{kind}_per_metric_seconds": theirs,
        f"{kind}_times_faster_than_per_metric": theirs / ours,
    }


def measured(folder: Path, runs: int, steps: int, timed: int) -> dict[str, float]:
    """The comparison on both kinds of stores: the same database, first as a file, then behind a server."""
    store = folder / "store"
    uri = write(store, runs, made(runs, steps), every_point=True)
    points = runs * METRICS * steps
    figures = compare("sqlite", uri, store, points, timed)
    server = MlflowServer(store, uri, workers=4)  # MLflow's default; it hands out what lies in `artifacts`
    with sqlite3.connect(store / "mlflow.db") as connection:
        connection.execute("update runs set artifact_uri = 'mlflow-artifacts:/' || run_uuid || '/artifacts'")
    connection.close()
    try:
        return figures | compare("server", server.start().uri, store, points, timed)
    finally:
        server.stop()


def main() -> None:
    """Measures and prints."""
    quick = arguments(__doc__, "3 runs x 20 steps, no large store").quick
    runs, steps, timed = (3, 20, 1) if quick else (100, 500, 3)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        figures = measured(folder, runs, steps, timed)
        if not quick:
            uri = write(folder / "large", 1000, made(1, 1000), every_point=False)
            taken = fresh(["-c", OURS, uri, str(METRICS)], folder)
            figures["peak_mebibytes"] = taken.mebibytes
            assert taken.json()[1] == 1000 * METRICS * 1000
    finish(figures, UNITS, at_most=AT_MOST, at_least=AT_LEAST, quick=quick)


if __name__ == "__main__":
    main()
