"""Where the artifacts of a run are."""

from pathlib import Path

import pytest

from cppo_lab.store.address import artifact_folder


@pytest.mark.parametrize(
    ("artifact_uri", "path"),
    [
        ("file:///a%20b/artifacts", "/a b/artifacts"),
        ("file://localhost/a", "/a"),
        ("/a%20b", "/a%20b"),
        ("file://elsewhere/a", None),
        ("file://[a", None),
        ("mlflow-artifacts:/1/2/artifacts", None),
        ("s3://bucket/a", None),
        ("", None),
    ],
)
def test_which_artifacts_are_files_of_this_machine(artifact_uri: str, path: str | None) -> None:
    assert artifact_folder(artifact_uri) == (None if path is None else Path(path))
