"""Ray for a run: its private folder, Ray on this machine alone, and Ray on the machines of an allocation."""

import fcntl
import json
import os
import random
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil

from cppo_lab.core_records import Allocation, Resources
from cppo_lab.cores.verl.ray_supervisor import ray_process
from cppo_lab.errors import Interrupted, UserError
from cppo_lab.files import remove_unlocked, replace_file
from cppo_lab.spec import LayoutSpec

# Folders for Ray's sessions and tokens: private, with short paths, and removed by their owner or the next run.
#
# Ray makes its folder accessible to everybody (mode 777), so it is put inside a folder of mode 700. Slurm may kill all
# processes of a job at once; the released lock of the folder then shows that its owner is gone.

PLACE, PREFIX = Path("/tmp"), "cppo-ray-"  # short: Ray's sockets have at most 107 bytes for their path


@contextmanager
def own_folder() -> Iterator[tuple[Path, int]]:
    """A new folder, and the descriptor that holds its lock: a process that inherits it keeps the folder too."""
    remove_abandoned()
    while True:
        folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir=PLACE))
        # Until it is locked, another process may take it for abandoned and remove it.
        with suppress(FileNotFoundError):
            descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            if folder.exists():
                break
            os.close(descriptor)
    try:
        yield folder, descriptor
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(descriptor)


def remove_abandoned() -> None:
    """Remove this user's folders whose owners have been killed."""
    for folder in PLACE.glob(f"{PREFIX}*"):
        with suppress(OSError):
            if folder.lstat().st_uid == os.getuid():
                remove_unlocked(folder)


# Starts Ray on one machine, accessible to this user only: on loopback, with a token, without unneeded services.
#
# Measured with Ray 2.60 (`ss -ltn` after `ray.init()`): by default its daemons and every worker listen on all
# interfaces, at random ports. Ray replaces 127.0.0.1 by another address of the host, unless multi-node clusters are
# switched off, as on Windows and macOS: then everything listens on 127.0.0.1.
# Not covered: torch's process groups (torch's TCP store listens on all interfaces while a run is up), and
# runs on several machines (below).


# Logical processors: verl's actors are idle most of the time, but each requests a whole processor from Ray.
LOGICAL_CPUS = 16
OBJECT_STORE_LEAST = 80 * 2**20  # bytes; Ray refuses less than 75 of 2^20
OBJECT_STORE_SHARE = 0.3  # share of the run's memory limit; Ray applies the same share to the whole machine
WORKERS = {
    # No niceness: Ray would run its workers at nice 15, and on a busy machine they would make no progress.
    "RAY_worker_niceness": "0",
    # Do not prestart workers: they would lack our environment and stay idle.
    "RAY_prestart_worker_first_driver": "0",
    "RAY_enable_worker_prestart": "0",
    "RAY_worker_register_timeout_seconds": "600",  # a worker that loads torch on a busy machine may take more than 60 s
}
START_SECONDS = 120.0  # for Ray's daemons
DEVICE_VARIABLE = "CPPO_LAB_VERL_DEVICE"  # read by `plugin`: cpu, or unset for verl's choice


@contextmanager
def alone(layout: LayoutSpec, memory_gb: float | None) -> Iterator[dict[str, Any]]:
    """Arguments of `ray.init` for a cluster on this machine, which is shut down afterwards.

    Sets the environment, for which Ray must not have been imported; the caller restores it. Only this user can read
    Ray's session and the token.
    """
    with own_folder() as (folder, _):
        place = folder.resolve() / "ray"
        place.mkdir(mode=0o700)
        os.environ.update(
            WORKERS | _environment(private_token(place / "token"), "127.0.0.1"),
            # Off for a single machine, so that Ray takes 127.0.0.1 as the node's address.
            RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER="0",
            # Override the address and folder of another cluster that the shell may export.
            RAY_ADDRESS="local",
            RAY_TMPDIR=str(place),
        )
        with shut_down_after():
            yield capacity(layout, memory_gb) | {"include_dashboard": False, "_temp_dir": str(place)}


