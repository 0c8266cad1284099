"""Imports of our modules inside functions that save no heavy library (`python -m dev.lint late`)."""

import ast
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from dev.rooms import statements, targets

# Libraries whose import takes 30 ms of processor time or more.
HEAVY = frozenset(
    {
        *("alembic", "hydra", "jinja2", "math_verify", "matplotlib", "megatron", "mlflow", "numpy"),
        *("omegaconf", "optuna", "pandas", "pyarrow", "pydantic", "ray", "scipy", "sqlalchemy", "submitit"),
        *("tensordict", "torch", "transfer_queue", "transformers", "verl", "vllm"),
    }
)
# Every command loads the parser, and the module of its function. Functions of this room may also import what not every
# command loads: all of those files at the top would cost each command 73 ms of processor time, and what the commands
# share costs 68 ms.
COMMANDS = "cppo_lab.cli"
# Loaded only where there is a record of Slurm jobs, so that `cppo status` reads a dozen files elsewhere.
SELDOM = "cppo_lab.launch.slurm"


@dataclass(frozen=True)
class Imports:
    """What each module imports when it is loaded, and what its functions import."""

    known: Mapping[str, Path]
    at_top: dict[str, set[str]] = field(default_factory=dict)
    inside: dict[str, list[tuple[int, str]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, path in self.known.items():
            self.at_top[name], self.inside[name] = set(), []
            for node, late in statements(ast.parse(path.read_text()).body):
                for target in targets(node, self.known):
                    if not late:
                        self.at_top[name].add(target)
                    elif target in self.known:
                        self.inside[name].append((node.lineno, target))

    def loaded(self, *names: str) -> set[str]:
        """All modules that are loaded with `names`: ours, and what these import at once of other packages."""
        found: set[str] = set()
        left = list(names)
        while left:
            name = left.pop()
            if name not in found:
                found.add(name)
                left += [*self.at_top.get(name, ()), *(_packages(name) if name in self.known else ())]
        return found


def _packages(name: str) -> Iterable[str]:
    parts = name.split(".")
    return (".".join(parts[:end]) for end in range(1, len(parts)))


def _heavy(names: set[str]) -> set[str]:
    return {name.partition(".")[0] for name in names} & HEAVY


def needless(known: Mapping[str, Path]) -> list[tuple[Path, int, str]]:
    """The imports in functions that belong at the top: file, line, and the module that is imported."""
    imports = Imports(known)
    found = []
    for name, path in imports.known.items():
        command = name == COMMANDS or name.startswith(f"{COMMANDS}.")
        before = imports.loaded(name, COMMANDS) if command else imports.loaded(name)
        for line, target in imports.inside[name]:
            if target == SELDOM or target.startswith(f"{SELDOM}."):
                continue
            after = imports.loaded(target)
            own_files = {one for one in after - before if one in imports.known} if command else set()
            if not (_heavy(after) - _heavy(before) or own_files):
                found.append((path, line, target))
    return found
