"""A cache of compositions for all commands on this machine: without it a plan of 28 runs needs 28 compositions, or
three seconds.

Each combination of group choices has one file under `cppo-lab/compositions/` of the cache (see `cppo_lab.file_cache`).
It is valid while conf/ and the versions of this package, Hydra and OmegaConf are unchanged. Choices from other packages
are not cached.
"""

import hashlib
import json
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

from cppo_lab import __version__
from cppo_lab.file_cache import FileCache
from cppo_lab.sweep.compose.through_hydra import composed
from cppo_lab.sweep.groups import CONF, shipped

FOLDER = Path("cppo-lab/compositions")
FORMAT = "1"  # to be changed when `composed` gives a different result for the same files
LARGEST = 1 << 20  # bytes of one composition; they have about 5,000
MOST_BYTES = 32 << 20  # of all


def composed_before(choices: tuple[str, ...]) -> dict[str, Any]:
    """The composition of these group choices, with `${...}` unresolved.

    Raises UserError for an unknown choice.
    """
    if any(_of_another_package(choice) for choice in choices):
        return composed(choices, resolved=False)  # its configuration is in another package's code
    files, key = FileCache(FOLDER), _fingerprint(_conf_files())
    name = Path(key[:16], hashlib.sha256(json.dumps(choices).encode()).hexdigest()[:32])
    if (content := files.get(name, key, LARGEST)) is not None and (tree := _parsed(content)) is not None:
        return tree
    tree = composed(choices, resolved=False)
    content = json.dumps(tree).encode()
    if _parsed(content) == tree:  # only if JSON preserves it: no tuples, no non-string keys
        files.put(name, key, content)
        _prune()
    return tree


@cache
def _prune() -> None:
    """Prune once per process: a plan caches some thirty compositions, and every prune scans the whole folder."""
    FileCache(FOLDER).prune(MOST_BYTES)


def _parsed(content: bytes) -> dict[str, Any] | None:
    """The parsed file; None if it was truncated or changed."""
    try:
        tree = json.loads(content)
    except (ValueError, RecursionError):
        return None
    return tree if isinstance(tree, dict) and {"core", "rule"} <= tree.keys() else None


def _of_another_package(choice: str) -> bool:
    """Whether it chooses a core, launcher or rule of another package."""
    group, _, option = choice.partition("=")
    return option not in shipped().get(group, ())


@cache
def _conf_files() -> str:
    """The names and contents of all files in conf/, as one hash."""
    found = hashlib.sha256()
    for path in sorted(CONF.rglob("*.yaml")):
        content = path.read_bytes()
        found.update(f"{path.relative_to(CONF)} {len(content)}\n".encode() + content)
    return found.hexdigest()


@cache
def _fingerprint(*parts: str) -> str:
    """A hash that changes with everything that could change a composition."""
    versions = [FORMAT, __version__, version("hydra-core"), version("omegaconf")]
    return hashlib.sha256(json.dumps([*versions, *parts]).encode()).hexdigest()
