"""Runs of verl one after the other: each begins where neither Ray nor verl is loaded."""

import sys
from pathlib import Path

import pytest

from cppo_lab import schema
from cppo_lab.launch.inline import launch_inline
from cppo_lab.run import Attempt
from cppo_lab.spec import VerlRun
from cppo_lab.store import tracking_uri
from cppo_lab.sweep.compose import compose
from cppo_lab.tracking.client import attempts

pytestmark = pytest.mark.verl


def test_each_has_a_process_of_its_own(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their data is missing, which is seen after Ray's environment is set and before Ray is started."""
    import ray  # of this process: a run in it would start Ray with the settings of this import
    from mlflow import MlflowClient

    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    assert ray.__name__ in sys.modules
    todo = []
    for seed in (0, 1):
        found = compose(["core=verl", "model=qwen3_1_7b", "layout=one_node", f"seed={seed}"])
        assert isinstance(found.run, VerlRun)
        todo.append(
            Attempt(found.run, workspace / "runs", tracking_uri(), layout=found.layout, paths=found.paths)
        )
    events: list[str] = []
    launch_inline(todo, compose([]).launcher, lambda event: events.append(event.kind))
    assert events == ["started", "ended"] * 2
    ids = [one.spec.run_id for one in todo]
    for recorded in attempts(MlflowClient(tracking_uri()), schema.experiment_name("verl"), ids).values():
        [attempt] = recorded
        assert attempt.outcome == schema.FAILED
        assert "run `cppo data prepare" in attempt.reason
