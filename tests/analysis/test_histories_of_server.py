"""A run that our recorder brought to a real MLflow server, read back in bulk: what was logged is what comes out, and
once it has ended from its file. From a SQLite file: tests/tracking/test_read.py.
"""

import functools
import math
from pathlib import Path
from unittest.mock import patch

from cppo_lab import schema
from cppo_lab.analysis.inputs import SweepData
from cppo_lab.analysis.reader import read_sweep
from cppo_lab.runs.recorder import Recorder
from cppo_lab.schema import Outcome
from cppo_lab.spec import RunSpec
from cppo_lab.tracking.client import open_client
from cppo_lab.tracking.upload import ship
from tests.servers.conftest import MlflowServer, server, sqlite_tables

__all__ = ["server", "sqlite_tables"]  # fixtures, of the one server that a session has
STEPS = 12
TAGS = {schema.sweep_tag("demo"): "cppo"}


def metrics(step: int) -> dict[str, float]:
    """What is logged at a step."""
    values = {"train/loss": 1 / step, "train/grad_norm": math.nan if step == 3 else step * math.pi}
    values["rule/divergence_max"] = math.inf if step == STEPS else 0.1
    return values | ({"val/a/avg_at_16": step / 100} if step % 4 == 0 else {})


NAMES = sorted(metrics(4))


def assert_points(data: SweepData, steps: int) -> None:
    """The rows of a single run are these metrics of the first steps, by name."""
    logged = [(name, step, metrics(step)) for name in NAMES for step in range(1, steps + 1)]
    expected = [(name, step, repr(values[name])) for name, step, values in logged if name in values]
    rows = data.metrics[["metric", "step", "value"]].itertuples(index=False, name=None)
    assert [(name, step, repr(float(value))) for name, step, value in rows] == expected


def test_a_run_from_its_first_steps_to_its_end(
    server: MlflowServer, tiny_spec: RunSpec, tmp_path: Path
) -> None:
    store, folder = server.uri, tmp_path / "runs" / tiny_spec.run_id
    read = functools.partial(read_sweep, store, schema.experiment_name("mini"), "demo")
    recorder = Recorder(tiny_spec, TAGS, folder)
    for step in range(1, STEPS + 1):
        recorder.log(step, metrics(step))
        if step == STEPS // 2:
            ship(folder, store, open_client(store))
            assert_points(read(), STEPS // 2)
    recorder.finish(Outcome(schema.DONE, STEPS))
    ship(folder, store, open_client(store))
    with patch("cppo_lab.tracking.client.StoreClient.points") as asked:
        whole = read()
    assert_points(whole, STEPS)
    assert list(whole.runs["status"]) == [schema.DONE] and not asked.called
