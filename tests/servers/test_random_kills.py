"""A trainer that is killed at moments that nobody has chosen; `test_faults` kills it at those that have a name."""

import random
import time
from pathlib import Path

from cppo_lab.runs.spool import files
from cppo_lab.spec import RunSpec
from dev.servers.mlflow_server import MlflowServer
from tests.servers.records import assert_whole, runs_of
from tests.servers.test_faults import LAST, NEVER, Make, copy_of, spec, trainer

__all__ = ["spec", "trainer"]  # fixtures
KILLS, EARLY = 20, 3


def test_the_trainer_is_killed_20_times(
    sqlite_tables: Path, trainer: Make, spec: RunSpec, workspace: Path
) -> None:
    """From the first moment of an attempt to some shipments after its first step."""
    uri, moments = copy_of(sqlite_tables, workspace), random.Random(8)
    going, ids = trainer(uri), set()
    for number in range(KILLS):
        # Steps are let through evenly, so that kills are spread over the run on every machine. The first attempts have
        # none: a run that dies between its first step and its first checkpoint begins again, in another MLflow run.
        allowed = 1 + (number - EARLY) * (LAST - 5) // (KILLS - EARLY) if number >= EARLY else -1
        going.start(upto=allowed)
        if number == EARLY or moments.random() < 0.7:
            going.reach(allowed)
        time.sleep(moments.uniform(0.0, 1.0))
        going.kill()
        ids |= {run.info.run_id for run in runs_of(uri, spec)}
        if number % 7 == 6:  # what saves work may be lost
            (going.settings.folder / "spool" / "shipped.json").unlink(missing_ok=True)
    assert going.start().finish() == 0
    run = assert_whole(uri, spec, workspace / "a")
    assert len(files(going.settings.folder)) > KILLS / 2
    assert ids == {run.info.run_id}


def test_the_trainer_is_killed_at_its_end(
    server: MlflowServer, trainer: Make, spec: RunSpec, workspace: Path
) -> None:
    """While it sends its last points, its artifacts and how it ended."""
    moments = random.Random(9)
    going = trainer(server.uri, ship_seconds=NEVER).start().reach(LAST)
    for _ in range(5):
        time.sleep(moments.uniform(0.0, 0.6))
        going.kill()
        going.start().go_on()
        time.sleep(moments.uniform(0.0, 0.6))
    assert going.end() == 0
    assert_whole(server.uri, spec, workspace / "a")
