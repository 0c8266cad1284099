"""`cppo doctor`: what it finds, and when it says that a run can start."""

import importlib.metadata
import json
import os
import re
import shutil
import socket
import sys
from collections import namedtuple
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import torch
from packaging.specifiers import SpecifierSet

from cppo_lab.cores.verl import checks as verl
from cppo_lab.data.prepare import prepare
from cppo_lab.launch.slurm import submit as slurm
from cppo_lab.plugins import Check, Requirement, install_extra
from cppo_lab.sweep import doctor
from cppo_lab.sweep.compose import compose
from cppo_lab.sweep.doctor import examine, lines, ready
from cppo_lab.tracking.address import tracking_uri
from tests.conftest import Command
from tests.launch.stand_in import Slurm

TINY = "core=verl model=tiny_qwen3"
PAPER = "core=verl model=qwen3_1_7b"
MOE = "core=verl model=qwen3_30b_a3b_base"
INSTALLED = {
    "verl": "0.9.1", "torch": "2.13.0+cpu", "ray": "2.60.0", "transformers": "5.10.4", "TransferQueue": "0.1.11",
    "tensordict": "0.10.0", "numpy": "2.4.6", "submitit": "1.5.4", "math-verify": "0.9.0", "pyarrow": "25.0.1",
    "vllm": "0.24.0", "flash-attn": "2.8.3", "megatron-core": "0.18.0", "megatron-bridge": "0.5.2",
    "transformer-engine": "2.10.0",
}  # fmt: skip
MEGATRON = ("megatron-core", "megatron-bridge", "transformer-engine")
Device = namedtuple("Device", "name total_memory")


@dataclass
class Here:
    """A machine on which everything is installed, to be changed by the test; verl itself need not be here."""

    folder: Path
    patch: pytest.MonkeyPatch
    versions: dict[str, str] = field(default_factory=lambda: dict(INSTALLED))
    problems: list[str] = field(default_factory=list)  # of verl's interfaces

    def checks(self, overrides: str = "") -> dict[str, Check]:
        composed = compose(overrides.split())
        checks = examine(composed, tracking_uri(composed.tracking.uri), self.folder / "runs")
        assert all("\n" not in line for line in lines(checks))
        assert ready(checks) == all(check.status != "missing" for check in checks)
        return {check.name: check for check in checks}

    def line(self, overrides: str, name: str) -> str:
        return self.checks(overrides)[name].line

    def gpus(self, count: int, gigabytes: float) -> None:
        """Makes torch see so many GPUs."""
        for place, name, value in (
            (torch.cuda, "is_available", lambda: count > 0),
            (torch.cuda, "device_count", lambda: count),
            (torch.cuda, "get_device_properties", lambda i: Device("H100", gigabytes * 1e9)),
            (torch.distributed, "is_nccl_available", lambda: True),
            (torch.cuda.nccl, "version", lambda: (2, 27, 5)),
        ):
            self.patch.setattr(place, name, value)


