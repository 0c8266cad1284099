"""One run of a trial: how often it is tried again, and when it is given up. With processes: test_search_worker.py."""

from pathlib import Path

import pytest

from cppo_lab.runs.attempt import Attempt
from cppo_lab.runs.folder import CANCELLED
from cppo_lab.spec import RunSpec
from cppo_lab.sweep.search import training
from cppo_lab.sweep.search.training import TRIES, Run, TrainingFailed, train


@pytest.fixture
def run(tmp_path: Path, tiny_spec: RunSpec) -> Run:
    """A run that is never done."""
    attempt = Attempt(tiny_spec, tmp_path / "runs", created=1000.0)
    attempt.folder.mkdir(parents=True)
    return Run(attempt, "sqlite:///mlflow.db", finished=lambda: None, live=list)


def dying(monkeypatch: pytest.MonkeyPatch) -> list[Run]:
    """Let every training process be killed; the runs that were tried."""
    tried: list[Run] = []

    def die(run: Run, see: object) -> str:
        tried.append(run)
        return "signal 9"

    monkeypatch.setattr(training, "_train_here", die)
    return tried


def test_a_run_whose_process_dies_again_and_again_is_given_up(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried = dying(monkeypatch)
    with pytest.raises(
        TrainingFailed, match=f"its process ended {TRIES} times before its last step: signal 9"
    ):
        train(run, lambda points: None)
    assert tried == [run] * TRIES


def test_a_cancelled_run_is_not_tried_again(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    tried = dying(monkeypatch)
    (run.attempt.folder / CANCELLED).write_text("2000.0")
    with pytest.raises(TrainingFailed, match="its run was cancelled"):
        train(run, lambda points: None)
    assert tried == [run]
