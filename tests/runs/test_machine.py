"""What is said of where a run is trained: facts that can be checked otherwise, and nothing secret."""

import importlib.metadata
import inspect
import os
import platform
import pwd
import re
import socket
import subprocess
import sys
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from threading import Thread
from types import SimpleNamespace
from unittest.mock import Mock, patch

import pynvml
import pytest
from mlflow.system_metrics.metrics import cpu_monitor, disk_monitor, gpu_monitor, network_monitor

import cppo_lab
from cppo_lab import schema
from cppo_lab.runs import machine
from cppo_lab.runs.attempt import Equipped
from cppo_lab.runs.machine import (
    PACKAGES,
    CodeState,
    code_version,
    environment,
    loads,
    packages,
    sampling,
    summary,
    versions_in,
    visible,
)
from cppo_lab.sweep.compose import compose
from tests.waiting import CEILING_SECONDS, until

SECRET = "hunter2-s3cret"
CACHED = machine.code_state
code_state = CACHED.__wrapped__  # asks git at each call


@pytest.fixture(autouse=True)
def asked_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cppo_lab.runs.machine.code_state", code_state)


def test_a_process_asks_git_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cppo_lab.runs.machine.code_state", CACHED)
    monkeypatch.setattr("cppo_lab.runs.machine.git", ask := Mock(return_value="c0ffee\n"))
    CACHED.cache_clear()
    assert environment().tags["cppo.env.commit"] == "c0ffee"
    assert code_version() == code_version() == f"{cppo_lab.__version__}+c0ffee.dirty"
    assert ask.call_count == 2  # for the commit and the changes
    CACHED.cache_clear()


def git(root: Path, words: str, *more: str) -> str:
    settings = "-c user.name=a -c user.email=a@b"
    command = ["git", "-C", str(root), *f"{settings} {words}".split(), *more]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def made(root: Path) -> Path:
    root.mkdir(exist_ok=True)
    git(root, "init -q")
    (root / "a.py").write_text("one\n")
    (root / "ü b.py").write_text("two\n")
    git(root, "add .")
    git(root, "commit -qm", f"first of {root}")
    return root


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    return made(tmp_path)


def test_a_clean_checkout_and_changed_ones_that_are_told_apart(checkout: Path) -> None:
    (checkout / "untracked").write_text("")
    (checkout / "a.py").touch()
    git(checkout, "worktree add -q linked")
    commit = git(checkout, "rev-parse HEAD")
    for root in (checkout, checkout / "linked"):
        assert code_state(root) == CodeState(commit)
        assert code_version(root) == f"{cppo_lab.__version__}+{commit[:12]}"
    (frozen := checkout / "frozen").mkdir()
    (frozen / "code_state.json").write_text('["a", "b"]')
    assert code_state(frozen) == CodeState("a", "b")
    states = []
    for text in ("two\n", "three\n", "two\nthree\n", "two\n"):
        (checkout / "a.py").write_text(text)
        assert code_version(checkout).endswith(".dirty")
        states.append(code_state(checkout).changes)
    git(checkout, "add a.py")  # staged or not, it is the same code
    git(checkout, "config diff.mnemonicPrefix true")
    states.append(code_state(checkout).changes)
    (checkout / "ü b.py").unlink()
    states.append(code_state(checkout).changes)
    first, *_, gone = states
    assert (len({"", *states}), states) == (5, [*states[:3], first, first, gone])


def test_variables_of_git_do_not_choose_the_repository(checkout: Path) -> None:
    (checkout / "a.py").write_text("changed\n")
    expected, other = code_state(checkout), made(checkout / "other")
    assert expected.changes
    variables = {
        **dict.fromkeys(("GIT_WORK_TREE", "GIT_CONFIG_VALUE_0"), str(other)),
        "GIT_DIR": f"{other}/.git", "GIT_INDEX_FILE": f"{other}/.git/index",
        "GIT_CONFIG_COUNT": "1", "GIT_CONFIG_KEY_0": "core.worktree", "GIT_NAMESPACE": "a", "GIT_TRACE": "2",
    }  # fmt: skip
    with patch.dict(os.environ, variables):
        assert code_state(checkout) == expected


FOREIGN = "fatal: detected dubious ownership in repository at '/x'\nTo add an exception: ...\n"
FAULTS = [
    (FileNotFoundError(2, "No such file or directory", "git"), "No such file"),
    (subprocess.TimeoutExpired("git", 30), "timed out"),
    (subprocess.CalledProcessError(128, "git", "", FOREIGN), "ownership in repository at '/x'"),
]


