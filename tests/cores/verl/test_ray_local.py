"""Ray on one machine: what listens, who is let in, and how it starts."""

import json
import os
import socket
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from cppo_lab.cores.verl.ray_local import LONGEST_FOLDER, local_ray_settings
from cppo_lab.errors import UserError

pytestmark = pytest.mark.verl

# Listening TCP sockets of this process and its descendants, from /proc (`ss` may not be installed).
CLUSTER = """
import json, os, sys
from pathlib import Path
import ray

ray.init(**json.loads(sys.argv[1]), log_to_driver=False)

@ray.remote
class Worker:
    def answer(self):
        return 1

worker = Worker.remote()
assert ray.get(worker.answer.remote()) == 1

def descendants(pid):
    try:
        children = [int(c) for t in Path(f"/proc/{pid}/task").iterdir() for c in (t / "children").read_text().split()]
    except OSError:
        children = []
    return [pid, *(p for child in children for p in descendants(child))]

def open_files(pid):
    try:
        return list(Path(f"/proc/{pid}/fd").iterdir())
    except OSError:  # it has ended meanwhile
        return []

inodes = set()
for pid in descendants(os.getpid()):
    for link in open_files(pid):
        try:
            target = os.readlink(link)
        except OSError:
            continue
        if target.startswith("socket:["):
            inodes.add(target[8:-1])
listening = []
for table in ("tcp", "tcp6"):
    for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
        part = line.split()
        if part[3] == "0A" and part[9] in inodes:
            listening.append(part[1])
print(json.dumps({"listening": listening, "address": ray.get_runtime_context().gcs_address}), flush=True)
sys.stdin.readline()
ray.shutdown()
"""
CLIENT = """
import sys
import ray

ray.init(address=sys.argv[1], log_to_driver=False)
print("let in", ray.cluster_resources()["CPU"])
"""
# 127.0.0.1, and the same as an IPv6 socket sees it, in /proc's byte order.
LOOPBACK = {"0100007F", "0000000000000000FFFF00000100007F", "00000000000000000000000001000000"}


@pytest.fixture
def short_folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir="/tmp", prefix="cppo-") as folder:
        yield Path(folder)


def client(address: str, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", CLIENT, address], env=environment, capture_output=True, text=True, timeout=600
    )


@pytest.mark.slow
def test_ray_listens_on_loopback_and_lets_in_whoever_has_the_token(short_folder: Path) -> None:
    arguments, environment = local_ray_settings(short_folder / "ray", num_cpus=4, num_gpus=2)
    whole = os.environ | environment
    cluster = subprocess.Popen(
        [sys.executable, "-c", CLUSTER, json.dumps(arguments)],
        env=whole,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert cluster.stdin is not None and cluster.stdout is not None and cluster.stderr is not None
    try:
        line = cluster.stdout.readline()
        assert line, cluster.stderr.read()
        seen = json.loads(line)
        assert len(seen["listening"]) >= 5  # GCS, raylet, workers: the search found Ray's processes
        outside = [place for place in seen["listening"] if place.split(":")[0] not in LOOPBACK]
        assert outside == []
        assert seen["address"].startswith("127.0.0.1:")

        stranger = {name: value for name, value in whole.items() if not name.startswith("RAY_AUTH")}
        wrong = short_folder / "wrong"
        wrong.write_text("0" * 64)
        clients = (
            whole,
            stranger | {"RAY_AUTH_MODE": "disabled"},
            stranger | {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(wrong)},
        )
        # At once: Ray's client tries again for 20 seconds before it gives up.
        with ThreadPoolExecutor() as pool:
            known, *refused = pool.map(client, [seen["address"]] * 3, clients)
        assert "let in 4.0" in known.stdout
        for one in refused:
            assert one.returncode != 0 and "let in" not in one.stdout
            assert "Unauthenticated" in one.stderr or "AuthenticationError" in one.stderr
    finally:
        cluster.stdin.close()
        cluster.wait(300)


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