def capacity(layout: LayoutSpec, memory_gb: float | None) -> dict[str, Any]:
    """The resources for Ray on a machine of which a run may use `memory_gb` (2^30 bytes): as many logical processors
    and GPUs as verl may place actors and training ranks, and the bytes of the object store.
    """
    cpus = LOGICAL_CPUS if layout.device == "cpu" else max(LOGICAL_CPUS, os.cpu_count() or 1)
    resources = {"num_cpus": cpus, "num_gpus": layout.devices_per_node}
    if memory_gb is not None:
        resources["object_store_memory"] = max(
            OBJECT_STORE_LEAST, int(OBJECT_STORE_SHARE * memory_gb * 2**30)
        )
    return resources


def openmp_threads(layout: LayoutSpec) -> int:
    """OpenMP threads of each process of a run: on GPUs a GPU's share of the CPUs that this process may use.

    Raises UserError if these are too few, as for a Slurm job that asked for none: it gets one, and would crawl.
    """
    if layout.device == "cpu":
        return int(os.environ.get("OMP_NUM_THREADS", "1"))
    cpus = len(os.sched_getaffinity(0))
    if cpus < layout.least_cpus:
        raise UserError(
            f"this job may use {cpus} CPUs of {socket.gethostname()}, and its {layout.devices_per_node} GPUs need "
            f"{layout.least_cpus}: on Slurm set layout.cpus_per_gpu or resources.cpus to what the GPUs should have; a "
            "lower layout.cpus_per_gpu permits a machine that has no more"
        )
    return cpus // layout.devices_per_node


@contextmanager
def shut_down_after() -> Iterator[None]:
    """Shut down Ray after the context, unless a signal ended it.

    After a signal Ray ends with the process: Slurm also signals Ray's processes, Ray would wait ten seconds for them,
    and recording the end of the run comes first.
    """
    signalled = False
    try:
        yield
    except SystemExit:
        signalled = True
        raise
    finally:
        if not signalled:
            import ray

            ray.shutdown()


@contextmanager
def longer_start_timeout() -> Iterator[None]:
    """Allow Ray START_SECONDS to start. Its fixed timeout of 30 s is too short on a busy machine."""
    from ray._private import services

    look: Callable[[str, str], Any] = services.get_node

    def wait(gcs_address: str, node_id: str) -> Any:
        deadline = time.monotonic() + START_SECONDS
        while True:
            try:
                return look(gcs_address, node_id)
            except RuntimeError:  # not there yet; Ray would retry until its timeout
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.1)

    services.get_node = wait
    try:
        yield
    finally:
        services.get_node = look


@contextmanager
def without_working_folder() -> Iterator[None]:
    """Keep Ray from putting the working folder first on the Python path of its workers; enter it before `ray.init`."""
    from ray.job_config import JobConfig

    real = JobConfig._runtime_env_has_working_dir
    JobConfig._runtime_env_has_working_dir = lambda self: (
        True
    )  # Ray then leaves the folders of workers to that
    try:
        yield
    finally:
        JobConfig._runtime_env_has_working_dir = real


def own_handlers() -> Callable[[], None]:
    """Save this process's signal handlers; the returned function restores them.

    `ray.init` lets SIGTERM abort the process, which then could not record the progress of its run.
    """
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR2)}

    def restore() -> None:
        with suppress(ValueError):  # only the main thread may set handlers
            for number, handler in before.items():
                # A signal that is ignored by now has already been handled, and once is enough.
                handled = signal.getsignal(number) is signal.SIG_IGN
                signal.signal(number, signal.SIG_IGN if handled else handler)

    return restore


def private_token(path: Path) -> Path:
    """A file with a fresh token, never readable by others, not even while it is written."""
    path.unlink(missing_ok=True)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(secrets.token_hex(32))
    return path


