"""The picture of the rooms is that of the imports, and no files import each other in a circle."""

import ast
import re
from pathlib import Path

import pytest

from dev.rooms import PICTURE, ROOT, arrows, circles, imports, modules, picture, room


def test_the_picture_is_up_to_date() -> None:
    assert PICTURE.read_text() == picture(modules()), "run `python3 -m dev.rooms`"


def test_no_files_import_each_other_in_a_circle() -> None:
    assert circles(modules()) == []


def test_a_circle_is_found_wherever_the_import_stands(tmp_path: Path) -> None:
    folder = tmp_path / "cppo_lab"
    folder.mkdir()
    (folder / "__init__.py").write_text("")
    (folder / "one.py").write_text("from cppo_lab import two\n")
    (folder / "two.py").write_text(
        "from typing import TYPE_CHECKING\n\n"
        "if TYPE_CHECKING:\n    from cppo_lab.three import Three\n\n"
        "def late() -> None:\n    from cppo_lab.one import thing\n"
    )
    (folder / "three.py").write_text("import cppo_lab.one\n")
    known = modules(tmp_path)
    assert set(known) == {"cppo_lab", "cppo_lab.one", "cppo_lab.two", "cppo_lab.three"}
    assert circles(known) == [["cppo_lab.one", "cppo_lab.two"]]
    assert list(imports(known["cppo_lab.two"], known)) == [("cppo_lab.one", True)]
    assert arrows(known) == {"one": {"two"}, "two": {"one"}, "three": {"one"}}
    assert room("cppo_lab.tracking.spool") == "tracking"


# Packages within a room that are small parts of it.
PARTS_OF_ROOMS = {
    "cppo_lab",
    "cppo_lab.cores.mini.tasks",
    "cppo_lab.cores.verl.rollout",
    "cppo_lab.reports.answers",
}
ROOMS = [
    name for name, path in modules().items() if path.name == "__init__.py" and name not in PARTS_OF_ROOMS
]


@pytest.mark.parametrize("name", ROOMS)
def test_every_room_has_a_first_page(name: str) -> None:
    """Six lines or more, which name files of the room to begin with, and none that is not there."""
    path = modules()[name]
    page = ast.get_docstring(ast.parse(path.read_text())) or ""
    assert len(page.splitlines()) >= 6
    assert "egin with" in page
    named = re.findall(r"`([\w/]+(?:\.py|/))`", page)
    assert named or "below" in page
    for file in named:
        assert any((folder / file).exists() for folder in (path.parent, ROOT)), file
