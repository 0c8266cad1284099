"""`cppo doctor`: what it finds, and when it says that a run can start."""

import importlib.metadata
import json
import re
import socket
import sys
from collections import namedtuple
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from packaging.specifiers import SpecifierSet

from cppo_lab.cores.verl import checks as verl
from cppo_lab.data.prepare import prepare
from cppo_lab.plugins import Check, Requirement, install_extra
from cppo_lab.sweep import doctor
from cppo_lab.sweep.compose import compose
from cppo_lab.sweep.doctor import examine, lines
from cppo_lab.tracking.address import tracking_uri
from tests.conftest import ROOT, Command
from tests.launch.stand_in import SILENT, Slurm

TINY = "core=verl model=tiny_qwen3"
PAPER = "core=verl model=qwen3_1_7b"
MOE = "core=verl model=qwen3_30b_a3b_base"
STALE = f"{PAPER} rollout.staleness=2"
DOWNLOAD = "hf download Qwen/Qwen3-1.7B --revision main"
PINS = """
verl==0.9.1 torch==2.13.0+cpu ray==2.60.0 transformers==5.10.4 TransferQueue==0.1.11 tensordict==0.10.0 numpy==2.4.6
submitit==1.5.4 math-verify==0.9.0 pyarrow==25.0.1 vllm==0.24.0 flash-attn==2.8.3 megatron-core==0.18.0
megatron-bridge==0.5.2 transformer-engine==2.10.0
"""
INSTALLED = dict(pin.split("==") for pin in PINS.split())
MEGATRON = ("megatron-core", "megatron-bridge", "transformer-engine")
Device = namedtuple("Device", "name total_memory")


@dataclass
class Here:
    """A machine on which everything is installed, to be changed by the test; verl itself need not be here."""

    folder: Path
    patch: pytest.MonkeyPatch
    versions: dict[str, str] = field(default_factory=lambda: dict(INSTALLED))
    problems: list[str] = field(default_factory=list)  # of verl's interfaces

    def checks(self, overrides: str) -> list[Check]:
        composed = compose(overrides.split())
        return examine(composed, tracking_uri(composed.tracking.uri), self.folder / "runs")

    def named(self, overrides: str, status: str = "") -> set[str]:
        """The names of the checks that end so; of all without a status."""
        return {check.name for check in self.checks(overrides) if status in ("", check.status)}

    def says(self, overrides: str, *texts: str) -> None:
        """Each of the texts is how a line begins, without its padding; `...` stands for anything."""
        said = [re.sub(" +", " ", line) for line in lines(self.checks(overrides))]
        for text in texts:
            pattern = ".*".join(map(re.escape, text.split("...")))
            assert any(re.match(pattern, line) for line in said), (text, "\n".join(said))

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

    monkeypatch.setattr("importlib.metadata.version", version)
    monkeypatch.setattr("cppo_lab.cores.verl.checks.interface_problems", lambda: here.problems)
    monkeypatch.setattr("cppo_lab.cores.verl.checks.find_spec", lambda name: object())
    return here


def test_a_tiny_run_can_start_where_everything_is(here: Here, cppo: Command) -> None:
    for name in ("math-verify", "vllm", "flash-attn", *MEGATRON):
        del here.versions[name]  # none of them is needed
    text = cppo("doctor --core verl model=tiny_qwen3").out
    assert "A run of model=tiny_qwen3 with core=verl can start here." in text and "missing" not in text
    here.says(TINY, "not needed vllm: not installed", "ok interfaces of verl: all as expected")
    text = cppo("doctor").out  # the embedded core needs little
    assert "A run of model=mini_base with core=mini can start here." in text and "verl" not in text
    assert list(here.folder.iterdir()) == []
    del here.versions["TransferQueue"], here.versions["submitit"]
    text = cppo("doctor --core verl model=tiny_qwen3", code=1).out
    assert "A run of model=tiny_qwen3 with core=verl cannot start here" in text
    assert here.named(f"{TINY} launcher=local", "missing") == {"TransferQueue", "submitit"}
    assert here.named(f"{TINY} launcher=inline", "missing") == {"TransferQueue"}
    here.says(TINY, "missing TransferQueue: not installed, needed by core=verl: pip install 'TransferQueue>=")


