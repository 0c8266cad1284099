"""The images for GPU machines, as far as that goes without building one: no network reaches their base image here."""

import os
import re
import shlex
import subprocess
from pathlib import Path

import pytest

from dev.lock import pins
from dev.lock_gpu import MEGATRON, REQUIREMENTS, WHEELHOUSE, WHEELS
from tests.conftest import ROOT

SCRIPT = ROOT / "docker" / "install.sh"
DOCKER, APPTAINER = ROOT / "docker" / "Dockerfile.gpu", ROOT / "docker" / "apptainer.def"
STEPS = ["system", "packages", "project"]


def lines(path: Path) -> list[str]:
    """Without comments and empty ones."""
    return [line.strip() for line in path.read_text().splitlines() if line.strip() and line[0] != "#"]


def test_both_images_are_made_by_the_same_steps_on_the_same_base() -> None:
    instructions = [line.partition(" ")[::2] for line in lines(DOCKER)]
    words = [word for word, _ in instructions]
    assert set(words) <= {"FROM", "ARG", "COPY", "RUN", "ENV", "USER", "WORKDIR", "CMD"}
    header, _, post = "\n".join(lines(APPTAINER)).partition("%post\n")
    runs = [rest for word, rest in instructions if word == "RUN"]
    assert [run for run in runs if "install.sh" in run] == [
        f"bash /opt/cppo-lab/docker/install.sh {step}" for step in STEPS
    ]
    # Nothing is installed past the script.
    assert [run for run in runs if "install.sh" not in run] == ["useradd --create-home --uid 1001 cppo"]
    post = post.partition("\n%")[0]
    assert re.findall(r"docker/install\.sh (\w+)$", post, re.MULTILINE) == STEPS
    assert post.count("\n") == len(STEPS) and "\nexport FLASH_ATTN_CUDA_ARCHS=" in post
    # flash-attn is compiled by the CUDA toolkit of the base, against torch's.
    [base] = [rest for word, rest in instructions if word == "FROM"]
    assert header.startswith(f"Bootstrap: docker\nFrom: {base}\n%")
    for lock in REQUIREMENTS:
        version = pins(lock.read_text())["cuda-toolkit"].version
        assert base == f"nvidia/cuda:{version}-devel-ubuntu24.04"
    # Both take the same settings for the build, with the same values unless others are given.
    settings = {rest for word, rest in instructions if word == "ARG"}
    assert settings == set(header.partition("%arguments\n")[2].partition("%")[0].split())
    assert all(f"{{{{ {setting.partition('=')[0]} }}}}" in post for setting in settings)
    copied = [rest.split() for word, rest in instructions if word == "COPY"]
    assert [names[-1].rstrip("/") for names in copied] == [f"/opt/cppo-lab{at}" for at in ("/docker", "", "")]
    sources = {source for *names, _ in copied for source in names}
    assert all((ROOT / source).exists() for source in sources)
    # The steps find their files in the image.
    written = re.findall(r'-r "?([^\s"]+)', SCRIPT.read_text())
    needed = {name.replace("$backend", backend) for name in written for backend in ("fsdp", "megatron")}
    assert len(needed) == 4 and needed <= sources
    # It ends as another user.
    assert dict(instructions)["USER"] not in ("root", "0")
    assert not {"RUN", "COPY"} & set(words[words.index("USER") :])


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="asks git; this is no checkout")
def test_what_is_left_out_of_the_image_is_no_part_of_the_project() -> None:
    ignored = lines(ROOT / ".dockerignore")
    assert ".git" not in ignored
    patterns = [f":(glob){line}{below}" for line in ignored for below in ("", "/**")]
    assert subprocess.check_output(["git", "-C", str(ROOT), "ls-files", *patterns]) == b""


def test_the_wheels_without_hashes_are_those_that_the_lock_leaves_out() -> None:
    source = r"https://github\.com/verl-project/verl-wheelhouse/releases/download/\S+\.whl"
    wheels = [re.fullmatch(rf"(\S+) @ {source}", line) for line in lines(WHEELS)]
    assert sorted(wheel[1] if wheel else "" for wheel in wheels) == sorted(WHEELHOUSE)
    assert not set(WHEELHOUSE) & set(pins(MEGATRON.read_text()))


