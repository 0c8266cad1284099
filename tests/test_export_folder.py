"""The folder of an export: what stays if it cannot be put in its place, and which leftovers are not touched."""

import errno
from pathlib import Path

import pytest

from cppo_lab.export.folder import appearing, require_free


def test_a_folder_that_cannot_be_put_in_its_place_leaves_the_old_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "model"
    place.mkdir()
    (place / "file").write_text("old")
    rename = Path.rename

    def full(path: Path, target: Path) -> Path:
        if target == place and (path / "file").read_text() == "new":  # the old folder has been moved away
            raise OSError(errno.ENOSPC, "No space left on device")
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", full)
    with pytest.raises(OSError, match="No space"), appearing(place, replace=True) as folder:
        (folder / "file").write_text("new")
    assert [path.name for path in tmp_path.iterdir()] == ["model"]
    assert (place / "file").read_text() == "old"


def test_only_folders_are_removed_as_leftovers(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "file").write_text("kept")
    (tmp_path / ".model.export-0123abcd").symlink_to(tmp_path / "mine")
    (tmp_path / ".model.export-01234567").write_text("a file of somebody")
    (tmp_path / ".model.export-89abcdef").mkdir()  # of an export that was killed
    with appearing(require_free(tmp_path / "model")) as folder:
        (folder / "file").write_text("new")
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        ".model.export-01234567",
        ".model.export-0123abcd",
        "mine",
        "model",
    ]
    assert (tmp_path / "mine" / "file").read_text() == "kept"
