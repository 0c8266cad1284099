"""Where runs are, for every command."""

from pathlib import Path

RUNS = Path("runs")  # below the working folder, beside mlflow.db
