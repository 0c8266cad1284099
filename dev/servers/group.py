"""A program that ends when this process ends, with all its children, in its own process group."""

import contextlib
import os
import random
import signal
import socket
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from dev.errors import DevError

# The guard ends the group when its pipe from us is closed, which the kernel does however we end.
GUARD = 'exec 3<&0 </dev/null; (read -r _ <&3; kill -KILL 0) & exec 3<&-; exec "$@"'
PORTS = range(32_000, 32_768)
PATIENCE = 10.0  # seconds that SIGTERM is given


class Group:
    """A running program and what it has started."""

    def __init__(self, command: Sequence[str], log: Path, env: Mapping[str, str], folder: Path) -> None:
        """Starts it in `folder`; what it prints is added to `log`."""
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
        """It goes on."""
        self._send(signal.SIGCONT)

    def kill(self) -> None:
        """Kills all its processes at once."""
        self._send(signal.SIGKILL)
        self._process.wait()
        assert self._process.stdin is not None
        self._process.stdin.close()

    def stop(self) -> None:
        """Ends it in order, if it will."""
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
    """A TCP port of the loopback interface that nobody else is given while this process lives.

    A server that is restarted wants it back: it is none that systems, Ray or our Slurm hand out. It stays bound here,
    without anybody who listens: servers set SO_REUSEADDR, with which they may bind it as well, while a search for a
    free port, here or in another process, does without and passes it by.
    """
    for port in random.SystemRandom().sample(PORTS, len(PORTS)):
        found = socket.socket()
        try:
            found.bind(("127.0.0.1", port))
        except OSError:
            found.close()
            continue
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        _reserved.append(found)
        return port
    raise DevError(f"no port of {PORTS[0]} to {PORTS[-1]} is free")
