"""Links and pipes that somebody else has put where a run writes: nothing that they lead to is touched. A
folder of runs that everybody may write to is refused: its jobs would run whatever somebody puts there.
"""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from cppo_lab.cores.checkpoint import save_if_possible
from cppo_lab.errors import UserError
from cppo_lab.files import ANYBODY, open_append, open_lock, require_folder
from cppo_lab.runs.folder import cancel, read_status
from cppo_lab.spec import RunSpec
from tests.conftest import user_error
from tests.jobs import job

PRECIOUS = "mine"
# What a run of the embedded core writes into its folder, and what it is written as before it is whole.
WRITTEN = (
    "config.json",
    "config.yaml",
    "requirements.txt",
    "status.json",
    "cancelled",
    "checkpoint.pt",
    "best_model.pt",
)
TARGETS = [*WRITTEN, *(f"{name}.partial" for name in WRITTEN), "checkpoint.partial", "spool/shipped.json"]


def test_a_run_in_a_folder_of_links_overwrites_nothing(tmp_path: Path, tiny_spec: RunSpec) -> None:
    folder, elsewhere = tmp_path / "runs" / tiny_spec.run_id, tmp_path / "elsewhere"
    elsewhere.mkdir()
    for name in TARGETS:
        target = elsewhere / name.replace("/", "-")
        target.write_text(PRECIOUS)
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).symlink_to(target)
    job(tiny_spec, tmp_path / "runs", f"sqlite:///{tmp_path / 'mlflow.db'}").run()
    assert [path.name for path in elsewhere.iterdir() if path.read_text() != PRECIOUS] == []
    for name in ("config.json", "status.json", "requirements.txt"):
        assert not (folder / name).is_symlink() and (folder / name).stat().st_size > 10
    assert read_status(folder)["status"] == "done"


def test_a_lock_that_is_a_link_is_refused(tmp_path: Path, tiny_spec: RunSpec) -> None:
    folder, precious = tmp_path / "runs" / tiny_spec.run_id, tmp_path / "precious"
    folder.mkdir(parents=True)
    precious.write_text(PRECIOUS)
    (folder / "lock").symlink_to(precious)
    with user_error(r"lock is a link or not a plain file.*remove it"):
        job(tiny_spec, tmp_path / "runs", f"sqlite:///{tmp_path / 'mlflow.db'}").run()
    assert precious.read_text() == PRECIOUS


def test_who_cancels_a_run_writes_through_no_link(tmp_path: Path) -> None:
    precious, folder = tmp_path / "precious", tmp_path / "folder"
    precious.write_text(PRECIOUS)
    folder.mkdir()
    for name in ("cancelled", "cancelled.partial"):
        (folder / name).symlink_to(precious)
    cancel(folder)
    assert precious.read_text() == PRECIOUS and not (folder / "cancelled").is_symlink()
    assert [path.name for path in folder.iterdir()] == ["cancelled"]


def link(path: Path) -> None:
    path.symlink_to(path.with_name("precious"))


@pytest.mark.parametrize("put", [link, os.mkfifo, os.mkdir], ids=["link", "pipe", "folder"])
@pytest.mark.parametrize("opened", [open_lock, open_append])
def test_nothing_but_plain_files_is_opened_to_write(
    tmp_path: Path, put: Callable[[Path], None], opened: Callable[[Path], object]
) -> None:
    precious = tmp_path / "precious"
    precious.write_text(PRECIOUS)
    put(tmp_path / "file")
    with pytest.raises((UserError, IsADirectoryError)):
        opened(tmp_path / "file")
    assert precious.read_text() == PRECIOUS


def test_a_file_that_could_not_be_written_leaves_the_one_before(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("before")
    with pytest.raises(TypeError, match="generator"):
        save_if_possible(path, (one for one in ()), "it")
    assert path.read_text() == "before"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    "parent, runs, refused",
    [
        (0o755, 0o755, ""),
        (0o775, 0o2775, ""),  # shared with a group
        (0o1777, 0o755, ""),  # below /tmp
        (0o1777, None, ""),
        (0o755, 0o777, "runs"),
        (0o755, 0o1777, "runs"),
        (0o777, None, "parent"),
    ],
)
def test_who_may_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, parent: int, runs: int | None, refused: str
) -> None:
    monkeypatch.delenv(ANYBODY, raising=False)
    folder = tmp_path / "parent" / "runs"
    folder.parent.mkdir()
    if runs is not None:
        folder.mkdir()
        folder.chmod(runs)
    folder.parent.chmod(parent)
    if not refused:
        require_folder(folder)
        return
    with user_error(rf"{refused} is writable for every user.*chmod o-w"):
        require_folder(folder)
    monkeypatch.setenv(ANYBODY, "1")
    require_folder(folder)