# One Ray cluster over the machines of an allocation: the first runs the head and trains, the others join it.
#
# They find each other by a file in the allocation's meeting folder, which all of them see. Each machine and job uses
# free ports and a new folder for Ray's files, so that jobs on the same machine do not interfere. A machine leaves when
# the head no longer answers, for whatever reason.

HEAD = "ray_head.json"  # in the meeting folder: the address of Ray's head
TOKEN = "ray_token"
HEAD_SECONDS = 120.0  # until the head answers on its machine
# Until every machine has joined: images of 25 GB arrive on some nodes long after others.
JOIN_SECONDS = 1800.0
# From a machine's arrival until it has joined: another start would not change its network.
CONNECT_SECONDS = 300.0
# Until the first machine has a head: it may wait for a predecessor's end, or for MLflow.
MEET_SECONDS = 1800.0
PORTS = range(20_000, 30_000)  # below those that systems hand out by default
_DRAWN: set[int] = set()  # ports chosen by this process, which Ray may not have bound yet
LOOK_SECONDS = 0.5
SILENCES = 4  # after this many failed connections in a row the head counts as gone


@contextmanager
def head(layout: LayoutSpec, allocation: Allocation, memory_gb: float | None) -> Iterator[dict[str, Any]]:
    """Arguments of `ray.init` for a cluster over all machines of `allocation`, which is shut down afterwards.

    Sets the environment for Ray and torch's process groups; the caller restores it.

    Raises Interrupted, so that the job goes back into the queue, naming the machines that have not arrived in time;
    UserError for those that have, and cannot join.
    """
    host = own_address(allocation)
    address = f"{host}:{free_port(host)}"
    allocation.meeting.mkdir(parents=True, exist_ok=True)
    os.environ.update(_environment(private_token(allocation.meeting / TOKEN), host))
    ports = ["--port", address.rpartition(":")[2], "--ray-client-server-port", str(free_port(host))]
    command = [*_start(layout, allocation, host, memory_gb), "--head", *ports, "--include-dashboard", "false"]
    try:
        with _running(command, host) as keeper:
            _wait_for(address, keeper)
            replace_file(allocation.meeting / HEAD, json.dumps({"address": address}))
            ray_init = {"address": address, "_node_ip_address": host}
            _wait_for_all(ray_init, allocation, keeper)
            with shut_down_after():
                yield ray_init
    finally:
        for name in (HEAD, TOKEN):
            (allocation.meeting / name).unlink(missing_ok=True)


def run_worker_node(resources: Resources) -> None:
    """Serve as a worker node for the run that the first machine trains; returns when it has ended.

    Raises RuntimeError if Ray on this machine ends before the run, twice or late, or if no head appears or answers in
    time.
    """
    layout, allocation = resources.layout, resources.allocation
    assert layout is not None and allocation is not None
    openmp_threads(layout)  # raises for too few CPUs
    arrival = _arrival(allocation, allocation.machine)
    arrival.parent.mkdir(parents=True, exist_ok=True)
    arrival.touch()
    address = _meet(allocation)
    if address is None:
        return
    host = own_address(allocation)
    os.environ.update(_environment(allocation.meeting / TOKEN, host))
    began = time.monotonic()
    for is_last in (False, True):  # on a busy machine Ray may take longer to start than it allows itself
        command = [*_start(layout, allocation, host, resources.memory_gb), "--address", address]
        with _running(command, host) as keeper:
            silent = 0
            while silent < SILENCES and not allocation.ended():
                if (status := keeper.poll()) is not None and _answers(address):
                    if is_last or time.monotonic() - began > CONNECT_SECONDS:  # the head waits no longer
                        raise RuntimeError(
                            f"Ray ended on {allocation.machine} (exit status {status}) before the run did"
                        )
                    break
                silent = 0 if _answers(address) else silent + 1
                time.sleep(LOOK_SECONDS)
            else:
                return


def _arrival(allocation: Allocation, machine: str) -> Path:
    """The file that shows that a machine is ready to join."""
    return allocation.meeting / f"arrived-{machine}"