@pytest.mark.parametrize("fault, reason", FAULTS)
def test_a_version_that_git_could_not_read_says_so_and_equals_no_other(
    checkout: Path,
    fault: Exception,
    reason: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("subprocess.run", Mock(side_effect=fault))
    versions = {code_version(checkout), code_version(checkout)}
    assert len(versions) == 2
    assert all(re.fullmatch(r".+\+unread\.[0-9a-f]{12}", version) for version in versions)
    assert re.match(rf"git cannot read the code version \(.*{reason}.*\): results", capsys.readouterr().err)


def test_a_broken_checkout_is_not_the_repository_around_it(checkout: Path) -> None:
    inner = checkout / "inner"
    inner.mkdir()
    assert code_version(inner) == cppo_lab.__version__
    git(inner, "init -q")
    assert code_state(inner).unread  # no commit yet
    (made(inner) / ".git" / "HEAD").unlink()
    assert code_state(inner).unread


def told(*names: str) -> list[str | None]:
    tags = environment().tags
    return [tags.get(f"cppo.env.{name}") for name in names]


def test_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    commit, changes, _ = code_state(machine.ROOT)
    popen = Mock(wraps=subprocess.Popen)
    monkeypatch.setattr("subprocess.Popen", popen)
    tags = environment().tags
    assert {call.args[0][0] for call in popen.call_args_list} <= {"git"}  # no other program is called
    expected = {
        "cppo.env.host": socket.gethostname(),
        "cppo.env.python": platform.python_version(),
        "cppo.env.cores": str(len(os.sched_getaffinity(0))),
        "cppo.env.memory_gib": str(round(kernels("MemTotal") * 1e6 / 2**30)),
        "cppo.env.changes": changes,
        "cppo.env.dirty": str(bool(changes)).lower() if commit else "",
        "mlflow.user": pwd.getpwuid(os.getuid()).pw_name,
        **dict.fromkeys(("cppo.env.commit", "mlflow.source.git.commit"), commit),
    }
    assert {name: tags.get(name, "") for name in expected} == expected
    assert tags["cppo.env.cpu"] in Path("/proc/cpuinfo").read_text()
    assert platform.machine() in tags["cppo.env.platform"] and all(tags.values())


def kernels(name: str) -> float:
    """Megabytes of memory, as the kernel says."""
    [kibibytes] = re.findall(rf"{name}:\s+(\d+) kB", Path("/proc/meminfo").read_text())
    return int(kibibytes) * 1024 / 1e6


def test_versions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = environment()
    versions = versions_in(before.tags)
    assert len(versions) > 5
    for name in PACKAGES:
        with suppress(importlib.metadata.PackageNotFoundError):
            assert versions.pop(name, None) == importlib.metadata.version(name)
    assert not versions
    # An older run has a tag for each package; one that is resumed has both, and the newer ones count.
    old = {"cppo.env.package.torch": "2.11.0", "cppo.env.package.verl": "0.8.0", "cppo.env.host": "node1"}
    for newer, torch in {"": "2.11.0", "torch==2.13.0 cut=": "2.13.0"}.items():
        assert versions_in(old | {"cppo.env.packages": newer}) == {"torch": torch, "verl": "0.8.0"}
    (tmp_path / "half-1.0.dist-info").mkdir()  # which an interrupted installation left
    whole = tmp_path / "whole_one-2.0.dist-info"
    whole.mkdir()
    (whole / "METADATA").write_text("Metadata-Version: 2.1\nName: whole-one\nVersion: 2.0\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert {*packages()} - {*before.packages} == {"whole-one==2.0"}


def test_a_job_of_slurm_and_no_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    names = [f"slurm_{name}" for name in ("job", "array_task", "name", "partition", "nodes", "restarts")]
    assert told(*names) == [None] * 6
    uri = f"https://ada:{SECRET}@mlflow.example"
    variables = {
        "SLURM_JOB_ID": "812", "SLURM_ARRAY_JOB_ID": "810", "SLURM_ARRAY_TASK_ID": "3",
        "SLURM_JOB_NAME": f"main {uri}", "SLURM_JOB_PARTITION": "gpu", "SLURM_JOB_NODELIST": "node[01-02,7]",
        "SLURM_RESTART_COUNT": "2", "SLURM_EXPORT_ENV": f"ALL,TOKEN={SECRET}",
        **dict.fromkeys(("MLFLOW_TRACKING_PASSWORD", "HF_TOKEN", "USER"), SECRET),
        **dict.fromkeys(("MLFLOW_TRACKING_URI", "CUDA_VISIBLE_DEVICES"), uri),
    }  # fmt: skip
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("sys.argv", ["cppo", f"tracking.uri={uri}"])
    masked = "main https://ada:***@mlflow.example"
    assert told(*names) == ["812", "810_3", masked, "gpu", "node[01-02,7]", "2"]
    assert environment().tags["mlflow.source.type"] == "JOB"
    assert SECRET not in repr(environment())


@pytest.mark.parametrize("end, deadline", [("1700000000", 1700000000.0), ("Unknown", 1000 + 7200.0)])
def test_when_the_process_is_ended(monkeypatch: pytest.MonkeyPatch, end: str, deadline: float) -> None:
    monkeypatch.setenv("SLURM_JOB_END_TIME", end)
    monkeypatch.setattr("cppo_lab.runs.machine.time", SimpleNamespace(time=lambda: 1000.0))
    composed = compose(["resources.hours=2"])
    equipped = Equipped(composed.run, Path("runs"), resources=composed.resources, grace_seconds=60)
    lent = equipped.resources_in(Path("run"))
    assert (lent.deadline, lent.grace_seconds) == (deadline, 60)
    assert replace(equipped, resources=None).resources_in(Path("run")).deadline is None


def test_what_a_container_or_the_kernel_does_not_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cppo_lab.runs.machine.PROCESSORS", tmp_path / "cpuinfo")
    monkeypatch.setattr(
        "cppo_lab.runs.machine.code_state", lambda root: CodeState()
    )  # an installation without git
    monkeypatch.setattr("pwd.getpwuid", {}.__getitem__)
    monkeypatch.setattr("platform.processor", lambda: "aarch64")
    assert told("cpu", "commit", "dirty", "changes") == ["aarch64", None, None, None]
    tags = environment().tags
    assert (tags["mlflow.user"], tags.get("mlflow.source.git.commit")) == (str(os.getuid()), None)
    for text, model in {
        "processor\t: 0\nBogoMIPS\t: 50.00\n": "aarch64",  # as on ARM
        "processor\t: 0\nmodel name\t: Big: CPU\n\nprocessor\t: 1\nmodel name\t: Other\n": "Big: CPU",
    }.items():
        (tmp_path / "cpuinfo").write_text(text)
        assert told("cpu") == [model]


@pytest.fixture
def two(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> dict[int, int]:
    """The loads of two GPUs that NVML finds in the machine; it has an error for one without a load."""
    loads = {0: 70, 1: 71}
    library = Mock(
        spec_set=pynvml,
        NVMLError=KeyError,
        nvmlDeviceGetCount=lambda: 2,
        nvmlDeviceGetHandleByIndex=int,
        nvmlDeviceGetUUID="GPU-{}abc".format,
        nvmlDeviceGetName=lambda i: f"NVIDIA H{loads[i]}",
        nvmlSystemGetDriverVersion=lambda: "550.54.15",
        nvmlSystemGetCudaDriverVersion=lambda: 12040,
        nvmlDeviceGetMemoryInfo=lambda i: loads[i] and Mock(used=20e9, total=80e9),
        nvmlDeviceGetUtilizationRates=lambda i: Mock(gpu=loads[i]),
        nvmlDeviceGetPowerUsage=lambda i: loads[i] * 5000,
        nvmlDeviceGetEnforcedPowerLimit=lambda i: 700_000,
    )
    monkeypatch.setitem(sys.modules, "pynvml", library)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr("cppo_lab.runs.machine.DRIVER", tmp_path / "driver")
    return loads


def test_gpus(two: dict[int, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From NVML, or from the files of the kernel's module."""
    names = ("gpu", "gpus", "driver", "cuda", "visible_devices")
    assert told(*names) == ["NVIDIA H70, NVIDIA H71", "2", "550.54.15", "12.4", None]
    sys.modules["pynvml"].nvmlShutdown.assert_called_once()
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,2")
    del two[1]  # a lost GPU is no error
    assert told(*names) == [None] * 5
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert told(*names) == [None] * 5
    for i in "01":
        gpu = tmp_path / "driver" / "gpus" / f"0000:0{i}:00.0"
        gpu.mkdir(parents=True)
        (gpu / "information").write_text("Model: \t\t NVIDIA A100-SXM4-80GB\nIRQ:   \t\t 7\n")
    assert told(*names) == ["NVIDIA A100-SXM4-80GB", "2", None, None, "0,2"]
    (tmp_path / "driver" / "version").write_text(
        "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat Aug 19 01:15:15 UTC 2023\n"
        "GCC version: gcc version 11.4.0\n"
    )
    assert told("driver", "cuda") == ["535.104.05", None]


VISIBLE = {
    None: [0, 1, 2],
    "": [],
    "2,0": [2, 0],
    "GPU-b1": [1],
    "1,7,0": [1],
    "GPU-": [],
}  # the last is of several


@pytest.mark.parametrize("chosen, devices", VISIBLE.items())
def test_visible(chosen: str | None, devices: list[int]) -> None:
    assert visible(["GPU-a0", "GPU-b1", "GPU-c2"], chosen) == devices


def test_loads_of_what_comes_and_goes(
    two: dict[int, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "run").mkdir()
    readings = loads(tmp_path / "run")
    names = {*next(readings)}
    modules = (cpu_monitor, disk_monitor, gpu_monitor, network_monitor)
    text = "".join(inspect.getsource(module) for module in modules)
    of_mlflow = re.findall(r'_metrics\[f?"([a-z_{}]+)"\]', text)
    own = {"process_cpu_percentage", "process_memory_megabytes"}
    assert names - own == {name.replace("{i}", i) for name in of_mlflow for i in "01"}
    assert all(schema.is_known_metric(f"system/{name}") for name in names)

    def without(*kinds: str) -> set[str]:
        return {name for name in names if not name.startswith(kinds)}

    del two[1]
    (tmp_path / "run").rmdir()
    values = next(readings)
    assert {*values} == without("gpu_1", "disk")
    assert 0 <= values["cpu_utilization_percentage"] <= 100
    used = values["system_memory_usage_megabytes"]
    assert used < kernels("MemTotal") < 100 * used
    assert {name: value for name, value in values.items() if name.startswith("gpu")} == {
        "gpu_0_utilization_percentage": 70,
        "gpu_0_memory_usage_megabytes": 20_000,
        "gpu_0_memory_usage_percentage": 25,
        "gpu_0_power_usage_watts": 350,
        "gpu_0_power_usage_percentage": 50,
    }
    two[1] = 71
    assert next(readings)["gpu_1_utilization_percentage"] == 71
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    assert {*next(loads(tmp_path))} == without("gpu_0")
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert {*next(loads(tmp_path))} == without("gpu")
    monkeypatch.setattr("psutil.net_io_counters", Mock(side_effect=FileNotFoundError("/proc/net/dev")))
    assert {*next(loads(tmp_path))} == without("gpu", "network")


# A process that has 200 MB, says so, and computes without end.
HOLDS = "import os; block = bytearray(os.urandom(1024)) * (200 * 1024); print(flush=True)\nwhile True: block[0] ^= 1"


def test_workers_count(tmp_path: Path) -> None:
    before = next(loads(tmp_path))["process_memory_megabytes"]
    with subprocess.Popen([sys.executable, "-c", HOLDS], stdout=subprocess.PIPE) as worker:
        try:
            worker.stdout.readline()
            readings = loads(tmp_path)
            assert next(readings)["process_memory_megabytes"] - before >= 200
            # Beside whatever else is here; a sample is of the time since the last one.
            until("its load is seen", lambda: next(readings)["process_cpu_percentage"] > 1)
        finally:
            worker.kill()
    assert next(readings)["process_memory_megabytes"] - before < 150  # and one that is gone does not


def test_means_and_peaks() -> None:
    gpu, process = "gpu_0_memory_usage_megabytes", "process_memory_megabytes"
    samples = [{gpu: used, process: used / 10} for used in (10.0, 40.0, 10.0)]
    metrics = summary([*samples, {process: 2.0}])  # the GPU is gone
    assert metrics == {
        "system/gpu_0_memory_usage_megabytes": 20.0,
        "system/gpu_0_memory_peak_megabytes": 40.0,
        "system/process_memory_megabytes": 2.0,
        "system/process_memory_peak_megabytes": 4.0,
    }
    assert all(schema.is_known_metric(name) for name in metrics)


def test_sampling(two: dict[int, int], tmp_path: Path) -> None:
    ended = sys.modules["pynvml"].nvmlShutdown
    with sampling(tmp_path, every=0.05) as load:
        assert until("a sample", load)["system/gpu_1_utilization_percentage"] == 71
        ended.assert_not_called()
    until("the thread has ended", lambda: ended.called)
    load()  # what came before the end
    assert load() == {}

    def sample() -> None:
        with sampling(tmp_path, every=10 * CEILING_SECONDS):
            pass

    sampler = Thread(target=sample, daemon=True)
    sampler.start()
    until("it has stopped", lambda: not sampler.is_alive())
