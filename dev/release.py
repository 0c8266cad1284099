"""Builds and checks what a release uploads: `python -m dev.release`, or `make release-check`. Uploads nothing.

The version has to be the same wherever it is written; sdist and wheel are built without downloads (setup.py fails if
one leaves a file out) and checked as the package index does (`twine check --strict`): docs/packaging.md.
"""

import argparse
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from importlib.util import find_spec
from pathlib import Path

from dev.errors import DevError

ROOT = Path(__file__).parents[1]
BUILT = Path("build", "release")
NEEDS = ("build", "twine", "setuptools")
# Where else the version is, as a pattern with one group.
PLACES = {
    "cppo_lab/__init__.py": r'^__version__ = "([^"]+)"',
    "CITATION.cff": r"^version: \"?([^\"\s]+)",
    "CHANGELOG.md": r"^## \[(?:Unreleased\]: )?([0-9][^\]\s]*)",
}


def version(root: Path = ROOT) -> str:
    """The version of pyproject.toml.

    Raises:
        DevError: another file has no version, or a different one.
    """
    found: str = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    for name, pattern in PLACES.items():
        written = re.search(pattern, (root / name).read_text(encoding="utf-8"), re.MULTILINE)
        if written is None or written[1] != found:
            other = "no version" if written is None else f"version {written[1]}"
            raise DevError(f"{name} has {other}, pyproject.toml {found}: write the same in both")
    return found


def build(root: Path, out: Path) -> list[Path]:
    """Build sdist and, from it, wheel into the folder `out`, which is recreated.

    Raises:
        DevError: a build package is not installed, or the build fails.
    """
    if missing := [name for name in NEEDS if find_spec(name) is None]:
        raise DevError(f"not installed: {', '.join(missing)}: make release-check")
    shutil.rmtree(out, ignore_errors=True)
    _run(root, "build", "--no-isolation", "--outdir", str(out), ".")
    return sorted(out.iterdir())


def count(built: Path) -> int:
    """How many files an sdist or a wheel has."""
    if built.suffix == ".whl":
        with zipfile.ZipFile(built) as wheel:
            return sum(not entry.is_dir() for entry in wheel.infolist())
    with tarfile.open(built) as sdist:
        return sum(entry.isfile() for entry in sdist)


def _run(root: Path, module: str, *words: str) -> None:
    if subprocess.run([sys.executable, "-m", module, *words], cwd=root, check=False).returncode:
        raise DevError(f"python -m {module} {' '.join(words)} failed: see above")


def main(arguments: list[str] | None = None) -> int:
    """Build and check; 0 if the files could be uploaded."""
    description = "Builds sdist and wheel and checks them; uploads nothing."
    argparse.ArgumentParser(prog="python -m dev.release", description=description).parse_args(arguments)
    try:
        found = version()
        files = build(ROOT, ROOT / BUILT)
        _run(ROOT, "twine", "check", "--strict", *map(str, files))
    except DevError as error:
        print(f"dev.release: {error}", file=sys.stderr)
        return 2
    print(f"cppo-lab {found}: {', '.join(f'{BUILT / path.name} ({count(path)} files)' for path in files)}")
    print("The lists of files are compared with the tree in tests/test_wheel.py.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
