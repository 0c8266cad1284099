"""Builds and checks what a release uploads: `python -m dev.release`, or `make release-check`. Uploads nothing.

The version has to be the same wherever it is written; sdist and wheel are built without downloads (setup.py fails if
one leaves a file out) and checked as the package index does (`twine check --strict`): docs/packaging.md.
"""

import argparse
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

from dev.errors import DevError, run

ROOT = Path(__file__).parents[1]
BUILT = Path("build", "release")
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


def _run(module: str, *words: str) -> None:
    if subprocess.run([sys.executable, "-m", module, *words], cwd=ROOT, check=False).returncode:
        raise DevError(f"python -m {module} {' '.join(words)} failed: see above")


def main(arguments: list[str] | None = None) -> int:
    """Build and check; 0 if the files could be uploaded."""
    description = "Builds sdist and wheel and checks them; uploads nothing."
    argparse.ArgumentParser(prog="python -m dev.release", description=description).parse_args(arguments)
    written = version()
    shutil.rmtree(ROOT / BUILT, ignore_errors=True)
    _run("build", "--no-isolation", f"--outdir={BUILT}", ".")  # the wheel from the sdist
    files = sorted(path.relative_to(ROOT) for path in (ROOT / BUILT).iterdir())
    _run("twine", "check", "--strict", *map(str, files))
    print(f"cppo-lab {written}: {', '.join(map(str, files))}")
    print("The lists of files are compared with the tree in tests/test_wheel.py.")
    return 0


if __name__ == "__main__":
    run("dev.release", main, status=2)
