"""Whatever becomes of server and trainer: the store's history is that of an unbroken run, and no step waits for it.

Trainers are processes of their own whose metrics are known, and which wait at a gate before each step that a test does
not want yet (`trainer`): what a test does to them or to the store happens at a named point. The servers are real.
"""

import shutil
import signal
import zlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest
from mlflow.entities import ViewType

from cppo_lab import schema
from cppo_lab.cli import main
from cppo_lab.cores.base import CHECKPOINT
from cppo_lab.runs.folder import is_held
from cppo_lab.runs.spool import files, read_rows
from cppo_lab.spec import RunSpec
from cppo_lab.sweep.compose import compose
from cppo_lab.tracking import address
from cppo_lab.tracking.client import open_client
from dev.servers.faulty_proxy import Fault, FaultyProxy
from dev.servers.group import free_port
from dev.servers.mlflow_server import MlflowServer
from tests.conftest import TINY
from tests.servers.forked import KillAt
from tests.servers.forked_server import ForkedServer
from tests.servers.points import AT_ITS_END, WHILE_IT_TRAINS
from tests.servers.records import assert_whole, compare, expected, runs_of, stored
from tests.servers.trainer import Settings, Trainer
from tests.waiting import CEILING_SECONDS, until

LAST = 60  # step
MIDDLE = 15  # where runs are when something happens to their store; no checkpoint is there
LATER = 35  # a step that they reach meanwhile
TIMEOUT = "MLFLOW_HTTP_REQUEST_TIMEOUT"  # seconds that a trainer waits for its store
NEVER = 1e9  # seconds


@pytest.fixture
def spec(request: pytest.FixtureRequest) -> RunSpec:
    """A run of this test alone: several share a server."""
    seed = zlib.crc32(request.node.nodeid.encode()) % 10**6
    return compose([*TINY, f"training.t_stop={LAST}", f"seed={seed}"]).run


Make = Callable[..., Trainer]


@pytest.fixture
def trainer(spec: RunSpec, workspace: Path) -> Iterator[Make]:
    """Makes trainers of the run, which do not outlive the test. They wait for a store as long as tests wait."""
    made: list[Trainer] = []

    def make(uri: str, environment: Mapping[str, str] | None = None, **options: object) -> Trainer:
        patience = {TIMEOUT: f"{CEILING_SECONDS:.0f}"} | dict(environment or {})
        options = {"spec": spec, "runs": workspace / "runs", "log": workspace / "log.txt"} | options
        options = {"steps": workspace / f"steps{len(made)}"} | options
        made.append(Trainer(Settings(uri=uri, environment=patience, **options)))  # type: ignore[arg-type]
        return made[-1]

    yield make
    for one in made:
        one.close()


def assert_never_waited(trainer: Trainer) -> None:
    """No step has asked the store itself. (That none waits for who does shows where steps are taken while it hangs.)"""
    steps = trainer.steps()
    assert steps
    assert [step for step, asked in steps if asked] == []


def in_mid_run(trainer: Trainer, uri: str) -> Trainer:
    """Starts it, and holds it back until the store has points of it."""
    trainer.start().reach(MIDDLE)
    until(
        "the store has points", lambda: any(run.data.metrics for run in runs_of(uri, trainer.settings.spec))
    )
    return trainer


def copy_of(tables: Path, folder: Path) -> str:
    """The URI of a new SQLite store."""
    shutil.copy(tables, folder / "mlflow.db")
    return f"sqlite:///{folder}/mlflow.db"


def test_the_server_is_killed_in_mid_run_and_restarted(
    mortal: ForkedServer, trainer: Make, spec: RunSpec, workspace: Path
) -> None:
    going = in_mid_run(trainer(mortal.uri), mortal.uri)
    mortal.kill()
    try:
        going.reach(LATER).until_said("training continues")
    finally:
        mortal.start()
    going.until_said("tracking store is back after")
    assert going.finish() == 0
    assert_whole(mortal.uri, spec, workspace / "a")
    assert_never_waited(going)


def test_the_server_hangs_in_mid_run(
    server: MlflowServer, trainer: Make, spec: RunSpec, workspace: Path
) -> None:
    """Steps go on while a request waits; it is given up, and may be carried out when the server goes on."""
    going = in_mid_run(trainer(server.uri, {TIMEOUT: "4"}), server.uri)
    server.pause()
    try:
        going.reach(LATER).until_said("training continues")
    finally:
        server.resume()
    assert going.finish() == 0
    assert_whole(server.uri, spec, workspace / "a")
    assert_never_waited(going)


def test_both_die_and_the_server_is_away_when_the_next_attempt_begins(
    mortal: ForkedServer, trainer: Make, spec: RunSpec, workspace: Path
) -> None:
    going = trainer(mortal.uri, hurry=0.0).start().reach(MIDDLE)
    mortal.kill()
    try:
        going.reach(LATER).kill()
        going.start().reach(LATER + 10).signal(signal.SIGTERM)
        going.end()
        assert "`cppo sync` uploads it" in going.log()
    finally:
        mortal.start()
    assert going.start().finish() == 0
    assert_whole(mortal.uri, spec, workspace / "a")
    assert_never_waited(going)


