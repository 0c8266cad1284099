"""What every bad input meets: no store from outside, an empty one where it is wanted, and no training."""

import os
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import Mock

import pytest
from mlflow import MlflowClient


@pytest.fixture(scope="session")
def empty_store(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """An MLflow store in SQLite that has its tables and nothing else."""
    path = tmp_path_factory.mktemp("hostile") / "mlflow.db"
    MlflowClient(f"sqlite:///{path}").search_experiments()
    return path.read_bytes()


@pytest.fixture(autouse=True)
def _environment_as_it_was(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No store of searches is named from outside, and what commands set for MLflow is taken back."""
    monkeypatch.delenv("OPTUNA_STORAGE", raising=False)
    before = dict(os.environ)
    yield
    os.environ.clear()
    os.environ.update(before)


@pytest.fixture
def nothing_trains(monkeypatch: pytest.MonkeyPatch) -> None:
    """An input that is wrongly accepted must not cost minutes."""

    refuse = Mock(side_effect=AssertionError("a launcher was about to start"))
    for module in ("cppo_lab.sweep.launch", "cppo_lab.search.worker"):
        monkeypatch.setattr(f"{module}.load_launcher", refuse)


@pytest.fixture
def folder_of_a_stranger(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder whose name a shell would read as commands."""
    folder = workspace / "a b'c$(touch canary)\"`touch canary`;touch canary;#&"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder
