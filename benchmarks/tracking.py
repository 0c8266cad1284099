"""Cost of tracking per training step, compared with `mlflow.log_metrics`, on SQLite and on a real MLflow server.

A step of 100 ms logs 60 metrics. It sleeps, as one that waits for a GPU, or computes with torch in one thread. Blocks
of steps alternate: without logging, through our recorder with the uploading process at work, through MLflow. A block
of ours begins with as many steps in the spool as training has there, so that all uploading of a block's steps falls
into it; they are uploaded as those of a launch of more than half a minute.

*_log_ms             what a step waits for inside `log`, in the mean
*_held_percent       by how much tracking lengthens a step: what the training thread spends in `log`, and waits for
                     locks and for Python's interpreter beyond what it does without logging. Time in which it could
                     run, but other processes had the processors, does not count (/proc/thread-self/schedstat)

    python benchmarks/tracking.py [--quick]

The last line is JSON, see `common.py`.
"""

import contextlib
import itertools
import os
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from statistics import fmean

os.environ.setdefault("OMP_NUM_THREADS", "1")

import mlflow
import torch
from common import arguments, finish

from cppo_lab import schema
from cppo_lab.runs.recorder import Recorder
from cppo_lab.runs.spool import unsent
from cppo_lab.sweep.compose import compose
from cppo_lab.tracking import uploader
from cppo_lab.tracking.client import ensure_experiment, open_client
from cppo_lab.tracking.uploader import EVERY_SECONDS, uploading
from dev.servers.mlflow_server import MlflowServer

STEP_SECONDS = 0.1
METRICS = 60
WAITING = int(EVERY_SECONDS / STEP_SECONDS)  # steps that are on file when the uploader comes by
AT_MOST = {"*_ours_*_held_percent": 2.0}
AT_LEAST = {"*_times_less_blocking": 20.0}
UNITS = {"*_percent": "%", "*_log_ms": "ms", "*_times_*": "x"}
SEEDS = itertools.count()
NAMES = [metric.name for metric in schema.METRICS if not metric.name.startswith("search/")][:METRICS]
NAMES += [schema.validation_metric(f"benchmark{number}") for number in range(METRICS - len(NAMES))]
Log = Callable[[int], object]


def values(step: int) -> dict[str, float]:
    """The metrics of a step."""
    return {name: (step + number) / 7 for number, name in enumerate(NAMES)}


class Compute:
    """Work for one thread of torch that takes as long as a step."""

    def __init__(self) -> None:
        torch.set_num_threads(1)
        self.matrix, self.times = torch.rand(256, 256), 100
        start = time.perf_counter()
        self()
        self.times = max(1, int(100 * STEP_SECONDS / (time.perf_counter() - start)))

    def __call__(self) -> None:
        for _ in range(self.times):
            self.matrix @ self.matrix


def waited_for_processor() -> float:
    """Seconds in which this thread could have run, but had no processor."""
    return int(Path("/proc/thread-self/schedstat").read_text().split()[1]) / 1e9


class Block:
    """Steps: the mean seconds of each in `log`, and that it is held up: in `log`, and blocked outside of it."""

    def __init__(self, work: Callable[[], None], log: Log, steps: int) -> None:
        logging = outside = 0.0
        for step in range(WAITING, WAITING + steps):
            before, cpu, queued = time.perf_counter(), time.thread_time(), waited_for_processor()
            work()
            outside += time.perf_counter() - before
            outside -= time.thread_time() - cpu + waited_for_processor() - queued
            before = time.perf_counter()
            log(step)
            logging += time.perf_counter() - before
        self.logging, self.held = logging / steps, (outside + logging) / steps


def new_run(runs: Path) -> Recorder:
    """A run that the store has not seen, in a folder of its name: that of another run would be refused as a copy."""
    run = compose([f"seed={next(SEEDS)}"]).run
    return Recorder(run, {}, runs / run.run_id)


@contextlib.contextmanager
def by_recorder(uri: str, runs: Path) -> Iterator[Log]:
    """`log` through our recorder, beside the process that uploads."""
    recorder = new_run(runs)
    with uploading([recorder.folder], uri):
        while unsent(recorder.folder, uri):
            time.sleep(0.05)  # until that has begun
        for step in range(WAITING):
            recorder.log(step, values(step))
        yield lambda step: recorder.log(step, values(step))
        recorder.finish(schema.Outcome(schema.DONE, 0))


@contextlib.contextmanager
def by_mlflow(uri: str) -> Iterator[Log]:
    """`log` by `mlflow.log_metrics`, as a training script without us has it."""
    mlflow.set_tracking_uri(uri)
    experiment = ensure_experiment(open_client(uri), "direct")
    with mlflow.start_run(experiment_id=experiment):
        mlflow.log_metrics(values(0), step=0)  # what the first one sets up
        yield lambda step: mlflow.log_metrics(values(step), step=step)


def measured(
    stores: Mapping[str, str], runs: Path, rounds: int, steps: int, kinds: Mapping[str, Callable[[], None]]
) -> dict[str, float]:
    """Blocks of steps with every kind of work, store and logger, `rounds` times."""
    blocks: dict[tuple[str, str, str], list[Block]] = defaultdict(list)
    for _ in range(rounds):
        for kind, work in kinds.items():
            blocks[kind, "", ""].append(Block(work, lambda step: None, steps))
            for name, uri in stores.items():
                with by_recorder(uri, runs) as log:
                    blocks[kind, name, "ours"].append(Block(work, log, steps))
        for name, uri in stores.items():
            with by_mlflow(uri) as log:
                blocks["sleep", name, "direct"].append(Block(kinds["sleep"], log, steps // 2))
    figures = {}
    for (kind, name, logger), of_rounds in blocks.items():
        if logger:
            key, bare = f"{name}_{logger}_{kind}", blocks[kind, "", ""]
            figures[f"{key}_log_ms"] = 1000 * fmean(block.logging for block in of_rounds)
            held = fmean(block.held for block in of_rounds) - fmean(block.held for block in bare)
            figures[f"{key}_held_percent"] = 100 * held / STEP_SECONDS
    for name in stores:
        ours = fmean(figures[f"{name}_ours_{kind}_log_ms"] for kind in kinds)
        figures[f"{name}_times_less_blocking"] = figures[f"{name}_direct_sleep_log_ms"] / ours
    return figures


def main() -> None:
    """Measures and prints."""
    quick = arguments(__doc__, "one round of short blocks that sleep").quick
    uploader.FIRST_SECONDS = 0.0
    rounds, steps = (1, 4) if quick else (4, 65)
    kinds: dict[str, Callable[[], None]] = {"sleep": partial(time.sleep, STEP_SECONDS)}  # a step of a GPU
    if not quick:
        kinds["compute"] = Compute()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        stores = {"sqlite": f"sqlite:///{folder}/mlflow.db"}
        open_client(stores["sqlite"])
        server = MlflowServer(folder, f"sqlite:///{folder}/server.db")
        try:
            stores["server"] = server.start().uri
            figures = measured(stores, folder / "runs", rounds, steps, kinds)
        finally:
            server.stop()
    finish(figures, UNITS, at_most=AT_MOST, at_least=AT_LEAST, quick=quick)


if __name__ == "__main__":
    main()
