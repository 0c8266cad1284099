"""Mirrors to the real packages: W&B without a network, Trackio's own database; and to one that fails."""

import json
import os
import signal
import sqlite3
import struct
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest

from cppo_lab.cli import main
from cppo_lab.errors import UserError
from cppo_lab.runs.folder import run_lock
from cppo_lab.runs.spool import read_rows, unsent
from cppo_lab.schema import Outcome
from cppo_lab.spec import RunSpec
from cppo_lab.tracking import services
from cppo_lab.tracking.services import mirroring
from tests.conftest import TINY, Command
from tests.tracking.conftest import LOSS, Attempt
from tests.waiting import CEILING_SECONDS, until

# In a process, with which W&B's own ends. Two mirrors of it send each point once.
SEND = (
    "import signal, sys; from pathlib import Path; from cppo_lab.tracking.services import Mirror\n"
    "mirrors = Mirror(sys.argv[1]), Mirror(sys.argv[1])\n"
    "for mirror in mirrors: mirror.update([Path(sys.argv[2])])\n"
    "if sys.argv[3:]: signal.pause()  # it is killed before it has ended a run\n"
)


def wandb_losses() -> Iterator[list[tuple[int, float]]]:
    """The losses by step in each run that W&B has written, oldest first: blocks of LevelDB's log, with protobuf."""
    from wandb.proto.wandb_internal_pb2 import Record

    for path in sorted(Path("wandb").glob("offline-run-*/run-*.wandb")):
        data, place, whole, losses = path.read_bytes(), 7, b"", []
        while place < len(data):
            if 32768 - place % 32768 < 7:
                place += 32768 - place % 32768
                continue
            length, kind = struct.unpack_from("<HB", data, place + 4)
            whole, place = whole + data[place + 7 : place + 7 + length], place + 7 + length
            if kind in (1, 4):  # the last part of a record
                record, whole = Record.FromString(whole), b""
                values = {
                    "/".join(item.nested_key) or item.key: item.value_json for item in record.history.item
                }
                if LOSS in values:
                    losses.append((record.history.step.num, float(values[LOSS])))
        yield losses


def losses(name: str) -> list[tuple[int, float]]:
    if name == "wandb":
        return list(wandb_losses())[-1]
    with sqlite3.connect("trackio/cppo-mini.db") as database:
        rows = database.execute("SELECT step, metrics FROM metrics ORDER BY id").fetchall()
    values = [(step, json.loads(metrics)) for step, metrics in rows]
    return [(step, metrics[LOSS]) for step, metrics in values if LOSS in metrics]


@pytest.fixture
def folder(workspace: Path, tiny_spec: RunSpec) -> Path:
    """Of a run; the clock goes on, since the packages need it."""
    path = workspace / "runs" / tiny_spec.run_id
    path.mkdir(parents=True)
    return path


