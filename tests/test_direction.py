"""Every room has its contract in pyproject.toml, by which import-linter (make lint) checks who imports it."""

import tomllib
from pathlib import Path

from cppo_lab import PARTS
from dev.rooms import EVERYWHERE

ROOT = Path(__file__).parent.parent
# Below the rooms: may be imported everywhere, and import no room.
BELOW = {"__init__", *EVERYWHERE}


def test_every_room_has_a_contract() -> None:
    """import-linter passes over a module that no contract names."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"]
    protected = {name for contract in settings["contracts"] for name in contract["protected_modules"]}
    modules = {path.stem for path in (ROOT / "cppo_lab").glob("*.py")}
    packages = {path.parent.name for path in ROOT.glob("cppo_lab/*/__init__.py")}
    packages |= {name for name in PARTS if (ROOT / name / "__init__.py").is_file()}
    assert {"maths", "analysis", "reports"} <= packages
    rooms = {f"cppo_lab.{room}" for room in (modules | packages) - BELOW}
    named = {name for name in protected if name.startswith("cppo_lab.") and name.count(".") == 1}
    assert rooms == named, (
        "give it a contract in [tool.importlinter], and a place among those of what it imports"
    )