def test_versions_outside_their_range(here: Here) -> None:
    here.versions |= {"verl": "0.9.2", "transformers": "5.6.0", "tensordict": "0.9.0"}
    # Whose interfaces are not public.
    of_verl = "missing verl: 0.9.2 is outside >=0.9.1,<0.9.2: pip install 'verl>=0.9.1,<0.9.2'"
    here.says(TINY, of_verl, "warning transformers: ", "warning tensordict: ")
    for version, status in (("2.13.0+cu130", "ok"), ("2.12.0rc1", "ok"), ("2.9.1", "warning")):
        here.versions["torch"] = version  # those of builds count as their release
        assert Requirement("torch", ">=2.11,<3", "core=verl").check().status == status
    here.versions = dict(INSTALLED)
    # vllm wants the torch that it was built with.
    here.says(PAPER, "missing torch: 2.13.0+cpu is outside >=2.11,<2.12")
    here.says(TINY, "ok torch: ")
    here.versions |= {"torch": "2.11.0+cu130", "vllm": "0.25.1"}
    here.says(PAPER, "ok torch: ", "missing vllm: ")


def test_the_documented_ranges_accept_what_the_tests_run_with() -> None:
    """Where verl is installed, every one of its packages is inside the range that the doctor names."""
    composed = compose(TINY.split())
    for check in doctor.check_packages(composed.run, composed.layout):
        assert check.status != "warning", check.line


def test_interfaces_of_verl(here: Here) -> None:
    here.problems += ["verl.a.b (called)\nis missing", "verl.c.d (overridden) has changed"]
    of = "missing interfaces of verl:"
    here.says(TINY, f"{of} verl.a.b (called)\\nis missing", f"{of} verl.c.d (overridden) has changed")
    here.patch.setattr("cppo_lab.cores.verl.checks.find_spec", lambda name: None)
    here.says(TINY, f"{of} verl is not installed: install it first")