@pytest.fixture(params=services.MIRRORS)
def name(request: pytest.FixtureRequest, workspace: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    if find_spec(request.param) is None:
        pytest.skip(f"{request.param} is not installed (for Trackio not with constraints-cpu.txt)")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("TRACKIO_DIR", str(workspace / "trackio"))
    return str(request.param)


def test_no_step_is_lost_or_sent_twice_when_run_and_mirror_are_killed(
    name: str, attempt: Attempt, folder: Path
) -> None:
    def send(*waits: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen([sys.executable, "-c", SEND, name, folder, *waits])

    attempt(1, 2, 3)
    mirrored = send("waits")
    written = "wandb/offline-run-*/run-*.wandb" if name == "wandb" else "trackio/*.db"
    until("the package has written", lambda: any(path.stat().st_size for path in Path().glob(written)))
    mirrored.kill()
    assert mirrored.wait() == -signal.SIGKILL and unsent(folder, name)
    resumed = attempt(3, 4, after=2)
    resumed.log(5, {LOSS: -5})
    resumed.finish(Outcome("done", 5))
    assert send().wait() == 0 and not unsent(folder, name)
    assert losses(name) == [(step, -step) for step in (1, 2, 3, 4, 5)]
    copies = len(list(wandb_losses()))
    assert send().wait() == 0
    assert (len(list(wandb_losses())), len(losses(name))) == (copies, 5)


def test_of_two_mirrors_one_has_a_run_and_ends_it(
    attempt: Attempt, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Mock(_next_step=0)
    package = SimpleNamespace(init=Mock(side_effect=ConnectionError))
    monkeypatch.setitem(sys.modules, "trackio", package)
    attempt(1, 2)
    with pytest.raises(UserError) as fault:  # another may take what this one has given up
        services.Mirror("trackio").update([folder])
    package.init = lambda **_: run
    mirrors = services.Mirror("trackio"), services.Mirror("trackio")
    for mirror in mirrors:
        mirror.update([folder])
    assert [call.kwargs["step"] for call in run.log.call_args_list] == [1, 2]
    for mirror in mirrors:
        mirror.close()
    run.finish.assert_called_once_with()
    assert not unsent(folder, "trackio"), fault


def test_a_launch_mirrors_every_point(name: str, cppo: Command) -> None:
    cppo("launch quickstart variant=cppo seed=0 launcher=inline", *TINY, f"tracking.mirror={name}")
    (run,) = Path("runs").glob("*/spool")
    rows = [row for row in read_rows(run.parent) if LOSS in row.metrics]
    assert len(rows) == 4
    assert losses(name) == [(row.step, pytest.approx(row.metrics[LOSS])) for row in rows]
    assert services.MIRROR_VARIABLE not in os.environ


@pytest.fixture
def trackio(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file of a package in Trackio's place, which is the mirror."""
    site = workspace / "site"
    site.mkdir()
    monkeypatch.syspath_prepend(site)
    monkeypatch.setenv("PYTHONPATH", str(site))
    monkeypatch.setenv(services.MIRROR_VARIABLE, "trackio")
    return site / "trackio.py"


@pytest.mark.parametrize(
    "code", ["def init(**_): raise RuntimeError", "def init(**_): raise SystemExit", "raise ImportError"]
)
def test_a_mirror_that_fails_is_one_line(
    code: str,
    trackio: Path,
    attempt: Attempt,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    trackio.write_text(f"{code}('no room in the mirror')")
    monkeypatch.setitem(sys.modules, "trackio", None)
    del sys.modules["trackio"]  # and again after the test
    monkeypatch.setattr("cppo_lab.tracking.services.MIRROR_LAST_SECONDS", 20.0)
    attempt(1, 2).finish(Outcome("done", 2))
    with mirroring([folder]):
        pass
    assert capfd.readouterr().err.splitlines() == [
        "mirror trackio fails: no room in the mirror: `CPPO_MIRROR=trackio cppo sync` sends the rest later; training "
        "and the tracking store go on"
    ]
    assert unsent(folder, "trackio")
    assert main(["sync"]) == 2
    assert "mirror trackio fails: no room in the mirror" in capfd.readouterr().err


def test_sync_watch_goes_on_while_the_mirror_is_away(
    trackio: Path, attempt: Attempt, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    run = Mock(_next_step=0)
    run.log.side_effect = [ConnectionError, ConnectionError, None, None]
    package = SimpleNamespace(init=lambda **_: run, __spec__=SimpleNamespace())
    monkeypatch.setitem(sys.modules, "trackio", package)
    looks = Mock(side_effect=[(0, 0), (0, 0), (0, 0), KeyboardInterrupt])
    monkeypatch.setattr("cppo_lab.tracking.upload.upload", looks)
    monkeypatch.setattr("time.sleep", lambda _: None)
    attempt(1, 2)
    assert main(["sync", "--watch"]) == 130
    assert [call.kwargs["step"] for call in run.log.call_args_list] == [1, 1, 1, 2]
    run.finish.assert_called_once_with()
    said = capfd.readouterr()
    assert said.err.count("mirror trackio fails: ConnectionError") == 1 and said.out == ""


def test_the_mirror_outlives_a_killed_launcher_until_its_runs_have_ended(
    trackio: Path, folder: Path, attempt: Attempt
) -> None:
    """The package notes each call, so that the end of the run can be told from that of the launcher."""
    calls = Path("calls")
    trackio.write_text(
        "from cppo_lab.tracking import services\nservices.EVERY_SECONDS = 0.1  # from its first use on\n"
        "class Run:\n    _next_step = 0\n"
        "    def log(self, metrics, step): open('calls', 'a').write(f'{step} ')\n"
        "    def finish(self): open('calls', 'a').write('end')\n"
        "def init(**_): return Run()\n"
    )
    owner = (
        "import os, sys; from pathlib import Path; from cppo_lab.tracking import services\n"
        "with services.mirroring([Path(sys.argv[1])]): os._exit(9)\n"
    )
    with run_lock(folder):
        run = attempt(1, 2)
        subprocess.run([sys.executable, "-c", owner, folder], check=False, timeout=CEILING_SECONDS)
        until("both steps", lambda: calls.exists() and calls.read_text() == "1 2 ")
        run.finish(Outcome("done", 2))
    until("the end", lambda: calls.read_text() == "1 2 end")
    until("its progress is noted", lambda: not unsent(folder, "trackio"))  # the last that it does


def test_what_cannot_be_a_mirror_is_refused_before_anything_starts(
    cppo: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    said = cppo("launch quickstart tracking.mirror=wandb", *TINY, code=2).err
    assert "needs the package wandb, which is not installed: pip install wandb" in said
    assert not Path("runs").exists() and not Path("mlflow.db").exists()
