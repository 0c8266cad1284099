"""Ray on one machine: what listens, who is let in, and how it starts."""

import socket
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from cppo_lab.cores.verl import cluster
from cppo_lab.cores.verl.cluster import LONGEST_FOLDER, local_ray_settings
from cppo_lab.errors import UserError
from tests.cores.verl.conftest import OnRay

pytestmark = pytest.mark.verl

# 127.0.0.1, and the same as an IPv6 socket sees it, in /proc's byte order.
LOOPBACK = {"0100007F", "0000000000000000FFFF00000100007F", "00000000000000000000000001000000"}


@pytest.fixture
def short_folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir="/tmp", prefix="cppo-") as folder:
        yield Path(folder)


@pytest.mark.slow
def test_ray_listens_on_loopback_and_lets_in_whoever_has_the_token(on_ray: OnRay) -> None:
    seen = on_ray.found("up")
    assert len(seen["listening"]) >= 5  # GCS, raylet, workers: the search found Ray's processes
    outside = [place for place in seen["listening"] if place.split(":")[0] not in LOOPBACK]
    assert outside == []
    assert seen["address"].startswith("127.0.0.1:")
    known, *refused = on_ray.clients
    assert f"let in {seen['processors']}" in known.stdout, known.stderr
    for one in refused:
        assert one.returncode != 0 and "let in" not in one.stdout
        assert "Unauthenticated" in one.stderr or "AuthenticationError" in one.stderr


def test_the_token_is_private_and_new_each_time(short_folder: Path) -> None:
    tokens = []
    for _ in range(2):
        _, environment = local_ray_settings(short_folder / "ray", num_cpus=1, num_gpus=1)
        path = Path(environment["RAY_AUTH_TOKEN_PATH"])
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
        tokens.append(path.read_text())
    assert len(tokens[0]) == 64 and tokens[0] != tokens[1]


def test_logical_resources_are_rays(short_folder: Path) -> None:
    arguments, environment = local_ray_settings(short_folder, num_cpus=16, num_gpus=2)
    assert (arguments["num_cpus"], arguments["num_gpus"]) == (16, 2)
    assert arguments["include_dashboard"] is False and arguments["_temp_dir"] == str(short_folder)
    assert environment["RAY_AUTH_MODE"] == "token" and environment["RAY_USAGE_STATS_ENABLED"] == "0"


def test_a_folder_too_long_for_a_socket_is_refused() -> None:
    fits = Path("/tmp") / ("x" * (LONGEST_FOLDER - len("/tmp/")))
    path = f"{fits}/session_2026-01-01_00-00-00_000000_4194304/sockets/plasma_store"
    with socket.socket(socket.AF_UNIX) as sock, pytest.raises(FileNotFoundError):
        sock.bind(path)  # its folder is not there, but its length is allowed
    with socket.socket(socket.AF_UNIX) as sock, pytest.raises(OSError, match="path too long"):
        sock.bind(path + "x")
    with pytest.raises(UserError, match=r"tempfile.mkdtemp\(dir='/tmp'\)"):
        local_ray_settings(Path(f"{fits}x"), num_cpus=1, num_gpus=1)


def test_ray_may_take_its_time_to_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray asks for its own node until 30 seconds have passed: each answer waits until the node is there."""
    from ray._private import services

    asked: list[tuple[str, str]] = []

    def look(address: str, node: str) -> str:
        asked.append((address, node))
        if len(asked) < 4:
            raise RuntimeError("GCS cannot find the node")
        return "found"

    monkeypatch.setattr(services, "get_node", look)
    monkeypatch.setattr(cluster, "time", SimpleNamespace(monotonic=lambda: len(asked), sleep=lambda _: None))
    with cluster.longer_start_timeout():
        assert services.get_node("address", "node") == "found"
        assert asked == [("address", "node")] * 4
        monkeypatch.setattr(cluster, "START_SECONDS", 1.0)
        asked.clear()
        with pytest.raises(RuntimeError, match="cannot find"):
            services.get_node("address", "node")
        assert len(asked) == 2
    assert services.get_node is look
