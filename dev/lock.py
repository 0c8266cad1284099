"""Makes requirements-cpu.lock from constraints-cpu.txt: the same packages and versions, and the SHA-256 of their files.

`python3 -m dev.lock [--torch SOURCE]`, or `make lock`, asks PyPI through `uv` (pip install uv). Linux machines without
a GPU take torch's CPU builds, which are not on PyPI: SOURCE is PyTorch's index of them, or a folder with their wheels.
"""

import argparse
import hashlib
import re
import subprocess
import tempfile
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from packaging.utils import canonicalize_name

from dev.errors import DevError, run

ROOT = Path(__file__).parents[1]
CONSTRAINTS, LOCK = ROOT / "constraints-cpu.txt", ROOT / "requirements-cpu.lock"
CPU_BUILDS = "https://download.pytorch.org/whl/cpu"
HEADER = """\
# Made by `make lock` from constraints-cpu.txt; do not edit. Each package at its version, with the SHA-256 of its files
# for Linux and macOS on PyPI; torch's for Linux on x86-64 are its CPU builds. `make locked` installs from it.
"""
LINUX = " ; sys_platform == 'linux'"
PIN = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]*)==([^\s;\\]+)")
PYTHONS = re.compile(r"\b(py3\d*|cp3\d*)\b")
PLATFORMS = re.compile(r"\bany\b|manylinux\w*_(x86_64|aarch64)|macosx\w*_(arm64|universal2)")
HASH = re.compile(r"--hash=sha256:([0-9a-f]{64})")


@dataclass(frozen=True)
class Pin:
    """A package's version, the SHA-256 of each file that may be installed, and LINUX if none is for macOS."""

    version: str
    hashes: tuple[str, ...] = ()
    marker: str = ""


def pins(text: str) -> dict[str, Pin]:
    """The pins of a constraints file or a lock by canonical name, in order.

    Raises:
        DevError: a line is not `name==version`, with or without hashes, or a package appears twice.
    """
    pinned: dict[str, Pin] = {}
    lines = (line for line in text.splitlines() if not line.lstrip().startswith("#"))
    for entry in filter(None, map(str.strip, "\n".join(lines).replace("\\\n", " ").splitlines())):
        pin = PIN.match(entry)
        marker = LINUX if LINUX in entry else ""
        if pin is None or HASH.sub("", entry[pin.end() :].removeprefix(marker)).strip():
            raise DevError(f"{entry:.80}: write name==version, and hashes behind it in a lock")
        if (name := canonicalize_name(pin[1])) in pinned:
            raise DevError(f"{name} is pinned twice: remove a line")
        pinned[name] = Pin(pin[2], tuple(HASH.findall(entry)), marker)
    return pinned


def as_text(locked: Mapping[str, Pin], header: str = HEADER) -> str:
    """The lock as a file that pip and uv read."""
    entries = (
        " \\\n    --hash=sha256:".join([f"{name}=={pin.version}{pin.marker}", *pin.hashes])
        for name, pin in sorted(locked.items())
    )
    return header + "\n".join(entries) + "\n"


def differences(constraints: Mapping[str, Pin], locked: Mapping[str, Pin]) -> set[tuple[str, str]]:
    """Names and versions that only one of the two has; what has no hash is not in the lock."""
    wanted = {(name, pin.version) for name, pin in constraints.items()}
    return wanted ^ {(name, pin.version) for name, pin in locked.items() if pin.hashes}


def for_cpus(packages: Sequence[Mapping[str, Any]]) -> dict[str, Pin]:
    """The pins of a pylock file's packages (PEP 751), with the files that CPU machines may install.

    These are wheels for Linux and macOS, and source archives only of packages without wheels, since building one runs
    its code. torch's wheels for Linux on x86-64 are excluded, since those on PyPI are CUDA builds.
    """
    locked: dict[str, Pin] = {}
    for package in packages:
        name, wheels = canonicalize_name(package["name"]), package.get("wheels", ())
        files = [wheel for wheel in wheels if _fits(name, wheel["url"].rsplit("/", 1)[-1])]
        hashes = {file["hashes"]["sha256"] for file in (files if wheels else [package["sdist"]])}
        everywhere = not files or any(re.search(r"-any\.|macosx", file["url"]) for file in files)
        locked[name] = Pin(package["version"], tuple(sorted(hashes)), "" if everywhere else LINUX)
    return locked


