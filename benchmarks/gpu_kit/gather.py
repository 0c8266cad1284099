"""The archive that goes to a bare machine: this project's source, and the packages that it lacks there, unpacked.

The machine has CPython 3.12 on Linux (x86-64), torch, transformers and what these two need. CARRIED is the rest of
what the parts import (a test runs them with nothing else); versions and hashes are those of the lock for GPU machines.
"""

import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterable
from pathlib import Path

from benchmarks.common import ROOT
from cppo_lab.runs.machine import git

FOLDER = ROOT / "build" / "gpu_kit"  # git ignores it
SITE = FOLDER / "site"  # the packages that a bare machine lacks
COMMIT = FOLDER / "commit.txt"
LOCK = ROOT / "requirements-gpu-fsdp.lock"
LARGEST = 64 * 2**20  # bytes that a lent machine takes along
# Package -> the module by which it is imported. typing-extensions is there, but perhaps older than pydantic wants.
CARRIED = {
    "annotated-types": "annotated_types",
    "antlr4-python3-runtime": "antlr4",
    "hydra-core": "hydra",
    "omegaconf": "omegaconf",
    "pydantic": "pydantic",
    "pydantic-core": "pydantic_core",
    "typing-extensions": "typing_extensions",
    "typing-inspection": "typing_inspection",
}
# pip takes a wheel of exactly these platforms; a package's own may be older than the machine's.
TARGET = [
    "--python-version",
    "3.12",
    "--implementation",
    "cp",
    "--abi",
    "cp312",
    "--abi",
    "abi3",
    "--abi",
    "none",
    "--platform",
    "manylinux_2_28_x86_64",
    "--platform",
    "manylinux_2_17_x86_64",
    "--platform",
    "manylinux2014_x86_64",
]
# Of the source: what the parts do not read.
LEFT_OUT = ("docs/pictures/", "docs/evidence/", "reports/paper/", "tests/browser/", "tests/reports/")


class GatherFailed(Exception):
    """No archive: one line that says why, and what to do."""


def commit() -> str:
    """This checkout's commit, with `.dirty` for changes; from the gathered kit where git or its folder is not there."""
    if (ROOT / ".git").exists():
        try:
            digits = git(ROOT, "rev-parse", "HEAD").strip()
            return digits + (".dirty" if git(ROOT, "status", "--porcelain").strip() else "")
        except (OSError, subprocess.SubprocessError):
            pass
    return COMMIT.read_text(encoding="utf-8").strip() if COMMIT.exists() else "unknown"


def gather_kit(out: Path) -> None:
    """Make `out`/gpu_kit.tar.gz and the folder `build/gpu_kit` of this checkout, and say what to do with them.

    Raises:
        GatherFailed: no package index, a package that is not as locked, no git checkout, or an archive too large.
    """
    try:
        listed = git(ROOT, "ls-files", "-z", "--cached", "--others", "--exclude-standard")
    except (OSError, subprocess.SubprocessError) as error:
        raise GatherFailed(
            f"git cannot list the source's files ({error}): gather in a git checkout"
        ) from None
    FOLDER.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=FOLDER) as name:
        fetched = Path(name) / "site"
        fetch(locked(LOCK.read_text(encoding="utf-8"), CARRIED), fetched)
        shutil.rmtree(SITE, ignore_errors=True)
        fetched.rename(SITE)
    COMMIT.write_text(commit() + "\n", encoding="utf-8")
    archive = out / "gpu_kit.tar.gz"
    pack(archive, [name for name in listed.split("\0") if name and not name.startswith(LEFT_OUT)])
    size = archive.stat().st_size / 2**20
    print(f"{archive}: {size:.1f} MiB of at most {LARGEST / 2**20:.0f} ({', '.join(sorted(CARRIED))})")
    print(f"{FOLDER.relative_to(ROOT)}: for a machine that takes this checkout along")
    print(
        "There:  tar xzf gpu_kit.tar.gz && cd gpu_kit && python3 -m benchmarks.gpu_kit run --minutes 9.5 --out result"
    )


def locked(text: str, names: Iterable[str]) -> str:
    """The entries of `names` in a lock file, with their hashes.

    Raises:
        GatherFailed: the lock has no such package.
    """
    entries = dict(re.findall(r"^([a-z0-9.-]+)(==[^\n]*\\\n(?:\s+--hash=[^\n]*\n)+)", text, re.MULTILINE))
    if missing := [name for name in names if name not in entries]:
        raise GatherFailed(f"{LOCK.name} has no {', '.join(missing)}: make lock-gpu, or mend CARRIED")
    return "".join(f"{name}{entries[name]}" for name in names)


def fetch(requirements: str, folder: Path) -> None:
    """Unpack the packages of `requirements` in `folder`, as the bare machine needs them, each held against its hash.

    Raises:
        GatherFailed: pip could not.
    """
    with tempfile.NamedTemporaryFile("w", suffix=".txt", encoding="utf-8") as file:
        file.write(requirements)
        file.flush()
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-input"]
        what = ["--no-deps", "--no-compile", "--require-hashes", "--target", str(folder), "-r", file.name]
        try:
            subprocess.run([*pip, *what, *TARGET], check=True, capture_output=True, text=True, timeout=300)
        except (OSError, subprocess.SubprocessError) as error:
            said = (getattr(error, "stderr", None) or str(error)).splitlines()
            wrong = [line for line in said if "ERROR" in line] or said
            raise GatherFailed(
                f"pip could not fetch the packages ({wrong[-1].strip():.200}): is the package index reachable? "
                "(PIP_INDEX_URL)"
            ) from None


def pack(archive: Path, names: Iterable[str]) -> None:
    """Write the archive of these files and what was gathered.

    Raises:
        GatherFailed: more than LARGEST; the archive is removed.
    """
    archive.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(archive, "w:gz") as tar:
        for path in (*(ROOT / name for name in sorted(set(names))), SITE, COMMIT):
            if path.exists():
                tar.add(path, f"gpu_kit/{path.relative_to(ROOT)}")
    size = archive.stat().st_size
    if size > LARGEST:
        archive.unlink()
        raise GatherFailed(
            f"the archive has {size / 2**20:.0f} MiB, more than {LARGEST / 2**20:.0f}: leave out more"
        )
