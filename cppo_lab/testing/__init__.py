"""Conformance tests for rules, cores and launchers, built-in ones and those of other packages.

Each consists of a class of tests, which pytest collects from a subclass, and a `check_...` function that calls them all
without pytest. The modules are imported on first use, since those of cores and launchers do not need torch.

Guarantees of this package:

- The tests check what the interfaces say and the product relies on, nothing of an implementation.
- A subclass names a record, and the few constants or overrides with which it is tested.
- The names in `__all__` are public, for other packages.

Begin with `rules.py`, `cores.py` or `launchers.py`. docs/extending.md shows a subclass of each.
"""

import importlib
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cppo_lab.testing.cores import CoreTests, check_core
    from cppo_lab.testing.launchers import LauncherTests, check_launcher
    from cppo_lab.testing.rules import (
        RuleTests,
        TokenBatch,
        check_rule,
        padded,
        random_batch,
        random_permutation,
    )

__all__ = [
    "CoreTests",
    "LauncherTests",
    "RuleTests",
    "TokenBatch",
    "check_core",
    "check_launcher",
    "check_rule",
    "padded",
    "random_batch",
    "random_permutation",
]
_MODULES = {
    "CoreTests": "cores",
    "check_core": "cores",
    "LauncherTests": "launchers",
    "check_launcher": "launchers",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    path = f"{__name__}.{_MODULES.get(name, 'rules')}"
    module = importlib.import_module(path)  # noqa: TID251  one of three literal names
    return getattr(module, name)


@contextmanager
def temporary_folder() -> Iterator[Path]:
    """A folder for the block."""
    with tempfile.TemporaryDirectory() as name:
        yield Path(name)


def call_all(kind: type, **attributes: Any) -> None:
    """Call the test methods of a class with these attributes."""
    tests = type("Checked", (kind,), attributes)()
    for name in dir(tests):
        if name.startswith("test_"):
            getattr(tests, name)()
