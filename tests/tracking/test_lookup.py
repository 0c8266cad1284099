"""Configurations of runs that another machine trained, from the store."""

from pathlib import Path
from unittest.mock import Mock

import pytest

from cppo_lab.store.records import StoredRun
from cppo_lab.tracking import lookup


@pytest.mark.parametrize(
    ("artifact_uri", "found"),
    [("", {"a": 1}), ("http://[x", {"a": 1}), ("file://[x", {"a": 1}), ("{}/a#b/q?x", {"whole": 1})],
)  # fmt: skip
def test_a_configuration_is_the_artifact_or_the_parameters(
    tmp_path: Path, artifact_uri: str, found: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "cppo_lab.store.client.open_client", lambda uri: Mock(download_artifacts=Mock(side_effect=OSError))
    )
    folder = tmp_path / "a#b" / "q?x"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text('{"whole": 1}')
    run = StoredRun("id", artifact_uri.format(tmp_path), {}, {"a": "1"})
    assert lookup._config("sqlite:///x", run) == found


def test_parameters_of_which_one_is_a_section_of_another() -> None:
    assert lookup.nested({"a.b": "1", "a.b.c": "5"}) == {"a": {"b": {"c": 5}}}
