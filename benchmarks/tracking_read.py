"""Time to read the histories of an experiment, from a SQLite file and from a real MLflow server.

100 runs x 60 metrics x 500 steps, each run with the `history.npz` that our recorder leaves. In fresh processes, imports
and the opening of the store apart:

ours             our reader; the listing of the runs is in it
unfinished       our reader without those files, as for runs that have not ended, of as many metrics as a report reads
per_metric       `get_metric_history` for each metric of some of the runs, scaled to all of them
bulk_interval    the server's get-history-bulk-interval, 100 runs and one metric a request, for some of the metrics,
                 scaled to all: what MLflow's own pages read. It samples: `bulk_interval_share` of the points come
growth           10, 100 and 1,000 runs of 60 metrics x 1,000 steps in SQLite: seconds and the peak memory of the whole
                 process, imports included. There the store has the last points alone: a run's other points are read
                 from its file, and the same values stand in all files

    python benchmarks/tracking_read.py [--quick]

The last line is JSON, see `summary/form.py`.
"""

import argparse
import json
import os
import sqlite3
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from mlflow import MlflowClient
from mlflow.entities import Param
from summary.form import result

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))  # `dev` is no part of the package

from cppo_lab import schema  # noqa: E402
from cppo_lab.tracking.history import HISTORY, History, from_columns, pack  # noqa: E402
from dev.servers.mlflow_server import MlflowServer  # noqa: E402

METRICS = 60
NAMES = sorted(f"metric/{number:02d}" for number in range(METRICS))
SHOWN = 26  # of the 52 metrics of a run on core=exact (reports/sweep.py: _is_shown)
PARAMS = 80  # a resolved configuration has about as many
EXPERIMENT = "cppo-mini"
START_MS = 1_700_000_000_000
AT_LEAST = {"*_times_faster_than_per_metric": 20.0}
AT_MOST = {"*_unfinished_seconds": 60.0, "growth_peak_mebibytes_1000": 2000.0}
UNITS = {"*_seconds*": "s", "*_mebibytes_*": "MiB", "*_share": "", "*_times_*": "x"}
OURS = """
import json, resource, sys, time
from mlflow import MlflowClient
from cppo_lab.analysis.reader import read_sweep
MlflowClient(sys.argv[1]).search_experiments()  # loads what MLflow needs for this store
start = time.perf_counter()
most = int(sys.argv[2]) or 60
data = read_sweep(sys.argv[1], "cppo-mini", "demo", lambda name: int(name[-2:]) < most)
seconds = time.perf_counter() - start
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
points, value = data.metrics.shape[0], float(data.metrics["value"].sum())
print(json.dumps({"seconds": seconds, "peak": peak, "points": points, "sum": value}))
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
print(json.dumps({"seconds": seconds, "points": len(points) * len(runs) // count}))
"""
BULK_INTERVAL = """
import json, sys, time
import requests
from mlflow import MlflowClient
client, count = MlflowClient(sys.argv[1]), int(sys.argv[2])
number = client.get_experiment_by_name("cppo-mini").experiment_id
start = time.perf_counter()
runs = client.search_runs([number], max_results=1000)
listing = time.perf_counter() - start
names, points = sorted(runs[0].data.metrics), 0
for name in names[:count]:
    for first in range(0, len(runs), 100):
        asked = {"run_ids": [run.info.run_id for run in runs[first : first + 100]], "metric_key": name}
        asked["max_results"] = 2500
        path = "/ajax-api/2.0/mlflow/metrics/get-history-bulk-interval"
        answer = requests.get(sys.argv[1] + path, params=asked, timeout=300)
        answer.raise_for_status()
        points += len(answer.json()["metrics"])
seconds = listing + (time.perf_counter() - start - listing) * len(names) / count
print(json.dumps({"seconds": seconds, "points": points * len(names) // count}))
"""


