"""A run that has gone on is another version of itself, also where the last values are those of before."""

from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import pytest
from mlflow.entities import LifecycleStage, Metric, Run, RunData, RunInfo

from cppo_lab.analysis import history_cache
from cppo_lab.analysis.histories import read_points

RUN = "0123456789abcdef0123456789abcdef"


class Store:
    """Has one run that goes on, and counts what it is asked."""

    def __init__(self) -> None:
        self.points: list[Metric] = []
        self.asked: Counter[str] = Counter()

    def run(self) -> Run:
        """As the store knows it now: of each metric the last point."""
        info = RunInfo(
            RUN, "1", "me", "RUNNING", 1, None, LifecycleStage.ACTIVE, "mlflow-artifacts:/1/artifacts"
        )
        return Run(info, RunData(metrics=list({point.key: point for point in self.points}.values())))

    def get_metric_history(self, mlflow_id: str, key: str) -> list[Metric]:
        self.asked[key] += 1
        return [point for point in self.points if point.key == key]

    def read(self) -> list[tuple[int, float]]:
        client = SimpleNamespace(get_metric_history=self.get_metric_history)
        frame = read_points(client, "sqlite:////data/mlflow.db", [self.run()], None)  # type: ignore[arg-type]
        return list(zip(frame["step"].tolist(), frame["value"].tolist(), strict=True))


@pytest.mark.parametrize("later", [True, False], ids=["measured later", "measured within a millisecond"])
def test_the_same_value_at_a_later_step_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, later: bool
) -> None:
    monkeypatch.setattr(history_cache, "FOLDER", tmp_path / "histories")
    store = Store()
    for step in range(1, 4):
        store.points.append(Metric("train/kept", 1.0, 1_000 + step * later, step))
        expected = [(number, 1.0) for number in range(1, step + 1)]
        assert store.read() == store.read() == expected
        assert store.asked["train/kept"] == step  # once for each version
