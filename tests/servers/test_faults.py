"""Whatever becomes of server and trainer: the store's history is that of an unbroken run, and no step waited for it.

Trainers are processes of their own with short steps, whose metrics are known (`trainer`); the servers are real.
"""

import os
import random
import shutil
import signal
import statistics
import subprocess
import sys
import time
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from mlflow.entities import ViewType

from cppo_lab import schema
from cppo_lab.lock import is_held
from cppo_lab.spec import RunSpec
from cppo_lab.sweep.compose import compose
from cppo_lab.tracking.client import open_client
from cppo_lab.tracking.spool import read_rows
from dev.servers.faulty_proxy import Fault, FaultyProxy
from dev.servers.group import free_port
from dev.servers.mlflow_server import MlflowServer
from tests.conftest import TINY
from tests.servers.records import assert_whole, compare, expected, runs_of, stored
from tests.servers.trainer import Settings, Trainer
from tests.waiting import until

LAST = 240  # step
SLOW = 0.03  # seconds of a step, where something has to happen between the first and the last
KILLS = 20
TIMEOUT = "MLFLOW_HTTP_REQUEST_TIMEOUT"  # seconds that a trainer waits for its store
LONGEST_WAIT = 1.5  # seconds that a step may spend in `log`: shorter than any of these
PAUSE = float(os.environ.get("CPPO_PAUSE_SECONDS", "5"))  # more than the trainer's patience with a request


@pytest.fixture
def spec(request: pytest.FixtureRequest) -> RunSpec:
    """A run of this test alone: several share a server."""
    seed = zlib.crc32(request.node.nodeid.encode()) % 10**6
    return compose([*TINY, f"training.t_stop={LAST}", f"seed={seed}"]).run


Make = Callable[..., Trainer]


@pytest.fixture
def trainer(spec: RunSpec, workspace: Path) -> Iterator[Make]:
    """Makes trainers of the run, which do not outlive the test."""
    made: list[Trainer] = []

    def make(uri: str, **options: object) -> Trainer:
        patience = {TIMEOUT: "5"} | dict(options.pop("environment", {}))  # type: ignore[call-overload]
        options = {"spec": spec, "runs": workspace / "runs", "log": workspace / "log.txt"} | options
        options = {"waits": workspace / f"waits{len(made)}"} | options
        made.append(Trainer(Settings(uri=uri, environment=patience, **options)))  # type: ignore[arg-type]
        return made[-1]

    yield make
    for one in made:
        if one.process is not None:
            one.kill()


def assert_never_waited(trainer: Trainer) -> None:
    """No step waited for the store."""
    waits = [wait for _, wait in trainer.waits()]
    assert statistics.median(waits) < 0.05
    assert statistics.quantiles(waits, n=50)[-1] < 0.5
    assert max(waits) < LONGEST_WAIT


def in_mid_run(trainer: Trainer, uri: str) -> Trainer:
    """Starts it, and holds it back until the store has points of it."""
    hold = Path(f"{trainer.settings.waits}.hold")
    hold.touch()
    trainer.start()
    deadline = time.monotonic() + 300
    while not any(run.data.metrics for run in runs_of(uri, trainer.settings.spec)):
        assert trainer.alive() and time.monotonic() < deadline, trainer.log()
        time.sleep(0.1)
    hold.unlink()
    return trainer


def sync(uri: str, *arguments: str) -> str:
    """`cppo sync` in the working folder; what it prints."""
    done = subprocess.run(
        [sys.executable, "-m", "cppo_lab.cli", "sync", *arguments],
        check=True, capture_output=True, text=True, env=os.environ | {"MLFLOW_TRACKING_URI": uri},
    )  # fmt: skip
    return done.stdout


def copy_of(tables: Path, folder: Path) -> str:
    """The URI of a new SQLite store."""
    shutil.copy(tables, folder / "mlflow.db")
    return f"sqlite:///{folder}/mlflow.db"


