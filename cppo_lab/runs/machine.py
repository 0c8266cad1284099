"""Where, with what and by which code a run is trained, and the load of the machine meanwhile.

Selected facts, never the whole environment. The load has the names of MLflow's sampler; for a run on several
machines, only the first is sampled. GPUs are NVIDIA's, through NVML (package nvidia-ml-py and a driver); nothing
here fails without them.
"""

import contextlib
import hashlib
import json
import os
import platform
import pwd
import re
import secrets
import socket
import subprocess
import sys
import sysconfig
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

import cppo_lab
from cppo_lab import schema
from cppo_lab.errors import say
from cppo_lab.files import appearing, redacted

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
    schema.TAG_JOB: "SLURM_JOB_ID",
    schema.TAG_JOB_NAME: "SLURM_JOB_NAME",
    schema.TAG_PARTITION: "SLURM_JOB_PARTITION",
    schema.TAG_NODES: "SLURM_JOB_NODELIST",
}
_MOST = 500  # characters of a value that a user chose
ROOT = Path(cppo_lab.__file__).resolve().parent.parent  # of this code: in a checkout or a frozen copy
_STATE = "code_state.json"  # of a frozen copy: where it comes from
_LARGEST_FILE = 1_000_000
_INSTALLED = re.compile(rf"/(site|dist)-packages/|\A{re.escape(sysconfig.get_path('stdlib'))}/")
GIT_SECONDS = 30  # a command of git may take
PROCESSORS = Path("/proc/cpuinfo")
DRIVER = Path("/proc/driver/nvidia")  # the kernel module's description of itself
RENEW_SECONDS = 60.0  # interval of the search for descendants, which reads the whole process table
# Metrics that also get a peak, since running out of memory ends a run.
_PEAKS = re.compile(r"((?:process|gpu_\d+)_memory)(?:_usage)?_megabytes")


class CodeState(NamedTuple):
    """The code of this process: `commit` is empty outside a git checkout.

    `changes` is a fingerprint of how tracked files differ from the commit, empty if they do not. `unread` is why git
    could not read a checkout, empty if it could.
    """

    commit: str = ""
    changes: str = ""
    unread: str = ""


def code_version(root: Path = ROOT) -> str:
    """`<version>+<commit>` in a git checkout, with `.dirty` for uncommitted changes; else `<version>`.

    `<version>+unread.<random digits>` for a checkout that git could not read: it equals no other version, since nothing
    says that the code was the same. Standard error then says so.
    """
    code, version = code_state(root), cppo_lab.__version__
    if code.unread:
        say(
            f"git cannot read the code version ({code.unread}): results are recorded with a version that equals no "
            "other; try `git status` where the code is",
        )
        return f"{version}+unread.{secrets.token_hex(6)}"
    return f"{version}+{code.commit[:12]}{'.dirty' if code.changes else ''}" if code.commit else version


@cache
def code_state(root: Path) -> CodeState:
    """The commit of the checkout at `root`, and how its files differ, when it is first asked: this process has loaded
    that code.
    """
    if (root / _STATE).is_file():  # a frozen copy
        return CodeState(*json.loads((root / _STATE).read_text(encoding="utf-8")))
    if not (root / ".git").exists():
        return CodeState()
    try:
        commit = git(root, "rev-parse", "HEAD").strip()
        # Names only: how a difference is printed depends on the user's settings of git.
        changed = git(root, "diff", "--name-only", "--no-renames", "--no-ext-diff", "-z", "HEAD")
        digest = hashlib.sha256()
        for name in sorted(changed.split("\0")[:-1]):
            path = root / name
            content = path.read_bytes() if path.is_file() else b"\0gone"
            digest.update(name.encode(errors="surrogateescape") + b"\0" + hashlib.sha256(content).digest())
        return CodeState(commit, digest.hexdigest()[:12] if changed else "")
    except (OSError, subprocess.SubprocessError) as error:
        reason = str(getattr(error, "stderr", None) or error).strip()
        return CodeState(unread=reason.partition("\n")[0] or type(error).__name__)


