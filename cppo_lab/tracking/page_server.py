"""Runs MLflow's own server for a store as a child process, to view the runs."""

import contextlib
import errno
import ipaddress
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from importlib import metadata

from cppo_lab.errors import UserError
from cppo_lab.installed import install_extra
from cppo_lab.redaction import redacted

LOOPBACK = "127.0.0.1"
PORTS = range(5000, 5100)  # tried in turn
START_SECONDS = 180.0  # a laptop takes 5 s, a node with a busy file system a minute
END_SECONDS = 10.0
_SETTINGS = {
    # Switch off the workers for language-model jobs (seven processes) and usage reports.
    "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    # The folder that uvicorn puts first on Python's path; its default is the working folder.
    "UVICORN_APP_DIR": os.devnull,
}


def require_mlflow_server() -> None:
    """Raises UserError if only MLflow's client is installed."""
    try:
        metadata.distribution("mlflow")
    except metadata.PackageNotFoundError:
        raise UserError(
            f"package 'mlflow' (its server and pages) is not installed: {install_extra('ui')}"
        ) from None


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach what listens there."""
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return host == "localhost"


def free_port(host: str, wanted: int | None) -> int:
    """`wanted`, or the first free one of PORTS.

    Raises UserError if it is taken, or if the host is not an address of this machine.
    """
    if wanted is not None and not 1 <= wanted <= 65_535:
        raise UserError(f"--port {wanted}: must be in [1, 65535]: leave it out, or choose another")
    if not host.strip():
        raise UserError(f"--host {host!r}: name an address of this machine, or leave it out")
    for port in PORTS if wanted is None else [wanted]:
        if _is_free(host, port):
            return port
    if wanted is None:
        raise UserError(
            f"ports {PORTS.start} to {PORTS.stop - 1} of {host} are taken: choose another with --port"
        )
    raise UserError(f"port {wanted} of {host} is taken: leave --port out, or choose another")


def _is_free(host: str, port: int) -> bool:
    try:
        family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind) as listener:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
    except socket.gaierror as error:
        raise UserError(f"--host {host}: {error.strerror}: name an address of this machine") from None
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            return False
        raise UserError(
            f"cannot listen on {host} port {port}: {error.strerror}: name an address of this machine"
        ) from None
    return True


@contextlib.contextmanager
def serving(
    uri: str, host: str, port: int, meanwhile: Callable[[], None] | None = None
) -> Iterator["subprocess.Popen[bytes]"]:
    """Run the server for the store at `uri` until it answers; end it and its workers after the block.

    `meanwhile` is called while it starts. Raises UserError if it does not start.
    """
    command = [
        sys.executable,
        "-m",
        "mlflow",
        "server",
        "--host",
        host,
        "--port",
        str(port),
        "--workers",
        "1",
    ]
    # Pass the store by the environment, since the process list would show a password.
    environment = {**_SETTINGS, **os.environ, "MLFLOW_BACKEND_STORE_URI": uri}
    with tempfile.TemporaryFile() as log:
        # A new session, so that Ctrl-C reaches only this process, which then ends the whole group.
        server = subprocess.Popen(
            command, env=environment, stdout=log, stderr=log, stdin=subprocess.DEVNULL, start_new_session=True
        )
        try:
            if meanwhile is not None:
                meanwhile()
            if not _answers(server, f"{address(host, port)}/health"):
                log.seek(0)
                last = log.read().decode(errors="replace").strip().splitlines()[-1:]
                said = redacted(" ".join(last)) or "it printed nothing"
                raise UserError(f"mlflow server did not start: {said}")
            yield server
        finally:
            _end(server)


def _in_address(host: str) -> str:
    """The host in a link: a server on all addresses is opened on this machine's own."""
    if host in ("0.0.0.0", "::"):  # noqa: S104  recognised, and opened at LOOPBACK
        return LOOPBACK
    return f"[{host}]" if ":" in host else host


def address(host: str, port: int) -> str:
    """The address of the page."""
    return f"http://{_in_address(host)}:{port}"


def _answers(server: "subprocess.Popen[bytes]", health: str) -> bool:
    """Wait for the first answer; False if the server ends before it, or takes too long."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    deadline = time.monotonic() + START_SECONDS
    while server.poll() is None and time.monotonic() < deadline:
        with contextlib.suppress(urllib.error.URLError, OSError), opener.open(health, timeout=5) as answer:
            return bool(answer.status == 200)
        time.sleep(0.2)
    return False


def _end(server: "subprocess.Popen[bytes]") -> None:
    """End the server's whole group; processes that do not end in time are killed."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(server.pid, number)
        deadline = time.monotonic() + END_SECONDS
        while _group_lives(server) and time.monotonic() < deadline:
            time.sleep(0.05)


def _group_lives(server: "subprocess.Popen[bytes]") -> bool:
    server.poll()  # reap the child: a zombie still belongs to the group
    try:
        os.killpg(server.pid, 0)
    except ProcessLookupError:
        return False
    return True
