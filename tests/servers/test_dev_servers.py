"""The servers that the other tests rely on do what they say."""

import errno
import http.client
import os
import signal
import socket
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from dev.errors import DevError
from dev.servers.__main__ import main
from dev.servers.faulty_proxy import Fault, FaultyProxy
from dev.servers.group import Group, free_port
from dev.servers.postgres import Postgres, default_folder, own_folder
from tests.requirement import POSTGRES
from tests.waiting import CEILING_SECONDS, until

COUNTS = "import itertools\nfor i in itertools.count():\n    print(i, flush=True)\n"


def members(group: int) -> dict[int, str]:
    """The living processes of a process group, and the state of each as the kernel writes it."""
    found = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if int(fields[2]) == group and fields[0] not in "ZX":
                found[int(entry.name)] = fields[0]
    return found


def wait_until_gone(group: int) -> None:
    until(f"group {group} is gone", lambda: not members(group))


def test_a_group_is_paused_resumed_and_killed_with_its_children(tmp_path: Path) -> None:
    log = tmp_path / "log"
    child = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {COUNTS!r}])"
    group = Group([sys.executable, "-c", child], log, os.environ, tmp_path)
    until("the child prints", lambda: log.exists() and log.stat().st_size)
    pid = group._process.pid
    group.pause()
    until("all are stopped", lambda: set(members(pid).values()) == {"T"})
    size = log.stat().st_size
    assert len(members(pid)) == 3  # with the guard
    assert group.alive()
    group.resume()
    until("the child prints again", lambda: log.stat().st_size > size)
    assert "T" not in members(pid).values()
    group.kill()
    wait_until_gone(pid)


def test_a_group_ends_with_whoever_started_it(tmp_path: Path) -> None:
    script = (
        "import os, time; from pathlib import Path; from dev.servers.group import Group\n"
        f"group = Group(['sleep', '1000'], Path({os.fspath(tmp_path / 'log')!r}), os.environ, Path('/'))\n"
        "print(group._process.pid, flush=True); time.sleep(1000)"
    )
    owner = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    assert owner.stdout is not None
    pid = int(owner.stdout.readline())
    assert members(pid)
    owner.send_signal(signal.SIGKILL)
    owner.wait()
    wait_until_gone(pid)


