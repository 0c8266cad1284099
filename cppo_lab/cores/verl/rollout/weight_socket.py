"""The socket over which a run's trainer hands new weights to its own rollout engines, and to no other run's.

verl 0.9.1 names it by Ray's job id on both ends. Every run has a Ray cluster of its own here, whose first job is always
01000000: of two runs on one machine one's engines would take the other's weights, without an error. What goes over
it is unpickled too, so its name must be none that another user could guess.
"""

import os
import re
import secrets

# In the environment of all processes of a run: replaces the job's id in the socket's name.
VARIABLE = "CPPO_LAB_WEIGHT_SOCKET"
VERL_VARIABLE = "VERL_RAY_JOB_ID"  # where the engine's process looks for it
_JOB = re.compile(r"(?<=/rl-colocate-zmq-)[0-9a-zA-Z]+(?=-replica-)")


def new_name() -> str:
    """A name for one run's sockets."""
    return secrets.token_hex(16)


def of_this_run(handle: str) -> str:
    """verl's address of a socket with this run's name in place of the job's id.

    Raises RuntimeError if the address is not as verl 0.9.1 makes it, or the run has no name.
    """
    renamed, found = _JOB.subn(_name(), handle)
    if not found:
        raise RuntimeError(f"verl's weight-sync socket has the address {handle!r}, which names no job")
    return renamed


def tell_engine() -> None:
    """Let the engine's processes that this one starts look for this run's sockets."""
    os.environ[VERL_VARIABLE] = _name()


def _name() -> str:
    name = os.environ.get(VARIABLE, "")
    if not name:
        raise RuntimeError(f"{VARIABLE} is not set in this process: its run was not started by the verl core")
    return name
