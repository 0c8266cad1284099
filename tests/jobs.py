"""Jobs of training runs, as a launch makes them."""

from pathlib import Path
from typing import Any

from cppo_lab.launch.training import TrainingJob
from cppo_lab.runs.attempt import Attempt
from cppo_lab.spec import RunSpec


def job(
    spec: RunSpec, runs: Path, uri: str, tags: dict[str, str] | None = None, **values: Any
) -> TrainingJob:
    """The job of one attempt at a run; `values` are further fields of the attempt."""
    return TrainingJob((Attempt(spec, runs, tags=tags or {}, **values),), uri)