def _fits(name: str, wheel: str) -> bool:
    """Whether a wheel is for CPython on one of `PLATFORMS`, by its file name."""
    python, abi, platform = wheel.removesuffix(".whl").split("-")[-3:]
    free_threaded = abi.endswith("t")  # cp313t
    of_gpus = name == "torch" and "+cpu" not in unquote(wheel) and re.search(r"linux\w*_x86_64", platform)
    return bool(PYTHONS.search(python) and PLATFORMS.search(platform) and not free_threaded and not of_gpus)


def hashed(requirements: Path, *options: str) -> dict[str, Pin]:
    """The pins of a file, with the hashes that an index has of their files.

    Raises:
        DevError: no uv, or it fails.
    """
    words = ["--no-deps", "--universal", "--python-version", "3.11", "--no-config", "--format", "pylock.toml"]
    return for_cpus(tomllib.loads(uv(*words, *options, str(requirements)))["packages"])


def compiled(config: str, requirements: Sequence[str], constraints: Mapping[str, Pin], *options: str) -> str:
    """The lock of `requirements` that uv finds, with hashes: packages in `constraints` have their versions.

    Raises:
        DevError: no uv, or there is no solution.
    """
    limits = [f"{name}=={pin.version}" for name, pin in constraints.items()]
    with tempfile.TemporaryDirectory() as folder:
        for name, lines in {"uv.toml": [config], "wanted.in": requirements, "limits.txt": limits}.items():
            Path(folder, name).write_text("\n".join(lines))
        files = (
            f"--config-file={folder}/uv.toml",
            f"--constraints={folder}/limits.txt",
            f"{folder}/wanted.in",
        )
        return uv("--generate-hashes", "--no-header", "--no-annotate", *options, *files)


def uv(*words: str) -> str:
    """What `uv pip compile` prints.

    Raises:
        DevError: no uv, or it fails.
    """
    command = ["uv", "pip", "compile", "--system-certs", "--quiet", *words]
    try:
        done = subprocess.run(command, check=False, capture_output=True, text=True)
    except FileNotFoundError:
        raise DevError("uv is not installed: pip install uv") from None
    if done.returncode:
        raise DevError(f"uv found no solution: {' '.join(done.stderr.split()) or 'no reason given':.300}")
    return done.stdout


def cpu_builds(version: str, source: str) -> tuple[str, ...]:
    """The SHA-256 of torch's CPU builds of this version in a folder of wheels or an index.

    Raises:
        DevError: there are none.
    """
    if "://" not in source:
        wheels = sorted(Path(source).glob(f"torch-{version}+cpu-*.whl"))
        if not wheels:
            raise DevError(f"{source} has no torch-{version}+cpu-*.whl: name another folder, or an index")
        return tuple(hashlib.sha256(wheel.read_bytes()).hexdigest() for wheel in wheels)
    with tempfile.TemporaryDirectory() as folder:
        wanted = Path(folder, "torch.txt")
        wanted.write_text(f"torch=={version}+cpu\n")
        try:
            [pin] = hashed(wanted, "--default-index", source).values()
        except DevError as error:
            raise DevError(f"{error}; or name a folder with torch's wheel: make lock TORCH=FOLDER") from None
    return pin.hashes


def main(arguments: list[str] | None = None) -> int:
    """Writes the lock and returns the exit status."""
    parser = argparse.ArgumentParser(prog="python3 -m dev.lock", description="Makes requirements-cpu.lock.")
    parser.add_argument(
        "--torch", default=CPU_BUILDS, help="folder or index of CPU builds (default: %(default)s)"
    )
    source = parser.parse_args(arguments).torch
    constraints, locked = pins(CONSTRAINTS.read_text()), hashed(CONSTRAINTS)
    torch = locked["torch"]
    hashes = {*torch.hashes, *cpu_builds(constraints["torch"].version, source)}
    locked["torch"] = Pin(torch.version, tuple(sorted(hashes)))
    if wrong := differences(constraints, locked):
        raise DevError(f"uv's answer is no lock: {sorted(wrong)}")
    write(LOCK, as_text(locked))
    return 0


def write(lock: Path, text: str) -> None:
    """Write a lock, and say how large it is."""
    lock.write_text(text)
    print(f"{lock.name}: {len(pins(text))} packages")


if __name__ == "__main__":
    run("dev.lock", main)