def made(runs: int, steps: int) -> list[History]:
    """The histories of so many runs."""
    generator = np.random.default_rng(0)
    step = np.arange(1, steps + 1)
    return [
        from_columns(
            {name: (step, generator.standard_normal(steps), START_MS + 100 * step) for name in NAMES}
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
    ids = []
    packed = [pack(history) for history in histories]
    for index in range(runs):
        own = {schema.TAG_RUN_ID: f"{index:016x}", schema.TAG_SEED: str(index)}
        mlflow_id = client.create_run(number, start_time=START_MS + index, tags=tags | own).info.run_id
        client.log_batch(mlflow_id, params=params)
        client.set_terminated(mlflow_id, "FINISHED", START_MS + 10_000)
        place = folder / "artifacts" / mlflow_id / "artifacts"
        place.mkdir(parents=True)
        (place / HISTORY).write_bytes(packed[index % len(packed)])
        ids.append(mlflow_id)
    with sqlite3.connect(database) as connection:
        connection.execute("pragma synchronous=off")
        last = [
            (
                name,
                history.value[place][-1],
                int(history.time_ms[place][-1]),
                mlflow_id,
                int(history.step[place][-1]),
            )
            for index, mlflow_id in enumerate(ids)
            for history in [histories[index % len(histories)]]
            for name, place in history.points()
        ]
        _insert(connection, "latest_metrics", last)
        for name_index in range(
            METRICS if every_point else 0
        ):  # in the order of the table's key: that is quick
            _insert(connection, "metrics", _points(ids, histories, name_index))
    connection.close()
    return f"sqlite:///{database}"


def _points(ids: list[str], histories: list[History], index: int) -> list[tuple[Any, ...]]:
    name, place = list(histories[0].points())[index]
    rows = zip(histories[0].step[place].tolist(), histories[0].time_ms[place].tolist(), strict=True)
    values = [history.value[place].tolist() for history in histories]
    return [
        (name, of_run[row], time_ms, mlflow_id, step)
        for row, (step, time_ms) in enumerate(rows)
        for mlflow_id, of_run in sorted(zip(ids, values, strict=True))
    ]


def _insert(connection: sqlite3.Connection, table: str, rows: list[tuple[Any, ...]]) -> None:
    columns = "(key, value, timestamp, run_uuid, step, is_nan)"
    connection.executemany(f"insert into {table} {columns} values (?, ?, ?, ?, ?, 0)", rows)  # noqa: S608  a literal name


def process(code: str, uri: str, count: int = 0) -> dict[str, float]:
    """What a fresh process prints last."""
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", code, uri, str(count)]
    done = subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE, text=True)
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def compare(kind: str, uri: str, folder: Path, points: int, some: int) -> dict[str, float]:
    """Ours, and MLflow's own ways; `some`: runs or metrics of MLflow's ways that are timed."""
    ours, slow = process(OURS, uri), process(PER_METRIC, uri, some)
    away = (folder / "artifacts").rename(folder / "away")
    unfinished = process(OURS, uri, SHOWN)
    away.rename(folder / "artifacts")
    if not ours["points"] == unfinished["points"] / SHOWN * METRICS == slow["points"] == points:
        raise SystemExit(
            f"{kind}: {ours['points']}, {unfinished['points']}, {slow['points']} of {points} points"
        )
    figures = {
        f"{kind}_ours_seconds": ours["seconds"],
        f"{kind}_unfinished_seconds": unfinished["seconds"],
        f"{kind}_per_metric_seconds": slow["seconds"],
        f"{kind}_times_faster_than_per_metric": slow["seconds"] / ours["seconds"],
    }
    if kind == "server":
        bulk = process(BULK_INTERVAL, uri, some)
        figures["server_bulk_interval_seconds"] = bulk["seconds"]
        figures["server_bulk_interval_share"] = bulk["points"] / points
        figures["server_times_faster_than_bulk_interval"] = bulk["seconds"] / ours["seconds"]
    for key, value in figures.items():
        print(f"{key:40} {value:10.3f}", flush=True)
    return figures


def measured(folder: Path, runs: int, steps: int, some: int) -> dict[str, float]:
    """The comparison on both kinds of stores: the same database, first as a file, then behind a server."""
    uri = write(folder / "store", runs, made(runs, steps), every_point=True)
    points = runs * METRICS * steps
    figures = compare("sqlite", uri, folder / "store", points, some)
    server = MlflowServer(folder / "store", uri)  # it hands out what lies in `artifacts`
    with sqlite3.connect(folder / "store" / "mlflow.db") as connection:
        connection.execute("update runs set artifact_uri = 'mlflow-artifacts:/' || run_uuid || '/artifacts'")
    connection.close()
    try:
        return figures | compare("server", server.start().uri, folder / "store", points, some)
    finally:
        server.stop()


def grown(folder: Path, sizes: list[int], steps: int) -> dict[str, float]:
    """Seconds and peak memory for each number of runs."""
    figures = {}
    for runs in sizes:
        uri = write(folder / f"grown{runs}", runs, made(1, steps), every_point=False)
        found = process(OURS, uri)
        if found["points"] != runs * METRICS * steps:
            raise SystemExit(f"{found['points']} points of {runs} runs")
        figures[f"growth_seconds_{runs}"] = found["seconds"]
        figures[f"growth_peak_mebibytes_{runs}"] = found["peak"]
        print(f"{runs} runs: {found['seconds']:.2f} s, {found['peak']:.0f} MiB", flush=True)
    return figures


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="3 runs x 20 steps, no growth")
    quick = parser.parse_args().quick
    runs, steps, some, sizes = (3, 20, 1, []) if quick else (100, 500, 3, [10, 100, 1000])
    with tempfile.TemporaryDirectory() as name:
        figures = measured(Path(name), runs, steps, some) | grown(Path(name), sizes, 1000)
    print(result("tracking_read", figures, UNITS, at_most=AT_MOST, at_least=AT_LEAST, quick=quick).line())


if __name__ == "__main__":
    main()