@pytest.fixture
def stand_ins(tmp_path: Path) -> dict[str, str]:
    """An environment in which what the script calls is written down in `called`; `uv` fails where FAIL says so."""
    programs = tmp_path / "bin"
    programs.mkdir()
    write = f">> {tmp_path}/called"
    record = f'printf "%s" "$(basename "$0")" {write}; printf " %s" "$@" {write}; echo {write}\n'
    made = f"""mkdir -p "$3/bin"; cp {programs}/pip "$3/bin/"; echo 'export ACTIVE=1' > "$3/bin/activate"\n"""
    for name, then in {
        **dict.fromkeys(("apt-get", "rm", "git", "pip"), ""),
        "python3.12": made,
        "uv": '[ "${ACTIVE:-}" = 1 ] || exit 3\ncase "$*" in *"${FAIL:-nothing}"*) exit 1;; esac\n'
        f'echo "${{FLASH_ATTENTION_FORCE_BUILD:-}},${{FLASH_ATTN_CUDA_ARCHS:-}}" >> {tmp_path}/forced\n',
    }.items():
        (programs / name).write_text(f"#!/bin/bash\n{record}{then}")
        (programs / name).chmod(0o755)
    return {"PATH": f"{programs}:{os.environ['PATH']}", "VENV": str(tmp_path / "a venv")}


def run(step: str, environment: dict[str, str]) -> int:
    """The exit status of a step."""
    return subprocess.run(
        ["bash", str(SCRIPT), step], env=environment, cwd="/", capture_output=True
    ).returncode


@pytest.mark.parametrize("backend", ["fsdp", "megatron"])
def test_the_script_does_what_the_documents_say(
    backend: str, stand_ins: dict[str, str], tmp_path: Path
) -> None:
    stand_ins |= {"BACKEND": backend}
    assert [run(step, stand_ins) for step in STEPS] == [0, 0, 0]
    called = (tmp_path / "called").read_text().replace(stand_ins["VENV"], ".venv").splitlines()
    text = (ROOT / "docs" / "verl.md").read_text()
    blocks = re.findall(r"```bash\n(python3\.12 -m venv.*?)```", text, re.S)
    [block] = [block for block in blocks if f"requirements-gpu-{backend}.lock" in block]
    force = "FLASH_ATTN_CUDA_ARCHS=90 FLASH_ATTENTION_FORCE_BUILD=TRUE "
    block = block.replace(".venv/bin/pip", "pip").replace(force, "")
    parts = [part.strip() for line in block.splitlines() for part in line.partition(" #")[0].split("&&")]
    calls, written = (
        [line for line in lines if line.startswith(("python3.12", "pip", "uv"))] for lines in (called, parts)
    )
    assert calls == written and len(written) == 6 + (backend == "megatron")
    # Of the calls of uv, only flash-attn's must build: for one kind of GPU, unless others are asked for.
    forced = (tmp_path / "forced").read_text().split()
    flash = ["flash-attn" in call for call in calls if call.startswith("uv ")]
    assert [word == "TRUE,90" for word in forced] == flash
    (tmp_path / "forced").unlink()
    assert run("packages", stand_ins | {"FLASH_ATTN_CUDA_ARCHS": "80;90"}) == 0
    assert "TRUE,80;90" in (tmp_path / "forced").read_text().split()
    # Checked against hashes: all but what builds, verl's wheelhouse, and the project itself.
    unchecked = ("setuptools wheel ninja", "--no-deps -e .", "install uv", "venv .venv", WHEELS.name)
    assert all("--require-hashes" in call or call.endswith(unchecked) for call in calls)
    assert called[0] == "apt-get update"
    # What NCCL and verl open at run time, and go on without (drivers of network devices are a package of their own).
    libraries = {"ibverbs-providers", "libibverbs-dev", "libnuma-dev", "librdmacm-dev", "numactl"}
    assert libraries <= set(called[1].split()), called[1]
    assert called[-1] == f"git config --system --add safe.directory {ROOT}"


@pytest.mark.parametrize("fault, calls", [("gpu-fsdp", 1), ("ninja", 2), ("flash", 3)])
def test_the_script_stops_at_what_fails(
    fault: str, calls: int, stand_ins: dict[str, str], tmp_path: Path
) -> None:
    assert run("packages", stand_ins | {"FAIL": fault}) == 1
    called = (tmp_path / "called").read_text().splitlines()
    assert sum(shlex.split(one)[0] == "uv" for one in called) == calls


def test_a_step_that_there_is_not_is_refused() -> None:
    done = subprocess.run(["bash", str(SCRIPT), "all"], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (2, "usage: bash docker/install.sh system|packages|project\n")
