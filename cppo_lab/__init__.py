"""CPPO Lab: experiment management and ablations for CPPO (arXiv 2606.10968).

`cppo_lab.load("study")` reads results as pandas frames (docs/notebook.md); nothing else is imported before it is used.
"""

import importlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cppo_lab.sweep.results import Results, load

__version__ = "0.2.0"
__all__ = ["Results", "__version__", "load"]

# These folders stay at the top of the tree and belong to this package: a build puts them into it (package-dir in
# pyproject.toml). In a checkout they are found where they lie, installed or not.
PARTS = ("analysis", "conf", "reports", "sweeps")
PACKAGE_FOLDER = Path(__file__).parent
PARTS_FOLDER = PACKAGE_FOLDER
if not all((PACKAGE_FOLDER / name).is_dir() for name in PARTS):
    PARTS_FOLDER = PACKAGE_FOLDER.parent
    __path__.append(str(PARTS_FOLDER))


def __getattr__(name: str) -> Any:
    """`load` and `Results`, imported when they are first asked for: every command imports this package."""
    if name in ("load", "Results"):
        return getattr(importlib.import_module("cppo_lab.sweep.results"), name)  # noqa: TID251  a literal name
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