def own_address(allocation: Allocation) -> str:
    """The address of this machine by which the others reach it.

    It is that of the interface named by GLOO_SOCKET_IFNAME, if set; otherwise the source address of packets to another
    machine of the allocation. If the machines are simulated on one host, each gets a different loopback address.
    """
    if interface := os.environ.get("GLOO_SOCKET_IFNAME"):
        entries = psutil.net_if_addrs().get(interface, [])
        addresses = [str(entry.address) for entry in entries if entry.family == socket.AF_INET]
        if not addresses:
            raise UserError(
                f"GLOO_SOCKET_IFNAME={interface}: {allocation.machine} has no such interface with an IPv4 address"
            )
        address: str = addresses[0]
    else:
        other = next(name for name in allocation.machines if name != allocation.machine)
        try:
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
                sock.connect((other, 9))  # sends nothing
                address = str(sock.getsockname()[0])
        except OSError:
            address = socket.gethostbyname(socket.gethostname())
    # All of 127/8 is this machine; Ray would replace 127.0.0.1.
    return f"127.0.0.{2 + allocation.rank}" if address.startswith("127.") else address


def _environment(token: Path, host: str) -> dict[str, str]:
    """For Ray, and for collectives of CPU ranks: by default gloo uses the interface of the host name."""
    loopback, entries = host.startswith("127."), psutil.net_if_addrs().items()
    interfaces = [name for name, addresses in entries if any(entry.address == host for entry in addresses)]
    if not (loopback or interfaces):
        raise UserError(
            f"no network interface of this machine has the address {host}: set GLOO_SOCKET_IFNAME"
        )
    return {
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN_PATH": str(token),
        "RAY_USAGE_STATS_ENABLED": "0",
        "GLOO_SOCKET_IFNAME": "lo" if loopback else interfaces[0],
    }


def _start(layout: LayoutSpec, allocation: Allocation, host: str, memory_gb: float | None) -> list[str]:
    """The part of the command that starts Ray in the foreground that is the same for head and workers."""
    options: dict[str, object] = {
        "node-ip-address": host,
        "node-name": allocation.machine,
        # 0: any free port. Ray's range is the same on every start, and jobs that share a machine would fight.
        "min-worker-port": 0,
        "max-worker-port": 0,
        "dashboard-agent-listen-port": free_port(host),
        **{name.replace("_", "-"): number for name, number in capacity(layout, memory_gb).items()},
    }
    words = [word for name, value in options.items() for word in (f"--{name}", str(value))]
    return [sys.executable, "-m", __name__, "start", "--block", "--disable-usage-stats", *words]


@contextmanager
def _running(command: list[str], host: str) -> Iterator["subprocess.Popen[bytes]"]:
    """Run Ray on this machine, with a separate folder."""
    # Drop addresses and folders of other clusters that the shell may export.
    environment = {
        key: value for key, value in os.environ.items() if key not in ("RAY_ADDRESS", "RAY_TMPDIR")
    }
    environment |= WORKERS | {
        "AUTOSCALER_METRIC_PORT": str(free_port(host)),
        "DASHBOARD_METRIC_PORT": str(free_port(host)),
        "RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S": "0",  # draining would only move actors elsewhere
    }
    with own_folder() as (folder, lock):
        whole = [*command, "--temp-dir", str(folder / "ray")]
        with ray_process(whole, folder, lock, environment) as keeper:
            yield keeper


def free_port(host: str) -> int:
    """A free TCP port of this machine, outside the range from which the system assigns ports."""
    for port in random.SystemRandom().sample(PORTS, len(PORTS)):
        with socket.socket() as sock, suppress(OSError):
            sock.bind((host, port))
            if port not in _DRAWN:
                _DRAWN.add(port)
                return port
    raise OSError(f"no port of {PORTS[0]} to {PORTS[-1]} is free on {host}")


