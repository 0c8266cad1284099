"""Machines of one run without Ray: who they are, where they meet, what they leave. With it: tests/slurm."""

import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cppo_lab.cores.base import Allocation, Resources
from cppo_lab.cores.verl import cluster
from cppo_lab.cores.verl.cluster import object_store_bytes
from cppo_lab.errors import UserError
from cppo_lab.sweep.compose import compose

pytestmark = pytest.mark.verl


@pytest.fixture
def allocation(tmp_path: Path) -> Allocation:
    return Allocation(("here.invalid", "there.invalid"), 1, tmp_path / "meeting")


def test_virtual_machines_have_loopback_addresses_of_their_own(
    allocation: Allocation, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    both = [cluster.own_address(replace(allocation, rank=rank)) for rank in (0, 1)]
    assert both == ["127.0.0.2", "127.0.0.3"]
    assert cluster._environment(Path("token"), both[1])["GLOO_SOCKET_IFNAME"] == "lo"


def test_an_interface_that_a_machine_lacks_is_named(
    allocation: Allocation, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "ib7")
    with pytest.raises(UserError, match=r"GLOO_SOCKET_IFNAME=ib7: there.invalid has no such interface"):
        cluster.own_address(allocation)


def test_a_machine_goes_when_the_first_one_is_through_without_ray(allocation: Allocation) -> None:
    """A run that was done already, say."""
    allocation.end()
    layout = compose(["core=verl", "model=tiny_qwen3", "layout=cpu_two_nodes"]).layout
    cluster.run_worker_node(Resources(Path(), Path(), layout=layout, allocation=allocation))


def test_a_machine_waits_for_the_first_one_only_so_long(
    allocation: Allocation, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster, "MEET_SECONDS", 0.0)
    with pytest.raises(RuntimeError, match=r"here.invalid has started no Ray within 0 s"):
        cluster._meet(allocation)


def test_the_object_store_is_a_share_of_the_runs_memory() -> None:
    assert object_store_bytes(100) == 30 * 2**30
    assert object_store_bytes(0.01) > 75 * 2**20  # less is an error of Ray's


def test_a_folder_taken_for_abandoned_before_it_is_locked_is_made_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster, "PLACE", tmp_path)
    real, made = tempfile.mkdtemp, []

    def taken_once(**where: object) -> str:
        made.append(Path(real(**where)))
        if len(made) == 1:
            cluster.remove_abandoned()
        return str(made[-1])

    monkeypatch.setattr(tempfile, "mkdtemp", taken_once)
    with cluster.own_folder() as (folder, _):
        assert (len(made), made[-1]) == (2, folder)
        assert folder.exists()


def test_a_killed_owners_folder_is_removed_and_a_living_ones_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster, "PLACE", tmp_path)
    with cluster.own_folder() as (folder, _):
        (folder / "ray").mkdir()
        left = (
            "import os, pathlib; from cppo_lab.cores.verl import cluster as r; "
            f"r.PLACE = pathlib.Path({str(tmp_path)!r}); c = r.own_folder(); "
            "print(c.__enter__()[0], flush=True); os._exit(9)"
        )
        killed = Path(
            subprocess.run([sys.executable, "-c", left], capture_output=True, text=True).stdout.strip()
        )
        assert killed.parent == tmp_path and killed.exists()
        cluster.remove_abandoned()
        assert not killed.exists()
        assert (folder / "ray").exists() and folder.stat().st_mode & 0o777 == 0o700
    assert not folder.exists()


def network(monkeypatch: pytest.MonkeyPatch, **interfaces: str) -> None:
    """Give this machine these interfaces."""
    found = {
        name: [SimpleNamespace(address=address, family=socket.AF_INET)]
        for name, address in interfaces.items()
    }
    monkeypatch.setattr(cluster.psutil, "net_if_addrs", lambda: found)


