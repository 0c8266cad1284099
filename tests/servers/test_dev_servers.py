"""The servers that the other tests rely on do what they say."""

import os
import socket
import subprocess
import sys
from pathlib import Path
from unittest.mock import patch

import psutil
import pytest

from cppo_lab.sweep import doctor
from cppo_lab.tracking.address import absolute_uri
from dev.errors import DevError
from dev.servers.group import free_port
from dev.servers.mlflow_server import MlflowServer
from dev.servers.postgres import Postgres
from tests.requirement import POSTGRES
from tests.servers.test_faults import wait_for_end
from tests.waiting import CEILING_SECONDS


def test_a_group_ends_with_whoever_started_it(tmp_path: Path) -> None:
    script = (
        "import os, time; from pathlib import Path; from dev.servers.group import Group\n"
        f"group = Group(['sleep', '1000'], Path({os.fspath(tmp_path / 'log')!r}), os.environ, Path('/'))\n"
        "print(group._process.pid, flush=True); time.sleep(1000)"
    )
    owner = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    group = psutil.Process(int(owner.stdout.readline()))
    members = [group, *group.children(recursive=True)]
    owner.kill()
    owner.communicate()
    for process in members:
        wait_for_end(process)


def test_missing_postgres_is_a_skip_or_a_failure(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("dev.servers.postgres.DEBIAN", tmp_path)
    monkeypatch.setenv("PATH", os.fspath(tmp_path))
    with pytest.raises(DevError, match="not installed: initdb, pg_ctl"):
        Postgres(tmp_path / "none").start()
    for wish, outcome, message in (
        ("", pytest.skip.Exception, "initdb"),
        ("CI", pytest.fail.Exception, "CI is set.*initdb"),
        ("CPPO_REQUIRE_POSTGRES", pytest.fail.Exception, "CPPO_REQUIRE_POSTGRES is set.*initdb"),
    ):
        for name in ("CI", "CPPO_REQUIRE_POSTGRES"):
            monkeypatch.setenv(name, "1" if name == wish else "0")
        with pytest.raises(outcome, match=message):
            POSTGRES.demand()


def test_a_port_is_given_to_one_alone_and_a_server_can_listen_on_it() -> None:
    port = free_port()
    for _ in range(2):  # it may come back
        with socket.socket() as other, pytest.raises(OSError, match="in use"):
            other.bind(("127.0.0.1", port))  # as another process that looks for one does
        with socket.create_server(("127.0.0.1", port)) as server, socket.socket() as client:
            client.connect(("127.0.0.1", port))
            server.accept()[0].close()


@patch.object(doctor, "PATIENCE", CEILING_SECONDS)
def test_the_doctor_knows_mlflows_server(server: MlflowServer) -> None:
    """Another service may listen on the port."""
    address = f"http://127.0.0.1:{server.port}"
    assert doctor.check_store(address).found == f"{address} answers"
    assert "with error code 404" in doctor.check_store(f"{address}/elsewhere").found


@patch.object(doctor, "PATIENCE", CEILING_SECONDS)
def test_the_doctor_leaves_an_empty_database_empty(postgres: Postgres) -> None:
    empty = absolute_uri(postgres.make_database("nothing"))
    assert doctor.check_store(empty).found.endswith(" answers")
    assert (
        postgres.sql("SELECT count(*) FROM pg_tables WHERE schemaname = 'public'", "nothing").strip() == "0"
    )
    assert doctor.check_store(absolute_uri(postgres.url("none"))).found.endswith(
        'database "none" does not exist)'
    )