def test_the_server_is_killed_in_mid_run_and_restarted(
    server: MlflowServer, trainer: Make, spec: RunSpec, workspace: Path
) -> None:
    going = in_mid_run(trainer(server.uri, step_seconds=SLOW), server.uri)
    server.kill()
    try:
        going.reach(going.step() + 80)
    finally:
        server.start()
    assert going.end() == 0
    assert_whole(server.uri, spec, workspace / "a")
    assert_never_waited(going)
    assert "training goes on" in going.log()
    assert "tracking store is back after" in going.log()


def test_the_server_hangs_in_mid_run(
    server: MlflowServer, trainer: Make, spec: RunSpec, workspace: Path
) -> None:
    seconds = max(SLOW, 2 * PAUSE / LAST)
    brief = {TIMEOUT: "4"}
    going = in_mid_run(trainer(server.uri, step_seconds=seconds, environment=brief), server.uri)
    server.pause()
    try:
        start = going.step()
        time.sleep(PAUSE)
        steps = going.step() - start
    finally:
        server.resume()
    assert steps > 0.3 * PAUSE / seconds
    assert going.end() == 0
    assert_whole(server.uri, spec, workspace / "a")
    assert_never_waited(going)


def test_both_die_and_the_server_is_away_when_the_next_attempt_begins(
    server: MlflowServer, trainer: Make, spec: RunSpec, workspace: Path
) -> None:
    going = trainer(server.uri, step_seconds=SLOW).start().reach(40)
    server.kill()
    try:
        going.reach(80).kill()
        going.start().reach(going.step() + 30).signal(signal.SIGTERM)
        going.end()
        assert "`cppo sync` sends it" in going.log()
    finally:
        server.start()
    assert going.start().end() == 0
    assert_whole(server.uri, spec, workspace / "a")
    assert_never_waited(going)


def test_the_server_was_never_there_and_the_store_moves(
    server: MlflowServer, trainer: Make, spec: RunSpec, workspace: Path
) -> None:
    nowhere = trainer(f"http://127.0.0.1:{free_port()}").start().reach(120)
    nowhere.signal(signal.SIGTERM)
    nowhere.end()
    assert "`cppo sync` sends it" in nowhere.log()
    going = trainer(server.uri).start()
    assert going.end() == 0
    assert_whole(server.uri, spec, workspace / "a")
    assert_never_waited(going)


def test_the_server_answers_with_errors_for_a_while(
    proxy: FaultyProxy, server: MlflowServer, trainer: Make, spec: RunSpec, workspace: Path
) -> None:
    going = in_mid_run(trainer(proxy.uri, step_seconds=SLOW), server.uri)
    refuse = Fault(status=503)
    proxy.answer(refuse)
    going.reach(going.step() + 80)
    until("it was refused", lambda: proxy.faults[refuse] > 1)
    proxy.answer(None)
    assert going.end() == 0
    assert_whole(server.uri, spec, workspace / "a")
    assert_never_waited(going)


def test_a_page_in_place_of_an_answer(
    proxy: FaultyProxy, server: MlflowServer, trainer: Make, spec: RunSpec, workspace: Path
) -> None:
    """As of a login page, or of a gateway that is kind."""
    going = in_mid_run(trainer(proxy.uri, step_seconds=SLOW), server.uri)
    page = Fault(status=200)
    proxy.answer(page)
    going.reach(going.step() + 80)
    until("it has got a page", lambda: proxy.faults[page] > 0)
    proxy.answer(None)
    assert going.end() == 0
    assert_whole(server.uri, spec, workspace / "a")


def test_a_slow_server(
    proxy: FaultyProxy, server: MlflowServer, trainer: Make, spec: RunSpec, workspace: Path
) -> None:
    proxy.answer(Fault(delay=0.5))
    going = trainer(proxy.uri).start().reach(LAST)
    proxy.answer(None)
    assert going.end() == 0
    assert_whole(server.uri, spec, workspace / "a")
    assert_never_waited(going)