def test_the_interface_of_an_address_is_found_or_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    network(monkeypatch, lo="127.0.0.1", eth0="192.0.2.1", ib0="192.0.2.2")
    assert cluster._environment(Path("token"), "192.0.2.2")["GLOO_SOCKET_IFNAME"] == "ib0"
    with pytest.raises(UserError, match=r"has the address 192\.0\.2\.3: set GLOO_SOCKET_IFNAME"):
        cluster._environment(Path("token"), "192.0.2.3")


def test_the_address_is_that_of_the_chosen_interface(
    allocation: Allocation, monkeypatch: pytest.MonkeyPatch
) -> None:
    network(monkeypatch, lo="127.0.0.1", ib0="192.0.2.2")
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "ib0")
    assert cluster.own_address(allocation) == "192.0.2.2"


def test_without_an_interface_the_address_is_the_one_towards_another_machine(
    allocation: Allocation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Here that machine is this one, by its loopback address."""
    monkeypatch.delenv("GLOO_SOCKET_IFNAME", raising=False)
    near = replace(allocation, machines=("127.0.0.1", "there.invalid"))
    assert cluster.own_address(near) == "127.0.0.3"


def test_a_limit_of_memory_bounds_rays_object_store(allocation: Allocation) -> None:
    layout = compose(["core=verl", "model=tiny_qwen3", "layout=cpu_two_nodes"]).layout
    words = cluster._start(layout, allocation, "127.0.0.1", 100)
    assert words[words.index("--object-store-memory") + 1] == str(object_store_bytes(100))
    assert "--object-store-memory" not in cluster._start(layout, allocation, "127.0.0.1", None)


def test_a_port_is_drawn_once_and_one_that_is_taken_never(monkeypatch: pytest.MonkeyPatch) -> None:
    number = os.getpid()  # on an address that no other process uses, nobody takes the free port meanwhile
    host = f"127.{64 + (number >> 16) % 64}.{(number >> 8) % 256}.{number % 256}"
    with socket.socket() as taken, socket.socket() as free:
        for one in (taken, free):
            one.bind((host, 0))
        ports = [one.getsockname()[1] for one in (taken, free)]
        free.close()
        monkeypatch.setattr(cluster, "_DRAWN", set())
        monkeypatch.setattr(cluster, "PORTS", ports)
        assert cluster.free_port(host) == ports[1]
        with pytest.raises(OSError, match=rf"no port of \d+ to \d+ is free on {host}"):
            cluster.free_port(host)


def keeper(status: int | None) -> Any:
    """Ray's process: it runs (None), or has ended with `status`."""
    return SimpleNamespace(poll=lambda: status, returncode=status)


def test_a_head_that_does_not_start_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "_answers", lambda address: False)
    with pytest.raises(RuntimeError, match=r"did not start \(exit status 3\): see the run's log"):
        cluster._wait_for("127.0.0.1:1", keeper(3))
    monkeypatch.setattr(cluster, "HEAD_SECONDS", -1.0)
    with pytest.raises(RuntimeError, match=r"head does not answer at 127\.0\.0\.1:1 after -1 s"):
        cluster._wait_for("127.0.0.1:1", keeper(None))


def test_a_worker_node_whose_ray_ends_before_the_run_fails(
    allocation: Allocation, monkeypatch: pytest.MonkeyPatch
) -> None:
    @contextmanager
    def running(command: list[str], host: str) -> Iterator[Any]:
        assert command[-2:] == ["--address", "127.0.0.2:1"] and host == "127.0.0.3"
        yield keeper(7)

    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    for name, value in {
        "_meet": lambda allocation: "127.0.0.2:1",
        "_environment": lambda token, host: {},
        "_running": running,
        "_answers": lambda address: True,
    }.items():
        monkeypatch.setattr(cluster, name, value)
    layout = compose(["core=verl", "model=tiny_qwen3", "layout=cpu_two_nodes"]).layout
    with pytest.raises(
        RuntimeError, match=r"Ray ended on there\.invalid \(exit status 7\) before the run did"
    ):
        cluster.run_worker_node(Resources(Path(), Path(), layout=layout, allocation=allocation))
