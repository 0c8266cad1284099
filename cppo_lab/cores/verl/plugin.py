"""Registers our classes with verl, in every Ray process.

verl's `__init__` imports the modules named in the environment variable VERL_USE_EXTERNAL_MODULES and propagates their
errors; those of entry points in the group `verl.plugins` would be swallowed. `core.own_ray` puts it into the
environment and Ray's `runtime_env.env_vars`. Servers are imported when verl looks them up by name, so no process
imports a server that it does not run.

verl chooses the device itself unless CPPO_LAB_VERL_DEVICE=cpu asks for the CPU.
"""

import os
from functools import partial
from pkgutil import resolve_name

import transformers.utils

# Hide scikit-learn and SciPy, which take a third of verl's import time in each of a run's ten processes. transformers
# imports them, if installed, for a kind of assisted decoding that nothing here uses.
_find_sklearn = transformers.utils.is_sklearn_available
transformers.utils.is_sklearn_available = lambda: False
try:
    import transformers.generation.candidate_generator
finally:
    transformers.utils.is_sklearn_available = _find_sklearn

from verl.workers.rollout.base import _ROLLOUT_REGISTRY  # noqa: E402
from verl.workers.rollout.replica import RolloutReplicaRegistry  # noqa: E402

from cppo_lab.cores.verl.cluster import DEVICE_VARIABLE  # noqa: E402
from cppo_lab.cores.verl.rollout import CPU_ROLLOUT  # noqa: E402
from cppo_lab.errors import unknown  # noqa: E402

# First: verl's engines read the device when they are imported.
if (_device := os.environ.get(DEVICE_VARIABLE)) is not None:
    if _device != "cpu":
        raise unknown(f"{DEVICE_VARIABLE} (leave it unset for verl's own choice)", _device, ["cpu"])
    from cppo_lab.cores.verl import platform_cpu

    platform_cpu.use_cpu()
    platform_cpu.register_engine()
_SERVERS = "cppo_lab.cores.verl.rollout"
RolloutReplicaRegistry.register(CPU_ROLLOUT, partial(resolve_name, f"{_SERVERS}.cpu:CpuReplica"))
# In place of verl's replica, which it extends.
RolloutReplicaRegistry.register("vllm", partial(resolve_name, f"{_SERVERS}.vllm_server:TopKReplica"))
# verl has no public way to add the class by which its training workers reach a server.
_ROLLOUT_REGISTRY[(CPU_ROLLOUT, "async")] = f"{_SERVERS}.cpu.CpuServerAdapter"
from cppo_lab.cores.verl.rollout import agent_loop  # noqa: E402, F401  (verl's decorator registers it by name)
