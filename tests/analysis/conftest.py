"""A store of a test's own."""

from pathlib import Path

import pytest


@pytest.fixture
def uri(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'mlflow.db'}"
