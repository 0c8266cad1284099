"""Machines of one run without Ray: who they are, where they meet, what they leave. With it: tests/slurm."""

import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest

from cppo_lab.cores.base import Allocation, Resources
from cppo_lab.cores.verl import ray_folder, ray_nodes
from cppo_lab.cores.verl.ray_local import object_store_bytes
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
    both = [ray_nodes.own_address(replace(allocation, rank=rank)) for rank in (0, 1)]
    assert both == ["127.0.0.2", "127.0.0.3"]
    assert ray_nodes._environment(Path("token"), both[1])["GLOO_SOCKET_IFNAME"] == "lo"


def test_an_interface_that_a_machine_lacks_is_named(
    allocation: Allocation, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "ib7")
    with pytest.raises(UserError, match=r"GLOO_SOCKET_IFNAME=ib7: there.invalid has no such interface"):
        ray_nodes.own_address(allocation)


def test_a_machine_goes_when_the_first_one_is_through_without_ray(allocation: Allocation) -> None:
    """A run that was done already, say."""
    allocation.end()
    layout = compose(["core=verl", "model=tiny_qwen3", "layout=cpu_two_nodes"]).layout
    ray_nodes.run_worker_node(Resources(Path(), Path(), layout=layout, allocation=allocation))


def test_a_machine_waits_for_the_first_one_only_so_long(
    allocation: Allocation, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray_nodes, "MEET_SECONDS", 0.0)
    with pytest.raises(RuntimeError, match=r"here.invalid has started no Ray within 0 s"):
        ray_nodes._meet(allocation)


def test_the_object_store_is_a_share_of_the_runs_memory() -> None:
    assert object_store_bytes(100) == 30 * 2**30
    assert object_store_bytes(0.01) > 75 * 2**20  # less is an error of Ray's


def test_a_folder_taken_for_abandoned_before_it_is_locked_is_made_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray_folder, "PLACE", tmp_path)
    real, made = tempfile.mkdtemp, []

    def taken_once(**where: object) -> str:
        made.append(Path(real(**where)))
        if len(made) == 1:
            ray_folder.remove_abandoned()
        return str(made[-1])

    monkeypatch.setattr(tempfile, "mkdtemp", taken_once)
    with ray_folder.own_folder() as (folder, _):
        assert (len(made), made[-1]) == (2, folder)
        assert folder.exists()


def test_a_killed_owners_folder_is_removed_and_a_living_ones_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray_folder, "PLACE", tmp_path)
    with ray_folder.own_folder() as (folder, _):
        (folder / "ray").mkdir()
        left = (
            "import os, pathlib; from cppo_lab.cores.verl import ray_folder as r; "
            f"r.PLACE = pathlib.Path({str(tmp_path)!r}); c = r.own_folder(); "
            "print(c.__enter__()[0], flush=True); os._exit(9)"
        )
        killed = Path(
            subprocess.run([sys.executable, "-c", left], capture_output=True, text=True).stdout.strip()
        )
        assert killed.parent == tmp_path and killed.exists()
        ray_folder.remove_abandoned()
        assert not killed.exists()
        assert (folder / "ray").exists() and folder.stat().st_mode & 0o777 == 0o700
    assert not folder.exists()
