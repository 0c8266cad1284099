"""The archive that goes to a bare machine: this project's source, and the packages that it lacks there, unpacked.

The machine has CPython 3.12 on Linux (x86-64), torch, transformers and what these two need. CARRIED is the rest of
what the parts import (a test runs them with nothing else); versions and hashes are those of the lock for GPU machines.
"""

import json
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path

from benchmarks.gpu_kit.places import COMMIT, FOLDER, ROOT, SITE, commit
from cppo_lab.runs.machine import git

LOCK = ROOT / "requirements-gpu-fsdp.lock"
ARCHIVE = "gpu_kit.tar.gz"
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
    *(
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
    ),
    *(
        word
        for one in ("manylinux_2_28", "manylinux_2_17", "manylinux2014")
        for word in ("--platform", f"{one}_x86_64")
    ),
]
# Of the source: what the parts do not read.
LEFT_OUT = ("docs/pictures/", "docs/evidence/", "reports/paper/", "tests/browser/", "tests/reports/")
SECONDS = 300.0


class GatherFailed(Exception):
    """No archive: one line that says why, and what to do."""


def gather_kit(out: Path) -> Path:
    """Make `out`/ARCHIVE and the folder `build/gpu_kit` of this checkout, and say what to do with them.

    Raises:
        GatherFailed: no package index, a package that is not as locked, no git checkout, or an archive too large.
    """
    sources = _tracked()
    FOLDER.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=FOLDER) as name:
        fetched = Path(name) / "site"
        fetch(locked(LOCK.read_text(encoding="utf-8"), CARRIED), fetched)
        shutil.rmtree(SITE, ignore_errors=True)
        fetched.rename(SITE)
    about = {"commit": commit(), "date": datetime.now(UTC).strftime("%Y-%m-%d"), "packages": sorted(CARRIED)}
    COMMIT.write_text(json.dumps(about, indent=1) + "\n", encoding="utf-8")
    out.mkdir(parents=True, exist_ok=True)
    archive = out / ARCHIVE
    size = _pack(archive, sources)
    folder = sum(path.stat().st_size for path in FOLDER.rglob("*") if path.is_file())
    print(
        f"{archive}: {size / 2**20:.1f} MiB of at most {LARGEST / 2**20:.0f} ({', '.join(sorted(CARRIED))})"
    )
    print(
        f"{FOLDER.relative_to(ROOT)}: {folder / 2**20:.1f} MiB, for a machine that takes this checkout along"
    )
    print(
        "There:  tar xzf gpu_kit.tar.gz && cd gpu_kit && python3 -m benchmarks.gpu_kit run --minutes 9.5 --out result"
    )
    return archive


def locked(text: str, names: Iterable[str]) -> str:
    """The entries of `names` in a lock file, with their hashes.

    Raises:
        GatherFailed: the lock has no such package.
    """
    entries = dict(re.findall(r"^([a-z0-9.-]+)(==[^\n]*\\\n(?:\s+--hash=[^\n]*\n)+)", text, re.MULTILINE))
    wanted = list(names)
    if missing := [name for name in wanted if name not in entries]:
        raise GatherFailed(f"{LOCK.name} has no {', '.join(missing)}: make lock-gpu, or mend CARRIED")
    return "".join(f"{name}{entries[name]}" for name in wanted)


def fetch(requirements: str, folder: Path) -> None:
    """Unpack the packages of `requirements` in `folder`, as the bare machine needs them, each held against its hash.

    Raises:
        GatherFailed: pip could not.
    """
    with tempfile.TemporaryDirectory() as name:
        listed = Path(name) / "requirements.txt"
        listed.write_text(requirements, encoding="utf-8")
        command = [
            *(sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-input"),
            *("--no-deps", "--no-compile", "--require-hashes", "--target", str(folder), "-r", str(listed)),
            *TARGET,
        ]
        try:
            subprocess.run(command, check=True, capture_output=True, text=True, timeout=SECONDS)
        except subprocess.TimeoutExpired:
            raise GatherFailed(
                f"pip took longer than {SECONDS:.0f} s: is the package index reachable? (PIP_INDEX_URL)"
            ) from None
        except (OSError, subprocess.CalledProcessError) as error:
            said = [
                line for line in (getattr(error, "stderr", "") or str(error)).splitlines() if line.strip()
            ]
            wrong = [line for line in said if "ERROR" in line] or said or ["it said nothing"]
            raise GatherFailed(
                f"pip could not fetch the packages ({wrong[-1].strip():.200}): is the package index reachable? "
                "(PIP_INDEX_URL)"
            ) from None


def _tracked() -> list[str]:
    """The source's files: what git tracks, and what is new and not ignored."""
    try:
        listed = git(ROOT, "ls-files", "-z", "--cached", "--others", "--exclude-standard")
    except (OSError, subprocess.SubprocessError) as error:
        raise GatherFailed(
            f"git cannot list the source's files ({error}): gather in a git checkout"
        ) from None
    names = sorted({name for name in listed.split("\0") if name and not name.startswith(LEFT_OUT)})
    return [name for name in names if (ROOT / name).exists()]


def _pack(archive: Path, sources: list[str]) -> int:
    """Write the archive; its bytes.

    Raises:
        GatherFailed: more than LARGEST; the archive is removed.
    """
    with tarfile.open(archive, "w:gz") as tar:
        for name in sources:
            tar.add(ROOT / name, f"gpu_kit/{name}", recursive=False)
        for path in (SITE, COMMIT):
            tar.add(path, f"gpu_kit/{path.relative_to(ROOT)}")
    size = archive.stat().st_size
    if size > LARGEST:
        archive.unlink()
        raise GatherFailed(
            f"the archive has {size / 2**20:.0f} MiB, more than {LARGEST / 2**20:.0f}: leave out more"
        )
    return size