@pytest.mark.parametrize(
    ("path", "times", "begun"),
    [("runs/create", 2, False), ("runs/log-batch", 5, True), ("", 25, False)],
)
def test_answers_are_lost_after_the_work_was_done(
    proxy: FaultyProxy,
    server: MlflowServer,
    trainer: Make,
    spec: RunSpec,
    workspace: Path,
    path: str,
    times: int,
    begun: bool,
) -> None:
    """MLflow's client sends such a request again, and so do we."""
    lost = Fault(cut=True, path=path, times=times)
    going = trainer(proxy.uri, step_seconds=SLOW)
    if begun:
        in_mid_run(going, server.uri)
    proxy.answer(lost)
    if not begun:
        going.start()
    assert going.end() == 0
    assert proxy.faults[lost] == times
    assert_whole(server.uri, spec, workspace / "a")


def test_the_trainer_is_killed_20_times(
    sqlite_tables: Path, trainer: Make, spec: RunSpec, workspace: Path
) -> None:
    uri, moments = copy_of(sqlite_tables, workspace), random.Random(8)
    going, reached, ids = trainer(uri, ship_seconds=0.1), [], set()
    for number in range(KILLS):
        going.start()
        # From the first moment of an attempt to some shipments after its first step.
        time.sleep(moments.uniform(0.0, 1.0))
        if moments.random() < 0.7:
            going.reach(min(LAST, going.step() + moments.randrange(1, 20)))
        going.kill()
        reached.append(going.step())
        ids |= {run.info.run_id for run in runs_of(uri, spec)}
        if number % 7 == 6:  # what saves work may be lost
            (going.settings.folder / "spool" / "shipped.json").unlink(missing_ok=True)
    assert 0 < reached[KILLS // 2] < reached[-1] < LAST, "they were to be spread over the run"
    assert going.start().end() == 0
    run = assert_whole(uri, spec, workspace / "a")
    assert len(list((going.settings.folder / "spool").glob("*.jsonl"))) > KILLS / 2
    assert ids == {run.info.run_id}


def test_the_trainer_is_killed_at_its_end(
    server: MlflowServer, trainer: Make, spec: RunSpec, workspace: Path
) -> None:
    """While it sends its last points, its artifacts and how it ended."""
    moments = random.Random(9)
    going = trainer(server.uri, ship_seconds=30.0, step_seconds=0.002).start().reach(LAST)
    for _ in range(5):
        time.sleep(moments.uniform(0.0, 0.6))
        going.kill()
        going.start()
        time.sleep(moments.uniform(0.0, 0.6))
    assert going.end() == 0
    assert_whole(server.uri, spec, workspace / "a")


def test_several_runs_write_into_one_sqlite_file(
    sqlite_tables: Path, trainer: Make, spec: RunSpec, workspace: Path
) -> None:
    uri = copy_of(sqlite_tables, workspace)
    specs = [compose([*TINY, f"training.t_stop={LAST}", f"seed={seed}"]).run for seed in range(4)]
    going = [
        trainer(
            uri, spec=one, runs=workspace / f"runs{one.seed}", ship_seconds=0.1, step_seconds=0.005
        ).start()
        for one in specs
    ]
    for one in going:
        assert one.end() == 0
        assert_whole(uri, one.settings.spec, workspace / f"a{one.settings.spec.seed}")
        assert "tracking store" not in one.log()


def test_sync_sends_what_a_dead_run_has_left(
    server: MlflowServer, trainer: Make, spec: RunSpec, workspace: Path
) -> None:
    going = trainer(server.uri, ship_seconds=30.0).start().reach(100)  # nothing was sent
    going.kill()
    assert runs_of(server.uri, spec) == []
    sync(server.uri)
    [run] = runs_of(server.uri, spec)
    rows = read_rows(going.settings.folder)
    assert rows[-1].step >= 100
    compare(stored(open_client(server.uri), run), expected(rows[-1].step))
    assert sync(server.uri).startswith("0 points of 0 runs sent")
    assert going.start().end() == 0
    assert assert_whole(server.uri, spec, workspace / "a").info.run_id == run.info.run_id


def test_a_file_that_cannot_be_reached_at_the_start(
    sqlite_tables: Path, trainer: Make, spec: RunSpec, workspace: Path
) -> None:
    away = workspace / "mount"
    away.touch()  # no folder can be made here
    uri = f"sqlite:///{away}/mlflow.db"
    going = trainer(uri, step_seconds=SLOW).start().reach(120)
    going.signal(signal.SIGTERM)
    going.end()
    assert "`cppo sync` sends it" in going.log()
    away.unlink()
    away.mkdir()
    copy_of(sqlite_tables, away)
    assert going.start().end() == 0
    assert_whole(uri, spec, workspace / "a")
    assert_never_waited(going)


def test_the_file_is_deleted_between_two_attempts(
    sqlite_tables: Path, trainer: Make, spec: RunSpec, workspace: Path
) -> None:
    uri = copy_of(sqlite_tables, workspace)
    going = in_mid_run(trainer(uri, step_seconds=SLOW), uri)
    going.kill()
    assert len(runs_of(uri, spec)) == 1
    for path in workspace.glob("mlflow.db*"):
        path.unlink()
    elsewhere = workspace / "b"  # MLflow remembers files by their names: this process must not have seen it
    elsewhere.mkdir()
    assert going.start().end() == 0
    (workspace / "mlflow.db").rename(elsewhere / "mlflow.db")
    assert_whole(f"sqlite:///{elsewhere}/mlflow.db", spec, workspace / "a")


def test_the_run_is_deleted_in_the_store_while_it_trains(
    server: MlflowServer, trainer: Make, spec: RunSpec, workspace: Path
) -> None:
    going = in_mid_run(trainer(server.uri, step_seconds=3 * SLOW), server.uri)
    client = open_client(server.uri)
    [run] = runs_of(server.uri, spec)
    client.delete_run(run.info.run_id)
    assert going.end() == 0
    [anew] = runs_of(server.uri, spec)
    assert anew.info.run_id != run.info.run_id
    compare(stored(client, anew), expected(LAST))
    assert (anew.info.status, anew.data.tags[schema.TAG_STATUS]) == ("FINISHED", schema.DONE)
    assert len(runs_of(server.uri, spec, ViewType.ALL)) == 2
    assert not is_held(going.settings.folder)


@pytest.mark.slow
def test_the_embedded_core_dies_and_so_does_the_server(
    server: MlflowServer, trainer: Make, workspace: Path, sqlite_tables: Path
) -> None:
    """The real core, against a run of the same configuration that nothing has met."""
    spec = compose([*TINY, "training.t_stop=40", "training.collapse_share=0"]).run
    uri = copy_of(sqlite_tables, workspace)
    calm = trainer(uri, stub=False, spec=spec, runs=workspace / "calm").start()
    assert calm.end() == 0
    [unbroken] = runs_of(uri, spec)
    wanted = stored(open_client(uri), unbroken)
    assert len(wanted["train/reward"]) == 40

    rough = trainer(server.uri, stub=False, spec=spec, runs=workspace / "rough").start()
    reach_on_file(rough, 10)
    rough.kill()
    rough.start()
    reach_on_file(rough, 18)
    server.kill()
    try:
        reach_on_file(rough, 25)
        rough.kill()
        rough.start()
        reach_on_file(rough, 30)
    finally:
        server.start()
    assert rough.end() == 0
    [run] = runs_of(server.uri, spec)
    found = stored(open_client(server.uri), run)
    load = {
        name for name in found.keys() | wanted.keys() if name.startswith("system/")
    }  # sampled now and then
    assert found.keys() - load == wanted.keys() - load
    for name in wanted.keys() - load:
        if name.startswith("perf/"):  # of these the steps alone can be the same
            assert found[name].keys() == wanted[name].keys()
        else:
            assert found[name] == wanted[name], name
    assert (run.info.status, run.data.tags[schema.TAG_STATUS]) == ("FINISHED", schema.DONE)


def reach_on_file(trainer: Trainer, step: int) -> None:
    """Waits until the run has recorded a step."""
    deadline = time.monotonic() + 120
    while not (rows := read_rows(trainer.settings.folder)) or rows[-1].step < step:
        assert trainer.alive(), trainer.log()
        assert time.monotonic() < deadline, trainer.log()
        time.sleep(0.05)
