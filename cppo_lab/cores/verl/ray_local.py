"""Starts Ray on one machine, accessible to this user only: on loopback, with a token, without unneeded services.

Measured with Ray 2.60 (`ss -ltn` after `ray.init()`): by default its daemons and every worker listen on all
interfaces, at random ports. Ray replaces 127.0.0.1 by another address of the host, unless multi-node clusters are
switched off, as on Windows and macOS: then everything listens on 127.0.0.1.
Not covered: torch's process groups (torch's TCP store listens on all interfaces while a run is up), and
runs on several machines (`ray_nodes`).
"""

import os
import secrets
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from cppo_lab.errors import UserError
from cppo_lab.spec import LayoutSpec

# A Unix socket's path has at most 107 bytes, and Ray appends "/session_<date>_<time>_<microseconds>_<pid>/sockets/
# plasma_store" to its folder.
SOCKET_PATH_LIMIT = 107
SESSION_PATH = len("/session_2026-01-01_00-00-00_000000_4194304/sockets/plasma_store")
LONGEST_FOLDER = SOCKET_PATH_LIMIT - SESSION_PATH
# Logical processors: verl's actors are idle most of the time, but each requests a whole one from Ray.
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
DEVICE_VARIABLE = "CPPO_LAB_VERL_DEVICE"  # read by `plugin`: cpu, or unset for verl's own choice


def local_ray_settings(folder: Path, num_cpus: int, num_gpus: int) -> tuple[dict[str, Any], dict[str, str]]:
    """Keyword arguments of `ray.init`, and the environment that must be set *before* Ray is imported.

    `folder` will hold Ray's session and the token, both readable by this user alone; it is created if missing, and the
    caller removes it. `num_cpus` and `num_gpus` are logical: the number of actors that verl may place, and of training
    ranks.

    Raises UserError if `folder` is too long for Ray's sockets.
    """
    place = folder.resolve()
    if len(os.fsencode(place)) > LONGEST_FOLDER:
        raise UserError(
            f"Ray's folder {place} has {len(os.fsencode(place))} bytes, and its sockets allow {LONGEST_FOLDER}: name a "
            "shorter one, such as one made by tempfile.mkdtemp(dir='/tmp')"
        )
    place.mkdir(mode=0o700, parents=True, exist_ok=True)
    arguments = {
        "num_cpus": num_cpus,
        "num_gpus": num_gpus,
        "include_dashboard": False,
        "_temp_dir": str(place),
    }
    environment = {
        # Off for a single machine, so that Ray takes 127.0.0.1 as the node's address.
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN_PATH": str(private_token(place / "token")),
        "RAY_USAGE_STATS_ENABLED": "0",
        **WORKERS,
        # Override the address and folder of another cluster that the shell may export.
        "RAY_ADDRESS": "local",
        "RAY_TMPDIR": str(place),
        # For collectives of CPU ranks: by default gloo uses the interface of the host name.
        "GLOO_SOCKET_IFNAME": "lo",
    }
    return arguments, environment


def logical_cpus(layout: LayoutSpec) -> int:
    """The number of logical processors of one machine for Ray."""
    return LOGICAL_CPUS if layout.device == "cpu" else max(LOGICAL_CPUS, os.cpu_count() or 1)


def object_store_bytes(memory_gb: float) -> int:
    """Bytes of Ray's object store for a run that may use `memory_gb` (2^30 bytes) of a machine."""
    return max(OBJECT_STORE_LEAST, int(OBJECT_STORE_SHARE * memory_gb * 2**30))


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
            except RuntimeError:  # not there yet; Ray would retry until its own timeout
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


def plugin_environment(cpu: bool) -> dict[str, str]:
    """Environment variables that load `plugin` into every process of a verl run; set them before verl is imported."""
    loaded = {"VERL_USE_EXTERNAL_MODULES": "cppo_lab.cores.verl.plugin"}
    return loaded | ({DEVICE_VARIABLE: "cpu"} if cpu else {})


def private_token(path: Path) -> Path:
    """A file with a fresh token, never readable by others, not even while it is written."""
    path.unlink(missing_ok=True)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(secrets.token_hex(32))
    return path
