"""Makes the name of the weight-sync socket unique, so that a run's rollout engines get weights from its trainer.

verl 0.9.1 names the socket by Ray's job id on both ends. Every run has a separate Ray cluster, whose first job is
always 01000000: with two runs on one machine, the engines of one would silently take the weights of the other. The
messages are unpickled, so the name must also be unpredictable for other users.
"""

import os
import re
import secrets

# In the environment of all processes of a run; replaces the job id in the socket's name.
VARIABLE = "CPPO_LAB_WEIGHT_SOCKET"
VERL_VARIABLE = "VERL_RAY_JOB_ID"  # read by the engine's process
_JOB = re.compile(r"(?<=/rl-colocate-zmq-)[0-9a-zA-Z]+(?=-replica-)")


def new_name() -> str:
    """A name for a run's sockets."""
    return secrets.token_hex(16)


def of_this_run(handle: str) -> str:
    """verl's socket address with this run's name in place of the job id.

    Raises RuntimeError if the address is not in the format of verl 0.9.1, or the run has no name.
    """
    renamed, count = _JOB.subn(_name(), handle)
    if not count:
        raise RuntimeError(f"verl's weight-sync socket has the address {handle!r}, which names no job")
    return renamed


def tell_engine() -> None:
    """Set the environment so that engine processes started from this process use this run's sockets."""
    os.environ[VERL_VARIABLE] = _name()


def _name() -> str:
    name = os.environ.get(VARIABLE, "")
    if not name:
        raise RuntimeError(f"{VARIABLE} is not set in this process: its run was not started by the verl core")
    return name
