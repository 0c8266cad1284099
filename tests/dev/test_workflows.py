"""GitHub's workflows: what they run is here, actions are pinned by major version, nothing may write."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))


def steps(workflow: dict[str, Any]) -> list[dict[str, Any]]:
    return [step for job in workflow["jobs"].values() for step in job["steps"]]


@pytest.fixture(params=WORKFLOWS, ids=lambda path: path.name)
def workflow(request: pytest.FixtureRequest) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(request.param.read_text(encoding="utf-8"))
    return found


def test_there_are_two() -> None:
    assert [path.name for path in WORKFLOWS] == ["ci.yml", "docs.yml"]


def test_what_they_run_is_here(workflow: dict[str, Any]) -> None:
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    commands = "\n".join(step.get("run", "") for step in steps(workflow))
    made = set(re.findall(r"^make ([\w-]+)", commands, re.MULTILINE))
    assert made
    assert made <= targets
    for name in re.findall(r"(?:^| )(\.ci/\S+)", commands, re.MULTILINE):
        assert (ROOT / name).stat().st_mode & 0o111
    paths = [
        path
        for step in steps(workflow)
        for path in step.get("with", {}).get("cache-dependency-path", "").split()
    ]
    assert all((ROOT / path).is_file() for path in paths)


def test_actions_are_pinned_by_major_version_and_nothing_may_write(workflow: dict[str, Any]) -> None:
    actions = [step["uses"] for step in steps(workflow) if "uses" in step]
    assert actions
    assert all(re.fullmatch(r"actions/[\w-]+@v[0-9]+", action) for action in actions)
    assert workflow["permissions"] == {"contents": "read"}
    assert all("timeout-minutes" in job for job in workflow["jobs"].values())


def test_the_pythons_are_those_that_the_project_names() -> None:
    text = (ROOT / ".github" / "workflows" / "ci.yml").read_text(encoding="utf-8")
    matrix = yaml.safe_load(text)["jobs"]["fast"]["strategy"]["matrix"]["python"]
    assert matrix == re.findall(r"Python :: (3\.\d+)", (ROOT / "pyproject.toml").read_text(encoding="utf-8"))
