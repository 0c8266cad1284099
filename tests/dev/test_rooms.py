"""The picture of the rooms is that of the imports, and no files import each other in a circle."""

from pathlib import Path

from dev.rooms import PICTURE, arrows, circles, imports, modules, picture, room


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
