"""The packages of a build, and its check: nothing of them is left out. All else is in pyproject.toml."""

import shutil
import tomllib
from pathlib import Path

from setuptools import find_packages, setup
from setuptools.command.build_py import build_py
from setuptools.errors import FileError

TREE = Path(__file__).parent
PROJECT = "cppo_lab"
SETTINGS = tomllib.loads((TREE / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["setuptools"]
FOLDERS: dict[str, str] = {PROJECT: PROJECT, **SETTINGS["package-dir"]}
NOT_SHIPPED = ("build", "__pycache__")  # reports that were written, and what Python has compiled


def packages() -> list[str]:
    """All packages, by the names under which they are imported.

    Raises:
        FileError: a folder is not in this tree.
    """
    found = []
    for name, folder in FOLDERS.items():
        if not any(shipped(TREE / folder)):
            raise FileError(f"{TREE / folder} is not there or is empty: get the whole tree, then build again")
        found += [name, *(f"{name}.{inner}" for inner in find_packages(str(TREE / folder)))]
    return found


def shipped(folder: Path) -> set[Path]:
    """The files below a folder that a wheel has, relative to it."""
    found = (path.relative_to(folder) for path in folder.rglob("*") if path.is_file())
    return {path for path in found if not any(part in NOT_SHIPPED or part[0] == "." for part in path.parts)}


class CheckedBuild(build_py):
    """Copies the packages, and fails unless every file of their folders has been copied."""

    def run(self) -> None:
        """Build.

        Raises:
            FileError: a file is in a folder of the tree, and not in what was built.
        """
        if self.editable_mode:
            super().run()
            return
        # Modules that are gone from the tree would stay from an earlier build, and be in the wheel.
        built = Path(self.build_lib)
        shutil.rmtree(built / PROJECT, ignore_errors=True)
        super().run()
        left_out = [
            str(Path(folder, path))
            for name, folder in FOLDERS.items()
            for path in sorted(shipped(TREE / folder))
            if not built.joinpath(*name.split("."), path).is_file()
        ]
        if left_out:
            raise FileError(
                f"the build leaves out {len(left_out)} files ({', '.join(left_out[:5])}): "
                "folders of Python files need an __init__.py, other files a line of package-data in pyproject.toml"
            )


setup(packages=packages(), cmdclass={"build_py": CheckedBuild})