def _answers(address: str) -> bool:
    """Whether a process listens at the address."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=5).close()
    except OSError:
        return False
    return True


def _wait_for(address: str, keeper: "subprocess.Popen[bytes]") -> None:
    for _ in _looks(HEAD_SECONDS):
        if _answers(address):
            return
        if keeper.poll() is not None:
            raise RuntimeError(
                f"Ray's head did not start (exit status {keeper.returncode}): see the run's log"
            )
    raise RuntimeError(f"Ray's head does not answer at {address} after {HEAD_SECONDS:g} s")


def _looks(seconds: float) -> Iterator[None]:
    """A turn now and then, until the seconds have passed."""
    deadline = time.monotonic() + seconds
    yield
    while time.monotonic() < deadline:
        time.sleep(LOOK_SECONDS)
        yield


def _wait_for_all(
    ray_init: dict[str, Any], allocation: Allocation, keeper: "subprocess.Popen[bytes]"
) -> None:
    """Wait until every machine has joined: verl requests the GPUs of all when it starts."""
    import ray

    remedy = (
        f"see the run's log, and whether the machines reach each other at {ray_init['address']} (GLOO_SOCKET_IFNAME "
        "chooses the network)"
    )
    arrived: dict[str, float] = {}
    restore = own_handlers()
    try:
        for _ in _looks(HEAD_SECONDS):
            with suppress(
                ConnectionError
            ):  # it answers before it is ready, on a busy machine by more than Ray waits
                ray.init(**ray_init, log_to_driver=False, logging_level="ERROR")
                break
        else:
            raise RuntimeError(
                f"Ray's head at {ray_init['address']} is not ready after {HEAD_SECONDS:g} s: see the run's log"
            )
    finally:
        restore()
    try:
        for _ in _looks(JOIN_SECONDS):
            joined = {node["NodeName"] for node in ray.nodes() if node["Alive"]}
            missing = [name for name in allocation.machines if name not in joined]
            if not missing:
                return
            if keeper.poll() is not None:
                raise RuntimeError(f"Ray's head ended (exit status {keeper.returncode}): see the run's log")
            now = time.monotonic()
            for name in missing:
                if _arrival(allocation, name).exists():
                    arrived.setdefault(name, now)
            late = [name for name in missing if name in arrived and now - arrived[name] >= CONNECT_SECONDS]
            if late:
                raise UserError(
                    f"{', '.join(late)} started, and could not join Ray's cluster on {allocation.machine} within "
                    f"{CONNECT_SECONDS:g} s: {remedy}"
                )
        raise Interrupted(  # a job that starts again may get other nodes, or find the image on these
            signal.SIGUSR2,
            f"{', '.join(missing)} did not join Ray's cluster on {allocation.machine} within "
            f"{JOIN_SECONDS:g} s: {remedy}",
        )
    finally:
        ray.shutdown()


def _meet(allocation: Allocation) -> str | None:
    """Wait for the address of the head, and until it answers; None if the run has ended before."""
    address = ""
    for _ in _looks(MEET_SECONDS):
        if allocation.ended():
            return None
        with suppress(FileNotFoundError):
            address = str(json.loads((allocation.meeting / HEAD).read_text(encoding="utf-8"))["address"])
            break
    else:
        raise RuntimeError(f"{allocation.machines[0]} has started no Ray within {MEET_SECONDS:g} s")
    for _ in _looks(2 * CONNECT_SECONDS):  # the head gives up before, and its run then has the reason
        if allocation.ended():
            return None
        if _answers(address):
            return address
    raise RuntimeError(
        f"Ray's head does not answer {allocation.machine} at {address} within {2 * CONNECT_SECONDS:g} s: see whether "
        "the machines reach each other (GLOO_SOCKET_IFNAME chooses the network)"
    )


if __name__ == "__main__":  # Ray's command line: `python -m cppo_lab.cores.verl.cluster start ...`
    from ray.scripts.scripts import main

    with longer_start_timeout():
        main()
