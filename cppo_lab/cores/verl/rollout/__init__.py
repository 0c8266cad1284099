"""The sampling side of the verl core: the CPU rollout server, vLLM with Top-K, and the agent loop between them.

What they share is here: our keys of the rollout, `rollout.engine_kwargs.cppo_lab`, typed, and the name of the
weight-sync socket.
"""

import hashlib
import os
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

CPU_ROLLOUT = "cppo_cpu"  # `rollout.name` of the CPU server
ENGINE_KEY = "cppo_lab"
# The number of mu's most likely tokens that a request asks for. The agent loop adds it to `sampling_params` of training
# requests only, and the rollout servers remove it before they call an engine.
TOPK_REQUEST = "cppo_topk"
TOPK_DTYPE_REQUEST = "cppo_topk_dtype"
# Names of the columns, the same in `TokenOutput.extra_fields` and in TransferQueue.
TOPK_IDS = "rollout_topk_ids"
TOPK_LOGP = "rollout_topk_logp"
POLICY_STEP = "policy_step"  # of each token: the training step after which its mu was the policy
# Replaces the training step in the seeds of validation, which are thus the same at every validation.
VALIDATION_STEP = -1


class RolloutSettings(NamedTuple):
    """What the rollout keeps of mu and how requests are seeded."""

    topk: int = 0  # tokens of mu kept per response token; 0: none
    topk_dtype: str = "float16"  # of the kept log-probabilities
    seed: int = 0  # of the run
    seed_requests: bool = True  # each training request has a seed; validation requests always do

    @classmethod
    def read(cls, engine_kwargs: Mapping[str, Any]) -> "RolloutSettings":
        """The settings below `rollout.engine_kwargs`; defaults for missing keys."""
        return cls(**(engine_kwargs.get(ENGINE_KEY) or {}))


def seed_of(*parts: object) -> int:
    """63 bits by a stable hash, so that a resumed run draws the same as an uninterrupted run."""
    name = "\0".join(map(str, parts))
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big") >> 1


# The name of the weight-sync socket, unique so that a run's rollout engines get weights from its trainer.
#
# verl 0.9.1 names the socket by Ray's job id on both ends. Every run has a separate Ray cluster, whose first job is
# always 01000000: with two runs on one machine, engines would silently take the weights of the other run. The
# messages are unpickled, so the name must also be unpredictable for other users.


# In the environment of all processes of a run; replaces the job id in the socket's name. verl prints that environment:
# logs have the values of variables that end like this one masked.
SOCKET_VARIABLE = "CPPO_LAB_WEIGHT_SOCKET_TOKEN"
VERL_SOCKET_VARIABLE = "VERL_RAY_JOB_ID"  # read by the engine's process
_JOB = re.compile(r"(?<=/rl-colocate-zmq-)[0-9a-zA-Z]+(?=-replica-)")


def socket_of_this_run(handle: str) -> str:
    """verl's socket address with this run's name in place of the job id.

    Raises RuntimeError if the address is not in the format of verl 0.9.1, or the run has no name.
    """
    renamed, count = _JOB.subn(_socket_name(), handle)
    if not count:
        raise RuntimeError(f"verl's weight-sync socket has the address {handle!r}, which names no job")
    return renamed


def tell_engine() -> None:
    """Set the environment so that engine processes started from this process use this run's sockets."""
    os.environ[VERL_SOCKET_VARIABLE] = _socket_name()


def _socket_name() -> str:
    name = os.environ.get(SOCKET_VARIABLE, "")
    if not name:
        raise RuntimeError(
            f"{SOCKET_VARIABLE} is not set in this process: its run was not started by the verl core"
        )
    return name
