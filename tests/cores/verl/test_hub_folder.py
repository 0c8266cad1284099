"""Files of a model that are copied from a folder of others, and what is said of those that are not."""

import errno
import os
from pathlib import Path

import pytest

from cppo_lab.cores.verl.hub_folder import copy_file, refusing
from cppo_lab.errors import UserError

pytestmark = pytest.mark.verl


def test_a_file_is_copied_up_to_its_limit(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "config.json").write_text("12345")
    copy_file(tmp_path, ("a", "config.json"), tmp_path / "copy", most=5)
    assert (tmp_path / "copy").read_text() == "12345"
    with pytest.raises(
        UserError, match=r"/a/config\.json has more than 4 bytes: it is not what verl writes there"
    ):
        copy_file(tmp_path, ("a", "config.json"), tmp_path / "other", most=4)
    assert not (tmp_path / "other").exists()


def test_a_large_file_is_linked_rather_than_copied(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    shard = tmp_path / "a" / "shard"
    shard.write_text("12345")
    copy_file(tmp_path, ("a", "shard"), tmp_path / "linked", link=True)
    assert (tmp_path / "linked").samefile(shard)


def test_a_file_on_another_file_system_is_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_args: object, **_options: object) -> None:
        raise OSError(errno.EXDEV, "Invalid cross-device link")

    monkeypatch.setattr(os, "link", refused)
    (tmp_path / "shard").write_text("12345")
    copy_file(tmp_path, ("shard",), tmp_path / "copy", link=True)
    assert (tmp_path / "copy").read_text() == "12345"
    assert not (tmp_path / "copy").samefile(tmp_path / "shard")


@pytest.mark.parametrize("link", [False, True])
def test_a_file_that_vanished_is_said(tmp_path: Path, link: bool) -> None:
    with pytest.raises(UserError, match=r"/a/shard no longer exists: try again"):
        copy_file(tmp_path, ("a", "shard"), tmp_path / "copy", link=link)
    assert list(tmp_path.iterdir()) == []


def test_an_error_of_the_disk_is_not_taken_for_a_broken_checkpoint() -> None:
    with pytest.raises(OSError, match="No space left on device"), refusing("the checkpoint is broken"):
        raise OSError(28, "No space left on device")
    with (
        pytest.raises(UserError, match=r"the checkpoint is broken: OSError: no file named config\.json"),
        refusing("the checkpoint is broken"),
    ):
        raise OSError("no file named\nconfig.json")  # as transformers raises it
