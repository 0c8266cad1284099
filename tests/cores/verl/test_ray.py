"""Ray of one run, on one machine or on several: what listens, who is let in, how it starts, is warned and ends.

On several machines with Ray: tests/slurm.
"""

import json
import os
import signal
import socket
import sys
import tempfile
from contextlib import nullcontext, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock, call

import pytest

from cppo_lab.core_records import Allocation, Resources, read_machine
from cppo_lab.cores.verl import cluster, core
from cppo_lab.errors import Interrupted, handle_signals
from cppo_lab.spec import LayoutSpec
from cppo_lab.sweep.compose import compose
from tests.conftest import python, user_error
from tests.cores.verl.conftest import OnRay
from tests.waiting import until

LOOPBACK = {"127.0.0.1", "::ffff:127.0.0.1", "::1"}
LAYOUT = compose(["core=verl", "model=tiny_qwen3", "layout=cpu_two_nodes"]).layout


@pytest.mark.slow
def test_ray_listens_on_loopback_and_lets_in_whoever_has_the_token(on_ray: OnRay) -> None:
    up = on_ray.seen("up")
    assert len(up["listening"]) >= 5  # GCS, raylet, workers: the search found Ray's processes
    assert {*up["listening"]} <= LOOPBACK
    assert up["address"].startswith("127.0.0.1:")
    member, stranger = on_ray.clients
    assert f"let in {up['processors']}" in member.stdout, member.stderr
    assert stranger.returncode != 0 and "let in" not in stranger.stdout
    assert "Unauthenticated" in stranger.stderr or "AuthenticationError" in stranger.stderr


@pytest.mark.slow
def test_a_run_says_what_it_has_seen_of_its_machines(on_ray: OnRay) -> None:
    """For a preflight; over two ranks on one machine a quarter of a gigabyte takes no minute."""
    on_ray.seen("trained")
    machine = read_machine(on_ray.folder)
    assert machine.pop("CPUs of the first node") == len(os.sched_getaffinity(0))
    speed = machine.pop("all-reduce over 2 devices, GB/s")
    assert isinstance(speed, float) and speed > 2**28 / 60e9
    assert str(machine.pop("rollout engine")).startswith("cppo_cpu ")
    assert machine.keys() <= {"InfiniBand"}


@pytest.mark.slow
def test_rays_processes_outlive_a_warning(on_ray: OnRay) -> None:
    """Slurm sends SIGUSR2 to every process of a job, before the last step here: all that train have trained it."""
    warned = on_ray.seen("warned")
    assert warned["ended"] == [] and warned["heard"]
    named = " ".join(warned["names"])
    actors = ("WorkerDict", "CpuServerActor", "AgentLoopWorkerTQ", "RewardLoopWorker", "SimpleStorageUnit")
    for part in ("raylet", "gcs_server", *actors):
        assert part in named, named


@pytest.mark.slow
def test_a_run_that_is_cancelled_with_its_ray_has_the_time_for_its_last_words(on_ray: OnRay) -> None:
    """Slurm sends SIGTERM to every process of the job. Ray's own shutdown would look for them for ten seconds."""
    assert on_ray.seen("done") is None
    on_ray.process.wait()
    assert on_ray.seen("cancelled") == {"said": "cancelled", "shut_down": False}
    folder = Path(on_ray.seen("up")["folder"])

    def gone() -> bool:
        cluster.remove_abandoned()  # as the next run does: Ray's processes may have written while it was removed
        return not folder.exists()

    until("Ray's folder is gone", gone)


