"""A program in its own process group, which ends with all its children when this process ends."""

import contextlib
import os
import random
import signal
import socket
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from dev.errors import DevError
from dev.slurm.network import reserve

# The guard ends the group when its pipe from this process closes, which the kernel does however this process ends.
GUARD = 'exec 3<&0 </dev/null; (read -r _ <&3; kill -KILL 0) & exec 3<&-; exec "$@"'
PORTS = range(32_000, 32_768)
PATIENCE = 10.0  # seconds from SIGTERM to SIGKILL


class Group:
    """A running program and its children."""

    def __init__(self, command: Sequence[str], log: Path, env: Mapping[str, str], folder: Path) -> None:
        """Starts it in `folder`; its output is appended to `log`."""
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                ["/bin/sh", "-c", GUARD, "sh", *command],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=dict(env),
                cwd=folder,
                start_new_session=True,
            )

    def alive(self) -> bool:
        """Whether the program itself runs."""
        return self._process.poll() is None

    def pause(self) -> None:
        """Stops all its processes; its connections stay open."""
        self._send(signal.SIGSTOP)

    def resume(self) -> None:
        """Resumes all its processes."""
        self._send(signal.SIGCONT)

    def kill(self) -> None:
        """Kills all its processes at once."""
        self._send(signal.SIGKILL)
        self._process.wait()
        assert self._process.stdin is not None
        self._process.stdin.close()

    def stop(self) -> None:
        """Ends it by SIGTERM, or by SIGKILL if it does not end in time."""
        self._send(signal.SIGCONT)
        self._process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(PATIENCE)
        self.kill()

    def _send(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)


_reserved: list[socket.socket] = []


def free_port() -> int:
    """A TCP port of the loopback interface that is reserved while this process lives.

    A restarted server needs the same port, so it is outside the ranges that the system, Ray and our Slurm assign.
    """
    for port in random.SystemRandom().sample(PORTS, len(PORTS)):
        holder = socket.socket()
        if reserve(holder, "127.0.0.1", port):
            _reserved.append(holder)
            return port
    raise DevError(f"no port of {PORTS[0]} to {PORTS[-1]} is free")
