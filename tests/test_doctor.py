"""`cppo doctor`: what it finds, and when it says that a run can start."""

import importlib.metadata
import json
import os
import re
import shutil
import socket
import sys
from collections import namedtuple
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from packaging.specifiers import SpecifierSet

from cppo_lab.cli import main
from cppo_lab.data.prepare import prepare
from cppo_lab.doctor import Check, examine, lines, machine, ready, slurm, verl
from cppo_lab.doctor import check as doctor_check
from cppo_lab.doctor.check import Requirement
from cppo_lab.installed import install_extra
from cppo_lab.sweep.compose import compose
from cppo_lab.tracking.address import tracking_uri

TINY = ["core=verl", "model=tiny_qwen3"]
PAPER = ["core=verl", "model=qwen3_1_7b"]
INSTALLED = {
    "verl": "0.9.1", "torch": "2.13.0+cpu", "ray": "2.60.0", "transformers": "5.10.4", "TransferQueue": "0.1.11",
    "tensordict": "0.10.0", "numpy": "2.4.6", "submitit": "1.5.4", "math-verify": "0.9.0", "pyarrow": "25.0.1",
    "vllm": "0.24.0", "flash-attn": "2.8.3", "megatron-core": "0.18.0", "megatron-bridge": "0.5.2",
    "transformer-engine": "2.10.0",
}  # fmt: skip
MEGATRON = ("megatron-core", "megatron-bridge", "transformer-engine")
Device = namedtuple("Device", "name total_memory")


@pytest.fixture
def versions(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """What is installed, to be changed by the test."""
    found = dict(INSTALLED)

    def version(name: str) -> str:
        if name not in found:
            raise importlib.metadata.PackageNotFoundError(name)
        return found[name]

    monkeypatch.setattr(doctor_check, "version", version)
    return found


@pytest.fixture
def interfaces(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is wrong with verl's interfaces, to be filled by the test; verl itself need not be here."""
    problems: list[str] = []
    monkeypatch.setattr(verl, "interface_problems", lambda: problems)
    monkeypatch.setattr(verl, "find_spec", lambda name: object())
    return problems


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch) -> Callable[[int, float], None]:
    """Makes torch see so many GPUs of so many gigabytes."""

    def give(count: int, gigabytes: float) -> None:
        monkeypatch.setattr(torch.cuda, "is_available", lambda: count > 0)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda i: Device("H100", gigabytes * 1e9))
        monkeypatch.setattr(torch.distributed, "is_nccl_available", lambda: True)
        monkeypatch.setattr(torch.cuda.nccl, "version", lambda: (2, 27, 5))

    return give


def found(overrides: list[str], folder: Path) -> dict[str, Check]:
    composed = compose(overrides)
    checks = examine(composed, tracking_uri(composed.tracking.uri), folder / "runs")
    assert all("\n" not in line for line in lines(checks))
    return {check.name: check for check in checks}


def test_a_tiny_run_can_start_where_everything_is(
    workspace: Path,
    versions: dict[str, str],
    interfaces: list[str],
    capsys: pytest.CaptureFixture[str],
) -> None:
    for name in ("math-verify", "vllm", "flash-attn", *MEGATRON):
        del versions[name]  # none of them is needed
    assert main(["doctor", "--core", "verl", "model=tiny_qwen3"]) == 0
    text = capsys.readouterr().out
    assert "A run of model=tiny_qwen3 with core=verl can start here." in text
    assert "missing" not in text
    assert "not needed  vllm: not installed" in text
    assert "ok          interfaces of verl: all as expected" in text
    assert list(workspace.iterdir()) == []