@pytest.mark.parametrize(
    "number, moment", [(None, ""), (signal.SIGTERM, "later"), (signal.SIGTERM, "in"), (signal.SIGUSR2, "in")]
)
def test_ray_that_ends_is_a_failure_unless_a_signal_comes_while_it_waits_or_follows(
    number: signal.Signals | None, moment: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ray makes a plain exit of what the handler raises, as if its processes had ended."""

    def come(now: str) -> None:
        if now == moment:
            signal.raise_signal(number)

    def get(config: object, task_runner_class: Any) -> None:
        with suppress(ValueError):
            task_runner_class.options(no_such_option=1)  # Ray is up: from here on signals are let in
        with suppress(Interrupted):
            come("in")
        sys.exit(1)  # as ray.get does when its raylet is gone

    def wait(seconds: float) -> None:
        assert seconds == core.SIGNAL_WAIT_SECONDS > 0
        come("later")

    monkeypatch.setattr("verl.trainer.main_ppo.run_ppo", get)
    monkeypatch.setattr(core, "time", SimpleNamespace(sleep=wait))
    handle_signals()
    with pytest.raises(
        Interrupted if number else RuntimeError, match=None if number else "out of memory"
    ) as caught:
        core._run(None)
    assert getattr(caught.value, "number", None) == number


def test_an_error_of_verls_trainer_is_its_cause_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray wraps it once for each process that it passes, and pydantic ends with a link."""
    from ray.exceptions import RayTaskError

    said = "1 validation error\n  rollout.n must be positive\n\nFor further information visit https://errors.invalid\n"

    error = RayTaskError("run", "its traceback", RayTaskError("work", "its traceback", ValueError(said)))
    monkeypatch.setattr("verl.trainer.main_ppo.run_ppo", Mock(side_effect=error))
    with pytest.raises(RuntimeError) as caught:
        core._run(None)
    assert str(caught.value) == "ValueError: rollout.n must be positive"


def test_ray_may_take_its_time_to_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray asks for its own node until 30 seconds have passed: each answer waits until the node is there."""
    from ray._private import services

    late = RuntimeError("GCS cannot find the node")
    look = Mock(side_effect=[late, late, late, "found", late, late])
    monkeypatch.setattr(services, "get_node", look)
    clock = SimpleNamespace(monotonic=lambda: look.call_count, sleep=lambda _: None)
    monkeypatch.setattr(cluster, "time", clock)
    with cluster.longer_start_timeout():
        assert services.get_node("address", "node") == "found"
        assert look.mock_calls == [call("address", "node")] * 4
        monkeypatch.setattr(cluster, "START_SECONDS", 1.0)
        with pytest.raises(RuntimeError, match="cannot find"):
            services.get_node("address", "node")
        assert look.call_count == 6
    assert services.get_node is look


# -- Machines of one run: who they are, where they meet, what they leave -----------------------------------------------


@pytest.fixture
def allocation(tmp_path: Path) -> Allocation:
    return Allocation(("here.invalid", "there.invalid"), 1, tmp_path / "meeting")


def lent(allocation: Allocation, layout: LayoutSpec = LAYOUT) -> Resources:
    return Resources(Path(), Path(), layout=layout, allocation=allocation)


def test_addresses_and_interfaces(allocation: Allocation, monkeypatch: pytest.MonkeyPatch) -> None:
    """Virtual machines have loopback addresses of their own; an interface that is missing is named."""
    # Without an interface the address is the one towards another machine: here this one, by its loopback address.
    monkeypatch.delenv("GLOO_SOCKET_IFNAME", raising=False)
    assert cluster.own_address(replace(allocation, machines=("127.0.0.1", "there.invalid"))) == "127.0.0.3"
    interfaces = {"lo": "127.0.0.1", "eth0": "192.0.2.1", "ib0": "192.0.2.2"}
    entries = {name: [Mock(address=ip, family=socket.AF_INET)] for name, ip in interfaces.items()}
    monkeypatch.setattr(cluster.psutil, "net_if_addrs", lambda: entries)
    for name, addresses in (("lo", ["127.0.0.2", "127.0.0.3"]), ("ib0", ["192.0.2.2"] * 2)):
        monkeypatch.setenv("GLOO_SOCKET_IFNAME", name)
        assert [cluster.own_address(replace(allocation, rank=rank)) for rank in (0, 1)] == addresses
        assert cluster._environment(Path("token"), addresses[1])["GLOO_SOCKET_IFNAME"] == name
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "ib7")
    with user_error(r"GLOO_SOCKET_IFNAME=ib7: there.invalid has no such interface"):
        cluster.own_address(allocation)
    with user_error(r"has the address 192\.0\.2\.3: set GLOO_SOCKET_IFNAME"):
        cluster._environment(Path("token"), "192.0.2.3")


def test_a_machine_waits_for_the_first_one_only_so_long(
    allocation: Allocation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And goes when that is through without Ray: a run that was done already, say."""
    monkeypatch.setattr(cluster, "MEET_SECONDS", 0.0)
    with pytest.raises(RuntimeError, match=r"here.invalid has started no Ray within 0 s"):
        cluster.run_worker_node(lent(allocation))
    monkeypatch.setattr(cluster, "CONNECT_SECONDS", 0.0)
    with socket.socket() as taken:  # bound, and not listening
        taken.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        (allocation.meeting / cluster.HEAD).write_text(json.dumps({"address": address}))
        with pytest.raises(
            RuntimeError, match=rf"does not answer there.invalid at {address} within 0 s: .*GLOO"
        ):
            cluster.run_worker_node(lent(allocation))
    allocation.end()
    cluster.run_worker_node(lent(allocation))


def test_the_job_goes_back_when_a_machine_has_not_joined_for_long(
    allocation: Allocation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Images of 25 GB take more than five minutes to reach the last node; the next start may find it there."""
    assert cluster.JOIN_SECONDS >= 1800
    nodes = [{"NodeName": name, "Alive": name != allocation.machine} for name in allocation.machines]
    init = Mock(side_effect=[ConnectionError, None, None])  # it answers, and is not ready at the first try
    for name, value in (("init", init), ("nodes", lambda: nodes), ("shutdown", lambda: None)):
        monkeypatch.setattr(f"ray.{name}", value)
    for name in ("LOOK", "JOIN", "CONNECT"):
        monkeypatch.setattr(cluster, f"{name}_SECONDS", 0.0)
    wait = partial(cluster._wait_for_all, {"address": "127.0.0.2:1"}, allocation, keeper(None))
    with pytest.raises(
        Interrupted, match=r"^there\.invalid did not join Ray's cluster on .* within 0 s"
    ) as caught:
        wait()
    assert caught.value.number == signal.SIGUSR2  # which Slurm's jobs requeue
    allocation.meeting.mkdir()
    (allocation.meeting / "arrived-there.invalid").touch()  # it is there, and another start would not help
    with user_error(r"^there\.invalid started, and could not join .* at 127\.0\.0\.2:1 \("):
        wait()
    init.side_effect = ConnectionError
    monkeypatch.setattr(cluster, "HEAD_SECONDS", 0.0)
    with pytest.raises(
        RuntimeError, match=r"head at 127\.0\.0\.2:1 is not ready after 0 s: see the run's log"
    ):
        wait()


@pytest.mark.parametrize(
    "words, cpus, threads",
    [
        ("model=tiny_qwen3", 1, 3),  # those of the launcher
        ("model=qwen3_1_7b", 96, 12),
        (
            "model=qwen3_1_7b",
            31,
            "may use 31 CPUs of .*, and its 8 GPUs need 32: on Slurm set layout.cpus_per_gpu",
        ),
        ("model=qwen3_1_7b layout.cpus_per_gpu=null", 1, "may use 1 CPUs of .* need 32: "),
        ("model=qwen3_1_7b layout.cpus_per_gpu=2", 16, 2),  # a machine that has no more
    ],
)
def test_the_processes_of_a_gpu_share_its_cpus_and_too_few_are_refused(
    words: str, cpus: int, threads: int | str, allocation: Allocation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On the machine that trains, and on those that it borrows."""
    layout = compose(["core=verl", *words.split()]).layout
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(cpus)))
    allocation.end()
    if isinstance(threads, int):
        cluster.run_worker_node(lent(allocation, layout))
        with core.own_ray(layout) as ray_init:
            assert ray_init["runtime_env"]["env_vars"]["OMP_NUM_THREADS"] == str(threads)
        return
    with user_error(threads):
        cluster.run_worker_node(lent(allocation, layout))
    with user_error(threads), core.own_ray(layout):
        pass