def freeze(runs: Path) -> Path:
    """A folder below `runs` with a copy of this package, and of every module that this process has loaded from outside
    the installed packages, as own rules are; it is named by its content. Files of a megabyte or more are left out.
    """
    roots = {"cppo_lab": cppo_lab.PACKAGE_FOLDER}
    for name, module in list(sys.modules.items()):
        path = Path(getattr(module, "__file__", None) or "/")
        if (
            "." not in name
            and path.suffix == ".py"
            and not _INSTALLED.search(str(path))
            and name != "__main__"
        ):
            roots.setdefault(name, path.parent if path.name == "__init__.py" else path)
    if cppo_lab.PARTS_FOLDER != cppo_lab.PACKAGE_FOLDER:
        roots |= {f"cppo_lab/{part}": cppo_lab.PARTS_FOLDER / part for part in cppo_lab.PARTS}
    content = {_STATE: json.dumps(code_state(ROOT)).encode()}
    for name, root in roots.items():
        for path in root.rglob("*") if root.is_dir() else [root]:
            inner = path.relative_to(root)
            skipped = any(part[0] == "." or part in ("__pycache__", "build") for part in inner.parts)
            if not skipped and path.is_file() and path.stat().st_size < _LARGEST_FILE:
                content[str(name / inner) if root.is_dir() else path.name] = path.read_bytes()
    place = runs / "code" / hashlib.sha256(repr(sorted(content.items())).encode()).hexdigest()[:16]
    if not place.is_dir():
        with appearing(place) as folder:
            for name, text in content.items():
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                (folder / name).write_bytes(text)
    return place


def git(root: Path, *arguments: str) -> str:
    """What git says of the checkout at `root`, whatever a user or a hook has set for other repositories.

    Raises OSError without git, and a SubprocessError if it fails.
    """
    # Git sets GIT_DIR and others for its hooks, and a user may: they would name another repository, index or work tree.
    variables = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    # A broken .git must not make git find a repository around the checkout.
    variables["GIT_CEILING_DIRECTORIES"] = str(root.resolve().parent)
    return subprocess.run(
        ["git", "-C", str(root), *arguments],
        check=True,
        capture_output=True,
        text=True,
        errors="surrogateescape",
        timeout=GIT_SECONDS,
        env=variables,
    ).stdout


class Environment(NamedTuple):
    """Tags of the schema for this process on this machine, and `name==version` of every installed package, sorted."""

    tags: Mapping[str, str]
    packages: list[str]


def environment() -> Environment:
    """The environment as it is now; unknown or missing facts have no tag."""
    code, installed = code_state(ROOT), packages()
    models, driver, cuda = _gpus()
    versions = dict(line.split("==", 1) for line in installed)
    processor = platform.processor()  # its kind, where the kernel names no model, as on ARM
    with contextlib.suppress(OSError):
        if model := re.search(r"^model name\s*:\s*(.*?)\s*$", PROCESSORS.read_text("utf-8", "replace"), re.M):
            processor = model[1]
    tags = {
        schema.TAG_HOST: socket.gethostname(),
        schema.TAG_PYTHON: platform.python_version(),
        schema.TAG_PLATFORM: f"{platform.system()} {platform.release()} {platform.machine()}",
        schema.TAG_CPU: processor,
        schema.TAG_CORES: str(len(os.sched_getaffinity(0))),
        schema.TAG_MEMORY: str(round(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30)),
        schema.TAG_MLFLOW_SOURCE: "cppo_lab",
        schema.TAG_MLFLOW_SOURCE_TYPE: "LOCAL",
        schema.TAG_MLFLOW_USER: user_name(os.getuid()),
        schema.TAG_PACKAGES: " ".join(f"{name}=={versions[name]}" for name in PACKAGES if name in versions),
    }
    if models:
        tags |= {
            schema.TAG_GPU: ", ".join(dict.fromkeys(models)),
            schema.TAG_GPUS: str(len(models)),
            schema.TAG_DRIVER: driver,
            schema.TAG_CUDA: cuda,
            schema.TAG_VISIBLE_DEVICES: os.environ.get("CUDA_VISIBLE_DEVICES", ""),
        }
    if "SLURM_JOB_ID" in os.environ:
        tags |= {tag: os.environ.get(name, "") for tag, name in _SLURM.items()}
        tags[schema.TAG_MLFLOW_SOURCE_TYPE] = "JOB"
        tags[schema.TAG_ARRAY_TASK] = slurm_array_task()
        # Slurm sets it from the first restart on.
        tags[schema.TAG_RESTARTS] = os.environ.get("SLURM_RESTART_COUNT", "0")
    if code.commit:
        tags |= {
            schema.TAG_COMMIT: code.commit,
            schema.TAG_MLFLOW_COMMIT: code.commit,
            schema.TAG_DIRTY: "true" if code.changes else "false",
            schema.TAG_CHANGES: code.changes,
        }
    return Environment({key: redacted(value)[:_MOST] for key, value in tags.items() if value}, installed)


_NAME_AND_VERSION = re.compile(r"^(Name|Version):\s*(\S+)", re.MULTILINE)


