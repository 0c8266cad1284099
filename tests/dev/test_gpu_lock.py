"""The locks of GPU machines have every package that this project and verl's layouts ask for, in a permitted version. By
what the index has today they are solutions: complete, without a package too many, and what each locked package
requires of the others holds.
"""

import os
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from dev import lock_gpu
from dev.errors import DevError
from dev.lock import Pin, pins
from tests.requirement import INDEX

# The machine of the locks. `extra` is none: the extras of this project are listed by name.
MACHINE = {"python_version": "3.12", "python_full_version": "3.12.0", "sys_platform": "linux", "extra": ""}


def unmet(path: Path, locked: dict[str, Pin]) -> list[str]:
    """The packages of which a lock does not meet what it is resolved from, in order.

    An override keeps its package out. One that chose a version would hide what the other packages say of it: numba
    0.65 cannot be imported with the numpy 2.5 that verl's own override permits.
    """
    project = tomllib.loads((lock_gpu.ROOT / "pyproject.toml").read_text())["project"]
    extras = lock_gpu.EXTRAS.split(",")
    lines = [*project["dependencies"], *lock_gpu.REQUIREMENTS[path]]
    lines += [line for name in extras for line in project["optional-dependencies"][name]]
    overrides = {
        canonicalize_name(override.name): override for override in map(Requirement, lock_gpu.OVERRIDES)
    }
    wrong = {name for name, override in overrides.items() if name in locked or applies(override)}
    for wanted in map(Requirement, lines):
        name = canonicalize_name(wanted.name)
        if name == canonicalize_name(project["name"]):
            assert wanted.extras <= set(extras), f"{wanted}: an extra that lock_gpu.EXTRAS lacks"
        elif (
            applies(wanted)
            and name not in overrides
            and (name not in locked or locked[name].version not in wanted.specifier)
        ):
            wrong.add(name)
    return sorted(wrong)


def applies(requirement: Requirement) -> bool:
    return requirement.marker is None or requirement.marker.evaluate(MACHINE)


@pytest.mark.parametrize("path", lock_gpu.REQUIREMENTS, ids=lambda path: path.stem)
def test_the_locks_meet_what_is_asked_for(path: Path) -> None:
    locked = pins(path.read_text())
    assert unmet(path, locked) == [], "run `make lock-gpu`"
    wrong = {"pandas": Pin("1.0"), "verl": Pin("0.9.0"), "apex": Pin("0.1")}
    without = {name: pin for name, pin in locked.items() if name != "alembic"}
    assert unmet(path, without | wrong) == ["alembic", "apex", "pandas", "verl"]


def test_the_locks_are_of_one_day_and_have_hashes() -> None:
    texts = [path.read_text() for path in (*lock_gpu.REQUIREMENTS, lock_gpu.FLASH)]
    assert len({lock_gpu.until(text) for text in texts}) == 1
    assert all(pin.hashes for text in texts for pin in pins(text).values())
    with pytest.raises(DevError, match="run `make lock-gpu`"):
        lock_gpu.until("# Made by `make lock-gpu`\na==1\n")


@pytest.mark.slow
@pytest.mark.parametrize("path", lock_gpu.REQUIREMENTS, ids=lambda path: path.stem)
def test_the_locks_are_solutions(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent), prepend=os.pathsep)
    INDEX.demand()
    text = path.read_text()
    locked = pins(text) | pins(lock_gpu.FLASH.read_text())
    found = lock_gpu.resolved(lock_gpu.REQUIREMENTS[path], lock_gpu.until(text), locked)
    assert versions(found) == versions(locked), "run `make lock-gpu`"
    # As verl's own override gave it: numba, mistral-common and vLLM each have a limit below.
    with pytest.raises(DevError, match="numpy"):
        lock_gpu.resolved(lock_gpu.REQUIREMENTS[path], lock_gpu.until(text), locked | {"numpy": Pin("2.5.5")})


def versions(of: dict[str, Pin]) -> dict[str, str]:
    """Version by package; the files of a version may become more on an index."""
    return {name: pin.version for name, pin in of.items()}