@pytest.mark.parametrize("outside, inside", [(None, "1"), ("0", "0"), ("1", "1")])
def test_a_run_with_its_model_on_disk_asks_no_hub(
    outside: str | None, inside: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    if outside is not None:
        monkeypatch.setenv("HF_HUB_OFFLINE", outside)
    for offline, value in ((True, inside), (False, outside)):
        with core.own_ray(LAYOUT, offline=offline) as ray_init:
            assert os.environ.get("HF_HUB_OFFLINE") == value
            assert ray_init["runtime_env"]["env_vars"].get("HF_HUB_OFFLINE") == (value if offline else None)
        assert os.environ.get("HF_HUB_OFFLINE") == outside


@pytest.mark.parametrize("device, backend", [("cpu", "cpu:gloo"), ("cuda", None)])
def test_ranks_wait_for_a_checkpoint_as_long_as_the_settings_say(
    device: str, backend: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """verl opens the process group with torch's ten minutes of NCCL, unless there is one already."""
    from cppo_lab.cores.verl import worker

    calls = Mock(**{"verl.side_effect": ZeroDivisionError})
    monkeypatch.setattr(worker, "get_device_name", lambda: device)
    monkeypatch.setattr(worker, "initialize_global_process_group_ray", calls.ours)
    monkeypatch.setattr(worker.ActorRolloutRefWorker, "init_model", calls.verl)
    rank = object.__new__(worker.TrustRegionWorker)
    rank.config = SimpleNamespace(nccl_timeout=3600)
    with pytest.raises(ZeroDivisionError):
        worker.TrustRegionWorker.init_model(rank)
    assert calls.mock_calls == [call.ours(3600, backend), call.verl()]


def test_a_limit_of_memory_bounds_rays_object_store(allocation: Allocation) -> None:
    assert cluster.capacity(LAYOUT, 0.01)["object_store_memory"] > 75 * 2**20  # less is an error of Ray's
    words = cluster._start(LAYOUT, allocation, "127.0.0.1", 100)
    assert words[words.index("--object-store-memory") + 1] == str(30 * 2**30)
    assert "--object-store-memory" not in cluster._start(LAYOUT, allocation, "127.0.0.1", None)


def test_a_killed_owners_folder_is_removed_and_a_living_ones_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder that is taken for abandoned before it is locked is made anew."""
    monkeypatch.setattr(cluster, "PLACE", tmp_path)
    real, made = tempfile.mkdtemp, []

    def taken_once(**where: Any) -> str:
        made.append(Path(real(**where)))
        if len(made) == 1:
            cluster.remove_abandoned()
        return str(made[-1])

    monkeypatch.setattr(tempfile, "mkdtemp", taken_once)
    with cluster.own_folder() as (folder, _):
        assert (len(made), made[-1]) == (2, folder)
        (folder / "ray").mkdir()
        code = (
            "import os, pathlib; from cppo_lab.cores.verl import cluster as r; "
            f"r.PLACE = pathlib.Path({str(tmp_path)!r}); c = r.own_folder(); "
            "print(c.__enter__()[0], flush=True); os._exit(9)"
        )
        killed = Path(python("-c", code, check=False).stdout.strip())
        assert killed.parent == tmp_path and killed.exists()
        cluster.remove_abandoned()
        assert not killed.exists()
        assert (folder / "ray").exists() and folder.stat().st_mode & 0o777 == 0o700
    assert not folder.exists()


def test_a_port_is_drawn_once_and_one_that_is_taken_never(monkeypatch: pytest.MonkeyPatch) -> None:
    number = os.getpid()  # on an address that no other process uses, nobody takes the free port meanwhile
    host = f"127.{64 + (number >> 16) % 64}.{(number >> 8) % 256}.{number % 256}"
    with socket.socket() as taken, socket.socket() as free:
        for sock in (taken, free):
            sock.bind((host, 0))
        ports = [sock.getsockname()[1] for sock in (taken, free)]
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
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    monkeypatch.setattr(cluster, "_meet", lambda allocation: "127.0.0.2:1")
    monkeypatch.setattr(cluster, "_environment", lambda token, host: {})
    monkeypatch.setattr(cluster, "_answers", lambda address: True)
    said = r"Ray ended on there\.invalid \(exit status 7\) before the run did"
    for seconds, starts in ((cluster.CONNECT_SECONDS, 2), (-1.0, 1)):  # once more while the head still waits
        monkeypatch.setattr(cluster, "CONNECT_SECONDS", seconds)
        monkeypatch.setattr(
            cluster, "_running", running := Mock(side_effect=lambda *_: nullcontext(keeper(7)))
        )
        with pytest.raises(RuntimeError, match=said):
            cluster.run_worker_node(lent(allocation))
        assert running.call_count == starts
    (command, host), _ = running.call_args
    assert command[-2:] == ["--address", "127.0.0.2:1"] and host == "127.0.0.3"
