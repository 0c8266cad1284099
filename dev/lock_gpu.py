"""Makes the locks of GPU machines: one for FSDP2 layouts, one for Megatron's.

`python3 -m dev.lock_gpu`, or `make lock-gpu`, resolves this project with `verl[vllm,fsdp]` and `verl[vllm,megatron]`
for CPython 3.12 on Linux (x86-64, glibc 2.34) through `uv` (pip install uv). Nothing is installed, and no GPU needed.
The locks record the time until which releases count. A mirror may still show an older release later, so a resolution
reproduces a lock only from the lock's versions.

Three packages that Megatron needs are only in verl's own wheelhouse. requirements-gpu-megatron-wheels.txt names their
files as verl's uv.lock does; that file has no hashes for them, and nothing here has fetched them.
"""

import re
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path

from dev.errors import DevError, run
from dev.lock import ROOT, Pin, as_text, compiled, pins, write

FSDP = ROOT / "requirements-gpu-fsdp.lock"
MEGATRON = ROOT / "requirements-gpu-megatron.lock"
WHEELS = ROOT / "requirements-gpu-megatron-wheels.txt"
FLASH = ROOT / "requirements-gpu-flash-attn.lock"
EXTRAS = "train,search,report,ui,postgres,data,gpu"
# Prebuilt only in verl's wheelhouse for Python 3.12 and CUDA 13: WHEELS names them, the lock leaves them out.
WHEELHOUSE = ("apex", "megatron-bridge", "transformer-engine")
REQUIREMENTS: dict[Path, tuple[str, ...]] = {
    FSDP: ("verl[vllm,fsdp]==0.9.1",),
    # megatron-core and mbridge: the releases that verl takes from git. The last line: what verl's uv.lock gives
    # as TransformerEngine's dependencies (its wheel is installed without them).
    MEGATRON: (
        "verl[vllm,megatron]==0.9.1",
        "megatron-core==0.18.0",
        "mbridge==0.15.1",
        *("einops", "importlib-metadata", "nvdlfw-inspect", "onnx", "onnxscript", "packaging", "pydantic"),
    ),
}
# A marker that is never true leaves a package out. No line may choose a version, as verl's own does for numpy:
# uv then ignores what every other package says of it, and the lock is a set that nobody supports.
OVERRIDES = tuple(f"{name} ; python_version < '3'" for name in WHEELHOUSE)
# Mirrors show a release some hours late, so a later resolution for the same time could find another one.
SETTLED = timedelta(days=2)
# A source archive whose metadata needs torch to build. It is installed last, against the torch of the lock.
LAST = "flash-attn"
CONFIG = f"""override-dependencies = {list(OVERRIDES)}
[[dependency-metadata]]
name = "{LAST}"
version = "2.8.3"
requires-dist = ["torch", "einops"]
# vLLM pins this release, whose metadata wants transformers below 5; verl and vLLM run it with 5.9. All of it but that.
[[dependency-metadata]]
name = "xgrammar"
version = "0.2.5.post1"
requires-dist = ["apache-tvm-ffi>=0.1.9", "numpy", "pydantic", "torch", "transformers", "triton", "typing-extensions"]
[[dependency-metadata]]
name = "megatron-core"
version = "0.18.0"
requires-dist = ["torch>=2.6.0", "numpy", "packaging>=24.2"]
[[dependency-metadata]]
name = "mbridge"
version = "0.15.1"
requires-dist = []
"""
PLATFORM = ("--python-version", "3.12", "--python-platform", "x86_64-manylinux_2_34")
HEADER = """\
# Made by `make lock-gpu`; do not edit. CPython 3.12 on Linux (x86-64), CUDA 13. To install from it: docs/verl.md.
# Of what the package index had at {until}.
"""
UNTIL = re.compile(r"^# Of what the package index had at (\S+)\.$", re.M)


def until(text: str) -> str:
    """The time until which releases counted for a lock (RFC 3339), from its header.

    Raises:
        DevError: the header is missing.
    """
    found = UNTIL.search(text)
    if found is None:
        raise DevError("the lock does not say until when a release counted: run `make lock-gpu`")
    return found[1]


def resolved(requirements: tuple[str, ...], newest: str, versions: Mapping[str, Pin] = {}) -> dict[str, Pin]:
    """The pins that uv finds for this project with `requirements`, with the SHA-256 of their files.

    `newest` is the time (RFC 3339) until which releases count; packages in `versions` are pinned to those versions.

    Raises:
        DevError: no uv, or there is no solution.
    """
    wanted = (f"cppo-lab[{EXTRAS}] @ {ROOT.as_uri()}", *requirements)
    # Any Python can read this project's metadata: none is downloaded.
    options = (*PLATFORM, "--exclude-newer", newest, "--no-python-downloads")
    text = compiled(CONFIG, wanted, versions, *options)
    lines = [line for line in text.splitlines() if not line.startswith("cppo-lab")]
    return pins("\n".join(lines))


def locks(newest: str) -> dict[Path, str]:
    """The text of every lock, from releases until `newest`.

    Raises:
        DevError: no uv, there is no solution, or the two environments build against different versions of flash-attn.
    """
    header = HEADER.format(until=newest)
    solved = {path: resolved(requirements, newest) for path, requirements in REQUIREMENTS.items()}
    last = {locked.pop(LAST) for locked in solved.values()}
    if len(last) > 1:
        raise DevError(f"the locks differ in {LAST}: {', '.join(pin.version for pin in last)}")
    return {path: as_text(locked, header) for path, locked in (solved | {FLASH: {LAST: last.pop()}}).items()}


def main() -> int:
    """Writes the locks and returns the exit status."""
    for path, text in locks(f"{datetime.now(UTC) - SETTLED:%Y-%m-%dT%H:%M:%SZ}").items():
        write(path, text)
    return 0


if __name__ == "__main__":
    run("dev.lock_gpu", main)
