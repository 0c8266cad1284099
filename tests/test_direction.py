"""What is particular to a core or launcher is in its record: no other file asks for its name."""

import ast
from pathlib import Path

from cppo_lab.core_records import BUILT_IN
from cppo_lab.launch.launchers import LAUNCHERS
from tests.conftest import ROOT

NAMES = frozenset({*BUILT_IN, *LAUNCHERS})
AMBIGUOUS = {"exact"}  # also an estimator of divergences: counts where a core is spoken of
RECORDS = "cppo_lab/core_records.py"


def named(path: Path) -> list[str]:
    """Where a file compares something with one of the names, or has it as a key of a table."""
    lines = []
    for node in ast.walk(ast.parse(path.read_text())):
        parts: list[ast.expr | None] = []
        if isinstance(node, ast.Compare):
            for side in (node.left, *node.comparators):
                parts += side.elts if isinstance(side, ast.Tuple | ast.List | ast.Set) else [side]
        elif isinstance(node, ast.Dict):
            parts += node.keys
        elif isinstance(node, ast.MatchValue):
            parts.append(node.value)
        found = [part for part in parts if isinstance(part, ast.Constant) and part.value in NAMES]
        if found and (isinstance(node, ast.Dict) or "core" not in ast.unparse(node)):
            found = [part for part in found if part.value not in AMBIGUOUS]
        lines += [part.lineno for part in found]
    return [f"{path.relative_to(ROOT)}:{line}" for line in lines]


def test_no_file_compares_the_name_of_a_core_or_launcher() -> None:
    """What is particular to one is in its record. `EXTRAS` names the extra `verl` of pyproject.toml."""
    files = {
        path.relative_to(ROOT).as_posix(): path
        for folder in ("cppo_lab", "analysis", "reports")
        for path in (ROOT / folder).rglob("*.py")
        if "build" not in path.parts
    }
    assert {name.partition("/")[0] for name in files} == {"cppo_lab", "analysis", "reports"}
    assert named(files.pop(RECORDS))  # where the names do stand, they are found
    assert [place for path in files.values() for place in named(path)] == []