def packages() -> list[str]:
    """`name==version` of everything that is installed, sorted: the text of a `requirements.txt`."""
    versions: dict[str, str] = {}
    for distribution in metadata.distributions():
        # A folder that an interrupted installation left has no file. `distribution.metadata` parses whole descriptions,
        # which takes half of the time of a short run's attempt.
        texts = (
            distribution.read_text(name) for name in ("METADATA", "PKG-INFO", "")
        )  # "": an egg-info that is a file
        fields = dict(_NAME_AND_VERSION.findall(next(filter(None, texts), "").partition("\n\n")[0]))
        if fields.keys() == {"Name", "Version"}:
            versions.setdefault(fields["Name"], fields["Version"])  # the first on the path is imported
    return [f"{name}=={versions[name]}" for name in sorted(versions, key=str.casefold)]


def versions_in(tags: Mapping[str, str]) -> dict[str, str]:
    """The versions of the main packages that the tags of a run name."""
    old = schema.TAG_OLD_PACKAGE_PREFIX
    versions = {key.removeprefix(old): value for key, value in tags.items() if key.startswith(old)}
    named = (word.split("==", 1) for word in tags.get(schema.TAG_PACKAGES, "").split() if "==" in word)
    return versions | dict(named)


def slurm_array_task() -> str:
    """`<array>_<task>`, as Slurm's commands write it; empty outside an array."""
    array, task = os.environ.get("SLURM_ARRAY_JOB_ID"), os.environ.get("SLURM_ARRAY_TASK_ID")
    return f"{array}_{task}" if array and task else ""


def deadline(hours: float) -> float:
    """When this process is ended, in seconds since the epoch: by Slurm, or `hours` from now.

    Slurm tells its jobs from 23.02 on.
    """
    end = os.environ.get("SLURM_JOB_END_TIME", "")
    return float(end) if end.isdecimal() else time.time() + 3600 * hours


def user_name(account: int) -> str:
    """The login name of a uid; the uid if it has none, as in a container."""
    try:
        return pwd.getpwuid(account).pw_name
    except KeyError:
        return str(account)


def _gpus() -> tuple[list[str], str, str]:
    """Models of the machine's GPUs, the driver's version, and the newest version of CUDA that it supports.

    From NVML, or otherwise from the files of the kernel module, which do not say the version of CUDA.
    """
    with nvml() as library:
        if library is not None:
            with contextlib.suppress(library.NVMLError):
                cuda = library.nvmlSystemGetCudaDriverVersion()  # 12040 is 12.4
                return (
                    [library.nvmlDeviceGetName(handle) for handle in _handles(library)],
                    library.nvmlSystemGetDriverVersion(),
                    f"{cuda // 1000}.{cuda % 1000 // 10}",
                )
    models, version = [], None
    with contextlib.suppress(OSError):
        for path in sorted(DRIVER.glob("gpus/*/information")):
            models += re.findall(r"^Model:\s*(.*?)\s*$", path.read_text("utf-8", "replace"), re.MULTILINE)
        version = re.match(r".*?\s(\d\S*\.\S*)", (DRIVER / "version").read_text("utf-8", "replace"))
    return models, version[1] if version else "", ""


@contextlib.contextmanager
def nvml() -> Iterator[Any]:
    """NVML, initialised; None if it is not available."""
    library = None
    with contextlib.suppress(ImportError):
        import pynvml

        with contextlib.suppress(pynvml.NVMLError):
            pynvml.nvmlInit()
            library = pynvml
    try:
        yield library
    finally:
        if library is not None:
            with contextlib.suppress(library.NVMLError):
                library.nvmlShutdown()


def _handles(library: Any) -> list[Any]:
    return [library.nvmlDeviceGetHandleByIndex(i) for i in range(library.nvmlDeviceGetCount())]


def visible(uuids: list[str], chosen: str | None) -> list[int]:
    """Which devices, by index in `uuids`, the value of CUDA_VISIBLE_DEVICES leaves; all of them for None.

    As CUDA reads it: entries after an invalid entry are ignored.
    """
    if chosen is None:
        return list(range(len(uuids)))
    devices: list[int] = []
    for word in map(str.strip, chosen.split(",")):
        named = [
            i
            for i, uuid in enumerate(uuids)
            if word == str(i) or (word.startswith("GPU-") and uuid.startswith(word))
        ]
        if len(named) != 1:
            break
        devices += named
    return devices


