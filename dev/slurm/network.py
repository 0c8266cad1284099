"""The addresses of the cluster's daemons: on loopback, in the machine's network or in a private one."""

import contextlib
import os
import socket
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path

from dev.errors import DevError

FIRST_PORT, LAST_PORT = 17000, 32000  # below the range from which systems hand out ports
# Only `lo`, under the host name `localhost`. With nothing but 127.0.0.1 on it, glibc would resolve no IPv4 name.
PRIVATE = 'ip link set lo up && ip addr add 127.0.0.2/8 dev lo && hostname localhost && exec "$@"'


def create_private(command: Sequence[str]) -> list[str]:
    """A command that makes a private network, which lives as long as a process is in it, and runs `command` in it."""
    return ["unshare", "--net", "--uts", "--", "sh", "-c", PRIVATE, "sh", *command]


def enter_private(pid: int, command: Sequence[str]) -> list[str]:
    """`command` as run in the private network of the process `pid`."""
    return ["nsenter", f"--net=/proc/{pid}/ns/net", f"--uts=/proc/{pid}/ns/uts", "--", *command]


def name_and_address(private: bool) -> tuple[str, str]:
    """The short host name and its loopback address.

    Slurm's daemons listen at the address of the host's name, whatever slurm.conf says.

    Raises:
        DevError: The name has another address, at which they could be reached from outside.
    """
    if private:
        return "localhost", "127.0.0.1"
    host = socket.gethostname()
    try:
        address = socket.gethostbyname(host)
    except OSError:
        address = "no address"
    if not address.startswith("127."):
        raise DevError(
            f"the host name {host} stands for {address}, and Slurm would listen there: start with --private-network, "
            f"or put the line `127.0.0.1 {host}` first in /etc/hosts"
        )
    return host.split(".")[0], address


@contextlib.contextmanager
def reserved_ports(address: str, count: int, folder: Path) -> Iterator[int]:
    """The first of `count` ports in a row that are free at `address`. Each folder starts looking somewhere else.

    Until the end of the context no other caller gets one of them, but Slurm's daemons can listen there, since they set
    SO_REUSEADDR.
    """
    first = FIRST_PORT + zlib.crc32(os.fsencode(folder)) % 10_000
    while first + count < LAST_PORT:
        with contextlib.ExitStack() as sockets:
            for port in range(first, first + count):
                if not reserve(sockets.enter_context(socket.socket()), address, port):
                    first = port + 1
                    break
            else:
                yield first
                return
    raise DevError(f"no {count} free ports in a row below {LAST_PORT} at {address}")


def reserve(holder: socket.socket, address: str, port: int) -> bool:
    """Binds a socket that does not listen. Whether nobody else had the port, another reservation included.

    A server can bind it too, since servers set SO_REUSEADDR; a search for a free port, in any process, does not set it
    and skips the port.
    """
    try:
        holder.bind((address, port))
    except OSError:
        return False
    holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    return True
