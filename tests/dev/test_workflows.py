"""GitHub's workflows: what they run is here, actions are pinned by major version, nothing may write."""

import re
from pathlib import Path

import pytest
import yaml

from tests.conftest import ROOT

WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_what_they_run_is_here_and_nothing_may_write(path: Path) -> None:
    workflow = yaml.safe_load(path.read_text())
    steps = [step for job in workflow["jobs"].values() for step in job["steps"]]
    commands = "\n".join(step.get("run", "") for step in steps)
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    made = set(re.findall(r"^make ([\w-]+)", commands, re.MULTILINE))
    assert made and made <= targets
    for name in re.findall(r"(?:^| )(\.ci/\S+)", commands, re.MULTILINE):
        assert (ROOT / name).stat().st_mode & 0o111
    for step in steps:
        for name in step.get("with", {}).get("cache-dependency-path", "").split():
            assert (ROOT / name).is_file()
    actions = [step["uses"] for step in steps if "uses" in step]
    assert actions and all(re.fullmatch(r"actions/[\w-]+@v[0-9]+", action) for action in actions)
    assert workflow["permissions"] == {"contents": "read"}
    assert all("timeout-minutes" in job for job in workflow["jobs"].values())


def test_the_pythons_are_those_that_the_project_names() -> None:
    assert [path.name for path in WORKFLOWS] == ["ci.yml", "docs.yml"]
    matrix = yaml.safe_load(WORKFLOWS[0].read_text())["jobs"]["fast"]["strategy"]["matrix"]
    named = re.findall(r"Python :: (3\.\d+)", (ROOT / "pyproject.toml").read_text())
    assert matrix["python"] == named
