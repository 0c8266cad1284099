"""Every room has a first page, which says what it guarantees and where to begin."""

import ast
import re

import pytest

from tests.conftest import ROOT

# Packages within a room that are small parts of it.
PARTS_OF_ROOMS = {"cppo_lab", "cppo_lab/cores/verl/rollout", "reports/answers"}
PAGES = {
    path.parent.relative_to(ROOT).as_posix(): path
    for room in ("cppo_lab", "analysis", "reports")
    for path in (ROOT / room).rglob("__init__.py")
}


@pytest.mark.parametrize("name", sorted(PAGES.keys() - PARTS_OF_ROOMS))
def test_every_room_has_a_first_page(name: str) -> None:
    """Six lines or more, which name files of the room to begin with, and none that is not there."""
    path = PAGES[name]
    page = ast.get_docstring(ast.parse(path.read_text())) or ""
    assert len(page.splitlines()) >= 6
    assert "egin with" in page
    named = re.findall(r"`([\w/]+(?:\.py|/))`", page)
    assert named or "below" in page
    for file in named:
        assert any((folder / file).exists() for folder in (path.parent, ROOT)), file