def test_the_server_was_never_there_and_the_store_moves(
    server: MlflowServer, trainer: Make, spec: RunSpec, workspace: Path
) -> None:
    nowhere = trainer(f"http://127.0.0.1:{free_port()}", hurry=0.0).start().reach(MIDDLE)
    nowhere.signal(signal.SIGTERM)
    nowhere.end()
    assert "`cppo sync` uploads it" in nowhere.log()
    assert_never_waited(nowhere)
    going = trainer(server.uri).start()
    assert going.finish() == 0
    assert_whole(server.uri, spec, workspace / "a")
    assert_never_waited(going)


def test_the_server_answers_with_errors_for_a_while(
    proxy: FaultyProxy, server: MlflowServer, trainer: Make, spec: RunSpec, workspace: Path
) -> None:
    going = in_mid_run(trainer(proxy.uri), server.uri)
    refuse = Fault(status=503)
    proxy.answer(refuse)
    going.reach(LATER)
    until("it was refused", lambda: proxy.faults[refuse] > 1)
    proxy.answer(None)
    assert going.finish() == 0
    assert_whole(server.uri, spec, workspace / "a")
    assert_never_waited(going)


def test_a_page_in_place_of_an_answer(
    proxy: FaultyProxy, server: MlflowServer, trainer: Make, spec: RunSpec, workspace: Path
) -> None:
    """As of a login page, or of a gateway that is kind."""
    going = in_mid_run(trainer(proxy.uri), server.uri)
    page = Fault(status=200)
    proxy.answer(page)
    going.reach(LATER)
    until("it has got a page", lambda: proxy.faults[page] > 0)
    proxy.answer(None)
    assert going.finish() == 0
    assert_whole(server.uri, spec, workspace / "a")


def test_a_slow_server(
    proxy: FaultyProxy, server: MlflowServer, trainer: Make, spec: RunSpec, workspace: Path
) -> None:
    """All steps are over before it has answered a single request of them."""
    going = in_mid_run(trainer(proxy.uri), server.uri)
    slow = Fault(hold=True)
    proxy.answer(slow)
    going.reach(LAST)
    until("a request waits", lambda: proxy.faults[slow])
    proxy.answer(None)
    assert going.finish() == 0
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
    going = trainer(proxy.uri)
    if begun:
        in_mid_run(going, server.uri)
    proxy.answer(lost)
    if not begun:
        going.start()
    assert going.finish() == 0
    assert proxy.faults[lost] == times
    assert_whole(server.uri, spec, workspace / "a")


def test_the_trainer_is_killed_at_every_point_while_it_trains(
    sqlite_tables: Path, trainer: Make, spec: RunSpec, workspace: Path
) -> None:
    """Once at each; every fourth time what was noted of the shipment, which saves work and may be lost, is lost too."""
    uri = copy_of(sqlite_tables, workspace)
    going, ids = trainer(uri), set()
    for number, point in enumerate(WHILE_IT_TRAINS):
        kill = KillAt("tests.servers.points:POINTS", point, workspace / "point")
        going.start(kill).let(3 * number)
        assert (going.end(), kill.reached()) == (-signal.SIGKILL, point), going.log()
        ids |= {run.info.run_id for run in runs_of(uri, spec)}
        if number % 4 == 3:
            (going.settings.folder / "spool" / "shipped.json").unlink(missing_ok=True)
    assert going.start().finish() == 0
    run = assert_whole(uri, spec, workspace / "a")
    assert len(files(going.settings.folder)) == len(WHILE_IT_TRAINS) + 1
    assert ids == {run.info.run_id}


def test_the_trainer_is_killed_at_every_point_of_its_end(
    server: MlflowServer, trainer: Make, spec: RunSpec, workspace: Path
) -> None:
    """While it sends its last points, its artifacts and how it ended: the store has nothing of it before."""
    going = trainer(server.uri, ship_seconds=NEVER)
    for number, point in enumerate(AT_ITS_END):
        kill = KillAt("tests.servers.points:POINTS", point, workspace / "point")
        going.start(kill).go_on()
        assert (going.end(), kill.reached()) == (-signal.SIGKILL, point), going.log()
        assert (going.settings.folder / CHECKPOINT).exists() == (number < 3)
    assert going.start().finish() == 0
    assert not (going.settings.folder / CHECKPOINT).exists()
    assert max(step for step, _ in going.steps()) == LAST
    assert_whole(server.uri, spec, workspace / "a")


