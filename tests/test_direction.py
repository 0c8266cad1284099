"""The rooms may depend on each other in one direction only, and each heavy library has one home."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
BASE = {
    "errors",
    "history",
    "interruption",
    "lock",
    "plain_file",
    "redaction",
    "schema",
    "store",
    "stored_runs",
    "__init__",
    "__version__",
}
# Room -> the rooms it may import from (besides itself and BASE).
ALLOWED = {
    "maths": set(),
    "spec": set(),
    "parse": {"spec"},
    "cores": {"maths", "spec", "parse", "data"},
    "tracking": {"spec"},
    "run": {"spec", "cores", "tracking"},
    "launch": {"spec", "parse", "tracking", "run"},
    "estimate": {"spec"},
    "sweep": {"spec", "parse", "estimate", "tracking", "run", "launch"},
    "monitor": {"spec", "tracking", "run", "launch", "sweep"},
    "analysis": set(),
    "reports": {"analysis"},
    "calculator": {"maths"},
    "vectors": {"maths"},
    "illustration": {"maths"},
    "data": set(),
    "doctor": {"spec", "estimate", "sweep", "tracking", "data", "cores"},
    "cli": {
        *(
            "spec",
            "sweep",
            "monitor",
            "tracking",
            "analysis",
            "reports",
            "calculator",
            "vectors",
            "data",
            "doctor",
        ),
        "cores",  # verl's configuration of a run, for `cppo show --verl`
    },
}
# Library -> path prefixes below the root where it may be imported.
HOMES = {
    "hydra": ["cppo_lab/sweep/compose/through_hydra.py", "cppo_lab/cores/verl/"],
    "omegaconf": ["cppo_lab/sweep/compose/through_hydra.py", "cppo_lab/cores/verl/"],
    "submitit": ["cppo_lab/launch/"],
    "optuna": ["cppo_lab/sweep/search/"],
    "matplotlib": ["reports/figures/"],
    "mlflow": [
        "cppo_lab/tracking/",
        "cppo_lab/stored_runs.py",
        "analysis/reader.py",
        "analysis/listing.py",
        "analysis/histories.py",
        "analysis/run_versions.py",
        "analysis/artifacts.py",
    ],
    "torch": [
        "cppo_lab/maths/",
        "cppo_lab/cores/",
        "cppo_lab/vectors/",
        "cppo_lab/illustration.py",
        "cppo_lab/doctor/",
    ],
    "verl": ["cppo_lab/cores/verl/"],
    "ray": ["cppo_lab/cores/verl/"],
    "transformers": ["cppo_lab/cores/verl/"],
    "tokenizers": ["cppo_lab/cores/verl/"],
    "tensordict": ["cppo_lab/cores/verl/"],
    "transfer_queue": ["cppo_lab/cores/verl/"],
    "pandas": ["analysis/", "reports/"],
    "pyarrow": ["cppo_lab/data/"],
    "psutil": ["cppo_lab/tracking/system.py", "cppo_lab/cores/verl/"],
    "pynvml": ["cppo_lab/tracking/nvidia.py"],
    "math_verify": ["cppo_lab/data/grader_child.py"],
    "huggingface_hub": ["cppo_lab/data/sources.py"],
}
SOURCES = sorted(
    path
    for folder in ("cppo_lab", "analysis", "reports")
    for path in (ROOT / folder).rglob("*.py")
    if path.relative_to(ROOT).parts[:2] not in (("cppo_lab", "analysis"), ("cppo_lab", "reports"))
)


def room(parts: tuple[str, ...]) -> str:
    """The room of a module path such as ("cppo_lab", "sweep", "plan") or ("analysis", "reader")."""
    inner = parts[1:] if parts[0] == "cppo_lab" else parts
    return inner[0].removesuffix(".py") if inner else "__init__"


def imports(path: Path) -> list[str]:
    """Dotted names of all modules that a file imports, at its top or inside a function."""
    names = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names += [f"{node.module}.{alias.name}" for alias in node.names]
    return names


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_follow_the_direction(path: Path) -> None:
    here = room(path.relative_to(ROOT).parts)
    place = str(path.relative_to(ROOT))
    for name in imports(path):
        parts = tuple(name.split("."))
        if parts[0] == "cppo_lab" and here not in BASE:
            assert room(parts) in ALLOWED[here] | {here} | BASE, f"{place} imports {name}"
        homes = HOMES.get(parts[0])
        assert homes is None or place.startswith(tuple(homes)), f"{place} imports {parts[0]}"


def test_every_room_is_listed() -> None:
    rooms = {room(path.relative_to(ROOT).parts) for path in SOURCES} - BASE
    assert rooms <= set(ALLOWED)
    assert len(SOURCES) > 20