@pytest.fixture
def here(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> Here:
    here = Here(workspace, monkeypatch)

    def version(name: str) -> str:
        if name not in here.versions:
            raise importlib.metadata.PackageNotFoundError(name)
        return here.versions[name]

    monkeypatch.setattr(importlib.metadata, "version", version)
    monkeypatch.setattr(verl, "interface_problems", lambda: here.problems)
    monkeypatch.setattr(verl, "find_spec", lambda name: object())
    return here


def test_a_tiny_run_can_start_where_everything_is(here: Here, cppo: Command) -> None:
    for name in ("math-verify", "vllm", "flash-attn", *MEGATRON):
        del here.versions[name]  # none of them is needed
    text = cppo("doctor --core verl model=tiny_qwen3").out
    assert "A run of model=tiny_qwen3 with core=verl can start here." in text
    assert "missing" not in text
    assert "not needed  vllm: not installed" in text
    assert "ok          interfaces of verl: all as expected" in text
    text = cppo("doctor").out  # the embedded core needs little
    assert "A run of model=mini_base with core=mini can start here." in text and "verl" not in text
    assert list(here.folder.iterdir()) == []


@pytest.mark.parametrize("name", ["verl", "torch", "TransferQueue"])
def test_a_package_that_is_not_there(here: Here, name: str, cppo: Command) -> None:
    del here.versions[name]
    text = cppo("doctor --core verl model=tiny_qwen3", code=1).out
    [line] = [line for line in text.splitlines() if line.startswith("missing")]
    assert line.startswith(f"missing     {name}: not installed, needed by core=verl: pip install '")
    assert "cannot start here" in text


def test_versions_outside_their_range(here: Here) -> None:
    here.versions |= {"verl": "0.9.2", "transformers": "5.6.0", "tensordict": "0.9.0"}
    checks = here.checks(TINY)
    assert checks["verl"].status == "missing"  # its interfaces are not public
    assert "0.9.2 is outside >=0.9.1,<0.9.2: pip install 'verl>=0.9.1,<0.9.2'" in checks["verl"].line
    assert {checks[name].status for name in ("transformers", "tensordict")} == {"warning"}
    for version, status in (("2.13.0+cu130", "ok"), ("2.12.0rc1", "ok"), ("2.9.1", "warning")):
        here.versions["torch"] = version  # those of builds count as their release
        assert Requirement("torch", ">=2.11,<3", "core=verl").check().status == status
    here.versions = dict(INSTALLED)
    outside = (
        "missing     torch: 2.13.0+cpu is outside >=2.11,<2.12"  # vllm wants the one that it was built with
    )
    assert here.line(PAPER, "torch").startswith(outside)
    assert here.checks(TINY)["torch"].status == "ok"
    here.versions |= {"torch": "2.11.0+cu130", "vllm": "0.25.1"}
    assert here.checks(PAPER)["torch"].status == "ok"
    assert here.checks(PAPER)["vllm"].status == "missing"


def test_the_documented_ranges_accept_what_the_tests_run_with() -> None:
    """Where verl is installed, every one of its packages is inside the range that the doctor names."""
    composed = compose(TINY.split())
    for check in doctor.check_packages(composed.run, composed.layout):
        assert check.status != "warning", check.line


def test_interfaces_of_verl(here: Here) -> None:
    here.problems += ["verl.a.b (called) is missing", "verl.c.d (overridden) has changed"]
    checks = examine(compose(TINY.split()), "sqlite:///x.db", here.folder / "runs")
    assert [check.found for check in checks if check.name == "interfaces of verl"] == here.problems
    assert not ready(checks)
    here.patch.setattr(verl, "find_spec", lambda name: None)
    line = "missing     interfaces of verl: verl is not installed: install it first"
    assert here.line(TINY, "interfaces of verl") == line


def test_verl_that_cannot_be_imported(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verl, "find_spec", lambda name: object())
    broken = workspace / "broken" / "verl"
    broken.mkdir(parents=True)
    (broken / "__init__.py").write_text("raise RuntimeError('libcudart.so is missing')")
    monkeypatch.setenv("PYTHONPATH", f"{broken.parent}:{Path(__file__).parents[2]}")
    check = Here(workspace, monkeypatch).checks(TINY)["interfaces of verl"]
    assert check.status == "missing"
    assert "verl cannot be imported (RuntimeError: libcudart.so is missing)" in check.found


def test_the_paper_needs_gpus_data_and_model(here: Here) -> None:
    here.gpus(0, 0)
    here.versions["torch"] = "2.11.0+cu130"
    here.patch.setenv("HF_HUB_OFFLINE", "1")
    here.patch.setenv("HF_HOME", str(here.folder / "hub"))
    checks = here.checks(PAPER)
    assert {name for name, check in checks.items() if check.status == "missing"} == {"GPUs", "model", "data"}
    assert "layout=one_node needs 8 on this node" in checks["GPUs"].remedy
    assert "hf download Qwen/Qwen3-1.7B --revision main" in checks["model"].remedy
    assert "cppo data prepare" in checks["data"].found


def test_gpus_in_number_and_memory(here: Here) -> None:
    here.gpus(8, 80)
    checks = here.checks(PAPER)
    assert checks["GPUs"].line == "ok          GPUs: 8 x H100, 80 GB"
    assert checks["NCCL"].found == "2.27.5"
    assert checks["memory of a GPU"].line.startswith("ok          memory of a GPU: fits in 80 GB")
    assert "nodes" not in checks
    here.patch.setattr(torch.distributed, "is_nccl_available", lambda: False)
    without = "NCCL: this torch is built without it: install a CUDA build of torch"
    assert here.line(PAPER, "NCCL") == f"missing     {without}"
    here.gpus(4, 10)
    checks = here.checks(f"{PAPER} layout=two_nodes")
    assert [checks[name].status for name in ("GPUs", "memory of a GPU", "nodes")] == [
        "missing",
        "warning",
        "warning",
    ]
    assert "does not fit in 10 GB" in checks["memory of a GPU"].found
    here.patch.setattr(doctor, "find_spec", lambda name: None)
    assert here.line(PAPER, "GPUs") == (
        "missing     GPUs: torch, which would find them, is not installed: install torch first"
    )
    assert "NCCL" not in here.checks(PAPER)
    assert here.checks()["GPUs"].status == "not needed"


@pytest.mark.parametrize("layout, needed", [("one_node", set()), ("one_node_megatron", set(MEGATRON))])
def test_megatron_only_where_the_layout_has_it(here: Here, layout: str, needed: set[str]) -> None:
    for name in MEGATRON:
        del here.versions[name]
    checks = here.checks(f"{PAPER} layout={layout}")
    assert {name for name in MEGATRON if checks[name].status == "missing"} == needed


def test_prepared_data(here: Here) -> None:
    prepare("sample", here.folder / "data")
    small = f"{PAPER} batch.prompts=8 batch.minibatch_prompts=4"
    assert here.line(small, "data") == "ok          data: data, unchanged, 8 training problems"
    few = "missing     data: data has 8 training problems, a batch takes 64: cppo data prepare --from hub"
    assert here.line(PAPER, "data").startswith(few)
    assert "has no aime99.parquet" in here.line(f"{small} data.benchmarks=[aime24,aime99]", "data")
    with (here.folder / "data" / "aime24.parquet").open("ab") as file:
        file.write(b"x")
    changed = here.checks(small)["data"]
    assert changed.status == "missing"
    assert "aime24.parquet is changed" in changed.found
    here.patch.setitem(sys.modules, "pyarrow", None)
    here.patch.delitem(sys.modules, "cppo_lab.data.prepare", raising=False)
    check = here.checks(PAPER)["data"]
    assert (check.status, check.found) == ("missing", "cannot be checked without pyarrow")
    assert check.remedy == install_extra("data")


def test_models_on_disk(here: Here) -> None:
    here.patch.setenv("HF_HOME", str(here.folder / "home"))
    here.patch.delenv("HF_HUB_CACHE", raising=False)
    here.patch.setenv("HF_HUB_OFFLINE", "0")

    def status(more: str = "") -> str:
        return here.checks(f"{PAPER} {more}")["model"].status

    assert status() == "warning"  # it would be downloaded
    cache = here.folder / "home/hub/models--Qwen--Qwen3-1.7B"
    download(cache / "snapshots/0123456789abcdef")
    assert status() == "missing"  # an older commit than that of main
    assert "has 01234567, not revision main" in here.checks(PAPER)["model"].found
    (cache / "refs").mkdir()
    (cache / "refs/main").write_text("0123456789abcdef\n")
    assert status() == status("model.revision=0123456789abcdef") == "ok"
    ours = f"paths.models={here.folder}/models"
    assert status(ours) == "missing"
    folder = here.folder / "models/Qwen/Qwen3-1.7B"
    download(folder)
    assert status(ours) == "ok"
    # Half a model is named.
    (folder / "2.safetensors").unlink()
    (folder / "3").unlink()
    (folder / "3").symlink_to("nowhere")  # as the hub's cache has them, with a blob that did not come
    remedy = "hf download Qwen/Qwen3-1.7B --revision main"
    lacking = f"missing     model: {folder} lacks 2.safetensors, 3: {remedy}"
    assert here.line(f"{PAPER} {ours}", "model").startswith(lacking)
    (folder / "model.safetensors.index.json").write_text("[")
    assert "lacks model.safetensors.index.json" in here.line(f"{PAPER} {ours}", "model")
    (folder / "model.safetensors.index.json").unlink()
    (folder / "tokenizer.json").unlink()
    assert "lacks tokenizer.json, model.safetensors" in here.line(f"{PAPER} {ours}", "model")


def download(folder: Path) -> None:
    """A whole model of three shards, of nothing."""
    folder.mkdir(parents=True)
    shards = {"a": "1.safetensors", "b": "2.safetensors", "c": "2.safetensors", "d": "3"}
    for name in ("config.json", "tokenizer_config.json", "tokenizer.json", *shards.values()):
        (folder / name).write_text("{}")
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": shards}))


def test_a_server_is_asked_and_no_password_is_printed() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        check = doctor.check_store(f"postgresql://ann:hunter2@127.0.0.1:{port}/mlflow?password=hunter3")
        assert check.line == f"ok          MLflow store: postgresql://127.0.0.1:{port} answers"
    with socket.socket() as silent:  # nobody listens, and nobody else can
        silent.bind(("127.0.0.1", 0))
        check = doctor.check_store(f"https://ann:hunter2@127.0.0.1:{silent.getsockname()[1]}/x")
    assert check.status == "missing"
    assert "hunter" not in check.line and "ann" not in check.line
    check = doctor.check_store("postgresql:///mlflow")  # by a socket, whose place the driver knows
    assert (
        check.line
        == "ok          MLflow store: postgresql: the server of this machine, by its socket (not tried)"
    )


def test_what_the_system_refuses_to_write_is_missing(here: Here) -> None:
    """As root sees it, too, on a disk that can only be read."""
    (here.folder / "runs").write_text("")
    place = f"missing     runs folder: {here.folder}/runs cannot be made or written"
    assert here.line("", "runs folder").startswith(place)
    (here.folder / "runs").unlink()
    here.patch.setattr(os, "access", lambda path, mode: False)
    assert here.line("", "runs folder") == f"{place}: work in a folder that you can write to"
    check = doctor.check_store(f"sqlite:///{here.folder}/x.db")
    assert (check.status, check.found) == ("missing", f"{here.folder} cannot be written")
    assert check.remedy == "set MLFLOW_TRACKING_URI to another store"


def test_limits_of_the_machine_are_warnings(here: Here) -> None:
    def limited(to: int) -> None:
        here.patch.setattr(verl.resource, "getrlimit", lambda kind: (to, to))

    usage = namedtuple("usage", "total used free")
    with here.patch.context() as patch:
        patch.setattr(shutil, "disk_usage", lambda path: usage(64e6, 0, 30e9))
        limited(1024)
        checks = here.checks(PAPER)
    assert checks["runs folder"].status == "warning"
    said = "30 GB free: checkpoints of one run take about 48 GB, of which 7 GB stay; `cppo plan SWEEP` has the sum"
    assert said in checks["runs folder"].line
    assert "0.1 GB in /dev/shm: 32 GB or more" in checks["shared memory"].line
    assert "1024: ulimit -n 65536" in checks["open files (ulimit -n)"].line
    name = "locked memory (ulimit -l)"  # counts where there are GPUs
    limited(8_388_608)
    check = here.checks(PAPER)[name]
    assert (check.status, check.found) == ("warning", "8.4 MB")
    assert "docker run --ulimit memlock=-1" in check.remedy
    assert name not in here.checks(TINY)
    limited(verl.resource.RLIM_INFINITY)
    assert here.checks(PAPER)[name].status == "ok"
    here.patch.setattr(verl, "SHARED", here.folder / "shm")
    line = f"warning     shared memory: no {here.folder}/shm: Ray will use the disk, which is slow"
    assert here.line(TINY, "shared memory") == line
    assert "host memory" not in here.checks(PAPER)
    stale = f"{PAPER} rollout.staleness=2"
    for run, pages, remedy in (
        (
            MOE,
            25_000_000,
            "layout.offload takes about 107 GB of each node",
        ),  # 30.5e9 x 14 bytes / 4; has 102 GB
        (MOE, 27_000_000, ""),
        (
            stale,
            5_000_000,
            "rollout.staleness=2 takes about 21 GB of each node",
        ),  # 1.72e9 x 4 bytes x 3 policies
        (stale, 6_000_000, ""),
        (
            f"{PAPER} layout=workstation",
            6_000_000,
            "FSDP's offload policy takes about 28 GB of each node",
        ),  # 1.72e9 x 16 bytes; has 25 GB
        (
            f"{stale} layout.offload=true",
            6_000_000,
            "layout.offload and rollout.staleness=2 takes about 41 GB",
        ),
    ):
        memory = {"SC_PAGE_SIZE": 4096, "SC_PHYS_PAGES": pages}
        here.patch.setattr(verl.os, "sysconf", lambda name, memory=memory: memory[name])
        check = here.checks(run)["host memory"]
        assert check.status == ("warning" if remedy else "ok") and remedy in check.remedy, run


@pytest.mark.parametrize(
    "more, cpus, status, wanted",
    [
        ("", 96, "ok", ""),
        ("", 95, "warning", "layout=one_node wants 96: layout.cpus_per_gpu, or resources.cpus"),
        ("", 31, "missing", "wants 96"),
        ("layout.cpus_per_gpu=null", 31, "missing", "wants 32"),
        ("layout.cpus_per_gpu=2", 31, "ok", ""),
        ("layout.cpus_per_gpu=2", 15, "missing", "wants 16"),
    ],
)
def test_gpus_need_cpus(here: Here, more: str, cpus: int, status: str, wanted: str) -> None:
    """Those that this process may use: a job that asked for none has one of the machine's."""
    here.gpus(8, 80)
    here.patch.setattr(os, "sched_getaffinity", lambda process: set(range(cpus)))
    check = here.checks(f"{PAPER} {more}")["CPUs"]
    assert (check.status, check.found, wanted in check.remedy) == (status, f"{cpus} for this process", True)
    assert "CPUs" not in here.checks(f"{PAPER} launcher=slurm")  # a login node


def test_libraries_that_are_missed_in_silence(here: Here) -> None:
    """NCCL's only where there is an InfiniBand."""
    there: set[str] = set()

    def load(name: str) -> None:
        if name not in there:
            raise OSError(name)

    here.patch.setattr(verl.ctypes, "CDLL", load)
    here.patch.setattr(verl, "INFINIBAND", here.folder / "infiniband")
    assert verl.RDMA not in here.checks(PAPER)
    (here.folder / "infiniband" / "mlx5_0").mkdir(parents=True)
    assert here.line(PAPER, verl.RDMA) == (
        "warning     libibverbs.so.1: not found, and NCCL takes TCP in place of InfiniBand: "
        "apt-get install libibverbs-dev ibverbs-providers"
    )
    assert here.checks(PAPER)["libnuma.so"].status == "warning"
    there |= {verl.RDMA, "libnuma.so"}
    assert {here.checks(PAPER)[name].status for name in there} == {"ok"}
    assert not there & here.checks(TINY).keys()


def test_what_a_launch_through_slurm_needs(here: Here) -> None:
    """With stand-ins for Slurm's commands; the nodes, not this machine, have the GPUs."""
    programs, run = here.folder / "bin", f"{PAPER} launcher=slurm"
    here.patch.setenv("PATH", str(programs))
    assert here.checks(run)["Slurm's commands"].status == "missing"
    programs.mkdir()

    def answers(name: str, more: str = "", **texts: str) -> str:
        """A check where the commands that are named say something."""
        for path in programs.iterdir():
            path.unlink()
        for command, text in (dict.fromkeys(("sbatch", "squeue", "scancel", "srun"), "") | texts).items():
            Slurm(programs).command(command, text)
        checks = here.checks(f"{run} {more}")
        assert "GPUs" not in checks
        return checks[name].line if name in checks else ""

    up, listed = "echo Slurmctld is UP", "echo 'debug|up'; echo 'old|down'"
    controller, cannot = "Slurm's controller", "warning     partition: partitions cannot be listed: "
    assert answers(controller, scontrol=up, sinfo=listed) == f"ok          {controller}: Slurmctld is UP"
    down = answers(controller, scontrol="echo Slurmctld is DOWN; exit 1", sinfo=listed)
    assert "scontrol: Slurmctld is DOWN" in down
    silent = "scontrol not found: check that it is up, and SLURM_CONF if it is set"
    assert answers(controller, sinfo=listed) == f"missing     {controller}: {silent}"
    for chosen, line in (
        ("", "ok          partition: the cluster's default; available: debug, old"),
        ("debug", "ok          partition: debug"),
        ("old", "warning     partition: "),
        ("gpu", "missing     partition: "),
    ):
        more = f"resources.partition={chosen}" if chosen else ""
        said = answers("partition", more, scontrol=up, sinfo=listed)
        assert said.startswith(line)
        assert chosen != "gpu" or "set resources.partition to one of debug, old" in said
    for sinfo, line in (
        ({}, f"{cannot}sinfo not found"),
        ({"sinfo": "echo 'invalid partition' >&2; exit 1"}, f"{cannot}sinfo: invalid partition"),
        ({"sinfo": "exit 4"}, f"{cannot}sinfo: exit status 4"),
    ):
        assert answers("partition", "resources.partition=debug", scontrol=up, **sinfo).startswith(line)
    mounts = here.folder / "mounts"
    here.patch.setattr(slurm, "MOUNTS", mounts)
    remedy = "work in a folder that all nodes see under the same path"
    line = f"warning     shared runs folder: {here.folder}/runs is on an unknown file system: {remedy}"
    assert answers("shared runs folder", scontrol=up, sinfo=listed).startswith(line)
    for kind, status in (("nfs4", "ok"), ("ext4", "warning")):
        mounts.write_text(f"a / overlay rw 0 0\nb {here.folder} {kind} rw 0 0\n")
        assert answers("shared runs folder", scontrol=up, sinfo=listed).startswith(status)
    here.patch.setattr(slurm, "PATIENCE", 0.1)
    slow = {"scontrol": "exec /bin/sleep 600", "sinfo": ""}
    assert "scontrol did not answer within 0 s" in answers(controller, **slow)
    assert answers("partition", **slow) == ""  # nothing more is asked of a controller that is silent


@pytest.mark.parametrize(
    "text, status",
    [
        ("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release Build", "ok"),
        ("NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue Mar  5", "missing"),
        ("something else", "warning"),
        (None, "warning"),
    ],
)
def test_the_driver_is_held_against_torchs_cuda(here: Here, text: str | None, status: str) -> None:
    here.patch.setattr(torch.version, "cuda", "13.0")
    here.patch.setattr(verl, "DRIVER", here.folder / "version")
    if text is not None:
        (here.folder / "version").write_text(text)
    assert here.checks(PAPER)["NVIDIA driver"].status == status
    assert "NVIDIA driver" not in here.checks(TINY)


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
    composed = compose([*PAPER.split(), f"layout={layout}"])
    asked = [needed for needed in verl.requirements(composed.run, composed.layout) if needed.needed_by]
    assert {"megatron-bridge", "transformer-engine"} <= {needed.name for needed in asked} or not megatron
    for needed in asked:
        assert SpecifierSet(needed.versions).contains(locked[needed.name.lower()]), needed.name