@contextlib.contextmanager
def sampling(folder: Path, every: float = 5.0) -> Iterator[Callable[[], dict[str, float]]]:
    """Take a sample every `every` seconds in a separate thread while the block runs; `folder` is the run's.

    Gives a function for the metrics of schema.py since its last call, see `summary`.
    """
    samples: deque[dict[str, float]] = deque()
    ended = threading.Event()

    def sample() -> None:
        with contextlib.closing(loads(folder)) as readings:
            next(readings)
            while not ended.wait(every):
                samples.append(next(readings))

    thread = threading.Thread(target=sample, name="system-sampler", daemon=True)
    thread.start()
    try:
        yield lambda: summary([samples.popleft() for _ in range(len(samples))])
    finally:
        ended.set()
        thread.join(every)


def summary(samples: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Metrics of schema.py: means over the samples, and peaks; empty if there are none."""
    metrics: dict[str, float] = {}
    for name in {name for sample in samples for name in sample}:
        values = [sample[name] for sample in samples if name in sample]
        metrics[f"system/{name}"] = sum(values) / len(values)
        if memory := _PEAKS.fullmatch(name):
            metrics[f"system/{memory[1]}_peak_megabytes"] = max(values)
    return metrics


def loads(folder: Path) -> Generator[dict[str, float]]:
    """The load of machine, process and GPUs at each `next`, without end. What cannot be read is left out.

    Loads of processors are means since the sample before: the first has none that mean anything.
    """
    import psutil

    this, network = psutil.Process(), None
    family: dict[int, psutil.Process] = {}
    renewed = float("-inf")
    with nvml() as library:
        devices = dict[int, Any]()
        if library is not None:
            with contextlib.suppress(library.NVMLError):
                handles = _handles(library)
                uuids = [library.nvmlDeviceGetUUID(handle) for handle in handles]
                chosen = visible(uuids, os.environ.get("CUDA_VISIBLE_DEVICES"))
                devices = {i: handles[i] for i in chosen}
        while True:
            sample: dict[str, float] = {}
            with contextlib.suppress(OSError, psutil.Error):
                memory = psutil.virtual_memory()
                sample["cpu_utilization_percentage"] = psutil.cpu_percent()
                sample["system_memory_usage_megabytes"] = memory.used / 1e6
                sample["system_memory_usage_percentage"] = memory.used / memory.total * 100
            with contextlib.suppress(OSError, psutil.Error):  # a container may hide /proc/net
                counters = psutil.net_io_counters()  # None where the machine has no network
                network = network or counters
                for name, kind in (("receive", "bytes_recv"), ("transmit", "bytes_sent")):
                    since = getattr(counters, kind, 0) - getattr(network, kind, 0)
                    sample[f"network_{name}_megabytes"] = since / 1e6
            with contextlib.suppress(OSError):  # the folder may be gone
                disk = psutil.disk_usage(str(folder))
                sample["disk_usage_percentage"] = disk.percent
                sample["disk_usage_megabytes"] = disk.used / 1e6
                sample["disk_available_megabytes"] = disk.free / 1e6
            if time.monotonic() - renewed >= RENEW_SECONDS:
                renewed = time.monotonic()
                with contextlib.suppress(psutil.Error):
                    processes = [this, *this.children(recursive=True)]  # verl's workers, too
                    family = {process.pid: family.get(process.pid, process) for process in processes}
            load = resident = 0.0
            for process in family.values():
                with contextlib.suppress(psutil.Error), process.oneshot():  # it has ended
                    load += process.cpu_percent()
                    resident += process.memory_info().rss / 1e6
            sample |= {"process_cpu_percentage": load, "process_memory_megabytes": resident}
            for i, device in devices.items():
                sample |= _device_load(library, f"gpu_{i}_", device)
            yield sample


def _device_load(library: Any, gpu: str, handle: Any) -> dict[str, float]:
    """The load of a device now, omitting values that it does not report."""
    values: dict[str, float] = {}
    with contextlib.suppress(library.NVMLError):
        memory = library.nvmlDeviceGetMemoryInfo(handle)
        values["memory_usage_megabytes"] = memory.used / 1e6
        values["memory_usage_percentage"] = memory.used / memory.total * 100
    with contextlib.suppress(library.NVMLError):
        values["utilization_percentage"] = float(library.nvmlDeviceGetUtilizationRates(handle).gpu)
    with contextlib.suppress(library.NVMLError):
        milliwatts = library.nvmlDeviceGetPowerUsage(handle)
        values["power_usage_watts"] = milliwatts / 1000
        values["power_usage_percentage"] = milliwatts / library.nvmlDeviceGetEnforcedPowerLimit(handle) * 100
    return {gpu + name: value for name, value in values.items()}
