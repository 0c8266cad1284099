"""What the development cluster does on machines that are not fit for it; needs no Slurm."""

import contextlib
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from dev.slurm import daemons, network, starting
from dev.slurm.__main__ import main
from dev.slurm.cluster import Cluster
from dev.slurm.errors import ClusterError
from dev.slurm.settings import Place, Settings, files
from tests.requirement import SLURM


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["stop"], None),
        (["status"], None),
        (["restart-controller"], "no cluster in"),
        (["fail-node", "n1"], "no cluster in"),
        (["resume-node", "n1"], "no cluster in"),
        (["run", "true"], "no cluster in"),
    ],
)
def test_commands_without_a_cluster(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], text: str | None
) -> None:
    status = main(["--folder", str(tmp_path / "none"), *words])
    shown = capsys.readouterr()
    assert status == (0 if words == ["stop"] else 1)
    assert (text or "nothing") in (shown.err if text else shown.out)
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize("pair", ["MinJobAge", "=7", "MinJobAge="])
def test_set_wants_pairs(capsys: pytest.CaptureFixture[str], pair: str) -> None:
    with pytest.raises(SystemExit):
        main(["start", "--set", pair])
    assert f"{pair!r} is not KEY=VALUE" in capsys.readouterr().err


def test_start_says_what_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster(tmp_path)
    monkeypatch.setattr(os, "getuid", lambda: 1000)
    with pytest.raises(ClusterError, match="needs root"):
        starting.start(cluster, Settings())
    monkeypatch.setattr(os, "getuid", lambda: 0)
    monkeypatch.setattr(starting, "PATH", os.fspath(tmp_path))
    with pytest.raises(ClusterError, match=r"not installed: slurmctld, .*slurmdbd.* install`$"):
        starting.start(cluster, Settings())
    for program in starting.PROGRAMS:
        (tmp_path / program).touch(mode=0o755)
    with pytest.raises(ClusterError, match=r"not installed: slurmdbd, .*start with --no-accounting\)$"):
        starting.start(cluster, Settings())
    with pytest.raises(ClusterError, match="not installed: unshare, nsenter, ip: "):
        starting.start(cluster, Settings(accounting=False, private_network=True))
    with pytest.raises(ClusterError, match="too long for sockets"):
        starting.start(Cluster(tmp_path / ("x" * 60)), Settings(accounting=False))


def test_install_without_apt_get(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(starting, "PATH", os.fspath(tmp_path))
    monkeypatch.setenv("PATH", os.fspath(tmp_path))
    assert main(["install"]) == 1
    assert "error: no apt-get on this machine: install slurmctld, slurmd" in capsys.readouterr().err
    # One that fails, as without a network.
    script = "#!/bin/sh\necho 'Err:1 http://deb'>&2\necho 'E: Unable to locate package'>&2\nexit 100\n"
    (tmp_path / "apt-get").write_text(script)
    (tmp_path / "apt-get").chmod(0o755)
    monkeypatch.setattr(os, "getuid", lambda: 0)
    monkeypatch.setattr("dev.apt.POLICY", tmp_path / "policy")
    assert main(["install"]) == 1
    assert "error: apt-get update failed: E: Unable to locate package" in capsys.readouterr().err
    assert not (tmp_path / "policy").exists()


def test_missing_slurm_is_a_skip_or_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(starting, "PATH", "/nowhere")
    monkeypatch.setattr(os, "getuid", lambda: 0)
    assert "not installed: slurmctld" in SLURM.absent()
    for name in ("CI", "CPPO_REQUIRE_SLURM"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(pytest.skip.Exception, match="slurmctld"):
        SLURM.demand()
    for name in ("CI", "CPPO_REQUIRE_SLURM"):
        monkeypatch.setenv(name, "1")
        with pytest.raises(pytest.fail.Exception, match=f"{name} is set.*slurmctld"):
            SLURM.demand()
        monkeypatch.setenv(name, "0")


def test_a_host_name_that_can_be_reached_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: "box.lan")
    monkeypatch.setattr(socket, "gethostbyname", lambda host: "172.17.0.2")
    with pytest.raises(ClusterError, match=r"box\.lan stands for 172\.17\.0\.2.*--private-network"):
        network.name_and_address(private=False)
    monkeypatch.setattr(socket, "gethostbyname", lambda host: "127.0.1.1")
    assert network.name_and_address(private=False) == ("box", "127.0.1.1")


def reserved(folder: Path) -> "contextlib.AbstractContextManager[int]":
    return network.reserved_ports("127.0.0.1", 4, folder)


def listens(port: int) -> socket.socket:
    """What listens as Slurm's daemons do."""
    taken = socket.socket()
    taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    taken.bind(("127.0.0.1", port))
    taken.listen()
    return taken


def test_ports_in_use_are_passed_over(tmp_path: Path) -> None:
    with reserved(tmp_path) as first:
        pass
    with listens(first + 2), reserved(tmp_path) as port:
        assert port > first + 2
    with reserved(tmp_path) as port:
        assert port == first


def test_ports_are_given_to_one_cluster_at_a_time(tmp_path: Path) -> None:
    """Two that start at once, from when the first has looked until its daemons listen, and afterwards."""
    with reserved(tmp_path) as first:
        with reserved(tmp_path) as other:
            assert other >= first + 4
        daemon = listens(first)
        socket.create_connection(("127.0.0.1", first)).close()
    with daemon, reserved(tmp_path) as other:
        assert other > first


def test_own_lines_replace_the_defaults() -> None:
    place = Place(Path("/x"), "box", "127.0.0.1", 17000, 1)
    settings = Settings(nodes=3, gpus=0, extra={"KillWait": "77", "Epilog": "/bin/true"})
    lines = files(settings, place)["slurm.conf"].splitlines()
    assert [line for line in lines if line.startswith(("KillWait", "Epilog"))] == [
        "KillWait=77",
        "Epilog=/bin/true",
    ]
    assert "Port=[17002-17004]" in next(line for line in lines if line.startswith("NodeName=n[1-3]"))
    assert not any("Gres=" in line for line in lines)


def test_a_process_is_not_taken_for_a_later_one() -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    process = daemons.look_up(child.pid)
    assert process is not None and process.parent == os.getpid() and process.alive()
    later = daemons.Process(process.pid, process.started + 1, process.parent)
    assert not later.alive()
    daemons.end(lambda: [later], patience=0)
    assert process.alive()
    daemons.end(lambda: [process], patience=5)
    assert not process.alive()
    child.communicate()
