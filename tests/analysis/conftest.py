"""An empty store, and copies of it."""

from pathlib import Path

import pytest
from mlflow import MlflowClient


@pytest.fixture(scope="session")
def empty_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database with its tables and nothing else; creating one takes seconds, copying it does not."""
    path = tmp_path_factory.mktemp("empty") / "mlflow.db"
    MlflowClient(f"sqlite:///{path}").search_experiments()
    return path


@pytest.fixture
def uri(tmp_path: Path) -> str:
    """Of a store of the test's own."""
    return f"sqlite:///{tmp_path / 'mlflow.db'}"
