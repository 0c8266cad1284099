"""Inline, a run of verl has a process of its own, in which neither Ray nor verl is loaded yet."""

import os
from pathlib import Path

import pytest
from mlflow import MlflowClient

from cppo_lab import schema
from cppo_lab.launch.inline import launch_inline
from cppo_lab.runs.folder import read_status
from cppo_lab.spec import VerlRun
from cppo_lab.sweep.compose import compose
from cppo_lab.tracking.address import tracking_uri
from cppo_lab.tracking.read import attempts_at
from tests.jobs import job

pytestmark = pytest.mark.verl


def test_a_run_has_a_process_of_its_own_and_its_failure_is_recorded(workspace: Path) -> None:
    """Its data is missing, which is seen before Ray is started."""
    found = compose(["core=verl", "model=qwen3_1_7b", "layout=one_node"])
    assert isinstance(found.run, VerlRun)
    attempt = job(found.run, workspace / "runs", tracking_uri(), layout=found.layout, paths=found.paths)
    events: list[str] = []
    launch_inline([attempt], found.launcher, lambda event: events.append(event.kind))
    assert events == ["started", "ended"]
    run_id = found.run.run_id
    [recorded] = attempts_at(MlflowClient(tracking_uri()), schema.experiment_name("verl"), run_id)
    assert recorded.status == schema.FAILED
    assert "run `cppo data prepare" in recorded.tags[schema.TAG_REASON]
    assert read_status(attempt.folder)["pid"] != os.getpid()