@pytest.mark.parametrize("name", ["verl", "torch", "ray", "transformers", "TransferQueue", "tensordict"])
def test_a_package_that_is_not_there(
    workspace: Path,
    versions: dict[str, str],
    interfaces: list[str],
    name: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    del versions[name]
    assert main(["doctor", "--core", "verl", "model=tiny_qwen3"]) == 1
    text = capsys.readouterr().out
    [line] = [line for line in text.splitlines() if line.startswith("missing")]
    assert line.startswith(f"missing     {name}: not installed, needed by core=verl: pip install '")
    assert "cannot start here" in text


def test_versions_outside_their_range(
    workspace: Path, versions: dict[str, str], interfaces: list[str]
) -> None:
    versions |= {"verl": "0.9.2", "transformers": "5.6.0", "tensordict": "0.9.0"}
    checks = found(TINY, workspace)
    assert checks["verl"].status == "missing"  # its interfaces are not public
    assert "0.9.2 is outside >=0.9.1,<0.9.2: pip install 'verl>=0.9.1,<0.9.2'" in checks["verl"].line
    assert {checks[name].status for name in ("transformers", "tensordict")} == {"warning"}


def test_versions_of_builds_count_as_their_release(monkeypatch: pytest.MonkeyPatch) -> None:
    for version, status in (("2.13.0+cu130", "ok"), ("2.12.0rc1", "ok"), ("2.9.1", "warning")):
        monkeypatch.setattr(doctor_check, "version", lambda name, version=version: version)
        assert Requirement("torch", ">=2.11,<3", "core=verl").check().status == status


def test_the_documented_ranges_accept_what_the_tests_run_with() -> None:
    """Where verl is installed, every one of its packages is inside the range that the doctor names."""
    composed = compose(TINY)
    for check in machine.check_packages(composed.run, composed.layout):
        assert check.status != "warning", check.line


def test_changed_interfaces_are_named_one_by_one(
    workspace: Path, versions: dict[str, str], interfaces: list[str]
) -> None:
    interfaces += ["verl.a.b (called) is missing", "verl.c.d (overridden) has changed"]
    composed = compose(TINY)
    checks = examine(composed, "sqlite:///x.db", workspace / "runs")
    assert [check.found for check in checks if check.name == "interfaces of verl"] == interfaces
    assert not ready(checks)


def test_verl_that_cannot_be_imported(
    workspace: Path, versions: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verl, "find_spec", lambda name: object())
    broken = workspace / "broken" / "verl"
    broken.mkdir(parents=True)
    (broken / "__init__.py").write_text("raise RuntimeError('libcudart.so is missing')")
    monkeypatch.setenv("PYTHONPATH", f"{broken.parent}:{Path(__file__).parents[1]}")
    check = found(TINY, workspace)["interfaces of verl"]
    assert check.status == "missing"
    assert "verl cannot be imported (RuntimeError: libcudart.so is missing)" in check.found


def test_the_paper_needs_gpus_data_and_model(
    workspace: Path, versions: dict[str, str], interfaces: list[str], gpus: Callable[[int, float], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    gpus(0, 0)
    versions["torch"] = "2.11.0+cu130"
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_HOME", str(workspace / "hub"))
    checks = found(PAPER, workspace)
    assert {name for name, check in checks.items() if check.status == "missing"} == {"GPUs", "model", "data"}
    assert "layout=one_node needs 8 on this node" in checks["GPUs"].remedy
    assert "hf download Qwen/Qwen3-1.7B --revision main" in checks["model"].remedy
    assert "cppo data prepare" in checks["data"].found


def test_gpus_in_number_and_memory(
    workspace: Path, versions: dict[str, str], interfaces: list[str], gpus: Callable[[int, float], None]
) -> None:
    gpus(8, 80)
    checks = found(PAPER, workspace)
    assert checks["GPUs"].line == "ok          GPUs: 8 x H100, 80 GB"
    assert checks["NCCL"].found == "2.27.5"
    assert checks["memory of a GPU"].line.startswith("ok          memory of a GPU: fits in 80 GB")
    assert "nodes" not in checks
    gpus(4, 24)
    checks = found([*PAPER, "layout=two_nodes"], workspace)
    assert checks["GPUs"].status == "missing"
    assert checks["memory of a GPU"].status == "warning"
    assert "does not fit in 24 GB" in checks["memory of a GPU"].found
    assert checks["nodes"].status == "warning"


@pytest.mark.parametrize(("layout", "needed"), [("one_node", set()), ("one_node_megatron", set(MEGATRON))])
def test_megatron_only_where_the_layout_has_it(
    workspace: Path, versions: dict[str, str], interfaces: list[str], layout: str, needed: set[str]
) -> None:
    for name in MEGATRON:
        del versions[name]
    checks = found([*PAPER, f"layout={layout}"], workspace)
    assert {name for name in MEGATRON if checks[name].status == "missing"} == needed


def test_prepared_data(workspace: Path, versions: dict[str, str], interfaces: list[str]) -> None:
    prepare("sample", workspace / "data")
    small = [*PAPER, "batch.prompts=8", "batch.minibatch_prompts=4"]
    assert found(small, workspace)["data"].line == "ok          data: data, unchanged, 8 training problems"
    few = found(PAPER, workspace)["data"]
    assert few.status == "missing"
    assert "8 training problems, a batch takes 64: cppo data prepare --from hub" in few.line
    other = found([*small, "data.benchmarks=[aime24,aime99]"], workspace)["data"]
    assert "has no aime99.parquet" in other.line
    with (workspace / "data" / "aime24.parquet").open("ab") as file:
        file.write(b"x")
    changed = found(small, workspace)["data"]
    assert changed.status == "missing"
    assert "aime24.parquet is changed" in changed.found


def test_models_on_disk(
    workspace: Path, versions: dict[str, str], interfaces: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HOME", str(workspace / "home"))
    monkeypatch.delenv("HF_HUB_CACHE", raising=False)
    monkeypatch.setenv("HF_HUB_OFFLINE", "0")
    assert found(PAPER, workspace)["model"].status == "warning"  # it would be downloaded
    cache = workspace / "home/hub/models--Qwen--Qwen3-1.7B"
    download(cache / "snapshots/0123456789abcdef")
    other = found(PAPER, workspace)["model"]  # an older commit than that of main
    assert other.status == "missing"
    assert "has 01234567, not revision main" in other.found
    (cache / "refs").mkdir()
    (cache / "refs/main").write_text("0123456789abcdef\n")
    assert found(PAPER, workspace)["model"].status == "ok"
    pinned = [*PAPER, "model.revision=0123456789abcdef"]
    assert found(pinned, workspace)["model"].status == "ok"
    own = [*PAPER, f"paths.models={workspace}/models"]
    assert found(own, workspace)["model"].status == "missing"
    download(workspace / "models/Qwen/Qwen3-1.7B")
    assert found(own, workspace)["model"].status == "ok"


def download(folder: Path) -> None:
    """A whole model of three shards, of nothing."""
    folder.mkdir(parents=True)
    for name in (
        "config.json",
        "tokenizer_config.json",
        "tokenizer.json",
        "1.safetensors",
        "2.safetensors",
        "3",
    ):
        (folder / name).write_text("{}")
    shards = {"a": "1.safetensors", "b": "2.safetensors", "c": "2.safetensors", "d": "3"}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": shards}))


def test_half_a_model_is_named(workspace: Path, versions: dict[str, str], interfaces: list[str]) -> None:
    own, folder = [*PAPER, f"paths.models={workspace}/models"], workspace / "models/Qwen/Qwen3-1.7B"
    download(folder)
    (folder / "2.safetensors").unlink()
    (folder / "3").unlink()
    (folder / "3").symlink_to("nowhere")  # as the hub's cache has them, with a blob that did not come
    check = found(own, workspace)["model"]
    assert check.status == "missing"
    assert f"{folder} lacks 2.safetensors, 3: hf download Qwen/Qwen3-1.7B --revision main" in check.line
    (folder / "model.safetensors.index.json").write_text("[")
    assert "lacks model.safetensors.index.json" in found(own, workspace)["model"].found
    (folder / "model.safetensors.index.json").unlink()
    (folder / "tokenizer.json").unlink()
    assert "lacks tokenizer.json, model.safetensors" in found(own, workspace)["model"].found


def test_a_server_is_asked_and_no_password_is_printed(
    workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        check = machine.check_store(f"postgresql://ann:hunter2@127.0.0.1:{port}/mlflow?password=hunter3")
        assert check.line == f"ok          MLflow store: postgresql://127.0.0.1:{port} answers"
    with socket.socket() as silent:  # nobody listens, and nobody else can
        silent.bind(("127.0.0.1", 0))
        check = machine.check_store(f"https://ann:hunter2@127.0.0.1:{silent.getsockname()[1]}/x")
    assert check.status == "missing"
    assert "hunter" not in check.line
    assert "ann" not in check.line


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_that_cannot_be_written(workspace: Path) -> None:
    (workspace / "locked").mkdir(mode=0o500)
    checks = found([], workspace / "locked")
    assert checks["runs folder"].status == "missing"
    assert machine.check_store(f"sqlite:///{workspace}/locked/x.db").status == "missing"


def test_a_full_disk_and_small_shared_memory_are_warnings(
    workspace: Path, versions: dict[str, str], interfaces: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(64e6, 0, 30e9))
    monkeypatch.setattr(verl.resource, "getrlimit", lambda kind: (1024, 1024))
    checks = found(PAPER, workspace)
    assert checks["runs folder"].status == "warning"
    assert "30 GB free: checkpoints of one run take about 62 GB" in checks["runs folder"].line
    assert "0.1 GB in /dev/shm: 32 GB or more" in checks["shared memory"].line
    assert "1024: ulimit -n 65536" in checks["open files (ulimit -n)"].line


def test_locked_memory_counts_where_there_are_gpus(
    workspace: Path, versions: dict[str, str], interfaces: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def limited(to: int) -> None:
        monkeypatch.setattr(verl.resource, "getrlimit", lambda kind: (to, to))

    name = "locked memory (ulimit -l)"
    limited(8_388_608)
    check = found(PAPER, workspace)[name]
    assert (check.status, check.found) == ("warning", "8.4 MB")
    assert "docker run --ulimit memlock=-1" in check.remedy
    assert name not in found(TINY, workspace)
    limited(verl.resource.RLIM_INFINITY)
    assert found(PAPER, workspace)[name].status == "ok"


def test_the_embedded_core_needs_little(workspace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor"]) == 0
    text = capsys.readouterr().out
    assert "A run of model=mini_base with core=mini can start here." in text
    assert "verl" not in text
    assert list(workspace.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["doctor", "--core", "verls"], "unknown core 'verls': did you mean 'verl'?"),
        (["doctor", "--core", "verl", "model=tiny"], "unknown model 'tiny'"),
        (["doctor", "model=qwen3_8b_base"], "add core=verl"),
    ],
    ids=str,
)
def test_mistakes(capsys: pytest.CaptureFixture[str], arguments: list[str], message: str) -> None:
    assert main(arguments) == 2
    output = capsys.readouterr()
    assert message in output.err
    assert output.err.count("\n") == 1
    assert output.out == ""


def test_what_a_launch_through_slurm_needs(
    workspace: Path, versions: dict[str, str], interfaces: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With stand-ins for Slurm's commands; the nodes, not this machine, have the GPUs."""
    monkeypatch.setenv("PATH", str(workspace / "bin"))
    run = [*PAPER, "launcher=slurm"]
    assert found(run, workspace)["Slurm's commands"].status == "missing"
    (workspace / "bin").mkdir()
    answers = {"scontrol": "echo Slurmctld is UP", "sinfo": "echo 'debug|up'; echo 'old|down'"}
    for name in ("sbatch", "squeue", "scancel", "srun", *answers):
        (workspace / "bin" / name).write_text(f"#!/bin/sh\n{answers.get(name, '')}\n")
        (workspace / "bin" / name).chmod(0o755)
    checks = found(run, workspace)
    assert checks["Slurm's controller"].found == "Slurmctld is UP"
    assert (checks["partition"].status, checks["partition"].found) == (
        "ok",
        "the cluster's default; available: debug, old",
    )
    assert "GPUs" not in checks
    assert found([*run, "resources.partition=old"], workspace)["partition"].status == "warning"
    assert "set resources.partition to one of debug, old" in (
        found([*run, "resources.partition=gpu"], workspace)["partition"].line
    )
    mounts = workspace / "mounts"
    monkeypatch.setattr(slurm, "MOUNTS", mounts)
    for kind, status in (("nfs4", "ok"), ("ext4", "warning")):
        mounts.write_text(f"a / overlay rw 0 0\nb {workspace} {kind} rw 0 0\n")
        assert found(run, workspace)["shared runs folder"].status == status
    (workspace / "bin" / "scontrol").write_text("#!/bin/sh\necho Slurmctld is DOWN\nexit 1\n")
    assert found(run, workspace)["Slurm's controller"].found == "scontrol: Slurmctld is DOWN"


def test_vllm_wants_the_torch_that_it_was_built_with(
    workspace: Path, versions: dict[str, str], interfaces: list[str]
) -> None:
    assert found(PAPER, workspace)["torch"].line.startswith(
        "missing     torch: 2.13.0+cpu is outside >=2.11,<2.12"
    )
    assert found(TINY, workspace)["torch"].status == "ok"
    versions["torch"] = "2.11.0+cu130"
    assert found(PAPER, workspace)["torch"].status == "ok"
    versions["vllm"] = "0.25.1"
    assert found(PAPER, workspace)["vllm"].status == "missing"


@pytest.mark.parametrize(
    ("text", "status"),
    [
        ("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release Build", "ok"),
        ("NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue Mar  5", "missing"),
        ("something else", "warning"),
        (None, "warning"),
    ],
)
def test_the_driver_is_held_against_torchs_cuda(
    workspace: Path, versions: dict[str, str], interfaces: list[str], monkeypatch: pytest.MonkeyPatch,
    text: str | None, status: str,
) -> None:  # fmt: skip
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(verl, "DRIVER", workspace / "version")
    if text is not None:
        (workspace / "version").write_text(text)
    assert found(PAPER, workspace)["NVIDIA driver"].status == status
    assert "NVIDIA driver" not in found(TINY, workspace)


def test_host_memory_for_what_is_offloaded(
    workspace: Path, versions: dict[str, str], interfaces: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    moe = ["core=verl", "model=qwen3_30b_a3b_base"]
    assert "host memory" not in found(PAPER, workspace)
    monkeypatch.setattr(
        verl.os, "sysconf", lambda name: {"SC_PAGE_SIZE": 4096}.get(name, 25_000_000)
    )  # 102 GB
    few = found(moe, workspace)["host memory"]  # 30.5e9 parameters, 14 bytes each, four nodes: 107 GB
    assert few.status == "warning" and "about 107 GB of each node" in few.remedy
    monkeypatch.setattr(verl.os, "sysconf", lambda name: {"SC_PAGE_SIZE": 4096}.get(name, 27_000_000))
    assert found(moe, workspace)["host memory"].status == "ok"


@pytest.mark.parametrize("layout", ["one_node", "one_node_megatron"])
def test_the_gpu_locks_have_what_the_doctor_asks_for(layout: str) -> None:
    """Each at a version within the doctor's range. Nothing is fetched."""
    from dev import lock_gpu
    from dev.lock import pins

    megatron = layout.endswith("megatron")
    paths = (lock_gpu.MEGATRON if megatron else lock_gpu.FSDP, lock_gpu.FLASH)
    locked = {name: pin.version for path in paths for name, pin in pins(path.read_text()).items()}
    if megatron:  # the wheels by URL
        names = re.findall(r"/([a-z_]+)-([0-9.]+)-[^/]*\.whl$", lock_gpu.WHEELS.read_text(), re.M)
        locked |= {name.replace("_", "-"): version for name, version in names}
    composed = compose([*PAPER, f"layout={layout}"])
    asked = [one for one in verl.requirements(composed.run, composed.layout) if one.needed_by]
    assert {"megatron-bridge", "transformer-engine"} <= {one.name for one in asked} or not megatron
    for wanted in asked:
        assert SpecifierSet(wanted.versions).contains(locked[wanted.name.lower()]), wanted.name


def test_a_torch_without_nccl_is_not_enough_for_gpus(
    workspace: Path, versions: dict[str, str], interfaces: list[str], gpus: Callable[[int, float], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    gpus(8, 80)
    monkeypatch.setattr(torch.distributed, "is_nccl_available", lambda: False)
    check = found(PAPER, workspace)["NCCL"]
    assert (check.status, check.found) == ("missing", "this torch is built without it")
    assert check.remedy == "install a CUDA build of torch"


def test_gpus_are_not_looked_for_without_torch(
    workspace: Path, versions: dict[str, str], interfaces: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "find_spec", lambda name: None)
    checks = found(PAPER, workspace)
    assert checks["GPUs"].line == (
        "missing     GPUs: torch, which would find them, is not installed: install torch first"
    )
    assert "NCCL" not in checks
    assert found([], workspace)["GPUs"].status == "not needed"


def test_verl_that_is_not_there_is_to_be_installed_first(
    workspace: Path, versions: dict[str, str], interfaces: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    interfaces.append("of a verl that cannot be looked at")
    monkeypatch.setattr(verl, "find_spec", lambda name: None)
    check = found(TINY, workspace)["interfaces of verl"]
    assert check.line == "missing     interfaces of verl: verl is not installed: install it first"


def test_a_machine_without_shared_memory_is_a_warning(
    workspace: Path, versions: dict[str, str], interfaces: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verl, "SHARED", workspace / "shm")
    check = found(TINY, workspace)["shared memory"]
    assert (check.status, check.found) == ("warning", f"no {workspace}/shm")
    assert check.remedy == "Ray will use the disk, which is slow"


def test_data_that_cannot_be_read_names_what_to_install(
    workspace: Path, versions: dict[str, str], interfaces: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    for name in ("cppo_lab.data.manifest", "cppo_lab.data.manifest"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    check = found(PAPER, workspace)["data"]
    assert (check.status, check.found) == ("missing", "cannot be checked without pyarrow")
    assert check.remedy == install_extra("data")


def test_what_the_system_refuses_to_write_is_missing(
    workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As root sees it, too, on a disk that can only be read."""
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    check = found([], workspace)["runs folder"]
    assert check.line == (
        f"missing     runs folder: {workspace}/runs cannot be made or written: "
        "work in a folder that you can write to"
    )
    check = machine.check_store(f"sqlite:///{workspace}/x.db")
    assert (check.status, check.found) == ("missing", f"{workspace} cannot be written")
    assert check.remedy == "set MLFLOW_TRACKING_URI to another store"


def test_a_file_in_place_of_the_runs_folder_is_missing(workspace: Path) -> None:
    (workspace / "runs").write_text("")
    check = found([], workspace)["runs folder"]
    assert (check.status, check.found) == ("missing", f"{workspace}/runs cannot be made or written")


def test_what_slurm_does_not_say_is_a_warning_or_named(
    workspace: Path, versions: dict[str, str], interfaces: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    places = workspace / "bin"
    places.mkdir()
    monkeypatch.setenv("PATH", str(places))
    run = [*PAPER, "launcher=slurm", "resources.partition=debug"]

    def answers(**texts: str) -> dict[str, Check]:
        for path in places.iterdir():
            path.unlink()
        for name, text in ({"sbatch": "", "squeue": "", "scancel": "", "srun": ""} | texts).items():
            (places / name).write_text(f"#!/bin/sh\n{text}\n")
            (places / name).chmod(0o755)
        return found(run, workspace)

    up = "echo Slurmctld is UP"
    check = answers(scontrol=up, sinfo="echo 'debug|up'")["partition"]
    assert (check.status, check.found) == ("ok", "debug")
    check = answers(scontrol=up)["partition"]
    assert (check.status, check.found) == ("warning", "partitions cannot be listed: sinfo not found")
    check = answers(scontrol=up, sinfo="echo 'invalid partition' >&2; exit 1")["partition"]
    assert check.found == "partitions cannot be listed: sinfo: invalid partition"
    check = answers(scontrol=up, sinfo="exit 4")["partition"]
    assert check.found == "partitions cannot be listed: sinfo: exit status 4"
    check = answers(sinfo="echo 'debug|up'")["Slurm's controller"]
    assert (check.status, check.found) == ("missing", "scontrol not found")
    assert check.remedy == "check that it is up, and SLURM_CONF if it is set"
    monkeypatch.setattr(slurm, "MOUNTS", workspace / "none")
    shared = answers(scontrol=up, sinfo="echo 'debug|up'")["shared runs folder"]
    assert (shared.status, shared.found) == ("warning", f"{workspace}/runs is on an unknown file system")
    assert shared.remedy.startswith("work in a folder that all nodes see under the same path")
    monkeypatch.setattr(slurm, "PATIENCE", 0.1)
    checks = answers(scontrol="exec /bin/sleep 600", sinfo="")
    assert checks["Slurm's controller"].found == "scontrol did not answer within 0 s"
    assert "partition" not in checks  # nothing more is asked of a controller that is silent
