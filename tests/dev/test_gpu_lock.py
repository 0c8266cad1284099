"""The locks of GPU machines have every package that this project and verl's layouts ask for, in a permitted version."""

import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from dev import lock_gpu
from dev.errors import DevError
from dev.lock import Pin, canonical, pins

# The machine of the locks. `extra` is none: the extras of this project are listed by name.
MACHINE = {"python_version": "3.12", "python_full_version": "3.12.0", "sys_platform": "linux", "extra": ""}


def _requirements(path: Path) -> dict[str, list[Requirement]]:
    """By package: what the lock at `path` is resolved from. An override takes the place of what it overrides."""
    project = tomllib.loads((lock_gpu.ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = lock_gpu.EXTRAS.split(",")
    lines = [
        *project["dependencies"],
        *(one for name in extras for one in project["optional-dependencies"][name]),
    ]
    found: dict[str, list[Requirement]] = {}
    for wanted in map(Requirement, (*lines, *lock_gpu.REQUIREMENTS[path])):
        if canonical(wanted.name) == canonical(project["name"]):
            assert wanted.extras <= set(extras), f"{wanted}: an extra that lock_gpu.EXTRAS lacks"
        elif wanted.marker is None or wanted.marker.evaluate(MACHINE):
            found.setdefault(canonical(wanted.name), []).append(wanted)
    return found | {canonical(one.name): [one] for one in map(Requirement, lock_gpu.OVERRIDES)}


def _unmet(path: Path, locked: dict[str, Pin]) -> list[str]:
    """The requirements that a lock does not meet."""
    overridden = {canonical(Requirement(line).name) for line in lock_gpu.OVERRIDES}
    return [
        str(wanted)
        for name, requirements in sorted(_requirements(path).items())
        for wanted in requirements
        if not _met(wanted, locked.get(name), asked_for=name not in overridden)
    ]


def _met(wanted: Requirement, pin: Pin | None, *, asked_for: bool) -> bool:
    """An override asks for no package of its own; one whose marker is false keeps the package out."""
    if wanted.marker is not None and not wanted.marker.evaluate(MACHINE):
        return pin is None
    return not asked_for if pin is None else pin.version in wanted.specifier


@pytest.mark.parametrize("path", lock_gpu.REQUIREMENTS, ids=lambda path: path.stem)
def test_the_locks_meet_what_is_asked_for(path: Path) -> None:
    locked = pins(path.read_text(encoding="utf-8"))
    assert _unmet(path, locked) == [], "run `make lock-gpu`"
    assert len(_requirements(path)) > 20
    assert all(pin.hashes for pin in locked.values())


def test_a_lock_that_lacks_something_is_found() -> None:
    locked = pins(lock_gpu.FSDP.read_text(encoding="utf-8"))
    locked["pandas"] = Pin("1.0")
    locked["transformers"] = Pin("4.0")
    locked["apex"] = Pin("0.1")
    del locked["alembic"]
    unmet = [Requirement(one).name for one in _unmet(lock_gpu.FSDP, locked)]
    assert unmet == ["alembic", "apex", "pandas", "transformers"]


def test_the_locks_are_of_one_day() -> None:
    texts = [path.read_text(encoding="utf-8") for path in (*lock_gpu.REQUIREMENTS, lock_gpu.FLASH)]
    assert len({lock_gpu.until(text) for text in texts}) == 1


def test_a_lock_without_its_date_is_refused() -> None:
    with pytest.raises(DevError, match="run `make lock-gpu`"):
        lock_gpu.until("# Made by `make lock-gpu`\na==1\n")
