"""CPPO Lab: experiment management and ablations for CPPO (arXiv 2606.10968)."""

from pathlib import Path

__version__ = "0.1.0"

# These folders stay at the top of the tree and belong to this package: a build puts them into it (package-dir in
# pyproject.toml). In a checkout they are found where they lie, installed or not.
PARTS = ("analysis", "conf", "reports", "sweeps")
PACKAGE_FOLDER = Path(__file__).parent
PARTS_FOLDER = PACKAGE_FOLDER
if not all((PACKAGE_FOLDER / name).is_dir() for name in PARTS):
    PARTS_FOLDER = PACKAGE_FOLDER.parent
    __path__.append(str(PARTS_FOLDER))
