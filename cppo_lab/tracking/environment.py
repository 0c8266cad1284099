"""Tags on where, with what and by which code a run is trained: selected facts, never the whole environment."""

import contextlib
import os
import platform
import pwd
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Self

from cppo_lab import schema
from cppo_lab.redaction import redacted
from cppo_lab.tracking.code_version import code_state
from cppo_lab.tracking.nvidia import inventory

PACKAGES = (
    "torch",
    "verl",
    "vllm",
    "ray",
    "transformers",
    "mlflow",
    "mlflow-skinny",
    "optuna",
    "numpy",
    "submitit",
    "hydra-core",
)
_SLURM = {
    "SLURM_JOB_ID": schema.TAG_JOB,
    "SLURM_JOB_NAME": schema.TAG_JOB_NAME,
    "SLURM_JOB_PARTITION": schema.TAG_PARTITION,
    "SLURM_JOB_NODELIST": schema.TAG_NODES,
}
_MOST = 500  # characters of a value that a user chose


def environment_tags() -> dict[str, str]:
    """The tags of this process on this machine; unknown or missing facts have no tag."""
    tags = {
        schema.TAG_HOST: socket.gethostname(),
        schema.TAG_PYTHON: platform.python_version(),
        schema.TAG_PLATFORM: f"{platform.system()} {platform.release()} {platform.machine()}",
        schema.TAG_CPU: _cpu(),
        schema.TAG_CORES: str(len(os.sched_getaffinity(0))),
        schema.TAG_MEMORY: str(round(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30)),
        schema.TAG_MLFLOW_SOURCE: "cppo_lab",
        schema.TAG_MLFLOW_SOURCE_TYPE: "JOB" if "SLURM_JOB_ID" in os.environ else "LOCAL",
        schema.TAG_MLFLOW_USER: _user(),
        schema.TAG_PACKAGES: _versions(),
        **_gpus(),
        **_slurm(),
        **_code(),
    }
    return {key: redacted(value)[:_MOST] for key, value in tags.items() if value}


@dataclass(frozen=True)
class Environment:
    """The tags and installed packages of this process, looked up once for all runs that it trains."""

    tags: Mapping[str, str]
    packages: Sequence[str]

    @classmethod
    def of_this_process(cls) -> Self:
        """As they are now."""
        return cls(environment_tags(), packages())


def packages() -> list[str]:
    """`name==version` of everything that is installed, sorted: the text of a `requirements.txt`."""
    found: dict[str, str] = {}
    for distribution in metadata.distributions():
        # A folder that an interrupted installation left has no name; importlib_metadata, if loaded, raises for it.
        with contextlib.suppress(FileNotFoundError):
            if name := distribution.metadata["Name"]:
                found.setdefault(name, distribution.version)  # the first on the path is imported
    return [f"{name}=={found[name]}" for name in sorted(found, key=str.casefold)]


def _versions() -> str:
    found = []
    for name in PACKAGES:
        with contextlib.suppress(metadata.PackageNotFoundError):
            found.append(f"{name}=={metadata.version(name)}")
    return " ".join(found)


def versions_in(tags: Mapping[str, str]) -> dict[str, str]:
    """The versions of the main packages that the tags of a run name."""
    old = schema.TAG_OLD_PACKAGE_PREFIX
    found = {key.removeprefix(old): value for key, value in tags.items() if key.startswith(old)}
    for one in tags.get(schema.TAG_PACKAGES, "").split():
        name, _, version = one.partition("==")
        found[name] = version
    return found


def _gpus() -> dict[str, str]:
    has = inventory()
    if not has.names:
        return {}
    return {
        schema.TAG_GPU: ", ".join(dict.fromkeys(has.names)),
        schema.TAG_GPUS: str(len(has.names)),
        schema.TAG_DRIVER: has.driver,
        schema.TAG_CUDA: has.cuda,
        schema.TAG_VISIBLE_DEVICES: os.environ.get("CUDA_VISIBLE_DEVICES", ""),
    }


def _slurm() -> dict[str, str]:
    if "SLURM_JOB_ID" not in os.environ:
        return {}
    tags = {tag: os.environ.get(name, "") for name, tag in _SLURM.items()}
    array, task = os.environ.get("SLURM_ARRAY_JOB_ID"), os.environ.get("SLURM_ARRAY_TASK_ID")
    if array and task:
        tags[schema.TAG_ARRAY_TASK] = f"{array}_{task}"
    # Slurm sets it from the first restart on.
    return tags | {schema.TAG_RESTARTS: os.environ.get("SLURM_RESTART_COUNT", "0")}


def _code() -> dict[str, str]:
    code = code_state()
    if not code.commit:
        return {}
    return {
        schema.TAG_COMMIT: code.commit,
        schema.TAG_MLFLOW_COMMIT: code.commit,
        schema.TAG_DIRTY: "true" if code.dirty else "false",
        schema.TAG_CHANGES: code.changes,
    }


def _cpu() -> str:
    """The model of the first processor."""
    try:
        with Path("/proc/cpuinfo").open(encoding="utf-8", errors="replace") as file:
            for line in file:
                if line.startswith("model name"):
                    return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor()


def _user() -> str:
    """The user of this process; the uid if a container does not know the name."""
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return str(os.getuid())
