"""What is said of where a run was trained: facts that can be checked otherwise, and nothing secret."""

import importlib.metadata
import os
import platform
import pwd
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from cppo_lab import schema
from cppo_lab.tracking import environment
from cppo_lab.tracking.code_version import CodeState
from cppo_lab.tracking.environment import PACKAGES, environment_tags, packages, versions_in
from cppo_lab.tracking.nvidia import Inventory

SECRET = "hunter2-s3cret"


def test_this_machine() -> None:
    tags = environment_tags()
    assert tags[schema.TAG_HOST] == socket.gethostname()
    assert tags[schema.TAG_PYTHON] == ".".join(map(str, sys.version_info[:3]))
    assert platform.machine() in tags[schema.TAG_PLATFORM]
    assert tags[schema.TAG_CPU] in Path("/proc/cpuinfo").read_text()
    assert int(tags[schema.TAG_CORES]) == len(os.sched_getaffinity(0))
    total = int(Path("/proc/meminfo").read_text().split()[1]) / 2**20
    assert int(tags[schema.TAG_MEMORY]) == round(total)
    user = subprocess.run(["id", "-un"], capture_output=True, text=True, check=True).stdout.strip()
    assert tags[schema.TAG_MLFLOW_USER] == user
    head = ["git", "-C", str(Path(__file__).parent), "rev-parse", "HEAD"]
    if (Path(__file__).parents[2] / ".git").exists():
        commit = subprocess.run(head, capture_output=True, text=True, check=True).stdout.strip()
        assert tags[schema.TAG_COMMIT] == tags[schema.TAG_MLFLOW_COMMIT] == commit
        assert tags[schema.TAG_DIRTY] == ("true" if schema.TAG_CHANGES in tags else "false")
    assert all(tags.values())


def test_versions_of_what_is_installed() -> None:
    found = versions_in(environment_tags())
    for name in PACKAGES:
        try:
            version: str | None = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            version = None
        assert found.get(name) == version
    import numpy

    assert found["numpy"] == numpy.__version__


def test_versions_of_an_older_run() -> None:
    """It has a tag for each package; one that is resumed has both, and the newer ones count."""
    old = {"cppo.env.package.torch": "2.11.0", "cppo.env.package.verl": "0.8.0", "cppo.env.host": "node1"}
    assert versions_in(old) == {"torch": "2.11.0", "verl": "0.8.0"}
    assert versions_in({**old, schema.TAG_PACKAGES: "torch==2.13.0"}) == {"torch": "2.13.0", "verl": "0.8.0"}


def test_a_job_of_slurm(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("SLURM_")]:
        monkeypatch.delenv(name)
    assert not [key for key in environment_tags() if key.startswith("cppo.env.slurm")]
    job = {
        "SLURM_JOB_ID": "812",
        "SLURM_ARRAY_JOB_ID": "810",
        "SLURM_ARRAY_TASK_ID": "3",
        "SLURM_JOB_NAME": "main postgresql://ada:" + SECRET + "@db",
        "SLURM_JOB_PARTITION": "gpu",
        "SLURM_JOB_NODELIST": "node[01-02,7]",
        "SLURM_RESTART_COUNT": "2",
    }
    for name, value in job.items():
        monkeypatch.setenv(name, value)
    tags = environment_tags()
    assert tags[schema.TAG_JOB] == "812"
    assert tags[schema.TAG_ARRAY_TASK] == "810_3"
    assert tags[schema.TAG_JOB_NAME] == "main postgresql://ada:***@db"
    assert tags[schema.TAG_PARTITION] == "gpu"
    assert tags[schema.TAG_NODES] == "node[01-02,7]"
    assert tags[schema.TAG_RESTARTS] == "2"
    assert tags[schema.TAG_MLFLOW_SOURCE_TYPE] == "JOB"


def test_no_secret_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    uri = f"https://ada:{SECRET}@mlflow.example"
    planted = {
        "MLFLOW_TRACKING_URI": uri,
        "MLFLOW_TRACKING_PASSWORD": SECRET,
        "MLFLOW_TRACKING_TOKEN": SECRET,
        "HF_TOKEN": SECRET,
        "PIP_INDEX_URL": uri,
        "USER": SECRET,
        "SLURM_JOB_ID": "1",
        "SLURM_JOB_NAME": f"job {uri}",
        "SLURM_EXPORT_ENV": f"ALL,TOKEN={SECRET}",
        "CUDA_VISIBLE_DEVICES": uri,
    }
    for name, value in planted.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys, "argv", ["cppo", f"tracking.uri={uri}"])
    assert SECRET not in repr(environment_tags())
    assert SECRET not in "\n".join(packages())


