"""Ray on one machine, for this user alone: on loopback, with a token, without what a short run does not need.

Measured with Ray 2.60 (`ss -ltn` after `ray.init()`): by default its daemons and every worker listen on all
interfaces, at random ports. Ray replaces a given 127.0.0.1 by another address of the host, unless multi-node clusters
are switched off, as they are on Windows and macOS: then everything listens on 127.0.0.1.
What this does not cover: torch's process groups (torch's TCP store listens on all interfaces while a run is up), and
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
# Logical processors: verl's actors wait most of the time, and each asks Ray for one whole.
LOGICAL_CPUS = 16
OBJECT_STORE_LEAST = 80 * 2**20  # bytes; Ray refuses less than 75 of 2^20
OBJECT_STORE_SHARE = 0.3  # of the memory that a run may take; Ray's own share of all that the machine has
WORKERS = {
    # They are the run. Ray would let everything else on the machine go before them (nice 15), and on one that is busy
    # none of them would get to its work.
    "RAY_worker_niceness": "0",
    # None before they are asked for: Ray starts some that lack the environment of ours, and stay idle.
    "RAY_prestart_worker_first_driver": "0",
    "RAY_enable_worker_prestart": "0",
    "RAY_worker_register_timeout_seconds": "600",  # one that loads torch on a busy machine is not dead after 60
}
START_SECONDS = 120.0  # for Ray's daemons
DEVICE_VARIABLE = "CPPO_LAB_VERL_DEVICE"  # read by `plugin`: cpu, or unset for verl's own choice


def local_ray_settings(folder: Path, num_cpus: int, num_gpus: int) -> tuple[dict[str, Any], dict[str, str]]:
    """Keyword arguments of `ray.init`, and the environment that must be set *before* Ray is imported.

    `folder` will hold Ray's session and the token, both readable by this user alone; it is created when missing, and
    removing it is the caller's. `num_cpus` and `num_gpus` are logical: the number of actors verl may place, and of
    training ranks.

    Raises UserError when `folder` is too long for Ray's sockets.
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
        # Off: one machine only, so Ray takes 127.0.0.1 as the node's address.
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN_PATH": str(private_token(place / "token")),
        "RAY_USAGE_STATS_ENABLED": "0",
        **WORKERS,
        # Not another cluster's address or folder that the shell may export.
        "RAY_ADDRESS": "local",
        "RAY_TMPDIR": str(place),
        # The collectives of CPU ranks: by default gloo picks the interface of the host's name.
        "GLOO_SOCKET_IFNAME": "lo",
    }
    return arguments, environment


def logical_cpus(layout: LayoutSpec) -> int:
    """Processors of one machine, as Ray is to count them."""
    return LOGICAL_CPUS if layout.device == "cpu" else max(LOGICAL_CPUS, os.cpu_count() or 1)


def object_store_bytes(memory_gb: float) -> int:
    """Bytes of Ray's object store on a machine where a run may take so many 2^30 bytes."""
    return max(OBJECT_STORE_LEAST, int(OBJECT_STORE_SHARE * memory_gb * 2**30))


@contextmanager
def left_in_order() -> Iterator[None]:
    """Leave Ray's cluster after the context.

    Not after a signal to end: Slurm signals Ray's processes too, Ray looks for them for ten seconds, and the run's
    last words come first. Ray then ends with the process.
    """
    told = False
    try:
        yield
    except SystemExit:
        told = True
        raise
    finally:
        if not told:
            import ray

            ray.shutdown()


@contextmanager
def patient_start() -> Iterator[None]:
    """Give Ray START_SECONDS to start on this machine. Its own 30, which nothing sets, are too few on a busy one."""
    from ray._private import services

    look: Callable[[str, str], Any] = services.get_node

    def wait(gcs_address: str, node_id: str) -> Any:
        deadline = time.monotonic() + START_SECONDS
        while True:
            try:
                return look(gcs_address, node_id)
            except RuntimeError:  # not there yet; Ray would catch it and look at its own clock
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.1)

    services.get_node = wait
    try:
        yield
    finally:
        services.get_node = look


def own_handlers() -> Callable[[], None]:
    """Remember this process's signal handlers; the function returned puts them back.

    `ray.init` lets SIGTERM abort the process, which then could not say how far its run came.
    """
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR2)}

    def restore() -> None:
        with suppress(ValueError):  # only the main thread may set handlers
            for number, handler in before.items():
                told = signal.getsignal(number) is signal.SIG_IGN  # meanwhile, and once is enough
                signal.signal(number, signal.SIG_IGN if told else handler)

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