def test_several_runs_write_into_one_sqlite_file(
    sqlite_tables: Path, trainer: Make, spec: RunSpec, workspace: Path
) -> None:
    uri = copy_of(sqlite_tables, workspace)
    specs = [compose([*TINY, f"training.t_stop={LAST}", f"seed={seed}"]).run for seed in range(4)]
    going = [trainer(uri, spec=one, runs=workspace / f"runs{one.seed}").start() for one in specs]
    for one in going:
        one.reach(MIDDLE)
    for one in going:
        one.go_on()
    for one in going:
        assert one.end() == 0
        assert_whole(uri, one.settings.spec, workspace / f"a{one.settings.spec.seed}")
        assert "tracking store" not in one.log()


def test_sync_sends_what_a_dead_run_has_left(
    server: MlflowServer,
    trainer: Make,
    spec: RunSpec,
    workspace: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    going = trainer(server.uri, ship_seconds=NEVER).start().reach(LATER)  # nothing was sent
    going.kill()
    assert runs_of(server.uri, spec) == []
    monkeypatch.setenv(address.VARIABLE, server.uri)
    assert main(["sync"]) == 0
    [run] = runs_of(server.uri, spec)
    rows = read_rows(going.settings.folder)
    assert rows[-1].step == LATER
    compare(stored(open_client(server.uri), run), expected(LATER, LAST))
    capsys.readouterr()
    assert main(["sync"]) == 0
    assert capsys.readouterr().out.startswith("0 points of 0 runs uploaded")
    assert going.start().finish() == 0
    assert assert_whole(server.uri, spec, workspace / "a").info.run_id == run.info.run_id


def test_a_file_that_cannot_be_reached_at_the_start(
    sqlite_tables: Path, trainer: Make, spec: RunSpec, workspace: Path
) -> None:
    away = workspace / "mount"
    away.touch()  # no folder can be made here
    uri = f"sqlite:///{away}/mlflow.db"
    going = trainer(uri, hurry=0.0).start().reach(LATER)
    going.signal(signal.SIGTERM)
    going.end()
    assert "`cppo sync` uploads it" in going.log()
    away.unlink()
    away.mkdir()
    copy_of(sqlite_tables, away)
    assert going.start().finish() == 0
    assert_whole(uri, spec, workspace / "a")
    assert_never_waited(going)


def test_the_file_is_deleted_between_two_attempts(
    sqlite_tables: Path, trainer: Make, spec: RunSpec, workspace: Path
) -> None:
    uri = copy_of(sqlite_tables, workspace)
    going = in_mid_run(trainer(uri), uri)
    going.kill()
    assert len(runs_of(uri, spec)) == 1
    for path in workspace.glob("mlflow.db*"):
        path.unlink()
    elsewhere = workspace / "b"  # MLflow remembers files by their names: this process must not have seen it
    elsewhere.mkdir()
    assert going.start().finish() == 0
    (workspace / "mlflow.db").rename(elsewhere / "mlflow.db")
    assert_whole(f"sqlite:///{elsewhere}/mlflow.db", spec, workspace / "a")


def test_the_run_is_deleted_in_the_store_while_it_trains(
    server: MlflowServer, trainer: Make, spec: RunSpec, workspace: Path
) -> None:
    going = in_mid_run(trainer(server.uri), server.uri)
    client = open_client(server.uri)
    [run] = runs_of(server.uri, spec)
    client.delete_run(run.info.run_id)
    going.reach(LATER)
    until("it is recorded in another run", lambda: runs_of(server.uri, spec))
    assert going.finish() == 0
    [anew] = runs_of(server.uri, spec)
    assert anew.info.run_id != run.info.run_id
    compare(stored(client, anew), expected(LAST, LAST))
    assert (anew.info.status, anew.data.tags[schema.TAG_STATUS]) == ("FINISHED", schema.DONE)
    assert len(runs_of(server.uri, spec, ViewType.ALL)) == 2
    assert not is_held(going.settings.folder)


@pytest.mark.slow
def test_the_embedded_core_dies_and_so_does_the_server(
    mortal: ForkedServer, trainer: Make, workspace: Path, sqlite_tables: Path
) -> None:
    """The real core, against a run of the same configuration that nothing has met."""
    spec = compose([*TINY, "training.t_stop=16", "training.collapse_share=0"]).run
    uri = copy_of(sqlite_tables, workspace)
    calm = trainer(uri, stub=False, spec=spec, runs=workspace / "calm").start()
    assert calm.finish() == 0
    [unbroken] = runs_of(uri, spec)
    wanted = stored(open_client(uri), unbroken)
    assert len(wanted["train/reward"]) == 16

    rough = trainer(mortal.uri, stub=False, spec=spec, runs=workspace / "rough").start().reach(5)
    rough.kill()
    rough.start().reach(7)
    mortal.kill()
    try:
        rough.reach(11).kill()
        rough.start().reach(13)
    finally:
        mortal.start()
    assert rough.finish() == 0
    [run] = runs_of(mortal.uri, spec)
    found = stored(open_client(mortal.uri), run)
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
    assert_never_waited(rough)
