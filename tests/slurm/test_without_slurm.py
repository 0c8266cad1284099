"""What the development cluster does on machines that are not fit for it; needs no Slurm."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from dev.errors import DevError
from dev.slurm import daemons, network, starting
from dev.slurm.cluster import Cluster
from dev.slurm.settings import Settings


def test_start_says_what_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster(tmp_path)
    monkeypatch.setattr(os, "getuid", lambda: 1000)
    with pytest.raises(DevError, match="needs root"):
        starting.start(cluster, Settings())
    monkeypatch.setattr(os, "getuid", lambda: 0)
    monkeypatch.setattr(starting, "PATH", os.fspath(tmp_path))
    with pytest.raises(DevError, match=r"not installed: slurmctld, .*slurmdbd.* install`$"):
        starting.start(cluster, Settings())
    for program in starting.PROGRAMS:
        (tmp_path / program).touch(mode=0o755)
    with pytest.raises(DevError, match=r"not installed: slurmdbd, .*start with --no-accounting\)$"):
        starting.start(cluster, Settings())
    with pytest.raises(DevError, match="not installed: unshare, nsenter, ip: "):
        starting.start(cluster, Settings(accounting=False, private_network=True))
    with pytest.raises(DevError, match="too long for sockets"):
        starting.start(Cluster(tmp_path / ("x" * 60)), Settings(accounting=False))


def test_a_host_name_that_can_be_reached_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: "box.lan")
    monkeypatch.setattr(socket, "gethostbyname", lambda host: "172.17.0.2")
    with pytest.raises(DevError, match=r"box\.lan stands for 172\.17\.0\.2.*--private-network"):
        network.name_and_address(private=False)
    monkeypatch.setattr(socket, "gethostbyname", lambda host: "127.0.1.1")
    assert network.name_and_address(private=False) == ("box", "127.0.1.1")


def test_a_cluster_gets_ports_that_nobody_has(tmp_path: Path) -> None:
    """Two that start at once, from when the first has looked until its daemons listen, and afterwards."""
    with network.reserved_ports("127.0.0.1", 4, tmp_path) as first:
        with network.reserved_ports("127.0.0.1", 4, tmp_path) as other:
            assert other >= first + 4
        daemon = socket.socket()
        daemon.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        daemon.bind(("127.0.0.1", first))
        daemon.listen()
        socket.create_connection(("127.0.0.1", first)).close()
    with daemon, network.reserved_ports("127.0.0.1", 4, tmp_path) as other:
        assert other > first
    with network.reserved_ports("127.0.0.1", 4, tmp_path) as port:
        assert port == first


def test_a_process_is_not_taken_for_a_later_one() -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    process = daemons.look_up(child.pid)
    assert process.parent == os.getpid() and process.alive()
    later = daemons.Process(process.pid, process.started + 1, process.parent)
    assert not later.alive()
    daemons.end(lambda: [later], patience=0)
    assert process.alive()
    daemons.end(lambda: [process], patience=5)
    assert not process.alive()
    child.communicate()
