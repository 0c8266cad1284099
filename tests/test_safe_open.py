"""Files and folders that cannot be opened: which count as missing, and which are an error."""

import errno
import subprocess
import sys
from pathlib import Path

import pytest

from cppo_lab.errors import UserError
from cppo_lab.files import is_shared, names_below, open_below, open_plain

TOO_LONG = "x" * 300  # no file system takes such a name, whoever asks


def test_a_path_that_leads_nowhere_is_no_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("content")
    (tmp_path / "circle").symlink_to(tmp_path / "circle")
    for name in ("none", "file/none", "circle"):
        assert open_plain(tmp_path / name) is None
    assert open_below(tmp_path, "none") is None
    assert open_below(tmp_path, "file", "none") is None
    assert open_below(tmp_path / "none", "file") is None
    assert names_below(tmp_path / "none") == []


def test_a_path_that_cannot_be_opened_is_an_error_and_not_a_missing_file(tmp_path: Path) -> None:
    for attempt in (
        lambda: open_plain(tmp_path / TOO_LONG),
        lambda: open_below(tmp_path, TOO_LONG),
        lambda: open_below(tmp_path, TOO_LONG, "file"),
        lambda: open_below(tmp_path / TOO_LONG, "file"),
        lambda: names_below(tmp_path, TOO_LONG),
    ):
        with pytest.raises(OSError, match="File name too long") as caught:
            attempt()
        assert caught.value.errno == errno.ENAMETOOLONG


def test_no_descriptor_is_left_open_by_a_path_that_cannot_be_opened(tmp_path: Path) -> None:
    """In a process of its own: threads of this one may open files at any time."""
    (tmp_path / "folder").mkdir()
    code = f"""
import os
from pathlib import Path
from cppo_lab.files import open_below
before, refused = os.listdir("/proc/self/fd"), 0
for names in (("folder", {TOO_LONG!r}), ({TOO_LONG!r}, "file"), ("folder", "none"), ("none", "file")):
    try:
        assert open_below(Path(), *names) is None
    except OSError:
        refused += 1
print(refused, os.listdir("/proc/self/fd") == before)
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert done.stdout == "2 True\n", done.stderr


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "/etc"])
def test_a_name_that_leaves_its_folder_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "b").mkdir()
    with pytest.raises(ValueError, match="must be names within a folder"):
        names_below(tmp_path, name)
    with pytest.raises(ValueError, match="must be names within a folder"):
        open_below(tmp_path, name, "file")


def test_a_link_on_the_way_is_named(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "file").write_text("content")
    (tmp_path / "link").symlink_to(tmp_path / "real")
    with pytest.raises(UserError, match=r"/link is a link or not a plain file.*: remove it"):
        open_below(tmp_path, "link", "file")


def test_a_folder_that_is_not_there_is_not_shared(tmp_path: Path) -> None:
    tmp_path.chmod(0o770)
    assert is_shared(tmp_path)
    assert not is_shared(tmp_path / "none")
