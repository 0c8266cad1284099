"""import-linter and mypy: `python -m dev.lint [CHECK]`, in `make lint`.

They cannot know that `analysis` and `reports` at the top of the tree are `cppo_lab.analysis` and `cppo_lab.reports`. So
setup.py builds the package into build/lint, as for a wheel, and they check that copy; messages name the
original files.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from cppo_lab import PARTS

ROOT = Path(__file__).parents[1]
BUILT = Path("build", "lint")
# What mypy reads: packages, and the files of a folder that import each other as scripts do, by their names alone.
TYPED = ("cppo_lab", "dev", "benchmarks.summary", "benchmarks.gpu_kit")
SCRIPTS = "benchmarks"


def build() -> int:
    """Build the package into an empty `BUILT`; setuptools' exit status, which is not 0 if files are missing."""
    command = [sys.executable, "setup.py", "--quiet", "build_py", "--build-lib", str(BUILT)]
    shutil.rmtree(ROOT / BUILT, ignore_errors=True)
    done = subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True)
    if done.returncode:
        print(done.stderr or done.stdout, end="", file=sys.stderr)
    return done.returncode


def imports() -> int:
    """Run import-linter, which checks the package in its working folder; its exit status."""
    command = [str(Path(sys.executable).with_name("lint-imports")), "--config", str(ROOT / "pyproject.toml")]
    return subprocess.run([*command, "--no-cache", "--no-logo"], cwd=ROOT / BUILT, check=False).returncode


def types() -> int:
    """Run mypy, which prefers the built package over that of the checkout; its exit status."""
    scripts = [path.stem for path in sorted((ROOT / SCRIPTS).glob("*.py")) if path.stem != "summary"]
    wrong = False
    for option, names, path in (("-p", TYPED, f"{BUILT}"), ("-m", scripts, f"{BUILT}:{SCRIPTS}")):
        command = [sys.executable, "-m", "mypy", *(word for name in names for word in (option, name))]
        environment = os.environ | {"MYPYPATH": path}
        done = subprocess.run(
            command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True, check=False
        )
        print(in_the_tree(done.stdout), end="")
        wrong |= done.returncode != 0  # negative if a signal ended it
    return int(wrong)


def in_the_tree(messages: str) -> str:
    """Messages with the names of files in the tree in place of the built ones."""
    beside = "|".join(PARTS)
    return re.sub(rf"^{BUILT}/(cppo_lab/(?=({beside})/))?", "", messages, flags=re.MULTILINE)


CHECKS = {"imports": imports, "types": types}


def main(arguments: list[str] | None = None) -> int:
    """Runs the check that is named, or both; 0 if nothing is wrong."""
    parser = argparse.ArgumentParser(prog="python -m dev.lint", description="import-linter and mypy.")
    parser.add_argument("check", nargs="?", choices=CHECKS, help="default: both")
    check = parser.parse_args(arguments).check
    if status := build():
        return status
    statuses = [CHECKS[name]() for name in ([check] if check else CHECKS)]
    return int(any(statuses))


if __name__ == "__main__":
    sys.exit(main())