def test_verl_that_cannot_be_imported(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cppo_lab.cores.verl.checks.find_spec", lambda name: object())
    broken = workspace / "broken" / "verl"
    broken.mkdir(parents=True)
    (broken / "__init__.py").write_text("raise RuntimeError('libcudart.so is missing')")
    monkeypatch.setenv("PYTHONPATH", f"{broken.parent}:{ROOT}")
    why = "verl cannot be imported (RuntimeError: libcudart.so is missing)"
    Here(workspace, monkeypatch).says(TINY, f"missing interfaces of verl: {why}")


def test_the_paper_needs_gpus_data_and_model(here: Here) -> None:
    here.gpus(0, 0)
    here.versions["torch"] = "2.11.0+cu130"
    here.patch.setenv("HF_HUB_OFFLINE", "1")
    here.patch.setenv("HF_HOME", str(here.folder / "hub"))
    assert here.named(PAPER, "missing") == {"GPUs", "model", "data"}
    here.says(PAPER, "missing GPUs: ... sees no CUDA device: layout=one_node needs 8 on this node")
    here.says(
        PAPER, f"missing model: ... HF_HUB_OFFLINE is set: {DOWNLOAD}", "missing data: ...cppo data prepare"
    )


def test_gpus_in_number_and_memory(here: Here) -> None:
    here.gpus(8, 80)
    here.says(PAPER, "ok GPUs: 8 x H100, 80 GB", "ok NCCL: 2.27.5", "ok memory of a GPU: fits in 80 GB")
    assert "nodes" not in here.named(PAPER)
    here.patch.setattr("torch.distributed.is_nccl_available", lambda: False)
    here.says(PAPER, "missing NCCL: this torch is built without it: install a CUDA build of torch")
    here.gpus(4, 10)
    memory = "warning memory of a GPU: does not fit in 10 GB"
    here.says(f"{PAPER} layout=two_nodes", "missing GPUs: 4 x H100, 10 GB: ", memory, "warning nodes: ")
    here.patch.setattr("cppo_lab.sweep.doctor.find_spec", lambda name: None)
    here.says(PAPER, "missing GPUs: torch, which would find them, is not installed: install torch first")
    assert "NCCL" not in here.named(PAPER)
    here.says("", "not needed GPUs: ")


def test_prepared_data(here: Here) -> None:
    prepare("sample", here.folder / "data")
    small = f"{PAPER} batch.prompts=8 batch.minibatch_prompts=4"
    here.says(small, "ok data: data, unchanged, 8 training problems")
    few = "missing data: data has 8 training problems, a batch takes 64: cppo data prepare --from hub"
    here.says(PAPER, few)
    here.says(f"{small} data.benchmarks=[aime24,aime99]", "missing data: data has no aime99.parquet")
    with (here.folder / "data" / "aime24.parquet").open("ab") as file:
        file.write(b"x")
    here.says(small, "missing data: ...aime24.parquet is changed")
    here.patch.setitem(sys.modules, "pyarrow", None)
    here.patch.delitem(sys.modules, "cppo_lab.data.prepare", raising=False)
    here.says(PAPER, f"missing data: cannot be checked without pyarrow: {install_extra('data')}")


@pytest.mark.parametrize(
    ("batch", "reward", "text"),
    [
        (2, "rewards:score", "ok data: ...train.jsonl, ...held.jsonl, 2 training problems"),
        (
            4,
            "rewards:score",
            "missing data: ...train.jsonl has 2 training problems, a batch takes 4: lower batch.prompts",
        ),
        (
            2,
            "rewards:scroe",
            "missing data: data.reward='rewards:scroe' cannot be imported (AttributeError: ",
        ),
        (2, "rewards:LIMIT", "missing data: data.reward='rewards:LIMIT' cannot be called: name a function"),
        (2, "", "missing data: ...held.jsonl, line 1: `answer` is missing"),
    ],
)
def test_own_files_and_reward(here: Here, batch: int, reward: str, text: str) -> None:
    here.patch.syspath_prepend(here.folder)
    here.patch.delitem(sys.modules, "rewards", raising=False)
    Path("rewards.py").write_text("LIMIT = 1\ndef score(**response): return 1.0\n")
    rows = ['{"problem": "1+1", "answer": "2"}\n', '{"problem": "1+2", "answer": "3"}\n']
    Path("train.jsonl").write_text("".join(rows))
    Path("held.jsonl").write_text(rows[0] if reward else rows[0].replace("answer", "reply"))
    files = "data=files data.train=train.jsonl data.validation.held=held.jsonl"
    own = f"{files} data.reward={reward or 'null'} batch.prompts={batch} batch.minibatch_prompts=1"
    here.says(f"{TINY} {own}", text)


def test_models_on_disk(here: Here) -> None:
    here.patch.setenv("HF_HOME", str(here.folder / "home"))
    here.patch.delenv("HF_HUB_CACHE", raising=False)
    here.patch.setenv("HF_HUB_OFFLINE", "0")
    here.says(PAPER, "warning model: Qwen/Qwen3-1.7B (3 GB) will be downloaded to ")
    cache = here.folder / "home/hub/models--Qwen--Qwen3-1.7B"
    download(cache / "snapshots/0123456789abcdef")  # an older commit than that of main
    here.says(PAPER, f"missing model: {cache} has 01234567, not revision main: {DOWNLOAD}")
    (cache / "refs").mkdir()
    (cache / "refs/main").write_text("0123456789abcdef\n")
    for run in (PAPER, f"{PAPER} model.revision=0123456789abcdef"):
        here.says(run, "ok model: ")
    ours, folder = f"{PAPER} paths.models={here.folder}/models", here.folder / "models/Qwen/Qwen3-1.7B"
    here.says(ours, "missing model: ")
    download(folder)
    here.says(ours, "ok model: ")
    # Half a model is named.
    (folder / "2.safetensors").unlink()
    (folder / "3").unlink()
    (folder / "3").symlink_to("nowhere")  # as the hub's cache has them, with a blob that did not come
    here.says(ours, f"missing model: {folder} lacks 2.safetensors, 3: {DOWNLOAD}")
    (folder / "model.safetensors.index.json").write_text("[")
    here.says(ours, f"missing model: {folder} lacks model.safetensors.index.json: ")
    for path in folder.iterdir():
        path.unlink()
    three = "config.json, tokenizer_config.json, tokenizer.json"
    here.says(ours, f"missing model: {folder} lacks {three} and 1 more: ")


def download(folder: Path) -> None:
    """A whole model of three shards, of nothing."""
    folder.mkdir(parents=True)
    shards = {"a": "1.safetensors", "b": "2.safetensors", "c": "2.safetensors", "d": "3"}
    for name in ("config.json", "tokenizer_config.json", "tokenizer.json", *shards.values()):
        (folder / name).write_text("{}")
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": shards}))


def test_a_server_is_asked_and_no_password_is_printed(monkeypatch: pytest.MonkeyPatch) -> None:
    def line(uri: str) -> str:
        return doctor.check_store(uri).line

    with socket.socket() as silent:  # nobody listens, and nobody else can
        silent.bind(("127.0.0.1", 0))
        port = silent.getsockname()[1]
        said = line(f"https://ann:hunter2@127.0.0.1:{port}/x")
    assert said.startswith(f"missing     MLflow store: https://127.0.0.1:{port} does not answer ")
    assert "hunter" not in said and "ann" not in said
    with monkeypatch.context() as patched, socket.create_server(("127.0.0.1", 0)) as server:
        patched.setattr(doctor, "PATIENCE", 1.0)
        port = server.getsockname()[1]  # which answers, and nobody behind it
        said = line(f"http://ann:hunter2@127.0.0.1:{port}/x")
        silence = "does not answer (it has not answered within 1 seconds)"
        assert said.startswith(
            f"missing     MLflow store: http://127.0.0.1:{port} {silence}: start the server"
        )
    with monkeypatch.context() as patched:
        patched.setitem(sys.modules, "psycopg2", None)
        said = line("postgresql+psycopg2:///mlflow")
        assert said.startswith("missing     MLflow store: ") and "psycopg2" in said
    monkeypatch.setattr("cppo_lab.tracking.client.require_answer", str)
    by_socket = "the server of this machine, by its socket"
    assert line("postgresql:///mlflow") == f"ok          MLflow store: postgresql: {by_socket} answers"
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        said = line(f"postgresql://ann:hunter2@127.0.0.1:{port}/mlflow?password=hunter3")
    assert said == f"ok          MLflow store: postgresql://127.0.0.1:{port} answers"


def test_what_the_system_refuses_to_write_is_missing(here: Here) -> None:
    """As root sees it, too, on a disk that can only be read."""
    place = f"missing runs folder: {here.folder}/runs cannot be made or written"
    (here.folder / "runs").write_text("")
    here.says("", place)
    (here.folder / "runs").unlink()
    here.patch.setattr("os.access", lambda path, mode: False)
    store = f"{here.folder} cannot be written: set MLFLOW_TRACKING_URI to another store"
    here.says("", f"{place}: work in a folder that you can write to", f"missing MLflow store: {store}")
    (file := here.folder / "x.db").write_bytes(b"")
    for closed in (file, here.folder):  # SQLite writes a journal beside the file
        here.patch.setattr("os.access", lambda path, mode, closed=closed: path != closed)
        assert doctor.check_store(f"sqlite:///{file}").found == f"{closed} cannot be written"


def test_limits_of_the_machine_are_warnings(here: Here) -> None:
    def limited(to: int) -> None:
        here.patch.setattr("cppo_lab.cores.verl.checks.resource.getrlimit", lambda kind: (to, to))

    limited(1024)
    with here.patch.context() as patch:
        patch.setattr("shutil.disk_usage", lambda path: SimpleNamespace(total=64e6, free=30e9))
        here.says(
            PAPER,
            "warning runs folder: ...30 GB free: checkpoints of one run take about 48 GB, of which 7 GB stay; ",
            "warning shared memory: 0.1 GB in /dev/shm: 32 GB or more",
            "warning open files (ulimit -n): 1024: ulimit -n 65536",
        )
    name = "locked memory (ulimit -l)"  # counts where there are GPUs
    limited(8_388_608)
    here.says(PAPER, f"warning {name}: 8.4 MB: docker run --ulimit memlock=-1")
    assert name not in here.named(TINY)
    limited(verl.resource.RLIM_INFINITY)
    here.says(PAPER, f"ok {name}: unlimited")
    here.patch.setattr("cppo_lab.cores.verl.checks.SHARED", here.folder / "shm")
    here.says(TINY, f"warning shared memory: no {here.folder}/shm: Ray will use the disk, which is slow")


@pytest.mark.parametrize(
    "run, few, enough, taken",
    [
        # In pages of 4096 bytes: 30.5e9 x 14 bytes / 4, and 1.72e9 x 4 bytes x 3 policies.
        (MOE, 25_000_000, 27_000_000, "layout.offload takes about 107 GB of each node"),
        (STALE, 5_000_000, 6_000_000, "rollout.staleness=2 takes about 21 GB of each node"),
        # 1.72e9 x 16 bytes
        (
            f"{PAPER} layout=workstation",
            6_000_000,
            7_000_000,
            "FSDP's offload policy takes about 28 GB of each node",
        ),
        (
            f"{STALE} layout.offload=true",
            6_000_000,
            11_000_000,
            "layout.offload and rollout.staleness=2 takes about 41",
        ),
    ],
)
def test_what_is_offloaded_fits_in_the_memory_of_the_host(
    here: Here, run: str, few: int, enough: int, taken: str
) -> None:
    assert "host memory" not in here.named(PAPER)
    for pages, said in ((few, f"warning host memory: ...: {taken}"), (enough, "ok host memory: ")):
        memory = {"SC_PAGE_SIZE": 4096, "SC_PHYS_PAGES": pages}
        here.patch.setattr("cppo_lab.cores.verl.checks.os.sysconf", memory.__getitem__)
        here.says(run, said)


@pytest.mark.parametrize(
    "more, cpus, status, wanted",
    [
        ("", 96, "ok", ""),
        ("", 95, "warning", ": layout=one_node wants 96: layout.cpus_per_gpu, or resources.cpus"),
        ("", 31, "missing", ": layout=one_node wants 96"),
        ("layout.cpus_per_gpu=null", 31, "missing", ": layout=one_node wants 32"),
        ("layout.cpus_per_gpu=2", 31, "ok", ""),
        ("layout.cpus_per_gpu=2", 15, "missing", ": layout=one_node wants 16"),
    ],
)
def test_gpus_need_cpus(here: Here, more: str, cpus: int, status: str, wanted: str) -> None:
    """Those that this process may use: a job that asked for none has one of the machine's."""
    here.gpus(8, 80)
    here.patch.setattr("os.sched_getaffinity", lambda process: set(range(cpus)))
    here.says(f"{PAPER} {more}", f"{status} CPUs: {cpus} for this process{wanted}")
    assert "CPUs" not in here.named(f"{PAPER} launcher=slurm")  # a login node


def test_libraries_that_are_missed_in_silence(here: Here) -> None:
    """NCCL's only where there is an InfiniBand."""
    there: set[str] = set()

    def load(name: str) -> None:
        if name not in there:
            raise OSError(name)

    here.patch.setattr("cppo_lab.cores.verl.checks.ctypes.CDLL", load)
    here.patch.setattr("cppo_lab.cores.verl.checks.INFINIBAND", here.folder / "infiniband")
    assert {verl.RDMA, "libnuma.so"} & here.named(PAPER) == {"libnuma.so"}
    (here.folder / "infiniband" / "mlx5_0").mkdir(parents=True)
    otherwise = "not found, and NCCL takes TCP in place of InfiniBand: apt-get install libibverbs-dev ibverbs-providers"
    here.says(PAPER, f"warning libibverbs.so.1: {otherwise}", "warning libnuma.so: ")
    there |= {verl.RDMA, "libnuma.so"}
    here.says(PAPER, *(f"ok {name}: found" for name in there))
    assert not there & here.named(TINY)


def test_what_a_launch_through_slurm_needs(here: Here) -> None:
    """With stand-ins for Slurm's commands; the nodes, not this machine, have the GPUs."""
    programs, run = here.folder / "bin", f"{PAPER} launcher=slurm"
    here.patch.setenv("PATH", str(programs))
    here.says(run, "missing Slurm's commands: ")
    assert "GPUs" not in here.named(run)
    programs.mkdir()

    def answers(said: str, more: str = "", **texts: str) -> None:
        """The line of a check where the commands that are named say something."""
        for path in programs.iterdir():
            path.unlink()
        for command, text in (dict.fromkeys(("sbatch", "squeue", "scancel", "srun"), "") | texts).items():
            Slurm(programs).command(command, text)
        here.says(f"{run} {more}", said)

    listed = {"scontrol": "echo Slurmctld is UP", "sinfo": "echo 'debug|up'; echo 'old|down'"}
    answers("ok Slurm's controller: Slurmctld is UP", **listed)
    down = listed | {"scontrol": "echo Slurmctld is DOWN; exit 1"}
    answers("missing Slurm's controller: scontrol: Slurmctld is DOWN", **down)
    silent = "scontrol not found: check that it is up, and SLURM_CONF if it is set"
    answers(f"missing Slurm's controller: {silent}", sinfo=listed["sinfo"])
    for chosen, said in (
        ("null", "ok partition: the cluster's default; available: debug, old"),
        ("debug", "ok partition: debug"),
        ("old", "warning partition: "),
        ("gpu", "missing partition: ... set resources.partition to one of debug, old"),
    ):
        answers(said, f"resources.partition={chosen}", **listed)
    for sinfo, said in (
        ({}, "sinfo not found"),
        ({"sinfo": "echo 'invalid partition' >&2; exit 1"}, "sinfo: invalid partition"),
        ({"sinfo": "exit 4"}, "sinfo: exit status 4"),
    ):
        said = f"warning partition: partitions cannot be listed: {said}"
        answers(said, "resources.partition=debug", scontrol=listed["scontrol"], **sinfo)
    mounts = here.folder / "mounts"
    here.patch.setattr("cppo_lab.launch.slurm.submit.MOUNTS", mounts)
    remedy = "work in a folder that all nodes see under the same path"
    here.says(run, f"warning shared runs folder: {here.folder}/runs is on an unknown file system: {remedy}")
    for kind, status in (("nfs4", "ok"), ("ext4", "warning")):
        mounts.write_text(f"a / overlay rw 0 0\nb {here.folder} {kind} rw 0 0\n")
        here.says(run, f"{status} shared runs folder: ")
    here.patch.setattr("cppo_lab.launch.slurm.submit.PATIENCE", 0.1)
    answers("missing Slurm's controller: scontrol did not answer within 0 s", scontrol=SILENT, sinfo="")
    assert "partition" not in here.named(run)  # nothing more is asked of a controller that is silent


@pytest.mark.parametrize(
    "text, status",
    {
        "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release Build": "ok",
        "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue Mar  5": "missing",
        "something else": "warning",
        None: "warning",
    }.items(),
)
def test_the_driver_is_held_against_torchs_cuda(here: Here, text: str | None, status: str) -> None:
    here.patch.setattr("torch.version.cuda", "13.0")
    here.patch.setattr("cppo_lab.cores.verl.checks.DRIVER", here.folder / "version")
    if text is not None:
        (here.folder / "version").write_text(text)
    here.says(PAPER, f"{status} NVIDIA driver: ")
    assert "NVIDIA driver" not in here.named(TINY)


@pytest.mark.parametrize("layout", ["one_node", "one_node_megatron"])
def test_the_gpu_locks_have_what_the_doctor_asks_for(layout: str) -> None:
    """Each at a version within the doctor's range; Megatron's packages only where the layout has it."""
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
    assert {*MEGATRON} & {needed.name for needed in asked} == ({*MEGATRON} if megatron else set())
    for needed in asked:
        assert SpecifierSet(needed.versions).contains(locked[needed.name.lower()]), needed.name
