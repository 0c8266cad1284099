"""Configurations of runs that another machine trained, from the store."""

from pathlib import Path
from unittest.mock import Mock

import pytest
from mlflow.entities import Param, Run, RunData, RunInfo

from cppo_lab.tracking import lookup


@pytest.mark.parametrize(
    ("content", "found"),
    [(None, {"a": 1}), ("[", {"a": 1}), ("{}", {"a": 1}), ('{"whole": 1}', {"whole": 1})],
)
def test_a_configuration_is_the_artifact_or_the_parameters(
    tmp_path: Path, content: str | None, found: dict[str, int]
) -> None:
    path = tmp_path / "config.json"
    if content is not None:
        path.write_text(content)
    client = Mock(download_artifacts=Mock(side_effect=OSError if content is None else [str(path)]))
    run = Run(RunInfo("id", "1", "me", "FINISHED", 1, 2, "active"), RunData(params=[Param("a", "1")]))
    assert lookup._config(client, run) == found


def test_parameters_of_which_one_is_a_section_of_another() -> None:
    assert lookup.nested({"a.b": "1", "a.b.c": "5"}) == {"a": {"b": {"c": 5}}}