class _Counting(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    seen: list[bytes]

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.seen.append(body)
        self.send_response_only(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body[::-1])


@pytest.fixture
def echo() -> Iterator[ThreadingHTTPServer]:
    _Counting.seen = []
    with ThreadingHTTPServer(("127.0.0.1", 0), _Counting) as running:
        threading.Thread(target=running.serve_forever, args=(0.05,), daemon=True).start()
        yield running
        running.shutdown()


def post(uri: str, body: bytes) -> bytes:
    with urllib.request.urlopen(
        urllib.request.Request(f"{uri}/a/b?c", body), timeout=CEILING_SECONDS
    ) as answer:
        return bytes(answer.read())


def test_the_proxy_passes_on_holds_refuses_and_loses_answers(echo: ThreadingHTTPServer) -> None:
    with FaultyProxy(echo.server_address[1]) as proxy:
        assert post(proxy.uri, b"abc") == b"cba"
        proxy.answer(Fault(status=503, path="/a/", times=1))
        with pytest.raises(urllib.error.HTTPError) as refused:
            post(proxy.uri, b"no")
        refused.value.close()
        assert refused.value.code == 503
        assert post(proxy.uri, b"def") == b"fed"  # once
        lost = Fault(cut=True)
        proxy.answer(lost)
        with pytest.raises((urllib.error.URLError, http.client.HTTPException, OSError)):
            post(proxy.uri, b"done")
        proxy.answer(Fault(cut=True, path="/elsewhere"))
        assert post(proxy.uri, b"ghi") == b"ihg"
        late = Fault(hold=True)
        proxy.answer(late)
        with ThreadPoolExecutor() as pool:
            answer = pool.submit(post, proxy.uri, b"late")
            until("the proxy has the request", lambda: proxy.faults[late])
            assert (answer.done(), b"late" in _Counting.seen) == (False, False)
            proxy.answer(None)
            assert answer.result() == b"etal"
        assert _Counting.seen == [b"abc", b"def", b"done", b"ghi", b"late"]
        assert proxy.requests == {"/a/b": 6}
        assert proxy.faults[lost] == 1


@pytest.mark.parametrize("how", [Postgres.kill, Postgres.crash])
def test_postgres_keeps_what_was_committed_through_a_crash(
    postgres: Postgres, how: Callable[[Postgres], bool]
) -> None:
    database = how.__name__
    assert "@127.0.0.1:" in postgres.make_database(database)
    postgres.sql("CREATE TABLE kept (x int); INSERT INTO kept VALUES (7)", database)
    assert how(postgres)
    assert not how(postgres)
    with pytest.raises(DevError, match="psql failed"):
        postgres.sql("SELECT 1")
    assert postgres.start()
    assert not postgres.start()
    assert postgres.sql("SELECT x FROM kept", database) == "7\n"
    with pytest.raises(DevError, match="does not exist"):
        postgres.sql("SELECT nothing", database)


def test_the_command_line(postgres: Postgres, capsys: pytest.CaptureFixture[str]) -> None:
    place = ["--folder", os.fspath(postgres.folder)]
    assert main([*place, "status"]) == 0
    assert capsys.readouterr().out == f"{postgres.url()}\n"
    assert main([*place, "stop"]) == 0
    assert main([*place, "status"]) == 1
    assert main([*place, "stop"]) == 0
    assert main([*place, "start"]) == 0
    assert main(["install"]) == 0
    said = capsys.readouterr().out.splitlines()
    assert said == [
        "stopped",
        f"nothing runs in {postgres.folder}",
        "nothing was running",
        f"export MLFLOW_TRACKING_URI={postgres.url()}",
        "nothing to install",
    ]


def test_missing_postgres_is_a_skip_or_a_failure(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("dev.servers.postgres.DEBIAN", tmp_path)
    monkeypatch.setenv("PATH", os.fspath(tmp_path))
    assert main(["--folder", os.fspath(tmp_path / "none"), "start"]) == 1
    assert "error: not installed: initdb, pg_ctl" in capsys.readouterr().err
    for name in ("CI", "CPPO_REQUIRE_POSTGRES"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(pytest.skip.Exception, match="initdb"):
        POSTGRES.demand()
    for name in ("CI", "CPPO_REQUIRE_POSTGRES"):
        monkeypatch.setenv(name, "1")
        with pytest.raises(pytest.fail.Exception, match=rf"{name} is set.*initdb"):
            POSTGRES.demand()
        monkeypatch.setenv(name, "0")


def test_clusters_of_users_do_not_meet() -> None:
    assert default_folder("x") == Path(f"/tmp/cppo-postgres-{os.getuid()}/x")


def test_a_port_is_given_to_one_alone_and_a_server_can_listen_on_it() -> None:
    port = free_port()
    with socket.socket() as other, pytest.raises(OSError, match="in use"):
        other.bind(("127.0.0.1", port))  # as another process that looks for one does
    with socket.socket() as refused:
        assert refused.connect_ex(("127.0.0.1", port)) == errno.ECONNREFUSED
    for _ in range(2):  # it may come back
        with socket.create_server(("127.0.0.1", port)) as server, socket.socket() as client:
            client.connect(("127.0.0.1", port))
            server.accept()[0].close()
        with socket.socket() as other, pytest.raises(OSError, match="in use"):
            other.bind(("127.0.0.1", port))


def test_the_cluster_of_a_killed_session_is_cleared_away_and_no_living_one_s(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("dev.servers.postgres.default_folder", lambda name: tmp_path / "all" / name)
    with own_folder("a") as living:
        (living / "data").mkdir(parents=True)
        killed = tmp_path / "all" / "a-killed"
        killed.mkdir()
        Path(f"{killed}.lock").touch()  # whose lock nobody holds any more
        of_another_kind = tmp_path / "all" / "b-killed.lock"
        of_another_kind.touch()
        with own_folder("a") as own:
            assert own not in (living, killed)
            assert not own.exists()
            assert {path.name for path in own.parent.iterdir()} == {
                living.name,
                f"{living.name}.lock",
                f"{own.name}.lock",
                "b-killed.lock",
            }
    assert {path.name for path in (tmp_path / "all").iterdir()} == {living.name, "b-killed.lock"}