def test_packages() -> None:
    # In a process of its own: Ray, once imported, puts packages that it carries on the path of this one.
    code = "from cppo_lab.tracking.environment import packages; print(*packages(), sep='\\n')"
    lines = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.splitlines()
    listed = dict(line.split("==") for line in lines)
    pip = [sys.executable, "-m", "pip", "list", "--format=freeze", "--disable-pip-version-check"]
    theirs = subprocess.run(pip, capture_output=True, text=True)
    if theirs.returncode == 0:
        wanted = dict(line.split("==") for line in theirs.stdout.splitlines())

        def plain(names: dict[str, str]) -> dict[str, str]:
            return {name.lower().replace("_", "-").replace(".", "-"): v for name, v in names.items()}

        assert plain(listed) == plain(wanted)
    assert lines == sorted(lines, key=lambda line: line.partition("==")[0].casefold())


def test_git_is_the_only_program_that_is_called(monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[str] = []
    real = subprocess.Popen.__init__

    def watched(self: subprocess.Popen[str], args: list[str], **options: object) -> None:
        called.append(args[0])
        real(self, args, **options)  # type: ignore[call-overload]

    monkeypatch.setattr(subprocess.Popen, "__init__", watched)
    environment_tags()
    assert set(called) <= {"git"}
    assert len(called) <= 2


def test_gpus_are_named_with_their_number_and_versions(monkeypatch: pytest.MonkeyPatch) -> None:
    two = ("NVIDIA H100", "NVIDIA A100", "NVIDIA H100")
    monkeypatch.setattr(environment, "inventory", lambda: Inventory(two, "550.54.15", "12.4"))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,2")
    tags = environment_tags()
    assert tags[schema.TAG_GPU] == "NVIDIA H100, NVIDIA A100"
    assert tags[schema.TAG_GPUS] == "3"
    assert (tags[schema.TAG_DRIVER], tags[schema.TAG_CUDA]) == ("550.54.15", "12.4")
    assert tags[schema.TAG_VISIBLE_DEVICES] == "0,2"
    monkeypatch.setattr(environment, "inventory", Inventory)
    assert not {schema.TAG_GPU, schema.TAG_GPUS, schema.TAG_VISIBLE_DEVICES} & set(environment_tags())


def test_an_installation_without_git_has_no_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "code_state", CodeState)
    tags = environment_tags()
    assert tags[schema.TAG_HOST]
    assert not {schema.TAG_COMMIT, schema.TAG_MLFLOW_COMMIT, schema.TAG_DIRTY, schema.TAG_CHANGES} & set(tags)


def test_a_user_without_a_name_is_called_by_number(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a container that does not know the accounts of the machine."""
    known = {account.pw_uid for account in pwd.getpwall()}
    stranger = next(uid for uid in range(1_234_567, 2_000_000) if uid not in known)
    monkeypatch.setattr(os, "getuid", lambda: stranger)
    assert environment_tags()[schema.TAG_MLFLOW_USER] == str(stranger)


def test_a_processor_that_the_kernel_does_not_name_is_named_by_its_kind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(platform, "processor", lambda: "aarch64")
    information = tmp_path / "cpuinfo"
    monkeypatch.setattr(environment, "Path", lambda name: information)
    assert environment_tags()[schema.TAG_CPU] == "aarch64"
    information.write_text("processor\t: 0\nBogoMIPS\t: 50.00\n")  # as on ARM
    assert environment_tags()[schema.TAG_CPU] == "aarch64"
    information.write_text("processor\t: 0\nmodel name\t: Big: CPU\n\nprocessor\t: 1\nmodel name\t: Other\n")
    assert environment_tags()[schema.TAG_CPU] == "Big: CPU"


def test_a_folder_that_an_interrupted_installation_left_is_no_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = packages()
    (tmp_path / "half-1.0.dist-info").mkdir()
    whole = tmp_path / "whole_one-2.0.dist-info"
    whole.mkdir()
    (whole / "METADATA").write_text("Metadata-Version: 2.1\nName: whole-one\nVersion: 2.0\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert sorted(set(packages()) - set(before)) == ["whole-one==2.0"]
