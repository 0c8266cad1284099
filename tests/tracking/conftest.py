"""A store of a test's own, as the tests of `analysis` have it, and a run that is recorded attempt by attempt."""

import itertools
from collections.abc import Callable
from pathlib import Path

import pytest

from cppo_lab.runs.recorder import Recorder
from cppo_lab.spec import RunSpec
from tests.analysis.conftest import uri

__all__ = ["uri"]
REWARD, LOSS = "train/reward", "train/loss"
Attempt = Callable[..., Recorder]


def log(recorder: Recorder, *numbers: int) -> None:
    for number in numbers:
        recorder.log(number, {REWARD: number / 10, LOSS: -number})


@pytest.fixture
def folder(workspace: Path, tiny_spec: RunSpec, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Of a run, whose points are measured at times that can be told apart."""
    times = itertools.count(1_000)
    monkeypatch.setattr("cppo_lab.runs.recorder.time.time", lambda: next(times))
    path = workspace / "runs" / tiny_spec.run_id
    path.mkdir(parents=True)
    return path


@pytest.fixture
def attempt(folder: Path, tiny_spec: RunSpec) -> Attempt:
    """Begins an attempt at the run, which goes on behind the step `after`, and logs steps."""

    def begin(*steps: int, after: int | None = None, place: Path = folder, **tags: str) -> Recorder:
        recorder = Recorder(tiny_spec, tags, place)
        recorder.begin(after)
        log(recorder, *steps)
        return recorder

    return begin
