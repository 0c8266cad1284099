"""Where the artifacts of a run are; who waits for a lock."""

import contextlib
import errno
from pathlib import Path
from unittest.mock import Mock, patch

import pytest

from cppo_lab.search.study import storage_url
from cppo_lab.tracking import address
from cppo_lab.tracking.address import artifact_folder
from tests.conftest import user_error


@pytest.mark.parametrize(
    "artifact_uri, path",
    {
        "file:///a%20b/artifacts": "/a b/artifacts",
        "file://localhost/a": "/a",
        "/a%20b": "/a%20b",
        "file://elsewhere/a": None,
        "file://[a": None,
        "s3://b/a": None,
        "": None,
        "file:///a%00b": None,
    }.items(),
)
def test_which_artifacts_are_files_of_this_machine(artifact_uri: str, path: str | None) -> None:
    for uri in ("http://host:5000", "sqlite:////nowhere/mlflow.db"):
        assert artifact_folder(artifact_uri, uri) == (path and Path(path))


@pytest.mark.parametrize(
    "folders, noted, place",
    [
        ("a b/mlartifacts/e", "a/mlartifacts/e/r/artifacts", "b/mlartifacts/e/r/artifacts"),
        ("a b", "a/mlartifacts/e/r/artifacts", "b/mlartifacts/e/r/artifacts"),  # moved without them
        ("a/mlartifacts/e/r/artifacts b/mlartifacts/e", "a/mlartifacts/e/r/artifacts", ""),  # they are there
        ("a/mlartifacts b", "a/mlartifacts/e/r/artifacts", ""),  # the user's own place
        ("mlartifacts/a b/mlartifacts/e", "mlartifacts/a/mlartifacts/e/r", "b/mlartifacts/e/r"),
        ("b/mlartifacts", "a/other/e/r/artifacts", ""),
        # Where nothing can be looked up, as in another account's home folder.
        ("b/mlartifacts/e", f"{'x' * 300}/mlartifacts/e/r", "b/mlartifacts/e/r"),
    ],
)
def test_artifacts_of_a_moved_store(tmp_path: Path, folders: str, noted: str, place: str) -> None:
    for folder in folders.split():
        (tmp_path / folder).mkdir(parents=True)
    uri = f"sqlite:///{tmp_path}/b/mlflow.db"
    assert artifact_folder((tmp_path / noted).as_uri(), uri) == tmp_path / (place or noted)
    assert artifact_folder((tmp_path / noted).as_uri(), "http://host:5000") == tmp_path / noted


@pytest.mark.parametrize(
    "name, why",
    [
        ("why?", "the `[?]` in its path would end it"),
        ("50%25", "the `%25` in its path would be read as another character"),
        ("d\udce9", "its path is not UTF-8"),
    ],
)
def test_a_working_folder_whose_name_no_store_can_have_is_named(
    workspace: Path, monkeypatch: pytest.MonkeyPatch, name: str, why: str
) -> None:
    (workspace / name).mkdir()
    monkeypatch.chdir(name)
    with user_error(f"/mlflow.db: {why}: work in another folder"):
        address.tracking_uri()
    with user_error(f"/optuna.db: {why}: work in another folder"):
        storage_url()


@patch("pathlib.Path.resolve", Mock(side_effect=RuntimeError("Symlink loop")))
def test_a_store_behind_a_circular_link_is_named(workspace: Path) -> None:
    with user_error("ring/x.db: a circular link: name a file"):
        address.tracking_uri("sqlite:///ring/x.db")


@pytest.mark.parametrize(
    "number, writable, enters",
    [
        (errno.EACCES, False, True),
        (errno.EROFS, False, True),
        (errno.ENOSPC, False, False),
        (errno.EACCES, True, False),
    ],
)
def test_who_cannot_write_there_goes_on_without_a_lock_and_any_other_failure_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, writable: bool, enters: bool
) -> None:
    monkeypatch.setattr("cppo_lab.tracking.address.open_lock", Mock(side_effect=OSError(number, "refused")))
    monkeypatch.setattr("cppo_lab.tracking.address.os.access", lambda path, mode: writable)
    inside = Mock()
    refused = contextlib.nullcontext() if enters else pytest.raises(OSError, match="refused")
    with refused, address.locked(tmp_path / "mlflow.db"):
        inside()
    assert inside.called == enters and list(tmp_path.iterdir()) == []
